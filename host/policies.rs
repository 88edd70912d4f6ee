//! The policies of this host: loads them as configured, and reloads them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use culvert_domain::error::Chain;
use culvert_policy::engine::engines::Engines;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::chain::{ChainError, Loader, Trust};
use culvert_policy::load::module_source::{self, Origins};
use culvert_policy::load::module_store::ModuleStore;
use culvert_policy::load::policies::{Generation, ModuleBytes, Policies};
use culvert_policy::serve::generations::{self, Found, Generations};
use culvert_policy::serve::observer::DecisionObserver;
use culvert_policy::serve::pinned::Pinned;
use culvert_policy::serve::records::RecordsConfig;
use culvert_policy::tools::policy_plan::{HourSummary, PlannedModule, PolicyPlan};
use culvert_registry::Fetcher;
use culvert_registry::trusted_keys::TrustedKeys;
use culvert_service::Service;
use culvert_service::policy_rollout::{self, Opening, RolloutError, Tried, TryPolicies};
use culvert_service::secrets::Secrets;
use culvert_store::Store;
use culvert_wire::clock::Clock;
use prometheus_client::registry::Registry;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::config::{Config, ConfigError};

/// Opens the policies that decide: those of the database, or of the configuration where it has none.
///
/// # Errors
///
/// One line that names the setting and what to do.
pub async fn open(
    config: &Config,
    store: &Store,
    secrets: &Secrets,
    registry: &mut Registry,
    host_id: Option<Uuid>,
) -> Result<Generations, ConfigError> {
    let modules = ModuleStore::in_folder(&module_folder(config));
    let modules = modules.map_err(|e| ConfigError::new("data_dir", e))?;
    let (configured, former) = (configured_policies(config), FormerNumbers::read(config)?);
    let opening = Opening { store, secrets, configured: &configured, first_number: former.newest + 1 };
    let observer = observer(config, store.clock().clone(), registry, host_id)?;
    let opened = opening.open(loader(config, secrets, modules)?, observer).await.map_err(ConfigError::from)?;
    former.remove();
    Ok(opened)
}

fn loader(config: &Config, secrets: &Secrets, modules: ModuleStore) -> Result<Loader, ConfigError> {
    let shards = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = config.data_dir.join("policies");
    let artefacts = Artefacts::in_folder(&folder, Arc::new(secrets.clone()));
    Ok(Loader {
        engines: Engines::new(shards).map_err(|e| ConfigError::new("policy", e))?,
        artefacts: artefacts.map_err(|e| ConfigError::new("data_dir", e))?,
        modules,
        folder: ".".into(),
        trust: config.trust,
        origins: origins(config)?,
    })
}

fn observer(
    config: &Config,
    clock: Clock,
    registry: &mut Registry,
    host_id: Option<Uuid>,
) -> Result<DecisionObserver, ConfigError> {
    DecisionObserver::open(clock, registry, &config.decisions, host_id).map_err(|error| {
        let file = config.decisions.file.as_deref().unwrap_or(Path::new("")).display();
        ConfigError::new("decisions.file", format!("{file}: {error}"))
    })
}

/// The numbers of generations that an earlier version kept in a file.
#[derive(Default, Deserialize)]
struct FormerNumbers {
    newest: u64,
    rollback: Option<IgnoredAny>,
    #[serde(skip)]
    file: PathBuf,
}

impl FormerNumbers {
    /// # Errors
    ///
    /// If the policies were rolled back: the database does not have what was rolled back to.
    fn read(config: &Config) -> Result<Self, ConfigError> {
        let file = config.data_dir.join("policy-generations.json");
        let Ok(text) = fs::read(&file) else { return Ok(Self::default()) };
        let former: Self = serde_json::from_slice(&text).unwrap_or_default();
        if former.rollback.is_some() {
            return Err(ConfigError::whole(format!(
                "policy: the policies were rolled back under an earlier version; have the settings name those that are to \
                 decide, and delete {}",
                file.display()
            )));
        }
        Ok(Self { file, ..former })
    }

    /// From now on the database has them.
    fn remove(&self) {
        let _ = fs::remove_file(&self.file);
    }
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

/// The policies that decide, for commands that query them and end: those of the configuration before a host has started.
///
/// # Errors
///
/// As [`open`].
pub async fn deciding(config: &Config, store: &Store, secrets: &Secrets) -> Result<Pinned, ConfigError> {
    let quiet = quiet(config);
    let loader = loader(&quiet, secrets, ModuleStore::reading(&module_folder(config)))?;
    let observer = observer(&quiet, store.clock().clone(), &mut Registry::default(), None)?;
    if let Some(active) = policy_rollout::active(store, secrets, loader, observer).await? {
        return Ok(active.pin());
    }
    configured(config, store, secrets)
}

/// The policies of the configuration, for commands that query them and end.
///
/// # Errors
///
/// As [`open`].
pub fn configured(config: &Config, store: &Store, secrets: &Secrets) -> Result<Pinned, ConfigError> {
    let quiet = quiet(config);
    let loader = loader(&quiet, secrets, ModuleStore::reading(&module_folder(config)))?;
    let observer = Arc::new(observer(&quiet, store.clock().clone(), &mut Registry::default(), None)?);
    let Found { generation, modules } = Found::find(&loader, &configured_policies(config))?;
    let set = generations::load_kept(&loader, &observer, generation, &modules, &[]).map_err(ConfigError::whole)?;
    Ok(Generations::begin(loader, observer, set).pin())
}

/// Has the policies of the configuration decide from the next start on, while no host runs. Returns their generation.
///
/// # Errors
///
/// As [`open`]; if a host runs.
pub async fn reload_offline(config: &Config, store: &Store, secrets: &Secrets) -> Result<u64, ConfigError> {
    let silent = Config { decisions: RecordsConfig::default(), ..config.clone() };
    let modules = ModuleStore::in_folder(&module_folder(config)).map_err(|e| ConfigError::new("data_dir", e))?;
    let opening = Opening { store, secrets, configured: &configured_policies(config), first_number: 1 };
    let observer = observer(&silent, store.clock().clone(), &mut Registry::default(), None)?;
    Ok(opening.replace(loader(config, secrets, modules)?, observer).await?)
}

/// Without records of decisions. The user who runs a command trusts their own files.
fn quiet(config: &Config) -> Config {
    Config { decisions: RecordsConfig::default(), trust: Trust::Path, ..config.clone() }
}

/// Reads the configuration file again, and has its policies decide.
///
/// # Errors
///
/// One line. The old policies stay active.
pub async fn reload(service: &Service, file: Option<&Path>) -> Result<u64, RolloutError> {
    let file = file.map(Path::to_owned);
    service.reload_policies(move || Config::load(file.as_deref()).map(|config| configured_policies(&config))).await
}

/// Reads the configuration file again, and tells what a reload would change. It takes nothing over.
///
/// # Errors
///
/// One line, as a reload would give.
pub async fn plan(service: &Service, generations: &Generations, file: Option<&Path>) -> Result<FleetPlan, String> {
    let file = file.map(Path::to_owned);
    let read = move || Config::load(file.as_deref()).map(|config| configured_policies(&config));
    let (plan, generation, modules) = try_out(generations, read, None).await?;
    let others = service.try_policies_elsewhere(&generation, modules).await.map_err(|problem| problem.to_string())?;
    Ok(FleetPlan { plan, others: others.into_iter().map(Into::into).collect() })
}

/// What a reload would change at this host, and what the others say.
pub struct FleetPlan {
    pub plan: PolicyPlan,
    pub others: Vec<HostPlan>,
}

/// What another host says of a reload.
#[derive(Clone, Debug, Serialize)]
pub struct HostPlan {
    pub host: String,
    /// Why it cannot load or compare the policies.
    pub problem: Option<String>,
    /// None where it records no decisions.
    pub last_hour: Option<HourSummary>,
}

impl From<Tried> for HostPlan {
    fn from(Tried { host, found }: Tried) -> Self {
        match found.and_then(|found| serde_json::from_str(&found).map_err(|problem| problem.to_string())) {
            Ok(last_hour) => Self { host, problem: None, last_hour },
            Err(problem) => Self { host, problem: Some(problem), last_hour: None },
        }
    }
}

/// How this host compares what another one proposes with what it has decided.
pub fn how_to_try(generations: &Arc<Generations>) -> TryPolicies {
    let generations = generations.clone();
    Box::new(move |generation, modules| {
        let generations = generations.clone();
        Box::pin(async move {
            let (plan, ..) = try_out(&generations, move || generation.policies(), Some(modules)).await?;
            serde_json::to_string(&plan.last_hour.map(|hour| hour.summary())).map_err(|problem| problem.to_string())
        })
    })
}

async fn try_out<E>(
    generations: &Generations,
    read: impl FnOnce() -> Result<Policies, E> + Send + 'static,
    given: Option<Vec<ModuleBytes>>,
) -> Result<(PolicyPlan, Generation, Vec<ModuleBytes>), String>
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let running: Vec<_> = generations.current().modules().iter().map(PlannedModule::of).collect();
    let records = generations.status().records.map(|records| records.file);
    let tried = generations.try_out(read, given, move |engines, tried| {
        let generations::Tried { policies, loaded, modules } = tried;
        let plan = PolicyPlan::of(engines, &loaded, &policies.default_plan, Some(&running), records.as_deref());
        let plan = plan.map_err(|problem| problem.to_string())?;
        let generation = policies.of(&modules).map_err(|problem| problem.to_string())?;
        Ok((plan, generation, modules))
    });
    tried.await.map_err(|problem| problem.to_string())?
}

/// The policies that a configuration names.
pub fn configured_policies(config: &Config) -> Policies {
    Policies { entries: config.policy.clone(), default_plan: config.default_plan.clone() }
}

impl From<ChainError> for ConfigError {
    fn from(error: ChainError) -> Self {
        Self::whole(error)
    }
}

impl From<RolloutError> for ConfigError {
    fn from(error: RolloutError) -> Self {
        match error {
            RolloutError::Database(error) => Self::new("database_url", Chain(&error)),
            RolloutError::Foreign(_) => Self::new("secret_key_file", error),
            other => Self::whole(other),
        }
    }
}
