//! The policies that a host starts with, or a command queries.

use std::sync::Arc;

use culvert_policy::load::chain::Loader;
use culvert_policy::load::policies::{Generation, Policies};
use culvert_policy::serve::generations::{self, Found, Generations};
use culvert_policy::serve::live::PolicySet;
use culvert_policy::serve::observer::DecisionObserver;
use culvert_store::Store;
use culvert_store::policy_generations::{Activation, StoredGeneration};

use super::{RolloutError, authentic, kept_modules, next, propose};
use crate::secrets::Secrets;

/// What a host starts with.
pub struct Opening<'a> {
    pub store: &'a Store,
    pub secrets: &'a Secrets,
    /// What its configuration names.
    pub configured: &'a Policies,
    /// The first number that the database may give a generation.
    pub first_number: u64,
}

impl Opening<'_> {
    /// The policies that decide. Rows of the database say which; an empty database takes those of the configuration. So does
    /// SQLite, which is one host's alone, where the configuration has changed since.
    ///
    /// # Errors
    ///
    /// If they cannot be loaded: one line that says what to do.
    pub async fn open(&self, loader: Loader, observer: DecisionObserver) -> Result<Generations, RolloutError> {
        let observer = Arc::new(observer);
        loop {
            let active = match self.store.active_policies().await? {
                Some(stored) => Some(authentic(self.secrets, stored)?),
                None => None,
            };
            let active = match active {
                Some(active) if self.store.is_on_a_server() || !self.differs(&active) => {
                    if self.differs(&active) {
                        let generation = active.number;
                        tracing::warn!(
                            generation,
                            "the settings name other policies than those that decide; `culvert policy reload` puts them into use"
                        );
                    }
                    let modules = kept_modules(self.store, &active).await?;
                    match generations::load_kept(&loader, &observer, active.clone(), &modules, &[]) {
                        Ok(first) => return Ok(Generations::begin(loader, observer, first)),
                        // What the host trusts has changed, perhaps, and so has the file of a signature.
                        Err(_) if !self.store.is_on_a_server() && !active.is_rollback => Some(active),
                        Err(problem) => {
                            return Err(RolloutError::Unloadable {
                                number: active.number,
                                problem: problem.to_string(),
                            });
                        }
                    }
                }
                active => active,
            };
            if let Some(first) = self.first(&loader, &observer, active.as_ref()).await? {
                return Ok(Generations::begin(loader, observer, first));
            }
        }
    }

    /// Has the policies of the configuration decide. None where another host was first.
    async fn first(
        &self,
        loader: &Loader,
        observer: &Arc<DecisionObserver>,
        active: Option<&Generation>,
    ) -> Result<Option<PolicySet>, RolloutError> {
        let Found { generation, modules } = Found::find(loader, self.configured)?;
        let (based_on, generation) = next(active, generation);
        let set = generations::load_kept(loader, observer, generation.clone(), &modules, &[])?;
        let number = propose(self.store, self.secrets, &generation, modules, self.first_number).await?;
        if self.store.activate_policies(number, based_on).await? == Activation::Active {
            return Ok(Some(set.of(Generation { number, ..generation })));
        }
        self.store.withdraw_policies(number).await?;
        Ok(None)
    }

    /// Has the policies of the configuration decide in place of others, whether those can be loaded or not, while no host runs.
    /// Returns their generation.
    ///
    /// # Errors
    ///
    /// As [`Opening::open`]; if a host runs.
    pub async fn replace(&self, loader: Loader, observer: DecisionObserver) -> Result<u64, RolloutError> {
        let active = self.store.active_policies().await?;
        let active = active.map(|StoredGeneration { number, earlier, .. }| Generation {
            number,
            earlier,
            ..Generation::default()
        });
        let first = self.first(&loader, &Arc::new(observer), active.as_ref()).await?;
        first.map(|set| set.generation.number).ok_or(RolloutError::InUse)
    }

    /// Whether the configuration names other policies than those that decide. One that was rolled back does not.
    fn differs(&self, active: &Generation) -> bool {
        let are_built_in_here = || active.policies().is_ok_and(|policies| policies.are_built_in_here());
        active.configuration != self.configured.digest() || (!active.is_rollback && !are_built_in_here())
    }
}

/// The policies that decide, for a command that queries them and ends; None where the database has none.
///
/// # Errors
///
/// As [`Opening::open`].
pub async fn active(
    store: &Store,
    secrets: &Secrets,
    loader: Loader,
    observer: DecisionObserver,
) -> Result<Option<Generations>, RolloutError> {
    let Some(stored) = store.active_policies().await? else { return Ok(None) };
    let generation = authentic(secrets, stored)?;
    let modules = kept_modules(store, &generation).await?;
    let observer = Arc::new(observer);
    let first = generations::load_kept(&loader, &observer, generation, &modules, &[])?;
    Ok(Some(Generations::begin(loader, observer, first)))
}
