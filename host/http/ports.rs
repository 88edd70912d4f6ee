//! Extra ports of a tunnel.

use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use super::call::Call;
use super::reply::{Created, HandlerResult, Single};
use super::tunnels;
use crate::gate::{Body, NoBody};
use crate::record::address::AddressResponse;
use crate::service::ports::{CreateExtraPort, DeleteExtraPort};
use culvert_domain::input::NewExtraPort;
use culvert_domain::port::ExtraPort;
use culvert_domain::tunnel::{Protocol, Tunnel};
use culvert_store::facts::Resource;

/// Extra port
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExtraPort")]
pub struct ExtraPortResponse {
    id: Uuid,
    local_port: u16,
    remote_port: u16,
    protocol: Protocol,
    label: Option<String>,
    public_address: AddressResponse,
}

impl ExtraPortResponse {
    pub fn new(port: ExtraPort, tunnel: &Tunnel) -> Self {
        let public_address = tunnel.extra_address(&port).into();
        let ExtraPort { id, local_port, remote_port, protocol, label } = port;
        Self { id, local_port, remote_port, protocol, label, public_address }
    }
}

pub async fn list(call: Call, (): ()) -> HandlerResult<Single<Vec<ExtraPortResponse>>> {
    let tunnel = tunnels::of(&call).await?;
    let ports = call.api.service.store.extra_ports(tunnel.id).await?;
    call.reply(Single(ports.into_iter().map(|port| ExtraPortResponse::new(port, &tunnel)).collect()))
}

pub async fn create(call: Call, body: Body<NewExtraPort>) -> HandlerResult<Created<ExtraPortResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |port| CreateExtraPort { tunnel_id, port };
    let answer = |(port, tunnel): (ExtraPort, Tunnel)| Created(ExtraPortResponse::new(port, &tunnel));
    call.commit(admitted, change, answer).await
}

/// An extra port that is gone
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "DeletedExtraPort")]
pub struct DeletedResponse {
    id: Uuid,
    /// Always true.
    #[schemars(extend("const" = true))]
    deleted: bool,
}

pub async fn delete(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedResponse>> {
    let (tunnel_id, port_id) = (call.id()?, call.id_at(1)?);
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |()| DeleteExtraPort { tunnel_id, port_id };
    call.commit(admitted, change, |id| Single(DeletedResponse { id, deleted: true })).await
}
