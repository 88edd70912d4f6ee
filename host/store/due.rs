//! One look at everything that time, or another process, makes due: one statement, however much there is. What is due is
//! read by its own statement then.

use chrono::{DateTime, Utc};
use culvert_domain::device::OFFLINE_AFTER;
use culvert_domain::error::Result;
use culvert_domain::fleet::dead_since;
use uuid::Uuid;

use super::Store;
use super::arg::args;
use super::fleet::dead_hosts;
use super::hints::hints_of_host;
use super::moves::{moves_from_dead_nodes, nodes_of_lost_hosts};
use super::node_requests::waiting_requests;
use super::operations::due_operations;
use super::outbox::due_webhooks;
use super::policy_generations::proposed_policies;
use super::presence::{HELD_FOR, TOLD_WITHIN, ended_suspensions, silent_devices, silent_held_devices, untold_devices};
use super::read::Read;
use super::row::row;
use super::sessions::expired_leases;
use super::sql::sql;
use super::temporary_tunnels::due_temporary_tunnels;

/// Who looks.
#[derive(Clone, Debug)]
pub struct Look {
    pub host_id: Uuid,
    /// The nodes of the host.
    pub node_ids: Vec<Uuid>,
    /// When it looked before.
    pub since: DateTime<Utc>,
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When it was looked.
    pub at: DateTime<Utc>,
    pub hints: bool,
    pub requests: bool,
    pub dead_hosts: bool,
    pub silent_devices: bool,
    pub expired_leases: bool,
    pub temporary_tunnels: bool,
    pub operations: bool,
    pub untold_devices: bool,
    pub ended_suspensions: bool,
    /// When the oldest delivery that is due was to be made.
    pub oldest_delivery: Option<DateTime<Utc>>,
    pub certificates: bool,
    /// Nodes of this host belong to another one now, or to none.
    pub lost_nodes: bool,
    /// Tunnels were moved from nodes of this host.
    pub moves: bool,
    pub moves_from_dead_nodes: bool,
    /// Hosts were lost whose nodes may not serve any longer.
    pub lost_hosts: bool,
    /// The generation of the policies that decides.
    pub policy_generation: u64,
    /// Generations are proposed that this host has not loaded.
    pub proposed_policies: bool,
    /// The revisions of the nodes, added up. As each only rises, none has changed where this has not.
    pub revisions: u64,
}

macro_rules! look {
    ($nodes:literal) => {
        concat!(
            "SELECT EXISTS (SELECT 1 ",
            hints_of_host!("$2"),
            ") AS hints, \
                 EXISTS (SELECT 1 ",
            waiting_requests!("$2", "$1"),
            ") AS requests, \
                 EXISTS (SELECT 1 ",
            dead_hosts!("$4", "$2"),
            ") AS dead_hosts, \
                 EXISTS (SELECT 1 ",
            silent_devices!("$5"),
            ") OR EXISTS (SELECT 1 ",
            silent_held_devices!("$6"),
            ") \
                     AS silent_devices, \
                 EXISTS (SELECT 1 ",
            expired_leases!("$1"),
            ") AS expired_leases, \
                 EXISTS (SELECT 1 ",
            due_temporary_tunnels!("$1"),
            ") AS temporary_tunnels, \
                 EXISTS (SELECT 1 ",
            due_operations!("$1"),
            ") AS operations, \
                 EXISTS (SELECT 1 ",
            untold_devices!("$7"),
            ") AS untold_devices, \
                 EXISTS (SELECT 1 ",
            ended_suspensions!("$8", "$1"),
            ") AS ended_suspensions, \
                 (SELECT MIN(due_at) ",
            due_webhooks!("$1"),
            ") AS oldest_delivery, \
                 EXISTS (SELECT 1 FROM certificates WHERE due_at <= $1) AS certificates, \
                 EXISTS (SELECT 1 FROM nodes WHERE COALESCE(host_id <> $2, TRUE) AND id ",
            $nodes,
            ") AS lost_nodes, \
                 EXISTS (SELECT 1 FROM tunnels WHERE moving_from ",
            $nodes,
            ") AS moves, \
                 EXISTS (SELECT 1 FROM tunnels WHERE ",
            moves_from_dead_nodes!("$1"),
            ") AS moves_from_dead_nodes, \
                 EXISTS (SELECT 1 ",
            nodes_of_lost_hosts!("$1"),
            ") AS lost_hosts, \
                 (SELECT policy_generation FROM cluster WHERE id = 1) AS policy_generation, \
                 EXISTS (SELECT 1 ",
            proposed_policies!("(SELECT policy_generation FROM cluster WHERE id = 1)", "$1", "$2"),
            ") AS proposed_policies, \
                 (SELECT CAST(COALESCE(SUM(revision), 0) AS BIGINT) FROM node_revisions WHERE node_id ",
            $nodes,
            ") AS revisions"
        )
    };
}

impl Store {
    /// Looks at what is due now.
    pub async fn due(&self, look: &Look) -> Result<Due> {
        let sql = sql!(
            sqlite: look!("IN (SELECT unhex(value) FROM json_each($3))"),
            postgres: look!("= ANY($3)")
        );
        let (now, Look { host_id, node_ids, since }) = (self.clock.now(), look);
        let args = args![
            now,
            *host_id,
            &node_ids[..],
            dead_since(now),
            now - OFFLINE_AFTER,
            now - HELD_FOR,
            now - TOLD_WITHIN,
            *since
        ];
        let row = (&self.db).one(sql, args).await?;
        Ok(row!(row => Due {
            hints: flag, requests: flag, dead_hosts: flag, silent_devices: flag, expired_leases: flag, temporary_tunnels: flag,
            operations: flag, untold_devices: flag, ended_suspensions: flag, oldest_delivery: optional_time, certificates: flag,
            lost_nodes: flag, moves: flag, moves_from_dead_nodes: flag, lost_hosts: flag, policy_generation: number,
            proposed_policies: flag, revisions: number;
            at: now,
        }))
    }
}
