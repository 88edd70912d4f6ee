//! The audit log: every change is in it with who made it, and what is altered or missing is found.

use std::fmt::Write as _;
use std::time::Duration;

use culvert_domain::audit_log::{Actor, AuditAction, Entry, KEPT};
use culvert_domain::caller::Role;
use culvert_domain::string_enum::StringEnum;
use culvert_service::accounts;
use culvert_service::audit_log::{Problem, verify};
use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::dashboard::is_sound;
use crate::support::database::{execute, execute_at, execute_script, try_execute};
use crate::support::device::Remote;
use crate::support::host::{Engine, Person, TestHost};
use crate::support::program::{Place, command_at, fails};
use crate::support::tab::Tab;

const LOG: &str = "/dashboard/me/audit";

async fn entries(host: &TestHost, scope_id: Uuid) -> Vec<Entry> {
    host.app.store.audit_entries_after(scope_id, 0, 500).await.unwrap()
}

/// What the log says, without what is another at each run.
async fn told(host: &TestHost, scope_id: Uuid, of: &[(Uuid, &str)]) -> String {
    let mut told = String::from("\n");
    for Entry { actor, action, subject_id, details, .. } in entries(host, scope_id).await {
        let name = |id: Option<Uuid>| match id {
            None => "-",
            Some(id) => of.iter().find(|(known, _)| *known == id).map_or("another", |(_, name)| name),
        };
        writeln!(
            told,
            "{:<9} {:<8} {:<8} {action:<30} {:<8} {details}",
            actor.origin,
            name(actor.account_id),
            name(actor.credential_id),
            name(subject_id)
        )
        .unwrap();
    }
    of.iter().fold(told, |told, (id, name)| told.replace(&id.to_string(), name))
}

/// A tunnel, and what is done to it by a key.
async fn work(host: &TestHost, ada: &Person) -> Uuid {
    let api = host.api(&ada.key);
    let new = json!({"local_port": 80, "protocol": "http", "http_basic_auth_enabled": true,
        "http_basic_auth_username": "ada", "http_basic_auth_password": "s3cret-s3cret"});
    let tunnel = api.post("/tunnels", new).await.id();
    api.patch(&format!("/tunnels/{tunnel}"), json!({"name": "web", "local_port": 8080})).await.data();
    tunnel
}

#[both_engines]
async fn changes_of_every_origin_are_in_the_log(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = work(&host, &ada).await;
    let url = format!("/tunnels/{tunnel}");
    // What is refused, reads, or repeats a request changes nothing.
    assert_eq!(api.patch(&url, json!({"local_port": 0})).await.status, 422);
    assert_eq!(api.get(&url).await.status, 200);
    let hook = json!({"url": "https://8.8.8.8/s3cret?token=s3cret", "events": ["device.offline"]});
    let once = || api.request(Method::POST, "/webhooks").header("Idempotency-Key", "once").json(&hook);
    let hook_id = api.send(once()).await.id();
    assert_eq!(api.send(once()).await.id(), hook_id);
    let device = host.device(&ada, ada.account_id, Remote::Enabled).await;
    let tcp = api.post("/tunnels", json!({"local_port": 25565})).await.id();
    host.run_tunnel(&api, &device, tcp).await;
    device.stop_tunnel(&tcp.to_string()).await.unwrap();
    host.until_tunnel(&api, tcp, "stopped").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let page = tab.get("/dashboard/me/keys").await;
    let typed = [("name", "laptop"), ("scopes", "read_only"), ("days", "30")];
    assert_eq!(tab.submit(&page, "/dashboard/me/keys", &typed).await.status, 200);
    api.delete(&url).await;
    accounts::set_operator(&host.app.store, ada.account_id, true, Actor::CLI).await.unwrap();
    let of = [
        (ada.account_id, "ada"),
        (ada.key_id, "her key"),
        (tunnel, "web"),
        (tcp, "tcp"),
        (device.id, "device"),
        (hook_id, "hook"),
    ];
    let log = told(&host, ada.account_id, &of).await;
    assert!(!log.contains("s3cret"), "{log}");
    allow_duplicates! { assert_snapshot!(log, @r#"

    api       ada      her key  tunnels.create                 web      {"http_basic_auth_enabled":true,"http_basic_auth_password":"***","http_basic_auth_username":"ada","local_port":80,"protocol":"http"}
    api       ada      her key  tunnels.update                 web      {"local_port":8080,"name":"web"}
    api       ada      her key  webhooks.create                hook     {"events":["device.offline"],"url":"https://8.8.8.8/***"}
    agent     ada      device   devices.enrol                  device   
    agent     ada      device   devices.set_remote_control     device   {"enabled":true}
    api       ada      her key  tunnels.create                 tcp      {"local_port":25565}
    agent     ada      device   tunnels.start                  tcp      
    agent     ada      device   tunnels.stop                   tcp      
    cli       -        -        accounts.link                  -        
    dashboard ada      -        sign_ins.create                another  {"method":"link"}
    dashboard ada      another  credentials.set_password       -        
    dashboard ada      another  keys.create                    another  {"days":30,"name":"laptop","scopes":["account:read","tunnels:read","devices:read","operations:read","webhooks:read"]}
    api       ada      her key  tunnels.delete                 web      
    cli       -        -        accounts.set_operator          -        {"operator":true}
    "#) }
    let last = entries(&host, ada.account_id).await.into_iter().find(|entry| entry.action == "tunnels.create").unwrap();
    assert!(last.actor.request_id.is_some() && last.actor.address == "127.0.0.1", "{last:?}");
    // The page shows it.
    let page = tab.get(LOG).await;
    is_sound(LOG, &page);
    for said in ["tunnels.create", "keys.create", "in the dashboard", "at a device", "by an API key", "laptop"] {
        assert!(page.text.contains(said), "{said}: {}", page.text);
    }
    let older = page.text.contains("rel=\"next\"");
    assert!(!older, "less than a page");
}

#[test]
fn every_action_of_the_log_is_documented() {
    let page = include_str!("../../docs/operate/audit-log.md");
    for action in AuditAction::ALL {
        assert!(page.contains(&format!("`{action}`")), "{action}");
    }
}

/// Takes away what keeps entries from being changed, as somebody could who owns the database.
async fn let_entries_be_changed(host: &TestHost, engine: Engine) {
    let drop_trigger = match engine {
        Engine::Sqlite => "DROP TRIGGER audit_log_is_appended_to",
        Engine::Postgres => "DROP TRIGGER audit_log_is_appended_to ON audit_log",
    };
    execute(host, drop_trigger).await;
}

/// Members see what they did themselves, owners everything, and strangers nothing.
#[both_engines]
async fn members_see_their_own_changes(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace, eve) = (host.person("ada").await, host.person("grace").await, host.person("eve").await);
    let team = host.team("Lab", &ada).await;
    host.join(team, &grace, Role::Member).await;
    for (person, name) in [(&ada, "of ada"), (&grace, "of grace")] {
        let key = host.key(person.account_id, team, "full_access").await.key;
        host.api(&key).post("/tunnels", json!({"local_port": 80, "name": name})).await.data();
    }
    let path = format!("/dashboard/{team}/audit");
    for (person, sees) in [(&ada, [true, true]), (&grace, [false, true])] {
        let shown = Tab::entered(&host, person.account_id).await.get(&path).await;
        assert_eq!(["of ada", "of grace"].map(|name| shown.text.contains(name)), sees);
    }
    assert_eq!(Tab::entered(&host, eve.account_id).await.get(&path).await.status, 404);
}

#[both_engines]
async fn altered_and_deleted_entries_are_found(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    for _ in 0..3 {
        work(&host, &ada).await;
    }
    let problems = async || {
        let verified = verify(&host.app.store, &host.app.secrets, |_| {}).await.unwrap();
        verified.faults.into_iter().map(|fault| (fault.number, fault.problem)).collect::<Vec<_>>()
    };
    assert_eq!(entries(&host, ada.account_id).await.len(), 6);
    assert_eq!(problems().await, []);
    // The database itself refuses a change.
    let update = "UPDATE audit_log SET details = '{}' WHERE number = 3";
    let refused = try_execute(&host.config().database_url(), update).await.unwrap_err();
    assert!(refused.contains("rows of the audit log are not changed"), "{refused}");
    let_entries_be_changed(&host, engine).await;
    execute(&host, update).await;
    assert_eq!(problems().await, [(3, Problem::Altered)]);
    execute(&host, "DELETE FROM audit_log WHERE number = 3").await;
    assert_eq!(problems().await, [(4, Problem::Gap)]);
    execute(&host, "DELETE FROM audit_log WHERE number < 4").await;
    assert_eq!(problems().await, [(4, Problem::CutOff)]);
    // What is deleted in its time is not missed.
    host.clock.advance(KEPT.to_std().unwrap());
    work(&host, &ada).await;
    host.clock.advance(Duration::from_secs(1));
    host.app.store.prune().await.unwrap();
    assert_eq!(entries(&host, ada.account_id).await.first().map(|entry| entry.number), Some(7));
    assert_eq!(problems().await, []);
}

/// Whichever field of whichever entry somebody alters in the database, it is found.
#[both_engines]
async fn any_altered_field_of_any_entry_is_found(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    for _ in 0..2 {
        work(&host, &ada).await;
    }
    let_entries_be_changed(&host, engine).await;
    execute(&host, "CREATE TABLE kept AS SELECT * FROM audit_log").await;
    let url = host.config().database_url();
    for altered in [
        "action = 'tunnels.read'",
        "details = '{\"name\":\"another\"}'",
        "origin = 'agent'",
        "address = '10.9.8.7'",
        "at = at + 1",
        "number = number + 100",
        "account_id = NULL, origin = 'cli'",
        "digest = previous",
    ] {
        for number in 1..=4 {
            execute_script(&url, &format!("UPDATE audit_log SET {altered} WHERE number = {number}")).await;
            let verified = verify(&host.app.store, &host.app.secrets, |_| {}).await.unwrap();
            assert!(!verified.faults.is_empty(), "{altered} of {number}");
            execute_script(&url, "DELETE FROM audit_log; INSERT INTO audit_log SELECT * FROM kept").await;
            assert!(verify(&host.app.store, &host.app.secrets, |_| {}).await.unwrap().faults.is_empty());
        }
    }
}

/// The host and a command on the server write to one chain in turns.
#[both_engines]
async fn entries_of_several_processes_are_one_chain(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    for _ in 0..3 {
        work(&host, &ada).await;
        link_by_command(&host).await;
    }
    assert_eq!(entries(&host, ada.account_id).await.len(), 9);
    assert!(verify(&host.app.store, &host.app.secrets, |_| {}).await.unwrap().faults.is_empty());
}

async fn link_by_command(host: &TestHost) {
    command_at(host, &["account", "link", "--email", "ada@example.test"]).await;
}

/// A transaction that fails after it has written its entry is not followed by the next one.
#[both_engines]
async fn entry_that_was_rolled_back_is_not_followed(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let (device, _wire) = host.wired(&ada, ada.account_id).await;
    let tunnel = work(&host, &ada).await;
    let before = entries(&host, ada.account_id).await.len();
    let url = host.config().database_url();
    // What is written last in a transaction that concerns a device of another host.
    let (sqlite, postgres) = ("x'00000000000000000000000000000001'", "'00000000-0000-0000-0000-000000000001'");
    let elsewhere = if engine == Engine::Sqlite { sqlite } else { postgres };
    execute_script(&url, &format!("UPDATE device_presence SET host_id = {elsewhere}")).await;
    let (refuse, allow) = match engine {
        Engine::Sqlite => (
            "CREATE TRIGGER refused BEFORE INSERT ON hints BEGIN SELECT RAISE(ABORT, 'refused'); END",
            "DROP TRIGGER refused",
        ),
        Engine::Postgres => (
            "CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
             CREATE TRIGGER refused BEFORE INSERT ON hints FOR EACH ROW EXECUTE FUNCTION refuse()",
            "DROP TRIGGER refused ON hints",
        ),
    };
    let api = host.api(&ada.key);
    let start =
        async || api.post(&format!("/tunnels/{tunnel}/actions/start"), json!({"device_id": device.id})).await.status;
    execute_script(&url, refuse).await;
    assert_eq!(start().await, 500);
    execute_script(&url, allow).await;
    assert_eq!(start().await, 202);
    assert_eq!(entries(&host, ada.account_id).await.len(), before + 1);
    assert!(verify(&host.app.store, &host.app.secrets, |_| {}).await.unwrap().faults.is_empty());
}

/// Whoever can write to the database may put a forged row at the end for a moment: what is written after it, by the same
/// process or by another one, does not vouch for it.
#[both_engines]
async fn forged_time_of_the_newest_entry_is_not_authenticated_along(engine: Engine) {
    for by_command in [false, true] {
        let host = TestHost::start(engine).await;
        let ada = host.person("ada").await;
        work(&host, &ada).await;
        let_entries_be_changed(&host, engine).await;
        let at = entries(&host, ada.account_id).await[1].at;
        // For what comes next, the newest entry is as old as those that are deleted.
        execute(&host, "UPDATE audit_log SET at = 0 WHERE number = 2").await;
        if by_command {
            link_by_command(&host).await;
        } else {
            work(&host, &ada).await;
        }
        assert_ne!(entries(&host, ada.account_id).await[2].previous_at.unwrap().timestamp_micros(), 0);
        let restore = format!("UPDATE audit_log SET at = {} WHERE number = 2", at.timestamp_micros());
        execute_script(&host.config().database_url(), &restore).await;
        execute(&host, "DELETE FROM audit_log WHERE number < 3").await;
        let verified = verify(&host.app.store, &host.app.secrets, |_| {}).await.unwrap();
        assert_eq!(verified.faults.iter().map(|fault| fault.problem).collect::<Vec<_>>(), [Problem::CutOff]);
    }
}

#[both_engines]
async fn log_is_exported_and_compared_with_an_export(engine: Engine) {
    let place = Place::new(engine).await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    place.json("culvert key create --account ada@example.com --scopes read_only").await;
    let export = String::from_utf8(place.run("culvert audit export").await.stdout).unwrap();
    assert_eq!(export.lines().count(), 2, "{export}");
    let file = place.folder.path().join("export");
    std::fs::write(&file, &export).unwrap();
    place.json("culvert account link --email ada@example.com").await;
    let verify = "culvert audit verify --against export";
    assert_eq!(place.json(verify).await, json!({"scopes": 1, "entries": 3}));
    // The newest entries are cut off: the chain is whole, and the export tells.
    let url = place.database_url();
    execute_at(&url, "DELETE FROM audit_log WHERE number > 1").await;
    assert_eq!(place.json("culvert audit verify").await, json!({"scopes": 1, "entries": 1}));
    let refused = fails(&place, verify).await;
    assert!(
        refused.starts_with("1: ") && refused.ends_with(" 2: is in the export, and was deleted since"),
        "{refused}"
    );
    std::fs::write(&file, "no JSON\n").unwrap();
    assert_eq!(fails(&place, verify).await, "2: culvert: --against export: line 1: expected ident at line 1 column 2");
}

/// An export of the dashboard has what the page has, is an entry itself, and is compared as that of the command.
#[both_engines]
async fn log_of_a_scope_is_exported_in_the_dashboard(engine: Engine) {
    let host = TestHost::start(engine).await;
    let (ada, grace) = (host.person("ada").await, host.person("grace").await);
    let team = host.team("=1+1, \"Lab\"", &ada).await;
    host.join(team, &grace, Role::Member).await;
    let adas = host.api(&host.key(ada.account_id, team, "full_access").await.key);
    for name in ["=cmd", "b\"c"] {
        adas.post("/tunnels", json!({"local_port": 1, "name": name})).await.data();
    }
    let (page, path) = (format!("/dashboard/{team}/audit"), format!("/dashboard/{team}/audit/export"));
    let mut tab = Tab::entered(&host, ada.account_id).await;
    let export = async |tab: &mut Tab, format: &str| {
        let form = tab.made_up(&host, &path, &[("format", format)]).await;
        tab.post(&path, &form).await
    };
    let shown = tab.get(&page).await;
    is_sound(&page, &shown);
    let csv = export(&mut tab, "csv").await;
    assert_eq!((csv.status, &csv.headers["content-type"]), (200, &"text/csv; charset=utf-8".parse().unwrap()));
    let name = format!("attachment; filename=\"audit-log-{}.csv\"", host.clock.now().format("%Y-%m-%d"));
    assert_eq!(csv.headers["content-disposition"], name);
    let lines: Vec<&str> = csv.text.trim_end().split("\r\n").collect();
    assert!(lines[0].starts_with("number,at,origin,account_id,account,"), "{}", lines[0]);
    assert!(lines[1].contains("\"audit.export\""), "the export is an entry: {}", lines[1]);
    assert!(lines[2].contains("\"ada\"") && lines[2].contains("b\\\"\"c"), "{}", lines[2]);

    let json_lines = export(&mut tab, "jsonl").await;
    let entries: Vec<Value> = json_lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(entries.len(), lines.len(), "one export more");
    let file = host.config().data_dir.join("export.jsonl");
    std::fs::write(&file, &json_lines.text).unwrap();
    let verified = command_at(&host, &["audit", "verify", "--against", file.to_str().unwrap()]).await;
    assert!(verified.contains("whole"), "{verified}");

    // A member gets what it did itself; a stranger nothing.
    let mut graces = Tab::entered(&host, grace.account_id).await;
    let own = export(&mut graces, "jsonl").await;
    assert!(own.text.lines().all(|line| line.contains(&grace.account_id.to_string())), "{}", own.text);
    assert!(own.text.contains("audit.export") && !own.text.contains("tunnels.create"), "{}", own.text);
    let eve = host.person("eve").await;
    let mut eves = Tab::entered(&host, eve.account_id).await;
    assert_eq!(export(&mut eves, "csv").await.outcome(), "404 not_found");
    assert_eq!(export(&mut tab, "pdf").await.outcome(), "422 validation_failed");
}
