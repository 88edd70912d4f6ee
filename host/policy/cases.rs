//! Cases: what a module must answer to what it is asked, as data, in the contract's own names.
//!
//! ```toml
//! settings = { plans = { free = { api_access = true, tunnel_limit = 1 } } }
//!
//! # What every case's question begins with.
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
//! expect = { deny = { code = "plan_limit_reached", rule = "tunnel-limit" } }
//! ```
//!
//! A case runs in the engine that the host runs on, against the real component. What a question
//! leaves out is absent, zero or empty; what an expectation leaves out may be anything.

use std::path::{Path, PathBuf};

use figment::providers::{Format, Toml};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use wasmtime::component::{Component, Type, Val};

use super::artefact::Artefacts;
use super::component::{Kind, LoadError, Module};
use super::engine::Engines;
use super::sandbox::{self, Limits};

/// One file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    settings: Map<String, Value>,
    #[serde(default)]
    ask: Map<String, Value>,
    #[serde(rename = "case")]
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The decision's function; a world's own one where none is named.
    call: Option<String>,
    #[serde(default)]
    ask: Map<String, Value>,
    expect: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum CasesError {
    #[error("{}: {problem}", .path.display())]
    File { path: PathBuf, problem: String },
    #[error("{}: the module cannot be loaded with the file's settings: {error}", .path.display())]
    Load { path: PathBuf, error: LoadError },
}

/// How one case came out.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    /// The rules that the answer names.
    pub rules: Vec<String>,
    /// What is not as expected, field by field.
    pub differences: Vec<String>,
}

/// Runs one file's cases against a module.
pub fn run(engines: &Engines, artefacts: &Artefacts, wasm: &[u8], path: &Path) -> Result<Vec<Outcome>, CasesError> {
    let fail = |problem: String| CasesError::File { path: path.into(), problem };
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let File { settings, ask, cases } = Toml::from_str(&text).map_err(|e| fail(e.to_string()))?;
    let load = |error| CasesError::Load { path: path.into(), error };
    let limits = Limits { deadline: std::time::Duration::from_secs(1), memory_bytes: 2048 * 1024 };
    let module = Module::read(engines, wasm.into()).map_err(load)?;
    let kind = module.kind;
    let configured =
        module.configure(engines, artefacts, &Value::Object(settings).to_string(), limits).map_err(load)?;
    let component = configured.on(&engines.lanes()[0]).map_err(load)?;
    let decide = Decide { engines, component, kind, limits };
    cases
        .into_iter()
        .map(|case| {
            let answer = decide.ask(&case, &ask).map_err(|problem| fail(format!("{}: {problem}", case.name)))?;
            let mut differences = Vec::new();
            compare("", &case.expect, &answer, &mut differences);
            let mut rules = Vec::new();
            collect_rules(&answer, &mut rules);
            Ok(Outcome { name: case.name, rules, differences })
        })
        .collect()
}

struct Decide<'e> {
    engines: &'e Engines,
    component: Component,
    kind: Kind,
    limits: Limits,
}

impl Decide<'_> {
    fn ask(&self, case: &Case, defaults: &Map<String, Value>) -> Result<Value, String> {
        let engine = &self.engines.lanes()[0];
        let mut store = sandbox::store(engine, self.limits);
        let text = |error: wasmtime::Error| error.to_string();
        let instance = sandbox::linker(engine).instantiate(&mut store, &self.component).map_err(text)?;
        let (interface, own) = match self.kind {
            Kind::PlanAccess => ("culvert:policy/plans@1.0.0", "check"),
            Kind::TeamRole => ("culvert:policy/roles@1.0.0", "check"),
            Kind::Validation => ("culvert:policy/inputs@1.0.0", "validate"),
        };
        let name = case.call.as_deref().unwrap_or(own);
        let (_, index) = instance.get_export(&mut store, None, interface).ok_or("it exports no decision")?;
        let (_, index) = instance
            .get_export(&mut store, Some(&index), name)
            .ok_or_else(|| format!("there is no function `{name}` in {interface}"))?;
        let function = instance.get_func(&mut store, index).ok_or_else(|| format!("`{name}` is no function"))?;
        let ty = function.ty(&store);
        let mut asked = Value::Object(defaults.clone());
        merge(&mut asked, Value::Object(case.ask.clone()));
        let parameters: Vec<(String, Type)> = ty.params().map(|(name, ty)| (name.to_owned(), ty)).collect();
        let arguments = parameters
            .iter()
            .map(|(name, ty)| match parameters.len() {
                // A single record is the question itself; several parameters go by their names.
                1 if matches!(ty, Type::Record(_)) => value(name, &asked, ty),
                _ => value(name, asked.get(name).unwrap_or(&Value::Null), ty),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut answer = [Val::Bool(false)];
        function.call(&mut store, &arguments, &mut answer).map_err(|e| sandbox::failure(&store, &e).to_string())?;
        Ok(plain(&answer[0]))
    }
}

/// Lays one object over another.
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

/// A value of the contract's type; null stands for what was left out.
fn value(path: &str, json: &Value, ty: &Type) -> Result<Val, String> {
    let wrong = |wanted: &str| format!("{path}: {json} is no {wanted}");
    let number = || json.as_i64().or_else(|| json.is_null().then_some(0)).ok_or_else(|| wrong("integer"));
    Ok(match ty {
        Type::Bool => Val::Bool(json.as_bool().or(json.is_null().then_some(false)).ok_or_else(|| wrong("boolean"))?),
        Type::U32 => Val::U32(u32::try_from(number()?).map_err(|_| wrong("u32"))?),
        Type::U64 => Val::U64(u64::try_from(number()?).map_err(|_| wrong("u64"))?),
        Type::S64 => Val::S64(number()?),
        Type::String => {
            Val::String(json.as_str().or(json.is_null().then_some("")).ok_or_else(|| wrong("string"))?.into())
        }
        Type::List(list) => {
            let items =
                json.as_array().map(Vec::as_slice).or(json.is_null().then_some(&[])).ok_or_else(|| wrong("list"))?;
            let item = |(index, item)| value(&format!("{path}[{index}]"), item, &list.ty());
            Val::List(items.iter().enumerate().map(item).collect::<Result<_, _>>()?)
        }
        Type::Option(_) if json.is_null() => Val::Option(None),
        Type::Option(option) => Val::Option(Some(Box::new(value(path, json, &option.ty())?))),
        Type::Record(record) => {
            let empty = Map::new();
            let fields = json.as_object().or(json.is_null().then_some(&empty)).ok_or_else(|| wrong("record"))?;
            if let Some(stray) = fields.keys().find(|name| record.fields().all(|field| field.name != name.as_str())) {
                return Err(format!("{path}: there is no field `{stray}`"));
            }
            let field = |field: wasmtime::component::types::Field<'_>| {
                let given = fields.get(field.name).unwrap_or(&Value::Null);
                Ok((field.name.to_owned(), value(&format!("{path}.{}", field.name), given, &field.ty)?))
            };
            Val::Record(record.fields().map(field).collect::<Result<_, String>>()?)
        }
        Type::Enum(names) => {
            let first = names.names().next().map(String::from);
            let name = json.as_str().map(String::from).or(first.filter(|_| json.is_null()));
            let known = |name: &String| names.names().any(|known| known == name);
            Val::Enum(name.filter(known).ok_or_else(|| wrong("word of this enum"))?)
        }
        Type::Variant(variant) => {
            let (name, payload) = match json {
                Value::String(name) => (name.as_str(), &Value::Null),
                Value::Object(one) if one.len() == 1 => {
                    one.iter().next().map(|(name, value)| (name.as_str(), value)).unwrap_or(("", json))
                }
                _ => return Err(wrong("case of this variant")),
            };
            let case = variant.cases().find(|case| case.name == name).ok_or_else(|| wrong("case of this variant"))?;
            let payload = case.ty.map(|ty| value(&format!("{path}.{name}"), payload, &ty)).transpose()?;
            Val::Variant(name.to_owned(), payload.map(Box::new))
        }
        other => return Err(format!("{path}: {other:?} is no type of this contract")),
    })
}

fn plain(value: &Val) -> Value {
    match value {
        Val::Bool(flag) => json!(flag),
        Val::U32(number) => json!(number),
        Val::U64(number) => json!(number),
        Val::S64(number) => json!(number),
        Val::String(text) | Val::Enum(text) => json!(text),
        Val::List(items) => items.iter().map(plain).collect(),
        Val::Option(value) => value.as_deref().map_or(Value::Null, plain),
        Val::Record(fields) => Value::Object(fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect()),
        Val::Variant(name, None) => json!(name),
        Val::Variant(name, Some(payload)) => json!({ name: plain(payload) }),
        other => json!(format!("{other:?}")),
    }
}

/// Notes where an answer is not as expected. An object may have more fields than are expected; a
/// list has exactly so many items, in any order.
fn compare(path: &str, expected: &Value, got: &Value, differences: &mut Vec<String>) {
    match (expected, got) {
        (Value::Object(expected), Value::Object(got)) => {
            for (name, expected) in expected {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                compare(&path, expected, got.get(name).unwrap_or(&Value::Null), differences);
            }
        }
        (Value::Array(expected), Value::Array(got)) if expected.len() == got.len() => {
            let mut left: Vec<&Value> = got.iter().collect();
            for item in expected {
                match left.iter().position(|got| agrees(item, got)) {
                    Some(found) => drop(left.swap_remove(found)),
                    None => differences.push(format!("{path}: expected {item}, got {}", Value::from(got.clone()))),
                }
            }
        }
        // TOML has no null: `none` stands for what is absent.
        (Value::String(none), Value::Null) if none == "none" => {}
        _ if expected == got => {}
        _ => differences.push(format!("{path}: expected {expected}, got {got}")),
    }
}

fn agrees(expected: &Value, got: &Value) -> bool {
    let mut differences = Vec::new();
    compare("", expected, got, &mut differences);
    differences.is_empty()
}

fn collect_rules(answer: &Value, rules: &mut Vec<String>) {
    match answer {
        Value::Object(fields) => {
            rules.extend(fields.get("rule").and_then(Value::as_str).map(String::from));
            fields.values().for_each(|value| collect_rules(value, rules));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_rules(item, rules)),
        _ => {}
    }
}
