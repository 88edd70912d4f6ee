//! Rules in CEL: a host that decides by the built-in modules whose settings are rules.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::device::{Remote, TestDevice};
use crate::support::host::Engine;
use crate::support::policies::{Swapped, builtin};
use crate::support::program::Place;

/// A host, an API key of a Team's owner, and a device of the Team.
struct Stage {
    swapped: Swapped,
    api: Api,
    device: TestDevice,
}

impl Stage {
    async fn set() -> Self {
        let swapped = Swapped::on(Engine::Sqlite, |_| {}).await;
        let ada = swapped.host.person("ada").await;
        let team = swapped.host.team("Acme", &ada).await;
        let api = swapped.host.api(&swapped.host.key(ada.account_id, team, "full_access").await.key);
        let device = swapped.host.device(&ada, team, Remote::Enabled).await;
        Self { swapped, api, device }
    }

    /// Loads a file of rules in front of the shipped modules.
    async fn load(&self, kind: &str, rules: &str) -> Result<u64, String> {
        let file = self.swapped.write_wasm("rules.toml", rules.as_bytes());
        let entry = format!(
            "[[policy]]\nkind = \"{kind}\"\nmodule = \"builtin:rules-{kind}\"\nsettings_file = \"{}\"\n{}",
            file.display(),
            builtin(&["plan-access", "team-role", "validation"])
        );
        self.swapped.configure(&entry);
        self.swapped.reload().await
    }

    async fn start(&self, tunnel: Uuid) -> String {
        let path = format!("/tunnels/{tunnel}/actions/start");
        self.api.post(&path, json!({"device_id": self.device.id})).await.outcome()
    }
}

/// One rule; the zone decides whether it is night.
fn no_starts_at_night(zone: &str) -> String {
    format!(
        r#"
        kind = "team-role"
        name = "night"
        utc_offset = "{zone}"

        [[rules]]
        name = "no-starts-at-night"
        when = "action == 'tunnels.start' && (now.hour >= 22 || now.hour < 6)"
        code = "closed_at_night"
        message = "Tunnels start between 6 and 22 o'clock."
        "#
    )
}

fn one_rule(when: &str) -> String {
    format!("[[rules]]\nname = \"one\"\nwhen = '''{when}'''\ncode = \"refused_by_rule\"\nmessage = \"No.\"\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_in_cel_refuses_starts_at_night() {
    let stage = Stage::set().await;
    let tunnel = stage.api.post("/tunnels", json!({"local_port": 80})).await.id();
    // It is noon in UTC.
    assert_eq!(stage.load("team-role", &no_starts_at_night("+11:00")).await, Ok(2));
    assert_eq!(stage.start(tunnel).await, "403 closed_at_night");
    let page = reqwest::get(format!("{}/docs/errors", stage.swapped.host.url())).await.unwrap().text().await.unwrap();
    assert!(page.contains("Tunnels start between 6 and 22 o"), "the code is explained");
    assert_eq!(stage.load("team-role", &no_starts_at_night("+01:00")).await, Ok(3));
    assert_eq!(stage.start(tunnel).await, "202");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_of_input_names_field_and_rule() {
    let stage = Stage::set().await;
    let rules = "[[rules]]\nname = \"tunnel-names\"\nwhen = '''input.name != null && !input.name.glob('web-*')'''\n\
                 field = \"name\"\nmessage = \"must begin with web-\"\n";
    assert_eq!(stage.load("validation", rules).await, Ok(2));
    let refused = stage.api.post("/tunnels", json!({"local_port": 80, "name": "db"})).await;
    let expected = json!([{"field": "name", "message": "must begin with web-", "rule": "tunnel-names"}]);
    assert_eq!((refused.status, &refused.body["errors"]), (422, &expected));
    assert_eq!(stage.api.post("/tunnels", json!({"local_port": 80, "name": "web-1"})).await.status, 201);
    // What is malformed is refused as that, and not judged.
    let malformed = stage.api.post("/tunnels", json!({"local_port": 80, "name": 5})).await;
    assert_eq!((malformed.status, &malformed.body["errors"][0]["rule"]), (422, &Value::Null));
    assert_eq!(malformed.fields(), ["name"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rule_that_cannot_be_evaluated_lets_nothing_through() {
    let stage = Stage::set().await;
    // A new tunnel has no name to look at.
    assert_eq!(stage.load("plan-access", &one_rule("tunnel.name.startsWith('web')")).await, Ok(2));
    let answer = stage.api.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(answer.outcome(), "503 policy_unavailable");
    assert_eq!(
        stage.load("plan-access", &one_rule("tunnel.name != null && tunnel.name.startsWith('web')")).await,
        Ok(3)
    );
    assert_eq!(stage.api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
}

/// An operator's mistake is one line that names the rule and the column, and nothing is taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistake_in_rules_is_one_line() {
    let stage = Stage::set().await;
    let mut said = Vec::new();
    for rules in [
        one_rule("action == 'tunnels.start' && (now.hour >= 22"),
        one_rule("tunel.name == 'web'"),
        one_rule("tunnel.name.matches('[a')"),
        one_rule("true") + &one_rule("false"),
        one_rule("true").replace("refused_by_rule", "No!"),
        "rules = []".into(),
        "kind = \"validation\"\n".to_owned() + &one_rule("true"),
        "[[rules]".into(),
    ] {
        said.push(stage.load("team-role", &rules).await.unwrap_err());
    }
    let file = stage.swapped.write_wasm("rules.toml", one_rule("true").as_bytes());
    let entry = "[[policy]]\nkind = \"team-role\"\nmodule = \"builtin:rules-team-role\"\n";
    for more in [
        format!("settings_file = \"{}\"\nsettings = {{ rules = [] }}\n", file.display()),
        "settings_file = \"no.toml\"\n".into(),
    ] {
        stage.swapped.configure(&(entry.to_owned() + &more + &builtin(&["plan-access", "team-role", "validation"])));
        said.push(stage.swapped.reload().await.unwrap_err());
    }
    let folder = stage.swapped.host.folder.path().display().to_string();
    let said: Vec<_> = said.iter().map(|line| line.replace(&folder, "…")).collect();
    insta::assert_snapshot!(said.join("\n"), @r#"
    policy[0].settings.rules[0].when: rule `one`, column 45: expected ')'
    policy[0].settings.rules[0].when: rule `one`, column 1: there is no `tunel.name`; there are action, caller, client, credential, current, device, devices, input, key, now, request, source_device, team, tunnel, usage
    policy[0].settings.rules[0].when: rule `one`, column 13: its pattern: non-empty character class has no closing bracket
    policy[0].settings.rules[1].name: another rule is called `one` as well
    policy[0].settings.rules[0].code: "No!" does not match "^[a-z][a-z0-9_]{2,63}$"
    policy[0].settings.rules: [] has less than 1 item
    policy[0].settings.kind: "team-role" was expected
    policy[0].settings_file: …/data/rules.toml: TOML parse error at line 1, column 8   | 1 | [[rules]   |        ^ invalid table header expected `.`, `]]`
    policy[0].settings_file: is given beside `settings`; leave one of them out
    policy[0].settings_file: no.toml: No such file or directory (os error 2)
    "#);
    assert!(said.iter().all(|line| !line.contains('\n')));
    assert_eq!(stage.api.post("/tunnels", json!({"local_port": 80})).await.status, 201, "the set before decides");
}

/// The templates pass their cases and come by their rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_project_of_rules_passes_its_cases() {
    let place = Place::new(Engine::Sqlite).await;
    for kind in ["plan-access", "team-role", "validation"] {
        let made = place.run(&format!("culvert policy new my-{kind} --kind {kind} --lang rules")).await;
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let tested = place.run(&format!("culvert policy test my-{kind} --min-coverage 100")).await;
        let said = String::from_utf8_lossy(&tested.stdout);
        assert!(said.contains(&format!("my-{kind}: ")) && said.contains("1 of 1 rules covered"), "{said}");
        let (folder, rules) = (format!("my-{kind}/cases"), format!("my-{kind}/rules.toml"));
        let named = format!("culvert policy test builtin:rules-{kind} --settings {rules} --cases {folder}");
        assert!(place.run(&named).await.status.success());
    }
    let built = place.run("culvert policy build my-validation").await;
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(said.contains("my-validation/rules.toml: rules are not built; name the file as `settings_file`"), "{said}");
    std::fs::write(place.folder.path().join("my-validation/rules.toml"), "rules = []").unwrap();
    let unknown = place.run("culvert policy test my-validation").await;
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(said.contains("rules.toml: kind: must be plan-access, team-role or validation"), "{said}");
}
