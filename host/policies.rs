//! The policies of this host: loads them as configured, and reloads them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_policy::engine::engines::Engines;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::chain::{ChainError, Loader, Trust};
use culvert_policy::load::module_source::{self, Origins};
use culvert_policy::load::module_store::ModuleStore;
use culvert_policy::serve::generation_state::{Policies, StateFile};
use culvert_policy::serve::generations::{Generations, ReloadError};
use culvert_policy::serve::observer::DecisionObserver;
use culvert_policy::serve::pinned::Pinned;
use culvert_policy::serve::records::RecordsConfig;
use culvert_policy::tools::policy_plan::{PlannedModule, PolicyPlan};
use culvert_registry::Fetcher;
use culvert_registry::trusted_keys::TrustedKeys;
use culvert_wire::clock::Clock;
use prometheus_client::registry::Registry;

use crate::config::{Config, ConfigError};
use culvert_service::secrets::Secrets;

/// Loads the policies that a configuration names.
///
/// # Errors
///
/// One line that names the setting and what to do.
pub fn open(
    config: &Config,
    clock: Clock,
    secrets: &Secrets,
    registry: &mut Registry,
) -> Result<Generations, ConfigError> {
    let modules = ModuleStore::in_folder(&module_folder(config));
    let modules = modules.map_err(|e| ConfigError::new("data_dir", e))?;
    let state = StateFile::at(&config.data_dir.join("policy-generations.json"));
    open_with(config, clock, secrets, registry, modules, state)
}

fn open_with(
    config: &Config,
    clock: Clock,
    secrets: &Secrets,
    registry: &mut Registry,
    modules: ModuleStore,
    state: StateFile,
) -> Result<Generations, ConfigError> {
    let shards = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = config.data_dir.join("policies");
    let artefacts = Artefacts::in_folder(&folder, Arc::new(secrets.clone()));
    let loader = Loader {
        engines: Engines::new(shards).map_err(|e| ConfigError::new("policy", e))?,
        artefacts: artefacts.map_err(|e| ConfigError::new("data_dir", e))?,
        modules,
        folder: ".".into(),
        trust: config.trust,
        origins: origins(config)?,
    };
    let observer = DecisionObserver::open(clock, registry, &config.decisions).map_err(|error| {
        let file = config.decisions.file.as_deref().unwrap_or(Path::new("")).display();
        ConfigError::new("decisions.file", format!("{file}: {error}"))
    })?;
    Ok(Generations::open(loader, observer, &policies(config), state)?)
}

/// Where modules are kept that were loaded.
pub fn module_folder(config: &Config) -> PathBuf {
    config.data_dir.join("policy-modules")
}

/// Where a host's modules may come from, and whose signatures it accepts.
///
/// # Errors
///
/// One line, if a trusted key cannot be used.
pub fn origins(config: &Config) -> Result<Origins, ConfigError> {
    let keys = &config.policies.trusted_keys;
    let trusted = TrustedKeys::read(keys)
        .map_err(|(index, error)| ConfigError::new(&format!("policies.trusted_keys[{index}]"), error))?;
    let trusted = (!keys.is_empty()).then(|| Arc::new(trusted) as Arc<dyn module_source::TrustedKeys>);
    Ok(Origins { remote: Some(Arc::new(Fetcher)), trusted })
}

/// Loads the configured policies once, for commands that query them and end.
///
/// # Errors
///
/// As [`open`].
pub fn load_once(config: &Config, clock: Clock, secrets: &Secrets) -> Result<Pinned, ConfigError> {
    // The user who runs a command trusts their own files.
    let quiet = Config { decisions: RecordsConfig::default(), trust: Trust::Path, ..config.clone() };
    let (modules, state) = (ModuleStore::reading(&module_folder(config)), StateFile::default());
    let policies = open_with(&quiet, clock, secrets, &mut Registry::default(), modules, state);
    policies.map(|policies| policies.pin())
}

/// Reads the configuration file again, and activates its policies.
///
/// # Errors
///
/// One line. The old policies stay active.
pub async fn reload(generations: &Generations, file: Option<&Path>) -> Result<u64, ReloadError> {
    let file = file.map(Path::to_owned);
    generations.reload(move || Config::load(file.as_deref()).map(|config| policies(&config))).await
}

/// Reads the configuration file again, and tells what a reload would change. It takes nothing over.
///
/// # Errors
///
/// One line, as a reload would give.
pub async fn plan(generations: &Generations, file: Option<&Path>) -> Result<PolicyPlan, String> {
    let running: Vec<_> = generations.current().modules().iter().map(PlannedModule::of).collect();
    let records = generations.status().records.map(|records| records.file);
    let file = file.map(Path::to_owned);
    let read = move || Config::load(file.as_deref()).map(|config| policies(&config));
    let planned = generations.try_out(read, move |engines, policies, loaded| {
        PolicyPlan::of(engines, loaded, &policies.default_plan, Some(&running), records.as_deref())
    });
    let planned = planned.await.map_err(|problem| problem.to_string())?;
    planned.map_err(|problem| problem.to_string())
}

fn policies(config: &Config) -> Policies {
    Policies { entries: config.policy.clone(), default_plan: config.default_plan.clone() }
}

impl From<ChainError> for ConfigError {
    fn from(error: ChainError) -> Self {
        Self::whole(error)
    }
}
