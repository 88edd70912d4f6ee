//! Recorded decisions, asked again: which answers would another module give?
//!
//! An answer counts as the same where the client would be told the same: texts may differ. What was
//! masked in a record is not compared.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::engine::kind::Kind;
use crate::load::dynamic::{CallError, UntypedModule};

/// What a module that gives no answer comes to.
const FAILED: &str = "failed";

/// One line of a file of decision records, as far as it matters here.
#[derive(Debug, Deserialize)]
pub struct Recorded {
    pub time: String,
    pub request_id: Option<String>,
    pub kind: Kind,
    pub module: String,
    pub call: String,
    pub input: Value,
    /// Null where the module failed.
    #[serde(default)]
    pub answer: Value,
    /// Why the module gave no answer.
    pub error: Option<String>,
    #[serde(default)]
    pub masked: Vec<String>,
}

/// An answer that would be another one.
#[derive(Debug, Serialize)]
pub struct Changed {
    pub line: usize,
    pub time: String,
    pub request_id: Option<String>,
    pub was: Value,
    pub would_be: Value,
}

/// What came of a module.
#[derive(Debug, Serialize)]
pub struct Report {
    pub module: String,
    pub asked: usize,
    pub changed: Vec<Changed>,
}

/// Asks a module what a record was asked, and says what would change.
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

/// What of an answer makes a difference to the client: no texts, no rules, nothing about masked
/// fields, no order.
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
