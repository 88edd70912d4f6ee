//! The API, one row an endpoint: method, path, what it is, whether an Idempotency-Key names its
//! effect, and the handler, whose types say what it takes and what it answers.

use std::sync::Arc;

use salvo::Router;
use salvo::http::Method;

use super::endpoint::Endpoint;
use super::row::{Row, delete, get, patch, post, put};
use super::{access, account, catalog, devices, domains, operations, ports, tunnels, webhooks};
use crate::Api;
use culvert_domain::action::Action;

/// Every endpoint of the API.
#[expect(clippy::too_many_lines, reason = "it is a table")]
pub fn table() -> Vec<Row> {
    use Action as A;
    vec![
        get("/", A::ServiceRead, "Service status", account::service),
        get("/account", A::AccountRead, "Read the account", account::read),
        get("/account/usage", A::UsageRead, "Read the account's usage", account::usage),
        get("/nodes", A::NodesList, "List nodes", catalog::nodes),
        get("/presets", A::PresetsList, "List presets", catalog::presets),
        get("/domains", A::DomainsList, "List platform domains", catalog::domains),
        get("/scope-presets", A::ScopePresetsList, "List scope presets", catalog::scope_presets),
        get("/tunnels", A::TunnelsList, "List tunnels", tunnels::list),
        post("/tunnels", A::TunnelsCreate, "Create a tunnel", tunnels::create).idempotent(),
        get("/tunnels/{tunnel_id}", A::TunnelsRead, "Read a tunnel", tunnels::read),
        patch("/tunnels/{tunnel_id}", A::TunnelsUpdate, "Change a tunnel", tunnels::update),
        delete("/tunnels/{tunnel_id}", A::TunnelsDelete, "Delete a tunnel", tunnels::delete).idempotent(),
        put("/tunnels/{tunnel_id}/devices", A::TunnelsBindDevices, "Replace the device allowlist", tunnels::bind)
            .idempotent(),
        post("/tunnels/{tunnel_id}/actions/start", A::TunnelsStart, "Start a tunnel", tunnels::start).idempotent(),
        post("/tunnels/{tunnel_id}/actions/stop", A::TunnelsStop, "Stop a tunnel", tunnels::stop).idempotent(),
        post("/tunnels/{tunnel_id}/actions/restart", A::TunnelsRestart, "Restart a tunnel", tunnels::restart)
            .idempotent(),
        get("/tunnels/{tunnel_id}/extra-ports", A::TunnelsListExtraPorts, "List extra ports", ports::list),
        post("/tunnels/{tunnel_id}/extra-ports", A::TunnelsCreateExtraPort, "Add an extra port", ports::create)
            .idempotent(),
        delete(
            "/tunnels/{tunnel_id}/extra-ports/{port_id}",
            A::TunnelsDeleteExtraPort,
            "Remove an extra port",
            ports::delete,
        )
        .idempotent(),
        get("/tunnels/{tunnel_id}/domain", A::TunnelsReadDomain, "Read the custom domain", domains::read),
        put("/tunnels/{tunnel_id}/domain", A::TunnelsAssignDomain, "Assign a verified domain", domains::assign)
            .idempotent(),
        delete("/tunnels/{tunnel_id}/domain", A::TunnelsRemoveDomain, "Remove the custom domain", domains::remove)
            .idempotent(),
        post(
            "/tunnels/{tunnel_id}/domain/actions/verify",
            A::TunnelsVerifyDomain,
            "Look for a domain's CNAME",
            domains::verify,
        )
        .idempotent(),
        get("/tunnels/{tunnel_id}/firewall", A::TunnelsReadFirewall, "Read the firewall rules", access::firewall),
        put(
            "/tunnels/{tunnel_id}/firewall",
            A::TunnelsReplaceFirewall,
            "Replace the firewall rules",
            access::replace_firewall,
        )
        .idempotent(),
        get("/tunnels/{tunnel_id}/geoip", A::TunnelsReadGeoip, "Read the GeoIP rules", access::geoip),
        put("/tunnels/{tunnel_id}/geoip", A::TunnelsReplaceGeoip, "Replace the GeoIP rules", access::replace_geoip)
            .idempotent(),
        post("/tunnels/{tunnel_id}/move", A::TunnelsMove, "Move a tunnel to another node", tunnels::move_to)
            .idempotent(),
        get("/tunnels/{tunnel_id}/usage", A::TunnelsReadUsage, "Read a tunnel's usage", tunnels::usage),
        get("/tunnels/{tunnel_id}/sessions", A::TunnelsListSessions, "List a tunnel's sessions", tunnels::sessions),
        get("/devices", A::DevicesList, "List devices", devices::list),
        get("/devices/{device_id}", A::DevicesRead, "Read a device", devices::read),
        patch("/devices/{device_id}", A::DevicesUpdate, "Change a device", devices::update),
        post(
            "/devices/{device_id}/actions/stop-all",
            A::DevicesStopAll,
            "Stop every tunnel on a device",
            devices::stop_all,
        )
        .idempotent(),
        post(
            "/devices/{device_id}/actions/restart-agent",
            A::DevicesRestartAgent,
            "Restart a device's agent",
            devices::restart_agent,
        )
        .idempotent(),
        get("/operations", A::OperationsList, "List operations", operations::list),
        get("/operations/{operation_id}", A::OperationsRead, "Read an operation", operations::read),
        get("/webhooks", A::WebhooksList, "List webhook endpoints", webhooks::list),
        post("/webhooks", A::WebhooksCreate, "Create a webhook endpoint", webhooks::create).idempotent(),
        get("/webhooks/{webhook_id}", A::WebhooksRead, "Read a webhook endpoint", webhooks::read),
        patch("/webhooks/{webhook_id}", A::WebhooksUpdate, "Change a webhook endpoint", webhooks::update),
        delete("/webhooks/{webhook_id}", A::WebhooksDelete, "Delete a webhook endpoint", webhooks::delete).idempotent(),
        post("/webhooks/{webhook_id}/test", A::WebhooksTest, "Send a test event", webhooks::test).idempotent(),
        get(
            "/webhooks/{webhook_id}/deliveries",
            A::WebhooksListDeliveries,
            "List delivery attempts",
            webhooks::deliveries,
        ),
    ]
}

/// The table as routes under `/v2`.
pub fn router(api: &Arc<Api>) -> Router {
    let mut router = Router::with_path("v2");
    for row in table() {
        let method = row.method.clone();
        let route = match row.path.trim_start_matches('/') {
            "" => Router::new(),
            path => Router::with_path(path),
        };
        let goal = Endpoint { api: api.clone(), row: Arc::new(row) };
        router = router.push(match method {
            Method::POST => route.post(goal),
            Method::PUT => route.put(goal),
            Method::PATCH => route.patch(goal),
            Method::DELETE => route.delete(goal),
            // RFC 9110, section 9.1: what answers GET answers HEAD.
            _ => route.get(goal.clone()).head(goal),
        });
    }
    router
}
