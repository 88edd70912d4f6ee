//! `culvert serve`: the production start.

use std::io::IsTerminal;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use culvert_wire::socket;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use super::{CliError, refused, set_up};
use crate::app::{App, Host};
use crate::config::{Config, ConfigError, LogFormat};
use crate::policies;
use culvert_service::fleet::EndCause;
use culvert_service::jobs::Ticker;
use culvert_store::schema::NEWER;

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
    let error = cause.map(|cause| why(cause, &host.app.config));
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

/// How long a host that is told to stop while it starts may take to be ready, and to stop in order.
const START_WITHIN: Duration = Duration::from_secs(10);

/// Starts a host; None if it was told to stop meanwhile. One that has its place among the hosts gives it back.
pub(super) async fn start(config: Config, stop: &mut StopSignals) -> Result<Option<Host>, CliError> {
    let clock = Clock::system();
    let mut starting = pin!(Host::start(config, clock.clone(), Ticker::Auto));
    tokio::select! {
        host = &mut starting => return Ok(Some(host?)),
        () = stop.next() => {}
    }
    tracing::info!("told to stop while it starts");
    tokio::select! {
        started = clock.timeout(START_WITHIN, starting) => {
            if let Ok(host) = started {
                host?.stop().await;
            }
        }
        () = stop.next() => {}
    }
    Ok(None)
}

/// Why a host has ended by itself, for its operator.
pub(super) fn why(cause: EndCause, config: &Config) -> ConfigError {
    match cause {
        EndCause::Outdated => ConfigError::new("database_url", NEWER),
        EndCause::Replaced => ConfigError::new(
            "data_dir",
            "the database does not know this process as the host of the folder any longer: another one runs on a copy of the \
             folder, or the database was put back to before this start; in the second case, start it again",
        ),
        EndCause::KeyMissing(version) => {
            let file = config.secret_key_file();
            let problem =
                format!("{}: the other hosts use key v{version}, which it does not have; copy theirs", file.display());
            ConfigError::new("secret_key_file", problem)
        }
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
