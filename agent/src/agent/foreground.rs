//! Tunnels of commands in the foreground (`culvert-agent http 3000`): made and started for a command, and ended with
//! it.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use tokio::sync::watch;
use uuid::Uuid;

use super::Agent;
use super::runs::StartReply;
use crate::ipc::{ForegroundState, ForegroundStatus, TunnelStatus, Update, WantedTunnel};
use culvert_wire::allowed_target;
use culvert_wire::clock::Moment;
use culvert_wire::control::{Failure, Grant, RevokeReason, TEMPORARY_TUNNEL_KEPT, ToHost};
use culvert_wire::failure_code::FailureCode;
use culvert_wire::target::{TLS_PORTS, Target};

/// Commands in the foreground, at most.
const MOST: usize = 64;
/// Bytes of the tunnel that a command asks for, at most. A frame holds it as JSON.
const MOST_BYTES: usize = 32 * 1024;
/// How often the time between two tries is doubled, at most: up to 32 heartbeats.
const MOST_DOUBLED: u32 = 5;
/// How often the numbers of a running tunnel are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The commands in the foreground, and what is left to do for those that have ended.
#[derive(Default)]
pub(super) struct Foreground {
    commands: HashMap<Uuid, Command>,
    /// Commands that ended before the host answered their creation, by its request.
    abandoned: HashMap<Uuid, Command>,
    /// Deletions that the host has not answered yet, by their request.
    deletions: HashMap<Uuid, Deletion>,
    /// Leases of tunnels that started although their command has ended.
    strays: Vec<Uuid>,
    next_look: Option<Moment>,
    /// When the host has last renewed leases.
    renewed_at: Option<DateTime<Utc>>,
}

struct Command {
    wanted: WantedTunnel,
    updates: watch::Sender<Update>,
    stage: Stage,
    /// The lease that the tunnel runs under, or ran under last.
    lease_id: Option<Uuid>,
    /// Whether the tunnel ran. From then on, a failure to start is tried again.
    has_run: bool,
    problem: Option<String>,
    /// Failures since the tunnel last ran, and the heartbeats that pass before the next try.
    failures: u32,
    skips: u32,
    /// Whether the command has ended while the host was to start its tunnel. It is finished with the answer.
    has_ended: bool,
}

/// How far a command's tunnel is.
#[derive(Debug)]
enum Stage {
    /// The next step is taken now.
    Due,
    /// The next step is taken with the next heartbeat or connection.
    Waiting,
    /// The host is to create the tunnel.
    Creating,
    /// The host is to start the tunnel.
    Starting,
    Running,
    /// The command ends.
    Over(Failure),
}

/// A temporary tunnel that the host is to delete.
struct Deletion {
    tunnel_id: Uuid,
    updates: watch::Sender<Update>,
    /// What the command is told when the tunnel is deleted.
    outcome: Result<(), Failure>,
}

impl Command {
    /// The command ends if there is no tunnel, if it never ran, or if somebody has to do something first. Otherwise the
    /// next step is tried again, less and less often.
    fn fail(&mut self, failure: Failure) {
        let ran = self.has_run && self.wanted.tunnel_id.is_some();
        if is_transient(&failure.code) || ran && !is_lasting(&failure.code) {
            self.problem = Some(failure.detail);
            self.stage = Stage::Waiting;
            self.skips = (1 << self.failures.min(MOST_DOUBLED)) - 1;
            self.failures += 1;
        } else {
            self.stage = Stage::Over(failure);
        }
    }
}

/// Why a command's tunnel does not run any longer.
fn stopped(reason: &RevokeReason) -> Failure {
    let (code, detail) = match reason {
        RevokeReason::TunnelDeleted => (FailureCode::TunnelDeleted, "The tunnel was deleted.".into()),
        RevokeReason::Handoff => (FailureCode::LeaseConflict, "Another device has taken the tunnel over.".into()),
        reason => (FailureCode::TunnelNotRunning, format!("The tunnel was stopped: {reason}.")),
    };
    Failure::new(code, detail)
}

/// Whether a failure can pass without anybody doing something.
fn is_transient(code: &FailureCode) -> bool {
    const PASSING: [&str; 6] = [
        "not_connected",
        "rate_limited",
        "internal_error",
        "service_unavailable",
        "policy_unavailable",
        "idempotency_in_progress",
    ];
    PASSING.contains(&code.as_str())
}

/// Whether a failure lasts until somebody at the device, or the tunnel's owner, does something.
fn is_lasting(code: &FailureCode) -> bool {
    const LASTING: [FailureCode; 4] = [
        FailureCode::DeviceNotAllowed,
        FailureCode::FeatureNotAvailable,
        FailureCode::TargetNotAccepted,
        FailureCode::UnsupportedAction,
    ];
    LASTING.contains(code)
}

impl Foreground {
    /// When to look at the numbers of running tunnels.
    pub(super) fn next_look(&self) -> Option<Moment> {
        self.next_look
    }

    /// The result of a start: the lease that the tunnel runs under.
    pub(super) fn started(&mut self, id: Uuid, started: Result<Uuid, Failure>, now: DateTime<Utc>) {
        let Some(command) = self.commands.get_mut(&id) else {
            self.strays.extend(started.ok());
            return;
        };
        match started {
            Ok(lease_id) => {
                (command.has_run, command.problem, command.failures) = (true, None, 0);
                (command.stage, command.lease_id) = (Stage::Running, Some(lease_id));
                command.wanted.ran_at = Some(now);
            }
            Err(failure) if failure.code == FailureCode::NotFound => {
                let is_expired = |ran_at: DateTime<Utc>| now - ran_at >= TEMPORARY_TUNNEL_KEPT;
                if !command.wanted.keep && command.wanted.ran_at.is_some_and(is_expired) {
                    // The host has deleted it, for its command was away.
                    (command.wanted.tunnel_id, command.wanted.creation_id) = (None, None);
                    command.stage = Stage::Due;
                } else {
                    command.stage = Stage::Over(stopped(&RevokeReason::TunnelDeleted));
                }
            }
            Err(failure) => command.fail(failure),
        }
    }

    /// Whether a grant is for a command's tunnel, and leads to what was typed.
    pub(super) fn is_typed(&self, id: Uuid, grant: &Grant) -> bool {
        let Some(wanted) = self.commands.get(&id).map(|command| &command.wanted) else { return false };
        let leads_there = |(host, port): (String, u16)| {
            let Target { host: led, port: led_port, extra, .. } = &grant.target;
            let extra_is_typed = extra.iter().all(|extra| wanted.extra_ports.contains(&extra.port));
            extra_is_typed && *led_port == port && is_same_host(led, &host) && wanted.is_tls_typed(&grant.target)
        };
        wanted.tunnel_id == Some(grant.tunnel_id) && wanted.target().is_some_and(leads_there)
    }

    /// The host starts a tunnel here by remote control: the command that it belongs to goes on with the new lease.
    pub(super) fn follow(&mut self, tunnel_id: Uuid, lease_id: Uuid) {
        let own = |command: &&mut Command| command.wanted.tunnel_id == Some(tunnel_id);
        if let Some(command) = self.commands.values_mut().find(own)
            && !matches!(command.stage, Stage::Over(_))
        {
            (command.stage, command.lease_id) = (Stage::Running, Some(lease_id));
        }
    }

    /// The host has renewed leases.
    pub(super) fn renewed(&mut self, now: DateTime<Utc>) {
        self.renewed_at = Some(now);
    }

    /// A lease has ended at this device. Where the node has refused it, the host says why.
    pub(super) fn lease_ended(&mut self, lease_id: Uuid, reason: &RevokeReason) {
        let renewed_at = self.renewed_at;
        let Some(command) = self.of_lease(lease_id) else { return };
        command.wanted.ran_at = command.wanted.ran_at.max(renewed_at);
        command.stage = match (&command.stage, reason) {
            (Stage::Over(_), _) => return,
            (_, reason) if reason.is_stop() => Stage::Over(stopped(reason)),
            (_, RevokeReason::Fenced | RevokeReason::Handoff) => Stage::Waiting,
            _ => Stage::Due,
        };
        command.problem = Some(match reason {
            RevokeReason::Fenced => "the node does not take the tunnel's lease any longer".into(),
            reason => format!("the tunnel's lease has ended: {reason}"),
        });
    }

    /// The host has ended a lease.
    pub(super) fn revoked(&mut self, lease_id: Uuid, reason: &RevokeReason) {
        let Some(command) = self.of_lease(lease_id) else { return };
        // Where another device runs it now, it is not this command's to delete.
        command.wanted.keep |= *reason == RevokeReason::Handoff;
        if reason.is_stop() || *reason == RevokeReason::Handoff {
            command.stage = Stage::Over(stopped(reason));
        } else if matches!(command.stage, Stage::Waiting) {
            command.stage = Stage::Due;
        }
    }

    fn of_lease(&mut self, lease_id: Uuid) -> Option<&mut Command> {
        self.commands.values_mut().find(|command| command.lease_id == Some(lease_id))
    }

    /// The host has answered a deletion. Returns whether the request was one.
    pub(super) fn deleted(&mut self, request_id: Uuid, outcome: &Result<Option<Grant>, Failure>) -> bool {
        if matches!(outcome, Err(failure) if is_transient(&failure.code)) {
            // It is asked for again with the next heartbeat.
            return self.deletions.contains_key(&request_id);
        }
        let Some(Deletion { updates, outcome: told, .. }) = self.deletions.remove(&request_id) else { return false };
        let refused = outcome.as_ref().err().filter(|failure| failure.code != FailureCode::NotFound);
        updates.send_replace(Update::Ended(refused.map_or(told, |failure| Err(failure.clone()))));
        true
    }

    /// The host is reached: takes the next step of every command that waits for one.
    pub(super) fn wake(&mut self) {
        for command in self.waiting() {
            command.stage = Stage::Due;
        }
    }

    /// A heartbeat: takes the next step of the commands that have waited long enough.
    pub(super) fn beat(&mut self) {
        for command in self.waiting() {
            match command.skips.checked_sub(1) {
                Some(left) => command.skips = left,
                None => command.stage = Stage::Due,
            }
        }
    }

    fn waiting(&mut self) -> impl Iterator<Item = &mut Command> {
        self.commands.values_mut().filter(|command| matches!(command.stage, Stage::Waiting))
    }

    /// The connection to the host is lost, and with it the answers.
    pub(super) fn disconnected(&mut self) {
        self.abandoned.clear();
        for command in self.commands.values_mut() {
            if matches!(command.stage, Stage::Creating | Stage::Starting) {
                command.stage = Stage::Waiting;
            }
        }
    }
}

impl Agent {
    /// A command in the foreground wants a tunnel.
    pub(super) fn begin_foreground(&mut self, id: Uuid, wanted: WantedTunnel, updates: watch::Sender<Update>) {
        if self.foreground.commands.len() >= MOST {
            let detail = format!("This agent serves {MOST} commands already; end one of them.");
            updates.send_replace(Update::Ended(Err(Failure::new(FailureCode::RateLimited, detail))));
            return;
        }
        if wanted.body.to_string().len() > MOST_BYTES {
            let failure = Failure::new(FailureCode::Refused, format!("A tunnel takes at most {MOST_BYTES} bytes."));
            updates.send_replace(Update::Ended(Err(failure)));
            return;
        }
        let command = Command {
            has_run: wanted.tunnel_id.is_some(),
            wanted,
            updates,
            stage: Stage::Due,
            lease_id: None,
            problem: None,
            failures: 0,
            skips: 0,
            has_ended: false,
        };
        self.foreground.commands.insert(id, command);
    }

    /// A command in the foreground has ended, or was killed.
    pub(super) async fn end_foreground(&mut self, id: Uuid) -> io::Result<()> {
        let Some(mut command) = self.foreground.commands.remove(&id) else { return Ok(()) };
        if matches!(command.stage, Stage::Starting) && command.wanted.keep {
            // A lease that comes now has to be ended, or the tunnel would run without its command.
            command.has_ended = true;
            self.foreground.commands.insert(id, command);
            return Ok(());
        }
        if matches!(command.stage, Stage::Creating) {
            self.foreground.abandoned.extend(command.wanted.creation_id.map(|id| (id, command)));
            return Ok(());
        }
        self.finish_foreground(command, Ok(())).await
    }

    /// Stops a command's tunnel and deletes it, unless it is to be kept.
    async fn finish_foreground(&mut self, command: Command, outcome: Result<(), Failure>) -> io::Result<()> {
        let Command { wanted, updates, .. } = command;
        let Some(tunnel_id) = wanted.tunnel_id else {
            updates.send_replace(Update::Ended(outcome));
            return Ok(());
        };
        if let Some(lease_id) = self.leases.of_tunnel(tunnel_id) {
            self.stop_locally(lease_id).await?;
        }
        if wanted.keep {
            updates.send_replace(Update::Ended(outcome));
            return Ok(());
        }
        let request_id = self.clock.id();
        self.foreground.deletions.insert(request_id, Deletion { tunnel_id, updates, outcome });
        self.say(ToHost::Delete { request_id, tunnel_id }).await;
        Ok(())
    }

    /// The host has answered a creation.
    pub(super) async fn on_created(&mut self, request_id: Uuid, outcome: Result<Uuid, Failure>) -> io::Result<()> {
        if let Some(mut command) = self.foreground.abandoned.remove(&request_id) {
            command.wanted.tunnel_id = outcome.ok();
            return self.finish_foreground(command, Ok(())).await;
        }
        let created = |command: &&mut Command| command.wanted.creation_id == Some(request_id);
        let Some(command) = self.foreground.commands.values_mut().find(created) else { return Ok(()) };
        match outcome {
            Ok(tunnel_id) => (command.wanted.tunnel_id, command.stage) = (Some(tunnel_id), Stage::Due),
            Err(failure) => command.fail(failure),
        }
        Ok(())
    }

    /// Tells the host once more what it may not have heard, or could not do.
    pub(super) async fn repeat_deletions(&mut self) {
        let deletions: Vec<_> =
            self.foreground.deletions.iter().map(|(id, deletion)| (*id, deletion.tunnel_id)).collect();
        for (request_id, tunnel_id) in deletions {
            self.say(ToHost::Delete { request_id, tunnel_id }).await;
        }
    }

    /// Takes the steps that are due, and tells the commands what has changed.
    pub(super) async fn advance_foreground(&mut self) -> io::Result<()> {
        for lease_id in std::mem::take(&mut self.foreground.strays) {
            self.stop_locally(lease_id).await?;
        }
        if self.foreground.commands.is_empty() {
            self.foreground.next_look = None;
            return Ok(());
        }
        let is_due = |command: &Command| match command.stage {
            Stage::Due | Stage::Over(_) => true,
            Stage::Waiting | Stage::Running => command.has_ended,
            Stage::Creating | Stage::Starting => false,
        };
        let steps = self.foreground.commands.iter().filter(|(_, command)| is_due(command));
        for id in steps.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.step(id).await?;
        }
        self.tell_commands();
        Ok(())
    }

    async fn step(&mut self, id: Uuid) -> io::Result<()> {
        if let Some(command) = self.foreground.commands.remove(&id) {
            if command.has_ended {
                return self.finish_foreground(command, Ok(())).await;
            }
            if let Stage::Over(failure) = command.stage {
                return self.finish_foreground(Command { stage: Stage::Waiting, ..command }, Err(failure)).await;
            }
            self.foreground.commands.insert(id, command);
        }
        let creates = self.host.as_ref().map(|host| host.creates_tunnels);
        let Some(command) = self.foreground.commands.get_mut(&id) else { return Ok(()) };
        match (creates, command.wanted.tunnel_id) {
            (None, _) => {
                command.problem = Some("not connected to the server".into());
                command.stage = Stage::Waiting;
            }
            (Some(false), None) => {
                let detail = "The server is older than this agent; create the tunnel with its API.";
                command.stage = Stage::Over(Failure::new(FailureCode::UnsupportedAction, detail));
            }
            (Some(true), None) => {
                command.stage = Stage::Creating;
                let request_id = *command.wanted.creation_id.get_or_insert_with(|| self.clock.id());
                let (tunnel, temporary) = (command.wanted.body.clone(), !command.wanted.keep);
                self.say(ToHost::Create { request_id, tunnel, temporary }).await;
            }
            (Some(_), Some(tunnel_id)) => {
                command.stage = Stage::Starting;
                // Whoever typed the target has chosen it.
                let accept = command.wanted.accepted();
                self.wish(tunnel_id.to_string(), accept, StartReply::Foreground(id)).await;
            }
        }
        Ok(())
    }

    /// Tells the commands what has changed.
    fn tell_commands(&mut self) {
        let (connected, now) = (self.host.is_some(), self.clock.moment());
        let mut runs = false;
        for command in self.foreground.commands.values() {
            let lease_id = command.lease_id.filter(|_| matches!(command.stage, Stage::Running));
            let tunnel = lease_id.and_then(|lease_id| self.leases.status(lease_id));
            runs |= tunnel.is_some();
            let status = status(command, tunnel, connected);
            command.updates.send_if_modified(|told| {
                let changes = *told != status;
                *told = status;
                changes
            });
        }
        let next = self.foreground.next_look.filter(|look| *look > now);
        self.foreground.next_look = runs.then(|| next.unwrap_or(now.plus(LOOK_EVERY)));
    }
}

fn status(command: &Command, tunnel: Option<TunnelStatus>, connected: bool) -> Update {
    let state = match (&command.stage, &tunnel) {
        (Stage::Running, Some(_)) => ForegroundState::Running,
        (Stage::Waiting, _) => ForegroundState::Waiting,
        _ => ForegroundState::Starting,
    };
    let lost = (!connected).then(|| "not connected to the server".to_owned());
    let target = tunnel.as_ref().and_then(|tunnel| tunnel.target_error.clone());
    let problem = lost.or(target).or_else(|| command.problem.clone());
    let WantedTunnel { tunnel_id, creation_id, .. } = command.wanted;
    Update::Status(Box::new(ForegroundStatus { state, tunnel_id, creation_id, tunnel, problem }))
}

/// Whether two spellings name the same host.
fn is_same_host(one: &str, other: &str) -> bool {
    let address = |host: &str| host.parse::<IpAddr>().ok();
    match (address(one), address(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.eq_ignore_ascii_case(other),
    }
}

impl WantedTunnel {
    /// The target, as it was typed.
    fn target(&self) -> Option<(String, u16)> {
        let port = self.body.get("local_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        Some((self.body.get("local_host")?.as_str()?.to_owned(), port?))
    }

    /// The targets of all ports that were named, as a refusal names those that nobody has accepted.
    fn accepted(&self) -> Option<String> {
        let (host, port) = self.target()?;
        let ports = std::iter::once(port).chain(self.extra_ports.iter().copied());
        Some(ports.map(|port| allowed_target::spelled(&host, port)).collect::<Vec<_>>().join(" "))
    }

    /// Whether a target is spoken to over TLS, and verified, as it was typed.
    fn is_tls_typed(&self, target: &Target) -> bool {
        let text = |field: &str| self.body.get(field).and_then(Value::as_str);
        let tls = match text("local_scheme") {
            Some("https") => true,
            None | Some("auto") => TLS_PORTS.contains(&target.port),
            Some(_) => false,
        };
        let verify = self.body.get("local_tls_verify").and_then(Value::as_bool);
        target.tls == (tls && text("protocol") == Some("http")) && target.tls_verify == verify
    }
}
