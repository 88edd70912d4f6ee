//! Where an answer leads: which requests take what it says.

use serde_json::{Map, Value, json};

use super::names::{operation_id, path_parameters};
use crate::row::Row;
use culvert_domain::action::Action;

/// The record's id; that of a list's first one.
const ID: &str = "$response.body#/data/id";
const FIRST: &str = "$response.body#/data/0/id";
/// The tunnel that the request was about.
const SAME: &str = "$request.path.tunnel_id";

/// From the answers of some endpoints to requests to others.
struct Link {
    from: &'static [Action],
    to: &'static [Action],
    parameters: &'static [(&'static str, &'static str)],
    /// Fields of the request's body.
    body: Option<Value>,
}

fn table() -> Vec<Link> {
    use Action as A;
    vec![
        link(&[A::TunnelsCreate], &OF_A_TUNNEL, &[("tunnel_id", ID)]),
        link(&[A::TunnelsList], &OF_A_TUNNEL, &[("tunnel_id", FIRST)]),
        link(&[A::TunnelsRead], &[A::TunnelsStart], &[("tunnel_id", ID)])
            .with(json!({"device_id": "$response.body#/data/authorized_devices/0/id"})),
        link(&[A::TunnelsRead], &[A::TunnelsBindDevices], &[("tunnel_id", ID)])
            .with(json!({"device_ids": ["$response.body#/data/authorized_devices/0/id"]})),
        link(
            &[A::TunnelsRead],
            &[A::TunnelsDeleteExtraPort],
            &[("tunnel_id", ID), ("port_id", "$response.body#/data/extra_ports/0/id")],
        ),
        link(&[A::TunnelsStart], &[A::TunnelsStop, A::TunnelsRestart], &[("tunnel_id", SAME)]),
        link(&[A::TunnelsCreateExtraPort], &[A::TunnelsDeleteExtraPort], &[("tunnel_id", SAME), ("port_id", ID)]),
        link(&[A::TunnelsListExtraPorts], &[A::TunnelsDeleteExtraPort], &[("tunnel_id", SAME), ("port_id", FIRST)]),
        link(&[A::TunnelsReadDomain], &[A::TunnelsVerifyDomain], &[("tunnel_id", SAME)])
            .with(json!({"domain": "$response.body#/data/domain"})),
        link(&[A::TunnelsReadDomain, A::TunnelsAssignDomain], &[A::TunnelsRemoveDomain], &[("tunnel_id", SAME)]),
        link(&[A::TunnelsVerifyDomain], &[A::TunnelsAssignDomain], &[("tunnel_id", SAME)])
            .with(json!({"domain": "$request.body#/domain"})),
        link(&[A::NodesList], &[A::TunnelsMove], &[]).with(json!({"node_id": FIRST})),
        link(&[A::PresetsList], &[A::TunnelsCreate], &[]).with(json!({"game_preset_id": FIRST})),
        link(
            &[A::DevicesList],
            &[A::DevicesRead, A::DevicesUpdate, A::DevicesStopAll, A::DevicesRestartAgent],
            &[("device_id", FIRST)],
        ),
        link(&[A::DevicesList], &[A::TunnelsStart], &[]).with(json!({"device_id": FIRST})),
        link(&[A::DevicesList], &[A::TunnelsBindDevices], &[]).with(json!({"device_ids": [FIRST]})),
        link(
            &[A::TunnelsStart, A::TunnelsStop, A::TunnelsRestart, A::DevicesStopAll, A::DevicesRestartAgent],
            &[A::OperationsRead],
            &[("operation_id", ID)],
        ),
        link(&[A::OperationsList], &[A::OperationsRead], &[("operation_id", FIRST)]),
        link(&[A::OperationsRead], &[A::TunnelsRead], &[("tunnel_id", "$response.body#/data/tunnel_id")]),
        link(&[A::OperationsRead], &[A::DevicesRead], &[("device_id", "$response.body#/data/device_id")]),
        link(&[A::WebhooksCreate], &OF_A_WEBHOOK, &[("webhook_id", ID)]),
        link(&[A::WebhooksList], &OF_A_WEBHOOK, &[("webhook_id", FIRST)]),
        link(&[A::WebhooksTest], &[A::WebhooksListDeliveries], &[("webhook_id", "$response.body#/data/webhook_id")]),
    ]
}

/// What needs a tunnel's id and no other.
const OF_A_TUNNEL: [Action; 20] = [
    Action::TunnelsRead,
    Action::TunnelsUpdate,
    Action::TunnelsDelete,
    Action::TunnelsBindDevices,
    Action::TunnelsStart,
    Action::TunnelsStop,
    Action::TunnelsRestart,
    Action::TunnelsListExtraPorts,
    Action::TunnelsCreateExtraPort,
    Action::TunnelsReadDomain,
    Action::TunnelsAssignDomain,
    Action::TunnelsRemoveDomain,
    Action::TunnelsVerifyDomain,
    Action::TunnelsReadFirewall,
    Action::TunnelsReplaceFirewall,
    Action::TunnelsReadGeoip,
    Action::TunnelsReplaceGeoip,
    Action::TunnelsMove,
    Action::TunnelsReadUsage,
    Action::TunnelsListSessions,
];

const OF_A_WEBHOOK: [Action; 5] = [
    Action::WebhooksRead,
    Action::WebhooksUpdate,
    Action::WebhooksDelete,
    Action::WebhooksTest,
    Action::WebhooksListDeliveries,
];

fn link(from: &'static [Action], to: &'static [Action], parameters: &'static [(&'static str, &'static str)]) -> Link {
    Link { from, to, parameters, body: None }
}

impl Link {
    fn with(mut self, body: Value) -> Self {
        self.body = Some(body);
        self
    }

    fn leading_to(&self, goal: Action) -> Value {
        let mut link = json!({"operationId": operation_id(goal)});
        for (name, value) in self.parameters {
            link["parameters"][*name] = json!(value);
        }
        if let Some(body) = &self.body {
            link["requestBody"] = body.clone();
        }
        link
    }
}

/// The links of an endpoint's answer, by the operations that they lead to.
pub(super) fn of(row: &Row) -> Map<String, Value> {
    let mut links = Map::new();
    for link in table().iter().filter(|link| link.from.contains(&row.action)) {
        links.extend(link.to.iter().map(|goal| (operation_id(*goal), link.leading_to(*goal))));
    }
    if row.paged {
        links.insert(operation_id(row.action), next_page(row));
    }
    links
}

fn next_page(row: &Row) -> Value {
    let mut link = json!({"operationId": operation_id(row.action), "description": "The next page, if there is one."});
    for name in path_parameters(row.path) {
        link["parameters"][name] = json!(format!("$request.path.{name}"));
    }
    link["parameters"]["cursor"] = json!("$response.body#/meta/next_cursor");
    link
}
