//! Whatever is typed into a form that is not as it must be is told at its field.
//!
//! The forms and their fields are read from the pages, so that a new field is tried out by itself.

use std::time::Duration;

use culvert_dashboard::actions::{ACTIONS, Act};
use culvert_domain::audit_log::Actor;
use culvert_service::accounts;
use culvert_test_macros::both_engines;
use serde_json::json;
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::host::{Engine, TestHost};
use crate::support::tab::{Shown, Tab};

/// No field takes it: it is no number, no address and no choice, it has a control character, and it is long.
fn nonsense() -> String {
    format!("\u{7}{}", "x".repeat(2_000))
}

/// Somebody who may do everything, with one of everything.
struct Stage {
    host: TestHost,
    tab: Tab,
    scope: Uuid,
    tunnel: Uuid,
    device: Uuid,
    webhook: Uuid,
    account: Uuid,
    node: Uuid,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let host = TestHost::with(engine, |config| config.rate_limit.per_minute = 10_000).await;
        let (ada, eve) = (host.person("ada").await, host.person("eve").await);
        accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
        let scope = host.team("Lab", &ada).await;
        host.join(scope, &eve, culvert_domain::caller::Role::Member).await;
        let api = host.api(&host.key(ada.account_id, scope, "full_access").await.key);
        let tunnel = json!({"local_port": 80, "protocol": "http", "subdomain": "hello"});
        let tunnel = api.post("/tunnels", tunnel).await.id();
        let device = host.wired(&ada, scope).await.0.id;
        let webhook = host.webhook(scope).await;
        let node = host.app.store.nodes().await.unwrap()[0].id;
        let tab = Tab::with_password(&host, ada.account_id).await;
        Self { host, tab, scope, tunnel, device, webhook, account: eve.account_id, node }
    }

    /// A path of the tables with what is meant.
    fn filled(&self, path: &str) -> String {
        let id = [
            ("tunnels", self.tunnel),
            ("devices", self.device),
            ("webhooks", self.webhook),
            ("members", self.account),
            ("accounts", self.account),
            ("teams", self.scope),
            ("nodes", self.node),
        ];
        let id =
            id.iter().find(|(kind, _)| path.contains(&format!("{kind}/{{id}}"))).map_or(Uuid::nil(), |(_, id)| *id);
        format!("/dashboard/{path}").replace("{s}", &self.scope.to_string()).replace("{id}", &id.to_string())
    }

    /// The page with a form, where it has one.
    async fn page_of(&mut self, act: &Act, path: &str) -> Option<Shown> {
        let page = self.tab.get(&self.filled(act.page)).await;
        page.text.contains(&format!("method=\"post\" action=\"{path}\"")).then_some(page)
    }
}

#[both_engines]
async fn every_field_tells_what_is_wrong_with_it(engine: Engine) {
    let mut stage = Stage::set(engine).await;
    let (mut tried, mut problems) = (0, Vec::new());
    for act in ACTIONS {
        let path = stage.filled(act.path);
        let Some(page) = stage.page_of(act, &path).await else { continue };
        for field in page.typed(&path) {
            // A sign-in may change sixty things in a minute.
            stage.host.clock.advance(Duration::from_secs(1));
            let shown = stage.tab.submit(&page, &path, &[(&field, &nonsense())]).await;
            tried += 1;
            let outcome = shown.outcome();
            if outcome != "422 validation_failed" || shown.fault_in(&path, &field).is_none() {
                problems.push(format!("{path}: {field}: {outcome}"));
                continue;
            }
            is_sound(&path, &shown);
        }
    }
    assert!(tried > 50, "{tried}");
    assert!(problems.is_empty(), "{problems:#?}");
}
