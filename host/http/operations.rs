//! Operations: what became of remote actions.

use super::call::Call;
use super::reply::{HandlerResult, List, Single};
use crate::record::operation::OperationResponse;
use culvert_domain::error::Error;

pub async fn list(call: Call, (): ()) -> HandlerResult<List<OperationResponse>> {
    let operations = call.api.service.store.operations(call.caller.scope.id, call.page()?).await?;
    call.listed(operations, OperationResponse::from)
}

pub async fn read(call: Call, (): ()) -> HandlerResult<Single<OperationResponse>> {
    let operation = call.api.service.store.operation(call.caller.scope.id, call.id()?).await?;
    call.reply(Single(operation.ok_or_else(Error::not_found)?.into()))
}
