//! Configures a module once and keeps the resulting memory as a snapshot.
//!
//! The instrumented component is configured in a sandbox. The content of its memory and globals then
//! becomes the initial state of a new component, from which every decision starts.

use futures_util::FutureExt;
use wasmtime::component::{Component, Instance, Lift, WasmList};
use wasmtime_wizer::{ComponentInstanceState, Wizer};

use crate::engine::bindings::types::Problem;
use crate::engine::engines::Engines;
use crate::engine::sandbox::{self, Limits, SandboxStore};
use crate::load::guest::module_function;
use crate::load::load_error::LoadError;

/// Bytes by which a memory grows when it is read: room for the header of its copy.
const SNAPSHOT_ROOM: usize = 128 * 1024;

/// The component with additional functions that read its memory.
///
/// # Errors
///
/// If the bytes are no component that can be instrumented.
pub fn instrumented(wasm: &[u8]) -> Result<Vec<u8>, LoadError> {
    Wizer::new().instrument_component(wasm).map(|(_, instrumented)| instrumented).map_err(LoadError::snapshot)
}

/// The component with these settings applied. `compiled` must be the result of [`instrumented`].
///
/// # Errors
///
/// If `configure` fails or refuses the settings, or the configured state cannot be read.
pub fn configured(
    engines: &Engines,
    wasm: &[u8],
    compiled: &Component,
    settings: &str,
    limits: Limits,
) -> Result<Vec<u8>, LoadError> {
    let wizer = Wizer::new();
    let (context, _) = wizer.instrument_component(wasm).map_err(LoadError::snapshot)?;
    let engine = engines.loader();
    let instances = sandbox::linker(engine).instantiate_pre(compiled).map_err(LoadError::snapshot)?;

    let limits = Limits { memory_bytes: limits.memory_bytes + SNAPSHOT_ROOM, ..limits };
    let mut store = sandbox::store(engine, limits);
    let instance = instances.instantiate(&mut store).map_err(|e| LoadError::configure(&store, &e))?;
    configure(&mut store, &instance, settings)?;

    sandbox::extend_deadline(&mut store, limits);
    // The whole memory is copied, and some of it again where it consists of several pieces.
    store.set_hostcall_fuel(2 * limits.memory_bytes);
    let mut state = State { store, instance, memory_bytes: limits.memory_bytes, failed: None };
    // `now_or_never` suffices, because `State` never waits.
    let snapshot = wizer.snapshot_component(&context, &mut state).now_or_never();
    match (state.failed, snapshot) {
        (Some(error), _) => Err(LoadError::unreadable(error)),
        (None, Some(snapshot)) => snapshot.map_err(LoadError::snapshot),
        (None, None) => Err(LoadError::snapshot(wasmtime::format_err!("the snapshot waits for something"))),
    }
}

/// Calls the instance's `configure` with its settings.
///
/// # Errors
///
/// If the instance has no `configure`, or it fails or refuses the settings.
pub fn configure(store: &mut SandboxStore, instance: &Instance, settings: &str) -> Result<(), LoadError> {
    let configure = module_function::<(&str,), (Result<(), Vec<Problem>>,)>(store, instance, "configure")
        .map_err(|e| LoadError::configure(store, &e))?;
    let (answer,) = configure.call(&mut *store, (settings,)).map_err(|e| LoadError::configure(store, &e))?;
    answer.map_err(LoadError::settings)
}

/// Reads the state of a configured instance for the snapshot. The trait's methods cannot fail, so the
/// first error is kept and harmless values are returned after it.
struct State {
    store: SandboxStore,
    instance: Instance,
    memory_bytes: usize,
    failed: Option<wasmtime::Error>,
}

impl State {
    fn call<T: Lift + Send + Sync + 'static>(&mut self, instance: &str, function: &str) -> wasmtime::Result<T> {
        let missing = || wasmtime::format_err!("the instrumented component has no {instance}/{function}");
        let store = &mut self.store;
        let (_, interface) = self.instance.get_export(&mut *store, None, instance).ok_or_else(missing)?;
        let (_, index) = self.instance.get_export(&mut *store, Some(&interface), function).ok_or_else(missing)?;
        let function = self.instance.get_typed_func::<(), (T,)>(&mut *store, index)?;
        Ok(function.call(&mut *store, ())?.0)
    }

    fn number<T: Lift + Send + Sync + Default + 'static>(&mut self, instance: &str, function: &str) -> T {
        self.call(instance, function).unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            T::default()
        })
    }
}

impl ComponentInstanceState for State {
    async fn call_func_ret_list_u8(&mut self, instance: &str, function: &str, contents: impl FnOnce(&[u8]) + Send) {
        match self.call::<WasmList<u8>>(instance, function) {
            Ok(list) => contents(list.as_le_slice(&self.store)),
            Err(error) => {
                self.failed.get_or_insert(error);
                // The reader expects content, and its result is discarded because of the error.
                contents(&vec![0; self.memory_bytes]);
            }
        }
    }

    async fn call_func_ret_s32(&mut self, instance: &str, function: &str) -> i32 {
        self.number(instance, function)
    }

    async fn call_func_ret_s64(&mut self, instance: &str, function: &str) -> i64 {
        self.number(instance, function)
    }

    async fn call_func_ret_f32(&mut self, instance: &str, function: &str) -> u32 {
        self.number::<f32>(instance, function).to_bits()
    }

    async fn call_func_ret_f64(&mut self, instance: &str, function: &str) -> u64 {
        self.number::<f64>(instance, function).to_bits()
    }
}
