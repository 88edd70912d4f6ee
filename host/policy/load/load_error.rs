//! Why a module was not loaded.

use wasmtime::Trap;

use crate::engine::bindings::types::Problem;
use crate::engine::kind::{INTERFACE_VERSION, Kind};
use crate::engine::sandbox::{self, Failure, SandboxStore};
use crate::load::SIZE_LIMIT;

/// Why a module was not loaded. Each message says what the author or operator can do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("it is larger than {} MiB", SIZE_LIMIT >> 20)]
    TooLarge,
    #[error("it is a core WebAssembly module, not a component; `culvert policy build` makes components")]
    CoreModule,
    #[error("it is no WebAssembly component: {0}")]
    NotAComponent(String),
    #[error("it imports `{0}`; a policy imports nothing (build it for wasm32-unknown-unknown, without WASI)")]
    Import(String),
    #[error(
        "it needs policy API {needs}, this host offers {INTERFACE_VERSION}; build it with this release's SDK, or load it \
         into a host that offers {needs}"
    )]
    Version { needs: String },
    #[error("it is no {wanted} policy: it exports no `culvert:policy/{}`{}", wanted.interface(), found(*.exported))]
    World { wanted: Kind, exported: Option<Kind> },
    #[error("it does not fit the contract in wit/: {0}")]
    Contract(String),
    #[error("it needs {needs} KiB of memory before it starts; memory_kib gives it {given}")]
    Memory { needs: usize, given: usize },
    #[error("its describe failed: {0}")]
    Describe(Failure),
    #[error("its configure failed: {0}")]
    Configure(Failure),
    #[error("its settings do not fit: {}", problems(.0))]
    Settings(Vec<Problem>),
    #[error("its own case fails, so it was not built for this host: {0}")]
    Case(String),
    #[error("its cases cannot be run: {0}")]
    Cases(String),
    #[error("its configured state cannot be kept: {0}")]
    Snapshot(String),
    #[error(
        "its memory cannot grow by the 128 KiB that keeping its configured state takes; give it a larger maximum, or none"
    )]
    FullMemory,
    #[error("the WebAssembly engine did not start: {0}")]
    Engine(String),
    #[error("loading it panicked; please report this with the module: {0}")]
    Panic(String),
}

impl LoadError {
    pub fn engine(error: wasmtime::Error) -> Self {
        LoadError::Engine(error.root_cause().to_string())
    }

    pub(crate) fn snapshot(error: wasmtime::Error) -> Self {
        LoadError::Snapshot(error.root_cause().to_string())
    }

    /// Reading a configured module traps in one case only: its memory cannot grow to hold the copy.
    pub(crate) fn unreadable(error: wasmtime::Error) -> Self {
        if error.is::<Trap>() { LoadError::FullMemory } else { Self::snapshot(error) }
    }

    pub(crate) fn configure(store: &SandboxStore, error: &wasmtime::Error) -> Self {
        LoadError::Configure(sandbox::failure(store, error))
    }

    pub(crate) fn settings(problems: Vec<Problem>) -> Self {
        LoadError::Settings(problems)
    }
}

fn found(exported: Option<Kind>) -> String {
    exported.map(|kind| format!("; it is a {kind} policy")).unwrap_or_default()
}

fn problems(problems: &[Problem]) -> String {
    let one = |p: &Problem| match p.path.as_str() {
        "" => p.message.clone(),
        path => format!("{path}: {}", p.message),
    };
    problems.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &wasmtime::Error) -> String {
    let text = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
