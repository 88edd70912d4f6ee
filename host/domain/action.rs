//! Everything that a request can do, and what it takes to be allowed to.

use super::operation::RemoteAction;
use super::permission::Permission;
use super::string_enum::{StringEnum, string_enum};

string_enum! {
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
        WebhooksResendDelivery "webhooks.resend_delivery",
        WebhooksResendFailed "webhooks.resend_failed",
        KeysCreate "keys.create",
        DevicesCreateCode "devices.create_code",
        DevicesSetMayCreate "devices.set_may_create",
        DevicesRemove "devices.remove",
        TeamsUpdate "teams.update",
        TeamsDelete "teams.delete",
        MembersSetRole "members.set_role",
        MembersRemove "members.remove",
        InvitationsCreate "invitations.create",
        InvitationsRevoke "invitations.revoke",
    }
}

impl Action {
    pub fn name(self) -> &'static str {
        self.as_str()
    }

    /// The API scope that a key needs for it. None where no key may do it, but a person who is signed in.
    pub fn permission(self) -> Option<Permission> {
        Some(match self {
            Action::ServiceRead | Action::AccountRead | Action::UsageRead | Action::ScopePresetsList => {
                Permission::AccountRead
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
            | Action::TunnelsListSessions => Permission::TunnelsRead,
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
            | Action::TunnelsMove => Permission::TunnelsWrite,
            Action::TunnelsStart | Action::TunnelsStop | Action::TunnelsRestart => Permission::TunnelsControl,
            Action::DevicesList | Action::DevicesRead => Permission::DevicesRead,
            Action::DevicesUpdate => Permission::DevicesWrite,
            Action::DevicesStopAll | Action::DevicesRestartAgent => Permission::DevicesControl,
            Action::OperationsList | Action::OperationsRead => Permission::OperationsRead,
            Action::WebhooksList | Action::WebhooksRead | Action::WebhooksListDeliveries => Permission::WebhooksRead,
            Action::WebhooksCreate | Action::WebhooksUpdate | Action::WebhooksDelete | Action::WebhooksTest => {
                Permission::WebhooksWrite
            }
            Action::WebhooksResendDelivery
            | Action::WebhooksResendFailed
            | Action::KeysCreate
            | Action::DevicesCreateCode
            | Action::DevicesSetMayCreate
            | Action::DevicesRemove
            | Action::TeamsUpdate
            | Action::TeamsDelete
            | Action::MembersSetRole
            | Action::MembersRemove
            | Action::InvitationsCreate
            | Action::InvitationsRevoke => return None,
        })
    }

    /// Whether it only takes rights away. Plans are not asked about such an action: a plan that includes nothing must not
    /// keep anybody from it.
    pub fn only_takes_away(self) -> bool {
        matches!(self, Action::DevicesRemove | Action::TeamsDelete | Action::MembersRemove | Action::InvitationsRevoke)
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
