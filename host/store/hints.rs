//! Hints for other hosts: which of the devices that are connected to them have something to hear.

use uuid::Uuid;

use super::arg::args;
use super::error::DbResult;
use super::read::Read;
use super::row::Row;
use super::sql::{by_ids, sql};
use super::{Hint, Store, Write};
use culvert_domain::error::Result;
use culvert_domain::fleet::ForHost;

/// What a host has not heard yet.
macro_rules! hints_of_host {
    ($host:literal) => {
        concat!("FROM hints WHERE host_id = ", $host)
    };
}
pub(crate) use hints_of_host;

/// What another process has for an agent of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenHint {
    pub device_id: Uuid,
    /// Another host has let the device in since.
    pub is_elsewhere: bool,
}

impl Store {
    /// Takes what other processes have for the agents of a host. If it fails, nobody knows what was taken.
    pub async fn take_hints(&self, host_id: Uuid) -> Result<Vec<TakenHint>> {
        self.write_liveness(move |write| Box::pin(async move { write.take_hints(host_id).await })).await
    }

    /// Has the other hosts look at what there is for those of these devices that are connected to them.
    pub async fn hint_devices(&self, device_ids: Vec<Uuid>) -> Result<()> {
        self.write(None, move |write| Box::pin(async move { write.hint_other_hosts(&device_ids).await })).await
    }
}

impl Write {
    /// Hints to the other hosts that hold connections of these devices. A device that connects meanwhile reads everything, for
    /// its arrival locks the same scope, or comes after what it would be told.
    pub async fn hint_other_hosts(&mut self, device_ids: &[Uuid]) -> Result<()> {
        let sql = by_ids!(
            "INSERT INTO hints (host_id, device_id) SELECT host_id, device_id FROM device_presence \
                 WHERE host_id <> $2 AND device_id",
            "$1",
            "RETURNING host_id"
        );
        let own = self.host_id.unwrap_or_default();
        let rows = self.all(sql, args![device_ids, own]).await?;
        for row in &rows {
            self.notify(Hint::Host(row.id("host_id")?, ForHost::Agents));
        }
        Ok(())
    }

    /// Takes the hints for a host, or forgets them, for it has no connections any longer.
    pub(super) async fn take_hints(&mut self, host_id: Uuid) -> Result<Vec<TakenHint>> {
        let sql = sql!(concat!(
            "DELETE ",
            hints_of_host!("$1"),
            " RETURNING device_id, \
                 (SELECT p.host_id FROM device_presence p WHERE p.device_id = hints.device_id) AS held_by"
        ));
        let rows = self.all(sql, args![host_id]).await?;
        let hint = |row: &Row| -> DbResult<_> {
            let is_elsewhere = row.optional_id("held_by")?.is_some_and(|held_by| held_by != host_id);
            Ok(TakenHint { device_id: row.id("device_id")?, is_elsewhere })
        };
        Ok(rows.iter().map(hint).collect::<DbResult<_>>()?)
    }
}
