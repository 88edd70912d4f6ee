//! The wasmtime engines that run policies, and the thread that enforces their deadlines.
//!
//! Decisions run on *shards*: one engine a core, each with its own pool of instances, because two
//! threads that share one engine decide hardly more than one thread does. A module is compiled once and
//! loaded into every shard as compiled code. Modules are loaded on a separate engine, which allocates
//! on demand and so is not limited by the sizes of the pool. Large modules, such as those that contain
//! an interpreter, also run on an engine that allocates on demand. Between the two are modules of which copying the
//! whole content takes longer than finding out what a call has written.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wasmtime::{
    CacheStore, Config, Enabled, Engine, EngineWeak, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
};

/// The unit of every deadline: the interval at which the engines' epochs are incremented.
pub const TICK: Duration = Duration::from_millis(1);

/// Most instances in a shard's pool. Calls are synchronous, so a thread uses one at a time.
const INSTANCES: u32 = 64;
/// Most core modules and most tables of one component. A Rust guest is one module with one table.
const PER_COMPONENT: u32 = 8;
/// Bytes of memory that the pool keeps resident between instances: to copy the initial content into
/// them is cheaper than a page fault.
const KEEP_RESIDENT: usize = 1024 * 1024;
/// Bytes of address space reserved for one memory. Compiled code depends on it, so it is the same on
/// every engine.
const MEMORY_RESERVATION: u64 = 64 << 20;
const MEMORY_GUARD: u64 = 64 << 10;

/// Most bytes of memory that a module can be given.
pub const MEMORY_LIMIT: usize = MEMORY_RESERVATION as usize;
/// Most elements of one table. A Rust guest has some hundreds, an interpreter some thousands.
pub const TABLE_ELEMENTS: usize = 20_000;

pub struct Engines {
    loader: Engine,
    shards: Vec<ShardEngines>,
}

/// The engines of one shard. Compiled code runs on either.
pub struct ShardEngines {
    pooled: Engine,
    scanned: Engine,
    on_demand: Engine,
}

/// How the instances of a module are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// From a pool that copies the whole initial content again.
    Small,
    /// From a pool that asks the system which pages were written, where it is Linux 6.7 or newer, and copies these alone.
    /// That costs less than a microsecond more, however much memory there is.
    Medium,
    /// From fresh memory, in some tens of microseconds.
    Large,
}

impl ShardEngines {
    pub fn of(&self, size: Size) -> &Engine {
        match size {
            Size::Small => &self.pooled,
            Size::Medium => &self.scanned,
            Size::Large => &self.on_demand,
        }
    }
}

impl Engines {
    /// Creates engines with `shards` shards, at least one, and a thread that increments their epochs
    /// until the engines are dropped.
    ///
    /// # Errors
    ///
    /// If wasmtime cannot create an engine on this machine. Where only the pool cannot be created, the
    /// instances are allocated on demand.
    pub fn new(shards: usize) -> wasmtime::Result<Self> {
        let loader = Engine::new(&loading())?;
        let shards = (0..shards.max(1)).map(|_| shard()).collect::<wasmtime::Result<Vec<_>>>()?;
        let engines = shards.iter().flat_map(|shard| [&shard.pooled, &shard.scanned, &shard.on_demand]);
        tick(engines.chain([&loader]).map(Engine::weak).collect());
        Ok(Self { loader, shards })
    }

    pub fn loader(&self) -> &Engine {
        &self.loader
    }

    pub fn shards(&self) -> &[ShardEngines] {
        &self.shards
    }
}

/// The index of the calling thread's shard, below `shards`. Threads are assigned to shards in turn and
/// keep theirs.
pub fn shard_of_this_thread(shards: usize) -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static THREAD: Cell<Option<usize>> = const { Cell::new(None) });
    THREAD.with(|thread| {
        let number = thread.get().unwrap_or_else(|| THREADS.fetch_add(1, Ordering::Relaxed));
        thread.set(Some(number));
        number % shards
    })
}

/// Creates an engine that compiles for the loader. An engine keeps what its compiler has allocated, more than 100 MiB
/// after a large module, so this one is dropped after one module. What `functions` hold is not compiled again.
///
/// # Errors
///
/// If wasmtime cannot create the engine on this machine.
pub fn compiling_for_loader(functions: Option<Arc<dyn CacheStore>>) -> wasmtime::Result<Engine> {
    compiling(loading(), functions)
}

/// The same for the shards. What `functions` hold is not compiled again.
///
/// # Errors
///
/// If wasmtime cannot create the engine on this machine.
pub fn compiling_for_shards(functions: Option<Arc<dyn CacheStore>>) -> wasmtime::Result<Engine> {
    compiling(base(), functions)
}

fn compiling(mut config: Config, functions: Option<Arc<dyn CacheStore>>) -> wasmtime::Result<Engine> {
    if let Some(functions) = functions {
        config.enable_incremental_compilation(functions)?;
    }
    Engine::new(&config)
}

/// Creates an engine that counts instructions as fuel, for the authors' tools. It has no deadline.
///
/// # Errors
///
/// If wasmtime cannot create the engine on this machine.
pub fn counting() -> wasmtime::Result<Engine> {
    let mut config = base();
    config.consume_fuel(true).epoch_interruption(false);
    Engine::new(&config)
}

/// The configuration that all engines share. Compiled code can be moved only between engines that agree
/// on it.
fn base() -> Config {
    let mut config = Config::new();
    config
        .epoch_interruption(true)
        .concurrency_support(false)
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        // Gives access to the memory of a module that has trapped.
        .coredump_on_trap(true)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .memory_init_cow(true)
        .memory_reservation(MEMORY_RESERVATION)
        .memory_reservation_for_growth(0)
        .memory_guard_size(MEMORY_GUARD);
    config
}

/// The configuration of the engine for loading. Its code runs only once or twice, so compiling fast matters more
/// than fast code.
fn loading() -> Config {
    let mut config = base();
    config.cranelift_opt_level(OptLevel::None);
    config
}

fn shard() -> wasmtime::Result<ShardEngines> {
    let on_demand = Engine::new(&base())?;
    Ok(ShardEngines { pooled: pooled(Enabled::No)?, scanned: pooled(Enabled::Auto)?, on_demand })
}

fn pooled(scan: Enabled) -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(INSTANCES)
        .total_core_instances(INSTANCES * PER_COMPONENT)
        .total_memories(INSTANCES)
        .total_tables(INSTANCES * PER_COMPONENT)
        .max_core_instances_per_component(PER_COMPONENT)
        .max_tables_per_component(PER_COMPONENT)
        .max_memory_size(MEMORY_LIMIT)
        .table_elements(TABLE_ELEMENTS)
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(4 * 1024)
        .pagemap_scan(scan);
    let mut pooled = base();
    pooled.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&pooled).or_else(|error| {
        tracing::warn!(%error, "no pool of policy instances on this machine; each decision allocates its own memory");
        Engine::new(&base())
    })
}

/// Starts the thread that increments the epochs. It is a thread of the operating system, because a
/// deadline must be enforced even while every async worker is inside a policy. It ends when the engines
/// are dropped.
fn tick(engines: Vec<EngineWeak>) {
    let ticking = move || {
        loop {
            std::thread::sleep(TICK);
            let mut alive = false;
            for engine in engines.iter().filter_map(EngineWeak::upgrade) {
                engine.increment_epoch();
                alive = true;
            }
            if !alive {
                break;
            }
        }
    };
    std::thread::Builder::new()
        .name("policy-ticks".into())
        .spawn(ticking)
        .expect("the operating system has a thread for the policy engine");
}
