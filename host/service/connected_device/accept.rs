//! The handshake of a device: it proves its identity, and host and device exchange their state.

use std::sync::Arc;

use culvert_domain::connection::NewConnection;
use culvert_domain::device::{Description, Device, EnrolledDevice};
use culvert_domain::error::{Chain, Code, Error, Result};
use culvert_store::Write;
use culvert_wire::control::{ConsentState, Hello, connect_statement};
use culvert_wire::signature::verify;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{ConnectedDevice, MORE_IDS};
use crate::{Service, consent, local_runs, presence, resumption};

/// A device that has proved its identity.
pub struct Identified {
    enrolled: EnrolledDevice,
    hello: Hello,
}

/// The device that a hello names, if the signature over the nonce is by the device's key.
///
/// # Errors
///
/// If the device is unknown, the signature is another one's, or the device's owner has left its Team.
pub async fn identify(service: &Service, hello: Hello, nonce: &[u8]) -> Result<Identified> {
    let unknown = || Error::new(Code::NotFound, "This device is not enrolled here, or was removed.");
    let enrolled = service.store.enrolled_device(hello.device_id).await?.ok_or_else(unknown)?;
    let statement = connect_statement(hello.device_id, nonce);
    if !verify(&enrolled.public_key, &statement, &hello.signature.0) {
        return Err(unknown());
    }
    if !enrolled.device.owner_active {
        return Err(Error::new(
            Code::DeviceNotAllowed,
            "The device's owner is no longer a member of its Team, or is locked.",
        ));
    }
    Ok(Identified { enrolled, hello })
}

/// What the handshake of an accepted device leads to.
type Accepted = Result<(ConnectedDevice, ConsentState)>;

impl Identified {
    /// Accepts the device: from here on, this connection is the device's current one. Returns its consent as well. `place` is
    /// waited for, and what it gives held, for the write alone: after the turn of the scope, which can take long. Who does not
    /// wait for the answer any longer has the connection end.
    ///
    /// # Errors
    ///
    /// If the hello lists too many ids, or the device has gone; if a policy or the database fails.
    pub async fn accept<P: Send>(
        self,
        service: &Arc<Service>,
        place: impl Future<Output = P> + Send + 'static,
    ) -> Accepted {
        let (answer, accepted) = oneshot::channel();
        let service = service.clone();
        // The write ends whoever waits for it, so what comes after it has to happen as well.
        tokio::spawn(async move {
            let accepted = self.write(&service, place, &answer).await;
            if let Err(Ok((device, _))) = answer.send(accepted)
                && let Err(error) = device.disconnect(None).await
            {
                tracing::warn!(error = %Chain(&error), "the end of a connection was not noted");
            }
        });
        accepted.await.map_err(|_| gone())?
    }

    async fn write<P>(
        self,
        service: &Arc<Service>,
        place: impl Future<Output = P>,
        answer: &oneshot::Sender<Accepted>,
    ) -> Accepted {
        let Self { enrolled, hello } = self;
        let (scope_id, public_key) = (enrolled.device.scope_id, enrolled.public_key.clone());
        let (boot_id, held) = (hello.boot_id, hello.lease_ids.clone());
        let host_id = service.fleet.host_id();
        let may_run = local_runs::may_run(service, scope_id).await?;
        let _turn = service.locks.scopes.lock(scope_id).await;
        let accepted = service.store.write(Some(scope_id), move |write| {
            Box::pin(async move {
                let EnrolledDevice { device, public_key } = enrolled;
                check_lists(write, &device, &hello).await?;
                let description = Description::cleaned(&hello.platform, &hello.version, &hello.capabilities);
                write.describe_device(device.id, &description).await?;
                if let Some(signed) = &hello.signed_consent {
                    consent::apply_consent(write, &device, &public_key, signed).await?;
                }
                // This comes after the updates above, so that the device is reported in its present state.
                let new = NewConnection { host_id, boot_id, renews_tokens: hello.renews_tokens };
                let connection = presence::connect(write, device.id, new).await?;
                local_runs::stop(write, &device, &hello.stopped).await?;
                resumption::end_lost_leases(write, device.id, &hello).await?;
                let resumed = resumption::resume_tunnels(write, &device, boot_id, may_run).await?;
                Ok((connection, resumed, consent::consent_of(write, &device).await?))
            })
        });
        let place = place.await;
        // An agent that has gone elsewhere meanwhile is not taken from the host where it is.
        if answer.is_closed() {
            return Err(gone());
        }
        let (connection, resumed, consent) = accepted.await?;
        drop(place);
        service.liveness.hold(connection, scope_id);
        let service = service.clone();
        Ok((ConnectedDevice { service, connection, scope_id, boot_id, public_key, held, resumed }, consent))
    }

    pub fn device_id(&self) -> Uuid {
        self.hello.device_id
    }
}

fn gone() -> Error {
    Error::internal("the agent has gone")
}

/// Checks the length of a hello's lists. An agent holds one lease for each tunnel that it runs, and has few
/// commands that are not settled.
async fn check_lists(write: &mut Write, device: &Device, hello: &Hello) -> Result<()> {
    let longest = [&hello.lease_ids, &hello.stopped, &hello.operation_ids].map(Vec::len).into_iter().max();
    let longest = longest.unwrap_or_default();
    if longest <= MORE_IDS || longest <= write.open_sessions(device.id).await? + MORE_IDS {
        return Ok(());
    }
    Err(Error::new(Code::ValidationFailed, "A hello must not list more ids than the device has sessions, and 256."))
}
