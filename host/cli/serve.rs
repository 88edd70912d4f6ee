//! `culvert serve`: the production start.

use std::io::IsTerminal;
use std::pin::pin;
use std::sync::Arc;

use culvert_wire::clock::Clock;
use culvert_wire::socket;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{CliError, refused, set_up};
use crate::app::{App, Host};
use crate::config::{Config, LogFormat};
use crate::policies;
use culvert_service::jobs::Ticker;

pub(super) async fn run(config: Config) -> Result<(), CliError> {
    log(config.log.format, "info");
    socket::allow_many();
    // From the first moment on: unheard, it ends the process.
    let hangup = signal(SignalKind::hangup()).map_err(refused)?;
    // Before the host is ready: who reads that it is may stop it at once.
    let mut stopped = pin!(stopped().map_err(refused)?);
    let host = tokio::select! {
        host = Host::start(config, Clock::system(), Ticker::Auto) => host?,
        () = stopped.as_mut() => return Ok(()),
    };
    set_up::offer(&host.app).await?;
    let reloads = tokio::spawn(reload_on(hangup, host.app.clone()));
    stopped.await;
    reloads.abort();
    host.stop().await;
    Ok(())
}

/// Reloads the policies at every SIGHUP, but while they are rolled back. How that went is in the log and in `culvert policy status`.
async fn reload_on(mut hangup: Signal, app: Arc<App>) {
    while hangup.recv().await.is_some() {
        if app.policies.current().generation.is_rollback {
            tracing::info!("SIGHUP: the policies stay rolled back; `culvert policy reload` loads the configuration");
            continue;
        }
        let _ = policies::reload(&app.service, app.config.file.as_deref()).await;
    }
}

/// Writes the log to standard error; `RUST_LOG` says what of it.
pub(super) fn log(format: LogFormat, level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}

/// Waits for Ctrl-C or a request to end, from now on.
pub(super) fn stopped() -> std::io::Result<impl Future<Output = ()>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
