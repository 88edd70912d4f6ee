//! What the agent of a connected device reports and asks for: one function for each frame of the control channel.

mod accept;
mod commands;
mod stops;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use culvert_domain::connection::Connection;
use culvert_domain::device::Device;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::event::OfflineReason;
use culvert_domain::lease::Lease;
use culvert_domain::operation::Operation;
use culvert_domain::session::EndReason;
use culvert_domain::text;
use culvert_store::Write;
use culvert_wire::control::{ConsentState, Failure, Grant, RevokeReason, SignedConsent};
use culvert_wire::device_token::DeviceToken;
use culvert_wire::failure_code::FailureCode;
use futures_util::future::{BoxFuture, join_all};
use uuid::Uuid;

use crate::commit::DECISIONS;
use crate::liveness::LastState;
use crate::local_runs::LocalStart;
use crate::operations::reports::{self, BeginDecision};
use crate::{Service, consent, local_runs, operations, presence, resumption, sessions, temporary_tunnels};

pub use crate::resumption::Resumed;
pub use accept::{Identified, identify};
pub use commands::WantedTunnel;

/// How many ids one frame may list, in addition to one for each open session of the device.
const MORE_IDS: usize = 256;
/// Characters of a text of an agent that are stored.
const DETAIL_LENGTH: usize = 500;

/// Why a device's connection has to end.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("a newer connection of the device counts")]
    Replaced,
    #[error("the device was removed")]
    Removed,
    #[error("the device's owner has left its Team")]
    NotAllowed,
    #[error("the agent does not speak this host's language: it lists more leases than there can be")]
    TooManyLeases,
    #[error(transparent)]
    Failed(#[from] Error),
}

/// The answer to an agent that is ready to begin an operation.
#[derive(Debug)]
pub enum Begin {
    /// Begin. If the action runs a tunnel, it runs under this grant.
    Proceed(Option<Box<Grant>>),
    /// Do not begin: the operation has ended otherwise.
    Abandon,
}

/// A device on its current connection. Nothing is written on behalf of a connection that was replaced.
pub struct ConnectedDevice {
    service: Arc<Service>,
    connection: Connection,
    scope_id: Uuid,
    boot_id: Uuid,
    public_key: Vec<u8>,
    /// The leases that the agent held when it connected.
    held: Vec<Uuid>,
    /// What was found of the tunnels that it should run.
    resumed: Resumed,
}

impl ConnectedDevice {
    pub fn connection(&self) -> Connection {
        self.connection
    }

    /// What was found, when it connected, of the tunnels that it should run.
    pub fn resumed(&self) -> Resumed {
        self.resumed
    }

    pub fn id(&self) -> Uuid {
        self.connection.device_id
    }

    /// Whether the agent held a lease when it connected.
    pub fn held(&self, lease_id: Uuid) -> bool {
        self.held.contains(&lease_id)
    }

    /// The device as it is now.
    ///
    /// # Errors
    ///
    /// If the device may not be connected any longer; if the database fails.
    pub async fn current(&self) -> Result<Device, DeviceError> {
        let device = self.service.store.device(self.scope_id, self.id()).await?;
        let device = device.ok_or(DeviceError::Removed)?;
        if device.owner_active { Ok(device) } else { Err(DeviceError::NotAllowed) }
    }

    /// Notes that the device is alive.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] if a newer connection of the device has taken this one's place.
    pub fn heard(&self) -> Result<(), DeviceError> {
        if self.service.liveness.heard(self.connection) { Ok(()) } else { Err(DeviceError::Replaced) }
    }

    /// The operations that have not ended.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn active_operations(&self) -> Result<Vec<Operation>> {
        self.service.store.active_operations(self.id()).await
    }

    /// The ids of all open sessions of the device. This host forgets the others.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn lease_ids(&self) -> Result<HashSet<Uuid>> {
        let leases = self.service.store.leases_of_device(self.id()).await?;
        let open = leases.iter().map(|lease| lease.session_id).collect();
        self.service.liveness.keep_leases(self.id(), &open);
        Ok(open)
    }

    /// The leases that this agent process holds or should hold, except those that an operation is about to
    /// give it.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn leases_of_this_boot(&self) -> Result<Vec<Lease>> {
        let operations = self.active_operations().await?;
        let given: HashSet<Uuid> = operations.iter().filter_map(|operation| operation.session_id).collect();
        let leases = self.service.store.leases_of_device(self.id()).await?;
        let begun = |id: &Uuid| !given.contains(id) || self.held.contains(id);
        let own = |lease: &Lease| lease.boot_id == self.boot_id && begun(&lease.session_id);
        Ok(leases.into_iter().filter(own).collect())
    }

    /// The grants of those leases that their nodes serve.
    pub async fn grants(&self, leases: impl IntoIterator<Item = &Lease>) -> Vec<Grant> {
        let grant = async |lease: &Lease| {
            let is_held = lease.ready || self.held(lease.session_id);
            if is_held { self.service.grant_again(lease).await } else { self.service.serve_and_grant(lease).await }
        };
        join_all(leases.into_iter().map(grant)).await.into_iter().flatten().collect()
    }

    /// Why a session has ended, as the agent is told.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn end_reason(&self, lease_id: Uuid) -> Result<RevokeReason> {
        let reason = self.service.store.end_reason(lease_id).await?;
        Ok(reason.map_or(RevokeReason::Ended, |reason| reason.to_string().into()))
    }

    /// Renews leases, and returns those that were. The store is asked about those that this connection has not renewed
    /// before.
    ///
    /// # Errors
    ///
    /// If more are listed than there can be; [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database
    /// fails.
    pub async fn renew(&self, lease_ids: Vec<Uuid>) -> Result<Vec<Uuid>, DeviceError> {
        let count = lease_ids.len();
        let (held, others) = self.service.liveness.held_leases(self.connection, lease_ids);
        let more = if others.is_empty() { Vec::new() } else { self.renew_in_store(others, count).await? };
        let mut renewed = self.service.liveness.renew(self.connection, held);
        renewed.extend(more);
        Ok(renewed)
    }

    /// Renews leases while the store is away: those that this connection has renewed before.
    pub fn renew_from_memory(&self, lease_ids: &[Uuid]) {
        let (held, _) = self.service.liveness.held_leases(self.connection, lease_ids.to_vec());
        self.service.liveness.renew(self.connection, held);
    }

    async fn renew_in_store(&self, lease_ids: Vec<Uuid>, count: usize) -> Result<Vec<Uuid>, DeviceError> {
        let renewed = self.write(move |write, device| {
            Box::pin(async move {
                if count > MORE_IDS && count > write.open_sessions(device.id).await? + MORE_IDS {
                    return Ok(Err(DeviceError::TooManyLeases));
                }
                write.renew_leases(&lease_ids, device.id).await.map(Ok)
            })
        });
        let renewed = renewed.await??;
        self.service.liveness.hold_leases(self.connection, &renewed);
        Ok(renewed)
    }

    /// New device tokens for the nodes of the agent's leases.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn device_tokens(&self) -> Result<Vec<DeviceToken>> {
        let leases = self.leases_of_this_boot().await?;
        let nodes: BTreeMap<Uuid, Lease> = leases.into_iter().map(|lease| (lease.node_id, lease)).collect();
        Ok(nodes.values().map(|lease| self.service.nodes.device_token(lease)).collect())
    }

    /// Opens sessions for the tunnels that wait for this device.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if a policy or the database fails.
    pub async fn resume(&self) -> Result<Resumed, DeviceError> {
        if !self.service.store.has_pending_resumes(self.scope_id, self.id()).await? {
            return Ok(Resumed::All);
        }
        let may_run = local_runs::may_run(&self.service, self.scope_id).await?;
        let boot_id = self.boot_id;
        self.write(move |write, device| Box::pin(resumption::resume_tunnels(write, device, boot_id, may_run))).await
    }

    /// The agent has journaled a command. Returns whether the operation goes on.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn claim(&self, operation_id: Uuid) -> Result<bool, DeviceError> {
        self.write(move |write, device| Box::pin(reports::claim(write, device, operation_id))).await
    }

    /// The agent has canceled a command before it began.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn cancel(&self, operation_id: Uuid) -> Result<(), DeviceError> {
        self.write(move |write, device| Box::pin(reports::cancel(write, device, operation_id))).await
    }

    /// The agent is ready to begin an operation.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn begin(&self, operation_id: Uuid) -> Result<Begin, DeviceError> {
        let boot_id = self.boot_id;
        let decision =
            self.write(move |write, device| Box::pin(reports::begin(write, device, boot_id, operation_id))).await?;
        let session_id = match decision {
            BeginDecision::Abandon => return Ok(Begin::Abandon),
            BeginDecision::Proceed { session_id: None } => return Ok(Begin::Proceed(None)),
            BeginDecision::Proceed { session_id: Some(session_id) } => session_id,
        };
        let granted = match self.service.store.lease(session_id).await? {
            Some(lease) => self.service.serve_and_grant(&lease).await,
            None => {
                Err(Failure::new(FailureCode::TunnelStartFailed, "The tunnel's lease ended before the start was done."))
            }
        };
        match granted {
            Ok(grant) => Ok(Begin::Proceed(Some(Box::new(grant)))),
            Err(failure) => {
                self.write(move |write, device| Box::pin(reports::finish(write, device, operation_id, Err(failure))))
                    .await?;
                Ok(Begin::Abandon)
            }
        }
    }

    /// Somebody at the device has started a tunnel, by id or name. Returns its grant, if it has not ended meanwhile.
    ///
    /// # Errors
    ///
    /// If the device may not be connected any longer; if a policy or the database fails. The inner result says why the
    /// tunnel does not start.
    pub async fn start(&self, tunnel: &str) -> Result<Result<Option<Grant>, Failure>, DeviceError> {
        let started = self.try_start(tunnel).await?;
        if let (Err(_), Ok(tunnel_id)) = (&started, tunnel.parse()) {
            temporary_tunnels::note_attempt(&self.service.store, self.scope_id, tunnel_id, self.id()).await?;
        }
        Ok(started)
    }

    async fn try_start(&self, tunnel: &str) -> Result<Result<Option<Grant>, Failure>, DeviceError> {
        self.current().await?;
        let session_id = match self.start_found(tunnel).await {
            Ok(Ok(session_id)) => session_id,
            Ok(Err(failure)) => return Ok(Err(failure)),
            // Whoever asked is told, and the connection goes on.
            Err(DeviceError::Failed(error)) if matches!(error.code, Code::PolicyUnavailable) => {
                return Ok(Err(commands::refusal(error)));
            }
            Err(error) => return Err(error),
        };
        let Some(lease) = self.service.store.lease(session_id).await? else { return Ok(Ok(None)) };
        let granted = self.service.serve_and_grant(&lease).await;
        if granted.is_err() {
            self.write(move |write, _| {
                Box::pin(async move { sessions::stop(write, session_id, EndReason::Error).await.map(drop) })
            })
            .await?;
        }
        Ok(granted.map(Some))
    }

    /// Finds a tunnel and starts it, by the policies that decide when that is written.
    async fn start_found(&self, tunnel: &str) -> Result<LocalStart, DeviceError> {
        let (policies, boot_id) = (self.service.policies_now(), self.boot_id);
        for _ in 0..DECISIONS {
            let found = match local_runs::find(&self.service, &policies, self.scope_id, tunnel).await? {
                Ok(found) => found,
                Err(failure) => return Ok(Err(failure)),
            };
            let started = self.write(move |write, device| {
                Box::pin(async move { local_runs::start(write, device, boot_id, &found).await })
            });
            if let Some(started) = started.await? {
                return Ok(started);
            }
            Box::pin(self.service.renew_policies(&policies)).await?;
        }
        Err(Error::of(Code::PolicyUnavailable).into())
    }

    /// The agent serves a lease.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn serving(&self, lease_id: Uuid) -> Result<(), DeviceError> {
        self.write(move |write, device| {
            Box::pin(async move {
                match write.lease(lease_id).await? {
                    Some(lease) if lease.device_id == device.id => sessions::set_ready(write, lease_id).await,
                    _ => Ok(()),
                }
            })
        })
        .await
    }

    /// Whether the local target of a lease answers.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn set_target_error(&self, lease_id: Uuid, error: Option<&str>) -> Result<(), DeviceError> {
        let error = error.map(|error| text::cleaned(error, DETAIL_LENGTH));
        self.write(move |write, device| {
            Box::pin(async move { write.set_target_error(lease_id, device.id, error.as_deref()).await })
        })
        .await
    }

    /// The agent could not resume a tunnel.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn not_resumed(&self, lease_id: Uuid, detail: &str) -> Result<(), DeviceError> {
        let detail = text::cleaned(detail, DETAIL_LENGTH);
        self.write(move |write, device| {
            Box::pin(async move { local_runs::not_resumed(write, device, lease_id, &detail).await })
        })
        .await
    }

    /// A decision of the device's owner about remote control. Returns the consent as it is now.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn consent(&self, signed: SignedConsent) -> Result<ConsentState, DeviceError> {
        let public_key = self.public_key.clone();
        self.write(move |write, device| {
            Box::pin(async move {
                consent::apply_consent(write, device, &public_key, &signed).await?;
                consent::consent_of(write, device).await
            })
        })
        .await
    }

    /// Records the end of the connection. With `for_good`, the device goes offline and its sessions end at
    /// once. Without it, the agent may reconnect before its leases end.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn disconnect(&self, for_good: Option<OfflineReason>) -> Result<()> {
        let connection = self.connection;
        let _turn = self.service.locks.scopes.lock(self.scope_id).await;
        let Some(LastState { seen_at, leases }) = self.service.liveness.last_state(connection) else { return Ok(()) };
        let written = self.service.store.write(Some(self.scope_id), move |write| {
            Box::pin(async move {
                if !write.is_current(connection).await? {
                    return Ok(());
                }
                write.disconnect_device(connection, seen_at).await?;
                for (end, session_ids) in leases {
                    write.set_lease_ends(&session_ids, end).await?;
                }
                if let Some(reason) = for_good {
                    for lease in write.leases_of_device(connection.device_id).await? {
                        sessions::end(write, lease.session_id, EndReason::DeviceDisconnected).await?;
                    }
                    presence::set_offline(write, connection.device_id, reason).await?;
                    operations::fail_of_lost_device(write, connection.device_id).await?;
                }
                Ok(())
            })
        });
        written.await?;
        // Where the store does not hear of it, the host goes on to watch the time.
        self.service.liveness.release(connection);
        Ok(())
    }

    /// Writes on behalf of the device, as long as this is the device's current connection.
    async fn write<T, F>(&self, work: F) -> Result<T, DeviceError>
    where
        T: Send + 'static,
        F: for<'w> FnOnce(&'w mut Write, &'w Device) -> BoxFuture<'w, Result<T>> + Send + 'static,
    {
        let (connection, scope_id) = (self.connection, self.scope_id);
        // Lock the scope before taking a database connection: waiting for a scope must not occupy one.
        let _turn = self.service.locks.scopes.lock(scope_id).await;
        let written = self.service.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                if !write.is_current(connection).await? {
                    return Ok(Err(DeviceError::Replaced));
                }
                match write.device(scope_id, connection.device_id).await? {
                    Some(device) => work(write, &device).await.map(Ok),
                    None => Ok(Err(DeviceError::Removed)),
                }
            })
        });
        written.await?
    }
}
