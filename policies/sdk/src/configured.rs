//! What `configure` leaves behind for the decisions.

use std::sync::OnceLock;

use serde::de::DeserializeOwned;

/// Holds a configured policy. Set once, when the module is loaded; read by every decision.
pub struct Configured<P>(OnceLock<P>);

impl<P> Configured<P> {
    #[expect(clippy::new_without_default, reason = "it is only ever a static, which needs a const")]
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Keeps the policy, and seals the module's memory behind it.
    pub fn set(&self, policy: P) {
        // A second `configure` would be the host's mistake; the first one stands.
        let _ = self.0.set(policy);
        #[cfg(target_arch = "wasm32")]
        crate::arena::seal();
    }

    /// The policy, if `configure` has come by: `describe` is also asked before.
    pub fn find(&self) -> Option<&P> {
        self.0.get()
    }

    /// # Panics
    ///
    /// Where `configure` did not succeed: a decision without settings is none, and the host takes
    /// the trap as a failure of the module.
    pub fn get(&self) -> &P {
        self.find().expect("configure comes before any decision")
    }
}

/// The settings of a policy, read from the JSON object that the host hands over.
pub trait Settings: Sized {
    /// # Errors
    ///
    /// One line that says what does not fit.
    fn parse(json: &str) -> Result<Self, String>;
}

impl<T: DeserializeOwned> Settings for T {
    fn parse(json: &str) -> Result<Self, String> {
        serde_json::from_str(json).map_err(|error| {
            // The host has written the JSON: where in it something stands means nothing to its reader.
            let text = error.to_string();
            text.split(" at line ").next().unwrap_or_default().into()
        })
    }
}
