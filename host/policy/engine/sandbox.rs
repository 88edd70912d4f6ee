//! The sandbox of a call: a wasmtime store with limits, used once and then dropped.

use std::time::Duration;

use wasmtime::component::Linker;
use wasmtime::{Engine, PoolConcurrencyLimitError, ResourceLimiter, Store, Trap, UpdateDeadline};

use crate::engine::cpu_time;
use crate::engine::engines::{MEMORY_LIMIT, TABLE_ELEMENTS, TICK};
use crate::engine::notes::Notes;

/// The limits of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// In wall-clock time; of a patient store in processor time.
    pub deadline: Duration,
    pub memory_bytes: usize,
}

/// The wall-clock time that a patient store gives, in deadlines.
const PATIENCE: u32 = 8;

/// Deadline of one call of `describe` or `configure`.
const LOADING: Duration = Duration::from_secs(1);

impl Limits {
    /// The same limits with the deadline for loading, which happens only once.
    pub fn for_loading(self) -> Self {
        Self { deadline: LOADING, ..self }
    }

    /// The limits in the authors' tools, which test a module's responses. Whether a module also keeps
    /// to the limits of a host is tested by `culvert policy check`, and by the host before it loads the
    /// module.
    pub fn generous() -> Self {
        Self { deadline: Duration::from_secs(1), memory_bytes: MEMORY_LIMIT - 1024 * 1024 }
    }
}

/// Why a module gave no valid response. Every failure makes the request fail; none allows it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("it took longer than its deadline")]
    Timeout,
    #[error("it asked for more memory than it may use")]
    Memory,
    #[error("it trapped: {0}")]
    Trap(String),
    /// Its place and message.
    #[error("it panicked at {0}")]
    Panic(String),
    #[error("its answer breaks the contract: {0}")]
    Contract(String),
    #[error("no sandbox could be made: {0}")]
    Sandbox(String),
    /// It is not asked for some seconds.
    #[error("it timed out again and again; it is asked again in some seconds")]
    Breaker,
}

impl Failure {
    /// All causes.
    pub const CAUSES: [&str; 6] = ["timeout", "memory", "trap", "contract", "sandbox", "breaker"];

    /// The cause in one word, for logs and metrics.
    pub fn cause(&self) -> &'static str {
        match self {
            Failure::Timeout => "timeout",
            Failure::Memory => "memory",
            Failure::Trap(_) | Failure::Panic(_) => "trap",
            Failure::Contract(_) => "contract",
            Failure::Sandbox(_) => "sandbox",
            Failure::Breaker => "breaker",
        }
    }
}

/// A decision that failed: the module returned no valid response.
#[derive(Debug, thiserror::Error)]
#[error("policy {module} failed: {failure}")]
pub struct Failed {
    pub module: String,
    pub failure: Failure,
}

/// Most bytes of one response: more than any response that the contract allows.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;

pub struct Sandbox {
    /// Most bytes that all its memories may have together. `used_bytes` is what they have now.
    memory_bytes: usize,
    used_bytes: usize,
    refused_memory: bool,
    /// What the module has printed, where that is asked for.
    pub debug: Vec<String>,
}

impl Sandbox {
    fn new(Limits { memory_bytes, .. }: Limits) -> Self {
        Self { memory_bytes, used_bytes: 0, refused_memory: false, debug: Vec::new() }
    }
}

pub type SandboxStore = Store<Sandbox>;

/// Creates a linker that offers no functions, because a policy may import none.
pub fn linker(engine: &Engine) -> Linker<Sandbox> {
    Linker::new(engine)
}

pub fn store(engine: &Engine, limits: Limits) -> SandboxStore {
    let mut store = Store::new(engine, Sandbox::new(limits));
    store.limiter(|sandbox| sandbox);
    store.set_hostcall_fuel(ANSWER_BYTES);
    extend_deadline(&mut store, limits);
    store
}

/// Creates a store whose deadline is one of processor time, for a thread of low priority. It may take up to
/// [`PATIENCE`] times as long where the machine is busy.
pub(crate) fn patient_store(engine: &Engine, limits: Limits) -> SandboxStore {
    let mut store = store(engine, limits);
    let started = cpu_time::of_this_thread();
    let mut periods = 1;
    store.epoch_deadline_callback(move |_| {
        let used = cpu_time::of_this_thread().saturating_sub(started);
        // The first period ends a little before the deadline's processor time is used.
        if used >= limits.deadline.mul_f64(0.9) || periods == PATIENCE {
            return Ok(UpdateDeadline::Interrupt);
        }
        periods += 1;
        Ok(UpdateDeadline::Continue(ticks(limits.deadline)))
    });
    store
}

fn ticks(duration: Duration) -> u64 {
    // One tick more, because the first one may come at once.
    duration.div_duration_f64(TICK) as u64 + 1
}

/// Restarts the store's deadline from now.
pub fn extend_deadline(store: &mut SandboxStore, limits: Limits) {
    store.set_epoch_deadline(ticks(limits.deadline));
}

/// Starts counting the instructions of a store. The engine must be one that counts them as fuel.
///
/// # Errors
///
/// If the engine does not count instructions.
pub fn count_instructions(store: &mut SandboxStore) -> wasmtime::Result<()> {
    store.set_fuel(u64::MAX)
}

/// The number of instructions counted so far.
///
/// # Errors
///
/// If the engine does not count instructions.
pub fn instructions(store: &SandboxStore) -> wasmtime::Result<u64> {
    Ok(u64::MAX - store.get_fuel()?)
}

/// Classifies an error of wasmtime.
pub fn failure(store: &SandboxStore, error: &wasmtime::Error) -> Failure {
    match error.downcast_ref::<Trap>() {
        Some(Trap::Interrupt) => Failure::Timeout,
        _ if error.is::<PoolConcurrencyLimitError>() => Failure::Sandbox(error.root_cause().to_string()),
        _ if store.data().refused_memory => Failure::Memory,
        Some(trap) => match Notes::after(store, error).panic {
            Some(panic) => Failure::Panic(panic),
            None => Failure::Trap(trap.to_string().trim_start_matches("wasm trap: ").into()),
        },
        None => Failure::Contract(error.root_cause().to_string()),
    }
}

impl ResourceLimiter for Sandbox {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let used = self.used_bytes.saturating_add(desired.saturating_sub(current));
        let allowed = used <= self.memory_bytes;
        if allowed {
            self.used_bytes = used;
        }
        self.refused_memory |= !allowed || maximum.is_some_and(|maximum| desired > maximum);
        Ok(allowed)
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        64
    }

    fn memories(&self) -> usize {
        8
    }

    fn tables(&self) -> usize {
        8
    }
}
