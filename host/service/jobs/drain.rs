//! A host that is to be stopped: other hosts take its work first, so that nobody misses it.

use std::sync::Arc;
use std::time::Duration;

use culvert_domain::error::Result;
use tokio_util::future::FutureExt;

use super::{Jobs, heartbeat};

/// Agents that are sent to other hosts in one second: this part of those that are there, and so many at least.
const PARTS: usize = 20;
const AT_LEAST: usize = 20;
const EVERY: Duration = Duration::from_secs(1);

/// How long a host that is to be stopped goes on.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For requests: load balancers find out meanwhile that it is not ready.
    pub requests: Duration,
    /// For the visitors of its nodes after that.
    pub visitors: Duration,
}

/// Sends agents to other hosts while this one drains. Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    send_agents_away(&jobs).with_cancellation_token(&jobs.stop).await;
}

async fn send_agents_away(jobs: &Jobs) {
    let fleet = &jobs.service.fleet;
    loop {
        fleet.until_drains(true).await;
        tracing::info!("draining: other hosts take the agents and requests of this one");
        let slice = (jobs.agents.count() / PARTS).max(AT_LEAST);
        while fleet.drains() {
            jobs.metrics.fleet.sent_away(jobs.agents.send_away(slice));
            jobs.clock.sleep(EVERY).await;
        }
        tracing::info!("not draining any longer: this host takes agents and requests again");
    }
}

/// Has other hosts take the work of this one, and waits until nothing is left here, or for as long as that may take. A host
/// that is alone has nobody to wait for.
///
/// # Errors
///
/// If the database fails.
pub async fn before_stop(jobs: &Jobs, times: Times) -> Result<()> {
    let fleet = &jobs.service.fleet;
    if !fleet.has_others() {
        return Ok(());
    }
    jobs.service.store.drain_host(fleet.host_id(), true).await?;
    heartbeat::beat(jobs).await?;
    if !fleet.drains() {
        return Ok(());
    }
    jobs.clock.sleep(times.requests).await;
    let end = jobs.clock.moment().plus(times.visitors);
    while !is_empty(jobs) && jobs.clock.moment() < end {
        jobs.clock.sleep(EVERY).await;
    }
    Ok(())
}

/// Whether neither an agent nor a visitor is here.
fn is_empty(jobs: &Jobs) -> bool {
    let (_, visitors) = jobs.service.nodes.load();
    jobs.agents.count() == 0 && visitors == 0
}
