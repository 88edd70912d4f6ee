//! The table of forms: what each of them does.

use culvert_domain::error::Result;
use futures_util::future::BoxFuture;

use crate::answer::Answer;
use crate::path::{Named, matches};
use crate::visit::{Posted, Visit};
use crate::{
    access, account, audit_export, delivery, device, devices, domain, keys, new_tunnel, operator, passkeys, ports,
    providers, second_factor, team, tunnel_settings, tunnels, webhook, webhooks, welcome,
};

/// A form that is posted to a path below `/dashboard`.
pub struct Act {
    /// As in the table of pages.
    pub path: &'static str,
    /// The page that is shown again if it is refused.
    pub page: &'static str,
    /// Whether the person must have just proved who it is.
    pub needs_elevation: bool,
    pub(crate) run: Run,
}

type Run = for<'v> fn(&'v Visit, Posted) -> BoxFuture<'v, Result<Answer>>;

pub const ACTIONS: &[Act] = &[
    act("{s}/tunnels", "{s}/tunnels/new", |visit, posted| Box::pin(new_tunnel::create(visit, posted))),
    act("{s}/tunnels/{id}/start", "{s}/tunnels/{id}", |visit, posted| Box::pin(tunnels::start(visit, posted))),
    act("{s}/tunnels/{id}/stop", "{s}/tunnels/{id}", |visit, posted| Box::pin(tunnels::stop(visit, posted))),
    act("{s}/tunnels/{id}/restart", "{s}/tunnels/{id}", |visit, posted| Box::pin(tunnels::restart(visit, posted))),
    act("{s}/tunnels/{id}/delete", "{s}/tunnels/{id}/settings", |visit, posted| {
        Box::pin(tunnel_settings::delete(visit, posted))
    }),
    act("{s}/tunnels/{id}/settings", "{s}/tunnels/{id}/settings", |visit, posted| {
        Box::pin(tunnel_settings::change(visit, posted))
    }),
    act("{s}/tunnels/{id}/devices", "{s}/tunnels/{id}/settings", |visit, posted| {
        Box::pin(tunnel_settings::bind(visit, posted))
    }),
    act("{s}/tunnels/{id}/move", "{s}/tunnels/{id}/settings", |visit, posted| {
        Box::pin(tunnel_settings::move_to(visit, posted))
    }),
    act("{s}/tunnels/{id}/access/addresses", "{s}/tunnels/{id}/access", |visit, posted| {
        Box::pin(access::save_addresses(visit, posted))
    }),
    act("{s}/tunnels/{id}/access/countries", "{s}/tunnels/{id}/access", |visit, posted| {
        Box::pin(access::save_countries(visit, posted))
    }),
    act("{s}/tunnels/{id}/ports", "{s}/tunnels/{id}/ports", |visit, posted| Box::pin(ports::create(visit, posted))),
    act("{s}/tunnels/{id}/ports/{id}/delete", "{s}/tunnels/{id}/ports", |visit, posted| {
        Box::pin(ports::delete(visit, posted))
    }),
    act("{s}/tunnels/{id}/domain/verify", "{s}/tunnels/{id}/domain", |visit, posted| {
        Box::pin(domain::verify(visit, posted))
    }),
    act("{s}/tunnels/{id}/domain/assign", "{s}/tunnels/{id}/domain", |visit, posted| {
        Box::pin(domain::assign(visit, posted))
    }),
    act("{s}/tunnels/{id}/domain/remove", "{s}/tunnels/{id}/domain", |visit, posted| {
        Box::pin(domain::remove(visit, posted))
    }),
    act("{s}/devices/code", "{s}/devices", |visit, posted| Box::pin(devices::create_code(visit, posted))),
    act("{s}/devices/{id}/rename", "{s}/devices/{id}", |visit, posted| Box::pin(device::rename(visit, posted))),
    act("{s}/devices/{id}/stop-all", "{s}/devices/{id}", |visit, posted| Box::pin(device::stop_all(visit, posted))),
    act("{s}/devices/{id}/restart-agent", "{s}/devices/{id}", |visit, posted| {
        Box::pin(device::restart_agent(visit, posted))
    }),
    elevated("{s}/devices/{id}/may-create", "{s}/devices/{id}", |visit, posted| {
        Box::pin(device::set_may_create(visit, posted))
    }),
    elevated("{s}/devices/{id}/remove", "{s}/devices/{id}", |visit, posted| Box::pin(device::remove(visit, posted))),
    act("{s}/devices/{id}/remote-control-off", "{s}/devices", |visit, posted| {
        Box::pin(devices::turn_remote_control_off(visit, posted))
    }),
    act("{s}/webhooks", "{s}/webhooks", |visit, posted| Box::pin(webhooks::create(visit, posted))),
    act("{s}/webhooks/{id}/settings", "{s}/webhooks/{id}", |visit, posted| {
        Box::pin(webhook::save_settings(visit, posted))
    }),
    act("{s}/webhooks/{id}/status", "{s}/webhooks/{id}", |visit, posted| Box::pin(webhook::set_status(visit, posted))),
    act("{s}/webhooks/{id}/test", "{s}/webhooks/{id}", |visit, posted| Box::pin(webhook::test(visit, posted))),
    act("{s}/webhooks/{id}/deliveries/{id}/resend", "{s}/webhooks/{id}", |visit, posted| {
        Box::pin(webhook::resend(visit, posted))
    }),
    act("{s}/webhooks/{id}/deliveries/{id}/payload", "{s}/webhooks/{id}/deliveries/{id}", |visit, posted| {
        Box::pin(delivery::read_payload(visit, posted))
    }),
    act("{s}/webhooks/{id}/deliveries/{id}/signature", "{s}/webhooks/{id}/deliveries/{id}", |visit, posted| {
        Box::pin(delivery::check_signature(visit, posted))
    }),
    act("{s}/webhooks/{id}/resend", "{s}/webhooks/{id}", |visit, posted| {
        Box::pin(webhook::resend_what_failed(visit, posted))
    }),
    act("{s}/webhooks/{id}/delete", "{s}/webhooks/{id}", |visit, posted| Box::pin(webhook::delete(visit, posted))),
    elevated("{s}/keys", "{s}/keys", |visit, posted| Box::pin(keys::create(visit, posted))),
    act("{s}/keys/{id}/revoke", "{s}/keys", |visit, posted| Box::pin(keys::revoke(visit, posted))),
    act("{s}/audit/export", "{s}/audit", |visit, posted| Box::pin(audit_export::export(visit, posted))),
    act("{s}/team", "{s}/team", |visit, posted| Box::pin(team::create(visit, posted))),
    elevated("{s}/team/name", "{s}/team", |visit, posted| Box::pin(team::rename(visit, posted))),
    elevated("{s}/team/delete", "{s}/team", |visit, posted| Box::pin(team::delete(visit, posted))),
    act("{s}/team/leave", "{s}/team", |visit, posted| Box::pin(team::leave(visit, posted))),
    elevated("{s}/team/members/{id}/role", "{s}/team", |visit, posted| Box::pin(team::set_role(visit, posted))),
    elevated("{s}/team/members/{id}/remove", "{s}/team", |visit, posted| Box::pin(team::remove(visit, posted))),
    elevated("{s}/team/invitations", "{s}/team", |visit, posted| Box::pin(team::invite(visit, posted))),
    elevated("{s}/team/invitations/{id}/revoke", "{s}/team", |visit, posted| {
        Box::pin(team::revoke_invitation(visit, posted))
    }),
    elevated("operator/accounts", "operator/accounts", |visit, posted| {
        Box::pin(operator::accounts::create(visit, posted))
    }),
    elevated("operator/accounts/{id}/link", "operator/accounts", |visit, posted| {
        Box::pin(operator::accounts::link(visit, posted))
    }),
    elevated("operator/accounts/{id}/plan", "operator/accounts", |visit, posted| {
        Box::pin(operator::accounts::set_plan(visit, posted))
    }),
    elevated("operator/accounts/{id}/operator", "operator/accounts", |visit, posted| {
        Box::pin(operator::accounts::set_operator(visit, posted))
    }),
    elevated("operator/accounts/{id}/lock", "operator/accounts", |visit, posted| {
        Box::pin(operator::accounts::set_locked(visit, posted))
    }),
    elevated("operator/teams/{id}/plan", "operator/teams", |visit, posted| {
        Box::pin(operator::teams::set_plan(visit, posted))
    }),
    elevated("operator/nodes/{id}/status", "operator/nodes", |visit, posted| {
        Box::pin(operator::nodes::set_status(visit, posted))
    }),
    elevated("operator/policies/plan", "operator/policies", |visit, posted| {
        Box::pin(operator::policy_plan::show(visit, posted))
    }),
    elevated("operator/policies/reload", "operator/policies", |visit, posted| {
        Box::pin(operator::policies::reload(visit, posted))
    }),
    elevated("operator/policies/rollback", "operator/policies", |visit, posted| {
        Box::pin(operator::policies::roll_back(visit, posted))
    }),
    act("account/join", "account", |visit, posted| Box::pin(welcome::join(visit, posted))),
    elevated("account/profile", "account", |visit, posted| Box::pin(account::change_profile(visit, posted))),
    act("account/password", "account", |visit, posted| Box::pin(account::set_password(visit, posted))),
    elevated("account/second-factor", "account", |visit, posted| Box::pin(second_factor::begin(visit, posted))),
    act("account/second-factor/confirm", "account", |visit, posted| Box::pin(second_factor::confirm(visit, posted))),
    elevated("account/second-factor/recovery-codes", "account", |visit, posted| {
        Box::pin(second_factor::new_recovery_codes(visit, posted))
    }),
    elevated("account/second-factor/off", "account", |visit, posted| {
        Box::pin(second_factor::switch_off(visit, posted))
    }),
    elevated("account/passkeys", "account", |visit, posted| Box::pin(passkeys::add(visit, posted))),
    elevated("account/passkeys/{id}/remove", "account", |visit, posted| Box::pin(passkeys::remove(visit, posted))),
    elevated("account/oidc/unlink", "account", |visit, posted| Box::pin(providers::unlink(visit, posted))),
    act("account/confirm", "account", |visit, posted| Box::pin(account::confirm(visit, posted))),
    act("account/confirm-by-passkey", "account", |visit, posted| Box::pin(account::confirm_by_passkey(visit, posted))),
    elevated("account/sign-ins/{id}/end", "account", |visit, posted| Box::pin(account::end_sign_in(visit, posted))),
    elevated("account/sign-ins/end-others", "account", |visit, posted| Box::pin(account::end_others(visit, posted))),
];

const fn act(path: &'static str, page: &'static str, run: Run) -> Act {
    Act { path, page, needs_elevation: false, run }
}

const fn elevated(path: &'static str, page: &'static str, run: Run) -> Act {
    Act { path, page, needs_elevation: true, run }
}

pub(crate) fn find(path: &str) -> Option<(&'static Act, Named)> {
    ACTIONS.iter().find_map(|act| Some((act, matches(act.path, path)?)))
}
