//! One connection of one device, from its first frame to its last.

mod frames;
mod sync;

use std::sync::Arc;
use std::time::Duration;

use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::control::{ConsentState, Done, Failure, Grant, Hello, SignedConsent, ToAgent, ToHost, Welcome};
use futures_util::future::{BoxFuture, join_all};
use salvo::websocket::WebSocket;
use tokio::sync::OwnedSemaphorePermit;
use tracing::Instrument;
use uuid::Uuid;

use super::Control;
use super::handshake::{self, AcceptedConnection};
use super::{BUSY_FOR, ConnectionHandle, Stranger};
use crate::service::nodes::EndedSessions;
use crate::service::operations::reports::{self, BeginDecision};
use crate::service::{consent, local_runs, operations, presence, resumption, sessions};
use culvert_domain::device::{Device, OFFLINE_AFTER};
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_domain::event::OfflineReason;
use culvert_domain::operation::RemoteAction;
use culvert_domain::session::{EndReason, SESSION_LEASE};
use culvert_domain::text;
use culvert_store::Write;
use culvert_store::presence::Connection;
use culvert_store::sessions::Lease;
use frames::AgentSocket;
use sync::SentState;

const HEARTBEAT: Duration = Duration::from_secs(10);
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// How many ids one frame may list, in addition to one for each open session of the device.
pub(in crate::gateway) const MORE_IDS: usize = 256;
/// When agents should reconnect after this host has said goodbye.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the connection is gone")]
    Gone,
    #[error("the agent has ended")]
    Goodbye,
    #[error("it was silent for too long")]
    Silent,
    #[error("it takes nothing any longer")]
    Stuck,
    #[error("a newer connection of the device counts")]
    Replaced,
    #[error("the device was removed")]
    Removed,
    #[error("the device's owner has left its Team")]
    NotAllowed,
    #[error("the host has no place for more agents")]
    Full,
    #[error("the device connects too often")]
    TooOften,
    #[error("the host is stopping")]
    Stopping,
    #[error("the agent does not speak this host's language: {0}")]
    Protocol(String),
    #[error("{0}")]
    Store(#[from] Error),
}

pub async fn serve_connection(control: Arc<Control>, socket: WebSocket, stranger: Stranger) {
    let mut link = AgentSocket::new(socket, control.clock.clone());
    let (peer, evicted) = (stranger.peer, stranger.unproven.evicted.clone());
    let greeted = control.clock.timeout(HELLO_WITHIN, handshake(&control, &mut link, stranger));
    let Some(greeted) = evicted.run_until_cancelled(greeted).await else {
        return tracing::debug!("a connection had to go before it proved whose it is");
    };
    if let (Ok(Ok(_)), Some(peer)) = (&greeted, peer) {
        control.connections.release(peer);
    }
    match greeted {
        Ok(Ok((arrived, public_key, _place))) => {
            let span = tracing::info_span!("agent", device_id = %arrived.connection.device_id);
            AgentConnection::new(control, link, arrived, public_key).run().instrument(span).await;
        }
        Ok(Err(end @ (End::Full | End::TooOften))) => {
            control.refused.count(if matches!(end, End::Full) { "agents" } else { "arrivals" });
            let reconnect_after_ms = BUSY_FOR.as_millis() as u64;
            let _ = link.send(&ToAgent::Goodbye { reason: end.to_string(), reconnect_after_ms }).await;
        }
        Ok(Err(End::Store(error))) if !is_refusal(&error) => {
            tracing::warn!(error = %Chain(&error), "an agent could not be let in");
            let reconnect_after_ms = RECONNECT_AFTER.as_millis() as u64;
            let _ = link.send(&ToAgent::Goodbye { reason: "the host is busy".into(), reconnect_after_ms }).await;
        }
        Ok(Err(End::Store(error))) => {
            let (code, detail) = (error.code.as_str().to_owned(), error.detail.into_owned());
            let _ = link.send(&ToAgent::Refused { code, detail }).await;
        }
        Ok(Err(end)) => tracing::debug!(%end, "a connection did not become an agent's"),
        Err(_) => tracing::debug!("a connection did not say hello in time"),
    }
}

/// Whether an error refuses the agent itself, as opposed to a failure of the host.
fn is_refusal(error: &Error) -> bool {
    matches!(error.code, Code::NotFound | Code::DeviceNotAllowed | Code::ValidationFailed)
}

async fn handshake(
    control: &Control,
    link: &mut AgentSocket,
    stranger: Stranger,
) -> Result<(AcceptedConnection, Vec<u8>, OwnedSemaphorePermit), End> {
    let nonce = control.clock.random::<32>();
    link.send(&ToAgent::Challenge { nonce: Base64Bytes(nonce.into()) }).await?;
    let ToHost::Hello(hello) = link.receive().await? else {
        return Err(End::Protocol("its first frame is no hello".into()));
    };
    let hello: Hello = *hello;
    let enrolled = handshake::identify(control, &hello, &nonce).await?;
    drop(stranger);
    let place = control.agents.agents.clone().try_acquire_owned().map_err(|_| End::Full)?;
    let public_key = enrolled.public_key.clone();
    let _turn = control.agents.turn_to_connect(hello.device_id, &control.clock).await.ok_or(End::TooOften)?;
    Ok((handshake::accept(control, enrolled, hello).await?, public_key, place))
}

struct AgentConnection {
    control: Arc<Control>,
    link: AgentSocket,
    entry: ConnectionHandle,
    connection: Connection,
    scope_id: Uuid,
    boot_id: Uuid,
    /// The leases that the agent held when it connected.
    held: Vec<Uuid>,
    public_key: Vec<u8>,
    sent: SentState,
}

impl AgentConnection {
    fn new(control: Arc<Control>, link: AgentSocket, arrived: AcceptedConnection, public_key: Vec<u8>) -> Self {
        let AcceptedConnection { connection, scope_id, boot_id, consent, held } = arrived;
        let entry = control.agents.enter(connection);
        let sent = SentState::of(consent);
        Self { control, link, entry, connection, scope_id, boot_id, held, public_key, sent }
    }

    async fn run(mut self) {
        tracing::info!("connected");
        let end = match self.welcome().await {
            Ok(()) => self.listen().await,
            Err(end) => end,
        };
        if let End::Store(error) = &end
            && error.source.is_some()
        {
            tracing::warn!(error = %Chain(error), "an agent's connection failed");
        }
        let reason = end.to_string();
        if !matches!(end, End::Gone | End::Goodbye | End::Silent | End::Stuck) {
            let reconnect_after_ms = RECONNECT_AFTER.as_millis() as u64;
            let _ = self.link.send(&ToAgent::Goodbye { reason: reason.clone(), reconnect_after_ms }).await;
        }
        self.control.agents.leave(self.connection);
        let for_good = match end {
            End::Goodbye => Some(OfflineReason::Shutdown),
            End::NotAllowed => Some(OfflineReason::NotAllowed),
            _ => None,
        };
        if let Err(error) = self.record_disconnect(for_good).await {
            tracing::warn!(error = %Chain(&error), "the end of a connection was not noted");
        }
        tracing::info!(reason, "disconnected");
    }

    async fn welcome(&mut self) -> Result<(), End> {
        let leases = self.leases_of_this_boot().await?;
        let nodes = self.control.service.nodes.clone();
        let served = join_all(leases.iter().map(|lease| nodes.serve(lease))).await;
        let served = leases.iter().zip(served).filter_map(|(lease, node)| Some((lease, node.ok()?)));
        let grants: Vec<Grant> = served.map(|(lease, node)| self.grant(lease, node)).collect();
        let now = self.control.clock.moment();
        self.control.agents.paces.of(self.connection.device_id, now, |pace| pace.welcome(grants.len(), now));
        let welcome = Welcome {
            connection_epoch: self.connection.epoch,
            heartbeat_ms: HEARTBEAT.as_millis() as u64,
            lease_ms: SESSION_LEASE.as_millis() as u64,
            consent: self.sent.consent.unwrap_or(ConsentState { enabled: false, revision: 0 }),
            grants,
            confirms_running: true,
        };
        self.link.send(&ToAgent::Welcome(welcome)).await?;
        self.sync_agent().await
    }

    async fn listen(&mut self) -> End {
        let (control, clock) = (self.control.clone(), self.control.clock.clone());
        let (woken, replaced, stop) =
            (self.entry.woken.clone(), self.entry.replaced.clone(), self.control.stop.clone());
        let mut heard = clock.moment();
        loop {
            let step = tokio::select! {
                biased;
                () = stop.cancelled() => Err(End::Stopping),
                () = replaced.cancelled() => Err(End::Replaced),
                frame = paced(&mut self.link, &control, self.connection.device_id) => {
                    heard = clock.moment();
                    match frame {
                        Ok(frame) => self.on_frame(frame).await,
                        Err(end) => Err(end),
                    }
                }
                () = woken.notified() => self.sync_agent().await,
                () = clock.until(heard.plus(OFFLINE_AFTER)) => Err(End::Silent),
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    async fn on_frame(&mut self, frame: ToHost) -> Result<(), End> {
        match frame {
            ToHost::Renew { sequence, lease_ids } => self.on_renew(sequence, lease_ids).await,
            ToHost::Claimed { operation_id } => self.on_claimed(operation_id).await,
            ToHost::Ready { operation_id } => self.on_ready(operation_id).await,
            ToHost::Finished { operation_id, outcome } => self.on_finished(operation_id, outcome).await,
            ToHost::Canceled { operation_id } => {
                self.write(move |write, device| Box::pin(reports::cancel(write, device, operation_id))).await
            }
            ToHost::Serving { lease_id } => self.on_serving(lease_id).await,
            ToHost::TargetState { lease_id, error } => {
                let error = error.map(|error| truncate_detail(&error));
                self.write(move |write, device| {
                    Box::pin(async move { write.set_target_error(lease_id, device.id, error.as_deref()).await })
                })
                .await
            }
            ToHost::Start { request_id, tunnel } => self.on_start(request_id, tunnel).await,
            ToHost::Stop { request_id, lease_id } => self.on_stop(request_id, lease_id).await,
            ToHost::NotResumed { lease_id, detail } => {
                self.sent.leases.remove(&lease_id);
                let detail = truncate_detail(&detail);
                self.write(move |write, device| {
                    Box::pin(async move { local_runs::not_resumed(write, device, lease_id, &detail).await })
                })
                .await
            }
            ToHost::Consent(signed) => self.on_consent(signed).await,
            ToHost::Goodbye => Err(End::Goodbye),
            ToHost::Hello(_) | ToHost::Unknown => Ok(()),
        }
    }

    /// A heartbeat: records that the device is alive, and renews its leases.
    async fn on_renew(&mut self, sequence: u64, lease_ids: Vec<Uuid>) -> Result<(), End> {
        if !self.control.service.store.is_current(self.connection).await? {
            return Err(End::Replaced);
        }
        self.control.agents.record_seen(self.connection, self.control.clock.now());
        let asked = lease_ids.clone();
        let renewed = if asked.is_empty() {
            Vec::new()
        } else {
            self.write(move |write, device| Box::pin(renew(write, device.id, asked))).await??
        };
        let held = |id: &Uuid| self.sent.leases.contains_key(id) || self.held.contains(id);
        let over: Vec<Uuid> = lease_ids.into_iter().filter(|id| !renewed.contains(id) && held(id)).collect();
        for lease_id in over {
            self.sent.leases.remove(&lease_id);
            self.link.send(&ToAgent::Revoke { lease_id, reason: "lease_expired".into() }).await?;
        }
        self.link.send(&ToAgent::Renewed { sequence, lease_ids: renewed }).await?;
        let boot_id = self.boot_id;
        if self.control.service.store.has_pending_resumes(self.scope_id, self.connection.device_id).await?
            && local_runs::plan_is_known(&self.control.service, self.scope_id).await?
        {
            self.write(move |write, device| Box::pin(resumption::resume_tunnels(write, device, boot_id))).await?;
        }
        // Some changes send no hint, for example those of the operator's commands.
        self.sync_agent().await
    }

    async fn on_claimed(&mut self, operation_id: Uuid) -> Result<(), End> {
        let goes_on = self.write(move |write, device| Box::pin(reports::claim(write, device, operation_id))).await?;
        if goes_on { Ok(()) } else { self.link.send(&ToAgent::Abandon { operation_id }).await }
    }

    async fn on_ready(&mut self, operation_id: Uuid) -> Result<(), End> {
        let boot_id = self.boot_id;
        let go =
            self.write(move |write, device| Box::pin(reports::begin(write, device, boot_id, operation_id))).await?;
        let session_id = match go {
            BeginDecision::Abandon => return self.link.send(&ToAgent::Abandon { operation_id }).await,
            BeginDecision::Proceed { session_id: None } => {
                return self.link.send(&ToAgent::Proceed { operation_id, grant: None }).await;
            }
            BeginDecision::Proceed { session_id: Some(session_id) } => session_id,
        };
        let lease = self.control.service.store.lease(session_id).await?;
        let offered = match &lease {
            Some(lease) => self.serve_and_grant(lease).await,
            None => Err(Failure::new("tunnel_start_failed", "The tunnel's lease ended before the start was done.")),
        };
        match offered {
            Ok(grant) => self.link.send(&ToAgent::Proceed { operation_id, grant: Some(grant) }).await,
            Err(failure) => {
                self.write(move |write, device| Box::pin(reports::finish(write, device, operation_id, Err(failure))))
                    .await?;
                self.link.send(&ToAgent::Abandon { operation_id }).await
            }
        }
    }

    async fn on_finished(&mut self, operation_id: Uuid, outcome: Result<Done, Failure>) -> Result<(), End> {
        let stopped = if outcome.is_ok() { self.leases_to_stop(operation_id).await? } else { Vec::new() };
        // Ports are closed before the stop is recorded as succeeded, so that nobody reads of a stop while a port
        // is still open.
        let (ended, outcome) = match self.control.service.nodes.end(&stopped).await {
            Ok(ended) => (Some(ended), outcome),
            Err(failure) => (None, Err(failure)),
        };
        self.write_ends(ended, move |write, device| Box::pin(reports::finish(write, device, operation_id, outcome)))
            .await?;
        self.link.send(&ToAgent::Settled { operation_id }).await
    }

    /// Writes the ends of sessions that nodes have ended, together with their last traffic.
    async fn write_ends<F>(&mut self, ended: Option<EndedSessions>, work: F) -> Result<(), End>
    where
        F: for<'w> FnOnce(&'w mut Write, &'w Device) -> BoxFuture<'w, Result<()>> + Send + 'static,
    {
        let nodes = self.control.service.nodes.clone();
        let traffic = ended.as_ref().map(|ended| ended.traffic.clone()).unwrap_or_default();
        let written = self.write(move |write, device| {
            Box::pin(async move {
                let mut new = Vec::new();
                for (node_id, batch) in traffic {
                    if write.apply_traffic(node_id, &batch).await? {
                        new.push(batch);
                    }
                }
                work(write, device).await?;
                Ok(new)
            })
        });
        let written = written.await;
        if let Some(ended) = ended {
            nodes.release(ended).await;
        }
        written?.iter().for_each(|batch| nodes.count(batch));
        Ok(())
    }

    /// The leases that the success of a stop ends.
    async fn leases_to_stop(&mut self, operation_id: Uuid) -> Result<Vec<Lease>, End> {
        let device_id = self.connection.device_id;
        let operations = self.control.service.store.active_operations(device_id).await?;
        let Some(operation) = operations.into_iter().find(|operation| operation.id == operation_id) else {
            return Ok(Vec::new());
        };
        let stopped = |lease: &Lease| match operation.action {
            RemoteAction::Stop => Some(lease.tunnel_id) == operation.tunnel_id,
            RemoteAction::StopAll => true,
            _ => false,
        };
        Ok(self.control.service.store.leases_of_device(device_id).await?.into_iter().filter(stopped).collect())
    }

    /// Somebody at the device has stopped a tunnel.
    async fn on_stop(&mut self, request_id: Uuid, lease_id: Uuid) -> Result<(), End> {
        self.sent.leases.remove(&lease_id);
        let lease = self.control.service.store.lease(lease_id).await?;
        let own: Vec<Lease> = lease.into_iter().filter(|lease| lease.device_id == self.connection.device_id).collect();
        // A node that does not answer hears of the end by the next change.
        let ended = self.control.service.nodes.end(&own).await.ok();
        self.write_ends(ended, move |write, device| {
            Box::pin(async move { local_runs::stop(write, device, &[lease_id]).await })
        })
        .await?;
        self.link.send(&ToAgent::Answer { request_id, outcome: Ok(None) }).await
    }

    async fn on_serving(&mut self, lease_id: Uuid) -> Result<(), End> {
        self.write(move |write, device| {
            Box::pin(async move {
                match write.lease(lease_id).await? {
                    Some(lease) if lease.device_id == device.id => sessions::set_ready(write, lease_id).await,
                    _ => Ok(()),
                }
            })
        })
        .await?;
        self.link.send(&ToAgent::Running { lease_id }).await
    }

    async fn on_start(&mut self, request_id: Uuid, tunnel: String) -> Result<(), End> {
        let now = self.control.clock.moment();
        let may_start = self.control.agents.paces.of(self.connection.device_id, now, |pace| {
            let may_start = pace.starts.wait(now).is_none();
            pace.starts.take(u32::from(may_start), now);
            may_start
        });
        if !may_start {
            self.control.refused.count("starts");
            let failure = Failure::new("rate_limited", "This device starts tunnels too often; try again in a second.");
            return self.link.send(&ToAgent::Answer { request_id, outcome: Err(failure) }).await;
        }
        let device = self.device().await?;
        let wish = local_runs::start(&self.control.service, device, self.boot_id, &tunnel).await?;
        let outcome = match wish {
            Ok(session_id) => self.grant_local_start(session_id).await?,
            Err(failure) => Err(failure),
        };
        self.link.send(&ToAgent::Answer { request_id, outcome }).await
    }

    async fn grant_local_start(&mut self, session_id: Uuid) -> Result<Result<Option<Grant>, Failure>, End> {
        let Some(lease) = self.control.service.store.lease(session_id).await? else { return Ok(Ok(None)) };
        match self.serve_and_grant(&lease).await {
            Ok(grant) => Ok(Ok(Some(grant))),
            Err(failure) => {
                self.write(move |write, _| {
                    Box::pin(async move { sessions::stop(write, session_id, EndReason::Error).await.map(drop) })
                })
                .await?;
                Ok(Err(failure))
            }
        }
    }

    async fn on_consent(&mut self, signed: SignedConsent) -> Result<(), End> {
        let public_key = self.public_key.clone();
        let state = self
            .write(move |write, device| {
                Box::pin(async move {
                    consent::apply_consent(write, device, &public_key, &signed).await?;
                    consent::consent_of(write, device).await
                })
            })
            .await?;
        self.sent.consent = Some(state);
        self.link.send(&ToAgent::Consent(state)).await
    }

    async fn device(&mut self) -> Result<Device, End> {
        let device = self.control.service.store.device(self.scope_id, self.connection.device_id).await?;
        let device = device.ok_or(End::Removed)?;
        if device.owner_active { Ok(device) } else { Err(End::NotAllowed) }
    }

    /// Writes on behalf of the device, as long as this is the device's current connection.
    async fn write<T, F>(&mut self, work: F) -> Result<T, End>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Write, &'w Device) -> BoxFuture<'w, Result<T>> + Send + 'static,
    {
        let (connection, scope_id) = (self.connection, self.scope_id);
        // Lock the scope before taking a database connection: waiting for a scope must not occupy one.
        let _turn = self.control.service.scope_locks.lock(scope_id).await;
        let written = self.control.service.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                if !write.is_current(connection).await? {
                    return Ok(Err(End::Replaced));
                }
                match write.device(scope_id, connection.device_id).await? {
                    Some(device) => work(write, &device).await.map(Ok),
                    None => Ok(Err(End::Removed)),
                }
            })
        });
        written.await?
    }

    /// Records the end of the connection. With `for_good`, the device goes offline and its sessions end at
    /// once. Without it, the agent may reconnect before its leases end.
    async fn record_disconnect(&mut self, for_good: Option<OfflineReason>) -> Result<()> {
        let connection = self.connection;
        let _turn = self.control.service.scope_locks.lock(self.scope_id).await;
        self.control
            .service
            .store
            .write(Some(self.scope_id), move |write| {
                Box::pin(async move {
                    if !write.is_current(connection).await? {
                        return Ok(());
                    }
                    write.disconnect_device(connection).await?;
                    if let Some(reason) = for_good {
                        for lease in write.leases_of_device(connection.device_id).await? {
                            sessions::end(write, lease.session_id, EndReason::DeviceDisconnected).await?;
                        }
                        presence::set_offline(write, connection.device_id, reason).await?;
                        operations::fail_of_lost_device(write, connection.device_id).await?;
                    }
                    Ok(())
                })
            })
            .await
    }
}

/// Cleans a text of an agent, and cuts it to the length that is stored.
fn truncate_detail(words: &str) -> String {
    text::cleaned(words, 500)
}

/// Receives the next frame, as soon as the device's rate limit permits.
async fn paced(link: &mut AgentSocket, control: &Control, device_id: Uuid) -> Result<ToHost, End> {
    let (paces, clock) = (&control.agents.paces, &control.clock);
    let now = clock.moment();
    if let Some(wait) = paces.of(device_id, now, |pace| pace.frames.wait(now)) {
        clock.sleep(wait).await;
    }
    let frame = link.receive().await?;
    let now = clock.moment();
    paces.of(device_id, now, |pace| pace.frames.take(1, now));
    Ok(frame)
}

/// Renews leases. Returns a protocol error if more are listed than there can be.
async fn renew(write: &mut Write, device_id: Uuid, lease_ids: Vec<Uuid>) -> Result<Result<Vec<Uuid>, End>> {
    if lease_ids.len() > MORE_IDS && lease_ids.len() > write.open_sessions(device_id).await? + MORE_IDS {
        return Ok(Err(End::Protocol("it lists more leases than there can be".into())));
    }
    write.renew_leases(&lease_ids, device_id).await.map(Ok)
}
