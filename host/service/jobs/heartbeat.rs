//! The heartbeat: says to the other hosts on the database that this one is alive, and learns what they agree on.

use std::sync::Arc;

use culvert_domain::error::{Error, Result};
use culvert_domain::fleet::{Beat, HEARTBEAT_EVERY, HEARTBEAT_WAIT, RETRY_EVERY};
use culvert_store::{hosts, migrations};
use culvert_wire::clock::Moment;
use tokio_util::future::FutureExt;

use super::outage::Outage;
use super::{Jobs, wakeups};
use crate::fleet::EndCause;

/// Runs until the host stops.
pub async fn run(jobs: Arc<Jobs>) {
    let mut outage = Outage::default();
    loop {
        let next = match beat(&jobs).await {
            Ok(()) => {
                outage.works(&jobs.clock, "the database hears of this host again");
                HEARTBEAT_EVERY
            }
            Err(error) => {
                let what = "the database does not hear of this host, nor do the other hosts; this host tries again every second";
                outage.failed(&jobs.clock, &error, what);
                RETRY_EVERY
            }
        };
        if jobs.clock.sleep(next).with_cancellation_token(&jobs.stop).await.is_none() {
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
    let sent = jobs.clock.moment();
    let beat = say_alive(jobs).await;
    jobs.metrics.fleet.beat(beat.is_ok(), jobs.clock.moment().since(sent));
    beat
}

async fn say_alive(jobs: &Jobs) -> Result<()> {
    let (fleet, clock, store) = (&jobs.service.fleet, &jobs.clock, &jobs.service.store);
    let (sent, since_boot) = (clock.moment(), clock.since_boot());
    let heartbeat = clock.timeout(HEARTBEAT_WAIT, store.heartbeat(fleet.host_id(), fleet.lease_until())).await;
    let heartbeat = heartbeat.map_err(Error::unavailable)??;
    let (shown, at) = jobs.database_clock.note(heartbeat.now, sent, clock.moment());
    clock.follow(shown, at);
    match heartbeat.beat {
        Beat::Renewed => {
            let (differed, was_away) = (fleet.settings_differ(), !fleet.is_alive());
            fleet.renewed(&heartbeat, since_boot);
            jobs.service.nodes.extend_authority(fleet.node_authority());
            // Heartbeats wait for neither.
            if heartbeat.went_back {
                catch_up(jobs);
            }
            if was_away {
                jobs.tasks.spawn(wakeups::wake_waiting(jobs.service.clone()));
            }
            if !differed && fleet.settings_differ() && fleet.leads() {
                warn_of_settings(jobs);
            }
            if heartbeat.oldest_schema > migrations::newest() {
                fleet.end_for(EndCause::Outdated);
            }
            use_key(jobs, heartbeat.key_check.as_deref());
        }
        Beat::Ended => {
            fleet.ended();
            start_anew(jobs).await?;
        }
    }
    Ok(())
}

/// Uses the key that all hosts use.
fn use_key(jobs: &Jobs, key_check: Option<&[u8]>) {
    let Some(check) = key_check else { return };
    let version = check.first().copied().unwrap_or_default();
    match jobs.service.secrets.follow(check) {
        Some(true) => tracing::info!("key v{version} of secret_key_file is used from now on"),
        Some(false) => {}
        None => jobs.service.fleet.end_for(EndCause::KeyMissing(version)),
    }
}

/// Names the settings that the hosts have different values of.
fn warn_of_settings(jobs: &Jobs) {
    let service = jobs.service.clone();
    jobs.tasks.spawn(async move {
        let hosts = service.store.hosts().await.unwrap_or_default();
        let settings = hosts::different_settings(&hosts).join(", ");
        // Hosts of different versions may compare different settings.
        if !settings.is_empty() {
            tracing::warn!(settings, "the hosts have different settings; `culvert host list` shows which");
        }
    });
}

/// The database has lost what was written last. What this host has told its nodes and agents may not be so any longer.
fn catch_up(jobs: &Jobs) {
    tracing::error!("the database is older than what this host has written to it: a failover has lost the last writes");
    jobs.metrics.fleet.went_back();
    let service = jobs.service.clone();
    service.policies.confirm_again();
    jobs.tasks.spawn(async move { service.nodes.send_anew().await });
    jobs.agents.wake_all();
}

/// This host was taken for dead. Its agents connect again, to whichever host.
async fn start_anew(jobs: &Jobs) -> Result<()> {
    jobs.agents.replace_all();
    let revived = jobs.service.store.revive_host(jobs.service.fleet.host_id()).await?;
    if revived {
        tracing::warn!("the other hosts took this one for dead; it starts anew");
    } else {
        jobs.service.nodes.extend_authority(Some(Moment::default()));
        jobs.service.fleet.end_for(EndCause::Replaced);
    }
    Ok(())
}
