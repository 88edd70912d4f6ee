//! What happens to a request whose client disconnects.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::database::{WAITING_FOR_LOCKS, texts_of};
use crate::support::host::{Engine, TestHost, within};

/// Locks rows or a table, has clients ask for their account, and closes their connections while so many statements wait for the
/// lock. Returns the transaction that holds it.
async fn disconnect_while_locked(host: &TestHost, key: &str, count: usize, lock: &str, waiting: usize) -> PgConnection {
    let url = host.config().database_url();
    let mut locked = PgConnection::connect(&url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(format!("BEGIN; {lock}"))).execute(&mut locked).await.unwrap();
    let request = format!("GET /v2/account HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {key}\r\n\r\n");
    let mut clients = Vec::new();
    for _ in 0..count {
        let mut client = TcpStream::connect(host.address).await.unwrap();
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push(client);
    }
    within(20, async { while texts_of(&url, WAITING_FOR_LOCKS).await.len() < waiting {} }).await;
    for mut client in clients {
        client.shutdown().await.unwrap();
        // The host drops the request and the connection.
        let mut answered = String::new();
        within(20, client.read_to_string(&mut answered)).await.unwrap();
        assert_eq!(answered, "");
    }
    locked
}

/// One statement counts for all requests that wait. It continues if the client of the first one disconnects.
#[tokio::test]
async fn counting_continues_when_client_disconnects() {
    let host = TestHost::start(Engine::Postgres).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(api.get("/account").await.header("x-ratelimit-remaining"), Some("119"));
    let lock = "SELECT * FROM rate_windows FOR UPDATE";
    let mut locked = disconnect_while_locked(&host, &ada.key, 1, lock, 1).await;
    let unlock = sqlx::raw_sql("ROLLBACK").execute(&mut locked);
    let (answer, unlocked) = within(20, async { tokio::join!(api.get("/account"), unlock) }).await;
    unlocked.unwrap();
    assert_eq!((answer.outcome().as_str(), answer.header("x-ratelimit-remaining")), ("200", Some("117")));
}

/// Statements that wait for a lock do not keep their connections when their clients disconnect. The pool has 16 of them.
#[tokio::test]
async fn disconnected_clients_free_their_database_connections() {
    let host = TestHost::start(Engine::Postgres).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    assert_eq!(api.get("/account").await.outcome(), "200");
    let lock = "LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE";
    let mut locked = disconnect_while_locked(&host, &ada.key, 20, lock, 16).await;
    let unlock = sqlx::raw_sql("ROLLBACK").execute(&mut locked);
    let (answer, unlocked) = within(20, async { tokio::join!(api.get("/account"), unlock) }).await;
    unlocked.unwrap();
    assert_eq!(answer.outcome(), "200");
}
