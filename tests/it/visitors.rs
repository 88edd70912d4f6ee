//! Who is let in to a tunnel: firewall and GeoIP rules, judged at the door, and again for those who
//! are inside whenever the rules or the countries change; see
//! `docs/develop/decisions/0014-visitors-access.md`.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::countries::Known::{self, RegisteredIn, UsedIn};
use crate::support::countries::database;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::{Engine, TestHost};
use crate::support::program::Place;
use crate::support::visitor::{Visitor, echo_service, reached_at};

/// Addresses to come from, and where they are by [`COUNTRIES`].
const GERMAN: &str = "127.1.0.1";
const FRENCH: &str = "127.2.0.1";
const ITALIAN: &str = "127.3.0.1";
const NOWHERE: &str = "127.4.0.1";

const COUNTRIES: [(&str, Known); 3] =
    [("127.1.0.0/16", UsedIn("DE")), ("127.2.0.0/16", UsedIn("FR")), ("127.3.0.0/16", RegisteredIn("IT"))];

/// A tunnel to an echo service, and a device that can run it.
struct Stage {
    host: TestHost,
    api: Api,
    device: TestDevice,
    tunnel: Uuid,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        Self::of(TestHost::start(engine).await).await
    }

    /// With a country database.
    async fn with_countries(engine: Engine) -> Self {
        let host = TestHost::with(engine, |config| {
            let file = config.data_dir.join("countries.mmdb");
            fs::write(&file, database(&COUNTRIES)).unwrap();
            config.geoip.database = Some(file);
        });
        Self::of(host.await).await
    }

    async fn of(host: TestHost) -> Self {
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let device = host.device(&ada, ada.account_id, Remote::Disabled).await;
        let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
        Self { host, api, device, tunnel }
    }

    async fn started(self) -> Self {
        self.host.run_tunnel(&self.api, &self.device, self.tunnel).await;
        self
    }

    async fn get(&self, rules: &str) -> Answer {
        self.api.get(&format!("/tunnels/{}/{rules}", self.tunnel)).await
    }

    async fn put(&self, rules: &str, body: Value) -> Answer {
        self.api.put(&format!("/tunnels/{}/{rules}", self.tunnel), body).await
    }

    async fn firewall(&self, rules: Value) {
        self.put("firewall", json!({"rules": rules})).await.data();
    }

    async fn geoip(&self, rules: Value) {
        self.put("geoip", json!({"rules": rules})).await.data();
    }

    async fn address(&self) -> SocketAddr {
        self.host.public(&self.api, self.tunnel).await
    }

    async fn visitor(&self, from: &str) -> Option<Visitor> {
        Visitor::from(from, self.address().await).await
    }

    /// Which of some addresses are let in.
    async fn admitted<'a>(&self, sources: &[&'a str]) -> Vec<&'a str> {
        let mut admitted = Vec::new();
        for source in sources {
            if self.visitor(source).await.is_some() {
                admitted.push(*source);
            }
        }
        admitted
    }

    fn countries(&self) -> PathBuf {
        self.host.config().geoip.database.clone().unwrap()
    }
}

/// `rules[0].ip_cidr must be …`, for each field that an answer names; `200` of a success.
fn faults(answer: &Answer) -> String {
    let errors = answer.body["errors"].as_array().into_iter().flatten();
    let text = |error: &Value, name: &str| error[name].as_str().unwrap_or_default().to_owned();
    let faults: Vec<_> = errors.map(|error| format!("{} {}", text(error, "field"), text(error, "message"))).collect();
    format!("{} {}", answer.outcome(), faults.join("; ")).trim_end().into()
}

/// Ranges come back masked, addresses in their shortest spelling, and what was read can be put
/// back.
///
/// covers: GET /tunnels/{tunnel_id}/firewall
/// covers: PUT /tunnels/{tunnel_id}/firewall
#[both_engines]
async fn firewall_rules_are_stored_in_canonical_form(engine: Engine) {
    let stage = Stage::set(engine).await;
    let empty = stage.get("firewall").await;
    allow_duplicates! { assert_snapshot!(empty, @r#"
    200
    {
      "data": {
        "enforced": true,
        "rules": []
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let put = stage
        .put(
            "firewall",
            json!({"rules": [
                {"rule_type": "blacklist", "ip_cidr": "10.1.2.3/8", "description": "☕ inside"},
                {"rule_type": "whitelist", "ip_address": "2001:0DB8::0001", "description": null},
                {"rule_type": "whitelist", "ip_cidr": "192.0.2.7"},
                {"rule_type": "blacklist", "ip_cidr": "2001:db8::ffff/32", "description": ""},
                {"rule_type": "blacklist", "ip_cidr": "0.0.0.0/0"},
            ]}),
        )
        .await;
    allow_duplicates! { assert_snapshot!(put, @r#"
    200
    {
      "data": {
        "enforced": true,
        "rules": [
          {
            "created_at": "[time]",
            "description": "☕ inside",
            "id": "[uuid]",
            "ip_address": null,
            "ip_cidr": "10.0.0.0/8",
            "rule_type": "blacklist"
          },
          {
            "created_at": "[time]",
            "description": null,
            "id": "[uuid]",
            "ip_address": "2001:db8::1",
            "ip_cidr": null,
            "rule_type": "whitelist"
          },
          {
            "created_at": "[time]",
            "description": null,
            "id": "[uuid]",
            "ip_address": null,
            "ip_cidr": "192.0.2.7/32",
            "rule_type": "whitelist"
          },
          {
            "created_at": "[time]",
            "description": "",
            "id": "[uuid]",
            "ip_address": null,
            "ip_cidr": "2001:db8::/32",
            "rule_type": "blacklist"
          },
          {
            "created_at": "[time]",
            "description": null,
            "id": "[uuid]",
            "ip_address": null,
            "ip_cidr": "0.0.0.0/0",
            "rule_type": "blacklist"
          }
        ]
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let read = stage.get("firewall").await;
    assert_eq!(read.data(), put.data());

    stage.host.clock.advance(Duration::from_secs(1));
    let again = stage.put("firewall", read.data().clone()).await;
    let said = |answer: &Answer| {
        let rules = answer.data()["rules"].as_array().unwrap().clone();
        rules
            .into_iter()
            .map(|rule| {
                [&rule["rule_type"], &rule["ip_address"], &rule["ip_cidr"], &rule["description"]].map(Clone::clone)
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(said(&again), said(&read));
    // Replaced, and not added to.
    assert_eq!(stage.get("firewall").await.data()["rules"].as_array().unwrap().len(), 5);
    stage.firewall(json!([])).await;
    assert_eq!(stage.get("firewall").await.data(), &json!({"rules": [], "enforced": true}));
}

/// Whatever is refused leaves the rules as they were.
///
/// covers: rule description: at most 255 characters
#[both_engines]
async fn invalid_firewall_rules_are_rejected_without_changes(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.firewall(json!([{"rule_type": "blacklist", "ip_address": "10.0.0.1"}])).await;
    let before = stage.get("firewall").await.data().clone();
    let rule = |rule: Value| json!([rule]);
    let mut said = String::new();
    for rules in [
        rule(json!({"rule_type": "blacklist"})),
        rule(json!({"rule_type": "blacklist", "ip_address": "10.0.0.1", "ip_cidr": "10.0.0.0/8"})),
        rule(json!({"rule_type": "blacklist", "ip_address": null, "ip_cidr": null})),
        rule(json!({"ip_address": "10.0.0.1"})),
        rule(json!({"rule_type": "graylist", "ip_address": "10.0.0.1"})),
        rule(json!({"rule_type": "blacklist", "ip_address": "10.0.0.0/8"})),
        rule(json!({"rule_type": "blacklist", "ip_address": "010.0.0.1"})),
        rule(json!({"rule_type": "blacklist", "ip_address": "example.com"})),
        rule(json!({"rule_type": "blacklist", "ip_address": ""})),
        rule(json!({"rule_type": "blacklist", "ip_address": "fe80::1%eth0"})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "10.0.0.0/33"})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "10.0.0.0/-1"})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "10.0.0.0/+8"})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "10.0.0.0/255.0.0.0"})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "10.0.0.0/"})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "10.0.0.0/8 "})),
        rule(json!({"rule_type": "blacklist", "ip_cidr": "::/129"})),
        rule(json!({"rule_type": "blacklist", "ip_address": "10.0.0.1", "description": "x".repeat(256)})),
        rule(json!({"rule_type": "blacklist", "ip_address": "10.0.0.1", "country_code": "DE"})),
        json!([{"rule_type": "blacklist", "ip_cidr": "10.0.0.1/8"}, {"rule_type": "blacklist", "ip_cidr": "10.9.9.9/8"}]),
        json!([{"rule_type": "blacklist", "ip_address": "10.0.0.1"}, {"rule_type": "blacklist", "ip_cidr": "10.0.0.1/32"}]),
        json!([{"rule_type": "whitelist"}, {"rule_type": "whitelist", "ip_cidr": "x"}, 7]),
        json!(null),
        json!({}),
    ] {
        let answer = stage.put("firewall", json!({"rules": rules})).await;
        let rules: String = rules.to_string().chars().take(110).collect();
        said += &format!("{rules}\n  {}\n", faults(&answer));
    }
    said += &format!("nothing\n  {}\n", faults(&stage.put("firewall", json!({})).await));
    allow_duplicates! { assert_snapshot!(said, @r#"
    [{"rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address one of ip_address and ip_cidr is required
    [{"ip_address":"10.0.0.1","ip_cidr":"10.0.0.0/8","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must not stand beside ip_address
    [{"ip_address":null,"ip_cidr":null,"rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address one of ip_address and ip_cidr is required
    [{"ip_address":"10.0.0.1"}]
      422 validation_failed rules[0].rule_type is required
    [{"ip_address":"10.0.0.1","rule_type":"graylist"}]
      422 validation_failed rules[0].rule_type must be one of whitelist, blacklist
    [{"ip_address":"10.0.0.0/8","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_address":"010.0.0.1","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_address":"example.com","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_address":"","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_address":"fe80::1%eth0","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_address must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"10.0.0.0/33","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"10.0.0.0/-1","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"10.0.0.0/+8","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"10.0.0.0/255.0.0.0","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"10.0.0.0/","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"10.0.0.0/8 ","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"ip_cidr":"::/129","rule_type":"blacklist"}]
      422 validation_failed rules[0].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    [{"description":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx
      422 validation_failed rules[0].description must have at most 255 characters, none of them a control character
    [{"country_code":"DE","ip_address":"10.0.0.1","rule_type":"blacklist"}]
      422 validation_failed rules[0].country_code is not a field of this request
    [{"ip_cidr":"10.0.0.1/8","rule_type":"blacklist"},{"ip_cidr":"10.9.9.9/8","rule_type":"blacklist"}]
      422 validation_failed rules[1] says the same as a rule before it
    [{"ip_address":"10.0.0.1","rule_type":"blacklist"},{"ip_cidr":"10.0.0.1/32","rule_type":"blacklist"}]
      422 validation_failed rules[1] says the same as a rule before it
    [{"rule_type":"whitelist"},{"ip_cidr":"x","rule_type":"whitelist"},7]
      422 validation_failed rules[2] must be an object; rules[0].ip_address one of ip_address and ip_cidr is required; rules[1].ip_cidr must be an IPv4 or IPv6 address, in ip_cidr with or without a prefix length
    null
      422 validation_failed rules must be an array
    {}
      422 validation_failed rules must be an array
    nothing
      422 validation_failed rules is required
    "#) }
    assert_eq!(stage.get("firewall").await.data(), &before);
}

#[both_engines]
async fn firewall_rule_limit_is_200_per_tunnel(engine: Engine) {
    let stage = Stage::set(engine).await;
    let rules = |count: u32| {
        let rule = |number: u32| json!({"rule_type": "blacklist", "ip_address": std::net::Ipv4Addr::from_bits(0x0a00_0000 + number).to_string()});
        json!({"rules": (0..count).map(rule).collect::<Vec<_>>()})
    };
    assert_eq!(stage.put("firewall", rules(200)).await.data()["rules"].as_array().unwrap().len(), 200);
    for count in [201, 250, 251, 1000] {
        let refused = stage.put("firewall", rules(count)).await;
        assert_eq!(
            (refused.outcome().as_str(), refused.fields()),
            ("422 validation_failed", vec!["rules".to_owned()]),
            "{count}"
        );
    }
    assert_eq!(stage.get("firewall").await.data()["rules"].as_array().unwrap().len(), 200);
}

/// covers: GET /tunnels/{tunnel_id}/geoip
#[both_engines]
async fn geoip_rules_are_stored_in_canonical_form(engine: Engine) {
    let stage = Stage::set(engine).await;
    let empty = stage.get("geoip").await;
    allow_duplicates! { assert_snapshot!(empty, @r#"
    200
    {
      "data": {
        "enforced": false,
        "rules": []
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let put = stage.put("geoip", json!({"rules": [
        {"country_code": "de"}, {"country_code": "fR", "action": "allow"}, {"country_code": "IT", "action": "block"},
    ]})).await;
    allow_duplicates! { assert_snapshot!(put, @r#"
    200
    {
      "data": {
        "enforced": false,
        "rules": [
          {
            "action": "block",
            "country_code": "DE"
          },
          {
            "action": "allow",
            "country_code": "FR"
          },
          {
            "action": "block",
            "country_code": "IT"
          }
        ]
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    let read = stage.get("geoip").await;
    assert_eq!(read.data(), put.data());
    assert_eq!(stage.put("geoip", read.data().clone()).await.data(), read.data());
    stage.geoip(json!([])).await;
    assert_eq!(stage.get("geoip").await.data(), &json!({"rules": [], "enforced": false}));
}

#[both_engines]
async fn invalid_geoip_rules_are_rejected_without_changes(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.geoip(json!([{"country_code": "DE"}])).await;
    let mut said = String::new();
    for rules in [
        json!([{}]),
        json!([{"country_code": "DEU"}]),
        json!([{"country_code": "D"}]),
        json!([{"country_code": "XX"}]),
        json!([{"country_code": "UK"}]),
        json!([{"country_code": "ß"}]),
        json!([{"country_code": "DE", "action": "deny"}]),
        json!([{"country_code": "DE", "action": null}]),
        json!([{"country_code": "DE"}, {"country_code": "de", "action": "allow"}]),
        json!([{"country_code": "DE", "ip_address": "10.0.0.1"}, "FR"]),
        json!(["DE"]),
        json!(null),
    ] {
        let answer = stage.put("geoip", json!({"rules": rules})).await;
        said += &format!("{rules}\n  {}\n", faults(&answer));
    }
    allow_duplicates! { assert_snapshot!(said, @r#"
    [{}]
      422 validation_failed rules[0].country_code is required
    [{"country_code":"DEU"}]
      422 validation_failed rules[0].country_code must be an ISO 3166-1 alpha-2 country code
    [{"country_code":"D"}]
      422 validation_failed rules[0].country_code must be an ISO 3166-1 alpha-2 country code
    [{"country_code":"XX"}]
      422 validation_failed rules[0].country_code must be an ISO 3166-1 alpha-2 country code
    [{"country_code":"UK"}]
      422 validation_failed rules[0].country_code must be an ISO 3166-1 alpha-2 country code
    [{"country_code":"ß"}]
      422 validation_failed rules[0].country_code must be an ISO 3166-1 alpha-2 country code
    [{"action":"deny","country_code":"DE"}]
      422 validation_failed rules[0].action must be one of allow, block
    [{"action":null,"country_code":"DE"}]
      422 validation_failed rules[0].action must be one of allow, block
    [{"country_code":"DE"},{"action":"allow","country_code":"de"}]
      422 validation_failed rules[1].country_code stands in a rule before it
    [{"country_code":"DE","ip_address":"10.0.0.1"},"FR"]
      422 validation_failed rules[1] must be an object; rules[0].ip_address is not a field of this request
    ["DE"]
      422 validation_failed rules[0] must be an object
    null
      422 validation_failed rules must be an array
    "#) }
    assert_eq!(stage.get("geoip").await.data()["rules"], json!([{"country_code": "DE", "action": "block"}]));
}

/// All countries there are have a rule; no rule is left for one more.
#[both_engines]
async fn geoip_rule_limit_is_249_per_tunnel(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mut countries = Vec::new();
    for first in 'A'..='Z' {
        let codes: Vec<_> = ('A'..='Z').map(|second| format!("{first}{second}")).collect();
        let rules: Vec<_> = codes.iter().map(|code| json!({"country_code": code})).collect();
        let unknown = stage.put("geoip", json!({"rules": rules})).await.fields();
        let known = |place: &usize| !unknown.contains(&format!("rules[{place}].country_code"));
        countries.extend((0..codes.len()).filter(known).map(|place| json!({"country_code": codes[place]})));
    }
    assert_eq!(countries.len(), 249);
    stage.geoip(json!(countries)).await;
    for more in [1, 2, 1000] {
        let rules = [countries.clone(), vec![json!({"country_code": "DE"}); more]].concat();
        let refused = stage.put("geoip", json!({"rules": rules})).await;
        assert_eq!(
            (refused.outcome().as_str(), refused.fields()),
            ("422 validation_failed", vec!["rules".to_owned()]),
            "{more}"
        );
    }
    assert_eq!(stage.get("geoip").await.data()["rules"].as_array().unwrap().len(), 249);
}

/// By address and by range, black and white; and one tunnel's rules are no other's.
#[both_engines]
async fn firewall_rules_decide_visitor_admission(engine: Engine) {
    let stage = Stage::set(engine).await.started().await;
    let other = stage.api.post("/tunnels", json!({"local_port": echo_service().await.port()})).await.id();
    stage.device.start_tunnel(&other.to_string()).await.unwrap();
    let other = stage.host.public(&stage.api, other).await;
    let sources = ["127.1.0.1", "127.1.0.2", "127.1.1.1", "127.2.0.1"];
    for (rules, expected) in [
        (json!([]), &sources[..]),
        (json!([{"rule_type": "blacklist", "ip_address": "127.1.0.1"}]), &sources[1..]),
        (json!([{"rule_type": "blacklist", "ip_cidr": "127.1.0.77/24"}]), &sources[2..]),
        (json!([{"rule_type": "blacklist", "ip_cidr": "127.0.0.0/8"}]), &[]),
        (json!([{"rule_type": "blacklist", "ip_cidr": "::ffff:127.1.0.0/112"}]), &sources[3..]),
        (json!([{"rule_type": "blacklist", "ip_cidr": "::/0"}]), &sources[..]),
        (json!([{"rule_type": "whitelist", "ip_address": "127.1.0.2"}]), &sources[1..2]),
        (
            json!([{"rule_type": "whitelist", "ip_cidr": "127.1.0.0/16"}, {"rule_type": "whitelist", "ip_address": "127.9.9.9"}]),
            &sources[..3],
        ),
        (
            json!([{"rule_type": "whitelist", "ip_cidr": "127.1.0.0/16"}, {"rule_type": "blacklist", "ip_cidr": "127.1.0.0/24"}]),
            &sources[2..3],
        ),
        (json!([{"rule_type": "whitelist", "ip_address": "2001:db8::1"}]), &[]),
    ] {
        stage.firewall(rules.clone()).await;
        assert_eq!(stage.admitted(&sources).await, expected, "{rules}");
        assert!(Visitor::from("127.1.0.1", other).await.is_some());
    }
}

/// Whoever the new rules would not let in is cut off at once; nobody else notices.
///
/// covers: PUT /tunnels/{tunnel_id}/firewall
#[both_engines]
async fn changed_firewall_rules_disconnect_denied_visitors(engine: Engine) {
    let stage = Stage::set(engine).await.started().await;
    let mut stays = stage.visitor("127.1.0.1").await.unwrap();
    let goes = stage.visitor("127.2.0.1").await.unwrap();
    stage.firewall(json!([{"rule_type": "blacklist", "ip_cidr": "127.2.0.0/16"}])).await;
    assert!(goes.was_reset().await);
    assert_eq!(stays.echo(b"still here").await.unwrap(), b"still here");
    let second = stage.visitor("127.3.0.1").await.unwrap();
    stage.firewall(json!([{"rule_type": "whitelist", "ip_address": "127.1.0.1"}])).await;
    assert!(second.was_reset().await);
    assert_eq!(stays.echo(b"still here").await.unwrap(), b"still here");
    // And the other way round: who was turned away may come in.
    assert!(stage.visitor("127.2.0.1").await.is_none());
    stage.firewall(json!([])).await;
    assert!(stage.visitor("127.2.0.1").await.is_some());
    assert_eq!(stays.echo(b"still here").await.unwrap(), b"still here");
}

/// Rules that a tunnel has before it runs hold for its first visitor, and after the host was away.
#[both_engines]
async fn access_rules_apply_from_first_visitor_and_after_restart(engine: Engine) {
    let stage = Stage::with_countries(engine).await;
    stage.firewall(json!([{"rule_type": "blacklist", "ip_address": GERMAN}])).await;
    stage.geoip(json!([{"country_code": "FR"}])).await;
    let stage = stage.started().await;
    let sources = [GERMAN, FRENCH, NOWHERE];
    assert_eq!(stage.admitted(&sources).await, [NOWHERE]);
    let Stage { host, api, device, tunnel } = stage;
    let host = host.restart().await;
    // The host said when to come back; the agent's time is the host's.
    device.until_disconnected().await;
    host.clock.advance(Duration::from_secs(10));
    host.until_tunnel(&api, tunnel, "running").await;
    let stage = Stage { host, api, device, tunnel };
    assert_eq!(stage.admitted(&sources).await, [NOWHERE]);
    assert_eq!(stage.get("geoip").await.data()["enforced"], true);
}

#[both_engines]
async fn extra_ports_enforce_access_rules_of_their_tunnel(engine: Engine) {
    let stage = Stage::with_countries(engine).await;
    let port = stage
        .api
        .post(&format!("/tunnels/{}/extra-ports", stage.tunnel), json!({"local_port": echo_service().await.port()}))
        .await;
    let address = reached_at(port.data());
    let stage = stage.started().await;
    let inside = Visitor::from(FRENCH, address).await.unwrap();
    stage.firewall(json!([{"rule_type": "blacklist", "ip_address": GERMAN}])).await;
    assert!(Visitor::from(GERMAN, address).await.is_none());
    stage.geoip(json!([{"country_code": "FR"}])).await;
    assert!(inside.was_reset().await);
    assert!(Visitor::from(FRENCH, address).await.is_none());
    assert!(Visitor::from(NOWHERE, address).await.is_some());
}

/// An address is where it is used, else where it is registered; unknown, it is no rule's.
///
/// covers: PUT /tunnels/{tunnel_id}/geoip
#[both_engines]
async fn geoip_rules_decide_visitor_admission(engine: Engine) {
    let stage = Stage::with_countries(engine).await.started().await;
    let sources = [GERMAN, FRENCH, ITALIAN, NOWHERE];
    let put = stage.put("geoip", json!({"rules": [{"country_code": "de"}]})).await;
    assert_eq!(put.data(), &json!({"rules": [{"country_code": "DE", "action": "block"}], "enforced": true}));
    for (rules, expected) in [
        (json!([{"country_code": "DE"}]), &[FRENCH, ITALIAN, NOWHERE][..]),
        (json!([{"country_code": "DE"}, {"country_code": "IT"}]), &[FRENCH, NOWHERE]),
        (json!([{"country_code": "FR", "action": "allow"}]), &[FRENCH]),
        (
            json!([{"country_code": "FR", "action": "allow"}, {"country_code": "IT", "action": "allow"}]),
            &[FRENCH, ITALIAN],
        ),
        (json!([{"country_code": "FR", "action": "allow"}, {"country_code": "DE", "action": "block"}]), &[FRENCH]),
        (json!([{"country_code": "ES", "action": "allow"}]), &[]),
        (json!([]), &sources),
    ] {
        stage.geoip(rules.clone()).await;
        assert_eq!(stage.admitted(&sources).await, expected, "{rules}");
    }
    let goes = stage.visitor(GERMAN).await.unwrap();
    let mut stays = stage.visitor(FRENCH).await.unwrap();
    stage.geoip(json!([{"country_code": "DE"}])).await;
    assert!(goes.was_reset().await);
    assert_eq!(stays.echo(b"still here").await.unwrap(), b"still here");
}

/// A blacklist comes first; where there is a whitelist, it decides alone; then the country does.
#[both_engines]
async fn firewall_rules_take_precedence_over_geoip_rules(engine: Engine) {
    let stage = Stage::with_countries(engine).await.started().await;
    let sources = [GERMAN, "127.1.0.2", FRENCH, "127.2.0.2", NOWHERE];
    stage.geoip(json!([{"country_code": "DE"}, {"country_code": "FR", "action": "allow"}])).await;
    for (firewall, expected) in [
        (json!([]), &[FRENCH, "127.2.0.2"][..]),
        (json!([{"rule_type": "blacklist", "ip_address": FRENCH}]), &["127.2.0.2"]),
        (json!([{"rule_type": "whitelist", "ip_address": GERMAN}]), &[GERMAN]),
        (
            json!([{"rule_type": "whitelist", "ip_cidr": "127.1.0.0/16"}, {"rule_type": "blacklist", "ip_address": GERMAN}]),
            &["127.1.0.2"],
        ),
        (json!([{"rule_type": "whitelist", "ip_address": NOWHERE}]), &[NOWHERE]),
    ] {
        stage.firewall(firewall.clone()).await;
        assert_eq!(stage.admitted(&sources).await, expected, "{firewall}");
    }
}

/// The host looks at the file once a tick; who is inside is judged by what it says now.
#[both_engines]
async fn updated_country_database_applies_to_running_tunnel(engine: Engine) {
    let stage = Stage::with_countries(engine).await.started().await;
    stage.geoip(json!([{"country_code": "DE"}])).await;
    let mut german_no_more = stage.visitor(FRENCH).await.unwrap();
    let mut nobodys = stage.visitor(NOWHERE).await.unwrap();
    assert!(stage.visitor(GERMAN).await.is_none());
    fs::write(stage.countries(), database(&[("127.2.0.0/16", UsedIn("DE")), ("127.1.0.0/24", UsedIn("FR"))])).unwrap();
    // Not before it has looked.
    assert_eq!(german_no_more.echo(b"still here").await.unwrap(), b"still here");
    stage.host.pass(Duration::from_secs(1)).await;
    assert!(german_no_more.was_reset().await);
    assert_eq!(nobodys.echo(b"still here").await.unwrap(), b"still here");
    assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [GERMAN]);
    assert_eq!(stage.get("geoip").await.data()["enforced"], true);
}

#[both_engines]
async fn invalid_country_database_keeps_previous_one(engine: Engine) {
    let stage = Stage::with_countries(engine).await.started().await;
    stage.geoip(json!([{"country_code": "DE"}])).await;
    let whole = database(&[("127.2.0.0/16", UsedIn("DE"))]);
    for broken in [&b"no database"[..], b"", &whole[..whole.len() / 2]] {
        fs::write(stage.countries(), broken).unwrap();
        stage.host.pass(Duration::from_secs(1)).await;
        assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [FRENCH]);
    }
    fs::remove_file(stage.countries()).unwrap();
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [FRENCH]);
    assert_eq!(stage.get("geoip").await.data()["enforced"], true);
    fs::write(stage.countries(), whole).unwrap();
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [GERMAN]);
}

/// Then no country is known: nobody is blocked by it, and nobody is allowed by it.
///
/// covers: PUT /tunnels/{tunnel_id}/geoip
#[both_engines]
async fn geoip_rules_without_database_match_no_country(engine: Engine) {
    let stage = Stage::set(engine).await.started().await;
    let put = stage.put("geoip", json!({"rules": [{"country_code": "DE", "action": "block"}]})).await;
    assert_eq!(put.data()["enforced"], false);
    assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [GERMAN, FRENCH]);
    stage.geoip(json!([{"country_code": "DE", "action": "allow"}])).await;
    assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [""; 0]);
    assert_eq!(stage.get("geoip").await.data()["enforced"], false);
    // A whitelist asks for no country.
    stage.firewall(json!([{"rule_type": "whitelist", "ip_address": FRENCH}])).await;
    assert_eq!(stage.admitted(&[GERMAN, FRENCH]).await, [FRENCH]);
}

/// A host whose settings name a database needs one to start.
#[tokio::test]
async fn unreadable_country_database_prevents_host_start() {
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_GEOIP__DATABASE", "countries.mmdb");
    let said = async || {
        let output = place.run("culvert serve").await;
        assert!(output.stdout.is_empty());
        format!("{}: {}", output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap().trim_end())
    };
    assert_snapshot!(said().await, @"2: culvert: geoip.database: countries.mmdb: there is no such file");
    fs::write(place.folder.path().join("countries.mmdb"), b"no database").unwrap();
    assert_snapshot!(said().await, @"2: culvert: geoip.database: countries.mmdb: it is no MaxMind database: invalid database: could not find MaxMind DB metadata in file");
}
