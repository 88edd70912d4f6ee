//! What the platform offers: nodes, presets, domains, and sets of scopes for keys.

use culvert_api_types::catalog::{DomainResponse, NodeResponse, PresetResponse, ScopePresetResponse};
use culvert_domain::permission::PermissionPreset;

use super::call::Call;
use super::reply::{HandlerResult, Single};

pub(crate) async fn nodes(call: Call, (): ()) -> HandlerResult<Single<Vec<NodeResponse>>> {
    let nodes = call.service().listed_nodes().await?;
    call.reply(Single(nodes.into_iter().map(NodeResponse::from).collect()))
}

pub(crate) async fn presets(call: Call, (): ()) -> HandlerResult<Single<Vec<PresetResponse>>> {
    let presets = call.service().presets().await?;
    call.reply(Single(presets.into_iter().map(PresetResponse::from).collect()))
}

pub(crate) async fn domains(call: Call, (): ()) -> HandlerResult<Single<Vec<DomainResponse>>> {
    let domains = call.service().platform_domains().await?;
    call.reply(Single(domains.into_iter().map(DomainResponse::from).collect()))
}

pub(crate) async fn scope_presets(call: Call, (): ()) -> HandlerResult<Single<Vec<ScopePresetResponse>>> {
    call.reply(Single(PermissionPreset::ALL.iter().map(ScopePresetResponse::from).collect()))
}
