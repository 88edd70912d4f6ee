//! What pages tell of traffic: plots by minute, hour and day, and the visitors that are there now.

use std::time::Duration;

use culvert_test_macros::both_engines;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::api::Api;
use crate::support::database::count;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost};
use crate::support::tab::Tab;
use crate::support::visitor::{echo_service, visit};

const DAY: Duration = Duration::from_hours(24);

/// A tunnel that runs, to a service that says what it hears, and its owner's tab.
struct Stage {
    host: TestHost,
    api: Api,
    tab: Tab,
    tunnel: Uuid,
    _device: TestDevice,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
        let port = echo_service().await.port();
        let tunnel = api.post("/tunnels", serde_json::json!({"local_port": port})).await.id();
        host.run_tunnel(&api, &device, tunnel).await;
        let tab = Tab::entered(&host, ada.account_id).await;
        Self { host, api, tab, tunnel, _device: device }
    }

    /// Sends so many bytes through the tunnel and back, and waits until they are counted.
    async fn carry(&self, bytes: usize) {
        assert_eq!(visit(&self.host, &self.api, self.tunnel, &vec![7; bytes]).await.unwrap().len(), bytes);
        self.host
            .until(async || {
                self.host.record_traffic().await;
                let usage = self.api.get(&format!("/tunnels/{}/usage", self.tunnel)).await.data().clone();
                (usage["bandwidth"]["today"]["bytes_in"] == bytes).then_some(())
            })
            .await;
    }

    async fn page(&mut self, part: &str) -> String {
        let path = format!("/dashboard/me/{part}");
        let page = self.tab.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text);
        is_sound(&path, &page);
        page.text
    }

    async fn tunnel_page(&mut self) -> String {
        self.page(&format!("tunnels/{}", self.tunnel)).await
    }

    /// Waits until the tunnel's page tells so many visitors.
    async fn until_visitors(&mut self, count: usize) {
        let Self { host, tab, tunnel, .. } = self;
        let (path, seen) =
            (format!("/dashboard/me/tunnels/{tunnel}"), format!("<dt>Visitors now</dt><dd>{count}</dd>"));
        host.until_found(async || {
            host.record_traffic().await;
            tab.get(&path).await.text.contains(&seen).then_some(())
        })
        .await;
    }

    /// The plot by the hour of a page of these, for the day that is asked for.
    async fn hours(&mut self, part: &str, day: &str) -> String {
        let page = self.page(&format!("{part}?find={day}")).await;
        page.split("<figure>").last().unwrap().into()
    }
}

/// The rows of the table of a plot, and how many cells of them have so many bytes.
fn rows(plot: &str, bytes: &str) -> (usize, usize) {
    let table = plot.split("<tbody>").nth(1).unwrap().split("</tbody>").next().unwrap();
    (table.matches("<tr>").count(), table.matches(bytes).count())
}

/// What a tunnel has carried is plotted by minute, hour and day, and the tables tell what the API tells.
#[both_engines]
async fn plots_tell_what_the_api_tells(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.carry(5000).await;
    let page = stage.tunnel_page().await;
    assert!(page.len() < 16_000, "{} bytes", page.len());
    let mut plots: Vec<String> = page.split("<figure>").skip(1).map(Into::into).collect();
    assert_eq!(plots.len(), 2, "{page}");
    let sessions = format!("tunnels/{}/sessions", stage.tunnel);
    plots.extend([stage.hours(&sessions, "").await, stage.hours("usage", "").await]);
    for (plot, (unit, count)) in plots.iter().zip([("minute", 12), ("day", 30), ("hour", 24), ("hour", 24)]) {
        assert!(plot.contains(&format!("Traffic by {unit}: 5.0 kB in, 5.0 kB out")), "{unit}: {plot}");
        assert_eq!(rows(plot, "5.0 kB"), (count, 2), "{unit}");
    }
}

/// The hours of a day sum up to the day, are found by its date, and are kept for 35 days.
#[both_engines]
async fn hours_of_a_day_are_kept_for_35_days(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let sessions = format!("tunnels/{}/sessions", stage.tunnel);
    let day = stage.host.clock.now().date_naive();
    stage.carry(5000).await;
    stage.host.clock.advance(2 * DAY);
    for part in [sessions.as_str(), "usage"] {
        assert!(stage.hours(part, "").await.contains("Traffic by hour: 0 bytes in, 0 bytes out"), "{part}");
        let plot = stage.hours(part, &day.to_string()).await;
        assert!(plot.contains("Traffic by hour: 5.0 kB in, 5.0 kB out"), "{part}: {plot}");
        assert_eq!(rows(&plot, "5.0 kB"), (24, 2), "{part}");
        for wrong in ["2000-01-01", "2999-01-01", "yesterday"] {
            let plot = stage.hours(part, wrong).await;
            assert!(plot.contains("must be a date from "), "{part} {wrong}: {plot}");
        }
    }
    // Another's tunnel has no page.
    let grace = stage.host.person("grace").await;
    let mut graces = Tab::entered(&stage.host, grace.account_id).await;
    assert_eq!(graces.get(&format!("/dashboard/me/{sessions}")).await.status, 404);
    let url = stage.host.config().database_url();
    let kept = async || {
        stage.host.app.store.prune().await.unwrap();
        (count(&url, "usage_hours").await, count(&url, "usage_hours_of_scopes").await)
    };
    stage.host.clock.advance(33 * DAY);
    assert_eq!(kept().await, (1, 1));
    stage.host.clock.advance(Duration::from_hours(1));
    assert_eq!(kept().await, (0, 0));
}

/// The minutes of the last hour outlive the host, and go soon after.
#[both_engines]
async fn minutes_are_kept_for_little_more_than_an_hour(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.carry(5000).await;
    let url = stage.host.config().database_url();
    let kept = async |host: &TestHost| {
        host.app.store.prune().await.unwrap();
        count(&url, "usage_minutes").await
    };
    stage.host.clock.advance(Duration::from_mins(59));
    assert_eq!(kept(&stage.host).await, 1);
    let page = stage.tunnel_page().await;
    assert!(page.contains("Traffic by minute: 5.0 kB in, 5.0 kB out"), "{page}");
    stage.host.clock.advance(Duration::from_mins(12));
    assert_eq!(kept(&stage.host).await, 0);
}

/// A page tells how many visitors are there, and changes when one comes or goes.
#[both_engines]
async fn page_of_a_running_tunnel_counts_its_visitors(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    stage.until_visitors(0).await;
    let mut visitors = Vec::new();
    for count in 1..=2 {
        let mut visitor = TcpStream::connect(stage.host.public(&stage.api, stage.tunnel).await).await.unwrap();
        visitor.write_all(b"?").await.unwrap();
        visitor.read_exact(&mut [0]).await.unwrap();
        visitors.push(visitor);
        stage.until_visitors(count).await;
    }
    visitors.pop();
    stage.until_visitors(1).await;
    drop(visitors);
    stage.until_visitors(0).await;
    stage.api.post(&format!("/tunnels/{}/actions/stop", stage.tunnel), serde_json::json!({})).await.data();
    stage.host.until_tunnel(&stage.api, stage.tunnel, "stopped").await;
    assert!(!stage.tunnel_page().await.contains("Visitors now"));
}
