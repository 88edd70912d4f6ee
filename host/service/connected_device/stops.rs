//! The ends of what a device runs: nodes close the ports before the end is recorded.

use culvert_domain::device::Device;
use culvert_domain::error::Result;
use culvert_domain::lease::Lease;
use culvert_domain::operation::RemoteAction;
use culvert_store::Write;
use culvert_wire::control::{Done, Failure};
use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::{ConnectedDevice, DeviceError};
use crate::local_runs;
use crate::nodes::{self, EndedSessions};
use crate::operations::reports;

impl ConnectedDevice {
    /// The agent reports the outcome of an operation.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn finish(&self, operation_id: Uuid, outcome: Result<Done, Failure>) -> Result<(), DeviceError> {
        let stopped = if outcome.is_ok() { self.leases_to_stop(operation_id).await? } else { Vec::new() };
        // Ports are closed before the stop is recorded as succeeded, so that nobody reads of a stop while a port
        // is still open.
        let (ended, outcome) = match self.service.nodes.end(&stopped).await {
            Ok(ended) => (Some(ended), outcome),
            Err(failure) => (None, Err(failure)),
        };
        let have_ended = self
            .write_ends(ended, move |write, device| Box::pin(reports::finish(write, device, operation_id, outcome)))
            .await?;
        if have_ended {
            return Ok(());
        }
        let outcome = Err(nodes::unavailable());
        self.write(move |write, device| Box::pin(reports::finish(write, device, operation_id, outcome))).await
    }

    /// The leases that the success of a stop ends.
    async fn leases_to_stop(&self, operation_id: Uuid) -> Result<Vec<Lease>> {
        let operations = self.active_operations().await?;
        let Some(operation) = operations.into_iter().find(|operation| operation.id == operation_id) else {
            return Ok(Vec::new());
        };
        let stopped = |lease: &Lease| match operation.action {
            RemoteAction::Stop => Some(lease.tunnel_id) == operation.tunnel_id,
            RemoteAction::StopAll => true,
            _ => false,
        };
        Ok(self.service.store.leases_of_device(self.id()).await?.into_iter().filter(stopped).collect())
    }

    /// Somebody at the device has stopped a tunnel.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn stop(&self, lease_id: Uuid) -> Result<(), DeviceError> {
        let lease = self.service.store.lease(lease_id).await?;
        let own: Vec<Lease> = lease.into_iter().filter(|lease| lease.device_id == self.id()).collect();
        // A node that does not answer hears of the end by the next change.
        let ended = self.service.nodes.end(&own).await.ok();
        let have_ended = self.write_ends(ended, move |write, device| Box::pin(stop_locally(write, device, lease_id)));
        if have_ended.await? {
            return Ok(());
        }
        self.write(move |write, device| Box::pin(stop_locally(write, device, lease_id))).await
    }

    /// Writes the ends of sessions that nodes have ended, together with their last traffic. False, and nothing is written, if a
    /// node of another host may serve one of them again.
    async fn write_ends<F>(&self, ended: Option<EndedSessions>, work: F) -> Result<bool, DeviceError>
    where
        F: for<'w> FnOnce(&'w mut Write, &'w Device) -> BoxFuture<'w, Result<()>> + Send + 'static,
    {
        let nodes = self.service.nodes.clone();
        let (traffic, requests) = match &ended {
            Some(ended) => (ended.traffic.clone(), ended.requests.clone()),
            None => Default::default(),
        };
        let written = self.write(move |write, device| {
            Box::pin(async move {
                if !write.take_up_ends(&requests).await? {
                    return Ok(None);
                }
                let mut new = Vec::new();
                for (node_id, batch) in traffic {
                    if write.apply_traffic(node_id, &batch).await? {
                        new.push(batch);
                    }
                }
                work(write, device).await?;
                Ok(Some(new))
            })
        });
        let written = written.await;
        if let Some(ended) = ended {
            nodes.release(ended).await;
        }
        let Some(new) = written? else { return Ok(false) };
        new.iter().for_each(|batch| nodes.count(batch));
        Ok(true)
    }
}

async fn stop_locally(write: &mut Write, device: &Device, lease_id: Uuid) -> Result<()> {
    local_runs::stop(write, device, &[lease_id]).await
}
