//! Operations: what became of remote actions.

use culvert_api_types::operation::OperationResponse;

use super::call::Call;
use super::reply::{HandlerResult, List, Single};

pub(crate) async fn list(call: Call, (): ()) -> HandlerResult<List<OperationResponse>> {
    let operations = call.service().operations(&call.caller, call.page()?).await?;
    call.listed(operations, OperationResponse::from)
}

pub(crate) async fn read(call: Call, (): ()) -> HandlerResult<Single<OperationResponse>> {
    let operation = call.service().operation(&call.caller, call.id()?).await?;
    call.reply(Single(operation.into()))
}
