//! Custom domains: names of their owners' own, proved by a CNAME that the test's name server shows
//! or does not show.

use std::time::Duration;

use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::{Answer, Api};
use crate::support::host::{Engine, Person, TestHost};
use crate::support::names::{Answer as Says, Names};
use crate::support::web::Browser;

const DAY: Duration = Duration::from_hours(24);
const NAME: &str = "www.example.com";

/// An http tunnel at `tunnels.example.test`.
struct Stage {
    host: TestHost,
    names: Names,
    ada: Person,
    api: Api,
    tunnel: Uuid,
    target: String,
}

impl Stage {
    async fn set(engine: Engine) -> Self {
        let names = Names::open().await;
        let host = TestHost::with(engine, |config| {
            config.node.domain = Some("tunnels.example.test".into());
            config.dns.resolver = Some(names.address);
        })
        .await;
        let ada = host.person("ada").await;
        let api = host.api(&ada.key);
        let (tunnel, target) = tunnel(&api).await;
        Self { host, names, ada, api, tunnel, target }
    }

    /// With a name that is assigned.
    async fn assigned(engine: Engine) -> Self {
        let stage = Self::set(engine).await;
        stage.names.alias(NAME, &stage.target);
        assert_eq!(stage.verify(NAME).await.data()["status"], "verified");
        stage.assign(NAME).await.data();
        stage
    }

    async fn read(&self) -> Answer {
        read(&self.api, self.tunnel).await
    }

    async fn verify(&self, domain: &str) -> Answer {
        verify(&self.api, self.tunnel, domain).await
    }

    async fn assign(&self, domain: &str) -> Answer {
        assign(&self.api, self.tunnel, domain).await
    }

    async fn remove(&self) -> Answer {
        self.api.delete(&format!("/tunnels/{}/domain", self.tunnel)).await
    }

    /// The name that the tunnel itself says it has.
    async fn shown(&self) -> Value {
        self.api.get(&format!("/tunnels/{}", self.tunnel)).await.data()["custom_domain"].clone()
    }

    /// Lets a day pass; what the daily check has found then.
    async fn next_day(&self) -> Value {
        self.host.clock.advance(DAY);
        self.checked_now().await
    }

    async fn checked_now(&self) -> Value {
        let now = json!(self.host.clock.now());
        self.host
            .until(async || {
                let domain = self.read().await.data().clone();
                (domain["last_checked_at"] == now).then_some(domain)
            })
            .await
    }

    fn said(&self, answer: &Answer) -> String {
        answer.to_string().replace(&self.target, "[target]")
    }
}

/// A new http tunnel, and what its names must be aliases of.
async fn tunnel(api: &Api) -> (Uuid, String) {
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id();
    let target = read(api, tunnel).await.data()["cname_target"].as_str().unwrap().to_owned();
    (tunnel, target)
}

async fn read(api: &Api, tunnel: Uuid) -> Answer {
    api.get(&format!("/tunnels/{tunnel}/domain")).await
}

async fn verify(api: &Api, tunnel: Uuid, domain: &str) -> Answer {
    api.post(&format!("/tunnels/{tunnel}/domain/actions/verify"), json!({"domain": domain})).await
}

async fn assign(api: &Api, tunnel: Uuid, domain: &str) -> Answer {
    api.put(&format!("/tunnels/{tunnel}/domain"), json!({"domain": domain})).await
}

/// `verified`, or `pending cname_not_found`.
fn outcome(domain: &Value) -> String {
    let code = domain["error"]["code"].as_str().unwrap_or_default();
    format!("{} {code}", domain["status"].as_str().unwrap()).trim_end().into()
}

/// What an alias must lead to is there before there is one, and is each tunnel's alone.
///
/// covers: GET /tunnels/{tunnel_id}/domain
#[both_engines]
async fn new_tunnel_has_cname_target_and_no_domain(engine: Engine) {
    let stage = Stage::set(engine).await;
    let none = stage.read().await;
    allow_duplicates! { assert_snapshot!(stage.said(&none), @r#"
    200
    {
      "data": {
        "certificate": null,
        "cname_target": "[target]",
        "domain": null,
        "error": null,
        "last_checked_at": null,
        "status": "none",
        "verified_at": null
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    assert!(stage.target.ends_with(".tunnels.example.test"), "{}", stage.target);
    let (_, other) = tunnel(&stage.api).await;
    assert_ne!(other, stage.target);
    assert_eq!(read(&stage.api, stage.tunnel).await.data()["cname_target"], json!(stage.target), "it stays");
    assert_eq!(stage.shown().await, Value::Null);
    assert_eq!(stage.remove().await.outcome(), "404 not_found");
    assert_eq!(stage.names.asked(), 0);
}

/// A look says what it saw, and each looks anew, whatever resolvers may keep.
///
/// covers: POST /tunnels/{tunnel_id}/domain/actions/verify
#[both_engines]
async fn domain_verification_reports_current_dns_state(engine: Engine) {
    let stage = Stage::set(engine).await;
    let absent = stage.verify(NAME).await;
    allow_duplicates! { assert_snapshot!(stage.said(&absent), @r#"
    200
    {
      "data": {
        "certificate": null,
        "cname_target": "[target]",
        "domain": "www.example.com",
        "error": {
          "code": "cname_not_found",
          "detail": "www.example.com has no CNAME that is visible."
        },
        "last_checked_at": "[time]",
        "status": "pending",
        "verified_at": null
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    stage.names.no_alias(NAME);
    assert_eq!(outcome(stage.verify(NAME).await.data()), "pending cname_not_found");
    stage.names.alias(NAME, "elsewhere.example.com");
    let wrong = stage.verify(NAME).await;
    allow_duplicates! { assert_snapshot!(stage.said(&wrong), @r#"
    200
    {
      "data": {
        "certificate": null,
        "cname_target": "[target]",
        "domain": "www.example.com",
        "error": {
          "code": "cname_mismatch",
          "detail": "www.example.com is an alias for another name, not for [target]."
        },
        "last_checked_at": "[time]",
        "status": "pending",
        "verified_at": null
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    stage.names.set(NAME, [Says::Failure]);
    assert_eq!(outcome(stage.verify(NAME).await.data()), "pending dns_failed");
    stage.names.alias(NAME, &stage.target);
    stage.host.clock.advance(Duration::from_secs(1));
    let right = stage.verify(NAME).await;
    allow_duplicates! { assert_snapshot!(stage.said(&right), @r#"
    200
    {
      "data": {
        "certificate": null,
        "cname_target": "[target]",
        "domain": "www.example.com",
        "error": null,
        "last_checked_at": "[time]",
        "status": "verified",
        "verified_at": "[time]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    assert_eq!(right.data()["verified_at"], json!(stage.host.clock.now()));
    assert_eq!(stage.read().await.data(), right.data());
    assert_eq!(stage.shown().await, Value::Null, "to look is not to assign");
    // What was seen is not seen any longer.
    stage.names.forget(NAME);
    assert_eq!(outcome(stage.verify(NAME).await.data()), "pending cname_not_found");
    assert_eq!(stage.assign(NAME).await.outcome(), "422 domain_not_verified");
}

/// A name server that says nothing is waited for no longer than three seconds.
#[both_engines]
async fn verification_times_out_when_name_server_is_silent(engine: Engine) {
    let stage = Stage::set(engine).await;
    stage.names.set(NAME, [Says::Silence]);
    let (answer, ()) = tokio::join!(stage.verify(NAME), async {
        stage.names.question_after(0).await;
        stage.host.clock.advance(Duration::from_secs(3));
    });
    assert_eq!((answer.status, outcome(answer.data()).as_str()), (200, "pending dns_failed"));
}

/// Another tunnel's target is no proof.
#[both_engines]
async fn cname_target_verifies_only_its_own_tunnel(engine: Engine) {
    let stage = Stage::set(engine).await;
    let (_, other) = tunnel(&stage.api).await;
    for wrong in [
        other,
        format!("x{}", stage.target),
        format!("{}.", stage.target.replacen('.', "-", 1)),
        "tunnels.example.test".into(),
    ] {
        stage.names.alias(NAME, &wrong);
        assert_eq!(outcome(stage.verify(NAME).await.data()), "pending cname_mismatch", "{wrong}");
    }
    // Nor is an alias of an alias: the name itself must be one.
    stage.names.alias(NAME, "between.example.com");
    stage.names.alias("between.example.com", &stage.target);
    assert_eq!(outcome(stage.verify(NAME).await.data()), "pending cname_mismatch");
}

/// Names are the same in every spelling, asked for and answered.
#[both_engines]
async fn domain_case_and_trailing_dot_are_ignored(engine: Engine) {
    let stage = Stage::set(engine).await;
    let mixed: String = stage
        .target
        .chars()
        .enumerate()
        .map(|(place, c)| if place % 2 == 0 { c.to_ascii_uppercase() } else { c })
        .collect();
    for answered in [mixed, format!("{}.", stage.target), format!("{}.", stage.target.to_uppercase())] {
        stage.names.alias(NAME, &answered);
        for asked in [NAME, "WWW.Example.COM", "www.example.com.", "Www.example.com."] {
            let verified = stage.verify(asked).await;
            assert_eq!(
                (&verified.data()["domain"], outcome(verified.data()).as_str()),
                (&json!(NAME), "verified"),
                "{asked} → {answered}"
            );
        }
    }
    assert_eq!(stage.assign("WWW.EXAMPLE.COM.").await.data()["domain"], NAME);
    assert_eq!(stage.shown().await, NAME);
}

/// Only what was verified is assigned, and only of this tunnel.
///
/// covers: PUT /tunnels/{tunnel_id}/domain
/// covers: domain_not_verified
#[both_engines]
async fn domain_assignment_requires_verification(engine: Engine) {
    let stage = Stage::set(engine).await;
    let unverified = stage.assign(NAME).await;
    allow_duplicates! { assert_snapshot!(unverified, @r#"
    422
    {
      "code": "domain_not_verified",
      "detail": "The domain is not verified.",
      "errors": [
        {
          "field": "domain",
          "message": "must be verified first: `POST …/domain/actions/verify`"
        }
      ],
      "request_id": "[uuid]",
      "status": 422,
      "title": "The domain is not verified",
      "type": "https://api.example.test/docs/errors#domain_not_verified"
    }
    "#) }
    stage.verify(NAME).await.data();
    assert_eq!(stage.assign(NAME).await.outcome(), "422 domain_not_verified", "it is pending");
    stage.names.alias(NAME, &stage.target);
    stage.verify(NAME).await.data();
    let (other, _) = tunnel(&stage.api).await;
    assert_eq!(
        assign(&stage.api, other, NAME).await.outcome(),
        "422 domain_not_verified",
        "it is verified for another tunnel"
    );
    stage.host.clock.advance(Duration::from_secs(1));
    let assigned = stage.assign(NAME).await;
    allow_duplicates! { assert_snapshot!(stage.said(&assigned), @r#"
    200
    {
      "data": {
        "certificate": {
          "error": "acme.directory is not set",
          "expires_at": null,
          "status": "none"
        },
        "cname_target": "[target]",
        "domain": "www.example.com",
        "error": null,
        "last_checked_at": "[time]",
        "status": "verified",
        "verified_at": "[time]"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    assert_eq!(stage.read().await.data(), assigned.data());
    assert_eq!(stage.shown().await, NAME);
    let listed = stage.api.get("/tunnels").await;
    let shown: Vec<_> = listed.data().as_array().unwrap().iter().map(|tunnel| &tunnel["custom_domain"]).collect();
    assert_eq!(shown, [&Value::Null, &json!(NAME)]);
    assert_eq!(stage.assign(NAME).await.status, 200, "what it has it can be given");
    // What was read can be put back.
    let back = stage.api.put(&format!("/tunnels/{}/domain", stage.tunnel), assigned.data().clone()).await;
    assert_eq!(back.data(), assigned.data());
}

/// To look at another name takes nothing away from the one that is assigned, until it takes its
/// place.
#[both_engines]
async fn verifying_second_domain_keeps_assigned_domain(engine: Engine) {
    let stage = Stage::assigned(engine).await;
    let second = "second.example.com";
    let looked = stage.verify(second).await;
    assert_eq!(
        (&looked.data()["domain"], outcome(looked.data()).as_str()),
        (&json!(second), "pending cname_not_found")
    );
    assert_eq!(stage.read().await.data(), looked.data(), "the name that was verified or assigned last");
    assert_eq!(stage.shown().await, NAME);
    assert_eq!(stage.assign(second).await.outcome(), "422 domain_not_verified");
    assert_eq!(stage.shown().await, NAME);
    // Nor does a look at the assigned one itself, when it is not seen: that is for the daily check.
    stage.names.forget(NAME);
    assert_eq!(outcome(stage.verify(NAME).await.data()), "verified cname_not_found");
    assert_eq!(stage.shown().await, NAME);

    stage.names.alias(second, &stage.target);
    stage.verify(second).await.data();
    assert_eq!(stage.shown().await, NAME);
    stage.assign(second).await.data();
    assert_eq!(stage.shown().await, second);
    assert_eq!(stage.assign(NAME).await.outcome(), "422 domain_not_verified", "it was given up");
}

/// covers: DELETE /tunnels/{tunnel_id}/domain
#[both_engines]
async fn removed_domain_must_be_verified_again(engine: Engine) {
    let stage = Stage::assigned(engine).await;
    // It is the assigned one that goes, whatever was looked at since.
    stage.host.clock.advance(Duration::from_secs(1));
    stage.verify("second.example.com").await.data();
    let removed = stage.remove().await;
    allow_duplicates! { assert_snapshot!(removed, @r#"
    200
    {
      "data": {
        "deleted": true,
        "domain": "www.example.com"
      },
      "meta": {
        "request_id": "[uuid]"
      }
    }
    "#) }
    assert_eq!(stage.shown().await, Value::Null);
    let none = stage.read().await;
    assert_eq!(
        (&none.data()["domain"], &none.data()["status"], &none.data()["cname_target"]),
        (&Value::Null, &json!("none"), &json!(stage.target))
    );
    assert_eq!(stage.remove().await.outcome(), "404 not_found");
    assert_eq!(stage.assign(NAME).await.outcome(), "422 domain_not_verified", "it has to be verified anew");
}

/// A name is one tunnel's, until that gives it up or is gone.
///
/// covers: domain_in_use
#[both_engines]
async fn assigned_domain_cannot_be_used_by_another_tunnel(engine: Engine) {
    let stage = Stage::assigned(engine).await;
    let bob = stage.host.person("bob").await;
    let foreign = stage.host.api(&bob.key);
    for api in [&stage.api, &foreign] {
        let (other, target) = tunnel(api).await;
        stage.names.alias(NAME, &target);
        assert_eq!(outcome(verify(api, other, NAME).await.data()), "verified");
        assert_eq!(assign(api, other, NAME).await.outcome(), "409 domain_in_use");
        assert_eq!(read(api, other).await.data()["status"], "verified");
    }
    assert_eq!(stage.shown().await, NAME);
    stage.remove().await.data();
    let (third, target) = tunnel(&foreign).await;
    stage.names.alias(NAME, &target);
    verify(&foreign, third, NAME).await.data();
    assign(&foreign, third, NAME).await.data();
    assert_eq!(stage.host.api(&bob.key).delete(&format!("/tunnels/{third}")).await.status, 200);
    stage.names.alias(NAME, &stage.target);
    stage.verify(NAME).await.data();
    assert_eq!(stage.assign(NAME).await.status, 200);
}

/// Of two who ask at the same moment, one gets it.
#[both_engines]
async fn concurrent_domain_assignment_has_one_winner(engine: Engine) {
    let stage = Stage::set(engine).await;
    let bob = stage.host.person("bob").await;
    let foreign = stage.host.api(&bob.key);
    let (theirs, their_target) = tunnel(&foreign).await;
    for number in 0..8 {
        let name = format!("name-{number}.example.com");
        for (api, tunnel, target) in [(&stage.api, stage.tunnel, &stage.target), (&foreign, theirs, &their_target)] {
            stage.names.alias(&name, target);
            assert_eq!(outcome(verify(api, tunnel, &name).await.data()), "verified");
        }
        let (one, other) = tokio::join!(stage.assign(&name), assign(&foreign, theirs, &name));
        let mut outcomes = [one.outcome(), other.outcome()];
        outcomes.sort();
        assert_eq!(outcomes, ["200", "409 domain_in_use"]);
    }
}

/// Once a day every verified name is looked up again. One miss is forgiven, two in a row are not.
#[both_engines]
async fn daily_domain_check_fails_after_two_misses(engine: Engine) {
    let stage = Stage::assigned(engine).await;
    let start = stage.names.asked();
    stage.host.clock.advance(DAY.checked_sub(Duration::from_mins(10)).unwrap());
    assert_eq!(stage.read().await.data()["status"], "verified");
    stage.host.clock.advance(Duration::from_mins(10));
    assert_eq!(outcome(&stage.checked_now().await), "verified");
    assert_eq!(stage.names.asked(), start + 1, "asked once");

    stage.names.forget(NAME);
    let missed = stage.next_day().await;
    assert_eq!(
        (outcome(&missed).as_str(), &missed["error"]["detail"]),
        ("verified cname_not_found", &json!(format!("{NAME} has no CNAME that is visible.")))
    );
    stage.names.alias(NAME, &stage.target);
    assert_eq!(outcome(&stage.next_day().await), "verified");
    stage.names.alias(NAME, "elsewhere.example.com");
    assert_eq!(outcome(&stage.next_day().await), "verified cname_mismatch");
    let verified_at = stage.read().await.data()["verified_at"].clone();
    stage.names.set(NAME, [Says::Failure]);
    let failed = stage.next_day().await;
    assert_eq!((outcome(&failed).as_str(), &failed["verified_at"]), ("failed dns_failed", &verified_at));
    assert_eq!(stage.shown().await, NAME, "whose it is, is another question");
    assert_eq!(outcome(&stage.next_day().await), "failed dns_failed");

    stage.names.alias(NAME, &stage.target);
    let back = stage.next_day().await;
    assert_eq!((outcome(&back).as_str(), &back["verified_at"]), ("verified", &back["last_checked_at"]));
    // And it begins anew to count.
    stage.names.forget(NAME);
    assert_eq!(outcome(&stage.next_day().await), "verified cname_not_found");
    assert_eq!(outcome(&stage.next_day().await), "failed cname_not_found");
    stage.names.alias(NAME, &stage.target);
    assert_eq!(outcome(stage.verify(NAME).await.data()), "verified", "its owner need not wait for the next day");
}

#[both_engines]
async fn invalid_or_platform_domain_is_rejected(engine: Engine) {
    let stage = Stage::set(engine).await;
    let label = "a".repeat(64);
    let long = format!("{}.com", ["a".repeat(62).as_str(); 4].join("."));
    let mut said = String::new();
    for domain in [
        "",
        ".",
        "com",
        "com.",
        "example..com",
        ".example.com",
        "-a.example.com",
        "a-.example.com",
        "a_b.example.com",
        "a b.example.com",
        "münchen.example",
        "*.example.com",
        "https://example.com",
        "example.com:443",
        "example.com/",
        "example.com..",
        "192.0.2.1",
        "192.0.2.1.",
        "[2001:db8::1]",
        "2001:db8::1",
        "1.2",
        "example.com\n",
        "tunnels.example.test",
        "Tunnels.Example.Test.",
        "x.tunnels.example.test",
        "a.b.tunnels.example.test",
        "API.example.test",
        &format!("{label}.com"),
        &long,
    ] {
        let (verified, assigned) = (stage.verify(domain).await, stage.assign(domain).await);
        assert_eq!(
            (verified.outcome(), &verified.body["errors"]),
            (assigned.outcome(), &assigned.body["errors"]),
            "{domain}"
        );
        let errors = verified.body["errors"].as_array().into_iter().flatten();
        let messages: Vec<_> = errors
            .map(|error| format!("{} {}", error["field"].as_str().unwrap(), error["message"].as_str().unwrap()))
            .collect();
        let domain: String = domain.chars().take(40).collect();
        said += &format!("{domain:?} → {} {}\n", verified.outcome(), messages.join("; "));
    }
    allow_duplicates! { assert_snapshot!(said, @r#"
    "" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "." → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "com." → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "example..com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    ".example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "-a.example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "a-.example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "a_b.example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "a b.example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "münchen.example" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "*.example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "https://example.com" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "example.com:443" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "example.com/" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "example.com.." → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "192.0.2.1" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "192.0.2.1." → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "[2001:db8::1]" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "2001:db8::1" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "1.2" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "example.com\n" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "tunnels.example.test" → 422 validation_failed domain belongs to the platform
    "Tunnels.Example.Test." → 422 validation_failed domain belongs to the platform
    "x.tunnels.example.test" → 422 validation_failed domain belongs to the platform
    "a.b.tunnels.example.test" → 422 validation_failed domain belongs to the platform
    "API.example.test" → 422 validation_failed domain belongs to the platform
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" → 422 validation_failed domain must be a host name of at least two labels, and no IP address
    "#) }
    assert_eq!(stage.read().await.data()["status"], "none");
    assert_eq!(stage.names.asked(), 0, "nobody was asked about any of it");
    // What only looks like the platform's own is anybody's.
    for own in [
        "nottunnels.example.test",
        "example.test",
        "tunnels.example.test.example.com",
        "123.example.com",
        "xn--mnchen-3ya.example",
    ] {
        assert_eq!(stage.verify(own).await.status, 200, "{own}");
    }
}

/// Names lead to http tunnels only.
#[both_engines]
async fn custom_domain_on_non_http_tunnel_is_rejected(engine: Engine) {
    let stage = Stage::set(engine).await;
    for protocol in ["tcp", "udp", "both"] {
        let tunnel = stage.api.post("/tunnels", json!({"local_port": 80, "protocol": protocol})).await.id();
        for answer in [verify(&stage.api, tunnel, NAME).await, assign(&stage.api, tunnel, NAME).await] {
            assert_eq!(
                (answer.outcome().as_str(), answer.fields()),
                ("422 validation_failed", vec!["domain".to_owned()]),
                "{protocol}"
            );
        }
        assert_eq!(stage.api.delete(&format!("/tunnels/{tunnel}/domain")).await.outcome(), "404 not_found");
    }
    let (mine, bob) = (stage.tunnel, stage.host.person("bob").await);
    let foreign = stage.host.api(&bob.key);
    for answer in [
        read(&foreign, mine).await,
        verify(&foreign, mine, NAME).await,
        assign(&foreign, mine, NAME).await,
        foreign.delete(&format!("/tunnels/{mine}/domain")).await,
    ] {
        assert_eq!(answer.outcome(), "404 not_found");
    }
}

/// A plan without custom domains leaves what is there, and takes no more.
#[both_engines]
async fn plan_without_custom_domains_keeps_existing_domain(engine: Engine) {
    let stage = Stage::assigned(engine).await;
    stage.host.set_plan(stage.ada.account_id, "free").await;
    stage.host.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.verify(NAME).await.outcome(), "403 feature_not_available");
    assert_eq!(stage.assign(NAME).await.outcome(), "403 feature_not_available");
    assert_eq!(outcome(stage.read().await.data()), "verified");
    assert_eq!(stage.remove().await.status, 200);
}

/// The node knows the name as long as it is assigned.
#[both_engines]
async fn assigned_name_leads_to_the_tunnel(engine: Engine) {
    let stage = Stage::assigned(engine).await;
    let mut browser = Browser::open(stage.host.http_address().await).await;
    // It wants HTTPS, which is not served yet.
    assert_eq!(browser.outcome("WWW.example.com.", "/").await, "503 certificate_pending");
    stage.remove().await.data();
    assert_eq!(browser.outcome(NAME, "/").await, "404 no_such_tunnel");
}
