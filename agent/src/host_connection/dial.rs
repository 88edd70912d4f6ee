//! Connects to whichever host answers first. Attempts begin one after the other, and none waits for long for the one before,
//! as RFC 8305 has it for the addresses of one name. No HTTP or WebSocket client that was looked at does so for several names.

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

/// How long the first attempt waits for the addresses of other names (RFC 8305, section 3).
const OTHER_NAMES_WITHIN: Duration = Duration::from_millis(50);
/// How long after an attempt the next one begins, unless it has failed by then (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);
/// Attempts that are under way at once.
const AT_ONCE: usize = 4;
/// Most addresses of one name.
const MOST_ADDRESSES: usize = 8;

/// A host that has asked for the device's identity.
pub(super) struct Challenged {
    pub(super) socket: Socket,
    pub(super) nonce: Vec<u8>,
}

/// What became of a host's name, or of an attempt at one of its addresses.
pub(super) struct Answer {
    pub(super) server: String,
    pub(super) outcome: Result<Challenged, Ended>,
}

/// An address of a host.
#[derive(Clone, PartialEq)]
struct Candidate {
    server: String,
    address: SocketAddr,
}

type LookUp = (String, Result<Vec<SocketAddr>, Ended>);
type Attempt = (Candidate, Result<Challenged, Ended>);

/// The attempts to reach hosts.
pub(super) struct Dial {
    clock: Clock,
    look_ups: FuturesUnordered<BoxFuture<'static, LookUp>>,
    /// In the order in which they are tried, the first one last.
    candidates: Vec<Candidate>,
    attempts: FuturesUnordered<BoxFuture<'static, Attempt>>,
    begun: Vec<Candidate>,
    /// When the next attempt begins.
    next: Option<Moment>,
}

impl Dial {
    pub(super) fn new(servers: Vec<String>, clock: &Clock) -> Self {
        let look_ups = servers.into_iter().map(|server| look_up(server).boxed()).collect();
        let (candidates, begun) = (Vec::new(), Vec::new());
        Self { clock: clock.clone(), look_ups, candidates, attempts: FuturesUnordered::new(), begun, next: None }
    }

    /// Whether nothing is left to try.
    pub(super) fn is_over(&self) -> bool {
        self.look_ups.is_empty() && self.candidates.is_empty() && self.attempts.is_empty()
    }

    /// Does not try a host any further.
    pub(super) fn pass_over(&mut self, server: &str) {
        self.candidates.retain(|candidate| candidate.server != server);
    }

    /// The next host that answers, or what failed; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Answer> {
        while !self.is_over() {
            let may_begin = !self.candidates.is_empty() && self.attempts.len() < AT_ONCE;
            if may_begin && self.look_ups.is_empty() && self.attempts.is_empty() {
                self.begin();
            }
            let next = self.next.unwrap_or_else(|| self.clock.moment());
            tokio::select! {
                biased;
                Some((server, found)) = self.look_ups.next() => match found {
                    Ok(addresses) => self.add(&server, addresses),
                    Err(ended) => return Some(Answer { server, outcome: Err(ended) }),
                },
                Some((candidate, outcome)) = self.attempts.next() => return Some(self.answer(candidate, outcome)),
                () = self.clock.until(next), if may_begin => self.begin(),
            }
        }
        None
    }

    /// In any order, so that agents spread over the hosts.
    fn add(&mut self, server: &str, addresses: Vec<SocketAddr>) {
        self.candidates.extend(addresses.into_iter().map(|address| Candidate { server: server.into(), address }));
        self.candidates.sort_by_cached_key(|_| self.clock.random::<8>());
        self.next.get_or_insert_with(|| self.clock.moment().plus(OTHER_NAMES_WITHIN));
    }

    fn begin(&mut self) {
        if let Some(candidate) = self.candidates.pop() {
            self.begun.push(candidate.clone());
            self.attempts.push(attempt(candidate).boxed());
            self.next = Some(self.clock.moment().plus(NEXT_AFTER));
        }
    }

    /// The others are given up while a host answers, and tried again if it does not welcome the device: hosts do not wait for
    /// long either.
    fn answer(&mut self, candidate: Candidate, outcome: Result<Challenged, Ended>) -> Answer {
        self.begun.retain(|begun| *begun != candidate);
        self.next = Some(self.clock.moment());
        if outcome.is_ok() {
            self.attempts = FuturesUnordered::new();
            self.candidates.append(&mut self.begun);
        }
        Answer { server: candidate.server, outcome }
    }
}

async fn look_up(server: String) -> LookUp {
    let found = async {
        let request = request(&server)?;
        let host = request.uri().host().ok_or_else(|| Ended::Address(server.clone()))?.trim_matches(['[', ']']);
        let port = request.uri().port_u16().unwrap_or(if server.starts_with("https:") { 443 } else { 80 });
        Ok(lookup_host((host, port)).await?.take(MOST_ADDRESSES).collect())
    };
    let found = found.await;
    (server, found)
}

async fn attempt(candidate: Candidate) -> Attempt {
    let challenged = challenged(&candidate).await;
    (candidate, challenged)
}

async fn challenged(Candidate { server, address }: &Candidate) -> Result<Challenged, Ended> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let limits = WebSocketConfig::default().max_message_size(Some(FRAME_LIMIT)).max_frame_size(Some(FRAME_LIMIT));
    let (mut socket, _) = client_async_tls_with_config(request(server)?, stream, Some(limits), None).await?;
    let ToAgent::Challenge { nonce } = receive(&mut socket).await? else { return Err(Ended::Protocol) };
    Ok(Challenged { socket, nonce: nonce.0 })
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
