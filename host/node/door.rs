//! Where the agents bring their connections: TLS, the proof of a lease, and then the wait for a
//! visitor.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_agent::socket;
use culvert_agent::wire::data::{ATTACHED, Attach, FENCED, read_frame};
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::run::Run;
use super::{Shared, lock};

const ATTACH_WITHIN: Duration = Duration::from_secs(10);
/// Connections that have not proved anything yet, at most.
const STRANGERS: usize = 1024;
/// How long to wait when the machine has no more sockets to give.
const EXHAUSTED: Duration = Duration::from_millis(100);

pub fn open(shared: Arc<Shared>, listener: TcpListener, tls: Arc<ServerConfig>) {
    let acceptor = TlsAcceptor::from(tls);
    let strangers = Arc::new(tokio::sync::Semaphore::new(STRANGERS));
    let tasks = shared.tasks.clone();
    tasks.spawn(async move {
        let stop = shared.stop.clone();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                shared.clock.sleep(EXHAUSTED).await;
                continue;
            };
            let Ok(stranger) = strangers.clone().try_acquire_owned() else { continue };
            let (shared, acceptor) = (shared.clone(), acceptor.clone());
            tokio::spawn(async move {
                let admitted = shared.clock.timeout(ATTACH_WITHIN, admit(&shared, &acceptor, stream)).await;
                drop(stranger);
                match admitted {
                    Ok(Ok(Some((run, connection)))) => run.park(connection),
                    Ok(Ok(None)) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "an agent's connection was not taken"),
                    Err(_) => tracing::debug!("an agent's connection did not attach in time"),
                }
            });
        }
    });
}

/// The run that a connection is for; none, where its lease does not hold.
async fn admit(
    shared: &Shared,
    acceptor: &TlsAcceptor,
    stream: TcpStream,
) -> io::Result<Option<(Arc<Run>, TlsStream<TcpStream>)>> {
    socket::prepare(&stream)?;
    let mut connection = acceptor.accept(stream).await?;
    let attach: Attach = read_frame(&mut connection).await?;
    let run = lock(&shared.tunnels).get(&attach.tunnel_id).map(super::Tunnel::run);
    let run = run.filter(|run| run.admits(&attach, &shared.secrets));
    connection.write_all(&[if run.is_some() { ATTACHED } else { FENCED }]).await?;
    connection.flush().await?;
    match run {
        Some(run) => Ok(Some((run, connection))),
        None => {
            connection.shutdown().await?;
            Ok(None)
        }
    }
}
