//! The heartbeat: says to the other hosts on the database that this one is alive, and learns what they agree on.

use std::sync::Arc;

use culvert_domain::error::{Chain, Error, Result};
use culvert_domain::fleet::{Beat, HEARTBEAT_EVERY, HEARTBEAT_WAIT, RETRY_EVERY};
use culvert_wire::clock::Moment;

use super::Jobs;

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    loop {
        let beat = beat(&jobs).await;
        jobs.metrics.fleet.beat(beat.is_ok());
        let next = match beat {
            Ok(()) => HEARTBEAT_EVERY,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "the other hosts did not hear of this one");
                RETRY_EVERY
            }
        };
        if jobs.stop.run_until_cancelled(jobs.clock.sleep(next)).await.is_none() {
            return;
        }
    }
}

/// One heartbeat.
///
/// # Errors
///
/// If the database does not answer in time.
pub async fn beat(jobs: &Jobs) -> Result<()> {
    let (fleet, clock, store) = (&jobs.service.fleet, &jobs.clock, &jobs.service.store);
    let (sent, since_boot) = (clock.moment(), clock.since_boot());
    let heartbeat = clock.timeout(HEARTBEAT_WAIT, store.heartbeat(fleet.host_id())).await;
    let heartbeat = heartbeat.map_err(Error::unavailable)??;
    let (shown, at) = jobs.database_clock.note(heartbeat.now, sent, clock.moment());
    clock.follow(shown, at);
    match heartbeat.beat {
        Beat::Renewed => {
            fleet.renewed(&heartbeat, since_boot);
            jobs.service.nodes.extend_authority(fleet.node_authority());
        }
        Beat::Ended => {
            fleet.ended();
            start_anew(jobs).await?;
        }
    }
    Ok(())
}

/// This host was taken for dead. Its agents connect again, to whichever host.
async fn start_anew(jobs: &Jobs) -> Result<()> {
    jobs.agents.replace_all();
    let revived = jobs.service.store.revive_host(jobs.service.fleet.host_id()).await?;
    if revived {
        tracing::warn!("the other hosts took this one for dead; it starts anew");
    } else {
        jobs.service.nodes.extend_authority(Some(Moment::default()));
        tracing::error!(
            "another process is this host now, on a copy of its data folder; this one does nothing any longer"
        );
    }
    Ok(())
}
