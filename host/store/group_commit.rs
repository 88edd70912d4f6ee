//! Group commit on SQLite. One connection writes, and a commit waits for the disk. So transactions that come while
//! others are under way become members of one group: each runs alone, in its turn, and all are committed at once. A member
//! goes on only when its group is committed; one that fails is undone alone, by its savepoint.
//!
//! sqlx has no such thing; of other crates, none was found for SQLite.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use culvert_domain::error::Chain;
use sqlx::{Error, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};

use crate::audit_append::append;
use crate::audit_heads::Appender;

/// Members of a group, at most: the first one waits for the last.
const MOST: usize = 64;

/// The connection that writes.
#[derive(Clone)]
pub struct Writer {
    pool: SqlitePool,
    /// Fair: who waits first has the first turn.
    turn: Arc<Mutex<WriteConnection>>,
    longest_wait: Duration,
}

/// Whoever holds it uses the connection.
#[derive(Default)]
struct WriteConnection {
    group: Option<Group>,
}

/// The open transaction of the connection, with members that have done their work.
struct Group {
    tx: Transaction<'static, Sqlite>,
    members: usize,
    savepoint: Savepoint,
    /// What its members have for the audit log, which is appended at once.
    audit: Option<Appender>,
    outcome: watch::Sender<Option<Outcome>>,
}

/// The savepoint of the member whose turn it is, or was last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Savepoint {
    /// The first member needs none.
    None,
    Open,
    /// Its member has done its work. The next one releases it, in the statement that sets its own.
    Done,
    /// Its member ended without a word, such as by a panic.
    Left,
}

/// How the commit of a group came out; a failure, as text.
type Outcome = Result<(), Arc<str>>;

/// The transaction of one member.
pub struct Member {
    turn: OwnedMutexGuard<WriteConnection>,
    /// The first one needs no savepoint.
    is_first: bool,
    ended: bool,
}

impl Writer {
    pub(crate) fn new(pool: SqlitePool, longest_wait: Duration) -> Self {
        Self { pool, turn: Arc::default(), longest_wait }
    }

    pub(crate) fn pool(&self) -> &SqlitePool {
        &self.pool
    }

    /// Waits for its turn, and begins a transaction.
    #[expect(clippy::disallowed_methods, reason = "a database's time is the system's")]
    pub(crate) async fn begin(&self) -> Result<Member, Error> {
        let turn = tokio::time::timeout(self.longest_wait, self.turn.clone().lock_owned()).await;
        let mut turn = turn.map_err(|_| Error::PoolTimedOut)?;
        if turn.group.as_ref().is_some_and(|group| group.members >= MOST) {
            // Its members hear of a failure.
            let _ = turn.commit().await;
        }
        let is_first = turn.begin_or_join(&self.pool).await?;
        Ok(Member { turn, is_first, ended: false })
    }
}

impl WriteConnection {
    /// Begins a group, or sets the savepoint of another member; whether it is the first one.
    async fn begin_or_join(&mut self, pool: &SqlitePool) -> Result<bool, Error> {
        let Some(group) = &mut self.group else {
            let tx = pool.begin_with("BEGIN IMMEDIATE").await?;
            self.group = Some(Group {
                tx,
                members: 0,
                savepoint: Savepoint::None,
                audit: None,
                outcome: watch::Sender::new(None),
            });
            return Ok(true);
        };
        let joined = group.join().await;
        self.or_fail(joined).map(|()| false)
    }

    /// Commits the group, and tells its members.
    async fn commit(&mut self) -> Result<(), Error> {
        let Some(mut group) = self.group.take() else { return Ok(()) };
        let committed = match group.finish().await {
            Ok(()) => group.tx.commit().await,
            Err(error) => Err(error),
        };
        if let (Ok(()), Some(audit)) = (&committed, group.audit) {
            audit.committed();
        }
        group.outcome.send_replace(Some(committed.as_ref().map_err(|error| error.to_string().into()).copied()));
        committed
    }

    /// After a failure of the savepoints themselves, nothing of the group is left: SQLite has ended the transaction.
    fn or_fail(&mut self, result: Result<(), Error>) -> Result<(), Error> {
        if let Err(error) = &result
            && let Some(group) = self.group.take()
        {
            group.outcome.send_replace(Some(Err(error.to_string().into())));
        }
        result
    }
}

impl Group {
    async fn run(&mut self, sql: &'static str) -> Result<(), Error> {
        sqlx::query(sql).execute(&mut *self.tx).await.map(drop)
    }

    async fn join(&mut self) -> Result<(), Error> {
        self.undo_left().await?;
        self.run(match self.savepoint {
            Savepoint::Done => "RELEASE member; SAVEPOINT member",
            _ => "SAVEPOINT member",
        })
        .await?;
        self.savepoint = Savepoint::Open;
        Ok(())
    }

    /// What comes before the commit.
    async fn finish(&mut self) -> Result<(), Error> {
        self.undo_left().await?;
        match &mut self.audit {
            Some(audit) => append(&mut *self.tx, audit).await.map_err(|error| lost(&Chain(&error).to_string())),
            None => Ok(()),
        }
    }

    async fn undo_left(&mut self) -> Result<(), Error> {
        if self.savepoint == Savepoint::Left { self.undo().await } else { Ok(()) }
    }

    /// Undoes what the last member did.
    async fn undo(&mut self) -> Result<(), Error> {
        self.run("ROLLBACK TO member; RELEASE member").await?;
        self.savepoint = Savepoint::None;
        Ok(())
    }
}

impl Member {
    /// # Panics
    ///
    /// Never: the group is there for as long as a member has its turn.
    #[expect(clippy::expect_used, reason = "only what ends a member takes the group")]
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.turn.group.as_mut().expect("the group is open").tx
    }

    /// Hands the turn on, and waits until the group is committed: by this member, when all who waited before have had
    /// their turns, or by another one.
    pub(crate) async fn commit(mut self, audit: Appender) -> Result<(), Error> {
        self.ended = true;
        let Some(group) = &mut self.turn.group else { return Err(lost("the group has ended")) };
        if !self.is_first {
            group.savepoint = Savepoint::Done;
        }
        group.members += 1;
        match &mut group.audit {
            Some(all) => all.due.extend(audit.due),
            None => group.audit = Some(audit),
        }
        let mut outcome = group.outcome.subscribe();
        let turn = OwnedMutexGuard::mutex(&self.turn).clone();
        drop(self);
        let mut turn = tokio::select! {
            biased;
            committed = outcome.wait_for(Option::is_some) => return heard(committed.ok().as_deref()),
            turn = turn.lock_owned() => turn,
        };
        // Committed meanwhile, or given up in the middle of it.
        if outcome.borrow().is_some() || outcome.has_changed().is_err() {
            return heard(Some(&*outcome.borrow()));
        }
        turn.commit().await
    }

    pub(crate) async fn rollback(mut self) -> Result<(), Error> {
        self.ended = true;
        if self.is_first {
            return match self.turn.group.take() {
                Some(group) => group.tx.rollback().await,
                None => Ok(()),
            };
        }
        let Some(group) = &mut self.turn.group else { return Ok(()) };
        let undone = group.undo().await;
        self.turn.or_fail(undone)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        match &mut self.turn.group {
            // sqlx rolls a dropped transaction back.
            group if self.is_first => drop(group.take()),
            Some(group) => group.savepoint = Savepoint::Left,
            None => {}
        }
    }
}

/// What a member makes of the outcome of its group.
fn heard(outcome: Option<&Option<Outcome>>) -> Result<(), Error> {
    match outcome {
        Some(Some(Ok(()))) => Ok(()),
        Some(Some(Err(error))) => Err(lost(error)),
        Some(None) | None => Err(lost("the group has ended")),
    }
}

/// A failure of the group's commit. Nothing was written, so that it can be done again.
fn lost(why: &str) -> Error {
    Error::Io(io::Error::other(format!("transactions could not be committed together: {why}")))
}
