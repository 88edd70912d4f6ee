//! `GET /`, the account and its usage.

use culvert_api_types::account::{AccountResponse, ServiceResponse, UsageResponse};
use culvert_service::accounts::ScopeUsage;

use super::call::Call;
use super::reply::{HandlerResult, Single};

pub(crate) async fn service(call: Call, (): ()) -> HandlerResult<Single<ServiceResponse>> {
    let nodes = call.service().listed_nodes().await?;
    call.reply(Single(ServiceResponse::new(&nodes, call.api.docs_url.clone())))
}

pub(crate) async fn read(call: Call, (): ()) -> HandlerResult<Single<AccountResponse>> {
    let account = call.service().account(&call.caller).await?;
    call.reply(Single(AccountResponse::new(account, &call.caller, &call.entitlement)))
}

pub(crate) async fn usage(call: Call, (): ()) -> HandlerResult<Single<UsageResponse>> {
    let now = call.service().clock().now();
    let ScopeUsage { total_tunnels, active_tunnels, bandwidth } = call.service().scope_usage(&call.caller).await?;
    call.reply(Single(UsageResponse::new(total_tunnels, active_tunnels, bandwidth, now)))
}
