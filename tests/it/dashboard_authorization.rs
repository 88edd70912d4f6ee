//! The dashboard's forms and the API's routes decide alike: each form that does what a route does, for every role, on one's own,
//! another member's and a stranger's. What no route does is for nobody with a key.

use std::time::Duration;

use culvert_dashboard::actions::{ACTIONS, Act};
use culvert_domain::audit_log::Actor;
use culvert_domain::caller::Role;
use culvert_http::routes::table;
use culvert_http::row::Row;
use culvert_service::accounts;
use culvert_test_macros::both_engines;
use reqwest::Method;
use uuid::Uuid;

use crate::authorization::{Member, ask};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::names::Names;
use crate::support::tab::{PASSWORD, Shown, Tab};

/// The route that does what a form does.
const ROUTES: [(&str, &str, &str); 23] = [
    ("{s}/tunnels", "POST", "/tunnels"),
    ("{s}/tunnels/{id}/start", "POST", "/tunnels/{tunnel_id}/actions/start"),
    ("{s}/tunnels/{id}/stop", "POST", "/tunnels/{tunnel_id}/actions/stop"),
    ("{s}/tunnels/{id}/restart", "POST", "/tunnels/{tunnel_id}/actions/restart"),
    ("{s}/tunnels/{id}/delete", "DELETE", "/tunnels/{tunnel_id}"),
    ("{s}/tunnels/{id}/settings", "PATCH", "/tunnels/{tunnel_id}"),
    ("{s}/tunnels/{id}/devices", "PUT", "/tunnels/{tunnel_id}/devices"),
    ("{s}/tunnels/{id}/move", "POST", "/tunnels/{tunnel_id}/move"),
    ("{s}/tunnels/{id}/access/addresses", "PUT", "/tunnels/{tunnel_id}/firewall"),
    ("{s}/tunnels/{id}/access/countries", "PUT", "/tunnels/{tunnel_id}/geoip"),
    ("{s}/tunnels/{id}/ports", "POST", "/tunnels/{tunnel_id}/extra-ports"),
    ("{s}/tunnels/{id}/ports/{id}/delete", "DELETE", "/tunnels/{tunnel_id}/extra-ports/{port_id}"),
    ("{s}/tunnels/{id}/domain/verify", "POST", "/tunnels/{tunnel_id}/domain/actions/verify"),
    ("{s}/tunnels/{id}/domain/assign", "PUT", "/tunnels/{tunnel_id}/domain"),
    ("{s}/tunnels/{id}/domain/remove", "DELETE", "/tunnels/{tunnel_id}/domain"),
    ("{s}/devices/{id}/rename", "PATCH", "/devices/{device_id}"),
    ("{s}/devices/{id}/stop-all", "POST", "/devices/{device_id}/actions/stop-all"),
    ("{s}/devices/{id}/restart-agent", "POST", "/devices/{device_id}/actions/restart-agent"),
    ("{s}/webhooks", "POST", "/webhooks"),
    ("{s}/webhooks/{id}/settings", "PATCH", "/webhooks/{webhook_id}"),
    ("{s}/webhooks/{id}/status", "PATCH", "/webhooks/{webhook_id}"),
    ("{s}/webhooks/{id}/test", "POST", "/webhooks/{webhook_id}/test"),
    ("{s}/webhooks/{id}/delete", "DELETE", "/webhooks/{webhook_id}"),
];

/// Somebody at a tab, of whom a sign-in may change sixty things in a minute.
struct Sender {
    tab: Tab,
    email: String,
    sent: u32,
}

impl Sender {
    async fn new(host: &TestHost, person: &Person, name: &str) -> Self {
        Self { tab: Tab::with_password(host, person.account_id).await, email: format!("{name}@example.test"), sent: 0 }
    }

    /// Sends a form: as its page shows it, or by hand where there is no such page.
    async fn send(&mut self, host: &TestHost, page: &str, path: &str, fields: &[(&str, &str)]) -> Shown {
        self.sent += 1;
        if self.sent.is_multiple_of(50) {
            self.tab = Tab::signed_in(host, &self.email).await;
        }
        let shown = self.tab.get(page).await;
        if shown.status == 200 && shown.text.contains(&format!("method=\"post\" action=\"{path}\"")) {
            return self.tab.submit(&shown, path, fields).await;
        }
        let form = self.tab.made_up(host, path, fields).await;
        self.tab.post(path, &form).await
    }
}

/// What is typed into a form to ask for what the API is asked for.
fn fields(act: &Act, device: &str) -> Vec<(&'static str, String)> {
    let of =
        |fields: &[(&'static str, &str)]| fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    match act.path {
        "{s}/tunnels" => of(&[("local_port", "80"), ("protocol", "tcp")]),
        "{s}/tunnels/{id}/start" => of(&[("device_id", device), ("handoff", "no")]),
        "{s}/tunnels/{id}/settings" | "{s}/devices/{id}/rename" => of(&[("name", "changed"), ("local_port", "80")]),
        "{s}/tunnels/{id}/devices" => of(&[("any device", "yes")]),
        "{s}/tunnels/{id}/move" => of(&[("node_id", device)]),
        "{s}/tunnels/{id}/ports" => of(&[("local_port", "81"), ("protocol", "tcp")]),
        "{s}/tunnels/{id}/domain/verify" | "{s}/tunnels/{id}/domain/assign" => of(&[("domain", "1.example.test")]),
        "{s}/webhooks" => of(&[("url", "https://8.8.8.8/"), ("event device.online", "yes")]),
        "{s}/webhooks/{id}/settings" => {
            of(&[("url", "https://8.8.8.8/"), ("event device.online", "yes"), ("description", "changed")])
        }
        "{s}/webhooks/{id}/status" => of(&[("status", "disabled")]),
        _ => Vec::new(),
    }
}

/// A form's or a page's path with what is meant: the same ids as in the path of a route.
fn filled(pattern: &str, scope: Uuid, route: &str) -> String {
    let ids: Vec<&str> = route.split('/').filter(|part| Uuid::parse_str(part).is_ok()).collect();
    let mut ids = ids.into_iter();
    let parts = pattern.split('/').map(|part| match part {
        "{s}" => scope.to_string(),
        "{id}" => ids.next().unwrap().to_owned(),
        part => part.to_owned(),
    });
    format!("/dashboard/{}", parts.collect::<Vec<_>>().join("/"))
}

/// Refused alike is refused with the same code; what is carried out leads on or shows something.
fn alike(api: &str, form: &Shown) -> bool {
    if api.starts_with('2') { form.status < 400 } else { form.outcome() == api }
}

#[both_engines]
async fn forms_decide_as_the_api_does(engine: Engine) {
    let resolver = Names::open().await;
    let host = TestHost::with(engine, |config| {
        config.rate_limit.per_minute = 10_000;
        config.dns.resolver = Some(resolver.address);
    })
    .await;
    let names = ["ada", "bea", "cem", "dan"];
    let mut people = Vec::new();
    for name in names {
        people.push(host.person(name).await);
    }
    let team = host.team("Engines", &people[0]).await;
    host.join(team, &people[1], Role::Admin).await;
    host.join(team, &people[2], Role::Member).await;
    let mut members = Vec::new();
    let mut senders = Vec::new();
    for (person, name) in people.iter().zip(names) {
        let scope = if name == "dan" { person.account_id } else { team };
        members.push(Member::new(&host, person, scope).await);
        senders.push(Sender::new(&host, person, name).await);
    }
    let (owner, admin, member, alone) = (0, 1, 2, 3);
    let columns = [
        (alone, alone),
        (alone, member),
        (owner, owner),
        (owner, member),
        (admin, owner),
        (admin, member),
        (member, member),
        (member, owner),
        (owner, alone),
    ];
    let (rows, mut different): (Vec<Row>, _) = (table(), Vec::new());
    for (form, method, route) in ROUTES {
        let act = ACTIONS.iter().find(|act| act.path == form).unwrap_or_else(|| panic!("there is no form {form}"));
        let row = rows.iter().find(|row| row.method == method && row.path == route).unwrap();
        for (who, whose) in columns {
            // One of each kind for either, because both may be carried out.
            let by_key = members[whose].target(&host, row).await;
            let by_form = members[whose].target(&host, row).await;
            let device = members[whose].device.id.to_string();
            let scope = members[who].scope;
            let asked = ask(&members[who].api, row, by_key).await;
            let mut typed = fields(act, &device);
            if form.ends_with("{id}/delete") && route == "/tunnels/{tunnel_id}" {
                let tunnel = members[whose].api.get(&by_form.0).await;
                typed.push(("confirm_name", tunnel.data()["name"].as_str().unwrap().to_owned()));
            }
            let typed: Vec<(&str, &str)> = typed.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let (page, path) = (filled(act.page, scope, &by_form.0), filled(form, scope, &by_form.0));
            let sent = senders[who].send(&host, &page, &path, &typed).await;
            // What is gone is deleted, as far as a second click can tell; so is another's, which stays.
            let finds_it_gone = form.ends_with("{id}/delete") && asked == "404 not_found" && sent.status == 303;
            let stays = finds_it_gone && members[whose].api.get(&by_form.0).await.status == 200;
            if !alike(&asked, &sent) && !stays {
                let (who, whose) = (names[who], names[whose]);
                different.push(format!("{form}: {who}, {whose}'s: {asked} by key, {} by form", sent.outcome()));
            }
        }
    }
    assert!(different.is_empty(), "{different:#?}");
}

/// What no route does has no key either: a key of all scopes is nobody at the dashboard, and the API knows no such paths.
#[both_engines]
async fn keys_reach_no_form(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    for act in ACTIONS {
        let path = filled(act.path, ada.account_id, &format!("/{0}/{0}", Uuid::nil()));
        let request = Tab::open(&host).form_request(&path, &[]).header("sec-fetch-site", "same-origin");
        let shown = Tab::open(&host).send(request.header("authorization", format!("Bearer {}", ada.key))).await;
        assert_eq!(shown.outcome(), "401 sign_in_required", "{path}");
        if !ROUTES.iter().any(|(form, ..)| *form == act.path) {
            let below = act.path.replace("{s}/", "").replace("{id}", &Uuid::nil().to_string());
            let answer = api.send(api.request(Method::POST, &format!("/{below}")).json(&serde_json::json!({}))).await;
            assert!(matches!(answer.status, 404 | 405), "POST /{below}: {}", answer.text);
        }
    }
}

/// Pages and forms of operators are for operators alone, whatever else somebody is.
#[both_engines]
async fn operators_pages_and_forms_are_for_operators(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &eve, Role::Admin).await;
    let node = host.app.store.nodes().await.unwrap()[0].id;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let mut adas = Sender::new(&host, &ada, "ada").await;
    let mut eves = Sender::new(&host, &eve, "eve").await;
    for page in culvert_dashboard::pages::PAGES.iter().filter(|page| page.path.starts_with("operator/")) {
        let path = format!("/dashboard/{}", page.path);
        let outcomes = (adas.tab.get(&path).await.status, eves.tab.get(&path).await.outcome());
        assert_eq!(outcomes, (200, "404 not_found".into()), "{path}");
    }
    for act in ACTIONS.iter().filter(|act| act.path.starts_with("operator/")) {
        let id = if act.path.contains("nodes") { node } else { eve.account_id };
        let path = format!("/dashboard/{}", act.path.replace("{id}", &id.to_string()));
        let page = format!("/dashboard/{}", act.page);
        assert!(act.needs_elevation, "{path}");
        assert_eq!(eves.send(&host, &page, &path, &[]).await.outcome(), "404 not_found", "{path}");
    }
    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    host.clock.advance(Duration::from_mins(10));
    for act in ACTIONS.iter().filter(|act| act.needs_elevation) {
        let path = filled(act.path, ada.account_id, &format!("/{0}/{0}", device.id));
        let form = adas.tab.made_up(&host, &path, &[("password", PASSWORD)]).await;
        assert_eq!(adas.tab.post(&path, &form).await.outcome(), "403 elevation_required", "{path}");
    }
}
