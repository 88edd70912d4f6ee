//! `culvert serve`: the production start.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use culvert_wire::socket;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{CliError, refused, set_up};
use crate::app::{App, Host};
use crate::claim;
use crate::config::{Config, LogFormat};
use crate::policies;
use culvert_service::fleet::EndCause;
use culvert_service::jobs::Ticker;

pub(super) async fn run(config: Config) -> Result<(), CliError> {
    log(config.log.format, "info");
    socket::allow_many();
    // From the first moment on: unheard, it ends the process.
    let hangup = signal(SignalKind::hangup()).map_err(refused)?;
    // Before the host is ready: who reads that it is may stop it at once.
    let mut stop = StopSignals::listen().map_err(refused)?;
    let Some(host) = start(config, &mut stop).await? else { return Ok(()) };
    set_up::offer(&host.app).await?;
    let reloads = tokio::spawn(reload_on(hangup, host.app.clone()));
    let cause = tokio::select! {
        () = stop.next() => None,
        cause = host.app.service.fleet().until_it_ends() => Some(cause),
    };
    let error = cause.map(|cause| claim::end_of(cause, &host.app.config));
    if let Some(error) = &error {
        tracing::error!("{error}; this host stops");
    }
    // What this process would write at its end is another one's now.
    if cause == Some(EndCause::Replaced) {
        host.app.policies.close();
    } else {
        tokio::select! {
            () = host.drain() => {}
            () = stop.next() => tracing::info!("told to stop again: nothing is waited for any longer"),
        }
        reloads.abort();
        host.stop().await;
    }
    error.map_or(Ok(()), |error| Err(error.into()))
}

/// How long a host that is told to stop while it starts may take to be ready, so that it can stop in order.
const START_WITHIN: Duration = Duration::from_secs(10);

/// Starts a host; None if it was told to stop meanwhile. One that has its place among the hosts gives it back.
pub(super) async fn start(config: Config, stop: &mut StopSignals) -> Result<Option<Host>, CliError> {
    let clock = Clock::system();
    let mut is_told = false;
    let stopped = async {
        stop.next().await;
        is_told = true;
        tracing::info!("told to stop while it starts");
        tokio::select! {
            () = clock.sleep(START_WITHIN) => {}
            () = stop.next() => {}
        }
    };
    match Host::start_unless(config, clock.clone(), Ticker::Auto, stopped).await? {
        Some(host) if is_told => {
            host.stop().await;
            Ok(None)
        }
        host => Ok(host),
    }
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

/// Ctrl-C, and requests to end.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Listens from now on.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
