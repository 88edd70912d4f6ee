//! The pages that a host serves to people: the dashboard for those who are signed in, and the documentation for everybody
//! ([`docs`]).
//!
//! The dashboard changes things by the use cases and through the gate of the API;
//! what only people may do, no API key can.
//!
//! A request passes, in this order: the host name, the origin, the sign-in, its limits, the route and the scope, the form and
//! its key (`handler.rs`). [`pages`] is the table of pages, [`actions`] that of forms.

#![deny(unsafe_code)]
#![warn(unreachable_pub)]

mod access;
mod account;
pub mod actions;
mod answer;
mod assets;
mod audit;
mod audit_export;
mod cookie;
mod delivery;
mod device;
mod devices;
pub mod docs;
mod domain;
mod entrance;
mod explain;
mod form;
#[cfg(debug_assertions)]
mod gallery;
mod handler;
mod held_form;
mod hours;
mod keys;
mod live;
mod mail;
mod new_tunnel;
mod oidc;
mod operations;
mod operator;
mod origin;
mod overview;
pub mod pages;
mod passkeys;
mod path;
mod policies;
mod ports;
mod providers;
mod public_form;
mod requests;
mod search;
mod second_factor;
mod sessions;
mod sign_in;
mod team;
mod tunnel_settings;
mod tunnels;
mod usage;
mod view;
mod visit;
mod webhook;
mod webhooks;
mod welcome;

use std::net::IpAddr;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use culvert_domain::access::Country;
use culvert_domain::error::Code;
use culvert_domain::sign_in::RequireSecondFactor;
use culvert_service::Service;
use culvert_service::connected_agents::ConnectedAgents;
use culvert_service::mails::Mails;
use culvert_service::refusals::Refusals;
use culvert_service::scope_changes::ScopeChanges;
use culvert_service::sign_ins::SignIns;
use futures_util::future::BoxFuture;
use ipnet::IpNet;
use salvo::Router;
use salvo::http::StatusCode;

use handler::Pages;
pub use live::Streams;
pub use oidc::CALLBACK as OIDC_CALLBACK;
pub use operator::policy_plan::{ChangedDecisions, WouldChange};
pub use origin::Site;
pub use providers::SignInProvider;
pub use requests::ApiRequests;

/// What the pages are served with.
pub struct Dashboard {
    pub service: Arc<Service>,
    pub sign_ins: SignIns,
    pub refusals: Arc<Refusals>,
    pub changes: Arc<ScopeChanges>,
    pub streams: Arc<Streams>,
    pub exports: Arc<audit_export::Exports>,
    pub site: Site,
    pub require_second_factor: RequireSecondFactor,
    /// URL under which agents reach the host.
    pub public_url: String,
    pub docs_url: String,
    /// Networks whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    pub mails: Arc<Mails>,
    /// Providers at which people sign in.
    pub providers: Vec<SignInProvider>,
    /// What pages tell of the API.
    pub requests: ApiRequests,
    /// The countries of visitors' addresses, as the nodes of this host know them.
    pub countries: Box<dyn CountryDatabase>,
    /// The agents that are connected to this host.
    pub agents: Arc<ConnectedAgents>,
    /// What is unwise of the configuration.
    pub warnings: Vec<String>,
    /// Loads the policies that the configuration names by now; their generation, or why those in use stay.
    pub reload_policies: Box<dyn Fn() -> BoxFuture<'static, Result<u64, String>> + Send + Sync>,
    /// Tells what a reload would change now, or why it would fail.
    pub plan_policies: Box<dyn Fn() -> BoxFuture<'static, Result<WouldChange, String>> + Send + Sync>,
    /// The HTTP status of a code, as the API answers it.
    pub status_of: fn(&Code) -> StatusCode,
}

/// The country database of the nodes.
pub trait CountryDatabase: Send + Sync {
    fn of(&self, address: IpAddr) -> Option<Country>;
    /// When it was built; none where there is no database.
    fn built_at(&self) -> Option<DateTime<Utc>>;
}

/// Where the pages are.
pub const ROOT: &str = "/dashboard";

/// The routes of the dashboard. The files that its pages need are served beside the documentation.
pub fn router(dashboard: &Arc<Dashboard>) -> Router {
    Router::with_path("dashboard/{**rest}").goal(Pages(dashboard.clone()))
}
