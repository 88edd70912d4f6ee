//! A bare salvo route on the same kind of pool as the host's: one read, or four statements in one transaction.

use std::net::SocketAddr;
use std::sync::Arc;

use salvo::conn::TcpListener;
use salvo::{Depot, FlowCtrl, Handler, Listener, Request, Response, Router, Server, Service, async_trait};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{PgPool, SqlitePool};
use uuid::Uuid;

/// One connection writes, as in the host.
enum Pools {
    Sqlite { write: SqlitePool, read: SqlitePool },
    Postgres(PgPool),
}

struct Bare {
    pools: Pools,
    id: Uuid,
}

const SELECT: &str = "SELECT id, name FROM things WHERE id = $1";
const INSERT: &str = "INSERT INTO things VALUES ($1, 'another')";

/// Serves `/things` from a table in a file, or in a PostgreSQL database.
pub async fn bare(url: &str) -> SocketAddr {
    let id = Uuid::new_v4();
    let pools = match url.strip_prefix("sqlite:") {
        Some(file) => sqlite(file, id).await,
        None => postgres(url, id).await,
    };
    let bare = Arc::new(Bare { pools, id });
    let router = Router::with_path("things").get(Get(bare.clone())).post(Post(bare));
    let acceptor = TcpListener::new(SocketAddr::from(([127, 0, 0, 1], 0))).bind().await;
    let address = acceptor.inner().local_addr().unwrap();
    tokio::spawn(Server::new(acceptor).serve(Service::new(router)));
    address
}

async fn sqlite(file: &str, id: Uuid) -> Pools {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full);
    let pool = |most| SqlitePoolOptions::new().max_connections(most).test_before_acquire(false);
    let write = pool(1).connect_with(options.clone()).await.unwrap();
    let create = "CREATE TABLE things (id BLOB PRIMARY KEY, name TEXT NOT NULL) STRICT";
    sqlx::query(create).execute(&write).await.unwrap();
    sqlx::query(INSERT).bind(id).execute(&write).await.unwrap();
    Pools::Sqlite { write, read: pool(4).connect_with(options.read_only(true)).await.unwrap() }
}

async fn postgres(url: &str, id: Uuid) -> Pools {
    let pool = PgPoolOptions::new().max_connections(16).test_before_acquire(false).connect(url).await.unwrap();
    let create = "CREATE TABLE IF NOT EXISTS things (id UUID PRIMARY KEY, name TEXT NOT NULL)";
    sqlx::query(create).execute(&pool).await.unwrap();
    sqlx::query(INSERT).bind(id).execute(&pool).await.unwrap();
    Pools::Postgres(pool)
}

struct Get(Arc<Bare>);

#[async_trait]
impl Handler for Get {
    async fn handle(&self, _: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let id = self.0.id;
        match &self.0.pools {
            Pools::Sqlite { read, .. } => drop(sqlx::query(SELECT).bind(id).fetch_optional(read).await.unwrap()),
            Pools::Postgres(pool) => drop(sqlx::query(SELECT).bind(id).fetch_optional(pool).await.unwrap()),
        }
        res.render(salvo::writing::Json(serde_json::json!({"data": {"id": id, "name": "one"}})));
    }
}

/// Two reads and two inserts.
macro_rules! four_statements {
    ($transaction:expr, $id:expr) => {{
        let mut transaction = $transaction;
        for _ in 0..2 {
            sqlx::query(SELECT).bind($id).fetch_optional(&mut *transaction).await.unwrap();
        }
        for _ in 0..2 {
            sqlx::query(INSERT).bind(Uuid::new_v4()).execute(&mut *transaction).await.unwrap();
        }
        transaction.commit().await.unwrap();
    }};
}

struct Post(Arc<Bare>);

#[async_trait]
impl Handler for Post {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let body: serde_json::Value = req.parse_json().await.unwrap();
        let id = self.0.id;
        match &self.0.pools {
            Pools::Sqlite { write, .. } => four_statements!(write.begin_with("BEGIN IMMEDIATE").await.unwrap(), id),
            Pools::Postgres(pool) => four_statements!(pool.begin().await.unwrap(), id),
        }
        res.render(salvo::writing::Json(serde_json::json!({"data": body})));
    }
}
