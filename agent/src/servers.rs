//! The hosts that the agent may connect to: the one that the device enrolled with, and those that hosts have named since.

use std::collections::BTreeSet;
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
    /// A list that cannot be read is made again by the next host.
    pub(crate) fn load(state: &StateDir, enrolled: &str) -> Self {
        let named = state.read(FILE).unwrap_or_else(|error| {
            tracing::warn!(%error, "the list of hosts cannot be read");
            None
        });
        let named = Arc::new(Mutex::new(named.unwrap_or_default()));
        Self { state: state.clone(), enrolled: enrolled.into(), named }
    }

    /// Whether it is the host of the enrolment.
    pub(crate) fn is_enrolled(&self, server: &str) -> bool {
        self.enrolled == server
    }

    /// All of them. The one of the enrolment always stays.
    pub(crate) fn all(&self) -> Vec<String> {
        let mut all = vec![self.enrolled.clone()];
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(named.iter().filter(|url| **url != self.enrolled).cloned());
        all
    }

    /// Takes over what a host has named, in place of what was named before. One that names none knows of no others.
    pub(crate) fn keep(&self, hosts: &[String]) {
        let hosts: BTreeSet<String> = hosts.iter().take(MOST_HOSTS).filter_map(|host| self.valid(host)).collect();
        let hosts: Vec<String> = hosts.into_iter().collect();
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if hosts.is_empty() || hosts == *named {
            return;
        }
        if let Err(error) = self.state.write(FILE, &hosts) {
            tracing::warn!(%error, "the list of hosts cannot be kept for the next start");
        }
        *named = hosts;
    }

    /// Who enrolled over TLS is led to no program on this machine that anybody may have started.
    fn valid(&self, host: &str) -> Option<String> {
        let url = server_url(host).inspect_err(|problem| tracing::warn!(host, problem, "no host")).ok()?;
        Some(url).filter(|url| url.starts_with("https:") || self.enrolled.starts_with("http:"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_are_no_secure_urls_are_left_out_and_the_enrolled_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(folder.path()).unwrap();
        let servers = Servers::load(&state, "https://a");
        let named = ["http://192.0.2.1", "http://127.0.0.1:1", "no URL", "https://b/", "https://a", "https://b"];
        servers.keep(&named.map(String::from));
        assert_eq!(servers.all(), ["https://a", "https://b"]);
        servers.keep(&[]);
        assert_eq!(Servers::load(&state, "https://a").all(), ["https://a", "https://b"]);
        let many: Vec<_> = (0..100).map(|number| format!("https://host-{number}")).collect();
        servers.keep(&many);
        assert_eq!(servers.all().len(), 1 + MOST_HOSTS);
        std::fs::write(state.path(FILE), "[").unwrap();
        assert_eq!(Servers::load(&state, "https://a").all(), ["https://a"]);
    }
}
