//! The agent: one task that handles all events, one after the other, and makes all decisions of this device.
//!
//! `commands` handles the host's commands, `requests` those of people at the device, `foreground` the tunnels that end
//! with a command; `runs` starts tunnels and ends them; `leases` holds the running ones and their expiry.

mod commands;
mod foreground;
mod leases;
mod requests;
mod runs;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::approved_targets::ApprovedTargets;
use crate::carrier::{Carriers, TransportChoice};
use crate::consent::Consent;
use crate::device::Device;
use crate::host_connection::{self, HostEvent};
use crate::ipc::{self, IpcRequest};
use crate::journal::{Journal, Stage};
use crate::pending_stops::PendingStops;
use crate::report::Report;
use crate::servers::Servers;
use crate::state_dir::StateDir;
use crate::target::LinkLocal;
use crate::targets::Targets;
use crate::tunnel::TunnelContext;
use culvert_wire::clock::{Clock, Moment};
use culvert_wire::control::{
    Capability, Hello, RevokeReason, SignedConsent, ToAgent, ToHost, Welcome, connect_statement,
};
use leases::Leases;

/// How long the agent waits at its end until the host has the goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// The platform, such as `linux/x86_64`.
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
}

/// What an agent is started with.
pub struct Setup {
    pub state: StateDir,
    pub device: Device,
    pub clock: Clock,
    pub link_local: LinkLocal,
    pub transport: TransportChoice,
    /// Whether remote control may replace the process by a new one.
    pub replaceable: bool,
}

/// Why an agent ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Exit {
    /// Somebody stopped it.
    Stopped,
    /// It is to be replaced by a new process of this program.
    Replace(PathBuf),
}

pub struct Agent {
    device: Device,
    servers: Servers,
    clock: Clock,
    boot_id: Uuid,
    program: PathBuf,
    consent: Consent,
    targets: Targets,
    agreed: ApprovedTargets,
    journal: Journal,
    stopped: PendingStops,
    leases: Leases,
    host: Option<Host>,
    /// When the last hello was signed. The leases in the welcome after it are not older, so their terms
    /// count from here.
    greeted: Moment,
    /// The consent decision in the last hello.
    told: Option<SignedConsent>,
    /// The local stops in the last hello.
    told_stopped: Vec<Uuid>,
    waiting: requests::Waiting,
    foreground: foreground::Foreground,
    replaceable: bool,
    /// Set when the process is to be replaced.
    replace: bool,
}

/// The host, while it is connected.
struct Host {
    server: String,
    outbox: mpsc::Sender<ToHost>,
    heartbeat: Duration,
    next_beat: Moment,
    /// Whether the host confirms that a tunnel runs.
    confirms_running: bool,
    /// Whether the host creates tunnels for commands at the device.
    creates_tunnels: bool,
}

impl Agent {
    /// Runs until it is stopped.
    ///
    /// # Errors
    ///
    /// If another agent uses the state folder, or the folder cannot be used.
    pub async fn run(setup: Setup, stop: CancellationToken) -> io::Result<Exit> {
        let Setup { state, device, clock, link_local, transport, replaceable } = setup;
        let _lock = state.lock()?;
        let (reports, mut reported) = mpsc::channel(256);
        let (requests, mut requested) = mpsc::channel(16);
        let (events, mut happened) = mpsc::channel(256);
        ipc::listen(&state, clock.clone(), requests)?;
        let servers = Servers::load(&state, &device.server);
        tokio::spawn(host_connection::run(servers.clone(), clock.clone(), events));
        let mut consent = Consent::load(&state)?;
        let targets = targets_of(&state, &mut consent, &device, &clock)?;
        let mut agent = Self {
            boot_id: clock.id(),
            program: std::env::current_exe()?,
            consent,
            targets: targets.clone(),
            agreed: ApprovedTargets::load(&state)?,
            journal: Journal::load(&state, clock.now())?,
            stopped: PendingStops::load(&state)?,
            leases: Leases::new(TunnelContext {
                carriers: Carriers::new(clock.clone(), transport),
                clock: clock.clone(),
                link_local,
                targets,
                reports,
            }),
            host: None,
            greeted: clock.moment(),
            told: None,
            told_stopped: Vec::new(),
            waiting: requests::Waiting::default(),
            foreground: foreground::Foreground::default(),
            replaceable,
            replace: false,
            device,
            servers,
            clock,
        };
        agent.conclude_what_a_former_process_began()?;
        while !agent.replace {
            let next = agent.next_deadline();
            tokio::select! {
                biased;
                () = stop.cancelled() => {
                    agent.leave(happened).await;
                    return Ok(Exit::Stopped);
                }
                Some(event) = happened.recv() => agent.on_link(event).await?,
                Some((lease_id, report)) = reported.recv() => agent.on_report(lease_id, report).await?,
                Some(request) = requested.recv() => agent.on_request(request).await?,
                () = due(&agent.clock, next) => agent.on_time().await?,
            }
            agent.advance_foreground().await?;
        }
        Ok(Exit::Replace(agent.program))
    }

    /// Sends a goodbye, and waits until it is sent.
    async fn leave(mut self, mut happened: mpsc::Receiver<HostEvent>) {
        if self.host.is_none() {
            return;
        }
        self.say(ToHost::Goodbye).await;
        // The connection ends when it has sent everything and its last sender is dropped.
        self.host = None;
        let ended = async { while happened.recv().await.is_some_and(|event| !matches!(event, HostEvent::Down)) {} };
        if self.clock.timeout(FAREWELL, ended).await.is_err() {
            tracing::warn!("the host could not be told goodbye");
        }
    }

    async fn on_link(&mut self, event: HostEvent) -> io::Result<()> {
        match event {
            HostEvent::Challenged { nonce, hello } => self.introduce(&nonce, hello),
            HostEvent::Up { server, outbox } => self.waiting.host = Some((server, outbox)),
            HostEvent::Frame(frame) => return self.on_frame(*frame).await,
            HostEvent::Down => {
                self.host = None;
                self.waiting.host = None;
                self.waiting.fail_all("The connection to the host was lost.");
                self.foreground.disconnected();
            }
        }
        Ok(())
    }

    fn introduce(&mut self, nonce: &[u8], hello: oneshot::Sender<Hello>) {
        let device_id = self.device.id;
        self.greeted = self.clock.moment();
        self.told = self.consent.pending();
        self.told_stopped = self.stopped.leases();
        // The connection may have ended meanwhile. The next one sends a new challenge.
        let _ = hello.send(Hello {
            device_id,
            signature: self.device.key.sign(&connect_statement(device_id, nonce)),
            boot_id: self.boot_id,
            version: crate::VERSION.into(),
            platform: platform(),
            capabilities: self.capabilities(),
            consent: self.consent.state(),
            signed_consent: self.told.clone(),
            lease_ids: self.leases.ids(),
            operation_ids: self.journal.unsettled().map(|entry| entry.operation_id).collect(),
            stopped: self.told_stopped.clone(),
            renews_tokens: true,
        });
    }

    fn capabilities(&self) -> Vec<String> {
        let offered = Capability::ALL.into_iter().filter(|word| self.replaceable || *word != Capability::RESTART_AGENT);
        offered.map(String::from).collect()
    }

    async fn on_frame(&mut self, frame: ToAgent) -> io::Result<()> {
        match frame {
            ToAgent::Welcome(welcome) => self.on_welcome(welcome).await,
            ToAgent::Command(command) => self.on_command(command).await,
            ToAgent::Proceed { operation_id, grant } => self.on_proceed(operation_id, grant).await,
            ToAgent::Abandon { operation_id } => self.drop_command(operation_id),
            ToAgent::Cancel { operation_id } => self.on_cancel(operation_id).await,
            ToAgent::Settled { operation_id } => self.settle(operation_id),
            // This grant answers no frame of the agent, so its term counts from now.
            ToAgent::Resume { grant } => self.resume(grant, self.clock.moment()).await,
            ToAgent::Renewed { sequence, lease_ids, device_tokens, .. } => {
                self.leases.renewed(sequence, &lease_ids);
                self.foreground.renewed(self.clock.now());
                self.leases.renew_tokens(device_tokens);
                Ok(())
            }
            ToAgent::Revoke { lease_id, reason } => {
                self.foreground.revoked(lease_id, &reason);
                self.end_lease(lease_id, &reason).await?;
                Ok(())
            }
            ToAgent::Running { lease_id } => {
                self.answer_started(lease_id);
                Ok(())
            }
            ToAgent::Retarget { lease_id, target } => self.retarget(lease_id, target).await,
            ToAgent::Consent(state) => {
                self.consent.settle(state)?;
                self.waiting.consent_confirmed(state);
                Ok(())
            }
            ToAgent::Hosts { hosts } => {
                self.servers.keep(&hosts);
                Ok(())
            }
            ToAgent::Created { request_id, outcome } => self.on_created(request_id, outcome).await,
            ToAgent::Answer { request_id, outcome } => self.on_answer(request_id, outcome).await,
            // `host_connection` handles the handshake and the goodbye.
            ToAgent::Challenge { .. } | ToAgent::Refused { .. } | ToAgent::Goodbye { .. } | ToAgent::Unknown => Ok(()),
        }
    }

    async fn on_welcome(&mut self, welcome: Welcome) -> io::Result<()> {
        let Some((server, outbox)) = self.waiting.host.take() else { return Ok(()) };
        let heartbeat = Duration::from_millis(welcome.heartbeat_ms);
        let next_beat = self.clock.moment().plus(heartbeat);
        let Welcome { confirms_running, creates_tunnels, .. } = welcome;
        tracing::info!(%server, device_id = %self.device.id, "connected");
        self.host = Some(Host { server, outbox, heartbeat, next_beat, confirms_running, creates_tunnels });
        self.servers.keep(&welcome.hosts);
        match self.consent.pending() {
            // The decision was made after the hello, so the host does not have it yet.
            Some(pending) if self.told.as_ref() != Some(&pending) => self.say(ToHost::Consent(pending)).await,
            _ => self.consent.settle(welcome.consent)?,
        }
        self.leases.set_term(Duration::from_millis(welcome.lease_ms));
        let kept: Vec<_> = welcome.grants.iter().map(|grant| grant.lease_id).collect();
        for lease_id in self.leases.ids().into_iter().filter(|id| !kept.contains(id)) {
            self.end_lease(lease_id, &RevokeReason::LeaseExpired).await?;
        }
        self.leases.dial_now();
        self.stopped.confirm(&std::mem::take(&mut self.told_stopped))?;
        self.renew().await;
        for grant in welcome.grants {
            self.resume(grant, self.greeted).await?;
        }
        for lease_id in kept {
            self.report_lease_state(lease_id).await;
        }
        self.repeat_deletions().await;
        self.foreground.wake();
        self.report_finished().await
    }

    /// When the next heartbeat or the next expiry of a lease is due.
    fn next_deadline(&self) -> Option<Moment> {
        let beat = self.host.as_ref().map(|host| host.next_beat);
        [beat, self.leases.next_expiry(), self.foreground.next_look()].into_iter().flatten().min()
    }

    async fn on_time(&mut self) -> io::Result<()> {
        let now = self.clock.moment();
        for lease_id in self.leases.expired(now) {
            tracing::warn!(%lease_id, "the lease could not be renewed in time; the tunnel stops");
            self.end_lease(lease_id, &RevokeReason::LeaseExpired).await?;
        }
        if self.host.as_ref().is_some_and(|host| host.next_beat <= now) {
            self.renew().await;
            self.leases.probe_again();
            self.foreground.beat();
            self.repeat_deletions().await;
        }
        Ok(())
    }

    /// Asks the host to renew all leases. Without leases, this is a plain heartbeat.
    async fn renew(&mut self) {
        let now = self.clock.moment();
        let Some(host) = &mut self.host else { return };
        host.next_beat = now.plus(host.heartbeat);
        let (sequence, lease_ids) = self.leases.renewal(now);
        self.say(ToHost::Renew { sequence, lease_ids }).await;
    }

    /// Sends a frame to the host, if it is connected. Important frames are sent again after a reconnect.
    async fn say(&self, frame: ToHost) {
        if let Some(host) = &self.host {
            let _ = host.outbox.send(frame).await;
        }
    }

    async fn on_report(&mut self, lease_id: Uuid, report: Report) -> io::Result<()> {
        match report {
            Report::Serving => self.on_serving(lease_id).await,
            Report::Failed(failure) => self.on_start_failed(lease_id, failure).await,
            Report::Target(error) => {
                if let Some(error) = error {
                    tracing::warn!(%error, %lease_id, "the local target does not answer");
                }
                self.say_target_state(lease_id).await;
                Ok(())
            }
            Report::LookedUp { target, refused } => self.on_looked_up(lease_id, target, refused).await,
            Report::Fenced => {
                self.end_lease(lease_id, &RevokeReason::Fenced).await?;
                Ok(())
            }
        }
    }

    async fn on_request(&mut self, request: IpcRequest) -> io::Result<()> {
        requests::take(self, request).await
    }

    /// Completes the commands that a former process left executing, with the outcome that can be proven.
    fn conclude_what_a_former_process_began(&mut self) -> io::Result<()> {
        let begun: Vec<_> = self.journal.unsettled().filter(|entry| entry.stage == Stage::Executing).cloned().collect();
        for entry in begun {
            let outcome = commands::provable_outcome(&entry, self.boot_id);
            self.record(entry.operation_id, entry.action, entry.tunnel_id, Stage::Completed(outcome))?;
        }
        Ok(())
    }
}

/// The device's list of allowed targets. For an agent that consented before lists existed, a list is created
/// and signed for the host.
fn targets_of(state: &StateDir, consent: &mut Consent, device: &Device, clock: &Clock) -> io::Result<Targets> {
    let targets = Targets::open(state, consent.enabled())?;
    if consent.enabled() && !Targets::is_stored(state) {
        // The list is stored last: if the process ends before, the next one repeats both steps.
        consent.decide(true, &targets.list(), device, clock)?;
        targets.replace(targets.list())?;
    }
    Ok(targets)
}

async fn due(clock: &Clock, at: Option<Moment>) {
    match at {
        Some(at) => clock.until(at).await,
        None => std::future::pending().await,
    }
}
