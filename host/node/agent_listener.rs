//! The listener for the agents' data connections: TLS handshake, and then proof of a device or, in version 1, of a
//! lease (attach).

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::data::{self, ATTACHED, FENCED, read_frame};
use culvert_wire::data2::attach::{Attached, DenialCode, Denied};
use culvert_wire::data2::connection::Connection;
use culvert_wire::data2::frame::{Frame, malformed};
use culvert_wire::data2::{self, MAX_WARM, MIN_WARM};
use culvert_wire::device_token::{self, DeviceTokenError};
use culvert_wire::socket;
use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;

use super::bounds::Bound;
use super::carriers::{AgentStream, Carrier};
use super::{Shared, lock};
use culvert_wire::unproven::Unproven;

/// How long a connection may take to send its ClientHello. An agent sends it at once.
const HELLO_WITHIN: Duration = Duration::from_secs(3);
/// How long a connection may take to attach, counted from its acceptance.
const ATTACH_WITHIN: Duration = Duration::from_secs(10);
/// When an agent whose connection was denied may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How long to wait after a failed accept, for example when no file descriptor is free.
pub(super) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

pub(crate) fn open(shared: Arc<Shared>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let bounds = shared.bounds.clone();
    let (most, per_address) = (bounds.unproven, bounds.unproven_per_address);
    let unproven = Unproven::new(most, per_address, move || bounds.refused(Bound::Unproven));
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
                let admitted = entry.evicted.run_until_cancelled(admitted).await;
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
    let connection = Box::new(hello.into_stream(tls).await?);
    if connection.get_ref().1.alpn_protocol() == Some(data2::ALPN) {
        attach(shared, Connection::new(connection)).await
    } else {
        attach_to_lease(shared, connection).await
    }
}

/// Takes a connection of a device. One that is denied is told why, and closed.
async fn attach(shared: &Shared, mut connection: Carrier) -> io::Result<()> {
    let Some(Frame::Attach(attach)) = connection.next().await? else {
        return Err(malformed("the first frame is no attach"));
    };
    let keys = lock(&shared.keys).clone();
    let process = device_token::verify(&keys, shared.node_id, &attach.token.0, shared.clock.now());
    let admitted = match process {
        Ok(process) => shared.carriers.admit(process),
        Err(DeviceTokenError::Invalid) => Err(DenialCode::Invalid),
        Err(DeviceTokenError::Expired) => Err(DenialCode::Expired),
    };
    match admitted {
        Ok(pool) => {
            connection.send(&Frame::Attached(Attached { ahead: MIN_WARM, most: MAX_WARM })).await?;
            pool.park(connection);
            Ok(())
        }
        Err(code) => {
            tracing::debug!(%code, version = attach.version, "an agent's connection was denied");
            let retry_after_ms = RETRY_AFTER.as_millis() as u64;
            connection.send(&Frame::Denied(Denied { code, retry_after_ms })).await?;
            connection.close().await
        }
    }
}

/// Takes a connection of version 1, which belongs to one lease. If the lease does not hold, the connection is closed.
async fn attach_to_lease(shared: &Shared, mut connection: AgentStream) -> io::Result<()> {
    let attach: data::Attach = read_frame(&mut connection).await?;
    let run = lock(&shared.tunnels).get(&attach.tunnel_id).map(super::Tunnel::run);
    let answer = run.as_ref().map_or(FENCED, |run| run.admit(&attach, shared));
    connection.write_all(&[answer]).await?;
    connection.flush().await?;
    match run.filter(|_| answer == ATTACHED) {
        Some(run) => run.add_lease_connection(connection),
        None => connection.shutdown().await?,
    }
    Ok(())
}
