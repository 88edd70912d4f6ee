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

/// What an operation stops.
#[derive(Clone, Copy, Debug)]
enum Stop {
    Tunnel(Uuid),
    All,
}

impl Stop {
    /// The leases of a device that it ends.
    fn leases(self, of_device: Vec<Lease>) -> Vec<Lease> {
        let is_ended = |lease: &Lease| match self {
            Self::Tunnel(tunnel_id) => lease.tunnel_id == tunnel_id,
            Self::All => true,
        };
        of_device.into_iter().filter(is_ended).collect()
    }
}

impl ConnectedDevice {
    /// The agent reports the outcome of an operation. Returns the leases that go on because their nodes could not be asked to end
    /// them.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Replaced`] or [`DeviceError::Removed`]; if the database fails.
    pub async fn finish(&self, operation_id: Uuid, outcome: Result<Done, Failure>) -> Result<Vec<Uuid>, DeviceError> {
        let stop = if outcome.is_ok() { self.stop_of(operation_id).await? } else { None };
        let stopped = match stop {
            Some(stop) => stop.leases(self.service.store.leases_of_device(self.id()).await?),
            None => Vec::new(),
        };
        let lease_ids: Vec<Uuid> = stopped.iter().map(|lease| lease.session_id).collect();
        let outcome = match stop {
            Some(stop) if stopped.is_empty() && !self.is_closed(stop).await? => Err(nodes::unavailable()),
            _ => outcome,
        };
        // Ports are closed before the stop is recorded as succeeded, so that nobody reads of a stop while a port
        // is still open.
        let (ended, outcome) = match self.service.nodes.end(&stopped).await {
            Ok(ended) => (Some(ended), outcome),
            Err(failure) => (None, Err(failure)),
        };
        let is_stopped = outcome.is_ok();
        let asked = stop.filter(|_| is_stopped).map(|stop| (stop, lease_ids.clone()));
        let have_ended = self.write_ends((ended, asked), move |write, device| {
            Box::pin(reports::finish(write, device, operation_id, outcome))
        });
        if have_ended.await? {
            return Ok(if is_stopped { Vec::new() } else { lease_ids });
        }
        let outcome = Err(nodes::unavailable());
        self.write(move |write, device| Box::pin(reports::finish(write, device, operation_id, outcome))).await?;
        Ok(lease_ids)
    }

    /// What an operation stops, if it is a stop.
    async fn stop_of(&self, operation_id: Uuid) -> Result<Option<Stop>> {
        let operations = self.active_operations().await?;
        let operation = operations.into_iter().find(|operation| operation.id == operation_id);
        Ok(operation.and_then(|operation| match operation.action {
            RemoteAction::Stop => operation.tunnel_id.map(Stop::Tunnel),
            RemoteAction::StopAll => Some(Stop::All),
            _ => None,
        }))
    }

    /// Whether the nodes of a tunnel without a session serve nothing of it any longer.
    async fn is_closed(&self, stop: Stop) -> Result<bool> {
        let Stop::Tunnel(tunnel_id) = stop else { return Ok(true) };
        let Some(tunnel) = self.service.store.tunnel(self.scope_id, tunnel_id).await? else { return Ok(true) };
        let nodes = [tunnel.node.id].into_iter().chain(tunnel.moving_from.map(|former| former.node_id));
        Ok(self.service.nodes.wait_until_applied(nodes).await)
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
        let have_ended =
            self.write_ends((ended, None), move |write, device| Box::pin(stop_locally(write, device, lease_id)));
        if have_ended.await? {
            return Ok(());
        }
        self.write(move |write, device| Box::pin(stop_locally(write, device, lease_id))).await
    }

    /// Writes the ends of sessions that nodes have ended, together with their last traffic. False, and nothing is written, if a
    /// node of another host may serve one of them again, or if something else has begun than what was asked to end.
    async fn write_ends<F>(
        &self,
        (ended, asked): (Option<EndedSessions>, Option<(Stop, Vec<Uuid>)>),
        work: F,
    ) -> Result<bool, DeviceError>
    where
        F: for<'w> FnOnce(&'w mut Write, &'w Device) -> BoxFuture<'w, Result<()>> + Send + 'static,
    {
        let nodes = self.service.nodes.clone();
        let (traffic, elsewhere) = match &ended {
            Some(ended) => (ended.traffic.clone(), ended.elsewhere.clone()),
            None => Default::default(),
        };
        let written = self.write(move |write, device| {
            Box::pin(async move {
                if let Some((stop, asked)) = asked {
                    let open = stop.leases(write.leases_of_device(device.id).await?);
                    if open.iter().any(|lease| !asked.contains(&lease.session_id)) {
                        return Ok(None);
                    }
                }
                if !write.take_up_ends(&elsewhere).await? {
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
