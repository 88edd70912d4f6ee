//! The admin listener of the operator: liveness, readiness, status, metrics, and reload and rollback of the
//! policies.
//!
//! A loopback address does not identify a person, so everything but the health checks requires the token in
//! the data folder. A browser on the same machine can reach the listener too, so requests of web pages are
//! refused.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_domain::error::Chain;
use culvert_wire::clock::Clock;

use salvo::http::StatusCode;
use salvo::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use salvo::writing::{Json, Text};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use serde_json::json;
use subtle::ConstantTimeEq;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::embedded::Embedded;
use crate::policies;
use culvert_policy::serve::generations::Generations;
use culvert_service::Service;
use culvert_service::connected_agents::ConnectedAgents;
use culvert_service::metrics::{Gauges, Metrics};
use culvert_service::policy_rollout::RolloutError;
use culvert_wire::private_dir;

/// The file that holds the operator's token.
pub const TOKEN: &str = "admin.token";
/// Length of the token in characters: 32 bytes in hexadecimal digits.
const TOKEN_LENGTH: usize = 64;

/// What the admin listener needs of the host.
pub struct Admin {
    pub service: Arc<Service>,
    pub policies: Arc<Generations>,
    pub agents: Arc<ConnectedAgents>,
    pub metrics: Arc<Metrics>,
    /// The nodes of this process.
    pub embedded: Arc<Embedded>,
    pub host_id: Uuid,
    /// The token that requests must show, except on the paths that need none.
    pub token: String,
    /// Whether `/metrics` needs no token.
    pub metrics_open: bool,
    pub is_loopback: bool,
    /// The configuration file, which a reload reads again.
    pub config_file: Option<PathBuf>,
    pub geoip_database: Option<PathBuf>,
}

impl Admin {
    /// The current values of the gauges, for `/metrics`.
    pub fn gauges(&self) -> Gauges {
        let (tunnels, visitors) = self.service.nodes().load();
        let count = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        Gauges {
            agents: self.agents.count(),
            tunnels: count(tunnels),
            visitors: count(visitors),
            buffer_bytes: self.embedded.buffer_bytes(),
            nodes: self.service.nodes().levels(),
            fleet: self.service.fleet().levels(),
        }
    }
}

pub fn service(admin: &Arc<Admin>) -> salvo::Service {
    let router = Router::new()
        .push(Router::with_path("healthz").get(Alive))
        .push(Router::with_path("readyz").get(Ready(admin.clone())))
        .push(Router::with_path("status").get(Status(admin.clone())))
        .push(Router::with_path("metrics").get(ShowMetrics(admin.clone())))
        .push(Router::with_path("policies").get(Policies(admin.clone())))
        .push(Router::with_path("policies/reload").post(Reload(admin.clone())))
        .push(Router::with_path("policies/rollback").post(Rollback(admin.clone())));
    salvo::Service::new(router)
        .hoop(RejectBrowserRequests { loopback: admin.is_loopback })
        .hoop(OperatorsOnly { token: admin.token.clone(), metrics_open: admin.metrics_open })
}

/// The operator's token, from the data folder. It is created at the first start.
///
/// # Errors
///
/// If the token file cannot be read or created.
pub fn token(data_dir: &Path, clock: &Clock) -> io::Result<String> {
    let path = data_dir.join(TOKEN);
    match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let token = hex::encode(clock.random::<32>());
            private_dir::create_file(&path, &token)?;
            Ok(token)
        }
        read => match read?.trim() {
            // A full disk can leave an incomplete file.
            token if token.len() < TOKEN_LENGTH => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "it holds no token; delete it, and a new one is made"))
            }
            token => Ok(token.to_owned()),
        },
    }
}

/// Refuses requests without the token, except on the paths that need none.
struct OperatorsOnly {
    token: String,
    metrics_open: bool,
}

#[async_trait]
impl Handler for OperatorsOnly {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        let is_open = match req.uri().path() {
            "/healthz" | "/readyz" => true,
            "/metrics" => self.metrics_open,
            _ => false,
        };
        if !is_open && !self.shows_token(req) {
            refuse(
                res,
                StatusCode::UNAUTHORIZED,
                "the token in <data_dir>/admin.token is needed, as `Authorization: Bearer`",
            );
            res.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            ctrl.skip_rest();
        }
    }
}

impl OperatorsOnly {
    fn shows_token(&self, req: &Request) -> bool {
        let shown = req.headers().get(AUTHORIZATION).and_then(|header| header.to_str().ok());
        let shown = shown.and_then(|header| header.strip_prefix("Bearer "));
        shown.is_some_and(|shown| shown.as_bytes().ct_eq(self.token.as_bytes()).into())
    }
}

/// Refuses requests that a browser sends for a web page: they have an `Origin` header, or the page's name in
/// `Host`.
struct RejectBrowserRequests {
    loopback: bool,
}

#[async_trait]
impl Handler for RejectBrowserRequests {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, ctrl: &mut FlowCtrl) {
        if req.headers().contains_key(ORIGIN) || (self.loopback && !is_address(req)) {
            refuse(res, StatusCode::FORBIDDEN, "no page may ask this; ask by address, or as localhost");
            ctrl.skip_rest();
        }
    }
}

/// Whether the `Host` header has an IP address or `localhost`. A page whose own name resolves to this machine
/// (DNS rebinding) has that name in it.
fn is_address(req: &Request) -> bool {
    let host = req.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
        .map_or(host, |(name, _)| name);
    name == "localhost" || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

fn refuse(res: &mut Response, status: StatusCode, problem: &str) {
    res.status_code(status);
    res.render(Json(json!({ "problem": problem })));
}

struct Alive;

#[async_trait]
impl Handler for Alive {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        res.render(Text::Plain("ok\n"));
    }
}

/// Readiness: whether the host reaches its database, and has the policies that decide.
struct Ready(Arc<Admin>);

#[async_trait]
impl Handler for Ready {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let ready = async {
            self.0.service.check_ready()?;
            self.0.service.listed_nodes().await
        };
        match ready.await {
            Ok(_) => res.render(Text::Plain("ready\n")),
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "not ready");
                res.status_code(StatusCode::SERVICE_UNAVAILABLE);
                res.render(Text::Plain(format!("not ready: {error}\n")));
            }
        }
    }
}

/// The host's status: `{version, host_id, node_ids, geoip: {database, built_at, age_seconds}|null}`.
struct Status(Arc<Admin>);

#[async_trait]
impl Handler for Status {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let admin = &self.0;
        let geoip = admin.embedded.countries.built_at().map(|built_at| {
            let age = (admin.service.clock().now() - built_at).num_seconds().max(0);
            json!({"database": admin.geoip_database, "built_at": built_at, "age_seconds": age})
        });
        res.render(Json(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "host_id": admin.host_id,
            "node_ids": admin.service.nodes().ids(),
            "geoip": geoip,
        })));
    }
}

struct ShowMetrics(Arc<Admin>);

#[async_trait]
impl Handler for ShowMetrics {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        res.render(Text::Plain(self.0.metrics.text(&self.0.gauges())));
        let format = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
        res.headers_mut().insert(CONTENT_TYPE, format);
    }
}

/// The active policies: [`culvert_policy::serve::status::Status`], with `hosts: [{name, generation}]`, the others that are alive.
struct Policies(Arc<Admin>);

#[async_trait]
impl Handler for Policies {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let hosts = self.0.service.policies_of_hosts().await.unwrap_or_else(|error| {
            tracing::warn!(error = %Chain(&error), "the policies of the other hosts are not known");
            Vec::new()
        });
        let hosts = hosts.into_iter().map(|(name, generation)| json!({"name": name, "generation": generation}));
        let mut status = json!(self.0.policies.status());
        status["hosts"] = hosts.collect();
        res.render(Json(status));
    }
}

/// Reloads the policies. Answers `{generation}` of the new set, or 409 with `{problem}`.
struct Reload(Arc<Admin>);

#[async_trait]
impl Handler for Reload {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let admin = self.0.clone();
        // The reload has its own task, so that it completes even if the client disconnects.
        let reload = async move { policies::reload(&admin.service, admin.config_file.as_deref()).await };
        answer(res, tokio::spawn(reload)).await;
    }
}

/// Returns to the former policies. Answers as [`Reload`] does.
struct Rollback(Arc<Admin>);

#[async_trait]
impl Handler for Rollback {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let admin = self.0.clone();
        answer(res, tokio::spawn(async move { admin.service.rollback_policies().await })).await;
    }
}

async fn answer(res: &mut Response, rollout: JoinHandle<Result<u64, RolloutError>>) {
    match rollout.await {
        Ok(Ok(generation)) => res.render(Json(json!({ "generation": generation }))),
        Ok(Err(problem)) => refuse(res, StatusCode::CONFLICT, &problem.to_string()),
        Err(panic) => refuse(res, StatusCode::CONFLICT, &panic.to_string()),
    }
}
