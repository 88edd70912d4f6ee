//! The service, the account, and its usage.

use chrono::{DateTime, Utc};
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use culvert_domain::account::Account;
use culvert_domain::caller::{Caller, Role, ScopeKind};
use culvert_domain::node::{Node, NodeStatus};
use culvert_domain::plan::Entitlement;
use culvert_domain::string_enum::string_enum;
use culvert_domain::usage::{Bandwidth, Traffic, day_start, month_start};

/// Service
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Service")]
pub struct ServiceResponse {
    /// The API's version.
    version: &'static str,
    status: ServiceStatus,
    documentation_url: String,
}

string_enum! {
    /// Whether tunnels can be placed.
    ServiceStatus {
        Available "available",
        Degraded "degraded",
        Maintenance "maintenance",
    }
}

impl ServiceStatus {
    fn of(nodes: &[Node]) -> Self {
        let any = |status| nodes.iter().any(|node| node.shown_status() == status);
        match (any(NodeStatus::Online), any(NodeStatus::Maintenance)) {
            (true, _) => Self::Available,
            (false, true) => Self::Maintenance,
            (false, false) => Self::Degraded,
        }
    }
}

/// Account
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Account")]
pub struct AccountResponse {
    id: Uuid,
    email: Option<String>,
    display_name: String,
    scope: ScopeResponse,
    plan_name: String,
    /// Tunnels that the plan includes; null: unlimited.
    tunnel_limit: Option<u32>,
    /// Bytes that the plan includes in a calendar month (UTC); null: unlimited.
    bandwidth_limit_bytes: Option<u64>,
    created_at: DateTime<Utc>,
}

/// Whose resources the key stands for.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Scope")]
pub struct ScopeResponse {
    r#type: ScopeKind,
    team_id: Option<Uuid>,
    team_name: Option<String>,
    /// The account's role in the Team.
    role: Option<Role>,
}

/// Account usage
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "AccountUsage")]
pub struct UsageResponse {
    active_tunnels: u64,
    total_tunnels: u64,
    bandwidth: BandwidthResponse,
    as_of: DateTime<Utc>,
}

/// Payload, counted on the nodes; at most ten seconds old.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Bandwidth")]
pub struct BandwidthResponse {
    today: TrafficResponse,
    month: TrafficResponse,
}

/// Bytes since a period began.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Traffic")]
pub struct TrafficResponse {
    /// From visitors to the device.
    bytes_in: u64,
    /// From the device to visitors.
    bytes_out: u64,
    bytes_total: u64,
    period_start: DateTime<Utc>,
}

impl BandwidthResponse {
    pub fn new(bandwidth: Bandwidth, now: DateTime<Utc>) -> Self {
        let traffic = |traffic: Traffic, period_start| TrafficResponse {
            bytes_in: traffic.bytes_in,
            bytes_out: traffic.bytes_out,
            bytes_total: traffic.total(),
            period_start,
        };
        Self { today: traffic(bandwidth.today, day_start(now)), month: traffic(bandwidth.month, month_start(now)) }
    }
}

impl ServiceResponse {
    pub fn new(nodes: &[Node], documentation_url: String) -> Self {
        Self { version: "v2", status: ServiceStatus::of(nodes), documentation_url }
    }
}

impl AccountResponse {
    pub fn new(account: Account, caller: &Caller, entitlement: &Entitlement) -> Self {
        let scope = &caller.scope;
        let team = (scope.kind == ScopeKind::Team).then_some(scope);
        Self {
            id: account.id,
            email: Some(account.email),
            display_name: account.name,
            scope: ScopeResponse {
                r#type: scope.kind,
                team_id: team.map(|team| team.id),
                team_name: team.map(|team| team.name.clone()),
                role: caller.role,
            },
            plan_name: scope.plan.clone(),
            tunnel_limit: entitlement.tunnel_limit,
            bandwidth_limit_bytes: entitlement.bandwidth_limit_bytes,
            created_at: account.created_at,
        }
    }
}

impl UsageResponse {
    pub fn new(total_tunnels: u64, active_tunnels: u64, bandwidth: Bandwidth, as_of: DateTime<Utc>) -> Self {
        Self { active_tunnels, total_tunnels, bandwidth: BandwidthResponse::new(bandwidth, as_of), as_of }
    }
}
