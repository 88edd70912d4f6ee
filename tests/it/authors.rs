//! The authors' tools, as an author calls them: the real program, real components, real projects.

use std::path::Path;
use std::process::{Output, Stdio};

use culvert_policy::load::sections;
use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::guide::CACHE;
use crate::support::host::Engine;
use crate::support::hostile::{GOOD, Module};
use crate::support::policies::{Swapped, builtin, entry};
use crate::support::program::Place;

/// A policy that prints and panics.
const LOUD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loud-policy");

/// Where `tests/run` installs what JavaScript projects need.
const JAVASCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/javascript/node_modules");

async fn place() -> Place {
    Place::new(Engine::Sqlite).await.set("XDG_CACHE_HOME", CACHE)
}

/// What a command line came to: its exit code, and what it printed, without the place's name.
async fn told(place: &Place, line: &str) -> String {
    let Output { status, stdout, stderr } = author(place, line).await;
    let text =
        |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(place.folder.path().to_str().unwrap(), "<place>");
    let (said, errors) = (text(stdout), text(stderr));
    let errors: Vec<&str> = errors.lines().filter(|line| line.starts_with("culvert:")).collect();
    format!("{said}{}\nexit code {}", errors.join("\n"), status.code().unwrap())
}

async fn author(place: &Place, line: &str) -> Output {
    let mut words = line.split_whitespace();
    let mut command = place.command_of(Place::programs().join(words.next().unwrap()));
    command.env("HOME", std::env::var_os("HOME").unwrap()).args(words).output().await.unwrap()
}

async fn project(kind: &str, language: &str) -> Place {
    let place = place().await;
    // A name of its own, for the projects are built in one place.
    let made = author(&place, &format!("culvert policy new my-{kind} --kind {kind} --lang {language}")).await;
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    place
}

/// Builds a new project and runs its cases, which come by every rule.
async fn builds_and_passes(kind: &str, place: &Place) {
    let tested =
        author(place, &format!("culvert policy test my-{kind} --min-coverage 100 --json --junit report.xml")).await;
    let errors = String::from_utf8_lossy(&tested.stderr);
    assert!(tested.status.success(), "{}{errors}", String::from_utf8_lossy(&tested.stdout));
    let report: Value = serde_json::from_slice(&tested.stdout).unwrap();
    assert!(report["passed"].as_u64().unwrap() >= 4, "{report}");
    assert_eq!((&report["failed"], &report["coverage"]["percent"]), (&json!(0), &json!(100.0)));
    let junit = std::fs::read_to_string(place.folder.path().join("report.xml")).unwrap();
    assert!(junit.contains(r#"failures="0""#), "{junit}");
    assert_eq!(junit.matches("<testcase").count() as u64, report["passed"].as_u64().unwrap());
}

#[tokio::test]
async fn new_rust_plan_access_project_builds_and_passes() {
    let place = project("plan-access", "rust").await;
    builds_and_passes("plan-access", &place).await;
    assert!(author(&place, "culvert policy build my-plan-access").await.status.success());
    let folder = place.folder.path().join("my-plan-access");
    let module = std::fs::read(folder.join("my-plan-access.wasm")).unwrap();
    for named in [folder.to_str().unwrap(), CACHE, "/rustlib/", "/registry/"] {
        let found = module.windows(named.len()).position(|part| part == named.as_bytes());
        assert_eq!(found, None, "the module names {named}");
    }
}

#[tokio::test]
async fn new_rust_validation_project_builds_and_passes() {
    builds_and_passes("validation", &project("validation", "rust").await).await;
}

/// Two projects of one name build in one folder, and each gets its own module.
#[tokio::test]
async fn projects_of_one_name_do_not_get_each_others_module() {
    let place = place().await;
    let mut built = Vec::new();
    for folder in ["one", "two"] {
        std::fs::create_dir(place.folder.path().join(folder)).unwrap();
        let line = format!("cd {folder} && culvert policy new twin --kind team-role");
        let programs = format!("PATH={}:$PATH", Place::programs().display());
        place.shell(&format!("{programs} sh -c '{line}'")).await;
    }
    let source = place.folder.path().join("two/twin/src/lib.rs");
    let text = std::fs::read_to_string(&source).unwrap();
    std::fs::write(&source, text.replace("team_owner_required", "only_for_the_owner")).unwrap();
    std::fs::remove_dir_all(place.folder.path().join("two/twin/cases")).unwrap();
    for folder in ["one", "two", "one"] {
        let output = author(&place, &format!("culvert policy build {folder}/twin")).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        built.push(std::fs::read(place.folder.path().join(format!("{folder}/twin/twin.wasm"))).unwrap());
    }
    let has = |module: &[u8], text: &str| module.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has(&built[1], "only_for_the_owner") && !has(&built[0], "only_for_the_owner"));
    assert!(built[0] == built[2], "the first one's again");
}

/// And its rules are functions that are tested without any sandbox.
#[tokio::test]
async fn new_rust_team_role_project_builds_and_passes() {
    let place = project("team-role", "rust").await;
    builds_and_passes("team-role", &place).await;
    let mut cargo = place.command_of("cargo");
    cargo.args(["test", "--quiet"]).current_dir(place.folder.path().join("my-team-role"));
    let tested = cargo.env("HOME", std::env::var_os("HOME").unwrap()).output().await.unwrap();
    let said = String::from_utf8_lossy(&tested.stdout);
    assert!(tested.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&tested.stderr));
}

async fn javascript(kind: &str) -> Place {
    let place = project(kind, "javascript").await;
    assert!(Path::new(JAVASCRIPT).is_dir(), "{JAVASCRIPT} is not there; tests/run installs it");
    std::os::unix::fs::symlink(JAVASCRIPT, place.folder.path().join(format!("my-{kind}/node_modules"))).unwrap();
    place
}

#[tokio::test]
async fn new_javascript_plan_access_project_builds_and_passes() {
    builds_and_passes("plan-access", &javascript("plan-access").await).await;
}

#[tokio::test]
async fn new_javascript_validation_project_builds_and_passes() {
    builds_and_passes("validation", &javascript("validation").await).await;
}

/// A host loads it, and it decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_javascript_team_role_project_runs_in_host() {
    let place = javascript("team-role").await;
    let built = author(&place, "culvert policy build my-team-role").await;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let swapped = Swapped::start(|_| {}).await;
    let settings = "memory_kib = 32768\nsettings = { owner_only = [\"tunnels.create\"] }";
    let module = place.folder.path().join("my-team-role/my-team-role.wasm");
    swapped.configure(&(builtin(&["plan-access", "validation"]) + &entry("team-role", &module, settings)));
    assert_eq!(swapped.reload().await, Ok(2));
    let (ada, bea) = (swapped.host.person("ada").await, swapped.host.person("bea").await);
    let team = swapped.host.team("Engines", &ada).await;
    swapped.host.join(team, &bea, culvert_domain::caller::Role::Member).await;
    let statuses = async |account| {
        let key = swapped.host.key(account, team, "full_access").await.key;
        let answer = swapped.host.api(&key).post("/tunnels", json!({"local_port": 80})).await;
        (answer.status, answer.body["code"].clone())
    };
    assert_eq!(statuses(ada.account_id).await, (201, json!(null)));
    assert_eq!(statuses(bea.account_id).await, (403, json!("team_owner_required")));
}

/// A module that allows whatever it is asked, and says that it has a rule.
fn lax(place: &Place) {
    let cases = json!([{"file": "first.toml", "case": [
        {"name": "anybody may", "expect": "allow"},
        {"name": "nobody may", "expect": {"deny": {"code": "test_denied", "rule": "test-rule"}}},
    ]}]);
    let mut wasm = GOOD.component();
    sections::append(&mut wasm, sections::CASES, cases.to_string().as_bytes());
    std::fs::write(place.folder.path().join("lax.wasm"), wasm).unwrap();
}

#[tokio::test]
async fn failing_policy_case_reports_field_differences() {
    let place = place().await;
    lax(&place);
    assert_snapshot!(told(&place, "culvert policy test lax.wasm --junit report.xml").await, @r#"
    ok    first.toml: anybody may
    FAIL  first.toml: nobody may
            the answer
              expected  {"deny":{"code":"test_denied","rule":"test-rule"}}
              got       "allow"
    hostile: 1 passed, 1 failed; 0 of 1 rules covered (0 %)
    no case comes by test-rule
    culvert: a case failed
    exit code 1
    "#);
    let junit = std::fs::read_to_string(place.folder.path().join("report.xml")).unwrap();
    assert_snapshot!(junit.split_once("<testsuite ").unwrap().1, @r#"
    name="first.toml" tests="2" skipped="0" errors="0" failures="1">
            <testcase name="anybody may"/>
            <testcase name="nobody may">
                <failure message="expected {&quot;deny&quot;:{&quot;code&quot;:&quot;test_denied&quot;,&quot;rule&quot;:&quot;test-rule&quot;}}, got &quot;allow&quot;"/>
            </testcase>
        </testsuite>
    </testsuites>
    "#);
    assert_snapshot!(told(&place, "culvert policy test lax.wasm --json").await, @r#"
    {"cases":[{"debug":[],"differences":[],"file":"first.toml","invalid":null,"name":"anybody may","passed":true,"rules":[]},{"debug":[],"differences":[{"expected":{"deny":{"code":"test_denied","rule":"test-rule"}},"field":"","got":"allow"}],"file":"first.toml","invalid":null,"name":"nobody may","passed":false,"rules":[]}],"coverage":{"missing":["test-rule"],"percent":0.0,"rules":1},"failed":1,"module":"hostile","passed":1}
    culvert: a case failed
    exit code 1
    "#);
    assert_snapshot!(told(&place, "culvert policy test lax.wasm --filter anybody").await, @"
    ok    first.toml: anybody may
    hostile: 1 passed, 0 failed; 0 of 1 rules covered (0 %)
    no case comes by test-rule

    exit code 0
    ");
}

/// The one case of `cases/`.
fn one_case(place: &Place, name: &str, expect: &str) {
    let cases = place.folder.path().join("cases");
    std::fs::create_dir_all(&cases).unwrap();
    std::fs::write(cases.join("one.json"), json!({"case": [{"name": name, "expect": expect}]}).to_string()).unwrap();
}

#[tokio::test]
async fn uncovered_rule_fails_minimum_coverage() {
    let place = place().await;
    lax(&place);
    one_case(&place, "anybody", "allow");
    assert_snapshot!(told(&place, "culvert policy test lax.wasm --cases cases --min-coverage 80").await, @"
    ok    one.json: anybody
    hostile: 1 passed, 0 failed; 0 of 1 rules covered (0 %)
    no case comes by test-rule
    culvert: the cases come by 0 % of the rules; 80 % are wanted
    exit code 1
    ");
    assert_snapshot!(told(&place, "culvert policy test lax.wasm --cases cases --min-coverage 101").await.lines().last().unwrap(), @"exit code 2");
}

/// A saved file is tested without being asked for.
#[tokio::test]
async fn saved_case_file_reruns_watched_tests() {
    let place = place().await;
    lax(&place);
    one_case(&place, "what it answers", "allow");
    let mut watching = place.start("culvert policy test lax.wasm --cases cases --watch");
    watching.until("1 passed, 0 failed").await;
    one_case(&place, "what it answers", "refuse");
    watching.until("0 passed, 1 failed").await;
    assert_eq!(watching.interrupt().await, None, "ended by the signal");
}

#[tokio::test]
async fn policy_author_mistake_prints_specific_error() {
    let place = place().await;
    lax(&place);
    let folder = place.folder.path();
    std::fs::create_dir(folder.join("taken")).unwrap();
    std::fs::create_dir_all(folder.join("js/node_modules")).unwrap();
    std::fs::write(
        folder.join("js/package.json"),
        r#"{"name": "js", "main": "policy.js", "culvert": {"kind": "team-role"}}"#,
    )
    .unwrap();
    std::fs::write(folder.join("settings.toml"), "strict = true\n").unwrap();
    std::fs::write(folder.join("stray.json"), r#"{"who": "me"}"#).unwrap();
    std::fs::write(folder.join("word.json"), r#"{"caller": {"role": "boss"}}"#).unwrap();
    std::fs::write(folder.join("trap.wasm"), Module { check: "unreachable", ..GOOD }.component()).unwrap();
    // The code that it denies with is cut short, and so another one than it declares.
    let mut breach = Module { check: "(i32.store (i32.const 1208) (i32.const 5)) i32.const 1200", ..GOOD }.component();
    let cases =
        json!([{"file": "first.toml", "case": [{"name": "nobody may", "expect": {"deny": {"rule": "test-rule"}}}]}]);
    sections::append(&mut breach, sections::CASES, cases.to_string().as_bytes());
    std::fs::write(folder.join("breach.wasm"), breach).unwrap();
    std::fs::write(folder.join("culvert.toml"), "nonsense = true\n").unwrap();
    let record = json!({
        "time": "2026-01-15T12:00:00Z", "request_id": null, "kind": "team-role", "module": "roles-of-old", "call": "check",
        "input": {"action": "webhooks.create", "caller": {"scope": "team", "role": "member"}}, "answer": "allow",
    });
    std::fs::write(folder.join("records.jsonl"), format!("{record}\n{{\"half\": ")).unwrap();
    let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/dist");
    let mut said = String::new();
    for line in [
        "policy new taken --kind team-role",
        "policy new Not_A_Name --kind team-role",
        "policy build taken",
        "policy build js",
        "policy test taken",
        "policy check breach.wasm",
        "policy check lax.wasm",
        "policy check lax.wasm --kind validation",
        &format!("policy check {dist}/team-role.wasm --settings settings.toml"),
        &format!("policy check {dist}/team-role.wasm --memory-kib 64"),
        &format!("policy run {dist}/team-role.wasm stray.json"),
        &format!("policy run {dist}/team-role.wasm word.json"),
        &format!("policy run {dist}/team-role.wasm word.json --call decide"),
        "policy run trap.wasm stray.json",
        "policy run taken stray.json",
        "policy bench trap.wasm",
        "policy inspect culvert.toml",
        &format!("policy replay none.jsonl --module {dist}/team-role.wasm"),
        &format!("policy replay records.jsonl --module {dist}/team-role.wasm"),
        &format!("policy replay records.jsonl --module {dist}/team-role.wasm --against roles-of-old"),
        &format!("policy replay records.jsonl --module {dist}/team-role.wasm --against roles-of-old --fail-on-change"),
        "policy reload",
    ] {
        let line_said = told(&place, &format!("culvert {line}")).await.replace(dist, "dist");
        said += &format!("$ culvert {}\n{}\n", line.replace(dist, "dist"), line_said.trim());
    }
    assert_snapshot!(said, @r#"
    $ culvert policy new taken --kind team-role
    culvert: ./taken: it is there already; choose another name
    exit code 1
    $ culvert policy new Not_A_Name --kind team-role
    culvert: `Not_A_Name` is no name for a policy; use lower-case letters, digits and hyphens, and begin with a letter
    exit code 1
    $ culvert policy build taken
    culvert: taken is no crate: Cargo.toml: No such file or directory (os error 2)
    exit code 1
    $ culvert policy build js
    culvert: ComponentizeJS is not installed here; run `npm install` in js
    exit code 1
    $ culvert policy test taken
    culvert: taken is no crate: Cargo.toml: No such file or directory (os error 2)
    exit code 1
    $ culvert policy check breach.wasm
    culvert: breach.wasm: its case "nobody may" fails: expected {"deny":{"rule":"test-rule"}}, got "the module failed: its answer breaks the contract: it denies with the undeclared code \"test_\""
    exit code 1
    $ culvert policy check lax.wasm
    culvert: lax.wasm: its case "nobody may" fails: expected {"deny":{"code":"test_denied","rule":"test-rule"}}, got "allow"
    exit code 1
    $ culvert policy check lax.wasm --kind validation
    culvert: lax.wasm: it is a team-role policy
    exit code 1
    $ culvert policy check dist/team-role.wasm --settings settings.toml
    culvert: dist/team-role.wasm: its settings do not fit: there is no setting `strict`
    exit code 1
    $ culvert policy check dist/team-role.wasm --memory-kib 64
    culvert: dist/team-role.wasm: it needs 128 KiB of memory before it starts; memory_kib gives it 64
    exit code 1
    $ culvert policy run dist/team-role.wasm stray.json
    culvert: there is no field `who`; there are caller, action, tunnel, devices, attributes
    exit code 1
    $ culvert policy run dist/team-role.wasm word.json
    culvert: caller.role: "boss" is no word of owner, admin, member
    exit code 1
    $ culvert policy run dist/team-role.wasm word.json --call decide
    culvert: there is no function `decide` in culvert:policy/roles@1.0.0
    exit code 1
    $ culvert policy run trap.wasm stray.json
    culvert: there is no field `who`; there are caller, action, tunnel, devices, attributes
    exit code 1
    $ culvert policy run taken stray.json
    culvert: taken: it is a folder; name the component, or build it with `culvert policy build`
    exit code 1
    $ culvert policy bench trap.wasm
    culvert: the component carries no cases; name a file of them with --cases
    exit code 1
    $ culvert policy inspect culvert.toml
    culvert: culvert.toml: it is no WebAssembly component: failed to parse WebAssembly module: magic header not detected: bad magic number - expected=[ 0x0, 0x61, 0x73, 0x6d, ] actual=[ 0x6e, 0x6f, 0x6e, 0x73, ] (at offset 0x0)
    exit code 1
    $ culvert policy replay none.jsonl --module dist/team-role.wasm
    culvert: none.jsonl: No such file or directory (os error 2)
    exit code 1
    $ culvert policy replay records.jsonl --module dist/team-role.wasm
    culvert: records.jsonl: it holds no team-role decision of team-role; name one of roles-of-old with --against
    exit code 1
    $ culvert policy replay records.jsonl --module dist/team-role.wasm --against roles-of-old
    team-role: 1 decision, 1 would change
      line 1, 2026-01-15T12:00:00Z, the host itself
        was       allow
        would be  {"deny":{"code":"team_role_forbidden","detail":"Only owners and admins change the Team's webhooks.","rule":"webhooks"}}
    1 line is no decision record

    exit code 0
    $ culvert policy replay records.jsonl --module dist/team-role.wasm --against roles-of-old --fail-on-change
    team-role: 1 decision, 1 would change
      line 1, 2026-01-15T12:00:00Z, the host itself
        was       allow
        would be  {"deny":{"code":"team_role_forbidden","detail":"Only owners and admins change the Team's webhooks.","rule":"webhooks"}}
    1 line is no decision record
    culvert: 2 answers would change or cannot be compared
    exit code 1
    $ culvert policy reload
    culvert: nonsense: there is no such setting; there are listen, admin_listen, public_url, agent_url, docs_url, data_dir, database_url, database, secret_key_file, default_plan, rate_limit, api, dashboard, mail, metrics_open, trusted_proxies, node, node_authority_seconds, node_replace, drain, extra_node, geoip, dns, webhooks, certificates, acme, log, policy, policies, decisions (in culvert.toml)
    exit code 2
    "#);
}

/// What reads only standard output gets one object, whatever comes.
#[tokio::test]
async fn json_output_is_one_object_on_failure_as_well() {
    let place = place().await;
    std::fs::write(place.folder.path().join("core.wasm"), b"\0asm\x01\0\0\0").unwrap();
    lax(&place);
    let mut said = String::new();
    for line in [
        "--json policy check core.wasm",
        "--json policy inspect none.wasm",
        "--json policy inspect builtin:magic",
        "--json policy reload",
        "--json plan set ada@example.test no-such-plan",
    ] {
        let output = author(&place, &format!("culvert {line}")).await;
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        let problem = object["problem"].as_str().unwrap().replace(&place.address.to_string(), "<address>");
        said += &format!("{line}: {} {problem}\n", output.status.code().unwrap());
    }
    assert_snapshot!(said, @r#"
    --json policy check core.wasm: 1 core.wasm: it is a core WebAssembly module, not a component; `culvert policy build` makes components
    --json policy inspect none.wasm: 1 none.wasm: No such file or directory (os error 2)
    --json policy inspect builtin:magic: 1 builtin:magic: there is no such module; there are plan-access, team-role, validation, rules-plan-access, rules-team-role, rules-validation
    --json policy reload: 1 culvert-data/admin.token: No such file or directory (os error 2); run this as the user of the host
    --json plan set ada@example.test no-such-plan: 2 unexpected argument 'no-such-plan' found
    "#);
    let failed = author(&place, "culvert --json policy test lax.wasm").await;
    let object: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!((failed.status.code(), &object["failed"]), (Some(1), &json!(1)), "the report is the object");
}

/// The modules that are built in are named as in a configuration.
#[tokio::test]
async fn builtin_module_is_a_module_for_every_command() {
    let place = place().await;
    std::fs::write(place.folder.path().join("asked.json"), r#"{"plan": "free"}"#).unwrap();
    for line in [
        "policy inspect builtin:team-role",
        "policy check builtin:validation",
        "policy test builtin:plan-access --min-coverage 100",
        "policy run builtin:plan-access asked.json --call entitlements",
    ] {
        let output = author(&place, &format!("culvert {line}")).await;
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn completions_are_printed_for_a_shell() {
    let place = place().await;
    let bash = String::from_utf8(author(&place, "culvert completions bash").await.stdout).unwrap();
    assert!(bash.contains("complete -F _culvert") && bash.contains("rollback"), "{bash}");
    let help = String::from_utf8(author(&place, "culvert policy test --help").await.stdout).unwrap();
    assert!(help.contains("Examples:\n  culvert policy test"), "{help}");
}

/// A replay says what it cannot know.
#[tokio::test]
async fn replay_counts_what_cannot_be_compared() {
    let place = place().await;
    let write = |name: &str, content: &[u8]| std::fs::write(place.folder.path().join(name), content).unwrap();
    let record = |input: Value, masked: Value| {
        json!({
            "time": "2026-01-15T12:00:00Z", "request_id": null, "kind": "validation", "module": "hooks", "call": "validate",
            "input": {"input": input, "facts": {}}, "answer": [], "masked": masked,
        })
    };
    let records = [
        record(json!({"webhook-create": {"url": "https://known.example/********"}}), json!(["url"])),
        record(json!({"webhook-create": {"url": "https://other.example/********"}}), json!(["url"])),
        record(json!({"webhook-create": {"url": "https://other.example/"}}), json!([])),
    ];
    write("records.jsonl", records.map(|record| format!("{record}\n")).concat().as_bytes());
    write("empty.jsonl", b"");
    write("garbage.jsonl", b"this is\nno record\n");
    write("hosts.toml", b"hosts = [\"known.example\"]\n");
    write("curious.wasm", &Module { schema: r#"{"x-culvert-facts": ["now"]}"#, ..GOOD }.validation());
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/examples/webhook-hosts");
    assert!(author(&place, &format!("culvert policy build {example} --out hooks.wasm")).await.status.success());
    let hooks = "--module hooks.wasm --settings hosts.toml --against hooks";
    let mut said = String::new();
    for line in [
        &format!("policy replay records.jsonl {hooks}"),
        &format!("policy replay records.jsonl {hooks} --fail-on-change"),
        "policy replay records.jsonl --module curious.wasm --against hooks",
        "policy replay records.jsonl --module curious.wasm --against hooks --fail-on-change",
        &format!("policy replay empty.jsonl {hooks}"),
        "policy replay empty.jsonl",
        "policy replay garbage.jsonl",
    ] {
        said += &format!("$ culvert {line}\n{}\n", told(&place, &format!("culvert {line}")).await.trim());
    }
    assert_snapshot!(said, @r#"
    $ culvert policy replay records.jsonl --module hooks.wasm --settings hosts.toml --against hooks
    webhook-hosts: 3 decisions, 1 would change
      2 cannot be compared: their url is masked
      line 3, 2026-01-15T12:00:00Z, the host itself
        was       []
        would be  [{"field":"url","message":"must lead to known.example","rule":"webhook-host"}]

    exit code 0
    $ culvert policy replay records.jsonl --module hooks.wasm --settings hosts.toml --against hooks --fail-on-change
    webhook-hosts: 3 decisions, 1 would change
      2 cannot be compared: their url is masked
      line 3, 2026-01-15T12:00:00Z, the host itself
        was       []
        would be  [{"field":"url","message":"must lead to known.example","rule":"webhook-host"}]
    culvert: 3 answers would change or cannot be compared
    exit code 1
    $ culvert policy replay records.jsonl --module curious.wasm --against hooks
    hostile: 3 decisions, 0 would change
      3 cannot be compared: they do not hold now

    exit code 0
    $ culvert policy replay records.jsonl --module curious.wasm --against hooks --fail-on-change
    hostile: 3 decisions, 0 would change
      3 cannot be compared: they do not hold now
    culvert: 3 answers would change or cannot be compared
    exit code 1
    $ culvert policy replay empty.jsonl --module hooks.wasm --settings hosts.toml --against hooks
    culvert: empty.jsonl: it holds no decision record
    exit code 1
    $ culvert policy replay empty.jsonl
    culvert: empty.jsonl: it holds no decision record
    exit code 1
    $ culvert policy replay garbage.jsonl
    culvert: garbage.jsonl: it holds no decision record
    exit code 1
    "#);
}

/// A policy has no way to print in a host. Under the authors' tools it prints, and a panic shows its text and place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_and_debug_lines_of_policy_are_shown_to_authors_and_panics_to_operators() {
    let place = place().await;
    let module = place.folder.path().join("loud.wasm");
    let built = author(&place, &format!("culvert policy build {LOUD} --out loud.wasm")).await;
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    std::fs::create_dir(place.folder.path().join("cases")).unwrap();
    let case = "[[case]]\nname = \"deleting\"\nask = { action = \"tunnels.delete\" }\nexpect = \"allow\"";
    std::fs::write(place.folder.path().join("cases/panics.toml"), case).unwrap();
    assert_snapshot!(told(&place, "culvert policy test loud.wasm").await, @r#"
    ok    cases.toml: starting
            debug: asked for tunnels.start
    loud-policy: 1 passed, 0 failed; 0 of 1 rules covered (0 %)
    no case comes by loud

    exit code 0
    "#);
    assert_snapshot!(told(&place, "culvert policy test loud.wasm --cases cases").await, @r#"
    FAIL  panics.toml: deleting
            debug: asked for tunnels.delete
            the answer
              expected  "allow"
              got       "the module failed: it panicked at tests/loud-policy/src/lib.rs:17:9: nobody deletes"
    loud-policy: 0 passed, 1 failed; 0 of 1 rules covered (0 %)
    no case comes by loud
    culvert: a case failed
    exit code 1
    "#);
    std::fs::write(place.folder.path().join("asked.json"), r#"{"action": "tunnels.delete"}"#).unwrap();
    let run = author(&place, "culvert policy run loud.wasm asked.json").await;
    assert_snapshot!(String::from_utf8_lossy(&run.stderr), @r#"
    debug: asked for tunnels.delete
    culvert: the module failed: it panicked at tests/loud-policy/src/lib.rs:17:9: nobody deletes
    "#);

    let swapped = Swapped::start(|config| config.decisions.file = Some(config.data_dir.join("decisions.jsonl"))).await;
    swapped.configure(&(entry("team-role", &module, "") + &builtin(&["plan-access", "team-role", "validation"])));
    assert_eq!(swapped.reload().await, Ok(2));
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    assert_eq!(api.delete(&format!("/tunnels/{tunnel}")).await.outcome(), "503 policy_unavailable");
    let host = swapped.host.restart().await;
    let records = std::fs::read_to_string(host.config().decisions.file.clone().unwrap()).unwrap();
    assert!(records.contains("policy loud-policy failed: it panicked at tests/loud-policy/src/lib.rs:"), "{records}");
    assert!(!records.contains("asked for"), "a host prints nothing of it: {records}");
}

/// A case that cannot be asked, or expects what no answer can be, is wrong itself.
#[tokio::test]
async fn wrong_policy_case_is_told_apart_from_wrong_answer() {
    let place = place().await;
    std::fs::write(place.folder.path().join("good.wasm"), GOOD.component()).unwrap();
    std::fs::create_dir(place.folder.path().join("cases")).unwrap();
    let cases = [
        ("a field that there is not", r#"ask = { acton = "tunnels.start" }"#, r#""allow""#),
        ("an answer of another kind", "", "[]"),
        ("a fact that there is not", r#"facts = { tunnel = { size = "web" } }"#, r#""allow""#),
        ("a fact that the module does not want", r#"facts = { now = "2026-01-01T00:00:00Z" }"#, r#""allow""#),
    ];
    let cases = cases.map(|(name, more, expect)| format!("[[case]]\nname = \"{name}\"\n{more}\nexpect = {expect}\n"));
    std::fs::write(place.folder.path().join("cases/wrong.toml"), cases.concat()).unwrap();
    assert_snapshot!(told(&place, "culvert policy test good.wasm --cases cases").await, @r#"
    FAIL  wrong.toml: a field that there is not
            the case is wrong
              ask: there is no field `acton`; there are caller, action, tunnel, devices, attributes
    FAIL  wrong.toml: an answer of another kind
            the case is wrong
              expect: [] is no answer of `check`, which is `"allow"` or `{ deny = { … } }`
    FAIL  wrong.toml: a fact that there is not
            the case is wrong
              facts: there is no fact `tunnel.size`; there are credential, now, team.name, key.id, key.preset, key.scopes, key.created_at, caller.account_id, caller.role, tunnel.name, tunnel.protocol, tunnel.region, tunnel.subdomain, tunnel.local_port, tunnel.created_at, tunnel.running, tunnel.rules, device.name, device.platform, device.owner, source_device.name, source_device.platform, source_device.owner, usage.tunnels, usage.running_tunnels, usage.callers_tunnels, usage.callers_running_tunnels, client.ip, request.method, request.action, request.id, input.host_header, input.local_scheme, input.local_tls_verify, input.proxy_protocol, input.tls_passthrough, current.host_header, current.local_scheme, current.local_tls_verify, current.proxy_protocol, current.tls_passthrough
    FAIL  wrong.toml: a fact that the module does not want
            the case is wrong
              facts: `now`: the module does not want this fact; it wants none (`x-culvert-facts` in its settings schema lists them)
    hostile: 0 passed, 4 failed; 0 of 1 rules covered (0 %)
    no case comes by test-rule
    culvert: 4 cases failed
    exit code 1
    "#);
}

#[tokio::test]
async fn policy_run_reads_question_from_standard_input() {
    let place = place().await;
    let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/dist/team-role.wasm");
    let mut run = place.command_of(Place::programs().join("culvert"));
    let mut run = run.args(["policy", "run", dist]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let question = json!({"action": "webhooks.create", "caller": {"scope": "team", "role": "member"}}).to_string();
    tokio::io::AsyncWriteExt::write_all(&mut run.stdin.take().unwrap(), question.as_bytes()).await.unwrap();
    let answer = run.wait_with_output().await.unwrap();
    assert_snapshot!(String::from_utf8(answer.stdout).unwrap(), @r#"
    {
      "deny": {
        "code": "team_role_forbidden",
        "detail": "Only owners and admins change the Team's webhooks.",
        "rule": "webhooks"
      }
    }
    "#);
}

#[tokio::test]
async fn policy_bench_instruction_count_is_deterministic() {
    let place = place().await;
    let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/dist/team-role.wasm");
    let mut counted = Vec::new();
    for _ in 0..2 {
        let figures = place.json(&format!("culvert policy bench {dist} --seconds 1")).await;
        let files = figures["files"].as_array().unwrap().clone();
        assert!(files.iter().all(|file| file["figures"]["decisions"].as_u64().unwrap() > 0));
        counted.push(files.iter().map(|file| file["figures"]["instructions"].as_u64().unwrap()).collect::<Vec<_>>());
    }
    assert_eq!(counted[0], counted[1]);
    assert!(counted[0].iter().all(|instructions| *instructions > 100), "{counted:?}");
}
