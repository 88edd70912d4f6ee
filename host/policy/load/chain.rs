//! The `[[policy]]` entries of the configuration, and how they become the modules of a set.
//!
//! Every mistake that an operator can make is reported here, in one line that names the entry.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use culvert_wire::clock::Clock;
use sha2::{Digest, Sha256};

use crate::engine::engines::{Engines, MEMORY_LIMIT};
use crate::engine::kind::Kind;
use crate::engine::sandbox::Limits;
use crate::load::artefact::Artefacts;
use crate::load::bundle;
use crate::load::cases::{CasesError, File, Outcome};
use crate::load::component::{self, Configured, Module};
use crate::load::load_error::LoadError;
use crate::load::memory;
use crate::load::module_source::{Origins, Places, SourceError, Sourced};
use crate::load::module_store::ModuleStore;
use crate::load::policies::{ModuleBytes, Source};
pub use crate::load::policy_config::{Mode, PolicyConfig, SettingsFileError, Trust};

/// Largest deadline, in milliseconds.
const DEADLINE_LIMIT: u32 = 1_000;
/// Longest time for the cases that a module contains.
const CASES_DEADLINE: Duration = Duration::from_secs(30);

/// Why a chain of policies was not loaded: one line that names the entry and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("policy[{index}].{field}: {problem}")]
    Entry { index: usize, field: &'static str, problem: String },
    #[error("policy[{index}].settings{}: {}", settings_path(&.problem.path), .problem.message)]
    Settings { index: usize, problem: crate::engine::bindings::types::Problem },
    #[error("policy[{index}] ({module}): {error}")]
    Load { index: usize, module: String, error: LoadError },
    #[error("policy: no module of kind {0} decides; add one, for instance `module = \"builtin:{0}\"`")]
    Missing(Kind),
    #[error("policy: the WebAssembly engine did not start: {0}")]
    Engine(String),
    #[error("default_plan: no policy knows a plan `{0}`")]
    DefaultPlan(String),
    #[error("policy: {0}")]
    Failed(crate::engine::sandbox::Failed),
}

fn settings_path(path: &str) -> String {
    if path.is_empty() || path.starts_with('[') { path.to_owned() } else { format!(".{path}") }
}

/// A configured module and its entry.
#[derive(Clone)]
pub struct Loaded {
    pub entry: PolicyConfig,
    pub module: Arc<Configured>,
    /// Whether a trusted key has signed it.
    pub is_signed: bool,
}

impl Loaded {
    /// Whether it is this entry's module, configured in the same way.
    fn is_of(&self, entry: &PolicyConfig, sha256: &str) -> bool {
        self.module.digest == sha256
            && (self.entry.kind, self.entry.limits(), &self.entry.settings)
                == (entry.kind, entry.limits(), &entry.settings)
    }
}

/// What loading a chain needs.
pub struct Loader {
    pub engines: Engines,
    pub artefacts: Artefacts,
    /// Where modules from files are kept.
    pub modules: ModuleStore,
    /// The folder that relative paths start from.
    pub folder: PathBuf,
    pub trust: Trust,
    pub origins: Origins,
}

impl Loader {
    /// Loads every entry, or fails.
    ///
    /// # Errors
    ///
    /// If an entry is invalid or of another kind than its module, a kind has no module that decides, or a module cannot
    /// be loaded or fails its own cases.
    pub fn load(&self, chain: &[PolicyConfig]) -> Result<Vec<Loaded>, ChainError> {
        Ok(self.load_from(Source::Configured, chain, &[])?.0)
    }

    /// Finds the modules of every entry, where the entries say, without loading them.
    ///
    /// # Errors
    ///
    /// If an entry is invalid, a kind has no module that decides, or a module is not found or not signed as this host wants it.
    pub fn find(&self, chain: &[PolicyConfig]) -> Result<Vec<ModuleBytes>, ChainError> {
        check(chain)?;
        in_parallel(chain, |index, entry| self.module_of(Source::Configured, index, entry))
    }

    /// As [`Loader::load`], with the modules to keep. One that was loaded before with the same settings and limits is not loaded
    /// again.
    ///
    /// # Errors
    ///
    /// As [`Loader::load`]; if a module is not kept, or not signed as this host wants it.
    pub fn load_from(
        &self,
        source: Source<'_>,
        chain: &[PolicyConfig],
        known: &[Loaded],
    ) -> Result<(Vec<Loaded>, Vec<ModuleBytes>), ChainError> {
        check(chain)?;
        let loaded = in_parallel(chain, |index, entry| {
            let module = self.module_of(source, index, entry)?;
            self.entry(index, entry, module, known)
        });
        memory::give_back();
        Ok(loaded?.into_iter().unzip())
    }

    fn module_of(&self, source: Source<'_>, index: usize, entry: &PolicyConfig) -> Result<ModuleBytes, ChainError> {
        let sourced = Self::check_limits(entry).and_then(|()| match source {
            Source::Configured => Sourced::find(&self.places(), entry),
            Source::Given(modules) => Sourced::find_given(&self.places(), modules, entry),
        });
        let Sourced { wasm, signature } =
            sourced.map_err(|(field, problem)| ChainError::Entry { index, field, problem })?;
        Ok(ModuleBytes { sha256: hex::encode(Sha256::digest(&wasm)), wasm, signature })
    }

    fn entry(
        &self,
        index: usize,
        entry: &PolicyConfig,
        ModuleBytes { sha256, wasm, signature }: ModuleBytes,
        known: &[Loaded],
    ) -> Result<(Loaded, ModuleBytes), ChainError> {
        let (module, wasm) = match known.iter().find(|known| known.is_of(entry, &sha256)) {
            Some(known) => (known.module.clone(), wasm),
            None => self.configured(entry, wasm).map_err(|error| match error {
                LoadError::Settings(mut problems) if problems.len() == 1 => {
                    ChainError::Settings { index, problem: problems.remove(0) }
                }
                error => ChainError::Load { index, module: entry.module.clone(), error },
            })?,
        };
        let is_built_in = entry.module.starts_with(bundle::PREFIX);
        if !is_built_in {
            self.modules.keep(&sha256, &wasm, signature.as_deref());
        }
        let is_signed = !is_built_in && self.origins.trusted.is_some();
        Ok((Loaded { entry: entry.clone(), module, is_signed }, ModuleBytes { sha256, wasm, signature }))
    }

    /// Compiles, configures and tests the module of an entry.
    fn configured(&self, entry: &PolicyConfig, wasm: Vec<u8>) -> Result<(Arc<Configured>, Vec<u8>), LoadError> {
        component::check_memory(&wasm, entry.limits())?;
        let module = Module::read(&self.engines, &self.artefacts, wasm, Some(entry.kind))?;
        if module.kind != entry.kind {
            return Err(LoadError::World { wanted: entry.kind, exported: Some(module.kind) });
        }
        let mut configured = module.configure(&self.engines, &self.artefacts, &entry.settings, entry.limits())?;
        configured.artefacts.push(self.self_test(&module, entry.limits())?);
        Ok((Arc::new(configured), module.wasm))
    }

    /// Runs the cases that a module contains, with the limits of its entry. Cases that passed with
    /// these limits on this engine before are not run again. Returns the name of the artefact that says so.
    fn self_test(&self, module: &Module, limits: Limits) -> Result<String, LoadError> {
        let Limits { deadline, memory_bytes } = limits;
        let given = [deadline.as_millis().to_le_bytes(), (memory_bytes as u128).to_le_bytes()].concat();
        let passed = self.artefacts.key(self.engines.loader(), &[b"cases", &module.wasm, &given]);
        if self.artefacts.find(&passed).is_some() {
            return Ok(passed);
        }
        let cannot = |error: CasesError| LoadError::Cases(error.to_string());
        let clock = Clock::system();
        let started = clock.moment();
        for file in File::bundled(&module.wasm).map_err(cannot)? {
            let configuring = file.configuring(&self.engines, module, limits).map_err(cannot)?;
            for outcome in file.outcomes(&configuring) {
                if !outcome.passed() {
                    let Outcome { file, name, .. } = &outcome;
                    return Err(LoadError::Case(format!("{file}, \"{name}\": {}", outcome.problem())));
                }
                if clock.moment().since(started) > CASES_DEADLINE {
                    return Err(LoadError::Cases(format!("they take longer than {} s", CASES_DEADLINE.as_secs())));
                }
            }
        }
        self.artefacts.keep(&passed, &[]);
        Ok(passed)
    }

    fn places(&self) -> Places<'_> {
        let Self { modules, folder, trust, origins, .. } = self;
        Places { modules, folder, trust: *trust, origins }
    }

    /// Checks what an entry gives its module.
    fn check_limits(entry: &PolicyConfig) -> Result<(), SourceError> {
        if entry.deadline_ms == 0 || entry.deadline_ms > DEADLINE_LIMIT {
            return Err(("deadline_ms", format!("must be between 1 and {DEADLINE_LIMIT}")));
        }
        if !(64..=MEMORY_LIMIT / 1024).contains(&(entry.memory_kib as usize)) {
            return Err(("memory_kib", format!("must be between 64 and {}", MEMORY_LIMIT / 1024)));
        }
        Ok(())
    }
}

/// Whether a module of each kind decides, and none does twice.
fn check(chain: &[PolicyConfig]) -> Result<(), ChainError> {
    let decides = |kind| chain.iter().any(|entry| entry.kind == kind && entry.mode == Mode::Enforce);
    if let Some(missing) = Kind::ALL.into_iter().find(|kind| !decides(*kind)) {
        return Err(ChainError::Missing(missing));
    }
    for (index, entry) in chain.iter().enumerate() {
        let same = |other: &PolicyConfig| {
            (other.kind, &other.module, other.mode, &other.settings)
                == (entry.kind, &entry.module, entry.mode, &entry.settings)
        };
        if let Some(first) = chain[..index].iter().position(same) {
            let problem = format!("is the module of policy[{first}], with the same settings; leave one of them out");
            return Err(ChainError::Entry { index, field: "module", problem });
        }
    }
    Ok(())
}

/// In parallel, because a module is compiled by one thread most of the time, and by several only at times.
fn in_parallel<T: Send>(
    chain: &[PolicyConfig],
    load: impl Fn(usize, &PolicyConfig) -> Result<T, ChainError> + Sync,
) -> Result<Vec<T>, ChainError> {
    let load = &load;
    std::thread::scope(|scope| {
        let loading: Vec<_> =
            chain.iter().enumerate().map(|(index, entry)| scope.spawn(move || load(index, entry))).collect();
        let panicked = |_| Err(ChainError::Engine("a thread that loaded a module panicked".into()));
        loading.into_iter().map(|entry| entry.join().unwrap_or_else(panicked)).collect()
    })
}
