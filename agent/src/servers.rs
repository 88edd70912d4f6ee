//! The hosts that the agent may connect to: the one that the device enrolled with, and those that hosts have named since.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use culvert_wire::control::MOST_HOSTS;
use culvert_wire::server_url::server_url;

use crate::state_dir::StateDir;

const FILE: &str = "hosts.json";

/// Base URLs.
#[derive(Clone)]
pub(crate) struct Servers {
    state: StateDir,
    enrolled: String,
    named: Arc<Mutex<Vec<String>>>,
}

impl Servers {
    /// # Errors
    ///
    /// If the list exists but cannot be read.
    pub(crate) fn load(state: &StateDir, enrolled: &str) -> io::Result<Self> {
        let named = state.read(FILE)?.unwrap_or_default();
        Ok(Self { state: state.clone(), enrolled: enrolled.into(), named: Arc::new(Mutex::new(named)) })
    }

    /// All of them. The one of the enrolment always stays.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut all = vec![self.enrolled.clone()];
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(named.iter().filter(|url| **url != self.enrolled).cloned());
        all
    }

    /// Keeps what a host has named, in place of what was named before. One that names none knows of no others.
    ///
    /// # Errors
    ///
    /// If the list cannot be written.
    pub(crate) fn keep(&self, hosts: &[String]) -> io::Result<()> {
        let valid =
            |host: &String| server_url(host).inspect_err(|problem| tracing::warn!(host, problem, "no host")).ok();
        let hosts: Vec<String> = hosts.iter().take(MOST_HOSTS).filter_map(valid).collect();
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.is_empty() || hosts == *named {
            return Ok(());
        }
        self.state.write(FILE, &hosts)?;
        *named = hosts;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_no_secure_urls_are_left_out_and_the_enrolled_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let servers = Servers::load(&state, "https://a").unwrap();
        let named = ["http://192.0.2.1", "no URL", "https://b/", "https://a"].map(String::from);
        servers.keep(&named).unwrap();
        assert_eq!(servers.all(), ["https://a", "https://b"]);
        servers.keep(&[]).unwrap();
        assert_eq!(Servers::load(&state, "https://a").unwrap().all(), ["https://a", "https://b"]);
        let many: Vec<_> = (0..100).map(|number| format!("https://host-{number}")).collect();
        servers.keep(&many).unwrap();
        assert_eq!(servers.all().len(), 1 + MOST_HOSTS);
    }
}
