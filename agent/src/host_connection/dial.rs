//! Connects to whichever host answers first. Attempts begin one after the other, and none waits for long for the one before,
//! as RFC 8305, section 5, has it for the addresses of one name. No HTTP or WebSocket client that was looked at does so for
//! several names.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::net::{TcpStream, lookup_host};
use tokio_tungstenite::client_async_tls_with_config;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::{HeaderValue, Request};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::{Ended, Socket, receive};
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::{CONNECT_PATH, FRAME_LIMIT, PROTOCOL, ToAgent};

/// How long after an attempt the next one begins, unless it has failed by then.
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Most addresses of one name.
const MOST_ADDRESSES: usize = 8;

/// A host that has asked for the device's identity.
pub(super) struct Challenged {
    pub(super) server: String,
    pub(super) socket: Socket,
    pub(super) nonce: Vec<u8>,
}

/// An address of a host.
struct Candidate {
    server: String,
    address: SocketAddr,
}

enum Step {
    Found(Vec<Candidate>),
    Answered(Box<Challenged>),
    Failed(Ended),
}

/// The attempts to reach hosts.
pub(super) struct Dial {
    clock: Clock,
    /// In the order in which they are tried.
    candidates: Vec<Candidate>,
    under_way: FuturesUnordered<BoxFuture<'static, Step>>,
    next: Moment,
}

impl Dial {
    pub(super) fn new(servers: Vec<String>, clock: &Clock) -> Self {
        let under_way = servers.into_iter().map(|server| find(server).boxed()).collect();
        Self { clock: clock.clone(), candidates: Vec::new(), under_way, next: clock.moment() }
    }

    /// The next host that answers, or an attempt that failed; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Result<Challenged, Ended>> {
        loop {
            if self.under_way.is_empty() {
                self.begin();
            }
            let step = tokio::select! {
                biased;
                () = self.clock.until(self.next), if !self.candidates.is_empty() => {
                    self.begin();
                    continue;
                }
                step = self.under_way.next() => step?,
            };
            match step {
                Step::Found(candidates) => self.add(candidates),
                Step::Answered(challenged) => return Some(Ok(*challenged)),
                Step::Failed(ended) => {
                    self.next = self.clock.moment();
                    return Some(Err(ended));
                }
            }
        }
    }

    /// In any order, so that agents spread over the hosts.
    fn add(&mut self, candidates: Vec<Candidate>) {
        self.candidates.extend(candidates);
        self.candidates.sort_by_cached_key(|_| self.clock.random::<8>());
    }

    fn begin(&mut self) {
        if let Some(candidate) = self.candidates.pop() {
            self.under_way.push(attempt(candidate).map(Step::from).boxed());
            self.next = self.clock.moment().plus(NEXT_AFTER);
        }
    }
}

impl From<Result<Challenged, Ended>> for Step {
    fn from(outcome: Result<Challenged, Ended>) -> Self {
        outcome.map_or_else(Self::Failed, |challenged| Self::Answered(Box::new(challenged)))
    }
}

/// Looks up a host's addresses.
async fn find(server: String) -> Step {
    let found = async {
        let request = request(&server)?;
        let host = request.uri().host().ok_or_else(|| Ended::Address(server.clone()))?.trim_matches(['[', ']']);
        let port = request.uri().port_u16().unwrap_or(if server.starts_with("https:") { 443 } else { 80 });
        Ok(lookup_host((host, port)).await?.take(MOST_ADDRESSES).collect::<Vec<_>>())
    };
    match found.await {
        Ok(addresses) => {
            Step::Found(addresses.into_iter().map(|address| Candidate { server: server.clone(), address }).collect())
        }
        Err(ended) => Step::Failed(ended),
    }
}

async fn attempt(Candidate { server, address }: Candidate) -> Result<Challenged, Ended> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let limits = WebSocketConfig::default().max_message_size(Some(FRAME_LIMIT)).max_frame_size(Some(FRAME_LIMIT));
    let (mut socket, _) = client_async_tls_with_config(request(&server)?, stream, Some(limits), None).await?;
    let ToAgent::Challenge { nonce } = receive(&mut socket).await? else { return Err(Ended::Protocol) };
    Ok(Challenged { server, socket, nonce: nonce.0 })
}

fn request(server: &str) -> Result<Request<()>, Ended> {
    let address = match server.split_once("://") {
        Some(("https", rest)) => format!("wss://{rest}{CONNECT_PATH}"),
        Some(("http", rest)) => format!("ws://{rest}{CONNECT_PATH}"),
        _ => return Err(Ended::Address(server.into())),
    };
    let mut request = address.into_client_request()?;
    request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(PROTOCOL));
    Ok(request)
}
