//! Operations: what became of remote actions.

use super::call::Call;
use super::reply::{Answer, Found, Listed};
use crate::error::Error;
use crate::record::operation::OperationOut;

pub async fn list(call: Call, (): ()) -> Answer<Listed<OperationOut>> {
    let operations = call.app.store.operations(call.caller.scope.id, call.page()?).await?;
    call.listed(operations, OperationOut::from)
}

pub async fn read(call: Call, (): ()) -> Answer<Found<OperationOut>> {
    let operation = call.app.store.operation(call.caller.scope.id, call.id()?).await?;
    call.reply(Found(operation.ok_or_else(Error::not_found)?.into()))
}
