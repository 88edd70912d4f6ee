//! Test cases of a module: requests and the expected responses, as data in the contract's own names.
//!
//! ```toml
//! settings = { plans = { free = { api_access = true, tunnel_limit = 1 } } }
//!
//! # The part that the requests of all cases share, except of those that name a function in `call`.
//! [ask]
//! action = "tunnels.create"
//!
//! [[case]]
//! name = "the first tunnel"
//! expect = "allow"
//!
//! [[case]]
//! name = "one too many"
//! ask = { usage = { tunnels = 1 } }
//! facts = { team.name = "acme" }
//! expect = { deny = { code = "plan_limit_reached", rule = "tunnel-limit" } }
//! ```
//!
//! A case runs on the host's engine against the real component. What a request leaves out is absent,
//! zero or empty; what an expectation leaves out may have any value. `facts` holds the
//! facts that the module wants; they can be shared by all cases as well. A built component contains its
//! cases, and a host runs them before it accepts the module.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::engines::Engines;
use crate::engine::kind::Kind;
use crate::engine::sandbox::Limits;
use crate::load::artefact::Artefacts;
use crate::load::component::Module;
use crate::load::dynamic::{CallError, UntypedModule};
use crate::load::given_facts::GivenFacts;
use crate::load::load_error::LoadError;
use crate::load::sections;
use crate::load::text_file::{self, TextFileError};
use culvert_domain::field_path;
use culvert_domain::policy_fact::PolicyFacts;

/// One file of cases.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// The file's name, without the folder.
    #[serde(default)]
    pub file: String,
    #[serde(default)]
    pub settings: Map<String, Value>,
    #[serde(default)]
    pub ask: Map<String, Value>,
    #[serde(default)]
    pub facts: Map<String, Value>,
    #[serde(rename = "case")]
    pub cases: Vec<Case>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,
    /// The function to call; the one of the module's kind if it is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    #[serde(default)]
    pub ask: Map<String, Value>,
    #[serde(default)]
    pub facts: Map<String, Value>,
    pub expect: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum CasesError {
    #[error("{}: {problem}", .path.display())]
    File { path: PathBuf, problem: String },
    #[error("{file}: the module cannot be loaded with the file's settings: {error}")]
    Load { file: String, error: Box<LoadError> },
    #[error("the cases in the module cannot be read: {0}")]
    Bundle(String),
}

/// What came of the cases of one file.
#[derive(Debug)]
pub struct Results {
    pub outcomes: Vec<Outcome>,
    /// What the module calls itself with the file's settings.
    pub module: String,
    /// The rules that the module declares with the file's settings.
    pub rules: Vec<String>,
}

/// The result of one case.
#[derive(Debug)]
pub struct Outcome {
    pub file: String,
    pub name: String,
    /// The rules named in the response.
    pub rules: Vec<String>,
    /// Why the case itself is wrong, if it is: the module was not asked.
    pub invalid: Option<String>,
    /// What differs from the expectation, by field.
    pub differences: Vec<Difference>,
    /// The lines that the module has printed.
    pub debug: Vec<String>,
}

impl Outcome {
    pub fn passed(&self) -> bool {
        self.invalid.is_none() && self.differences.is_empty()
    }

    /// What is wrong, in one line; empty for a case that passed.
    pub fn problem(&self) -> String {
        match &self.invalid {
            Some(problem) => format!("the case is wrong: {problem}"),
            None => self.differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        }
    }
}

/// One field that differs from the expectation.
#[derive(Debug, Serialize)]
pub struct Difference {
    /// A path into the response; empty for the whole response.
    pub field: String,
    pub expected: Value,
    pub got: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "expected {}, got {}", self.expected, self.got)
    }
}

impl File {
    /// Reads a file of cases, TOML or JSON.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is no file of cases.
    pub fn read(path: &Path) -> Result<Self, CasesError> {
        let fail = |error: TextFileError| CasesError::File { path: path.into(), problem: error.to_string() };
        let mut file: Self = text_file::read(path).map_err(fail)?;
        file.file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(file)
    }

    /// Reads every file of cases in a folder, in the order of their names.
    ///
    /// # Errors
    ///
    /// If the folder or one of the files cannot be read, or a file is no file of cases.
    pub fn read_all(folder: &Path) -> Result<Vec<Self>, CasesError> {
        let fail = |error: std::io::Error| CasesError::File { path: folder.into(), problem: error.to_string() };
        let entries = std::fs::read_dir(folder).map_err(fail)?.collect::<Result<Vec<_>, _>>().map_err(fail)?;
        let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml" || extension == "json"));
        paths.sort();
        paths.iter().map(|path| Self::read(path)).collect()
    }

    /// Reads the cases that a component contains.
    ///
    /// # Errors
    ///
    /// If the component contains cases that cannot be parsed.
    pub fn bundled(wasm: &[u8]) -> Result<Vec<Self>, CasesError> {
        match sections::find(wasm, sections::CASES) {
            Some(section) => serde_json::from_slice(section).map_err(|e| CasesError::Bundle(e.to_string())),
            None => Ok(Vec::new()),
        }
    }

    /// Keeps only the cases whose name contains `filter`.
    pub fn keep(&mut self, filter: &str) {
        self.cases.retain(|case| case.name.contains(filter));
    }

    /// Runs the cases against the configured module, as a host would run it.
    ///
    /// # Errors
    ///
    /// If the module cannot be loaded with the file's settings. A case that does not pass is no error.
    pub fn run(&self, engines: &Engines, module: &Module) -> Result<Results, CasesError> {
        let load = |error| CasesError::Load { file: self.file.clone(), error: Box::new(error) };
        let configured = module.configure(engines, &Artefacts::none(), &self.settings, Limits::generous());
        let configured = configured.map_err(load)?;
        let dynamic = UntypedModule::new(engines, &configured).map_err(load)?;
        let module = configured.description.name.clone();
        let rules = configured.description.rules.iter().map(|rule| rule.id.clone()).collect();
        Ok(Results { outcomes: self.outcomes(&dynamic.debugging()).collect(), module, rules })
    }

    /// Prepares the module for this file's cases, with a host's limits. Each case configures its own
    /// instance, because compiling a snapshot would take longer than running all the cases.
    ///
    /// # Errors
    ///
    /// If the module cannot be linked. Settings that it refuses make the cases fail instead.
    pub fn configuring(&self, engines: &Engines, module: &Module, limits: Limits) -> Result<UntypedModule, CasesError> {
        let load = |error| CasesError::Load { file: self.file.clone(), error: Box::new(error) };
        UntypedModule::configuring(engines, module, &self.settings, limits).map_err(load)
    }

    /// Runs the cases one after the other.
    pub fn outcomes<'a>(&'a self, module: &'a UntypedModule) -> impl Iterator<Item = Outcome> + 'a {
        self.cases.iter().map(|case| self.outcome(case, module))
    }

    /// The request of a case, merged with the part that the file's cases share. A case that names a
    /// function in `call` has a request of another type, so nothing is merged.
    ///
    /// # Errors
    ///
    /// If the case gives a fact that there is not, or that the module does not want.
    pub fn request(&self, case: &Case, kind: Kind, wanted: PolicyFacts) -> Result<Value, String> {
        if case.call.as_deref().is_some_and(|call| call != kind.decision()) {
            return Ok(Value::Object(case.ask.clone()));
        }
        let mut request = Value::Object(self.ask.clone());
        merge(&mut request, Value::Object(case.ask.clone()));
        let mut facts = Value::Object(self.facts.clone());
        merge(&mut facts, Value::Object(case.facts.clone()));
        let given = GivenFacts::read(facts.as_object().unwrap_or(&Map::new())).map_err(|e| format!("facts: {e}"))?;
        given.attach(&mut request, kind, wanted).map_err(|e| format!("facts: {e}"))?;
        Ok(request)
    }

    fn outcome(&self, case: &Case, module: &UntypedModule) -> Outcome {
        let (mut differences, mut rules, mut invalid) = (Vec::new(), Vec::new(), None);
        let mut store = module.store();
        let asked = self.request(case, module.kind(), module.facts).and_then(|request| {
            expectation(module.kind(), case)?;
            Ok(module.ask_in(&mut store, case.call.as_deref(), &request))
        });
        match asked {
            Ok(Ok(response)) => {
                compare("", &case.expect, &response, &mut differences);
                collect_rules(&response, &mut rules);
            }
            Ok(Err(CallError::PolicyRequest(problem))) => invalid = Some(format!("ask: {problem}")),
            Ok(Err(error)) => differences.push(Difference {
                field: String::new(),
                expected: case.expect.clone(),
                got: Value::String(error.to_string()),
            }),
            Err(problem) => invalid = Some(problem),
        }
        let debug = std::mem::take(&mut store.data_mut().debug);
        Outcome { file: self.file.clone(), name: case.name.clone(), rules, invalid, differences, debug }
    }
}

/// Checks that a case expects what its function can answer.
fn expectation(kind: Kind, case: &Case) -> Result<(), String> {
    let call = case.call.as_deref().unwrap_or(kind.decision());
    let denies = |expect: &Value| expect.as_object().is_some_and(|one| one.len() == 1 && one.contains_key("deny"));
    let (fits, answer) = match call {
        "validate" => (case.expect.is_array(), "a list of violations, `[]` for valid input"),
        "check" => (case.expect == "allow" || denies(&case.expect), "`\"allow\"` or `{ deny = { … } }`"),
        _ => (case.expect == "none" || case.expect.is_object(), "a record, or `\"none\"`"),
    };
    if fits { Ok(()) } else { Err(format!("expect: {} is no answer of `{call}`, which is {answer}", case.expect)) }
}

/// Content of the section that holds a component's cases.
pub fn bundle(files: &[File]) -> Vec<u8> {
    serde_json::to_vec(files).unwrap_or_default()
}

/// Merges `over` into `under`; values of `over` win.
fn merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (name, value) in over {
                merge(under.entry(name).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
}

/// Collects the differences between a response and the expectation. An object may have more fields than
/// expected. A list must have exactly the expected items, in any order.
pub fn compare(path: &str, expected: &Value, got: &Value, differences: &mut Vec<Difference>) {
    let mut differ = |expected: &Value| {
        differences.push(Difference { field: path.into(), expected: expected.clone(), got: got.clone() });
    };
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for (name, expected) in expected {
                compare(&field_path::field(path, name), expected, got.get(name).unwrap_or(&Value::Null), differences);
            }
        }
        (Value::Array(expected), Value::Array(items)) if expected.len() == items.len() => {
            let mut left: Vec<&Value> = items.iter().collect();
            for item in expected {
                match left.iter().position(|got| matches_expected(item, got)) {
                    Some(found) => drop(left.swap_remove(found)),
                    None => differ(item),
                }
            }
        }
        // TOML has no null, so the text `none` stands for an absent value.
        (Value::String(none), Value::Null) if none == "none" => {}
        _ if expected == got => {}
        _ => differ(expected),
    }
}

fn matches_expected(expected: &Value, got: &Value) -> bool {
    let mut differences = Vec::new();
    compare("", expected, got, &mut differences);
    differences.is_empty()
}

fn collect_rules(response: &Value, rules: &mut Vec<String>) {
    match response {
        Value::Object(fields) => {
            rules.extend(fields.get("rule").and_then(Value::as_str).map(String::from));
            fields.values().for_each(|value| collect_rules(value, rules));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_rules(item, rules)),
        _ => {}
    }
}
