//! Replay: evaluates recorded requests with another module and reports what would change.
//!
//! Two responses count as the same if a client would get the same outcome, so texts may differ. What
//! was redacted in a record is not compared.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::kind::Kind;
use crate::load::dynamic::{CallError, UntypedModule};

/// Stands for the response of a module that failed.
const FAILED: &str = "failed";

/// The fields of a decision record that are used here.
#[derive(Debug, Deserialize)]
pub struct Recorded {
    pub time: String,
    pub request_id: Option<String>,
    pub kind: Kind,
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
#[derive(Debug, Serialize)]
pub struct Report {
    pub module: String,
    pub asked: usize,
    pub changed: Vec<Changed>,
}

/// Evaluates a recorded request with a module and returns the difference, if there is one.
pub fn replay(module: &UntypedModule, line: usize, record: &Recorded) -> Option<Changed> {
    let was = record.error.as_ref().map_or_else(|| record.answer.clone(), |_| FAILED.into());
    let answer = match module.ask(Some(&record.call), &record.input) {
        Ok(answer) => answer,
        Err(CallError::Failed(_)) => FAILED.into(),
        Err(CallError::PolicyRequest(problem)) => format!("it cannot be asked: {problem}").into(),
    };
    if told(&was, &record.masked) == told(&answer, &record.masked) {
        return None;
    }
    let (time, request_id) = (record.time.clone(), record.request_id.clone());
    Some(Changed { line, time, request_id, was, would_be: answer })
}

/// The parts of a response that matter to the client. Texts, rules, violations of redacted fields and
/// the order of lists are left out.
fn told(answer: &Value, masked: &[String]) -> Value {
    match answer {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !["detail", "message", "rule"].contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name.clone(), told(value, masked))).collect())
        }
        Value::Array(items) => {
            let about_masked = |item: &Value| masked.iter().any(|field| item["field"] == *field);
            let mut items: Vec<_> = items.iter().filter(|item| !about_masked(item)).map(|i| told(i, masked)).collect();
            items.sort_by_key(Value::to_string);
            Value::Array(items)
        }
        other => other.clone(),
    }
}
