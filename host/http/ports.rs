//! Extra ports of a tunnel.

use culvert_api_types::deleted::DeletedExtraPort;
use culvert_api_types::port::ExtraPortResponse;
use culvert_api_types::read::{Body, NoBody};
use culvert_api_types::requests::NewExtraPort;
use culvert_domain::facts::Resource;
use culvert_domain::port::ExtraPort;
use culvert_domain::tunnel::Tunnel;
use culvert_service::ports::{CreateExtraPort, DeleteExtraPort};

use super::call::Call;
use super::reply::{Created, HandlerResult, Single};

pub(crate) async fn list(call: Call, (): ()) -> HandlerResult<Single<Vec<ExtraPortResponse>>> {
    let tunnel = call.service().tunnel(&call.caller, call.id()?).await?;
    call.reply(Single(ExtraPortResponse::all(&tunnel)))
}

pub(crate) async fn create(call: Call, body: Body<NewExtraPort>) -> HandlerResult<Created<ExtraPortResponse>> {
    let tunnel_id = call.id()?;
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |port| CreateExtraPort { tunnel_id, port };
    let answer = |(port, tunnel): (ExtraPort, Tunnel)| Created(ExtraPortResponse::new(port, &tunnel));
    call.commit(admitted, change, answer).await
}

pub(crate) async fn delete(call: Call, body: Body<NoBody>) -> HandlerResult<Single<DeletedExtraPort>> {
    let (tunnel_id, port_id) = (call.id()?, call.id_at(1)?);
    let admitted = call.admit(Resource::Tunnel(tunnel_id), body).await?;
    let change = |()| DeleteExtraPort { tunnel_id, port_id };
    call.commit(admitted, change, |id| Single(DeletedExtraPort::new(id))).await
}
