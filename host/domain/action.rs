//! Everything that a request can do, and what it takes to be allowed to.

use super::grant::Grant;
use super::operation::RemoteAction;
use super::word::{Word, words};

words! {
    /// What a request does. Policies and documentation know it by its word.
    Action {
        ServiceRead "service.read",
        AccountRead "account.read",
        UsageRead "account.read_usage",
        NodesList "nodes.list",
        PresetsList "presets.list",
        DomainsList "domains.list",
        ScopePresetsList "scope_presets.list",
        TunnelsList "tunnels.list",
        TunnelsCreate "tunnels.create",
        TunnelsRead "tunnels.read",
        TunnelsUpdate "tunnels.update",
        TunnelsDelete "tunnels.delete",
        TunnelsBindDevices "tunnels.bind_devices",
        TunnelsStart "tunnels.start",
        TunnelsStop "tunnels.stop",
        TunnelsRestart "tunnels.restart",
        TunnelsReadUsage "tunnels.read_usage",
        TunnelsListSessions "tunnels.list_sessions",
        TunnelsListExtraPorts "tunnels.list_extra_ports",
        TunnelsCreateExtraPort "tunnels.create_extra_port",
        TunnelsDeleteExtraPort "tunnels.delete_extra_port",
        TunnelsReadDomain "tunnels.read_domain",
        TunnelsAssignDomain "tunnels.assign_domain",
        TunnelsRemoveDomain "tunnels.remove_domain",
        TunnelsVerifyDomain "tunnels.verify_domain",
        TunnelsReadFirewall "tunnels.read_firewall",
        TunnelsReplaceFirewall "tunnels.replace_firewall",
        TunnelsReadGeoip "tunnels.read_geoip",
        TunnelsReplaceGeoip "tunnels.replace_geoip",
        TunnelsMove "tunnels.move",
        DevicesList "devices.list",
        DevicesRead "devices.read",
        DevicesUpdate "devices.update",
        DevicesStopAll "devices.stop_all",
        DevicesRestartAgent "devices.restart_agent",
        OperationsList "operations.list",
        OperationsRead "operations.read",
        WebhooksList "webhooks.list",
        WebhooksCreate "webhooks.create",
        WebhooksRead "webhooks.read",
        WebhooksUpdate "webhooks.update",
        WebhooksDelete "webhooks.delete",
        WebhooksTest "webhooks.test",
        WebhooksListDeliveries "webhooks.list_deliveries",
    }
}

impl Action {
    pub fn name(self) -> &'static str {
        self.word()
    }

    /// The API scope that it needs.
    pub fn grant(self) -> Grant {
        match self {
            Action::ServiceRead | Action::AccountRead | Action::UsageRead | Action::ScopePresetsList => {
                Grant::AccountRead
            }
            Action::NodesList
            | Action::PresetsList
            | Action::DomainsList
            | Action::TunnelsList
            | Action::TunnelsRead
            | Action::TunnelsListExtraPorts
            | Action::TunnelsReadDomain
            | Action::TunnelsReadFirewall
            | Action::TunnelsReadGeoip
            | Action::TunnelsReadUsage
            | Action::TunnelsListSessions => Grant::TunnelsRead,
            Action::TunnelsCreate
            | Action::TunnelsUpdate
            | Action::TunnelsDelete
            | Action::TunnelsBindDevices
            | Action::TunnelsCreateExtraPort
            | Action::TunnelsDeleteExtraPort
            | Action::TunnelsAssignDomain
            | Action::TunnelsRemoveDomain
            | Action::TunnelsVerifyDomain
            | Action::TunnelsReplaceFirewall
            | Action::TunnelsReplaceGeoip
            | Action::TunnelsMove => Grant::TunnelsWrite,
            Action::TunnelsStart | Action::TunnelsStop | Action::TunnelsRestart => Grant::TunnelsControl,
            Action::DevicesList | Action::DevicesRead => Grant::DevicesRead,
            Action::DevicesUpdate => Grant::DevicesWrite,
            Action::DevicesStopAll | Action::DevicesRestartAgent => Grant::DevicesControl,
            Action::OperationsList | Action::OperationsRead => Grant::OperationsRead,
            Action::WebhooksList | Action::WebhooksRead | Action::WebhooksListDeliveries => Grant::WebhooksRead,
            Action::WebhooksCreate | Action::WebhooksUpdate | Action::WebhooksDelete | Action::WebhooksTest => {
                Grant::WebhooksWrite
            }
        }
    }

    /// The remote action that it asks a device for.
    pub fn remote(self) -> Option<RemoteAction> {
        match self {
            Action::TunnelsStart => Some(RemoteAction::Start),
            Action::TunnelsStop => Some(RemoteAction::Stop),
            Action::TunnelsRestart => Some(RemoteAction::Restart),
            Action::DevicesStopAll => Some(RemoteAction::StopAll),
            Action::DevicesRestartAgent => Some(RemoteAction::RestartAgent),
            _ => None,
        }
    }
}
