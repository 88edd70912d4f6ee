//! Webhook endpoints: real HTTPS servers on loopback, which do with a request what a test has them
//! do, and hand every delivery to it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use culvert::config::Config;
use culvert_wire::clock::Clock;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::host::{own_address, within};

/// The name that every receiver's certificate is for, beside its address.
pub const NAME: &str = "hooks.example.test";

/// Whoever vouches for receivers.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// One endpoint.
pub struct Receiver {
    pub address: SocketAddr,
    deliveries: mpsc::UnboundedReceiver<Delivered>,
    desk: Arc<Desk>,
}

/// A request, as it came.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// `POST /path`
    pub what: String,
    /// By their names in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
    /// When it had come.
    pub at: DateTime<Utc>,
}

/// What is done with a request.
#[derive(Clone)]
pub enum Reply {
    Status(u16),
    /// With more header lines, each ended.
    With(u16, String),
    /// 200, and a body of so many bytes.
    Body(usize),
    /// 200, and this body.
    File(Arc<[u8]>),
    /// Not a byte until the test gives leave; then 200.
    Wait(Arc<Semaphore>),
    /// The first part at once; of the second a byte in every second of the test's clock.
    Drip(&'static str, &'static str),
    /// The first part once, the second for as long as anybody reads.
    Endless(&'static str, &'static str),
    /// No HTTP at all.
    Nonsense,
    /// The connection is torn down.
    Reset,
}

impl Reply {
    /// Never answers.
    pub fn hang() -> Self {
        Self::Wait(Arc::new(Semaphore::new(0)))
    }
}

struct Desk {
    clock: Clock,
    replies: Mutex<Replies>,
    deliveries: mpsc::UnboundedSender<Delivered>,
    connections: watch::Sender<u32>,
    work: watch::Sender<Work>,
    /// Bytes of answers that were written.
    sent: watch::Sender<u64>,
}

struct Replies {
    first: VecDeque<Reply>,
    then: Reply,
}

/// Requests that have come and are not answered yet.
#[derive(Clone, Copy, Default)]
struct Work {
    now: usize,
    most: usize,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Its certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Has a host trust it and dial loopback addresses; and answer tests however often they ask.
    pub fn let_in(&self, config: &mut Config) {
        let file = config.data_dir.join("authority.pem");
        std::fs::write(&file, &self.pem).unwrap();
        config.webhooks.extra_root_certificates = Some(file);
        config.webhooks.allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
        config.rate_limit.per_minute = 100_000;
        config.rate_limit.per_day = 100_000;
    }

    /// An endpoint that answers 200.
    pub async fn receiver(&self, clock: &Clock) -> Receiver {
        self.receiver_with(clock, |_| {}).await
    }

    /// One with another certificate.
    pub async fn receiver_with(&self, clock: &Clock, change: impl FnOnce(&mut CertificateParams)) -> Receiver {
        let listener = TcpListener::bind((own_address(), 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut params = CertificateParams::new([address.ip().to_string(), NAME.into()]).unwrap();
        change(&mut params);
        let acceptor = TlsAcceptor::from(self.identity(&params));
        let (sender, deliveries) = mpsc::unbounded_channel();
        let desk = Arc::new(Desk {
            clock: clock.clone(),
            replies: Mutex::new(Replies { first: VecDeque::new(), then: Reply::Status(200) }),
            deliveries: sender,
            connections: watch::Sender::new(0),
            work: watch::Sender::new(Work::default()),
            sent: watch::Sender::new(0),
        });
        let at_desk = desk.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                at_desk.connections.send_modify(|connections| *connections += 1);
                tokio::spawn(serve(at_desk.clone(), acceptor.clone(), stream));
            }
        });
        Receiver { address, deliveries, desk }
    }

    fn identity(&self, params: &CertificateParams) -> Arc<ServerConfig> {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        Arc::new(config.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap())
    }
}

impl Receiver {
    pub fn url(&self) -> String {
        format!("https://{}/", self.address)
    }

    /// As [`Receiver::url`], by a name.
    pub fn url_at(&self, name: &str) -> String {
        format!("https://{name}:{}/", self.address.port())
    }

    /// What is done with requests from here on.
    pub fn reply(&self, reply: Reply) {
        self.desk.replies.lock().unwrap().then = reply;
    }

    /// What is done with the next requests, before that.
    pub fn reply_first(&self, replies: impl IntoIterator<Item = Reply>) {
        self.desk.replies.lock().unwrap().first.extend(replies);
    }

    /// The next delivery.
    pub async fn next(&mut self) -> Delivered {
        within(60, self.deliveries.recv()).await.unwrap()
    }

    /// What has come and was not looked at yet.
    pub fn waiting(&mut self) -> Vec<Delivered> {
        std::iter::from_fn(|| self.deliveries.try_recv().ok()).collect()
    }

    pub fn connections(&self) -> u32 {
        *self.desk.connections.borrow()
    }

    /// Waits until so many requests are here and not answered.
    pub async fn until_at_work(&self, requests: usize) {
        self.desk.work.subscribe().wait_for(|work| work.now == requests).await.unwrap();
    }

    /// Requests that are here and not answered.
    pub fn at_work(&self) -> usize {
        self.desk.work.borrow().now
    }

    /// As many of them as there ever were.
    pub fn most_at_work(&self) -> usize {
        self.desk.work.borrow().most
    }

    /// Waits until so many bytes of answers have been written.
    pub async fn until_sent(&self, bytes: u64) {
        self.desk.sent.subscribe().wait_for(|sent| *sent >= bytes).await.unwrap();
    }

    pub fn sent(&self) -> u64 {
        *self.desk.sent.borrow()
    }
}

impl Delivered {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}: {:?}", self.headers))
    }

    /// The event.
    pub fn event(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

type Stream = BufReader<TlsStream<TcpStream>>;

async fn serve(desk: Arc<Desk>, acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    while let Some(delivered) = read(&mut stream, &desk.clock).await? {
        let reply = desk.take_reply();
        let work = AtWork::begin(&desk);
        let _ = desk.deliveries.send(delivered);
        answer(&desk, &mut stream, reply, work).await?;
    }
    Ok(())
}

/// The next request of a connection, if there is one.
async fn read(stream: &mut Stream, clock: &Clock) -> io::Result<Option<Delivered>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let what = lines[0].trim_end_matches(" HTTP/1.1").to_owned();
    let header = |line: &String| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    let headers: HashMap<_, _> = lines[1..].iter().filter_map(header).collect();
    let mut body = vec![0; headers.get("content-length").map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    Ok(Some(Delivered { what, headers, body, at: clock.now() }))
}

/// Answers one request; where it ends in an error, the connection ends as well.
async fn answer(desk: &Desk, stream: &mut Stream, reply: Reply, work: AtWork<'_>) -> io::Result<()> {
    let over = || Err(io::ErrorKind::ConnectionAborted.into());
    match reply {
        Reply::Status(status) => respond(desk, stream, status, "", 0, work).await,
        Reply::With(status, more) => respond(desk, stream, status, &more, 0, work).await,
        Reply::Body(length) => respond(desk, stream, 200, "", length, work).await,
        Reply::File(content) => {
            drop(work);
            let head = format!("HTTP/1.1 200 So\r\ncontent-length: {}\r\n\r\n", content.len());
            desk.send(stream, &[head.as_bytes(), &content].concat()).await
        }
        Reply::Wait(leave) => tokio::select! {
            permit = leave.acquire() => {
                permit.unwrap().forget();
                respond(desk, stream, 200, "", 0, work).await
            }
            _ = stream.fill_buf() => over(),
        },
        Reply::Drip(first, drops) => {
            let start = desk.clock.moment();
            desk.send(stream, first.as_bytes()).await?;
            for (second, drop) in (1..).zip(drops.as_bytes()) {
                desk.clock.until(start.plus(Duration::from_secs(second))).await;
                desk.send(stream, &[*drop]).await?;
            }
            Ok(())
        }
        Reply::Endless(first, block) => {
            desk.send(stream, first.as_bytes()).await?;
            loop {
                desk.send(stream, block.as_bytes()).await?;
            }
        }
        Reply::Nonsense => {
            desk.send(stream, b"SSH-2.0-OpenSSH_9.6\r\n\r\n").await?;
            over()
        }
        Reply::Reset => {
            stream.get_ref().get_ref().0.set_zero_linger()?;
            over()
        }
    }
}

async fn respond(
    desk: &Desk,
    stream: &mut Stream,
    status: u16,
    more: &str,
    length: usize,
    work: AtWork<'_>,
) -> io::Result<()> {
    // Once the last byte is out, the next request may be here before this goes on.
    drop(work);
    let head = format!("HTTP/1.1 {status} So\r\ncontent-length: {length}\r\n{more}\r\n");
    desk.send(stream, &[head.as_bytes(), &vec![b'x'; length]].concat()).await
}

impl Desk {
    fn take_reply(&self) -> Reply {
        let mut replies = self.replies.lock().unwrap();
        replies.first.pop_front().unwrap_or_else(|| replies.then.clone())
    }

    async fn send(&self, stream: &mut Stream, bytes: &[u8]) -> io::Result<()> {
        stream.write_all(bytes).await?;
        stream.flush().await?;
        self.sent.send_modify(|sent| *sent += bytes.len() as u64);
        Ok(())
    }
}

/// A request that is here and not answered.
struct AtWork<'d>(&'d Desk);

impl<'d> AtWork<'d> {
    fn begin(desk: &'d Desk) -> Self {
        desk.work.send_modify(|work| *work = Work { now: work.now + 1, most: work.most.max(work.now + 1) });
        Self(desk)
    }
}

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.work.send_modify(|work| work.now -= 1);
    }
}
