//! One connection of one device, from its first frame to its last.

mod frames;
mod requests;
mod sync;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::{Chain, Code, Error};
use culvert_domain::event::OfflineReason;
use culvert_domain::session::SESSION_LEASE;
use culvert_service::connected_agents::ConnectionHandle;
use culvert_service::connected_device::{Begin, ConnectedDevice, DeviceError, Resumed, WantedTunnel, identify};
use culvert_service::metrics::counted;
use culvert_service::temporary_tunnels::Keep;
use culvert_wire::base64_bytes::Base64Bytes;
use culvert_wire::clock::Moment;
use culvert_wire::control::{ConsentState, Failure, Hello, RevokeReason, ToAgent, ToHost, Welcome};
use culvert_wire::device_token::DeviceToken;
use culvert_wire::failure_code::FailureCode;
use salvo::websocket::WebSocket;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::future::FutureExt;
use tracing::Instrument;
use uuid::Uuid;

use super::{Control, Stranger};
use frames::AgentSocket;
use requests::{DeviceRequest, DeviceRequests};
use sync::SentState;

const HEARTBEAT: Duration = Duration::from_secs(10);
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Half of the life of a device token.
const RENEW_TOKENS_AFTER: Duration = Duration::from_hours(12);
/// When agents should reconnect to a host that has no place for them.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// When agents should reconnect that made room for another handshake.
const CROWDED_FOR: Duration = Duration::from_secs(3);
/// How long a tunnel waits that could not be resumed because the host of its node is away, or no policy can say whether it may.
const RESUME_AGAIN_AFTER: Duration = Duration::from_mins(1);

/// From when on it is looked again for tunnels that the device should run.
fn resume_after(resumed: Resumed, now: Moment) -> Option<Moment> {
    match resumed {
        Resumed::All => None,
        Resumed::Waits => Some(now.plus(RESUME_AGAIN_AFTER)),
        Resumed::Again => Some(now),
    }
}
/// When agents should reconnect after this host has said goodbye.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// How many frames are still read after a connection has failed, and for how long.
const LAST_FRAMES: usize = 128;
const LAST_FRAMES_WITHIN: Duration = Duration::from_secs(1);

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
    #[error("the host has no place for more agents")]
    Full,
    #[error("the device connects too often")]
    TooOften,
    #[error("many agents connect to the host at once")]
    Busy,
    #[error("the host is stopping")]
    Stopping,
    #[error("the host is about to be stopped")]
    Draining,
    #[error("the host does not reach its database")]
    Away,
    #[error("the agent does not speak this host's language: {0}")]
    Protocol(String),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        End::Device(DeviceError::Failed(error))
    }
}

pub(crate) fn serve_connection(
    control: Arc<Control>,
    socket: WebSocket,
    stranger: Stranger,
) -> impl Future<Output = ()> + Send {
    // In a box, and before the asynchronous part, which would hold both the socket and the link.
    let link = Box::new(AgentSocket::new(socket, control.clock.clone()));
    serve(control, link, stranger)
}

async fn serve(control: Arc<Control>, mut link: Box<AgentSocket>, stranger: Stranger) {
    let (peer, client, evicted) = (stranger.peer, stranger.client, stranger.unproven.evicted.clone());
    let greeted = control.clock.timeout(HELLO_WITHIN, Box::pin(handshake(&control, &mut link, stranger)));
    let Some(greeted) = greeted.with_cancellation_token(&evicted).await else {
        tracing::debug!("a connection had to go before it proved whose it is");
        return say_goodbye(&mut link, &End::Busy.to_string(), CROWDED_FOR).await;
    };
    if let (Ok(Ok(_)), Some(peer)) = (&greeted, peer) {
        (control.on_proven)(peer);
    }
    match greeted {
        Ok(Ok((device, consent, _place))) => {
            let span = tracing::info_span!("agent", device_id = %device.id());
            let mut connection = AgentConnection::new(control, link, device, consent, client);
            connection.run().instrument(span).await;
        }
        Ok(Err(end @ End::Draining)) => say_goodbye(&mut link, &end.to_string(), CROWDED_FOR).await,
        Ok(Err(end @ (End::Full | End::TooOften | End::Busy))) => {
            control.refused.count(if matches!(end, End::Full) { "agents" } else { "arrivals" });
            let later = match end {
                End::Busy => control.arrivals.next_return(control.clock.moment()),
                _ => BUSY_FOR,
            };
            say_goodbye(&mut link, &end.to_string(), later).await;
        }
        Ok(Err(End::Device(DeviceError::Failed(error)))) if !is_refusal(&error) => {
            tracing::warn!(error = %Chain(&error), "an agent could not be let in");
            say_goodbye(&mut link, "the host is busy", RECONNECT_AFTER).await;
        }
        Ok(Err(End::Device(DeviceError::Failed(error)))) => {
            let (code, detail) = (error.code.as_str().to_owned(), error.detail.into_owned());
            let _ = link.send(&ToAgent::Refused { code, detail }).await;
        }
        Ok(Err(end)) => tracing::debug!(%end, "a connection did not become an agent's"),
        Err(_) => tracing::debug!("a connection did not say hello in time"),
    }
}

/// Tells an agent that its connection ends, and when to connect again.
async fn say_goodbye(link: &mut AgentSocket, reason: &str, after: Duration) {
    let goodbye = ToAgent::Goodbye { reason: reason.into(), reconnect_after_ms: after.as_millis() as u64 };
    let _ = link.send(&goodbye).await;
}

/// Whether an error refuses the agent itself, as opposed to a failure of the host.
fn is_refusal(error: &Error) -> bool {
    matches!(error.code, Code::NotFound | Code::DeviceNotAllowed | Code::ValidationFailed)
}

async fn handshake(
    control: &Control,
    link: &mut AgentSocket,
    mut stranger: Stranger,
) -> Result<(ConnectedDevice, ConsentState, OwnedSemaphorePermit), End> {
    let nonce = control.clock.random::<32>();
    link.send(&ToAgent::Challenge { nonce: Base64Bytes(nonce.into()) }).await?;
    let ToHost::Hello(hello) = link.receive().await? else {
        return Err(End::Protocol("its first frame is no hello".into()));
    };
    if control.service.fleet().drains() {
        return Err(End::Draining);
    }
    let hello: Hello = *hello;
    let work = identify(&control.service, hello, &nonce);
    let identified = control.arrivals.prove(&mut stranger.unproven, work).await.ok_or(End::Busy)??;
    drop(stranger);
    let place = control.arrivals.place().ok_or(End::Full)?;
    let _turn = control.arrivals.turn(identified.device_id(), &control.clock).await.ok_or(End::TooOften)?;
    let accepted = Box::pin(identified.accept(&control.service, control.arrivals.writing()));
    let (device, consent) = tokio::select! {
        biased;
        accepted = accepted => accepted?,
        // An agent says nothing before it is welcome: it is gone.
        frame = link.receive() => return Err(frame.err().unwrap_or(End::Gone)),
    };
    Ok((device, consent, place))
}

struct AgentConnection {
    control: Arc<Control>,
    link: Box<AgentSocket>,
    handle: ConnectionHandle,
    device: Arc<ConnectedDevice>,
    requests: DeviceRequests,
    sent: SentState,
    /// Where the agent finds hosts.
    hosts: watch::Receiver<Arc<[String]>>,
    /// When the oldest of the agent's device tokens may have been made.
    tokens_since: Moment,
    /// The key that they are signed with.
    tokens_key: u8,
    /// From when on there may be tunnels to resume.
    resume_from: Option<Moment>,
}

impl AgentConnection {
    fn new(
        control: Arc<Control>,
        link: Box<AgentSocket>,
        device: ConnectedDevice,
        consent: ConsentState,
        client: IpAddr,
    ) -> Self {
        let handle = control.agents.add(device.connection());
        let (tokens_since, tokens_key) = (control.clock.moment(), control.service.lease_key_number());
        let device = Arc::new(device);
        let requests = DeviceRequests::open(device.clone(), client);
        let (sent, hosts) = (SentState::of(consent), control.service.fleet().agent_urls());
        let resume_from = resume_after(device.resumed(), tokens_since);
        Self { control, link, handle, device, requests, sent, hosts, tokens_since, tokens_key, resume_from }
    }

    /// Most connections only wait, so the work of a step has memory of its own, for as long as it takes.
    async fn run(&mut self) {
        tracing::info!("connected");
        let end = match Box::pin(self.welcome()).await {
            Ok(()) => self.listen().await,
            Err(end) => end,
        };
        let end = if matches!(end, End::Gone) && self.has_goodbye().await { End::Goodbye } else { end };
        if let End::Device(DeviceError::Failed(error)) = &end
            && error.source.is_some()
        {
            tracing::warn!(error = %Chain(error), "an agent's connection failed");
        }
        let reason = end.to_string();
        if !matches!(end, End::Gone | End::Goodbye | End::Silent | End::Stuck) {
            say_goodbye(&mut self.link, &reason, RECONNECT_AFTER).await;
        }
        self.control.agents.remove(self.device.connection());
        let for_good = match end {
            End::Goodbye => Some(OfflineReason::Shutdown),
            End::Device(DeviceError::NotAllowed) => Some(OfflineReason::NotAllowed),
            _ => None,
        };
        if let Err(error) = Box::pin(self.device.disconnect(for_good)).await {
            tracing::warn!(error = %Chain(&error), "the end of a connection was not noted");
        }
        tracing::info!(reason, "disconnected");
    }

    /// Whether a goodbye was received before the connection failed. An agent that ends closes the connection right after its
    /// goodbye, so an answer to an earlier frame may fail before the goodbye is read.
    async fn has_goodbye(&mut self) -> bool {
        let clock = self.control.clock.clone();
        let read = async {
            for _ in 0..LAST_FRAMES {
                match self.link.receive().await {
                    Ok(ToHost::Goodbye) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
            false
        };
        Box::pin(clock.timeout(LAST_FRAMES_WITHIN, read)).await.unwrap_or(false)
    }

    async fn welcome(&mut self) -> Result<(), End> {
        let leases = self.device.leases_of_this_boot().await?;
        let grants = self.device.grants(&leases).await;
        grants.iter().for_each(|grant| self.sent.add(grant));
        let now = self.control.clock.moment();
        self.control.arrivals.paces.of(self.device.id(), now, |pace| pace.welcome(grants.len(), now));
        let welcome = Welcome {
            connection_epoch: self.device.connection().epoch,
            heartbeat_ms: HEARTBEAT.as_millis() as u64,
            lease_ms: SESSION_LEASE.as_millis() as u64,
            consent: self.sent.consent.unwrap_or(ConsentState { enabled: false, revision: 0 }),
            grants,
            confirms_running: true,
            creates_tunnels: true,
            hosts: self.hosts.borrow_and_update().to_vec(),
        };
        self.link.send(&ToAgent::Welcome(welcome)).await?;
        self.sync_agent().await
    }

    async fn listen(&mut self) -> End {
        let (control, clock) = (self.control.clone(), self.control.clock.clone());
        let (ConnectionHandle { woken, replaced, sent_away, .. }, stop) = (self.handle.clone(), control.stop.clone());
        let device_id = self.device.id();
        let mut heard = clock.moment();
        loop {
            let step = tokio::select! {
                biased;
                () = stop.cancelled() => Err(End::Stopping),
                () = replaced.cancelled() => Err(End::Replaced),
                () = sent_away.cancelled() => Err(End::Draining),
                frame = paced(&mut self.link, &control, device_id) => {
                    heard = clock.moment();
                    match frame {
                        Ok(frame) => Box::pin(self.on_frame(frame)).await,
                        Err(end) => Err(end),
                    }
                }
                answer = self.requests.answered() => match answer {
                    Ok(answer) => self.link.send(&answer).await,
                    Err(error) => Err(error.into()),
                },
                () = woken.notified() => Box::pin(self.on_woken()).await,
                Ok(()) = self.hosts.changed() => {
                    let hosts = self.hosts.borrow_and_update().to_vec();
                    self.link.send(&ToAgent::Hosts { hosts }).await
                }
                () = clock.until(heard.plus(OFFLINE_AFTER)) => Err(End::Silent),
            };
            if let Err(end) = step {
                return end;
            }
        }
    }

    async fn on_frame(&mut self, frame: ToHost) -> Result<(), End> {
        match frame {
            ToHost::Renew { sequence, lease_ids } => {
                let (renewed, statements) = counted(self.on_renew(sequence, lease_ids)).await;
                self.control.heartbeats.count(&statements);
                renewed
            }
            ToHost::Claimed { operation_id } => self.on_claimed(operation_id).await,
            ToHost::Ready { operation_id } => self.on_ready(operation_id).await,
            ToHost::Finished { operation_id, outcome } => {
                // The agent has ended already what goes on after all. It is to resume that.
                for lease_id in self.device.finish(operation_id, outcome).await? {
                    self.sent.leases.remove(&lease_id);
                }
                self.link.send(&ToAgent::Settled { operation_id }).await
            }
            ToHost::Canceled { operation_id } => Ok(self.device.cancel(operation_id).await?),
            ToHost::Serving { lease_id } => {
                self.device.serving(lease_id).await?;
                self.link.send(&ToAgent::Running { lease_id }).await
            }
            ToHost::TargetState { lease_id, error } => {
                Ok(self.device.set_target_error(lease_id, error.as_deref()).await?)
            }
            ToHost::Start { request_id, tunnel } => self.on_start(request_id, tunnel).await,
            ToHost::Create { request_id, tunnel, temporary } => {
                let keep = if temporary { Keep::Temporarily } else { Keep::ForGood };
                self.on_create(WantedTunnel { request_id, body: tunnel, keep }).await
            }
            ToHost::Delete { request_id, tunnel_id } => {
                self.queue(DeviceRequest::Delete { request_id, tunnel_id }).await
            }
            ToHost::Stop { request_id, lease_id } => {
                self.sent.leases.remove(&lease_id);
                self.device.stop(lease_id).await?;
                self.link.send(&ToAgent::Answer { request_id, outcome: Ok(None) }).await
            }
            ToHost::NotResumed { lease_id, detail } => {
                self.sent.leases.remove(&lease_id);
                Ok(self.device.not_resumed(lease_id, &detail).await?)
            }
            ToHost::Consent(signed) => {
                let state = self.device.consent(signed).await?;
                self.sent.consent = Some(state);
                self.link.send(&ToAgent::Consent(state)).await
            }
            ToHost::Goodbye => Err(End::Goodbye),
            ToHost::Hello(_) | ToHost::Unknown => Ok(()),
        }
    }

    /// A heartbeat: notes that the device is alive, and renews its leases. One that changes nothing costs no statement.
    async fn on_renew(&mut self, sequence: u64, lease_ids: Vec<Uuid>) -> Result<(), End> {
        self.device.heard()?;
        if !self.control.service.fleet().is_alive() {
            if self.control.service.fleet().is_node_authority_over() {
                return Err(End::Away);
            }
            // The database is away, for this host at least. Another one may reach it, and its node knows which lease counts.
            let lease_ids: Vec<Uuid> = lease_ids.into_iter().filter(|id| self.sent.leases.contains_key(id)).collect();
            self.device.renew_from_memory(&lease_ids);
            let renewed = ToAgent::Renewed { sequence, lease_ids, device_tokens: Vec::new(), grace: true };
            return self.link.send(&renewed).await;
        }
        let renewed = self.device.renew(lease_ids.clone()).await?;
        let held = |id: &Uuid| self.sent.leases.contains_key(id) || self.device.held(*id);
        let over: Vec<Uuid> = lease_ids.into_iter().filter(|id| !renewed.contains(id) && held(id)).collect();
        for lease_id in over {
            self.sent.leases.remove(&lease_id);
            self.link.send(&ToAgent::Revoke { lease_id, reason: RevokeReason::LeaseExpired }).await?;
        }
        let device_tokens = self.due_tokens().await?;
        self.link.send(&ToAgent::Renewed { sequence, lease_ids: renewed, device_tokens, grace: false }).await?;
        // Nothing is given to an agent that may be gone, so tunnels are resumed with a heartbeat.
        let now = self.control.clock.moment();
        if self.resume_from.take_if(|from| *from <= now).is_some() {
            self.resume_from = resume_after(self.device.resume().await?, now);
        }
        Ok(())
    }

    /// Something may have changed.
    async fn on_woken(&mut self) -> Result<(), End> {
        self.resume_from = Some(self.control.clock.moment());
        self.sync_agent().await
    }

    /// New device tokens, when half of the life of those before is over, or another key signs them: a node that is started
    /// again does not take those of the former one.
    async fn due_tokens(&mut self) -> Result<Vec<DeviceToken>, End> {
        let now = self.control.clock.moment();
        let key = self.control.service.lease_key_number();
        if now.since(self.tokens_since) < RENEW_TOKENS_AFTER && key == self.tokens_key {
            return Ok(Vec::new());
        }
        (self.tokens_since, self.tokens_key) = (now, key);
        Ok(self.device.device_tokens().await?)
    }

    async fn on_claimed(&mut self, operation_id: Uuid) -> Result<(), End> {
        let goes_on = self.device.claim(operation_id).await?;
        if goes_on { Ok(()) } else { self.link.send(&ToAgent::Abandon { operation_id }).await }
    }

    async fn on_ready(&mut self, operation_id: Uuid) -> Result<(), End> {
        match self.device.begin(operation_id).await? {
            Begin::Abandon => self.link.send(&ToAgent::Abandon { operation_id }).await,
            Begin::Proceed(grant) => {
                grant.iter().for_each(|grant| self.sent.add(grant));
                self.link.send(&ToAgent::Proceed { operation_id, grant: grant.map(|grant| *grant) }).await
            }
        }
    }

    /// Somebody at the device starts a tunnel.
    async fn on_start(&mut self, request_id: Uuid, tunnel: String) -> Result<(), End> {
        let outcome = match self.take_start() {
            Ok(()) => self.device.start(&tunnel).await?,
            Err(failure) => Err(failure),
        };
        outcome.iter().flatten().for_each(|grant| self.sent.add(grant));
        self.link.send(&ToAgent::Answer { request_id, outcome }).await
    }

    /// A command at the device creates a tunnel.
    async fn on_create(&mut self, wanted: WantedTunnel) -> Result<(), End> {
        let request_id = wanted.request_id;
        match self.take_start() {
            Ok(()) => self.queue(DeviceRequest::Create(wanted)).await,
            Err(failure) => self.link.send(&ToAgent::Created { request_id, outcome: Err(failure) }).await,
        }
    }

    /// Has a request carried out; its answer comes later.
    async fn queue(&mut self, request: DeviceRequest) -> Result<(), End> {
        match self.requests.push(request) {
            Ok(()) => Ok(()),
            Err(refused) => self.link.send(&refused).await,
        }
    }

    /// Counts a start or a creation against the device's rate.
    fn take_start(&self) -> Result<(), Failure> {
        let now = self.control.clock.moment();
        let may_start = self.control.arrivals.paces.of(self.device.id(), now, |pace| {
            let may_start = pace.starts.wait(now).is_none();
            pace.starts.take(u32::from(may_start), now);
            may_start
        });
        if may_start {
            return Ok(());
        }
        self.control.refused.count("starts");
        Err(Failure::new(FailureCode::RateLimited, "This device starts tunnels too often; try again in a second."))
    }
}

/// Receives the next frame, as soon as the device's rate limit permits.
async fn paced(link: &mut AgentSocket, control: &Control, device_id: Uuid) -> Result<ToHost, End> {
    let (paces, clock) = (&control.arrivals.paces, &control.clock);
    let now = clock.moment();
    if let Some(wait) = paces.of(device_id, now, |pace| pace.frames.wait(now)) {
        clock.sleep(wait).await;
    }
    let frame = link.receive().await?;
    let now = clock.moment();
    paces.of(device_id, now, |pace| pace.frames.take(1, now));
    Ok(frame)
}
