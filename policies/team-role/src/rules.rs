//! The rules, as pure functions of an ask.

use crate::culvert::policy::types::{Denial, Role, Scope};
use crate::exports::culvert::policy::roles::Ask;

const FORBIDDEN: &str = "team_role_forbidden";
const NOT_OWNER: &str = "not_device_owner";

pub const CODES: [(&str, &str); 2] = [
    (
        FORBIDDEN,
        "The caller's role in the Team does not allow this. Members change what they created and control their own \
         devices; ask an owner or admin of the Team.",
    ),
    (
        NOT_OWNER,
        "Only the account that enrolled a device may rename it, turn its remote control off or say what its commands may.",
    ),
];

pub const RULES: [(&str, &str); 8] = [
    ("membership", "The caller must have a role in the Team"),
    ("device-owner", "Only its owner updates a device, and says whether its commands may create tunnels"),
    ("active-member", "A device can be controlled while its owner is in the Team"),
    ("own-tunnel", "Members change and delete the tunnels that they created"),
    ("own-device", "Members control their own devices, and lead no other anywhere"),
    ("webhooks", "Owners and admins change the Team's webhooks"),
    ("membership-changes", "Owners and admins change the Team, its members and its invitations"),
    ("unknown-action", "Members may do nothing that these rules do not name"),
];

/// What only the owner of a device does.
const OF_OWNER: [&str; 2] = ["devices.update", "devices.set_may_create"];

/// The first rule that refuses. In a personal scope there are no roles, and nothing is refused.
pub fn judge(ask: &Ask) -> Option<Denial> {
    if ask.caller.scope == Scope::Personal {
        return None;
    }
    if OF_OWNER.contains(&ask.action.as_str()) {
        return device_owner(ask);
    }
    match ask.caller.role {
        Some(Role::Owner | Role::Admin) => active_member(ask),
        Some(Role::Member) => member(ask),
        None => Some(forbidden("membership", "You have no role in this Team.")),
    }
}

fn device_owner(ask: &Ask) -> Option<Denial> {
    let owned = ask.devices.iter().all(|device| device.owned_by_caller);
    (!owned).then(|| Denial {
        code: NOT_OWNER.into(),
        detail: "Only the owner of a device may update it.".into(),
        rule: "device-owner".into(),
    })
}

fn active_member(ask: &Ask) -> Option<Denial> {
    // To remove it is the way out.
    if ask.action == "devices.remove" {
        return None;
    }
    let active = ask.devices.iter().all(|device| device.owner_active || device.owned_by_caller);
    (!active)
        .then(|| forbidden("active-member", "The device's owner is no longer a member of this Team, or is locked."))
}

fn member(ask: &Ask) -> Option<Denial> {
    match ask.action.as_str() {
        // Members make keys and enrol devices for themselves.
        "tunnels.create" | "keys.create" | "devices.create_code" => None,
        "tunnels.start"
        | "tunnels.stop"
        | "tunnels.restart"
        | "devices.stop_all"
        | "devices.restart_agent"
        | "devices.remove" => own_device(ask),
        // With the devices that lead to the tunnel's target, where it changes.
        "tunnels.update" | "tunnels.create_extra_port" => own_tunnel(ask).or_else(|| own_device(ask)),
        action if action.starts_with("tunnels.") => own_tunnel(ask),
        action if action.starts_with("webhooks.") => {
            Some(forbidden("webhooks", "Only owners and admins change the Team's webhooks."))
        }
        action if ["teams.", "members.", "invitations."].iter().any(|kind| action.starts_with(kind)) => Some(
            forbidden("membership-changes", "Only owners and admins change the Team, its members and its invitations."),
        ),
        _ => Some(forbidden("unknown-action", "Members of the Team may not do this.")),
    }
}

fn own_device(ask: &Ask) -> Option<Denial> {
    let owned = ask.devices.iter().all(|device| device.owned_by_caller);
    (!owned).then(|| forbidden("own-device", "Members of the Team control only their own devices."))
}

fn own_tunnel(ask: &Ask) -> Option<Denial> {
    let created = ask.tunnel.as_ref().is_some_and(|tunnel| tunnel.created_by_caller);
    (!created).then(|| forbidden("own-tunnel", "Members of the Team change only the tunnels that they created."))
}

fn forbidden(rule: &str, detail: &str) -> Denial {
    Denial { code: FORBIDDEN.into(), detail: detail.into(), rule: rule.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::culvert::policy::types::Caller;
    use crate::exports::culvert::policy::roles::{Device, Part, Tunnel};

    const ACTIONS: [&str; 16] = [
        "tunnels.create",
        "tunnels.update",
        "tunnels.create_extra_port",
        "tunnels.delete",
        "tunnels.start",
        "tunnels.stop",
        "devices.update",
        "devices.set_may_create",
        "devices.remove",
        "devices.stop_all",
        "devices.restart_agent",
        "webhooks.create",
        "keys.create",
        "devices.create_code",
        "members.remove",
        "moon.paint",
    ];

    fn ask(scope: Scope, role: Option<Role>, action: &str, created: bool, owned: bool, active: bool) -> Ask {
        let caller = Caller { account_id: String::new(), scope, scope_id: String::new(), role, plan: String::new() };
        let device = Device { id: String::new(), part: Part::Target, owned_by_caller: owned, owner_active: active };
        Ask {
            caller,
            action: action.into(),
            tunnel: Some(Tunnel { id: String::new(), created_by_caller: created }),
            devices: vec![device],
            attributes: Vec::new(),
        }
    }

    /// Every action, role and ownership there is.
    fn every_ask() -> Vec<Ask> {
        let mut asks = Vec::new();
        for action in ACTIONS {
            for role in [None, Some(Role::Owner), Some(Role::Admin), Some(Role::Member)] {
                for bits in 0..8 {
                    asks.push(ask(Scope::Team, role, action, bits & 1 != 0, bits & 2 != 0, bits & 4 != 0));
                }
            }
        }
        asks
    }

    #[test]
    fn device_update_is_allowed_only_to_its_owner() {
        for ask in every_ask().iter().filter(|ask| OF_OWNER.contains(&ask.action.as_str())) {
            assert_eq!(judge(ask).is_none(), ask.devices[0].owned_by_caller);
        }
    }

    #[test]
    fn member_permissions_never_exceed_admin_permissions() {
        for member in every_ask().into_iter().filter(|ask| ask.caller.role == Some(Role::Member)) {
            if member.devices[0].owner_active && judge(&member).is_none() {
                let admin = Caller { role: Some(Role::Admin), ..member.caller.clone() };
                assert!(judge(&Ask { caller: admin, ..member.clone() }).is_none(), "{}", member.action);
            }
        }
    }

    #[test]
    fn caller_without_role_may_only_update_own_device() {
        for ask in every_ask().iter().filter(|ask| ask.caller.role.is_none()) {
            let own_device = OF_OWNER.contains(&ask.action.as_str()) && ask.devices[0].owned_by_caller;
            assert_eq!(judge(ask).is_none(), own_device, "{}", ask.action);
        }
    }

    #[test]
    fn personal_scope_is_exempt_from_role_rules() {
        for action in ACTIONS {
            assert!(judge(&ask(Scope::Personal, None, action, false, false, false)).is_none());
        }
    }
}
