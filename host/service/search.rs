//! Search by name within a scope.

use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
pub use culvert_store::names::NamedItem;

use crate::Service;

/// Characters of what is searched for.
const LONGEST: usize = 100;

/// What has a text in its name.
#[derive(Default)]
pub struct Found {
    pub tunnels: Vec<NamedItem>,
    pub devices: Vec<NamedItem>,
}

impl Service {
    /// The caller's tunnels and devices with a text in their name, ten of each at most. Of a scope that has more, the newest
    /// thousand are looked at.
    ///
    /// # Errors
    ///
    /// If the database fails.
    pub async fn find_by_name(&self, caller: &Caller, text: &str) -> Result<Found> {
        let part: String = text.trim().chars().filter(|c| !c.is_control()).take(LONGEST).collect();
        if part.is_empty() {
            return Ok(Found::default());
        }
        let part = part.to_lowercase();
        Ok(Found {
            tunnels: self.store.tunnels_named_like(caller.scope.id, &part).await?,
            devices: self.store.devices_named_like(caller.scope.id, &part).await?,
        })
    }
}
