//! Transactions at the same time on SQLite: they share a commit, each waits for its own, and a failure undoes one alone.

use std::path::Path;

use culvert_domain::error::{Error, Result};
use culvert_store::Store;
use futures_util::future::join_all;
use sqlx::{Connection, SqliteConnection};

use crate::support::host::{Engine, TestHost};

/// What a transaction does after it has made an account.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Commit,
    Fail,
    Panic,
}

async fn make_account(store: &Store, number: usize, then: Then) -> Result<()> {
    store
        .write(None, move |write| {
            Box::pin(async move {
                let email = format!("{number}@example.test");
                write.create_account(&email, "one of many", "self-hosted").await?.unwrap();
                match then {
                    Then::Commit => Ok(()),
                    Then::Fail => Err(Error::internal(std::io::Error::other("refused"))),
                    Then::Panic => panic!("a transaction panics"),
                }
            })
        })
        .await
}

/// The accounts that another connection sees.
async fn seen(host: &TestHost) -> Vec<String> {
    let mut connection = SqliteConnection::connect(&host.config().database_url()).await.unwrap();
    let emails = "SELECT email FROM accounts ORDER BY CAST(email AS INTEGER)";
    sqlx::query_scalar(emails).fetch_all(&mut connection).await.unwrap()
}

/// The commits in a write-ahead log (<https://www.sqlite.org/fileformat2.html#the_write_ahead_log>): the last frame of each
/// has the size of the database.
fn commits(log: &Path) -> usize {
    let log = std::fs::read(log).unwrap();
    let page = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let frames = log[32..].chunks_exact(24 + page);
    frames.filter(|frame| frame[8..16] == log[16..24] && frame[4..8] != [0; 4]).count()
}

#[tokio::test]
async fn transactions_at_the_same_time_share_a_commit() {
    let host = TestHost::start(Engine::Sqlite).await;
    let log = format!("{}-wal", host.config().database_url().strip_prefix("sqlite:").unwrap());
    let store = &host.app.store;
    let before = commits(log.as_ref());
    for made in join_all((0..32).map(|number| make_account(store, number, Then::Commit))).await {
        made.unwrap();
    }
    let together = commits(log.as_ref()) - before;
    assert!(together <= 2, "{together} commits");
    make_account(store, 32, Then::Commit).await.unwrap();
    make_account(store, 33, Then::Commit).await.unwrap();
    assert_eq!(commits(log.as_ref()) - before - together, 2, "one after the other");
    assert_eq!(seen(&host).await.len(), 34);
}

#[tokio::test]
async fn transaction_that_fails_or_panics_is_undone_alone() {
    let host = TestHost::start(Engine::Sqlite).await;
    // Also as the first one of a group and as the last one.
    for first in [Then::Fail, Then::Panic, Then::Commit] {
        let hows = [first, Then::Commit, Then::Fail, Then::Commit, Then::Panic, Then::Panic, Then::Commit, Then::Fail];
        let base = seen(&host).await.len() * 100;
        let made = hows.iter().enumerate().map(|(number, how)| make_account(&host.app.store, base + number, *how));
        for (made, how) in join_all(made).await.iter().zip(hows) {
            assert_eq!(made.is_ok(), how == Then::Commit);
        }
        let there = seen(&host).await;
        for (number, how) in hows.iter().enumerate() {
            let email = format!("{}@example.test", base + number);
            assert_eq!(there.contains(&email), *how == Then::Commit, "{email}");
        }
    }
}

/// Whoever has an answer finds the effect, by any connection.
#[tokio::test]
async fn answer_comes_after_the_commit() {
    let host = TestHost::start(Engine::Sqlite).await;
    let made = (0..20).map(async |number| {
        make_account(&host.app.store, number, Then::Commit).await.unwrap();
        assert!(seen(&host).await.contains(&format!("{number}@example.test")));
    });
    join_all(made).await;
}
