//! `culvert policy plan`: what a reload would change, by what was decided in the last hour on record.

use serde_json::{Value, json};

use crate::support::host::Engine;
use crate::support::program::{Place, Program};

const RECORDING: &str = "[decisions]\nfile = \"decisions.jsonl\"\n";
const SHIPPED: &str = "[[policy]]\nkind = \"plan-access\"\nmodule = \"builtin:plan-access\"\n\
                       [[policy]]\nkind = \"team-role\"\nmodule = \"builtin:team-role\"\n\
                       [[policy]]\nkind = \"validation\"\nmodule = \"builtin:validation\"\n";

/// A host that records decisions, and the key of an account.
struct Stage {
    place: Place,
    host: Option<Program>,
    key: Value,
}

impl Stage {
    async fn set() -> Self {
        Self::on(Engine::Sqlite).await
    }

    async fn on(engine: Engine) -> Self {
        let place = Place::new(engine).await;
        configure(&place, "");
        let host = Some(place.serve().await);
        place.json("culvert account create --email ada@example.com --name Ada").await;
        let key = place.json("culvert key create --account ada@example.com --scopes full_access").await;
        Self { place, host, key }
    }

    /// Creates a tunnel, and waits until its decisions are on record.
    async fn create(&self, name: &str) -> u16 {
        self.create_at(&self.place, name).await
    }

    async fn create_at(&self, place: &Place, name: &str) -> u16 {
        let answer = reqwest::Client::new()
            .post(format!("{}/v2/tunnels", place.url()))
            .bearer_auth(self.key["key"].as_str().unwrap())
            .header("Idempotency-Key", name)
            .json(&json!({"local_port": 80, "name": name}))
            .send()
            .await
            .unwrap();
        let request = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
        place.until_written("decisions.jsonl", &request).await;
        answer.status().as_u16()
    }
}

fn configure(place: &Place, front: &str) {
    std::fs::write(place.folder.path().join("culvert.toml"), format!("{RECORDING}{front}{SHIPPED}")).unwrap();
}

fn rule(kind: &str, when: &str) -> String {
    let answer = if kind == "validation" { "field = \"name\"" } else { "code = \"refused_by_rule\"" };
    format!(
        "[[policy]]\nkind = \"{kind}\"\nmodule = \"builtin:rules-{kind}\"\n[policy.settings]\nname = \"ours\"\n\
         [[policy.settings.rules]]\nname = \"one\"\nwhen = \"{when}\"\n{answer}\nmessage = \"No.\"\n"
    )
}

/// Runs a command: its exit code, and what it prints, without what is another one every time.
async fn run(stage: &Stage, line: &str) -> (Option<i32>, String) {
    let output = stage.place.run(line).await;
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let account = stage.key["account_id"].as_str().unwrap();
    // What it waits for is said only where that takes longer than a second.
    let said = said.lines().filter(|line| !line.ends_with(" …"));
    let lines: Vec<_> = said.map(|line| line.replace(account, "ada").trim_end().to_owned()).collect();
    (output.status.code(), lines.join("\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_says_what_a_new_module_would_refuse_and_for_whom() {
    let mut stage = Stage::set().await;
    assert_eq!((stage.create("web").await, stage.create("db").await), (201, 201));

    let (code, said) = run(&stage, "culvert policy plan").await;
    insta::assert_snapshot!(said, @r#"
    3 modules can be loaded, and pass their cases
    the last hour on record: 6 decisions, 0 would change
    "#);
    assert_eq!(code, Some(0), "the configuration is the one that is loaded");

    configure(&stage.place, &rule("team-role", "action == 'tunnels.create' && now.year > 2000"));
    let (code, said) = run(&stage, "culvert policy plan").await;
    insta::assert_snapshot!(said, @r#"
    4 modules can be loaded, and pass their cases
      + team-role ours 1.0.0 (builtin:rules-team-role)
    the last hour on record: 6 decisions, 2 would change
    SCOPE                                 ACCOUNT                               ACTION          WAS    WOULD BE              TIMES
    ada  ada  tunnels.create  allow  deny refused_by_rule  2
    culvert: 2 decisions would change or cannot be compared; nothing was taken over
    "#);
    assert_eq!(code, Some(1));
    assert_eq!(run(&stage, "culvert policy reload --dry-run").await, (code, said));
    assert_eq!(stage.place.json("culvert policy status").await["generation"], 1, "nothing is taken over");

    configure(&stage.place, &rule("validation", "request.action == 'tunnels.create' && input.name == 'db'"));
    let (_, said) = run(&stage, "culvert policy plan").await;
    insta::assert_snapshot!(said, @r#"
    4 modules can be loaded, and pass their cases
      + validation ours 1.0.0 (builtin:rules-validation)
    the last hour on record: 6 decisions, 1 would change
    SCOPE                                 ACCOUNT                               ACTION          WAS    WOULD BE       TIMES
    ada  ada  tunnels.create  valid  invalid: name  1
    culvert: 1 decision would change or cannot be compared; nothing was taken over
    "#);

    // A fact that nobody wanted then is not on record.
    configure(&stage.place, &rule("team-role", "usage.callers_tunnels > 5"));
    let (code, said) = run(&stage, "culvert policy plan").await;
    insta::assert_snapshot!(said, @r#"
    4 modules can be loaded, and pass their cases
      + team-role ours 1.0.0 (builtin:rules-team-role)
    the last hour on record: 6 decisions, 0 would change
      2 cannot be compared: they do not hold usage.callers_tunnels
    culvert: 2 decisions would change or cannot be compared; nothing was taken over
    "#);
    assert_eq!(code, Some(1));
    assert_eq!(stage.host.take().unwrap().interrupt().await, Some(0));
}

/// A host asks no further than to the first refusal, so what modules behind it wanted is not on record, nor needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_asks_no_further_than_host_did() {
    let mut stage = Stage::set().await;
    let behind = rule("team-role", "usage.callers_tunnels > 5").replace("\"ours\"", "\"behind\"");
    configure(&stage.place, &(rule("team-role", "action == 'tunnels.create'") + &behind));
    stage.place.json("culvert policy reload").await;
    assert_eq!(stage.create("web").await, 403);
    let (code, said) = run(&stage, "culvert policy plan").await;
    assert!(code == Some(0) && said.contains("0 would change"), "{said}");
    // Without it the other one would be asked, and what it wants is not known.
    configure(&stage.place, &behind);
    let (code, said) = run(&stage, "culvert policy plan").await;
    assert!(code == Some(1) && said.contains("they do not hold usage.callers_tunnels"), "{said}");
    assert!(said.contains("- team-role ours 1.0.0"), "{said}");
    assert_eq!(stage.host.take().unwrap().interrupt().await, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_tells_what_cannot_be_loaded_or_compared() {
    let mut stage = Stage::set().await;
    let mut lines = Vec::new();
    configure(&stage.place, &rule("team-role", "tunel.name == 'web'"));
    lines.push(run(&stage, "culvert policy plan").await);
    std::fs::write(stage.place.folder.path().join("culvert.toml"), format!("default_plan = \"gold\"\n{SHIPPED}"))
        .unwrap();
    lines.push(run(&stage, "culvert policy plan").await);
    std::fs::write(stage.place.folder.path().join("culvert.toml"), SHIPPED).unwrap();
    lines.push(run(&stage, "culvert policy plan").await);
    lines.push(run(&stage, "culvert policy plan --records none.jsonl").await);
    assert_eq!(stage.host.take().unwrap().interrupt().await, Some(0));
    lines.push(run(&stage, "culvert policy plan").await);
    let lines: Vec<_> = lines.iter().map(|(code, said)| format!("{}: {said}", code.unwrap())).collect();
    insta::assert_snapshot!(lines.join("\n\n"), @r#"
    1: culvert: policy[0].settings.rules[0].when: rule `one`, column 1: there is no `tunel.name`; there are action, caller, client, credential, current, device, devices, input, key, now, request, source_device, team, tunnel, usage

    1: culvert: default_plan: no policy knows a plan `gold`

    0: 3 modules can be loaded, and pass their cases
    no decisions are recorded (`decisions.file`), so nothing was compared

    1: culvert: none.jsonl: No such file or directory (os error 2)

    0: 3 modules can be loaded, and pass their cases
    no host answers on admin_listen, so what is loaded now is not known
    no decisions are recorded (`decisions.file`), so nothing was compared
    "#);
}

/// Each host has records of its own, and settings of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_asks_every_host_on_the_database() {
    let mut stage = Stage::on(Engine::Postgres).await;
    let other = Place::beside(&stage.place).await.set("CULVERT_NODE__DOMAIN", "b.tunnel.localhost");
    configure(&other, "");
    let beside = other.serve().await;
    assert_eq!((stage.create("web").await, stage.create_at(&other, "db").await), (201, 201));
    assert_eq!(stage.create_at(&other, "db2").await, 201);

    configure(&stage.place, &rule("validation", "request.action == 'tunnels.create' && input.name in ['web', 'db']"));
    let plan = stage.place.run("culvert policy plan --json").await;
    let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
    let of = |host: &Value| {
        let hour = &host["last_hour"];
        (hour["decisions"].as_u64().unwrap(), hour["changed"].as_u64().unwrap(), hour["groups"][0]["was"].clone())
    };
    let mut found: Vec<_> = plan["hosts"].as_array().unwrap().iter().map(of).collect();
    found.sort_by_key(|(decisions, ..)| *decisions);
    assert_eq!(found, [(3, 1, json!("valid")), (6, 1, json!("valid"))]);
    let (code, said) = run(&stage, "culvert policy plan").await;
    assert_eq!((code, said.matches("at host ").count()), (Some(1), 2), "{said}");
    assert!(said.ends_with("2 decisions would change or cannot be compared; nothing was taken over"), "{said}");
    assert_eq!(stage.place.json("culvert policy status").await["generation"], 1, "nothing is taken over");

    assert_eq!(beside.interrupt().await, Some(0));
    assert_eq!(stage.host.take().unwrap().interrupt().await, Some(0));
}
