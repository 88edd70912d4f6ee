//! The listener: hears what the other hosts on the database notify this one of. What it misses, the ticker finds within a
//! second.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use culvert_domain::error::{Error, Result};
use culvert_domain::fleet::ForHost;
use culvert_store::postgres_bus::Heard;
use tokio::time::{sleep, timeout};
use tokio_util::future::FutureExt;

use super::Jobs;
use super::outage::Outage;

/// A host hears itself every second. If it has not for so long, it hears nobody.
const ECHO_WITHIN: Duration = Duration::from_secs(2);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    listen_always(&jobs).with_cancellation_token(&jobs.stop).await;
}

#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn listen_always(jobs: &Jobs) {
    let mut outage = Outage::default();
    loop {
        let Err(error) = listen(jobs, &mut outage).await;
        jobs.metrics.fleet.missed();
        let what = "notifications of other hosts are missed; this one looks every second";
        outage.failed(&jobs.clock, &error, what);
        sleep(RETRY_AFTER).await;
    }
}

/// Listens until nothing can be heard any longer.
#[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
async fn listen(jobs: &Jobs, outage: &mut Outage) -> Result<Infallible> {
    let listening = jobs.service.store.listen(jobs.service.fleet.host_id());
    let mut listener = timeout(CONNECT_WITHIN, listening).await.map_err(Error::unavailable)??;
    // What has changed before it listened was not heard.
    jobs.wakeups.take_hints(jobs).await?;
    jobs.changes.tell_all();
    loop {
        match timeout(ECHO_WITHIN, listener.next()).await.map_err(Error::unavailable)?? {
            Heard::Something(what) => look(jobs, what).await?,
            Heard::Scopes(scope_ids) => scope_ids.into_iter().for_each(|scope_id| jobs.changes.tell(scope_id)),
            Heard::AllScopes => jobs.changes.tell_all(),
            Heard::Echo(sent) => {
                jobs.metrics.fleet.heard_itself(jobs.notifier.since(sent));
                outage.works(&jobs.clock, "notifications of other hosts are heard again");
            }
        }
    }
}

/// Looks at what there is for this host.
async fn look(jobs: &Jobs, what: ForHost) -> Result<()> {
    // A host that the others do not take for alive looks again when it is.
    if !jobs.service.fleet.is_alive() {
        return Ok(());
    }
    let nodes = &jobs.service.nodes;
    match what {
        ForHost::Agents => jobs.wakeups.take_hints(jobs).await,
        ForHost::Requests => nodes.take_requests().await,
        ForHost::Answers => nodes.take_answers().await,
        ForHost::Nodes => nodes.sync_all().await,
        ForHost::Policies => {
            jobs.service.heard_of_policies(&jobs.tasks);
            Ok(())
        }
    }
}
