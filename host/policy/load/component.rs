//! One policy module, from its bytes to compiled code that can decide.
//!
//! A module's file is not trusted. It must be a component of the kind that its entry in the
//! configuration names, import no function, describe itself, and accept its settings, all within
//! limits. The result is the compiled code of a configured snapshot.

use std::fmt;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload};
use wasmtime::component::Component;
use wasmtime::component::types::ComponentItem;
use wasmtime::{CacheStore, Engine};

use crate::engine::bindings::types::Description;
use crate::engine::engines::{self, Engines, MEMORY_LIMIT, Size, TABLE_ELEMENTS};
use crate::engine::kind::{INTERFACE_VERSION, Kind};
use crate::engine::sandbox::Limits;
use crate::load::artefact::Artefacts;
use crate::load::described::Described;
use crate::load::function_cache::FunctionCache;
use crate::load::load_error::{self, LoadError};
use crate::load::machine_code::MachineCode;
use crate::load::{SIZE_LIMIT, schema, snapshot};
use culvert_domain::policy_fact::PolicyFacts;

const TYPES: &str = "culvert:policy/types@";
/// Most bytes of initial memory for all of it to be copied after each call, and for a module to run in a pool.
const SMALL_BYTES: usize = 256 * 1024;
const MEDIUM_BYTES: usize = 1024 * 1024;
/// Most bytes of a module whose compiled functions are kept for other modules of its kind as well.
const SHARED_BYTES: usize = 1024 * 1024;

/// A module that was read and described, but not yet configured.
pub struct Module {
    pub wasm: Vec<u8>,
    pub kind: Kind,
    /// SHA-256 of the file, in hexadecimal.
    pub digest: String,
    pub description: Description,
    /// The facts that it wants before it is configured.
    pub facts: PolicyFacts,
    pub initial_memory_bytes: usize,
    /// The instrumented component, compiled for the loader's engine. The instrumentation reads its
    /// memory.
    pub compiled: Component,
    /// The schema of its settings.
    schema: Validator,
    size: Size,
    /// The names of the artefacts of loading: its compiled form and, if they are shared, its functions for the loader.
    loading: Vec<String>,
    /// The names of the artefacts that keep its functions, compiled for the shards: its own, and that of the module of its
    /// kind that was compiled last, of which it may be another version.
    functions: Vec<String>,
}

/// A configured and compiled module, from which shards create instances.
pub struct Configured {
    pub kind: Kind,
    pub digest: String,
    /// SHA-256 of its settings, in hexadecimal.
    pub settings_digest: String,
    /// What the module says of itself once it is configured.
    pub description: Description,
    /// The facts that it wants.
    pub facts: PolicyFacts,
    pub limits: Limits,
    /// Bytes of memory that an instance starts with.
    pub memory_bytes: usize,
    pub size: Size,
    /// Names of the files that hold compiled forms of it.
    pub artefacts: Vec<String>,
    code: MachineCode,
}

impl Module {
    /// Reads a module, which is to be of this kind if one is named, and calls its `describe`.
    ///
    /// # Errors
    ///
    /// If the module is too large, is no component, imports functions or does not fit the contract, or its
    /// `describe` fails.
    pub fn read(
        engines: &Engines,
        artefacts: &Artefacts,
        wasm: Vec<u8>,
        kind: Option<Kind>,
    ) -> Result<Self, LoadError> {
        guarded(|| read(engines, artefacts, wasm, kind))
    }

    /// Configures the module with these settings and compiles the result.
    ///
    /// # Errors
    ///
    /// If the memory is too small, the settings do not fit, `configure` fails, or the result cannot be
    /// compiled.
    pub fn configure(
        &self,
        engines: &Engines,
        artefacts: &Artefacts,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Result<Configured, LoadError> {
        guarded(|| configure(self, engines, artefacts, settings, limits))
    }

    /// The component with the settings applied, not yet compiled.
    ///
    /// # Errors
    ///
    /// If `configure` fails or refuses the settings, or the configured state cannot be read.
    pub fn snapshot(
        &self,
        engines: &Engines,
        settings: &Map<String, Value>,
        limits: Limits,
    ) -> Result<Vec<u8>, LoadError> {
        let settings = Value::Object(settings.clone()).to_string();
        guarded(|| snapshot(self, engines, &settings, limits))
    }
}

impl Configured {
    /// Loads the module into one of a shard's engines.
    ///
    /// # Errors
    ///
    /// If the engine does not accept the compiled code.
    pub fn on(&self, engine: &Engine) -> Result<Component, LoadError> {
        self.code.on(engine).map_err(|e| LoadError::NotAComponent(e.to_string()))
    }
}

/// Fails if a component needs more memory to start than it is given. Asked before it is compiled, which takes longest.
///
/// # Errors
///
/// [`LoadError::Memory`].
pub fn check_memory(wasm: &[u8], limits: Limits) -> Result<(), LoadError> {
    let needs = initial_memory(wasm);
    if needs > limits.memory_bytes {
        return Err(LoadError::Memory { needs: needs.div_ceil(1024), given: limits.memory_bytes / 1024 });
    }
    Ok(())
}

/// The bytes that the largest memory in a component starts with; 0 for what cannot be read.
fn initial_memory(wasm: &[u8]) -> usize {
    let memories = Parser::new(0).parse_all(wasm).map_while(Result::ok).filter_map(|payload| match payload {
        Payload::MemorySection(memories) => memories.into_iter().flatten().map(|memory| memory.initial).max(),
        _ => None,
    });
    usize::try_from(memories.max().unwrap_or(0)).unwrap_or(usize::MAX).saturating_mul(64 * 1024)
}

fn read(engines: &Engines, artefacts: &Artefacts, wasm: Vec<u8>, wanted: Option<Kind>) -> Result<Module, LoadError> {
    if wasm.len() > SIZE_LIMIT {
        return Err(LoadError::TooLarge);
    }
    if wasm.starts_with(b"\0asm\x01\0\0\0") {
        return Err(LoadError::CoreModule);
    }
    let engine = engines.loader();
    let key = artefacts.key(engine, &[b"instrumented", &wasm]);
    let shared = |engine, what: &[u8]| {
        let kind = wanted.filter(|_| wasm.len() <= SHARED_BYTES)?;
        Some(artefacts.key(engine, &[what, kind.name().as_bytes()]))
    };
    let instrumented: Vec<String> = shared(engine, b"instrumented functions of").into_iter().collect();
    let code = match artefacts.find(&key) {
        Some(code) => code,
        None => artefacts.kept(&key, compile(engine, artefacts, &instrumented, &wasm)?),
    };
    let compiled = MachineCode::new(code).on(engine).map_err(LoadError::snapshot)?;
    let kind = kind_of(engine, &compiled)?;
    refuse_imports(engine, &compiled)?;
    let Described { description, facts, schema } = Described::of(engine, &compiled)?;
    let (initial_memory_bytes, size) = needs(&compiled);
    let digest = hex::encode(Sha256::digest(&wasm));
    let shard = engines.shards()[0].of(size);
    let own = artefacts.key(shard, &[b"functions", &wasm]);
    let functions = std::iter::once(own).chain(shared(shard, b"functions of")).collect();
    Ok(Module {
        wasm,
        kind,
        digest,
        description,
        facts,
        initial_memory_bytes,
        compiled,
        schema,
        size,
        loading: [vec![key], instrumented].concat(),
        functions,
    })
}

/// The instrumented component, compiled for the loader's engine.
fn compile(loader: &Engine, artefacts: &Artefacts, functions: &[String], wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
    let not = |error: wasmtime::Error| LoadError::NotAComponent(load_error::chain(&error));
    let precompile = |wasm: Vec<u8>| {
        with_functions(artefacts, functions, |functions| {
            let engine = engines::compiling_for_loader(functions).map_err(LoadError::snapshot)?;
            engine.precompile_component(&wasm).map_err(not)
        })
    };
    snapshot::instrumented(wasm).and_then(precompile).or_else(|error| {
        // What cannot be instrumented is mostly no policy at all, so the errors about that come first.
        let component = Component::from_binary(loader, wasm).map_err(not)?;
        kind_of(loader, &component)?;
        refuse_imports(loader, &component)?;
        Described::of(loader, &component)?;
        Err(error)
    })
}

/// A configured component, compiled for the shards.
fn compile_configured(module: &Module, artefacts: &Artefacts, snapshot: &[u8]) -> Result<Vec<u8>, LoadError> {
    with_functions(artefacts, &module.functions, |functions| {
        let engine = engines::compiling_for_shards(functions).map_err(LoadError::snapshot)?;
        engine.precompile_component(snapshot).map_err(LoadError::snapshot)
    })
}

/// Compiles with the functions that the first of these artefacts to be found has, and keeps the functions in all of them.
/// So what did not change, be it with other settings or with another version of a module, is not compiled again.
fn with_functions(
    artefacts: &Artefacts,
    names: &[String],
    compile: impl Fn(Option<Arc<dyn CacheStore>>) -> Result<Vec<u8>, LoadError>,
) -> Result<Vec<u8>, LoadError> {
    if !artefacts.keeps() || names.is_empty() {
        return compile(None);
    }
    let kept = names.iter().find_map(|name| artefacts.find(name));
    let functions = Arc::new(FunctionCache::decode(kept.unwrap_or_default()));
    let code = compile(Some(functions.clone()))?;
    if let Some(functions) = functions.encode() {
        names.iter().for_each(|name| artefacts.keep(name, &functions));
    }
    Ok(code)
}

/// The bytes of memory that an instance starts with, and how it is allocated.
fn needs(component: &Component) -> (usize, Size) {
    let Some(needs) = component.resources_required() else { return (0, Size::Large) };
    let bytes = |pages: u64| usize::try_from(pages).unwrap_or(usize::MAX).saturating_mul(64 * 1024);
    let memory = needs.max_initial_memory_size.map_or(0, bytes);
    let large = memory > MEDIUM_BYTES
        || needs.num_memories > 1
        || needs.max_initial_table_size.is_some_and(|elements| elements > TABLE_ELEMENTS as u64);
    let size = match memory {
        _ if large => Size::Large,
        0..=SMALL_BYTES => Size::Small,
        _ => Size::Medium,
    };
    (memory, size)
}

fn configure(
    module: &Module,
    engines: &Engines,
    artefacts: &Artefacts,
    settings: &Map<String, Value>,
    limits: Limits,
) -> Result<Configured, LoadError> {
    check_memory(&module.wasm, limits)?;
    debug_assert!(limits.memory_bytes <= MEMORY_LIMIT, "the configuration is bounded");
    let settings = Value::Object(settings.clone());
    let problems = schema::problems(&module.schema, &settings);
    if !problems.is_empty() {
        return Err(LoadError::Settings(problems));
    }
    let settings = settings.to_string();
    let settings_digest = hex::encode(Sha256::digest(&settings));
    let engine = engines.shards()[0].of(module.size);
    let key = artefacts.key(engine, &[&module.wasm, settings.as_bytes(), &limits.memory_bytes.to_le_bytes()]);
    let code = if let Some(code) = artefacts.find(&key) {
        code
    } else {
        let snapshot = snapshot(module, engines, &settings, limits)?;
        artefacts.kept(&key, compile_configured(module, artefacts, &snapshot)?)
    };
    let code = MachineCode::new(code);
    let component = code.on(engine).map_err(LoadError::snapshot)?;
    // Asked again, because rules and facts can come from the settings, and so can what takes more memory.
    let Described { description, facts, .. } = Described::of(engine, &component)?;
    let (memory_bytes, size) = needs(&component);
    let Module { kind, digest, .. } = module;
    Ok(Configured {
        kind: *kind,
        digest: digest.clone(),
        settings_digest,
        description,
        facts,
        limits,
        memory_bytes,
        size,
        artefacts: [&module.functions[..], &module.loading, &[key]].concat(),
        code,
    })
}

fn snapshot(module: &Module, engines: &Engines, settings: &str, limits: Limits) -> Result<Vec<u8>, LoadError> {
    snapshot::configured(engines, &module.wasm, &module.compiled, settings, limits.for_loading())
}

/// The kind of a component, by the interfaces that it exports.
fn kind_of(engine: &Engine, component: &Component) -> Result<Kind, LoadError> {
    let ty = component.component_type();
    let mut exported = None;
    for (name, _) in ty.exports(engine) {
        let Some((interface, version)) = name.strip_prefix("culvert:policy/").and_then(|n| n.split_once('@')) else {
            continue;
        };
        if !offers(version) {
            return Err(LoadError::Version { needs: version.into() });
        }
        exported = Kind::ALL.into_iter().find(|kind| kind.interface() == interface).or(exported);
    }
    exported.ok_or(LoadError::Contract("it exports neither plans, roles nor inputs of `culvert:policy`".into()))
}

/// Whether a module built for this version of the interface can be linked.
fn offers(version: &str) -> bool {
    version == INTERFACE_VERSION
}

/// Fails if the component imports functions or resources. Types may be imported, because they run no
/// code.
fn refuse_imports(engine: &Engine, component: &Component) -> Result<(), LoadError> {
    for (name, import) in component.component_type().imports(engine) {
        let ComponentItem::ComponentInstance(instance) = import.ty else {
            return Err(LoadError::Import(name.into()));
        };
        let item = instance.exports(engine).find(|(_, item)| !matches!(item.ty, ComponentItem::Type(_)));
        match item {
            Some((item, _)) => return Err(LoadError::Import(format!("{name}/{item}"))),
            None if !name.starts_with(TYPES) => return Err(LoadError::Import(name.into())),
            None => {}
        }
    }
    Ok(())
}

/// Runs `load` on its own thread, because the compilers process untrusted bytes and may panic. A panic
/// becomes an error.
fn guarded<T: Send>(load: impl FnOnce() -> Result<T, LoadError> + Send) -> Result<T, LoadError> {
    std::thread::scope(|scope| scope.spawn(load).join()).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().cloned();
        let message = message.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        Err(LoadError::Panic(message.unwrap_or_default()))
    })
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({} {})", self.kind, self.description.name)
    }
}
