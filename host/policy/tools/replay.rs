//! Replay: evaluates recorded requests with another module and reports what would change.
//!
//! Two responses count as the same if a client would get the same outcome, so texts may differ. Where a record does not
//! hold what the response depends on, the two cannot be compared, and the report says so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::kind::Kind;
use crate::load::dynamic::{CallError, UntypedModule};
use crate::load::given_facts;

/// Stands for the response of a module that failed.
pub(crate) const FAILED: &str = "failed";

/// The fields of a decision record that are used here.
#[derive(Debug, Deserialize)]
pub struct Recorded {
    pub time: String,
    pub request_id: Option<String>,
    pub kind: Kind,
    /// `enforce` where the record says nothing.
    #[serde(default = "enforce")]
    pub mode: String,
    pub module: String,
    pub call: String,
    pub input: Value,
    /// Null if the module failed.
    #[serde(default)]
    pub answer: Value,
    /// Why the module gave no valid response.
    pub error: Option<String>,
    #[serde(default)]
    pub masked: Vec<String>,
}

fn enforce() -> String {
    "enforce".into()
}

/// A response that differs from the recorded one.
#[derive(Debug, Serialize)]
pub struct Changed {
    pub line: usize,
    pub time: String,
    pub request_id: Option<String>,
    pub was: Value,
    pub would_be: Value,
}

/// The results of replaying records with a module.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    pub module: String,
    pub asked: usize,
    pub changed: Vec<Changed>,
    /// How many records cannot be compared, by why.
    pub not_comparable: BTreeMap<String, usize>,
}

/// What came of one record.
enum Compared {
    Same,
    Changed(Box<Changed>),
    NotComparable(String),
}

impl Report {
    pub fn new(module: String) -> Self {
        Self { module, ..Self::default() }
    }

    /// Asks a module about a record, and adds what came of it. `is_same` says whether the module stands for the one
    /// that answered.
    pub fn add(&mut self, module: &UntypedModule, is_same: bool, line: usize, record: &Recorded) {
        self.asked += 1;
        match compare(module, is_same, line, record) {
            Compared::Same => {}
            Compared::Changed(changed) => self.changed.push(*changed),
            Compared::NotComparable(why) => *self.not_comparable.entry(why).or_default() += 1,
        }
    }

    /// Records whose response would change, or may change.
    pub fn doubtful(&self) -> usize {
        self.changed.len() + self.not_comparable.values().sum::<usize>()
    }
}

fn compare(module: &UntypedModule, is_same: bool, line: usize, record: &Recorded) -> Compared {
    if record.call == record.kind.decision()
        && let Some(missing) = missing_facts(module, &record.input)
    {
        return Compared::NotComparable(format!("they do not hold {missing}"));
    }
    let was = record.error.as_ref().map_or_else(|| record.answer.clone(), |_| FAILED.into());
    let mut input = record.input.clone();
    // A module is told only what it wants.
    given_facts::keep(&mut input, record.kind, module.facts);
    let answer = match module.ask(Some(&record.call), &input) {
        Ok(answer) => answer,
        Err(CallError::Failed(_)) => FAILED.into(),
        Err(CallError::PolicyRequest(problem)) => format!("it cannot be asked: {problem}").into(),
    };
    // A module of another name leaves a plan that it does not know to the others.
    let masked: Vec<&str> = record.masked.iter().map(String::as_str).collect();
    let is_left = record.call == "entitlements" && answer.is_null() && !is_same;
    if is_left || told(&without(&was, &masked)) == told(&without(&answer, &masked)) {
        // What the module would say of the masked part is not known, whatever it says of the mask.
        let why = || Compared::NotComparable(format!("their {} is masked", masked.join(" and ")));
        return if masked.is_empty() { Compared::Same } else { why() };
    }
    let (time, request_id) = (record.time.clone(), record.request_id.clone());
    Compared::Changed(Box::new(Changed { line, time, request_id, was, would_be: answer }))
}

/// The facts that a module wants and a record does not hold.
pub(crate) fn missing_facts(module: &UntypedModule, input: &Value) -> Option<String> {
    let recorded = given_facts::recorded(input, module.kind());
    let missing: Vec<String> =
        module.facts.iter().filter(|fact| !recorded.contains(*fact)).map(|fact| fact.to_string()).collect();
    (!missing.is_empty()).then(|| missing.join(" and "))
}

/// A response without the violations of some fields.
fn without(answer: &Value, fields: &[&str]) -> Value {
    match answer {
        Value::Array(violations) => {
            let kept = |violation: &&Value| !fields.iter().any(|field| violation["field"] == *field);
            violations.iter().filter(kept).cloned().collect()
        }
        other => other.clone(),
    }
}

/// The parts of a response that matter to the client. Texts, rules and the order of lists are left out.
pub(crate) fn told(answer: &Value) -> Value {
    match answer {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !["detail", "message", "rule"].contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), told(value))).collect())
        }
        Value::Array(items) => {
            let mut items: Vec<_> = items.iter().map(told).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        other => other.clone(),
    }
}
