//! What commands at a device ask for. It is carried out one after the other beside the frames of the connection: renewals
//! of leases must not wait for it.

use std::net::IpAddr;
use std::sync::Arc;

use culvert_service::connected_device::{ConnectedDevice, DeviceError, WantedTunnel};
use culvert_wire::control::{Failure, ToAgent};
use culvert_wire::failure_code::FailureCode;
use tokio::sync::mpsc;
use uuid::Uuid;

/// Requests of one connection that wait, at most: two for each of the agent's 64 commands.
const QUEUE: usize = 128;

pub(super) enum DeviceRequest {
    Create(WantedTunnel),
    Delete { request_id: Uuid, tunnel_id: Uuid },
}

/// The requests of a connection. What was queued is carried out even if the connection ends meanwhile.
pub(super) struct DeviceRequests {
    queue: mpsc::Sender<Box<DeviceRequest>>,
    answers: mpsc::Receiver<Box<Result<ToAgent, DeviceError>>>,
}

impl DeviceRequests {
    pub(super) fn open(device: Arc<ConnectedDevice>, client: IpAddr) -> Self {
        // Boxed, because channels allocate places for 32 and most connections never ask for anything.
        let (queue, mut requests) = mpsc::channel::<Box<DeviceRequest>>(QUEUE);
        let (sender, answers) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                let answer = Box::pin(carry_out(&device, *request, client)).await;
                // Whoever connects again asks again.
                let _ = sender.send(Box::new(answer)).await;
            }
        });
        Self { queue, answers }
    }

    /// Queues a request.
    ///
    /// # Errors
    ///
    /// The answer, where too many wait.
    pub(super) fn push(&self, request: DeviceRequest) -> Result<(), Box<ToAgent>> {
        let Err(error) = self.queue.try_send(Box::new(request)) else { return Ok(()) };
        let failure = Failure::new(FailureCode::RateLimited, "This device asks for too much at once.");
        Err(Box::new(match *error.into_inner() {
            DeviceRequest::Create(WantedTunnel { request_id, .. }) => {
                ToAgent::Created { request_id, outcome: Err(failure) }
            }
            DeviceRequest::Delete { request_id, .. } => ToAgent::Answer { request_id, outcome: Err(failure) },
        }))
    }

    /// The next answer. It may be cancelled.
    pub(super) async fn answered(&mut self) -> Result<ToAgent, DeviceError> {
        match self.answers.recv().await {
            Some(answer) => *answer,
            // The task lives as long as this.
            None => std::future::pending().await,
        }
    }
}

async fn carry_out(device: &ConnectedDevice, request: DeviceRequest, client: IpAddr) -> Result<ToAgent, DeviceError> {
    Ok(match request {
        DeviceRequest::Create(wanted) => {
            let request_id = wanted.request_id;
            ToAgent::Created { request_id, outcome: device.create_tunnel(wanted, client).await? }
        }
        DeviceRequest::Delete { request_id, tunnel_id } => {
            let outcome = device.delete_tunnel(request_id, tunnel_id, client).await?.map(|()| None);
            ToAgent::Answer { request_id, outcome }
        }
    })
}
