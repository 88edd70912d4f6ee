//! The generations of the policies: what each consists of, which hosts have loaded it, and which one decides.

use chrono::TimeDelta;
use culvert_domain::error::Result;
use uuid::Uuid;

use super::arg::args;
use super::db::{DECISIONS, Tx};
use super::error::DbResult;
use super::fleet::database_time;
use super::read::Read;
use super::row::{Row, readable, row};
use super::sql::{Sql, sql};
use super::{Store, Write};

/// How long a generation may take to decide after it was proposed.
const STANDS: TimeDelta = TimeDelta::minutes(2);
/// The advisory lock of whoever adds or removes generations.
const GENERATIONS: i64 = 0x6375_6c76_0002;

/// The number of the generation that decides.
const ACTIVE_NUMBER: Sql = sql!("SELECT policy_generation FROM cluster WHERE id = 1");

/// A generation as it is kept.
#[derive(Clone, Debug)]
pub struct StoredGeneration {
    pub number: u64,
    /// JSON.
    pub content: String,
    /// Authenticates the content.
    pub mac: Vec<u8>,
    /// Digest of the configuration that it was made from.
    pub configuration: String,
    /// The generations before it that a rollback leads to, most recent first.
    pub earlier: Vec<u64>,
    pub is_rollback: bool,
    /// Whether hosts only compare it with what they have decided.
    pub is_trial: bool,
    /// The host that has proposed it.
    pub proposed_by: Option<Uuid>,
}

/// A module of a generation, by its SHA-256 in hexadecimal.
#[derive(Clone, Debug)]
pub struct StoredModule {
    pub sha256: String,
    pub wasm: Vec<u8>,
    pub signature: Option<Vec<u8>>,
}

/// Another host that is alive, and how far it is with a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStage {
    pub host_id: Uuid,
    pub name: String,
    pub is_loaded: bool,
    /// Why it cannot load the generation.
    pub problem: Option<String>,
    /// What it has found in comparing it, as JSON.
    pub found: Option<String>,
    /// The generation that decides there.
    pub decides: u64,
}

/// What came of activating a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Active,
    /// Another generation than the one that it is to replace decides.
    Overtaken,
    /// A host is alive that has not loaded it.
    NotLoaded,
}

/// The generations that the host `$host` has not loaded yet, in those after `$after`.
macro_rules! proposed_policies {
    ($after:expr, $now:literal, $host:literal) => {
        concat!(
            "FROM policy_generations g WHERE g.number > ",
            $after,
            " AND g.expires_at > ",
            $now,
            " AND NOT EXISTS (SELECT 1 FROM policy_stages s WHERE s.generation = g.number AND s.host_id = ",
            $host,
            ")"
        )
    };
}
pub(crate) use proposed_policies;

macro_rules! select_generation {
    ($which:literal) => {
        sql!(concat!(
            "SELECT number, content, mac, configuration, earlier, is_rollback, is_trial, proposed_by FROM policy_generations \
             WHERE number = ",
            $which
        ))
    };
}

macro_rules! select_stages {
    ($now:expr) => {
        concat!(
            "SELECT h.id, h.name, h.policy_generation, s.problem, s.found, \
                 s.host_id IS NOT NULL AND s.problem IS NULL AS loaded \
             FROM hosts h LEFT JOIN policy_stages s ON s.host_id = h.id AND s.generation = $1 \
             WHERE h.ended_at IS NULL AND h.id <> $2 AND h.lease_until > ",
            $now,
            " ORDER BY h.name, h.id LIMIT 1000"
        )
    };
}

impl Store {
    /// The generation that decides; None before there is one.
    pub async fn active_policies(&self) -> Result<Option<StoredGeneration>> {
        let sql = select_generation!("(SELECT policy_generation FROM cluster WHERE id = 1)");
        let row = (&self.db).optional(sql, args![]).await?;
        Ok(row.as_ref().map(generation).transpose()?)
    }

    pub async fn policy_generation(&self, number: u64) -> Result<Option<StoredGeneration>> {
        let row = (&self.db).optional(select_generation!("$1"), args![number]).await?;
        Ok(row.as_ref().map(generation).transpose()?)
    }

    /// Those of these modules that are kept.
    pub async fn policy_modules(&self, digests: &[String]) -> Result<Vec<StoredModule>> {
        let sql = sql!("SELECT sha256, wasm, signature FROM policy_modules WHERE sha256 = $1");
        let mut modules = Vec::new();
        for digest in digests {
            let row = (&self.db).optional(sql, args![digest]).await?;
            let module = |row: &Row| -> DbResult<_> {
                Ok(row!(row => StoredModule { sha256: text, wasm: bytes, signature: optional_bytes }))
            };
            modules.extend(row.as_ref().map(module).transpose()?);
        }
        Ok(modules)
    }

    /// The number of the generation that decides; 0 before there is one.
    pub async fn active_policy_number(&self) -> Result<u64> {
        Ok((&self.db.for_liveness()).one(ACTIVE_NUMBER, args![]).await?.number("policy_generation")?)
    }

    /// The generations after this one that are proposed and that this host has not loaded yet.
    pub async fn proposed_policies(&self, active: u64) -> Result<Vec<u64>> {
        let sql = sql!(concat!(
            "SELECT g.number ",
            proposed_policies!("$1", "$2", "$3"),
            " ORDER BY g.is_trial, g.number LIMIT 4"
        ));
        let rows = (&self.db.for_liveness()).all(sql, args![active, self.clock.now(), self.own_id()]).await?;
        Ok(readable(&rows, "generation", |row| row.number("number")))
    }

    /// Adds a generation with its modules, and returns its number, which is at least this one. It does not decide yet.
    pub async fn propose_policies(
        &self,
        generation: StoredGeneration,
        modules: Vec<StoredModule>,
        at_least: u64,
    ) -> Result<u64> {
        let propose = self.write(None, move |write| {
            Box::pin(async move { write.propose_policies(&generation, &modules, at_least).await })
        });
        propose.await
    }

    /// Notes that this host has loaded a generation and what it has found in comparing it, or why it cannot load it.
    pub async fn note_policy_stage(&self, number: u64, loaded: Result<Option<String>, String>) -> Result<()> {
        let (found, problem) = loaded.map_or_else(|problem| (None, Some(problem)), |found| (found, None));
        let host_id = self.own_id();
        let note = self.write_liveness(move |write| {
            Box::pin(async move {
                let sql = sql!(
                    "INSERT INTO policy_stages (generation, host_id, problem, found) SELECT number, $2, $3, $4 \
                     FROM policy_generations WHERE number = $1 ON CONFLICT (generation, host_id) DO NOTHING"
                );
                write.execute(sql, args![number, host_id, problem.as_deref(), found.as_deref()]).await?;
                Ok(())
            })
        });
        note.await
    }

    /// How far the other hosts that are alive are with a generation.
    pub async fn policy_stages(&self, number: u64) -> Result<Vec<HostStage>> {
        let sql = sql!(sqlite: select_stages!("$3"), postgres: select_stages!(database_time!("$3")));
        let now = if self.is_on_a_server() { self.clock.database_time() } else { Some(self.clock.now()) };
        let rows = (&self.db).all(sql, args![number, self.own_id(), now]).await?;
        Ok(readable(&rows, "host", stage))
    }

    /// Has a generation decide in place of another one, if that decides and all hosts that are alive have loaded it. No
    /// change that the other one permits is committed after that.
    pub async fn activate_policies(&self, number: u64, based_on: u64) -> Result<Activation> {
        let host_id = self.own_id();
        let activate = self.write(None, move |write| {
            Box::pin(async move { write.activate_policies(number, based_on, host_id).await })
        });
        activate.await
    }

    /// Takes back a generation that does not decide. One whose activation is in doubt, for its commit was not answered, is
    /// waited for.
    pub async fn withdraw_policies(&self, number: u64) -> Result<()> {
        let sql = sql!(
            "DELETE FROM policy_generations WHERE number = $1 \
                 AND NOT EXISTS (SELECT 1 FROM cluster WHERE id = 1 AND policy_generation = $1)"
        );
        let withdraw = self.write(None, move |write| {
            Box::pin(async move {
                write.lock_alone(GENERATIONS).await?;
                write.execute(sql, args![number]).await?;
                write.execute(sql!("DELETE FROM policy_stages WHERE generation = $1"), args![number]).await?;
                Ok(())
            })
        });
        withdraw.await
    }

    /// Removes what leads nowhere: generations that do not decide and that no rollback leads to, and their modules.
    /// `modules_of` names the modules of a content.
    pub async fn forget_policies(&self, modules_of: fn(&str) -> Vec<String>) -> Result<()> {
        self.write(None, move |write| Box::pin(async move { write.forget_policies(modules_of).await })).await
    }

    /// Says which generation decides at this host.
    pub async fn confirm_policies(&self, number: u64) -> Result<()> {
        let (host_id, process_id) = (self.own_id(), self.process_id);
        let confirm = self.write_liveness(move |write| {
            Box::pin(async move {
                let sql = sql!("UPDATE hosts SET policy_generation = $3 WHERE id = $1 AND process_id = $2");
                write.execute(sql, args![host_id, process_id, number]).await?;
                Ok(())
            })
        });
        confirm.await
    }
}

impl Write {
    /// As [`Store::active_policy_number`]. In a transaction of a scope it is the same until the transaction ends.
    pub async fn active_policy_number(&mut self) -> Result<u64> {
        Ok(self.one(ACTIVE_NUMBER, args![]).await?.number("policy_generation")?)
    }

    /// Waits for an advisory lock, which the transaction has to its end. On SQLite it is alone in any case.
    async fn lock_alone(&mut self, lock: i64) -> Result<()> {
        if let Tx::Postgres(_) = **self {
            let sql = sql!(postgres: "SELECT 1 AS locked FROM (SELECT pg_advisory_xact_lock($1)) AS lock");
            self.optional(sql, args![lock]).await?;
        }
        Ok(())
    }

    async fn propose_policies(
        &mut self,
        generation: &StoredGeneration,
        modules: &[StoredModule],
        at_least: u64,
    ) -> Result<u64> {
        self.lock_alone(GENERATIONS).await?;
        for StoredModule { sha256, wasm, signature } in modules {
            let sql = sql!(
                "INSERT INTO policy_modules (sha256, wasm, signature) VALUES ($1, $2, $3) \
                 ON CONFLICT (sha256) DO UPDATE SET signature = COALESCE(excluded.signature, policy_modules.signature)"
            );
            self.execute(sql, args![sha256, &wasm[..], signature.as_deref()]).await?;
        }
        // Last, for heartbeats wait for this row.
        let sql = sql!(
            "UPDATE cluster SET newest_policy_generation = CASE WHEN newest_policy_generation < $1 THEN $1 \
                 ELSE newest_policy_generation + 1 END WHERE id = 1 RETURNING newest_policy_generation AS number"
        );
        let number = self.one(sql, args![at_least]).await?.number("number")?;
        let sql = sql!(
            "INSERT INTO policy_generations \
                 (number, content, mac, configuration, earlier, is_rollback, is_trial, proposed_by, expires_at) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        );
        let StoredGeneration { content, mac, configuration, earlier, is_rollback, is_trial, proposed_by, .. } =
            generation;
        let (earlier, expires_at) = (numbers(earlier), self.now + STANDS);
        let args = args![
            number,
            content,
            &mac[..],
            configuration,
            &earlier,
            *is_rollback,
            *is_trial,
            *proposed_by,
            expires_at
        ];
        self.execute(sql, args).await?;
        Ok(number)
    }

    async fn activate_policies(&mut self, number: u64, based_on: u64, own_id: Uuid) -> Result<Activation> {
        self.lock_alone(GENERATIONS).await?;
        // From here on, no transaction commits that another generation has permitted.
        self.lock_alone(DECISIONS).await?;
        if let Tx::Postgres(_) = **self {
            let sql = sql!(postgres: concat!(
                "SELECT 1 AS one FROM hosts h WHERE h.ended_at IS NULL AND h.id <> $2 AND h.lease_until > ",
                database_time!("$3"),
                " AND NOT EXISTS (SELECT 1 FROM policy_stages s \
                     WHERE s.generation = $1 AND s.host_id = h.id AND s.problem IS NULL) LIMIT 1"
            ));
            let now = self.clock.database_time();
            if self.optional(sql, args![number, own_id, now]).await?.is_some() {
                return Ok(Activation::NotLoaded);
            }
        }
        let sql = sql!(
            "UPDATE cluster SET policy_generation = $1 WHERE id = 1 AND policy_generation = $2 \
                 AND EXISTS (SELECT 1 FROM policy_generations WHERE number = $1 AND NOT is_trial)"
        );
        let is_active = self.execute(sql, args![number, based_on]).await? == 1;
        Ok(if is_active { Activation::Active } else { Activation::Overtaken })
    }

    /// All that are kept.
    pub async fn policy_generations(&mut self) -> Result<Vec<StoredGeneration>> {
        let sql = sql!(
            "SELECT number, content, mac, configuration, earlier, is_rollback, is_trial, proposed_by FROM policy_generations"
        );
        Ok(self.all(sql, args![]).await?.iter().map(generation).collect::<DbResult<_>>()?)
    }

    pub async fn set_policy_mac(&mut self, number: u64, mac: &[u8]) -> Result<()> {
        self.execute(sql!("UPDATE policy_generations SET mac = $2 WHERE number = $1"), args![number, mac]).await?;
        Ok(())
    }

    async fn forget_policies(&mut self, modules_of: fn(&str) -> Vec<String>) -> Result<()> {
        self.lock_alone(GENERATIONS).await?;
        let active = self.one(sql!("SELECT policy_generation FROM cluster WHERE id = 1"), args![]).await?;
        let active: u64 = active.number("policy_generation")?;
        let now = self.now;
        let sql = sql!("DELETE FROM policy_generations WHERE number > $1 AND expires_at <= $2");
        self.execute(sql, args![active, now]).await?;
        let all = self.policy_generations().await?;
        let earlier = all.iter().find(|one| one.number == active).map(|one| one.earlier.clone()).unwrap_or_default();
        // A higher number may still come to decide, or is being tried out.
        let (kept, gone): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.number >= active || earlier.contains(&one.number));
        for StoredGeneration { number, .. } in gone {
            self.execute(sql!("DELETE FROM policy_generations WHERE number = $1"), args![number]).await?;
        }
        self.execute(sql!("DELETE FROM policy_stages WHERE generation < $1"), args![active]).await?;
        let used: Vec<String> = kept.iter().flat_map(|one| modules_of(&one.content)).collect();
        let rows = self.all(sql!("SELECT sha256 FROM policy_modules"), args![]).await?;
        for sha256 in rows.iter().map(|row| row.text("sha256")).collect::<DbResult<Vec<_>>>()? {
            if !used.contains(&sha256) {
                self.execute(sql!("DELETE FROM policy_modules WHERE sha256 = $1"), args![&sha256]).await?;
            }
        }
        Ok(())
    }
}

fn generation(row: &Row) -> DbResult<StoredGeneration> {
    let earlier = row.text("earlier")?.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    Ok(row!(row => StoredGeneration {
        number: number, content: text, mac: bytes, configuration: text, is_rollback: flag, is_trial: flag, proposed_by: optional_id;
        earlier
    }))
}

fn stage(row: &Row) -> DbResult<HostStage> {
    Ok(HostStage {
        host_id: row.id("id")?,
        name: row.text("name")?,
        is_loaded: row.flag("loaded")?,
        problem: row.optional_text("problem")?,
        found: row.optional_text("found")?,
        decides: row.number("policy_generation")?,
    })
}

fn numbers(all: &[u64]) -> String {
    all.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}
