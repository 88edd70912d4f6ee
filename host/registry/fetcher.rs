//! Fetches modules for a host while it loads its policies.

use std::future::Future;
use std::time::Duration;

use culvert_policy::load::module_source::RemoteModules;
use culvert_wire::clock::Clock;
use tokio::runtime::Builder;

use crate::download::download;
use crate::registry::{Artefact, RegistryError};

/// How long one answer may take.
const TIME_LIMIT: Duration = Duration::from_mins(1);

/// Policies are loaded on threads of their own, so each answer is waited for on a small runtime, whatever the caller's
/// does meanwhile.
pub struct Fetcher;

impl RemoteModules for Fetcher {
    fn manifest(&self, reference: &str) -> Result<Vec<u8>, String> {
        wait(async { Artefact::open(reference)?.manifest().await }, RegistryError::to_string)
    }

    fn blob(&self, reference: &str, digest: &str, limit: usize) -> Result<Vec<u8>, String> {
        wait(async { Artefact::open(reference)?.blob(digest, limit).await }, RegistryError::to_string)
    }

    fn download(&self, url: &str, limit: usize) -> Result<Vec<u8>, String> {
        wait(download(url, limit), String::clone)
    }
}

fn wait<E>(answer: impl Future<Output = Result<Vec<u8>, E>>, say: fn(&E) -> String) -> Result<Vec<u8>, String> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let answer = runtime.block_on(async { Clock::system().timeout(TIME_LIMIT, answer).await });
    answer.map_err(|_| format!("it took longer than {} s", TIME_LIMIT.as_secs()))?.map_err(|error| say(&error))
}
