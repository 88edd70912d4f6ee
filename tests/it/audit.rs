//! `culvert policy audit`: what exists, held against the policies of today.

use culvert_domain::caller::Role;
use culvert_test_macros::both_engines;
use serde_json::{Value, json};

use crate::support::host::{Engine, TestHost};
use crate::support::names::Names;
use crate::support::program::Place;

/// Runs the command beside a host, with these policies.
async fn audit(host: &TestHost, policies: &str, options: &[&str]) -> (Option<i32>, String) {
    let config = host.config();
    let file = config.data_dir.join("audit.toml");
    let shipped: String = ["plan-access", "team-role", "validation"]
        .iter()
        .map(|kind| format!("[[policy]]\nkind = \"{kind}\"\nmodule = \"builtin:{kind}\"\n"))
        .collect();
    std::fs::write(&file, format!("{shipped}{policies}")).unwrap();
    let mut command = tokio::process::Command::new(Place::programs().join("culvert"));
    command.env("CULVERT_DATA_DIR", &config.data_dir).env("CULVERT_DATABASE_URL", config.database_url());
    command.args(["policy", "audit", "--config"]).arg(&file).args(options);
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(if output.stdout.is_empty() { &output.stderr } else { &output.stdout });
    (output.status.code(), said.into_owned())
}

#[both_engines]
async fn audit_lists_what_would_be_refused_today(engine: Engine) {
    let names = Names::open().await;
    let host = TestHost::with(engine, |config| {
        config.node.hostname = "tunnels.example.test".into();
        config.dns.resolver = Some(names.address);
    })
    .await;
    let (ada, bea) = (host.person("ada").await, host.person("bea").await);
    let team = host.team("Acme", &ada).await;
    host.join(team, &bea, Role::Member).await;
    let own = host.api(&ada.key);
    own.post("/tunnels", json!({"local_port": 80, "name": "web"})).await.data();
    let guarded = json!({
        "local_port": 80, "name": "guarded", "protocol": "http", "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": "correct horse battery",
    });
    own.post("/tunnels", guarded).await.data();
    let http = own.post("/tunnels", json!({"local_port": 80, "name": "shop", "protocol": "http"})).await.id();
    let path = format!("/tunnels/{http}/domain");
    let target = own.get(&path).await.data()["cname_target"].as_str().unwrap().to_owned();
    names.alias("www.example.com", &target);
    own.post(&format!("{path}/actions/verify"), json!({"domain": "www.example.com"})).await.data();
    own.put(&path, json!({"domain": "www.example.com"})).await.data();
    host.webhook(team).await;
    let member = host.api(&host.key(bea.account_id, team, "full_access").await.key);
    member.post("/tunnels", json!({"local_port": 80, "name": "bea's"})).await.data();
    let gone = host.person("gil").await;
    host.join(team, &gone, Role::Admin).await;
    let former = host.api(&host.key(gone.account_id, team, "full_access").await.key);
    former.post("/tunnels", json!({"local_port": 80, "name": "orphan"})).await.data();
    host.leave(team, &gone).await;

    let (code, said) = audit(&host, "", &["--fail-on-refusal"]).await;
    let nothing =
        "5 tunnels, 1 domains, 1 webhooks; 0 refusals\n1 tunnels were not judged: who made them has left the Team\n";
    assert_eq!((code, said.as_str()), (Some(0), nothing), "what is there was allowed");

    let rules = r#"
        [[policy]]
        kind = "validation"
        module = "builtin:rules-validation"
        [[policy.settings.rules]]
        name = "names"
        when = "request.action == 'tunnels.create' && input.name != 'web'"
        field = "name"
        message = "must be web"
        [[policy.settings.rules]]
        name = "domains"
        when = "input.domain != null && current.protocol == 'http' && !input.domain.inDomain('example.org')"
        field = "domain"
        message = "must lie below example.org"
        [[policy.settings.rules]]
        name = "hooks"
        when = "input.url != null"
        field = "url"
        message = "must not be"
        [[policy]]
        kind = "team-role"
        module = "builtin:rules-team-role"
        [[policy.settings.rules]]
        name = "no-members"
        when = "action == 'tunnels.create' && caller.role == 'member'"
        code = "members_make_none"
        message = "Members make no tunnels."
    "#;
    let (code, said) = audit(&host, rules, &["--json"]).await;
    assert_eq!(code, Some(0), "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let mut refused: Vec<String> = report["refused"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            let text = |name: &str| one[name].as_str().unwrap_or("-").to_owned();
            ["kind", "name", "scope_name", "code", "field", "rule"].map(text).join(" ")
        })
        .collect();
    refused.sort();
    insta::allow_duplicates! {
        insta::assert_snapshot!(refused.join("\n"), @r#"
        domain www.example.com ada - domain domains
        tunnel bea's Acme - name names
        tunnel bea's Acme members_make_none - no-members
        tunnel guarded ada - name names
        tunnel shop ada - name names
        webhook https://8.8.8.8/ Acme - url hooks
        "#);
    }
    let domain = report["refused"].as_array().unwrap().iter().find(|one| one["kind"] == "domain").unwrap();
    assert_eq!((&domain["id"], &domain["account_id"]), (&json!(http), &json!(ada.account_id)));
    let (code, said) = audit(&host, rules, &["--fail-on-refusal"]).await;
    assert_eq!(code, Some(1));
    assert!(said.contains("KIND") && said.contains("must lie below example.org"), "{said}");
}

/// What cannot be judged would be refused, and the others are judged all the same.
#[both_engines]
async fn audit_goes_on_where_a_policy_fails(engine: Engine) {
    let host = TestHost::start(engine).await;
    let own = host.api(&host.person("ada").await.key);
    for name in ["web", "shop"] {
        own.post("/tunnels", json!({"local_port": 80, "name": name})).await.data();
    }
    let rules = r#"
        [[policy]]
        kind = "validation"
        module = "builtin:rules-validation"
        [[policy.settings.rules]]
        name = "division"
        when = "input.name == 'web' && 1 / (input.local_port - 80) > 0"
        field = "name"
        message = "No."
    "#;
    let (code, said) = audit(&host, rules, &["--json"]).await;
    assert_eq!(code, Some(0), "{said}");
    let report: Value = serde_json::from_str(&said).unwrap();
    let refused = report["refused"].as_array().unwrap();
    let refused: Vec<_> = refused.iter().map(|one| (one["name"].clone(), one["code"].clone())).collect();
    assert_eq!(refused, [(json!("web"), json!("policy_unavailable"))]);
}
