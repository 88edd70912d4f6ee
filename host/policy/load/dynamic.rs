//! Requests and responses as JSON in the contract's own names, for the tools that do not know the types
//! of their requests in advance: cases, `run`, `bench`, `replay`.

use serde_json::{Map, Value, json};
use wasmtime::Engine;
use wasmtime::component::types::{self, ComponentItem};
use wasmtime::component::{Component, ComponentExportIndex, Instance, InstancePre, Type, Val};

use crate::engine::bindings::types::Description;
use crate::engine::contract;
use crate::engine::engines::Engines;
use crate::engine::kind::Kind;
use crate::engine::notes::{self, Notes};
use crate::engine::sandbox::{self, Failure, Limits, Sandbox, SandboxStore};
use crate::load::component::{Configured, Module};
use crate::load::described::Described;
use crate::load::load_error::LoadError;
use crate::load::snapshot;
use culvert_domain::field_path;
use culvert_domain::policy_fact::PolicyFacts;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The request is invalid: its path, and what is allowed there.
    #[error("{0}")]
    PolicyRequest(String),
    #[error("the module failed: {0}")]
    Failed(Failure),
}

/// A module that is called with JSON. Every request gets a fresh sandbox, as in a host.
pub struct UntypedModule {
    engine: Engine,
    component: Component,
    instances: InstancePre<Sandbox>,
    kind: Kind,
    description: Description,
    /// The facts that the module wants.
    pub facts: PolicyFacts,
    limits: Limits,
    /// The settings with which each new instance is configured; none if the module is configured
    /// already.
    settings: Option<String>,
    /// Whether instances keep the lines that they print.
    debugging: bool,
}

/// A request in the contract's types, for one of the functions that decide.
pub struct PreparedCall {
    function: ComponentExportIndex,
    arguments: Vec<Val>,
}

impl UntypedModule {
    /// A module that is configured already.
    ///
    /// # Errors
    ///
    /// If the engine does not accept the compiled code, or the module cannot be linked.
    pub fn new(engines: &Engines, module: &Configured) -> Result<Self, LoadError> {
        let engine = engines.shards()[0].of(module.size);
        let said = (module.description.clone(), module.facts);
        Self::on(engine, module.on(engine)?, module.kind, said, module.limits)
    }

    /// A module that is not configured yet. Each instance is configured before it is called.
    ///
    /// # Errors
    ///
    /// If the module cannot be linked. Settings that it refuses make each call fail instead.
    pub fn configuring(
        engines: &Engines,
        module: &Module,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Result<Self, LoadError> {
        let (engine, component) = (engines.loader(), module.compiled.clone());
        let said = (module.description.clone(), module.facts);
        let mut dynamic = Self::on(engine, component, module.kind, said, limits)?;
        dynamic.settings = Some(Value::Object(settings.clone()).to_string());
        let mut store = dynamic.store();
        // Rules and facts can come from the settings.
        if let Ok(instance) = dynamic.instance(&mut store) {
            sandbox::extend_deadline(&mut store, limits.for_loading());
            let Described { description, facts, .. } = Described::of_instance(&mut store, &instance)?;
            (dynamic.description, dynamic.facts) = (description, facts);
        }
        Ok(dynamic)
    }

    /// Uses an engine of the caller's, for instance one that counts instructions.
    ///
    /// # Errors
    ///
    /// If the component cannot be linked, for instance because it imports functions.
    pub fn on(
        engine: &Engine,
        component: Component,
        kind: Kind,
        (description, facts): (Description, PolicyFacts),
        limits: Limits,
    ) -> Result<Self, LoadError> {
        let instances = sandbox::linker(engine).instantiate_pre(&component);
        let instances = instances.map_err(|error| LoadError::Contract(error.root_cause().to_string()))?;
        Ok(Self {
            engine: engine.clone(),
            component,
            instances,
            kind,
            description,
            facts,
            limits,
            settings: None,
            debugging: false,
        })
    }

    /// Has the module's instances keep the lines that they print, in [`Sandbox::debug`].
    #[must_use]
    pub fn debugging(self) -> Self {
        Self { debugging: true, ..self }
    }

    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Calls one of the functions that decide: the one of the module's kind if `call` names none. What
    /// the request leaves out is absent, zero or empty.
    ///
    /// # Errors
    ///
    /// If the request is invalid, or the module gives no valid response.
    pub fn ask(&self, call: Option<&str>, request: &Value) -> Result<Value, CallError> {
        self.ask_in(&mut self.store(), call, request)
    }

    /// Calls one of the functions that decide, in this sandbox.
    ///
    /// # Errors
    ///
    /// As [`UntypedModule::ask`].
    pub fn ask_in(&self, store: &mut SandboxStore, call: Option<&str>, request: &Value) -> Result<Value, CallError> {
        let prepared = self.prepare(call, request)?;
        // A timeout is retried once, because the machine may have been busy.
        let response = match self.decide(store, &prepared) {
            Err(Failure::Timeout) => {
                *store = self.store();
                self.decide(store, &prepared)
            }
            response => response,
        };
        let response = plain(&response.map_err(CallError::Failed)?);
        contract::plain(&self.description, &response).map_err(|breach| CallError::Failed(Failure::Contract(breach)))?;
        Ok(response)
    }

    /// Converts a request to the contract's types. `call` is as for [`Self::ask`].
    ///
    /// # Errors
    ///
    /// If the module has no such function, or the request does not fit the function's types.
    pub fn prepare(&self, call: Option<&str>, request: &Value) -> Result<PreparedCall, CallError> {
        let name = call.unwrap_or(self.kind.decision());
        let interface = self.kind.export();
        let function = self.component.get_export(None, &interface);
        let function = function.and_then(|(_, interface)| self.component.get_export(Some(&interface), name));
        match function {
            Some((ComponentItem::ComponentFunc(ty), function)) => {
                let arguments = arguments(&ty, request).map_err(CallError::PolicyRequest)?;
                Ok(PreparedCall { function, arguments })
            }
            _ => Err(CallError::PolicyRequest(format!("there is no function `{name}` in {interface}"))),
        }
    }

    /// Creates a fresh sandbox.
    pub fn store(&self) -> SandboxStore {
        sandbox::store(&self.engine, self.limits)
    }

    /// Makes one call in this sandbox. The response is not checked.
    ///
    /// # Errors
    ///
    /// If the module gives no response. [`Failure`] says why.
    pub fn decide(&self, store: &mut SandboxStore, request: &PreparedCall) -> Result<Val, Failure> {
        let mut response = [Val::Bool(false)];
        let decided = self.instance(store).and_then(|instance| {
            if self.debugging {
                notes::enable_debugging(store, &instance);
            }
            let function = instance.get_func(&mut *store, request.function);
            let function = function.ok_or_else(|| wasmtime::format_err!("the decision is no function"))?;
            function.call(&mut *store, &request.arguments, &mut response)?;
            Ok(instance)
        });
        if self.debugging {
            let notes = match &decided {
                Ok(instance) => Notes::of(store, instance),
                Err(error) => Notes::after(store, error),
            };
            store.data_mut().debug = notes.debug;
        }
        decided.map_err(|error| match error.downcast::<LoadError>() {
            Ok(LoadError::Configure(failure)) => failure,
            Ok(refused) => Failure::Contract(refused.to_string()),
            Err(error) => sandbox::failure(store, &error),
        })?;
        let [response] = response;
        Ok(response)
    }

    /// Creates an instance, and configures it if the module is not configured yet.
    fn instance(&self, store: &mut SandboxStore) -> wasmtime::Result<Instance> {
        let instance = self.instances.instantiate(&mut *store)?;
        if let Some(settings) = &self.settings {
            sandbox::extend_deadline(store, self.limits.for_loading());
            snapshot::configure(store, &instance, settings).map_err(wasmtime::Error::new)?;
            sandbox::extend_deadline(store, self.limits);
        }
        Ok(instance)
    }
}

/// The arguments of a call. A single record parameter is the whole request; other parameters are looked
/// up in it by name.
fn arguments(function: &types::ComponentFunc, request: &Value) -> Result<Vec<Val>, String> {
    let parameters: Vec<(String, Type)> = function.params().map(|(name, ty)| (name.to_owned(), ty)).collect();
    if let [(_, ty @ Type::Record(_))] = parameters.as_slice() {
        return Ok(vec![value("", request, ty)?]);
    }
    let given = request.as_object().ok_or("the question is no object")?;
    if let Some(stray) = given.keys().find(|name| parameters.iter().all(|(known, _)| known != *name)) {
        return Err(stray_field(stray, parameters.iter().map(|(name, _)| name.as_str())));
    }
    parameters.iter().map(|(name, ty)| value(name, given.get(name).unwrap_or(&Value::Null), ty)).collect()
}

fn stray_field<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    format!("there is no field `{name}`; there are {}", known.collect::<Vec<_>>().join(", "))
}

/// Converts JSON to a value of this type; null stands for what was left out.
fn value(path: &str, json: &Value, ty: &Type) -> Result<Val, String> {
    let wrong = |wanted: &str| match path {
        "" => format!("{json} is no {wanted}"),
        path => format!("{path}: {json} is no {wanted}"),
    };
    let number = || json.as_i64().or_else(|| json.is_null().then_some(0)).ok_or_else(|| wrong("integer"));
    Ok(match ty {
        Type::Bool => Val::Bool(json.as_bool().or(json.is_null().then_some(false)).ok_or_else(|| wrong("boolean"))?),
        Type::U32 => Val::U32(u32::try_from(number()?).map_err(|_| wrong("u32"))?),
        Type::U64 => Val::U64(json.as_u64().or(json.is_null().then_some(0)).ok_or_else(|| wrong("u64"))?),
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
            let names = || record.fields().map(|field| field.name);
            if let Some(stray) = fields.keys().find(|name| names().all(|known| known != name.as_str())) {
                let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
                return Err(path + &stray_field(stray, names()));
            }
            let field = |field: types::Field<'_>| {
                let given = fields.get(field.name).unwrap_or(&Value::Null);
                Ok((field.name.to_owned(), value(&field_path::field(path, field.name), given, &field.ty)?))
            };
            Val::Record(record.fields().map(field).collect::<Result<_, String>>()?)
        }
        Type::Enum(names) => {
            let first = names.names().next().map(String::from);
            let name = json.as_str().map(String::from).or(first.filter(|_| json.is_null()));
            let known = |name: &String| names.names().any(|known| known == name);
            let all = || names.names().collect::<Vec<_>>().join(", ");
            Val::Enum(name.filter(known).ok_or_else(|| wrong(&format!("word of {}", all())))?)
        }
        Type::Variant(variant) => {
            let (name, payload) = match json {
                Value::String(name) => (name.as_str(), &Value::Null),
                Value::Object(one) if one.len() == 1 => {
                    one.iter().next().map_or(("", json), |(name, value)| (name.as_str(), value))
                }
                _ => ("", &Value::Null),
            };
            let all = || variant.cases().map(|case| case.name).collect::<Vec<_>>().join(", ");
            let case = variant.cases().find(|case| case.name == name);
            let case = case.ok_or_else(|| wrong(&format!("case of {}", all())))?;
            let payload = case.ty.map(|ty| value(&field_path::field(path, name), payload, &ty)).transpose()?;
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
