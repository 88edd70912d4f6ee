//! The table of pages.

use culvert_domain::error::Result;
use futures_util::future::BoxFuture;
use maud::Markup;

use crate::path::{Named, matches};
use crate::visit::Visit;
use crate::{
    access, account, audit, delivery, device, devices, domain, explain, keys, new_tunnel, operations, operator,
    overview, policies, ports, search, sessions, team, tunnel_settings, tunnels, usage, webhook, webhooks,
};

/// One page, below `/dashboard`.
pub struct Page {
    /// `{s}` is `me` or the id of a Team, `{id}` an id.
    pub path: &'static str,
    pub(crate) view: View,
}

type View = for<'v> fn(&'v Visit) -> BoxFuture<'v, Result<Markup>>;

pub const PAGES: &[Page] = &[
    page("{s}", |visit| Box::pin(overview::show(visit))),
    page("{s}/tunnels", |visit| Box::pin(tunnels::list(visit))),
    page("{s}/tunnels/new", |visit| Box::pin(new_tunnel::show(visit))),
    page("{s}/tunnels/{id}", |visit| Box::pin(tunnels::show(visit))),
    page("{s}/tunnels/{id}/settings", |visit| Box::pin(tunnel_settings::show(visit))),
    page("{s}/tunnels/{id}/sessions", |visit| Box::pin(sessions::list(visit))),
    page("{s}/tunnels/{id}/access", |visit| Box::pin(access::show(visit))),
    page("{s}/tunnels/{id}/ports", |visit| Box::pin(ports::show(visit))),
    page("{s}/tunnels/{id}/domain", |visit| Box::pin(domain::show(visit))),
    page("{s}/devices", |visit| Box::pin(devices::list(visit))),
    page("{s}/devices/{id}", |visit| Box::pin(device::show(visit))),
    page("{s}/operations", |visit| Box::pin(operations::list(visit))),
    page("{s}/operations/{id}", |visit| Box::pin(operations::show(visit))),
    page("{s}/webhooks", |visit| Box::pin(webhooks::list(visit))),
    page("{s}/webhooks/{id}", |visit| Box::pin(webhook::show(visit))),
    page("{s}/webhooks/{id}/deliveries/{id}", |visit| Box::pin(delivery::show(visit))),
    page("{s}/usage", |visit| Box::pin(usage::show(visit))),
    page("{s}/keys", |visit| Box::pin(keys::list(visit))),
    page("{s}/policies", |visit| Box::pin(policies::show(visit))),
    page("{s}/explain", |visit| Box::pin(explain::list(visit))),
    page("{s}/explain/{id}", |visit| Box::pin(explain::show(visit))),
    page("{s}/audit", |visit| Box::pin(audit::list(visit))),
    page("{s}/search", |visit| Box::pin(search::show(visit))),
    page("{s}/team", |visit| Box::pin(team::show(visit))),
    page("operator/accounts", |visit| Box::pin(operator::accounts::list(visit))),
    page("operator/teams", |visit| Box::pin(operator::teams::show(visit))),
    page("operator/health", |visit| Box::pin(operator::health::show(visit))),
    page("operator/nodes", |visit| Box::pin(operator::nodes::list(visit))),
    page("operator/policies", |visit| Box::pin(std::future::ready(operator::policies::show(visit)))),
    page("operator/policies/shadows", |visit| Box::pin(std::future::ready(operator::shadows::show(visit)))),
    page("account", |visit| Box::pin(account::show(visit))),
    #[cfg(debug_assertions)]
    page("gallery", |visit| Box::pin(std::future::ready(crate::gallery::show(visit)))),
];

const fn page(path: &'static str, view: View) -> Page {
    Page { path, view }
}

pub(crate) fn find(path: &str) -> Option<(&'static Page, Named)> {
    PAGES.iter().find_map(|page| Some((page, matches(page.path, path)?)))
}

pub(crate) fn by_pattern(pattern: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.path == pattern)
}
