//! What a module says of itself, checked.

use jsonschema::Validator;
use wasmtime::component::{Component, Instance};
use wasmtime::{Engine, Error};

use crate::engine::bindings::types::Description;
use crate::engine::engines::MEMORY_LIMIT;
use crate::engine::facts;
use crate::engine::sandbox::{self, Failure, Limits, SandboxStore};
use crate::load::guest::module_function;
use crate::load::load_error::{self, LoadError};
use crate::load::schema;
use culvert_domain::policy_fact::PolicyFacts;

pub(crate) struct Described {
    pub(crate) description: Description,
    pub(crate) facts: PolicyFacts,
    /// The schema of its settings.
    pub(crate) schema: Validator,
}

impl Described {
    /// Calls `describe` of a component in a sandbox of its own.
    ///
    /// # Errors
    ///
    /// If the component cannot be linked, `describe` fails, or a code, a fact or the schema in the description is
    /// not valid.
    pub(crate) fn of(engine: &Engine, component: &Component) -> Result<Self, LoadError> {
        let limits = Limits { memory_bytes: MEMORY_LIMIT, ..Limits::generous() }.for_loading();
        let mut store = sandbox::store(engine, limits);
        let contract = |error: Error| LoadError::Contract(load_error::chain(&error));
        let instances = sandbox::linker(engine).instantiate_pre(component).map_err(contract)?;
        let instance = instances.instantiate(&mut store).map_err(|e| failed(&store, &e))?;
        Self::of_instance(&mut store, &instance)
    }

    /// Calls `describe` of an instance.
    ///
    /// # Errors
    ///
    /// As [`Described::of`].
    pub(crate) fn of_instance(store: &mut SandboxStore, instance: &Instance) -> Result<Self, LoadError> {
        let described = module_function::<(), (Description,)>(store, instance, "describe")
            .and_then(|describe| describe.call(&mut *store, ()));
        let (description,) = described.map_err(|e| failed(store, &e))?;
        let invalid = |what: String| LoadError::Describe(Failure::Contract(what));
        if let Some(code) = description.codes.iter().find(|code| !culvert_domain::error::is_code(&code.code)) {
            return Err(invalid(format!("`{}` is no code; a code is `^[a-z][a-z0-9_]{{2,63}}$`", code.code)));
        }
        let no_schema =
            |problem: &dyn std::fmt::Display| invalid(format!("settings-schema is no JSON Schema: {problem}"));
        let json = schema::parse(&description.settings_schema).map_err(|problem| no_schema(&problem))?;
        let schema = schema::compile(&json).map_err(|problem| no_schema(&problem))?;
        let facts = facts::wanted(&json).map_err(invalid)?;
        Ok(Self { description, facts, schema })
    }
}

fn failed(store: &SandboxStore, error: &Error) -> LoadError {
    LoadError::Describe(sandbox::failure(store, error))
}
