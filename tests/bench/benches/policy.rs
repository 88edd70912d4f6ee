//! What a decision costs: the shipped plan-access rules in a fresh sandbox, beside the same rules in
//! Rego (regorus) and in Cedar, which run natively and isolate nothing.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cedar_policy::{
    Authorizer, Context, Decision, Entities, Entity, EntityUid, PolicySet, Request, RestrictedExpression,
};
use chrono::DateTime;
use culvert_bench::{median, race, verdict};
use culvert_domain::action::Action;
use culvert_domain::caller::{Caller, Credential, Role, Scope, ScopeKind};
use culvert_domain::permission::Permissions;
use culvert_domain::usage::Counters;
use culvert_policy::engine::bindings::plans;
use culvert_policy::engine::engines::Engines;
use culvert_policy::engine::kind::Kind;
use culvert_policy::engine::request::PolicyRequest;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::chain::{Loader, PolicyConfig, Trust};
use culvert_policy::load::module_source::Origins;
use culvert_policy::load::module_store::ModuleStore;
use culvert_policy::serve::live::PolicySet as ModuleSet;
use culvert_policy::serve::observer::DecisionObserver;
use culvert_policy::serve::pinned::Pinned;
use culvert_policy::serve::records::RecordsConfig;
use culvert_service::gate::UsageRequest;
use culvert_service::gate::wit_input;
use culvert_wire::clock::Clock;
use futures_util::FutureExt;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use uuid::Uuid;

#[path = "../../it/support/hostile.rs"]
#[allow(dead_code, clippy::format_collect, reason = "tests use more of it, and make large inputs as it is easiest")]
mod hostile;

const PLANS: &str = include_str!("../../../policies/plan-access/plans.json");

fn main() {
    let plans: Value = serde_json::from_str(PLANS).unwrap();
    beside_others(&plans);
    with_many_plans(&plans);
    on_two_cores(&plans);
    with_ten_rules(&plans);
    in_brief(&plans);
}

/// A decision is first tried for a millisecond on the thread that serves the request. That try, beside a decision that
/// has the whole deadline from the start.
fn in_brief(plans: &Value) {
    let set = loaded_set(&with_plans(plans), 2).0;
    let request = PolicyRequest::PlanAccess(question("pro", 3));
    let module = || &set.chain(Kind::PlanAccess).enforced[0];
    let times = race(vec![
        ("tried for a millisecond first", Box::new(|| assert!(black_box(module().ask_briefly(&request)).is_some()))),
        ("with the whole deadline", Box::new(|| assert!(black_box(module().ask(&request)).is_ok()))),
    ]);
    println!("one decision by one module, the median of 31 rounds in turns");
    for (name, time) in &times {
        println!("  {name:<58} {:>6.2} µs", micros(*time));
    }
    let ratio = micros(times[0].1) / micros(times[1].1);
    verdict("tried first to whole deadline", ratio, "<= 1.05", ratio <= 1.05);
}

/// Ten rules in CEL beside a module in Rust; the question makes every condition be evaluated.
fn with_ten_rules(plans: &Value) {
    let conditions = [
        "action == 'tunnels.start' && wants.extra_ports > 0",
        "caller.plan == 'free' && usage.tunnels + 1 > 3",
        "usage.bytes_this_month > 1000000000 && caller.plan != 'pro'",
        "wants.subdomain != null && wants.subdomain.matches('^acme-[0-9]+$')",
        "wants.domain != null && !wants.domain.inDomain('example.com')",
        "wants.premium_network && caller.plan in ['free', 'starter']",
        "caller.scope == 'team' && caller.role == 'member' && action.startsWith('webhooks.')",
        "usage.webhook_endpoints >= 20 || usage.extra_ports >= 10",
        "action in ['tunnels.delete', 'devices.delete'] && caller.role != 'owner'",
        "wants.extra_ports > 5 && caller.plan.endsWith('-trial')",
    ];
    let rule = |(number, when): (usize, &&str)| json!({"name": format!("rule-{number}"), "when": when, "code": "refused_by_rule", "message": "No."});
    let rules: Vec<Value> = conditions.iter().enumerate().map(rule).collect();
    let mut entry = PolicyConfig::builtin(Kind::PlanAccess);
    entry.module = "builtin:rules-plan-access".into();
    entry.settings.insert("rules".into(), rules.into());
    let [_, roles, validation] = <[PolicyConfig; 3]>::try_from(PolicyConfig::shipped()).unwrap();
    let (rules, plain) = (loaded_chain(&[entry, roles, validation], 2), loaded(plans, 2));
    let times = race(vec![
        ("ten rules in CEL", Box::new(|| assert!(black_box(ours(&rules, "pro", 3))))),
        ("plan-access in Rust", Box::new(|| assert!(black_box(ours(&plain, "pro", 3))))),
    ]);
    println!("one decision, each in a fresh sandbox, the median of 31 rounds in turns");
    for (name, time) in &times {
        println!("  {name:<58} {:>6.2} µs", micros(*time));
    }
    let ratio = micros(times[0].1) / micros(times[1].1);
    verdict("ten rules in CEL to Rust", ratio, "<= 12.0", ratio <= 12.0);
}

fn beside_others(plans: &Value) {
    let (set, rego, cedar) = (loaded(plans, 2), Rego::new(plans), Cedar::new(plans, None));
    let empty = allows_everything();
    let telling = Cedar::new(plans, Some(plans["pro"].clone()));
    assert!(telling.allows("pro", 3) && !telling.allows("pro", 25));
    assert!(ours(&set, "pro", 3) && !ours(&set, "free", 3));
    assert!(rego.clone().allows("pro", 3) && !rego.clone().allows("free", 3));
    assert!(cedar.allows("pro", 3) && !cedar.allows("free", 3));
    let mut rego = rego;
    let times = race(vec![
        ("culvert, in a fresh sandbox", Box::new(|| assert!(black_box(ours(&set, "pro", 3))))),
        ("regorus", Box::new(|| assert!(black_box(rego.allows("pro", 3))))),
        ("cedar-policy, the plan in its request", Box::new(|| assert!(black_box(telling.allows("pro", 3))))),
        ("cedar-policy, plans known beforehand", Box::new(|| assert!(black_box(cedar.allows("pro", 3))))),
        (
            "the floor: a module without rules, in a fresh sandbox",
            Box::new(|| assert!(black_box(ours(&empty, "pro", 3)))),
        ),
    ]);
    println!("one decision of plan-access, the median of 31 rounds in turns");
    for (name, time) in &times {
        println!("  {name:<58} {:>6.2} µs", micros(*time));
    }
    let ratio = |other: usize| micros(times[0].1) / micros(times[other].1);
    verdict("culvert to regorus", ratio(1), "<= 1.0", ratio(1) <= 1.0);
    verdict("culvert to cedar-policy, the plan in its request", ratio(2), "<= 0.3", ratio(2) <= 0.3);
    println!("  culvert to cedar-policy, plans known beforehand {:>17.2}", ratio(3));
    println!("  culvert to the floor {:>44.2}", ratio(4));
}

fn with_many_plans(plans: &Value) {
    let with = |count: usize, plan: &Value| {
        let mut plans = plans.clone();
        for number in 0..count {
            plans[format!("plan-{number:04}")] = plan.clone();
        }
        loaded_with_memory(&plans)
    };
    let short = json!({"api_access": true, "remote_actions": ["start", "stop"], "tunnel_limit": 25});
    let ((few, of_few), (hundred, of_hundred)) = (loaded_with_memory(plans), with(100, &plans["pro"]));
    let ((thousand, of_thousand), (thousand_short, of_short)) = (with(1000, &plans["pro"]), with(1000, &short));
    let times = race(vec![
        ("5", Box::new(|| assert!(black_box(ours(&few, "pro", 3))))),
        ("100", Box::new(|| assert!(black_box(ours(&hundred, "plan-0050", 3))))),
        ("1,000, of three fields", Box::new(|| assert!(black_box(ours(&thousand_short, "plan-0500", 3))))),
        ("1,000, of every field", Box::new(|| assert!(black_box(ours(&thousand, "plan-0500", 3))))),
    ]);
    println!("the same, by the number of plans in the settings, with the memory that a fresh sandbox has");
    // Up to 256 KiB all of it is copied or cleared for each decision; of more, what the decision before has written.
    for ((name, time), kib) in times.iter().zip([of_few, of_hundred, of_short, of_thousand]) {
        println!("  {name:<40} {kib:>11} KiB {:>12.2} µs", micros(*time));
    }
    let ratio = |other: usize| micros(times[other].1) / micros(times[0].1);
    verdict("100 plans to 5", ratio(1), "<= 1.1", ratio(1) <= 1.1);
    verdict("1,000 plans of three fields to 5", ratio(2), "<= 2.0", ratio(2) <= 2.0);
    verdict("1,000 plans of every field to 5", ratio(3), "<= 2.0", ratio(3) <= 2.0);
}

fn on_two_cores(plans: &Value) {
    const ROUNDS: usize = 15;
    let set = loaded(plans, 2);
    let ratios = (0..ROUNDS).map(|_| decided(&set, 2) as f64 / decided(&set, 1) as f64);
    let ratio = median(ratios.collect());
    println!("decisions of two threads to those of one, the median of {ROUNDS} rounds");
    verdict("two to one", ratio, ">= 1.7", ratio >= 1.7);
}

/// How many decisions some threads make in a while.
fn decided(set: &Pinned, threads: usize) -> u64 {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let decide = || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                assert!(black_box(ours(set, "pro", 3)));
                count += 1;
            }
            count
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(decide)).collect();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

fn with_plans(plans: &Value) -> Vec<PolicyConfig> {
    let mut chain = PolicyConfig::shipped();
    chain[0].settings.insert("plans".into(), plans.clone());
    chain
}

/// A module of a page of memory that looks at nothing: what is left is the sandbox, the question and the answer.
fn allows_everything() -> Pinned {
    // The interface is read from the repository's own folder.
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.wasm");
    std::fs::write(&file, hostile::GOOD.plan_access()).unwrap();
    let [mut entry, roles, validation] = <[PolicyConfig; 3]>::try_from(PolicyConfig::shipped()).unwrap();
    entry.module = file.display().to_string();
    loaded_chain(&[entry, roles, validation], 2)
}

fn loaded(plans: &Value, shards: usize) -> Pinned {
    loaded_chain(&with_plans(plans), shards)
}

/// Also the KiB of memory of plan-access.
fn loaded_with_memory(plans: &Value) -> (Pinned, usize) {
    let (set, observer, kib) = loaded_set_with_memory(&with_plans(plans), 2);
    (Pinned::new(Arc::new(set), Arc::new(observer), None), kib)
}

fn loaded_chain(chain: &[PolicyConfig], shards: usize) -> Pinned {
    let (set, observer) = loaded_set(chain, shards);
    Pinned::new(Arc::new(set), Arc::new(observer), None)
}

fn loaded_set(chain: &[PolicyConfig], shards: usize) -> (ModuleSet, DecisionObserver) {
    let (set, observer, _) = loaded_set_with_memory(chain, shards);
    (set, observer)
}

fn loaded_set_with_memory(chain: &[PolicyConfig], shards: usize) -> (ModuleSet, DecisionObserver, usize) {
    let engines = Engines::new(shards).unwrap();
    let loader = Loader {
        engines,
        artefacts: Artefacts::none(),
        modules: ModuleStore::none(),
        folder: ".".into(),
        trust: Trust::Path,
        origins: Origins::default(),
    };
    let (loaded, clock) = (loader.load(chain).unwrap(), Clock::system());
    let observer =
        DecisionObserver::open(clock.clone(), &mut Registry::default(), &RecordsConfig::default(), None).unwrap();
    let kib = loaded[0].module.memory_bytes / 1024;
    let set = ModuleSet::new(&loader.engines, &observer.metrics, loaded, clock.now()).unwrap();
    (set, observer, kib)
}

/// As the gate asks: the question is made of what the host knows, and the answer taken apart.
fn ours(set: &Pinned, plan: &str, tunnels: u32) -> bool {
    matches!(set.plan_access(question(plan, tunnels)).now_or_never(), Some(Ok(None)))
}

fn question(plan: &str, tunnels: u32) -> plans::Ask {
    let caller = Caller {
        credential: Credential::Key { id: Uuid::nil(), created_at: DateTime::default() },
        account_id: Uuid::nil(),
        scope: Scope { id: Uuid::nil(), kind: ScopeKind::Team, name: "Engines".into(), plan: plan.into() },
        role: Some(Role::Member),
        permissions: Permissions::default(),
    };
    let counters = Counters { tunnels, extra_ports: 0, webhook_endpoints: 0, bytes_this_month: 1_000_000 };
    wit_input::plan_ask(&caller, Action::TunnelsCreate, counters, UsageRequest::default())
}

const ACCOUNT: &str = "01a1fcfe-61b6-7038-9364-fe4bfd4b9329";
const SCOPE: &str = "01a1fcfe-61b6-7038-9364-fe4bfd4b9330";

/// The same rules in Rego, asked the same question.
const REGO: &str = r#"
package access
import rego.v1

remote := {"tunnels.start": "start", "tunnels.stop": "stop", "tunnels.restart": "restart",
    "devices.stop_all": "stop_all", "devices.restart_agent": "restart_agent"}
plan := data.plans[input.plan]

default allow := false
allow if { plan.api_access; not denied }

denied if { action := remote[input.action]; not action in plan.remote_actions }
denied if { input.action == "tunnels.create"; input.usage.tunnels >= plan.tunnel_limit }
denied if { input.wants.premium_network; not plan.premium_network }
denied if { input.action in {"tunnels.assign_domain", "tunnels.verify_domain"}; not plan.custom_domains }
denied if {
    input.wants.extra_ports > 0
    input.usage.extra_ports + input.wants.extra_ports > plan.extra_ports_per_tunnel
}
denied if { input.action == "webhooks.create"; input.usage.webhook_endpoints >= plan.webhook_endpoints }
"#;

#[derive(Clone)]
struct Rego(regorus::Engine);

impl Rego {
    fn new(plans: &Value) -> Self {
        let mut engine = regorus::Engine::new();
        engine.add_policy("access.rego".into(), REGO.into()).unwrap();
        engine.add_data(regorus::Value::from(json!({"plans": plans}))).unwrap();
        Self(engine)
    }

    fn allows(&mut self, plan: &str, tunnels: u32) -> bool {
        let input = json!({
            "action": "tunnels.create",
            "plan": plan,
            "caller": {"account_id": ACCOUNT, "scope": "team", "scope_id": SCOPE, "role": "member"},
            "usage": {"tunnels": tunnels, "extra_ports": 0, "webhook_endpoints": 0, "bytes_this_month": 1_000_000},
            "wants": {"premium_network": false, "extra_ports": 0},
        });
        self.0.set_input(regorus::Value::from(input));
        self.0.eval_rule("data.access.allow".into()).unwrap() == regorus::Value::from(true)
    }
}

/// The same rules in Cedar; a plan is an entity that was made once, or stands in the request.
const CEDAR: &str = r#"
permit(principal, action, resource) when { resource.api_access };
forbid(principal, action, resource) when { context has remote && !resource.remote_actions.contains(context.remote) };
forbid(principal, action == Action::"tunnels.create", resource)
    when { resource has tunnel_limit && context.usage.tunnels >= resource.tunnel_limit };
forbid(principal, action, resource) when { context.wants.premium_network && !resource.premium_network };
forbid(principal, action in [Action::"tunnels.assign_domain", Action::"tunnels.verify_domain"], resource)
    when { !resource.custom_domains };
forbid(principal, action, resource) when {
    context.wants.extra_ports > 0 && resource has extra_ports_per_tunnel &&
    context.usage.extra_ports + context.wants.extra_ports > resource.extra_ports_per_tunnel
};
forbid(principal, action == Action::"webhooks.create", resource)
    when { resource has webhook_endpoints && context.usage.webhook_endpoints >= resource.webhook_endpoints };
"#;

struct Cedar {
    policies: PolicySet,
    plans: Entities,
    authorizer: Authorizer,
    /// The plan, where it is told with every request instead of being an entity.
    told: Option<Value>,
}

impl Cedar {
    fn new(plans: &Value, told: Option<Value>) -> Self {
        let rules = if told.is_some() { CEDAR.replace("resource.", "context.plan.") } else { CEDAR.into() };
        let rules = if told.is_some() { rules.replace("resource has", "context.plan has") } else { rules };
        let entity = |(name, plan): (&String, &Value)| {
            let attributes = plan.as_object().unwrap().iter().map(|(name, value)| (name.clone(), expression(value)));
            Entity::new(uid("Plan", name), attributes.collect(), [].into()).unwrap()
        };
        let plans = plans.as_object().unwrap().iter().map(entity);
        Self {
            policies: rules.parse().unwrap(),
            plans: Entities::from_entities(plans, None).unwrap(),
            authorizer: Authorizer::new(),
            told,
        }
    }

    fn allows(&self, plan: &str, tunnels: u32) -> bool {
        let number = |number: u32| RestrictedExpression::new_long(number.into());
        let text = |text: &str| RestrictedExpression::new_string(text.into());
        let record = |fields: Vec<(&str, RestrictedExpression)>| {
            let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value));
            RestrictedExpression::new_record(fields).unwrap()
        };
        let caller = record(vec![
            ("account_id", text(ACCOUNT)),
            ("scope", text("team")),
            ("scope_id", text(SCOPE)),
            ("role", text("member")),
        ]);
        let usage = record(vec![
            ("tunnels", number(tunnels)),
            ("extra_ports", number(0)),
            ("webhook_endpoints", number(0)),
            ("bytes_this_month", number(1_000_000)),
        ]);
        let wants =
            record(vec![("premium_network", RestrictedExpression::new_bool(false)), ("extra_ports", number(0))]);
        let plan_told = self.told.iter().map(|plan| ("plan", expression(plan)));
        let context = [("caller", caller), ("usage", usage), ("wants", wants)].into_iter().chain(plan_told);
        let context = Context::from_pairs(context.map(|(name, value)| (name.to_owned(), value))).unwrap();
        let (principal, action) = (uid("Account", ACCOUNT), uid("Action", "tunnels.create"));
        let request = Request::new(principal, action, uid("Plan", plan), context, None).unwrap();
        self.authorizer.is_authorized(&request, &self.policies, &self.plans).decision() == Decision::Allow
    }
}

fn uid(kind: &str, id: &str) -> EntityUid {
    EntityUid::from_type_name_and_id(kind.parse().unwrap(), id.parse().unwrap())
}

fn expression(value: &Value) -> RestrictedExpression {
    match value {
        Value::Bool(flag) => RestrictedExpression::new_bool(*flag),
        Value::Number(number) => RestrictedExpression::new_long(number.as_i64().unwrap()),
        Value::String(text) => RestrictedExpression::new_string(text.clone()),
        Value::Array(items) => RestrictedExpression::new_set(items.iter().map(expression)),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.clone(), expression(value)));
            RestrictedExpression::new_record(fields).unwrap()
        }
        Value::Null => panic!("null"),
    }
}
