//! Extra ports: adding and removing them.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::Permit;
use crate::startable::check_running_agent;
use culvert_domain::error::{Code, Error, Result};
use culvert_domain::port::{self, ExtraPort, NewExtraPort};
use culvert_domain::protocol::Protocol;
use culvert_domain::tunnel::Tunnel;
use culvert_store::{Hint, Write};

pub struct CreateExtraPort {
    pub tunnel_id: Uuid,
    pub port: NewExtraPort,
}

impl Change for CreateExtraPort {
    type Done = (ExtraPort, Tunnel);

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<(ExtraPort, Tunnel)> {
        let scope_id = permit.caller().scope.id;
        let tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        check_limit(permit)?;
        check_conflict(&tunnel.extra_ports, &self.port)?;
        check_target(write, &tunnel, &self.port).await?;
        let port = write.create_extra_port(&tunnel.node, tunnel.spec.needs_https(), tunnel.id, &self.port).await?;
        let with_port = write.tunnel(scope_id, tunnel.id).await?.ok_or_else(Error::not_found)?;
        check_running_agent(write, &with_port).await?;
        write.set_updated_at(tunnel.id).await?;
        open_at_once(write, &tunnel, &port).await?;
        Ok((port, tunnel))
    }
}

/// Checks the number of extra ports against the plan's limit and the host's own maximum. The permit's
/// counters are current, because [`Service::commit`](crate::Service::commit) has compared them under
/// the scope's row lock.
fn check_limit(permit: &Permit) -> Result<()> {
    let ports = permit.facts().counters.extra_ports;
    if let Some(limit) = permit.entitlement().extra_ports_per_tunnel.filter(|limit| ports >= *limit) {
        let detail = format!("The plan allows {limit} extra ports of a tunnel; this one has {ports}.");
        return Err(Error::new(Code::PlanLimitReached, detail));
    }
    port::check_room(ports)
}

/// Checks that no other http extra port of the tunnel has the same name, which contains the local port.
fn check_conflict(ports: &[ExtraPort], new: &NewExtraPort) -> Result<()> {
    let is_same = |port: &ExtraPort| (port.protocol, port.local_port) == (new.protocol, new.local_port);
    if new.protocol != Protocol::Http || !ports.iter().any(is_same) {
        return Ok(());
    }
    Err(port_conflict(new.local_port))
}

pub(crate) fn port_conflict(local_port: u16) -> Error {
    Error::new(
        Code::PortConflict,
        format!("The tunnel has an http extra port for the local port {local_port} already."),
    )
}

/// Checks that the device's owner allows the new local target, which a running tunnel serves at once.
async fn check_target(write: &mut Write, tunnel: &Tunnel, port: &NewExtraPort) -> Result<()> {
    let Some(run) = tunnel.run.as_ref() else { return Ok(()) };
    match write.device(tunnel.scope_id, run.device_id).await? {
        Some(device) => device.may_be_led_to(&tunnel.spec.local_host, [port.local_port]),
        None => Ok(()),
    }
}

/// Opens the new port on a running tunnel at once if its device has remote control turned on. Otherwise
/// the port opens with the next local start.
async fn open_at_once(write: &mut Write, tunnel: &Tunnel, port: &ExtraPort) -> Result<()> {
    let Some(run) = &tunnel.run else { return Ok(()) };
    let device = write.device(tunnel.scope_id, run.device_id).await?;
    if device.is_some_and(|device| device.remote_control) {
        write.approve_port(run.session_id, port.id, port.local_port).await?;
        write.notify(Hint::Device(run.device_id));
        write.touch_assignment(tunnel.id).await?;
    }
    Ok(())
}

pub struct DeleteExtraPort {
    pub tunnel_id: Uuid,
    pub port_id: Uuid,
}

impl Change for DeleteExtraPort {
    type Done = Uuid;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Uuid> {
        let tunnel = permit.facts().tunnel()?;
        let port = tunnel.extra_ports.iter().find(|port| port.id == self.port_id).ok_or_else(Error::not_found)?;
        write.delete_extra_port(&tunnel.node, self.tunnel_id, port).await?;
        write.set_updated_at(self.tunnel_id).await?;
        write.touch_assignment(self.tunnel_id).await?;
        if let Some(run) = &tunnel.run {
            write.notify(Hint::Device(run.device_id));
        }
        Ok(port.id)
    }

    fn details(&self, port_id: &Uuid) -> Value {
        json!({"extra_port_id": port_id})
    }
}
