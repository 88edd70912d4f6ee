//! Facts as people write them, in cases and on the command line, and how they get into a request.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::engine::facts;
use crate::engine::kind::Kind;
use culvert_domain::policy_fact::{PolicyFact, PolicyFacts};
use culvert_domain::string_enum::StringEnum;

/// Facts with their values.
#[derive(Debug, Default)]
pub struct GivenFacts(BTreeMap<PolicyFact, Value>);

impl GivenFacts {
    /// Reads a table, in which the dots of the names can be nesting: `tunnel = { name = "web" }`.
    ///
    /// # Errors
    ///
    /// If a name is no fact's.
    pub fn read(table: &Map<String, Value>) -> Result<Self, String> {
        let mut given = Self::default();
        given.collect("", table)?;
        Ok(given)
    }

    fn collect(&mut self, path: &str, table: &Map<String, Value>) -> Result<(), String> {
        for (name, value) in table {
            let name = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match (PolicyFact::parse(&name), value) {
                (Some(fact), value) => self.insert(fact, value.clone()),
                (None, Value::Object(nested)) => self.collect(&name, nested)?,
                (None, _) => return Err(facts::parse(&name).err().unwrap_or_default()),
            }
        }
        Ok(())
    }

    /// Sets a fact. The text `none` stands for null, because TOML has none.
    pub fn insert(&mut self, fact: PolicyFact, value: Value) {
        self.0.insert(fact, if value == "none" { Value::Null } else { value });
    }

    /// Adds the facts that a module wants to a request. Of those that are not given, counts are 0, the others null, but
    /// for those that the request says already.
    ///
    /// # Errors
    ///
    /// If a fact is given that the module does not want: a host would not tell it.
    pub fn attach(&self, request: &mut Value, kind: Kind, wanted: PolicyFacts) -> Result<(), String> {
        if let Some(stray) = self.0.keys().find(|fact| !wanted.contains(**fact)) {
            return Err(format!("`{stray}`: the module does not want this fact; {}", wishes(wanted)));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let value = |fact: PolicyFact| self.0.get(&fact).cloned().unwrap_or_else(|| known(fact, request, kind));
        let attributes: Vec<_> =
            wanted.iter().map(|fact| json!({ "name": fact.as_str(), "value": value(fact).to_string() })).collect();
        let holder = holder(request, kind).ok_or("the question is no object")?;
        holder.insert("attributes".into(), attributes.into());
        Ok(())
    }
}

/// Removes the facts from a recorded request that a module does not want.
pub fn keep(request: &mut Value, kind: Kind, wanted: PolicyFacts) {
    let Some(holder) = holder(request, kind) else { return };
    if let Some(attributes) = holder.get_mut("attributes").and_then(Value::as_array_mut) {
        let fact = |attribute: &Value| attribute["name"].as_str().and_then(PolicyFact::parse);
        attributes.retain(|attribute| fact(attribute).is_some_and(|fact| wanted.contains(fact)));
    }
}

/// The facts that a recorded request holds.
pub fn recorded(request: &Value, kind: Kind) -> PolicyFacts {
    let names =
        attributes(request, kind).as_array().into_iter().flatten().filter_map(|attribute| attribute["name"].as_str());
    names.filter_map(PolicyFact::parse).collect()
}

/// A recorded request without its facts.
pub fn without(request: &Value, kind: Kind) -> Value {
    let mut request = request.clone();
    if let Some(holder) = holder(&mut request, kind) {
        holder.remove("attributes");
    }
    request
}

/// Adds the facts that another record of the same request holds.
pub fn join(request: &mut Value, other: &Value, kind: Kind) {
    let known = recorded(request, kind);
    for attribute in attributes(other, kind).as_array().into_iter().flatten() {
        let fact = attribute["name"].as_str().and_then(PolicyFact::parse);
        if fact.is_some_and(|fact| !known.contains(fact)) {
            push(request, kind, attribute.clone());
        }
    }
}

/// Adds the facts that a record says in other words, where it does not hold them: who asks, what the request does, and,
/// as its time, when it was recorded.
pub fn complete(request: &mut Value, kind: Kind, time: &str, request_id: &str, action: Option<&str>) {
    let recorded = recorded(request, kind);
    let facts = [
        (PolicyFact::Now, Some(time.into())),
        (PolicyFact::RequestId, Some(request_id.into())),
        (PolicyFact::RequestAction, action.map(Value::from)),
        (PolicyFact::CallerAccountId, Some(known(PolicyFact::CallerAccountId, request, kind))),
        (PolicyFact::CallerRole, Some(known(PolicyFact::CallerRole, request, kind))),
    ];
    for (fact, value) in facts {
        if let Some(value) = value.filter(|_| !recorded.contains(fact)) {
            push(request, kind, json!({ "name": fact.as_str(), "value": value.to_string() }));
        }
    }
}

fn push(request: &mut Value, kind: Kind, attribute: Value) {
    let Some(holder) = holder(request, kind) else { return };
    if let Some(attributes) = holder.entry("attributes").or_insert_with(|| json!([])).as_array_mut() {
        attributes.push(attribute);
    }
}

fn attributes(request: &Value, kind: Kind) -> &Value {
    match kind {
        Kind::Validation => &request["facts"]["attributes"],
        Kind::PlanAccess | Kind::TeamRole => &request["attributes"],
    }
}

fn wishes(wanted: PolicyFacts) -> String {
    if wanted.is_empty() {
        return format!("it wants none (`{}` in its settings schema lists them)", facts::KEYWORD);
    }
    format!("it wants {}", wanted.iter().map(StringEnum::as_str).collect::<Vec<_>>().join(", "))
}

/// The record in a request that has the attributes.
fn holder(request: &mut Value, kind: Kind) -> Option<&mut Map<String, Value>> {
    let request = request.as_object_mut()?;
    match kind {
        Kind::Validation => request.entry("facts").or_insert_with(|| json!({})).as_object_mut(),
        Kind::PlanAccess | Kind::TeamRole => Some(request),
    }
}

/// The value of a fact that nobody gave.
fn known(fact: PolicyFact, request: &Value, kind: Kind) -> Value {
    let caller = match kind {
        Kind::Validation => &request["facts"]["caller"],
        Kind::PlanAccess | Kind::TeamRole => &request["caller"],
    };
    match fact {
        PolicyFact::CallerAccountId => caller["account-id"].clone(),
        PolicyFact::CallerRole => caller["role"].clone(),
        PolicyFact::RequestAction => request["action"].clone(),
        PolicyFact::UsageTunnels => request["usage"]["tunnels"].as_u64().unwrap_or(0).into(),
        PolicyFact::UsageRunningTunnels | PolicyFact::UsageCallersTunnels | PolicyFact::UsageCallersRunningTunnels => {
            0.into()
        }
        _ => Value::Null,
    }
}
