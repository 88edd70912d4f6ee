//! Policies that are swapped under a running host: whole or not at all, and without losing anybody.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use culvert::config::Config;
use culvert_policy::load::chain::Trust;
use culvert_test_macros::both_engines;
use insta::assert_snapshot;
use serde_json::json;

use crate::support::host::Engine;
use crate::support::hostile::{DENY, GOOD, Module, denying};
use crate::support::own_artefacts;
use crate::support::policies::{Swapped, builtin, entry};
use crate::support::program::Place;

const OTHERS: [&str; 2] = ["plan-access", "validation"];

/// In every generation one of two modules denies, in one the first and in the next the second, each
/// with a code of its own. A request that met modules of two generations would be let through by
/// both, or be refused by the wrong one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_during_policy_reload_see_a_single_generation() {
    let unlimited =
        |config: &mut Config| (config.rate_limit.per_minute, config.rate_limit.per_day) = (u32::MAX, u32::MAX);
    let swapped = Swapped::start(unlimited).await;
    let allow = swapped.write("allow.wasm", &GOOD);
    let (odd, even) = (
        swapped.write_wasm("odd.wasm", &denying("denied__odd")),
        swapped.write_wasm("even.wasm", &denying("denied_even")),
    );
    let chain = |first, second| builtin(&OTHERS) + &entry("team-role", first, "") + &entry("team-role", second, "");
    let chains = [chain(&even, &allow), chain(&allow, &odd)];
    swapped.configure(&chains[0]);
    assert_eq!(swapped.reload().await, Ok(2));

    let done = Arc::new(AtomicBool::new(false));
    let ada = swapped.host.person("ada").await;
    let clients: Vec<_> = (0..2)
        .map(|_| {
            let (api, done) = (swapped.host.api(&ada.key), done.clone());
            tokio::spawn(async move {
                let mut answers = 0;
                while !done.load(Ordering::Relaxed) {
                    let answer = api.post("/tunnels", json!({"local_port": 80})).await;
                    let generation: u64 = answer.header("x-policy-generation").unwrap().parse().unwrap();
                    let expected = if generation.is_multiple_of(2) { "denied_even" } else { "denied__odd" };
                    assert_eq!(
                        (answer.status, answer.body["code"].as_str().unwrap()),
                        (403, expected),
                        "generation {generation}"
                    );
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for generation in 3..103 {
        swapped.configure(&chains[generation as usize % 2]);
        assert_eq!(swapped.reload().await, Ok(generation));
    }
    done.store(true, Ordering::Relaxed);
    for client in clients {
        assert!(client.await.unwrap() > 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_policy_reload_reports_error_and_keeps_generation() {
    let swapped = Swapped::start(|_| {}).await;
    let ada = swapped.host.person("ada").await;
    let good = swapped.write("good.wasm", &GOOD);
    let trap = swapped.write("trap.wasm", &Module { configure: "unreachable", ..GOOD });
    let import = swapped.write_wasm("import.wasm", &importing());
    let newer = swapped.write_wasm("newer.wasm", &renamed("@1.0.0", "@1.3.0"));
    let older = swapped.write_wasm("older.wasm", &renamed("@1.0.0", "@0.9.0"));
    let digest = "0".repeat(64);
    let wrong_digest =
        format!("[[policy]]\nkind = \"team-role\"\nmodule = \"{}\"\nsha256 = \"{digest}\"\n", good.display());
    let no_digest = format!("[[policy]]\nkind = \"team-role\"\nmodule = \"{}\"\n", good.display());
    let mistakes = [
        "[[policy]]\nkind = \"team-role\"\nmodule = \"/dev/zero\"\n".to_owned(),
        "[[policy]]\nkind = \"team-role\"\nmodule = \"no/such.wasm\"\n".to_owned(),
        wrong_digest,
        no_digest,
        entry("validation", &good, ""),
        entry("team-role", &import, ""),
        entry("team-role", &newer, ""),
        entry("team-role", &older, ""),
        "[[policy]]\nkind = \"team-role\"\nmodule = \"builtin:team-role\"\nsettings = { strict = true }\n".to_owned(),
        "[[policy]]\nkind = \"plan-access\"\nmodule = \"builtin:plan-access\"\nsettings = { plans = { free = { tunnel_limit = -1 } } }\n".to_owned(),
        entry("team-role", &trap, ""),
        entry("team-role", &failing_case(&swapped), ""),
        entry("team-role", &good, "mode = \"shadow\""),
        "[[policy]]\nkind = \"team-role\"\nmodule = \"builtin:team-role\"\ndeadline = 5\n".to_owned(),
        "[[policy]\n".to_owned(),
    ];
    let mut said = String::new();
    for mistake in mistakes {
        let kind = mistake.lines().nth(1).unwrap_or_default();
        let others: Vec<&str> =
            ["plan-access", "team-role", "validation"].into_iter().filter(|k| !kind.contains(k)).collect();
        swapped.configure(&(mistake + &builtin(&others)));
        let problem = swapped.reload().await.unwrap_err();
        assert!(!problem.contains('\n'), "{problem}");
        assert_eq!(swapped.status().await["last_failure"]["problem"], problem.as_str());
        // A configuration file is named as seen from here, wherever that is.
        let problem =
            problem.split_once(" (in ").map_or(problem.clone(), |(problem, _)| format!("{problem} (in <file>)"));
        let folder = good.parent().unwrap().to_str().unwrap();
        said += &format!("{}\n", problem.replace(folder, "<folder>"));
    }
    assert_snapshot!(said, @r#"
    policy[0].module: /dev/zero: it is no file
    policy[0].module: ./no/such.wasm: No such file or directory (os error 2)
    policy[0].sha256: <folder>/good.wasm has the digest 2f85a2d6e3a4051b91b1f00fc9a56a592fd72372b1a20f99d2ae341712ddc5ef, not 0000000000000000000000000000000000000000000000000000000000000000; load the file that was meant, or change the digest
    policy[0].sha256: is required for a module that is not built in; this one's is 2f85a2d6e3a4051b91b1f00fc9a56a592fd72372b1a20f99d2ae341712ddc5ef
    policy[0] (<folder>/good.wasm): it is no validation policy: it exports no `culvert:policy/inputs`; it is a team-role policy
    policy[0] (<folder>/import.wasm): it imports `wasi:clocks/wall-clock@0.2.0/now`; a policy imports nothing (build it for wasm32-unknown-unknown, without WASI)
    policy[0] (<folder>/newer.wasm): it needs policy API 1.3.0, this host offers 1.0.0; build it with this release's SDK, or load it into a host that offers 1.3.0
    policy[0] (<folder>/older.wasm): it needs policy API 0.9.0, this host offers 1.0.0; build it with this release's SDK, or load it into a host that offers 0.9.0
    policy[0].settings: there is no setting `strict`
    policy[0].settings.plans.free.tunnel_limit: -1 is less than the minimum of 0
    policy[0] (<folder>/trap.wasm): its configure failed: it trapped: wasm `unreachable` instruction executed
    policy[0] (<folder>/failing.wasm): its own case fails, so it was not built for this host: first.toml, "nobody may": expected {"deny":{"code":"test_denied"}}, got "allow"
    policy: no module of kind team-role decides; add one, for instance `module = "builtin:team-role"`
    policy[0].deadline: there is no such setting; there are kind, module, sha256, signature, mode, deadline_ms, memory_kib, settings, settings_file (in <file>)
    configuration: TOML parse error at line 1, column 9: invalid table header: expected `.`, `]]` (in <file>)
    "#);
    assert_eq!(swapped.status().await["generation"], 1);
    assert_eq!(swapped.metric(r#"culvert_policy_reloads_total{outcome="failed"}"#).await, Some(15.0));
    let answer = swapped.host.api(&ada.key).post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!((answer.status, answer.header("x-policy-generation")), (201, Some("1")));
}

/// The good module, built for another version of the interface.
fn renamed(from: &str, to: &str) -> Vec<u8> {
    let mut wasm = GOOD.component();
    let places: Vec<_> =
        wasm.windows(from.len()).enumerate().filter(|(_, b)| *b == from.as_bytes()).map(|(at, _)| at).collect();
    places.into_iter().for_each(|at| wasm[at..at + to.len()].copy_from_slice(to.as_bytes()));
    wasm
}

/// What WASI would have it be.
fn importing() -> Vec<u8> {
    let text = r#"(component
        (import "wasi:clocks/wall-clock@0.2.0" (instance (export "now" (func (result u64)))))
        (instance (export "culvert:policy/roles@1.0.0")))"#;
    wat::parse_str(text).unwrap()
}

/// A module that carries a case which it does not pass.
fn failing_case(swapped: &Swapped) -> std::path::PathBuf {
    let mut wasm = GOOD.component();
    let cases =
        json!([{"file": "first.toml", "case": [{"name": "nobody may", "expect": {"deny": {"code": "test_denied"}}}]}]);
    culvert_policy::load::sections::append(
        &mut wasm,
        culvert_policy::load::sections::CASES,
        cases.to_string().as_bytes(),
    );
    swapped.write_wasm("failing.wasm", &wasm)
}

/// What is written while it is read may be half of one module and half of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_file_changed_while_read_is_not_loaded() {
    let swapped = Swapped::start(|_| {}).await;
    let good = swapped.write("good.wasm", &GOOD);
    swapped.configure(&(builtin(&OTHERS) + &entry("team-role", &good, "")));
    let done = Arc::new(AtomicBool::new(false));
    let (end, written) = (done.clone(), Arc::new(tokio::sync::Notify::new()));
    let began = written.clone();
    let writing = std::thread::spawn(move || {
        let mut file = std::fs::OpenOptions::new().append(true).open(good).unwrap();
        while !end.load(Ordering::Relaxed) {
            file.write_all(b"more").unwrap();
            began.notify_one();
        }
    });
    written.notified().await;
    let problem = swapped.reload().await.unwrap_err();
    done.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    // Whichever is seen first: that it changes, or that it has changed.
    assert!(problem.contains("it changed while it was read") || problem.contains("has the digest"), "{problem}");
    assert_eq!(swapped.status().await["generation"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_rollback_restores_previous_generation() {
    let swapped = Swapped::start(|_| {}).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    assert_eq!(swapped.rollback().await, Err("there is no earlier generation to go back to".into()));
    let deny = swapped.write("deny.wasm", &Module { check: DENY, ..GOOD });
    swapped.configure(&(builtin(&OTHERS) + &entry("team-role", &deny, "")));
    assert_eq!(swapped.reload().await, Ok(2));
    let refused = api.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!(
        (refused.status, refused.body["code"].as_str().unwrap(), refused.header("x-policy-generation")),
        (403, "test_denied", Some("2"))
    );
    let status = swapped.status().await;
    assert_eq!(
        (&status["generation"], &status["earlier"], &status["modules"][2]["name"]),
        (&json!(2), &json!([1]), &json!("hostile"))
    );

    // What decided before decides again, as a generation of its own: a number is never used again.
    assert_eq!(swapped.rollback().await, Ok(3));
    let made = api.post("/tunnels", json!({"local_port": 80})).await;
    assert_eq!((made.status, made.header("x-policy-generation")), (201, Some("3")));
    assert_eq!(swapped.status().await["earlier"], json!([]));
    assert_eq!(swapped.reload().await, Ok(4));
    let status = swapped.status().await;
    assert_eq!(
        (&status["generation"], &status["earlier"], &status["last_failure"]),
        (&json!(4), &json!([3]), &json!(null))
    );
    for generation in 5..10 {
        assert_eq!(swapped.reload().await, Ok(generation));
    }
    assert_eq!(swapped.status().await["earlier"], json!([8, 7, 6, 5]), "four are kept");
    assert_eq!((swapped.rollback().await, swapped.rollback().await), (Ok(10), Ok(11)));
    assert_eq!(swapped.status().await["earlier"], json!([6, 5]));
}

/// A rollback is for the configuration that was rolled back: over SIGHUP and a restart, until it is reloaded by command
/// or is another one. Numbers go on where they were.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_rollback_holds_over_restart_until_reload() {
    let place = Place::new(Engine::Sqlite).await;
    let path = place.folder.path().join("culvert.toml");
    let strict = place.folder.path().join("strict.wasm");
    std::fs::write(&strict, Module { check: DENY, ..GOOD }.component()).unwrap();
    let shipped = builtin(&["plan-access", "team-role", "validation"]);
    let with_strict = shipped.clone() + &entry("team-role", &strict, "");
    let status = async || {
        let status = place.json("culvert policy status").await;
        let modules = status["modules"].as_array().unwrap().iter();
        (status["generation"].clone(), modules.map(|module| module["name"].clone()).collect::<Vec<_>>().len())
    };
    std::fs::write(&path, &with_strict).unwrap();
    let host = place.serve().await;
    assert_eq!(status().await, (json!(1), 4));
    std::fs::write(&path, &shipped).unwrap();
    assert_eq!(place.json("culvert policy reload").await["generation"], 2);
    assert_eq!(place.json("culvert policy rollback").await["generation"], 3);
    assert_eq!(host.interrupt().await, Some(0));

    // The file has gone that the set was loaded from.
    std::fs::remove_file(&strict).unwrap();
    let mut host = place.serve().await;
    assert_eq!(status().await, (json!(3), 4));
    host.hang_up().await;
    host.until("the policies stay rolled back").await;
    assert_eq!(status().await, (json!(3), 4));
    assert_eq!(place.json("culvert policy reload").await["generation"], 4);
    assert_eq!(status().await, (json!(4), 3));
    assert_eq!(host.interrupt().await, Some(0));

    // The same configuration is the same generation; another one is the next.
    let host = place.serve().await;
    assert_eq!(status().await, (json!(4), 3));
    assert_eq!(host.interrupt().await, Some(0));
    std::fs::write(&path, shipped + "settings = { }\ndeadline_ms = 100\n").unwrap();
    let host = place.serve().await;
    assert_eq!(status().await, (json!(5), 3));
    assert_eq!(host.interrupt().await, Some(0));
}

/// The modules are in the database: a rollback and a restart need neither the folder nor the file.
#[both_engines]
async fn module_that_could_not_be_kept_on_disk_decides_again(engine: Engine) {
    let swapped = Swapped::on(engine, |config| config.trust = Trust::Path).await;
    let data_dir = swapped.host.config().data_dir.clone();
    // Where a folder should be there is a file, as on a full disk nothing can be kept.
    std::fs::remove_dir_all(data_dir.join("policy-modules")).unwrap();
    std::fs::write(data_dir.join("policy-modules"), "").unwrap();
    let module = swapped.write_wasm("module.wasm", &denying("denied_0001"));
    let entry = format!("[[policy]]\nkind = \"team-role\"\nmodule = \"{}\"\n", module.display());
    swapped.configure(&(builtin(&OTHERS) + &entry));
    assert_eq!(swapped.reload().await, Ok(2));
    swapped.write_wasm("module.wasm", &denying("denied_0002"));
    assert_eq!(swapped.reload().await, Ok(3));
    assert_eq!(swapped.rollback().await, Ok(4));
    let key = swapped.host.person("ada").await.key;
    let create = async |swapped: &Swapped| {
        let refused = swapped.host.api(&key).post("/tunnels", json!({"local_port": 80})).await;
        (refused.status, refused.body["code"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(create(&swapped).await, (403, "denied_0001".to_owned()));
    std::fs::remove_file(module).unwrap();
    std::fs::remove_file(data_dir.join("policy-modules")).unwrap();
    let swapped = swapped.restarted().await;
    assert_eq!(create(&swapped).await, (403, "denied_0001".to_owned()));
}

/// On PostgreSQL the rows decide: what the settings name is a proposal, which a reload makes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_on_postgres_starts_with_the_policies_of_its_database() {
    let place = Place::new(Engine::Postgres).await;
    let path = place.folder.path().join("culvert.toml");
    let shipped = builtin(&["plan-access", "team-role", "validation"]);
    std::fs::write(&path, &shipped).unwrap();
    let host = place.serve().await;
    assert_eq!(host.interrupt().await, Some(0));
    std::fs::write(&path, format!("default_plan = \"pro\"\n{shipped}")).unwrap();
    let mut host = place.start_logged("culvert serve");
    let log = host.lines_until("ready address").await.join("\n");
    assert!(log.contains("the settings name other policies than those that decide; `culvert policy reload`"), "{log}");
    let plan = async |email: &str| {
        let created = place.json(&format!("culvert account create --email {email} --name Ada")).await;
        created["plan_name"].clone()
    };
    assert_eq!(
        (place.json("culvert policy status").await["generation"].clone(), plan("a@example.com").await),
        (json!(1), json!("self-hosted"))
    );
    assert_eq!(place.json("culvert policy reload").await["generation"], 2);
    assert_eq!(plan("b@example.com").await, "pro");
    assert_eq!(host.interrupt().await, Some(0));
}

/// Where what decides cannot be loaded any more, a host does not start, and a command without one is the way out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_cannot_be_loaded_are_replaced_offline() {
    let place = Place::new(Engine::Postgres).await;
    let folder = place.folder.path();
    std::fs::write(folder.join("good.wasm"), GOOD.component()).unwrap();
    let shipped = builtin(&["plan-access", "team-role", "validation"]);
    std::fs::write(folder.join("culvert.toml"), shipped.clone() + &entry("team-role", &folder.join("good.wasm"), ""))
        .unwrap();
    let host = place.serve().await;
    let while_it_runs = place.run("culvert policy reload --offline").await;
    let said = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert!(said(&while_it_runs).starts_with("culvert: a host runs on the database"), "{}", said(&while_it_runs));
    assert_eq!(host.interrupt().await, Some(0));
    place.shell("openssl genpkey -algorithm ed25519 | openssl pkey -pubout -out policy.pub").await;
    std::fs::write(folder.join("culvert.toml"), shipped + "[policies]\ntrusted_keys = [\"policy.pub\"]\n").unwrap();
    let refused = said(&place.run("culvert serve").await);
    let wanted = "culvert: policy: generation 1 decides, and cannot be loaded: policy[3].signature: is missing";
    assert!(refused.contains(wanted) && refused.contains("`culvert policy reload --offline`"), "{refused}");
    assert_eq!(place.json("culvert policy reload --offline").await["generation"], 3);
    let host = place.serve().await;
    assert_eq!(place.json("culvert policy status").await["generation"], 3);
    assert_eq!(host.interrupt().await, Some(0));
}

/// The numbers that an earlier version kept in a file go on; what it had rolled back does not come to decide unseen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_an_earlier_version_go_on() {
    let place = Place::new(Engine::Sqlite).await;
    let file = place.folder.path().join("culvert-data/policy-generations.json");
    let state = |rollback: &str| {
        format!(r#"{{"newest": 6, "active": 4, "configuration": "", "modules": [], "rollback": {rollback}}}"#)
    };
    std::fs::write(&file, state(r#"{"from": "", "to": {"entries": [], "default_plan": "pro"}}"#)).unwrap();
    let refused = place.run("culvert serve").await;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("policy: the policies were rolled back under an earlier version; have the settings name"),
        "{said}"
    );
    std::fs::write(&file, state("null")).unwrap();
    let host = place.serve().await;
    assert_eq!(place.json("culvert policy status").await["generation"], 7);
    assert!(!file.exists());
    assert_eq!(place.json("culvert policy reload").await["generation"], 8);
    assert_eq!(host.interrupt().await, Some(0));
}

/// A reload reuses the modules whose file, settings and limits are unchanged. If it loaded them, it would write their compiled
/// files again: three or more for each module.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_module_is_not_loaded_again() {
    let swapped = Swapped::start(own_artefacts).await;
    let folder = swapped.host.config().data_dir.join("policies");
    let files = || std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    for changed in ["deadline_ms = 70", "settings = { reserved_subdomains = [\"ours\"] }"] {
        files().for_each(|file| std::fs::remove_file(file).unwrap());
        swapped.configure(&(builtin(&["plan-access", "team-role", "validation"]) + changed + "\n"));
        swapped.reload().await.unwrap();
        assert!((3..9).contains(&files().count()), "{changed}: {:?}", files().collect::<Vec<_>>());
    }
}

/// Compiled files and modules that no kept generation uses are removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_forgotten_generations_are_removed() {
    let swapped = Swapped::start(own_artefacts).await;
    let folder = swapped.host.config().data_dir.join("policy-modules");
    let mut kept = Vec::new();
    for number in 0..8 {
        let module = swapped.write_wasm("module.wasm", &denying(&format!("denied_0{number:03}")));
        swapped.configure(&(builtin(&OTHERS) + &entry("team-role", &module, "")));
        swapped.reload().await.unwrap();
        kept.push(std::fs::read_dir(&folder).unwrap().count());
    }
    assert_eq!(kept, [1, 2, 3, 4, 5, 5, 5, 5]);
    // Of each module the compiled one, its configured state and its cases: two shipped ones and five others. Of the shipped
    // ones also their functions.
    // Of each kind the functions for loading and for decisions, which the next module of the kind may share. Each of the other
    // four has functions of its own if some were compiled again: the compiler does not always know one by its digest.
    let artefacts = || std::fs::read_dir(folder.with_file_name("policies")).unwrap().count();
    let before = artefacts();
    assert!((29..=33).contains(&before), "{before}");
    // Nothing is left of a load that fails after its modules were compiled.
    let other = swapped.write_wasm("other.wasm", &denying("denied_0009"));
    let broken = entry("team-role", &other, "settings = { unknown = 1 }")
        + &entry("team-role", &swapped.write_wasm("text.wasm", b"text"), "");
    swapped.configure(&(builtin(&OTHERS) + &entry("team-role", &other, "") + &broken));
    assert!(swapped.reload().await.is_err());
    assert_eq!((artefacts(), std::fs::read_dir(&folder).unwrap().count()), (before, 5));
}

/// The operator's listener is for no page in the operator's browser.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_reload_from_browser_page_is_forbidden() {
    let swapped = Swapped::start(|_| {}).await;
    assert_eq!(swapped.reload_from_a_page().await, 403);
    assert_eq!(swapped.status().await["generation"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_policy_is_compared_without_deciding() {
    let swapped = Swapped::start(|_| {}).await;
    let api = swapped.host.api(&swapped.host.person("ada").await.key);
    let deny = swapped.write("deny.wasm", &Module { check: DENY, ..GOOD });
    let trap = swapped.write_wasm("trap.wasm", &Module { check: "unreachable", ..GOOD }.component());
    let shadow = "mode = \"shadow\"";
    swapped.configure(
        &(builtin(&["plan-access", "team-role", "validation"])
            + &entry("team-role", &deny, shadow)
            + &entry("team-role", &trap, shadow)),
    );
    assert_eq!(swapped.reload().await, Ok(2));
    assert_eq!(api.post("/tunnels", json!({"local_port": 80})).await.status, 201);
    let answers = |outcome: &str| {
        format!(r#"culvert_policy_shadow_answers_total{{kind="team-role",module="hostile",outcome="{outcome}"}}"#)
    };
    swapped.host.until_found(async || swapped.metric(&answers("failed")).await.filter(|failed| *failed == 1.0)).await;
    assert_eq!(swapped.metric(&answers("disagreed")).await, Some(1.0));
    assert_eq!(swapped.metric(&answers("agreed")).await, Some(0.0));
}

/// The real host, by signal and by command; and a configuration that is gone is no empty one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sighup_reloads_policies_and_missing_config_keeps_them() {
    let place = Place::new(Engine::Sqlite).await;
    let file = place.folder.path().join("culvert.toml");
    std::fs::write(&file, builtin(&["plan-access", "team-role", "validation"])).unwrap();
    let mut host = place.serve().await;
    host.hang_up().await;
    host.until("the policies were reloaded").await;
    assert_eq!(place.json("culvert policy status").await["generation"], 2);
    std::fs::write(&file, builtin(&["plan-access", "team-role"])).unwrap();
    host.hang_up().await;
    host.until("the policies were not reloaded").await;
    std::fs::remove_file(&file).unwrap();
    let gone = place.run("culvert policy reload").await;
    assert_eq!(
        String::from_utf8_lossy(&gone.stderr),
        "culvert: culvert.toml: there is no such file (the host's policies stay as they are)\n"
    );
    let status = place.json("culvert policy status").await;
    assert_eq!(
        (&status["generation"], &status["last_failure"]["problem"]),
        (&json!(2), &json!("culvert.toml: there is no such file"))
    );
    assert_eq!(place.json("culvert policy rollback").await["generation"], 3);
    let none = place.run("culvert policy rollback").await;
    assert_eq!(String::from_utf8_lossy(&none.stderr), "culvert: there is no earlier generation to go back to\n");
    assert_eq!(host.interrupt().await, Some(0));
}
