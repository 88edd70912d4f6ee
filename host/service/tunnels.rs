//! Tunnels: reading, creating, changing, binding and deleting them.

use std::collections::HashSet;

use crate::Service;
use chrono::{DateTime, Utc};
use culvert_domain::caller::Caller;
use culvert_domain::page::{Page, PageRows};
use culvert_domain::port::{self, NewExtraPort};
use culvert_domain::session::Session;
use culvert_domain::usage::Bandwidth;
use uuid::Uuid;

use crate::commit::Change;
use crate::gate::{Permit, TunnelChange, TunnelDefinition};
use crate::ports::port_conflict;
use crate::startable::check_running_agent;
use crate::{moves, operations, sessions};
use culvert_domain::error::{Code, Error, Fault, Result};
use culvert_domain::key::generated_subdomain;
use culvert_domain::local_service::{LocalScheme, LocalService};
use culvert_domain::protocol::Protocol;
use culvert_domain::session::EndReason;
use culvert_domain::tunnel::{Tunnel, TunnelSpec};
use culvert_domain::tunnel_devices::TunnelDevices;
use culvert_store::catalog::PlacementCandidate;
use culvert_store::tunnels::NewTunnel;
use culvert_store::{Hint, Write};

impl Service {
    /// A page of the tunnels of the caller's scope.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn tunnels(&self, caller: &Caller, page: Page) -> Result<PageRows<Tunnel>> {
        self.store.tunnels(caller.scope.id, page).await
    }

    /// A tunnel of the caller's scope.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the scope has no such tunnel; if the database fails.
    pub async fn tunnel(&self, caller: &Caller, tunnel_id: Uuid) -> Result<Tunnel> {
        self.store.tunnel(caller.scope.id, tunnel_id).await?.ok_or_else(Error::not_found)
    }

    /// A tunnel of the caller's scope, with its devices.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the scope has no such tunnel; if the database fails.
    pub async fn tunnel_with_devices(&self, caller: &Caller, tunnel_id: Uuid) -> Result<(Tunnel, TunnelDevices)> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        let devices = self.store.devices_of_tunnel(&tunnel).await?;
        Ok((tunnel, devices))
    }

    /// The traffic of a tunnel, today and this month.
    ///
    /// # Errors
    ///
    /// [`Code::NotFound`] if the scope has no such tunnel; if the database fails.
    pub async fn tunnel_bandwidth(&self, caller: &Caller, tunnel_id: Uuid) -> Result<Bandwidth> {
        let tunnel = self.tunnel(caller, tunnel_id).await?;
        self.store.tunnel_bandwidth(caller.scope.id, tunnel.id).await
    }

    /// A page of the sessions of a tunnel.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn sessions_of(&self, tunnel: &Tunnel, page: Page) -> Result<PageRows<Session>> {
        self.store.sessions(tunnel.scope_id, tunnel.id, page).await
    }

    /// The hash under which a basic-auth password is stored.
    ///
    /// # Errors
    ///
    /// If it cannot be computed.
    pub async fn hash_password(&self, password: Option<String>) -> Result<Option<String>> {
        self.passwords.hash(password).await
    }
}

/// How many generated subdomains are tried for an http tunnel without a requested one.
const NAMES: usize = 4;

pub struct CreateTunnel {
    pub definition: TunnelDefinition,
    /// Argon2id hash (RFC 9106) of the basic-auth password.
    pub password_hash: Option<String>,
}

impl Change for CreateTunnel {
    type Done = Tunnel;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Tunnel> {
        let TunnelDefinition { spec, device_ids, extra_ports, .. } = &self.definition;
        check_limits(permit, extra_ports.len())?;
        check_names(spec.subdomain.as_deref(), extra_ports)?;
        let id = write.clock.id();
        let scope_id = permit.caller().scope.id;
        let PlacementCandidate { node, domain_id, domain, .. } = moves::choose_node(write, spec).await?;
        let mut new = NewTunnel {
            id,
            scope_id,
            created_by: permit.caller().account_id,
            spec: spec.clone(),
            node_id: node.id,
            domain_id,
            remote_port: write.port_to_try(&node, spec.protocol, spec.needs_https()),
            restricted: !device_ids.is_empty(),
            basic_auth_hash: self.password_hash.clone(),
        };
        let suspended_until = insert(write, &mut new).await?;
        let remote_port = write.allocate_first_port(&node, &new).await?;
        let mut created = Vec::new();
        for port in extra_ports {
            created.push(write.create_extra_port(&node, spec.needs_https(), id, port).await?);
        }
        check_known(&write.bind_devices(scope_id, id, device_ids).await?)?;
        let mut device_ids = device_ids.clone();
        device_ids.sort();
        Ok(Tunnel {
            suspended: suspended_until.is_some_and(|until| write.now < until),
            extra_ports: created,
            device_ids,
            ..new.inserted(node, domain, remote_port, write.now)
        })
    }

    fn subject(&self, done: &Tunnel) -> Option<Uuid> {
        Some(done.id)
    }
}

/// Checks the plan's limits. The permit's counters are current, because
/// [`Service::commit`](crate::Service::commit) has compared them under the scope's row lock.
fn check_limits(permit: &Permit, extra_ports: usize) -> Result<()> {
    let entitlement = permit.entitlement();
    let tunnels = permit.facts().counters.tunnels;
    if entitlement.tunnel_limit.is_some_and(|limit| tunnels >= limit) {
        return Err(Error::new(Code::PlanLimitReached, format!("The plan's {tunnels} tunnels exist already.")));
    }
    let ports = u32::try_from(extra_ports).unwrap_or(u32::MAX);
    if let Some(limit) = entitlement.extra_ports_per_tunnel.filter(|limit| ports > *limit) {
        let detail = format!("The plan allows {limit} extra ports of a tunnel; this would make {ports}.");
        return Err(Error::new(Code::PlanLimitReached, detail));
    }
    Ok(())
}

/// Checks that no two names of the platform can become one: an http extra port has a name of its own.
fn check_names(subdomain: Option<&str>, extra_ports: &[NewExtraPort]) -> Result<()> {
    if subdomain.is_some_and(port::is_extra_subdomain) {
        let detail = "Names that begin with `p`, a port number and a hyphen are those of extra ports.";
        return Err(Error::new(Code::SubdomainUnavailable, detail));
    }
    let mut named = HashSet::new();
    let http = extra_ports.iter().filter(|port| port.protocol == Protocol::Http);
    match http.map(|port| port.local_port).find(|port| !named.insert(*port)) {
        Some(local_port) => Err(port_conflict(local_port)),
        None => Ok(()),
    }
}

/// Inserts a tunnel. An http tunnel is addressed by its subdomain, so one is generated if none is requested.
async fn insert(write: &mut Write, new: &mut NewTunnel) -> Result<Option<DateTime<Utc>>> {
    let chosen = new.spec.subdomain.is_some() || new.spec.protocol != Protocol::Http;
    for _ in 0..if chosen { 1 } else { NAMES } {
        if !chosen {
            new.spec.subdomain = Some(generated_subdomain(&write.clock));
        }
        if let Some(suspended_until) = write.insert_tunnel(new).await? {
            return Ok(suspended_until);
        }
    }
    Err(Error::of(Code::SubdomainUnavailable))
}

fn check_known(unknown: &[Uuid]) -> Result<()> {
    if unknown.is_empty() {
        return Ok(());
    }
    let fault = |id: &Uuid| Fault::new("device_ids", format!("{id} is no device of this scope"));
    Err(Error::invalid(unknown.iter().map(fault).collect()))
}

pub struct UpdateTunnel {
    pub tunnel_id: Uuid,
    pub change: TunnelChange,
    /// Argon2id hash (RFC 9106) of the new basic-auth password.
    pub password_hash: Option<String>,
}

impl Change for UpdateTunnel {
    type Done = Tunnel;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Tunnel> {
        let scope_id = permit.caller().scope.id;
        let mut tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        let change = self.change.clone();
        let former = tunnel.spec.clone();
        let password_changes = change.basic_auth_password.is_some();
        let former_needs = tunnel.needs_local_services();
        tunnel.spec = change.applied_to(tunnel.spec);
        if !former_needs {
            check_running_agent(write, &tunnel).await?;
        }
        let wanted = (tunnel.spec.local_host.as_str(), tunnel.spec.local_port);
        if wanted != (former.local_host.as_str(), former.local_port) {
            check_target(write, &tunnel, wanted.0, wanted.1).await?;
        }
        write.update_tunnel(&tunnel).await?;
        write.touch_route(tunnel.id).await?;
        if password_changes {
            write.set_basic_auth_hash(tunnel.id, self.password_hash.as_deref()).await?;
        }
        if agreed(&former) != agreed(&tunnel.spec) {
            retarget(write, &tunnel).await?;
        }
        if let Some(run) = &tunnel.run {
            if reached(&former) != reached(&tunnel.spec) {
                write.raise_target_version(run.session_id).await?;
            }
            write.touch_assignment(tunnel.id).await?;
            write.notify(Hint::Device(run.device_id));
        }
        write.tunnel(scope_id, tunnel.id).await?.ok_or_else(Error::not_found)
    }
}

/// Checks that the device's owner allows the new target of a running tunnel. Its extra ports are checked
/// too, because they follow to a new host.
async fn check_target(write: &mut Write, tunnel: &Tunnel, host: &str, port: u16) -> Result<()> {
    let Some(run) = &tunnel.run else { return Ok(()) };
    let Some(device) = write.device(tunnel.scope_id, run.device_id).await? else { return Ok(()) };
    let extra = write.lease(run.session_id).await?.map(|lease| lease.ports).unwrap_or_default();
    device.may_be_led_to(host, std::iter::once(port).chain(extra.iter().map(|extra| extra.local_port)))
}

/// What connections to the service depend on.
fn reached(spec: &TunnelSpec) -> (&str, u16, &LocalService) {
    (&spec.local_host, spec.local_port, &spec.service)
}

/// What a device agrees to.
fn agreed(spec: &TunnelSpec) -> (&str, u16, LocalScheme, Option<bool>) {
    (&spec.local_host, spec.local_port, spec.service.scheme, spec.service.tls_verify)
}

/// Changes the target of a running tunnel at once if its device has remote control turned on. Otherwise
/// the new target applies from the next local start.
async fn retarget(write: &mut Write, tunnel: &Tunnel) -> Result<()> {
    let Some(run) = &tunnel.run else { return Ok(()) };
    let device = write.device(tunnel.scope_id, run.device_id).await?;
    if device.is_some_and(|device| device.remote_control) {
        write.set_local_target(run.session_id, &tunnel.spec).await?;
    }
    Ok(())
}

pub struct DeleteTunnel {
    pub tunnel_id: Uuid,
}

impl Change for DeleteTunnel {
    type Done = Uuid;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Uuid> {
        let scope_id = permit.caller().scope.id;
        let tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        delete(write, tunnel).await?;
        Ok(self.tunnel_id)
    }
}

/// Deletes a tunnel, and ends what it does.
pub(crate) async fn delete(write: &mut Write, tunnel: Tunnel) -> Result<()> {
    operations::end_of_tunnel(write, tunnel.id).await?;
    if let Some(run) = tunnel.run {
        sessions::stop(write, run.session_id, EndReason::TunnelDeleted).await?;
    }
    write.delete_tunnel(tunnel.id).await
}

pub struct BindTunnel {
    pub tunnel_id: Uuid,
    pub device_ids: Vec<Uuid>,
}

/// The allowlist after the change, and the device whose session was ended by it.
pub struct Bound {
    pub device_ids: Vec<Uuid>,
    pub stopped_device_id: Option<Uuid>,
}

impl Change for BindTunnel {
    type Done = Bound;

    async fn apply(&self, write: &mut Write, permit: &Permit) -> Result<Bound> {
        let scope_id = permit.caller().scope.id;
        check_known(&write.replace_devices(scope_id, self.tunnel_id, &self.device_ids).await?)?;
        let tunnel = write.tunnel(scope_id, self.tunnel_id).await?.ok_or_else(Error::not_found)?;
        let mut stopped_device_id = None;
        if let Some(run) = tunnel.run.as_ref().filter(|run| !tunnel.allows(run.device_id)) {
            sessions::stop(write, run.session_id, EndReason::DeviceNotAllowed).await?;
            stopped_device_id = Some(run.device_id);
        } else if tunnel.desired_device_id.is_some_and(|device_id| !tunnel.allows(device_id)) {
            write.set_desired_device(tunnel.id, None).await?;
        }
        Ok(Bound { device_ids: tunnel.device_ids, stopped_device_id })
    }
}
