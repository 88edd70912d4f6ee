//! What agents and open pages may have to be told although no transaction of this process has changed it: changes by other
//! processes, the end of a suspension, other policies, and that a host is there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, Utc};
use culvert_domain::audit_log::Origin;
use culvert_domain::error::{Chain, Result};
use culvert_domain::string_enum::StringEnum;
use culvert_store::due::Due;
use culvert_store::hints::TakenHint;
use culvert_wire::clock::Clock;
use tokio_util::future::FutureExt;
use uuid::Uuid;

use super::Jobs;
use crate::Service;
use crate::scope_changes::INSTALLATION;

/// Devices of which other hosts are told at once.
const BATCH: usize = 500;

pub struct Wakeups(Mutex<Seen>);

struct Seen {
    looked_at: DateTime<Utc>,
    /// Hints were taken that nobody knows: the answer was lost.
    lost_hints: bool,
    generation: Option<u64>,
    /// The number of the newest entry in the audit log of each scope whose pages are open.
    audited: HashMap<Uuid, u64>,
    /// The newest entry of a command, while an operator's page is open.
    command: Option<(Uuid, u64)>,
}

impl Wakeups {
    pub fn new(clock: &Clock) -> Self {
        Self(Mutex::new(Seen {
            looked_at: clock.now(),
            lost_hints: false,
            generation: None,
            audited: HashMap::new(),
            command: None,
        }))
    }

    /// Has open pages show what commands on the server have changed.
    pub(super) async fn look_for_commands(&self, jobs: &Jobs) -> Result<()> {
        let scopes = jobs.changes.scopes();
        if scopes.is_empty() {
            return Ok(());
        }
        if scopes.contains(&INSTALLATION) {
            self.look_for_commands_of_operators(jobs).await?;
        }
        let newest = jobs.service.store.newest_audit_entries(&scopes).await?;
        let is_command = |origin: &str| origin == Origin::Cli.as_str();
        let changed: Vec<Uuid> = self.seen(|seen| {
            let former = std::mem::take(&mut seen.audited);
            seen.audited = newest.iter().map(|(scope_id, number, _)| (*scope_id, *number)).collect();
            let is_new = |(scope_id, number, origin): &(Uuid, u64, String)| {
                former.get(scope_id) != Some(number) && is_command(origin)
            };
            newest.into_iter().filter(is_new).map(|(scope_id, ..)| scope_id).collect()
        });
        changed.into_iter().for_each(|scope_id| jobs.changes.tell(scope_id));
        Ok(())
    }

    async fn look_for_commands_of_operators(&self, jobs: &Jobs) -> Result<()> {
        let newest = jobs.service.store.newest_command().await?;
        let former = self.seen(|seen| std::mem::replace(&mut seen.command, newest));
        if newest != former {
            jobs.changes.tell(INSTALLATION);
        }
        Ok(())
    }

    /// When it was looked at what is due before.
    pub(super) fn looked_at(&self) -> DateTime<Utc> {
        self.seen(|seen| seen.looked_at)
    }

    /// Wakes the connections of the devices that are concerned.
    pub(super) async fn wake(&self, jobs: &Jobs, due: Due) -> Result<()> {
        if due.hints || self.seen(|seen| seen.lost_hints) {
            self.take_hints(jobs).await?;
        }
        let resumed = if due.ended_suspensions {
            jobs.service.store.devices_of_ended_suspensions(self.looked_at()).await?
        } else {
            Vec::new()
        };
        let generation = jobs.service.policies_now().generation();
        let decides_otherwise = self.seen(|seen| {
            seen.looked_at = due.at;
            seen.generation.replace(generation).is_some_and(|former| former != generation)
        });
        if decides_otherwise {
            jobs.agents.wake_all();
        }
        resumed.into_iter().for_each(|device_id| jobs.agents.wake(device_id));
        Ok(())
    }

    /// Takes what other processes have for the agents of this host.
    pub(super) async fn take_hints(&self, jobs: &Jobs) -> Result<()> {
        let taken = jobs.service.store.take_hints(jobs.service.fleet.host_id()).await;
        let were_lost = self.seen(|seen| std::mem::replace(&mut seen.lost_hints, taken.is_err()));
        let hints = taken?;
        jobs.metrics.fleet.took_hints(hints.len());
        if were_lost {
            jobs.agents.wake_all();
        }
        for TakenHint { device_id, is_elsewhere } in hints {
            if is_elsewhere {
                jobs.agents.replace(device_id);
            } else {
                jobs.agents.wake(device_id);
            }
        }
        Ok(())
    }

    fn seen<T>(&self, look: impl FnOnce(&mut Seen) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Tells the devices at other hosts once that this one has started.
pub async fn run_once(jobs: Arc<Jobs>) {
    wake_waiting(jobs.service.clone()).with_cancellation_token(&jobs.stop).await;
}

/// The nodes of this host are there: the devices at other hosts resume the tunnels that wait for them. If it fails, they look
/// again within a minute.
pub(super) async fn wake_waiting(service: Arc<Service>) {
    for node_id in service.nodes.ids() {
        let woken = async {
            for device_ids in service.store.devices_waiting_for(node_id).await?.chunks(BATCH) {
                service.store.hint_devices(device_ids.to_vec()).await?;
            }
            Ok(())
        };
        let woken: Result<()> = woken.await;
        if let Err(error) = woken {
            tracing::warn!(error = %Chain(&error), %node_id, "devices could not be told that their node is there");
        }
    }
}
