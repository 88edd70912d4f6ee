//! The rules, as pure functions of a plan and an ask.

use crate::culvert::policy::types::Denial;
use crate::exports::culvert::policy::plans::Ask;
use crate::plan::Plan;

const NOT_AVAILABLE: &str = "feature_not_available";
const LIMIT_REACHED: &str = "plan_limit_reached";

pub const CODES: [(&str, &str); 2] = [
    (
        NOT_AVAILABLE,
        "The plan does not include this feature. Do not retry and do not rotate the key: the same key works \
         again once the plan includes the feature.",
    ),
    (
        LIMIT_REACHED,
        "The plan's number of tunnels, extra ports or webhook endpoints is used up. Delete one, or change the plan.",
    ),
];

pub const RULES: [(&str, &str); 7] = [
    ("api-access", "The plan must include the API"),
    ("remote-action", "The plan must include the remote action"),
    ("tunnel-limit", "The plan's number of tunnels"),
    ("premium-network", "The plan must include the premium network"),
    ("custom-domain", "The plan must include custom domains"),
    ("extra-port-limit", "The plan's number of extra ports of a tunnel"),
    ("webhook-limit", "The plan's number of webhook endpoints"),
];

/// The first rule that refuses, in the order of [`RULES`].
pub fn judge(plan: Option<&Plan>, ask: &Ask) -> Option<Denial> {
    // A plan that is not known here is another module's: the host refuses one that no module knows.
    let plan = plan?;
    if !plan.api_access {
        return Some(unavailable("api-access", "API access"));
    }
    remote_action(plan, ask)
        .or_else(|| tunnel_limit(plan, ask))
        .or_else(|| premium_network(plan, ask))
        .or_else(|| custom_domain(plan, ask))
        .or_else(|| extra_port_limit(plan, ask))
        .or_else(|| webhook_limit(plan, ask))
}

fn remote_action(plan: &Plan, ask: &Ask) -> Option<Denial> {
    let remote = match ask.action.as_str() {
        "tunnels.start" => "start",
        "tunnels.stop" => "stop",
        "tunnels.restart" => "restart",
        "devices.stop_all" => "stop_all",
        "devices.restart_agent" => "restart_agent",
        _ => return None,
    };
    (!plan.allows_remote(remote)).then(|| unavailable("remote-action", &format!("the remote action `{remote}`")))
}

fn tunnel_limit(plan: &Plan, ask: &Ask) -> Option<Denial> {
    let limit = plan.tunnel_limit.filter(|limit| ask.action == "tunnels.create" && ask.usage.tunnels >= *limit)?;
    Some(reached("tunnel-limit", format!("The plan includes {limit} tunnels; {} exist.", ask.usage.tunnels)))
}

fn premium_network(plan: &Plan, ask: &Ask) -> Option<Denial> {
    (ask.wants.premium_network && !plan.premium_network)
        .then(|| unavailable("premium-network", "the premium network (`pro_network`)"))
}

fn custom_domain(plan: &Plan, ask: &Ask) -> Option<Denial> {
    let asked = matches!(ask.action.as_str(), "tunnels.assign_domain" | "tunnels.verify_domain");
    (asked && !plan.custom_domains).then(|| unavailable("custom-domain", "custom domains"))
}

fn extra_port_limit(plan: &Plan, ask: &Ask) -> Option<Denial> {
    let total = ask.usage.extra_ports.saturating_add(ask.wants.extra_ports);
    let limit = plan.extra_ports_per_tunnel.filter(|limit| ask.wants.extra_ports > 0 && total > *limit)?;
    Some(reached(
        "extra-port-limit",
        format!("The plan includes {limit} extra ports a tunnel; this would make {total}."),
    ))
}

fn webhook_limit(plan: &Plan, ask: &Ask) -> Option<Denial> {
    let used = ask.usage.webhook_endpoints;
    let limit = plan.webhook_endpoints.filter(|limit| ask.action == "webhooks.create" && used >= *limit)?;
    Some(reached("webhook-limit", format!("The plan includes {limit} webhook endpoints; {used} exist.")))
}

fn unavailable(rule: &str, feature: &str) -> Denial {
    Denial { code: NOT_AVAILABLE.into(), detail: format!("The plan does not include {feature}."), rule: rule.into() }
}

fn reached(rule: &str, detail: String) -> Denial {
    Denial { code: LIMIT_REACHED.into(), detail, rule: rule.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::culvert::policy::types::{Caller, Scope};
    use crate::exports::culvert::policy::plans::{Usage, Wants};
    use crate::plan::Plans;

    fn plans(json: &str) -> Plans {
        serde_json::from_str(json).unwrap()
    }

    fn ask(action: &str, tunnels: u32) -> Ask {
        Ask {
            caller: Caller {
                account_id: String::new(),
                scope: Scope::Personal,
                scope_id: String::new(),
                role: None,
                plan: String::new(),
            },
            action: action.into(),
            usage: Usage { tunnels, webhook_endpoints: 0, extra_ports: u32::MAX, bytes_this_month: 0 },
            wants: Wants { premium_network: false, extra_ports: 0, subdomain: None, domain: None },
            attributes: Vec::new(),
        }
    }

    #[test]
    fn plan_is_found_only_by_its_exact_name() {
        let names: Vec<String> = (0..200).map(|number| format!("plan-{number}")).collect();
        let settings: Vec<String> =
            names.iter().map(|name| format!(r#""{name}":{{"tunnel_limit":{}}}"#, name.len())).collect();
        let plans = plans(&format!("{{{}}}", settings.join(",")));
        for name in &names {
            assert_eq!(plans.get(name).and_then(|plan| plan.tunnel_limit), Some(name.len() as u32));
        }
        assert!(plans.get("plan-").is_none() && plans.get("plan-200").is_none() && plans.get("").is_none());
    }

    #[test]
    fn tunnel_limit_applies_only_to_tunnel_creation() {
        let plans = plans(r#"{"p":{"api_access":true,"tunnel_limit":2,"extra_ports_per_tunnel":0}}"#);
        let rule = |action, tunnels| judge(plans.get("p"), &ask(action, tunnels)).map(|denial| denial.rule);
        assert_eq!(rule("tunnels.create", 1), None);
        assert_eq!(rule("tunnels.create", 2).as_deref(), Some("tunnel-limit"));
        assert_eq!(rule("tunnels.update", 2), None);
    }

    #[test]
    fn extra_port_count_at_maximum_does_not_overflow() {
        let plans = plans(r#"{"p":{"api_access":true,"extra_ports_per_tunnel":9}}"#);
        let mut ask = ask("tunnels.create_extra_port", 0);
        ask.wants.extra_ports = 1;
        assert_eq!(judge(plans.get("p"), &ask).map(|denial| denial.rule).as_deref(), Some("extra-port-limit"));
    }

    #[test]
    fn every_declared_rule_is_used_in_source() {
        let source = include_str!("rules.rs");
        for (rule, _) in RULES {
            assert!(source.matches(&format!("\"{rule}\"")).count() >= 2, "{rule} is declared and never used");
        }
    }
}
