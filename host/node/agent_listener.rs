//! The listener for the agents' data connections: TLS handshake, and then proof of a device or, in version 1, of a
//! lease (attach).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::data::{self, ATTACHED, FENCED, UNKNOWN_KEY, read_frame};
use culvert_wire::data2::attach::{Attached, DenialCode, Denied, LaneKind};
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::{Frame, malformed};
use culvert_wire::data2::lane::TlsLane;
use culvert_wire::data2::transport::Transport;
use culvert_wire::data2::{self, MAX_WARM, MIN_WARM};
use culvert_wire::device_token::{self, AgentProcess, DeviceTokenError};
use culvert_wire::socket;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use tokio_util::future::FutureExt;

use super::carriers::Carrier;
use super::lease_connections::LeaseStream;
use super::{Shared, lock};

/// How long a connection may take to send its ClientHello. An agent sends it at once.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// How long a connection may take to attach, counted from its acceptance.
pub(super) const ATTACH_WITHIN: Duration = Duration::from_secs(10);
/// When an agent whose connection was denied may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The answer to a connection that is taken.
pub(super) const ATTACHED_HERE: Frame = Frame::Attached(Attached { ahead: MIN_WARM, most: MAX_WARM });
/// How long to wait after a failed accept, for example when no file descriptor is free.
pub(super) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) fn open(shared: Arc<Shared>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let unproven = shared.bounds.unproven_entries();
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let stop = shared.stop.clone();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, address)) = accepted else {
                shared.clock.sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let entry = unproven.enter(address.ip());
            shared.counts.unproven.enter();
            let (shared, tls) = (shared.clone(), tls.clone());
            tokio::spawn(async move {
                let admitted = shared.clock.timeout(ATTACH_WITHIN, admit(&shared, tls, stream));
                let admitted = admitted.with_cancellation_token(&entry.evicted).await;
                drop(entry);
                shared.counts.unproven.leave();
                match admitted {
                    Some(Ok(Ok(()))) => {}
                    Some(Ok(Err(error))) => tracing::debug!(%error, "an agent's connection was not taken"),
                    Some(Err(_)) => tracing::debug!("an agent's connection did not attach in time"),
                    None => tracing::debug!("an agent's connection had to go before it attached"),
                }
            });
        }
    });
}

/// Performs TLS handshake and attach, and keeps the connection if it proves whose it is.
async fn admit(shared: &Shared, tls: Arc<ServerConfig>, stream: TcpStream) -> io::Result<()> {
    socket::prepare(&stream)?;
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream);
    let hello = shared.clock.timeout(HELLO_WITHIN, hello).await;
    let hello = hello.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "it did not begin in time"))??;
    let connection = hello.into_stream(tls).await?;
    if connection.get_ref().1.alpn_protocol() == Some(data2::ALPN) {
        attach(shared, Connection::new(Transport::Tls(Box::new(connection.into())))).await
    } else {
        attach_to_lease(shared, Box::new(connection)).await
    }
}

/// Takes a connection of a device. One that is denied is told why, and closed.
async fn attach(shared: &Shared, mut connection: Carrier) -> io::Result<()> {
    let (process, lane) = match proven(shared, &mut connection).await? {
        Ok(proven) => proven,
        Err(code) => return deny(connection, code).await,
    };
    if lane == LaneKind::Datagrams {
        return attach_lane(shared, connection, process).await;
    }
    match shared.carriers.admit(process) {
        Ok(pool) => {
            connection.send(&ATTACHED_HERE).await?;
            pool.park(connection);
            Ok(())
        }
        Err(code) => deny(connection, code).await,
    }
}

/// Takes a connection for datagrams.
async fn attach_lane(shared: &Shared, mut connection: Carrier, process: AgentProcess) -> io::Result<()> {
    let lane = TlsLane::new(shared.clock.clone());
    let added = shared.carriers.find(process).and_then(|pool| pool.add_lane(&lane).map(|()| pool));
    let pool = match added {
        Ok(pool) => pool,
        Err(code) => return deny(connection, code).await,
    };
    let receiver = pool.receiver();
    let pool = Arc::downgrade(&pool);
    connection.get_ref().keep_little_unsent()?;
    connection.send(&ATTACHED_HERE).await?;
    let stop = shared.stop.clone();
    tokio::spawn(async move {
        let ended = lane.run(&mut connection, &receiver).with_cancellation_token(&stop).await;
        tracing::debug!(?ended, "a connection for datagrams has ended");
        if let Some(pool) = pool.upgrade() {
            pool.remove_lane(&lane);
        }
    });
    Ok(())
}

/// Whose connection it is, and what for, as its first frame proves.
pub(super) async fn proven(
    shared: &Shared,
    connection: &mut Carrier,
) -> io::Result<Result<(AgentProcess, LaneKind), DenialCode>> {
    let Some(Frame::Attach(attach)) = connection.next().await? else {
        return Err(malformed("the first frame is no attach"));
    };
    let keys = lock(&shared.keys).clone();
    let process = device_token::verify(&keys, shared.node_id, &attach.token.0, shared.clock.now());
    Ok(process.map(|process| (process, attach.lane)).map_err(|error| match error {
        DeviceTokenError::Invalid => DenialCode::Invalid,
        DeviceTokenError::Expired => DenialCode::Expired,
    }))
}

/// Tells an agent why its connection is not taken, and closes it.
pub(super) async fn deny(mut connection: Carrier, code: DenialCode) -> io::Result<()> {
    tracing::debug!(%code, "an agent's connection was denied");
    let retry_after_ms = RETRY_AFTER.as_millis() as u64;
    connection.send(&Frame::Denied(Denied { code, retry_after_ms })).await?;
    connection.close().await
}

/// Takes a connection of version 1, which belongs to one lease. If the lease does not hold, the connection is closed.
async fn attach_to_lease(shared: &Shared, mut connection: LeaseStream) -> io::Result<()> {
    let attach: data::Attach = read_frame(&mut connection).await?;
    let run = lock(&shared.tunnels).get(&attach.tunnel_id).map(super::Tunnel::run);
    // Who is told of an unknown key tries again.
    let unknown = if shared.carriers.is_lapsed() { UNKNOWN_KEY } else { FENCED };
    let answer = run.as_ref().map_or(unknown, |run| run.admit(&attach, shared));
    connection.write_all(&[answer]).await?;
    connection.flush().await?;
    match run.filter(|_| answer == ATTACHED) {
        Some(run) => run.add_lease_connection(connection),
        None => connection.shutdown().await?,
    }
    Ok(())
}
