//! Everything that somebody with a few tunnels does, once: each route, each page, each frame of an agent, each background job.

use culvert_domain::audit_log::Actor;
use culvert_domain::sign_in::RequireSecondFactor;
use culvert_http::routes::table;
use culvert_service::accounts;
use culvert_service::jobs::ticker;
use culvert_store::outbox::UnderWay;
use culvert_wire::control::Done;
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::meter::Meter;
use super::seed::seed;
use crate::support::api::Api;
use crate::support::host::{Engine, Person, TestHost, own_address, second_node, within};
use crate::support::names::Names;
use crate::support::tab::Tab;
use crate::support::wire::Wire;

pub struct Stage {
    pub meter: Meter,
    host: TestHost,
    names: Names,
    ada: Person,
    api: Api,
    round: usize,
}

impl Stage {
    /// A host with two nodes, amid so many tunnels of others.
    pub async fn set(engine: Engine, others: usize) -> Self {
        let names = Names::open().await;
        let address = own_address();
        let host = TestHost::with(engine, |config| {
            Meter::enable(config);
            config.rate_limit.per_minute = 1_000_000;
            config.dns.resolver = Some(names.address);
            config.node.domain = Some("tunnels.example.test".into());
            config.dashboard.require_second_factor = RequireSecondFactor::Never;
            config.extra_node.push(second_node(config, address, "second.example.test"));
        })
        .await;
        seed(&host, engine, others).await;
        let ada = host.person("ada").await;
        accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
        let api = host.api(&ada.key);
        let meter = Meter::of(&host, engine).await;
        let mut stage = Self { meter, host, names, ada, api, round: 0 };
        // At first, plans are made and caches filled, for each connection.
        stage.walk().await;
        stage.walk().await;
        stage.meter.forget();
        stage
    }

    pub async fn walk(&mut self) {
        self.round += 1;
        let (device, mut wire) = self.connect().await;
        let tunnel = self.ask("POST /tunnels", &[], json!({"local_port": 80, "device_ids": [device]})).await;
        self.change_tunnel(tunnel, device).await;
        self.run_tunnel(tunnel, device, &mut wire).await;
        self.read_lists().await;
        self.look_at_pages(tunnel, device).await;
        self.change_webhook().await;
        self.use_domain().await;
        self.ask("DELETE /tunnels/{tunnel_id}", &[tunnel], Value::Null).await;
        self.do_jobs().await;
        drop(wire);
        let covered =
            |row: &culvert_http::row::Row| self.meter.measured().contains_key(&format!("{} {}", row.method, row.path));
        let missing: Vec<_> = table().into_iter().filter(|row| !covered(row)).map(|row| row.path).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    async fn read_lists(&mut self) {
        let lists = table().into_iter().filter(|row| row.method == Method::GET && !row.path.contains('{'));
        for row in lists.collect::<Vec<_>>() {
            self.ask(&format!("GET {}", row.path), &[], Value::Null).await;
        }
    }

    async fn connect(&mut self) -> (Uuid, Wire) {
        let (host, ada) = (&self.host, &self.ada);
        let (device, wire) = self.meter.note("agent: enrolment and handshake", host.wired(ada, ada.account_id)).await;
        (device.id, wire)
    }

    async fn change_tunnel(&mut self, tunnel: Uuid, device: Uuid) {
        let of = [tunnel];
        self.ask("GET /tunnels/{tunnel_id}", &of, Value::Null).await;
        self.ask("PATCH /tunnels/{tunnel_id}", &of, json!({"name": "changed"})).await;
        self.ask("PUT /tunnels/{tunnel_id}/devices", &of, json!({"device_ids": [device]})).await;
        let rules = json!({"rules": [{"rule_type": "blacklist", "ip_address": "192.0.2.1"}]});
        self.ask("PUT /tunnels/{tunnel_id}/firewall", &of, rules).await;
        self.ask("GET /tunnels/{tunnel_id}/firewall", &of, Value::Null).await;
        self.ask("PUT /tunnels/{tunnel_id}/geoip", &of, json!({"rules": []})).await;
        self.ask("GET /tunnels/{tunnel_id}/geoip", &of, Value::Null).await;
        let port = self.ask("POST /tunnels/{tunnel_id}/extra-ports", &of, json!({"local_port": 81})).await;
        self.ask("GET /tunnels/{tunnel_id}/extra-ports", &of, Value::Null).await;
        self.ask("DELETE /tunnels/{tunnel_id}/extra-ports/{port_id}", &[tunnel, port], Value::Null).await;
        self.ask("GET /tunnels/{tunnel_id}/usage", &of, Value::Null).await;
        self.ask("GET /tunnels/{tunnel_id}/sessions", &of, Value::Null).await;
        self.ask("GET /devices/{device_id}", &[device], Value::Null).await;
        self.ask("PATCH /devices/{device_id}", &[device], json!({"name": "changed"})).await;
    }

    async fn run_tunnel(&mut self, tunnel: Uuid, device: Uuid, wire: &mut Wire) {
        let (of, by) = ([tunnel], json!({"device_id": device}));
        let operation = self.ask("POST /tunnels/{tunnel_id}/actions/start", &of, by).await;
        let grant = self.meter.note("agent: start", wire.obey(Done::Start)).await.unwrap();
        self.settle().await;
        self.ask("GET /operations/{operation_id}", &[operation], Value::Null).await;
        // Each of the start's last commits has one heartbeat ask whether a tunnel waits. Heartbeats are counted after they
        // are answered.
        let counted = async || self.host.metric("culvert_agent_heartbeats_total").await.unwrap_or_default();
        let before = counted().await;
        for _ in 0..4 {
            wire.renew(&[grant.lease_id]).await;
        }
        self.host.until_found(async || (counted().await >= before + 4.0).then_some(())).await;
        self.meter.note("agent: heartbeat", wire.renew(&[grant.lease_id])).await;
        self.ask("POST /tunnels/{tunnel_id}/actions/restart", &of, json!({})).await;
        self.meter.note("agent: restart", wire.obey(Done::Restart)).await.unwrap();
        self.settle().await;
        self.meter.note("job: tick while a tunnel runs", ticker::tick(&self.host.app.jobs, 1)).await;
        self.ask("POST /tunnels/{tunnel_id}/actions/stop", &of, json!({})).await;
        self.meter.note("agent: stop", wire.obey(Done::Stop)).await;
        self.settle().await;
        let node = self.api.get(&format!("/tunnels/{tunnel}")).await.data()["node"]["id"].clone();
        let nodes = self.api.get("/nodes").await;
        let online = |other: &&Value| other["id"] != node && other["status"] == "online";
        let other =
            nodes.data().as_array().unwrap().iter().find(online).unwrap_or_else(|| panic!("{}", nodes.text))["id"]
                .clone();
        self.ask("POST /tunnels/{tunnel_id}/move", &of, json!({"node_id": other})).await;
        self.ask("POST /devices/{device_id}/actions/stop-all", &[device], json!({})).await;
        self.meter.note("agent: stop all", wire.obey(Done::StopAll { stopped: Vec::new() })).await;
        self.ask("POST /devices/{device_id}/actions/restart-agent", &[device], json!({})).await;
    }

    /// Each page of the dashboard that shows a list, the tunnel or the device.
    async fn look_at_pages(&mut self, tunnel: Uuid, device: Uuid) {
        let mut tab = Tab::entered(&self.host, self.ada.account_id).await;
        for page in culvert_dashboard::pages::PAGES {
            let path = page.path.replace("{s}", "me").replace("tunnels/{id}", &format!("tunnels/{tunnel}"));
            let path = path.replace("devices/{id}", &format!("devices/{device}"));
            if !path.contains('{') {
                let path = format!("/dashboard/{path}");
                let shown = self.meter.note(&format!("page {}", page.path), tab.get(&path)).await;
                assert_eq!(shown.status, 200, "{path}: {}", shown.text);
            }
        }
    }

    async fn change_webhook(&mut self) {
        let made = json!({"url": "https://8.8.8.8/", "events": ["device.online"]});
        let of = [self.ask("POST /webhooks", &[], made).await];
        self.ask("GET /webhooks/{webhook_id}", &of, Value::Null).await;
        self.ask("PATCH /webhooks/{webhook_id}", &of, json!({"description": "changed"})).await;
        self.test_webhook(of[0]).await;
        self.ask("GET /webhooks/{webhook_id}/deliveries", &of, Value::Null).await;
        self.ask("DELETE /webhooks/{webhook_id}", &of, Value::Null).await;
    }

    /// With the delivery that follows, which would be counted or not, as it happens: the event, the claim and the attempt.
    async fn test_webhook(&mut self, id: Uuid) {
        let mut commits = self.host.app.store.commits();
        let attempted = *commits.borrow() + 3;
        let path = format!("/webhooks/{id}/test");
        let work = async {
            let answer = self.api.post(&path, json!({})).await;
            within(60, commits.wait_for(|commits| *commits >= attempted)).await.unwrap();
            answer
        };
        let answer = self.meter.note("POST /webhooks/{webhook_id}/test", work).await;
        assert!(answer.status < 300, "{}", answer.text);
    }

    async fn use_domain(&mut self) {
        let http = json!({"local_port": 80, "protocol": "http"});
        let web = self.meter.note("POST /tunnels, http", self.api.post("/tunnels", http)).await;
        let of = [web.id()];
        let target = self.api.get(&format!("/tunnels/{}/domain", web.id())).await.data()["cname_target"].clone();
        let name = format!("round-{}.example.com", self.round);
        self.names.alias(&name, target.as_str().unwrap());
        let domain = json!({"domain": name});
        self.ask("POST /tunnels/{tunnel_id}/domain/actions/verify", &of, domain.clone()).await;
        self.ask("PUT /tunnels/{tunnel_id}/domain", &of, domain).await;
        self.ask("GET /tunnels/{tunnel_id}/domain", &of, Value::Null).await;
        self.ask("DELETE /tunnels/{tunnel_id}/domain", &of, Value::Null).await;
        self.api.delete(&format!("/tunnels/{}", web.id())).await.data();
        self.settle().await;
    }

    async fn do_jobs(&mut self) {
        let app = &self.host.app;
        self.meter.note("job: tick", ticker::tick(&app.jobs, 1)).await;
        self.meter.note("job: tick that compares nodes", ticker::tick(&app.jobs, 30)).await;
        self.meter.note("job: prune", app.store.prune()).await.unwrap();
        self.meter.note("job: custom domains that are due", app.store.due_domains()).await.unwrap();
        self.meter.note("job: certificates that are due", app.store.due_certificates()).await.unwrap();
        self.meter.note("job: next delivery", app.store.next_delivery(&UnderWay::default())).await.unwrap();
        self.meter.note("GET /metrics", self.host.metrics()).await;
    }

    /// Sends a request that succeeds; the id of what it answers, where it has one.
    async fn ask(&mut self, route: &str, ids: &[Uuid], body: Value) -> Uuid {
        let (method, path) = route.split_once(' ').unwrap();
        let mut ids = ids.iter();
        let parts = path
            .split('/')
            .map(|part| if part.starts_with('{') { ids.next().unwrap().to_string() } else { part.to_owned() });
        let path = parts.collect::<Vec<_>>().join("/");
        let api = &self.api;
        let work = async {
            match method {
                "GET" => api.get(&path).await,
                "DELETE" => api.delete(&path).await,
                "POST" => api.post(&path, body).await,
                "PUT" => api.put(&path, body).await,
                _ => api.patch(&path, body).await,
            }
        };
        let answer = self.meter.note(route, work).await;
        assert!(answer.status < 300, "{route}: {}", answer.text);
        self.settle().await;
        answer.body["data"]["id"].as_str().map_or(Uuid::nil(), |id| id.parse().unwrap())
    }

    /// Waits until the nodes know of every change, so that what they read counts to nothing else.
    async fn settle(&self) {
        let nodes = self.host.app.service.nodes();
        nodes.wait_until_applied(nodes.ids()).await;
    }
}
