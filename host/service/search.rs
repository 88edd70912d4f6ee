//! Search by name within a scope.

use culvert_domain::caller::Caller;
use culvert_domain::error::Result;
pub use culvert_store::names::NamedItem;

use crate::Service;

/// Characters of what is searched for.
const LONGEST: usize = 100;
/// Tunnels and devices that are told.
const TOLD: usize = 10;

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
        let part = text.trim().chars().take(LONGEST).collect::<String>().to_lowercase();
        if part.is_empty() {
            return Ok(Found::default());
        }
        // Compared here, because the engines differ in what the lower case of a letter is.
        let told = |all: Vec<NamedItem>| {
            all.into_iter().filter(|item| item.name.to_lowercase().contains(&part)).take(TOLD).collect()
        };
        Ok(Found {
            tunnels: told(self.store.names_of_tunnels(caller.scope.id).await?),
            devices: told(self.store.names_of_devices(caller.scope.id).await?),
        })
    }
}
