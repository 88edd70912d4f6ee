//! What other chains of modules would have decided: every recorded decision is put to the whole chain of its kind, so
//! that a module that was not there before counts as well.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use serde_json::{Value, json};

use crate::engine::kind::Kind;
use crate::load::dynamic::{CallError, UntypedModule};
use crate::load::given_facts;
use crate::tools::replay::{self, FAILED, Recorded};

/// One decision of a chain, as it was recorded.
struct Decision {
    kind: Kind,
    time: String,
    request_id: String,
    input: Value,
    /// What the request does, as another question of the same request says.
    action: Option<String>,
    masked: Vec<String>,
    /// What the modules have answered, in the chain's order.
    answers: Vec<Value>,
    modules: Vec<String>,
}

/// What would change, and for whom.
#[derive(Debug, Serialize)]
pub struct Change {
    pub kind: Kind,
    pub time: String,
    pub request_id: String,
    /// The scope's UUID.
    pub scope_id: String,
    /// The account's UUID.
    pub account_id: String,
    pub plan: String,
    /// What the request does, where the question says so.
    pub action: Option<String>,
    pub was: Value,
    pub would_be: Value,
}

/// What came of the records.
#[derive(Debug, Default, Serialize)]
pub struct ChainReport {
    pub decisions: usize,
    pub changed: Vec<Change>,
    /// How many decisions cannot be compared, by why.
    pub not_comparable: BTreeMap<String, usize>,
}

impl ChainReport {
    /// Decisions that would change, or may change.
    pub fn doubtful(&self) -> usize {
        self.changed.len() + self.not_comparable.values().sum::<usize>()
    }
}

/// Asks these modules, in their order, about every decision in the records.
pub fn replay(modules: &[UntypedModule], records: Vec<Recorded>) -> ChainReport {
    let mut report = ChainReport::default();
    for decision in decisions(records) {
        report.decisions += 1;
        match would_be(modules, &decision) {
            Err(why) => *report.not_comparable.entry(why).or_default() += 1,
            Ok(would_be) => {
                let was = outcome(decision.kind, &decision.answers);
                if replay::told(&was) != replay::told(&would_be) {
                    report.changed.push(change(decision, was, would_be));
                }
            }
        }
    }
    report
}

/// Puts together what the modules of one chain have answered to one question.
fn decisions(records: Vec<Recorded>) -> Vec<Decision> {
    let mut places: HashMap<(String, Kind, String), usize> = HashMap::new();
    let mut decisions: Vec<Decision> = Vec::new();
    let actions = actions(&records);
    for record in records {
        // What the host asks for itself is what plans include.
        let Some(request_id) = record.request_id.clone() else { continue };
        if record.mode != "enforce" || record.call != record.kind.decision() {
            continue;
        }
        let answer = if record.error.is_some() { FAILED.into() } else { record.answer };
        let question = given_facts::without(&record.input, record.kind).to_string();
        let key = (request_id.clone(), record.kind, question);
        // A module that answers once more was asked anew, as where its facts had changed.
        let known = places.get(&key).copied().filter(|place| !decisions[*place].modules.contains(&record.module));
        if let Some(place) = known {
            let decision = &mut decisions[place];
            // Each module was told the facts that it wanted.
            given_facts::join(&mut decision.input, &record.input, record.kind);
            decision.answers.push(answer);
            decision.modules.push(record.module);
        } else {
            places.insert(key, decisions.len());
            let Recorded { kind, time, input, masked, module, .. } = record;
            let action = actions.get(&request_id).cloned();
            let (answers, modules) = (vec![answer], vec![module]);
            decisions.push(Decision { kind, time, request_id, input, action, masked, answers, modules });
        }
    }
    decisions
}

/// What each request does.
fn actions(records: &[Recorded]) -> HashMap<String, String> {
    let action = |record: &Recorded| Some((record.request_id.clone()?, record.input["action"].as_str()?.to_owned()));
    records.iter().filter_map(action).collect()
}

fn would_be(modules: &[UntypedModule], decision: &Decision) -> Result<Value, String> {
    if !decision.masked.is_empty() {
        return Err(format!("their {} is masked", decision.masked.join(" and ")));
    }
    let mut input = decision.input.clone();
    let Decision { kind, time, request_id, action, .. } = decision;
    given_facts::complete(&mut input, *kind, time, request_id, action.as_deref());
    let mut answers = Vec::new();
    for module in modules.iter().filter(|module| module.kind() == decision.kind) {
        // A host asks no further than to the first refusal, so the facts of those behind it are not on record.
        if answers.last().is_some_and(|answer| ends(decision.kind, answer)) {
            break;
        }
        if let Some(missing) = replay::missing_facts(module, &input) {
            return Err(format!("they do not hold {missing}"));
        }
        let mut told = input.clone();
        given_facts::keep(&mut told, decision.kind, module.facts);
        answers.push(match module.ask(None, &told) {
            Ok(answer) => answer,
            Err(CallError::Failed(_)) => FAILED.into(),
            Err(CallError::PolicyRequest(problem)) => return Err(format!("they do not fit the question: {problem}")),
        });
    }
    Ok(outcome(decision.kind, &answers))
}

/// Whether a host asks no other module after this answer.
fn ends(kind: Kind, answer: &Value) -> bool {
    answer == FAILED || (kind != Kind::Validation && answer.get("deny").is_some())
}

/// What a chain decides by the answers of its modules: a failure lets nothing through, the first denial counts,
/// violations are joined.
fn outcome(kind: Kind, answers: &[Value]) -> Value {
    if kind == Kind::Validation {
        if answers.iter().any(|answer| answer == FAILED) {
            return FAILED.into();
        }
        return answers.iter().filter_map(Value::as_array).flatten().cloned().collect();
    }
    let first = answers.iter().find(|answer| *answer == FAILED || answer.get("deny").is_some());
    first.cloned().unwrap_or_else(|| json!("allow"))
}

fn change(decision: Decision, was: Value, would_be: Value) -> Change {
    let Decision { kind, time, request_id, input, action, .. } = decision;
    let caller = if kind == Kind::Validation { &input["facts"]["caller"] } else { &input["caller"] };
    let text = |name: &str| caller[name].as_str().unwrap_or_default().to_owned();
    let (scope_id, account_id, plan) = (text("scope-id"), text("account-id"), text("plan"));
    Change { kind, time, request_id, scope_id, account_id, plan, action, was, would_be }
}
