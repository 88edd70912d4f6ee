//! How long a visitor's connection of HTTP/1.1 may wait, by a clock that the test moves.

use std::io;
use std::time::Duration;

use culvert_test_macros::both_engines;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::host::{Engine, TestHost, within};
use crate::support::web::{Browser, read_body, read_head};

const FIRST_BYTE: Duration = Duration::from_secs(40);
const HEAD: Duration = Duration::from_secs(15);
const KEEP_ALIVE: Duration = Duration::from_secs(75);
const A_MOMENT: Duration = Duration::from_millis(1);

struct Stage(TestHost);

impl Stage {
    /// The head has less time than the first byte, so that the test sees when the node has begun to wait for it.
    async fn set(engine: Engine) -> Self {
        Self(
            TestHost::with(engine, |config| config.node.http.first_byte_timeout_ms = FIRST_BYTE.as_millis() as u64)
                .await,
        )
    }

    /// A connection that the node has accepted.
    async fn browser(&self) -> Browser {
        let browser = Browser::open(self.0.http_address().await).await;
        self.until_awaited(FIRST_BYTE).await;
        browser
    }

    async fn until_awaited(&self, wait: Duration) {
        let clock = &self.0.clock;
        within(20, clock.until_awaited(clock.moment().plus(wait))).await;
    }

    /// Asks for a name that nobody has, and moves the clock on when the answer has come.
    async fn ask(&self, browser: &mut Browser, then: Duration) {
        assert_eq!(browser.outcome("nobody.tunnel.localhost", "/").await, "404 no_such_tunnel");
        self.0.clock.advance(then);
    }
}

async fn is_closed(browser: &mut Browser) -> bool {
    let mut rest = Vec::new();
    match within(20, browser.0.read_to_end(&mut rest)).await {
        Ok(_) => rest.is_empty(),
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

#[both_engines]
async fn connection_without_a_byte_is_closed(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut browser = stage.browser().await;
    stage.0.clock.advance(FIRST_BYTE.checked_sub(A_MOMENT).unwrap());
    stage.ask(&mut browser, Duration::ZERO).await;
    let mut silent = stage.browser().await;
    stage.0.clock.advance(FIRST_BYTE);
    assert!(is_closed(&mut silent).await);
}

#[both_engines]
async fn connection_is_kept_for_the_next_request(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut browser = stage.browser().await;
    stage.ask(&mut browser, KEEP_ALIVE.checked_sub(A_MOMENT).unwrap()).await;
    stage.ask(&mut browser, KEEP_ALIVE).await;
    assert!(is_closed(&mut browser).await);
}

/// Requests that come before the former one is answered are answered one after the other.
#[both_engines]
async fn requests_that_come_at_once_are_answered_in_turn(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut browser = stage.browser().await;
    let request = "POST /a HTTP/1.1\r\nHost: nobody.tunnel.localhost\r\nContent-Length: 1\r\n\r\nx";
    browser.0.write_all(request.repeat(50).as_bytes()).await.unwrap();
    for _ in 0..50 {
        let head = within(20, read_head(&mut browser.0)).await.unwrap();
        assert!(head.starts_with("HTTP/1.1 404"), "{head}");
        within(20, read_body(&mut browser.0, &head)).await;
    }
    stage.0.clock.advance(KEEP_ALIVE);
    assert!(is_closed(&mut browser).await);
}

#[both_engines]
async fn head_that_is_not_completed_ends_the_connection(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut browser = stage.browser().await;
    browser.0.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    stage.until_awaited(HEAD).await;
    stage.0.clock.advance(HEAD.checked_sub(A_MOMENT).unwrap());
    browser.0.write_all(b"st: nobody.tunnel.localhost\r\n\r\n").await.unwrap();
    assert!(read_head(&mut browser.0).await.unwrap().starts_with("HTTP/1.1 404"));
    let mut slow = stage.browser().await;
    slow.0.write_all(b"GET / HTTP/1.1\r\nHo").await.unwrap();
    stage.until_awaited(HEAD).await;
    stage.0.clock.advance(HEAD);
    assert!(is_closed(&mut slow).await);
}
