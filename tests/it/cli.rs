//! The operator's command line: what it prints, and what a mistake ends in.

use std::process::Stdio;

use crate::support::host::Engine;
use culvert_test_macros::both_engines;
use insta::{allow_duplicates, assert_snapshot};
use serde_json::Value;

use crate::support::program::Place;

/// `1: culvert: …`, the exit code and what stands on standard error.
async fn refused(place: &Place, line: &str) -> String {
    let output = place.run(line).await;
    assert!(output.stdout.is_empty(), "{line}");
    format!("{}: {}", output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap().trim_end())
}

/// The names of an object's fields, and of those of the first object in its `data`.
fn shape(value: &Value) -> String {
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    match value["data"].get(0) {
        Some(first) => format!("data[{}]", names(first)),
        None => names(value),
    }
}

/// Every command, beside a running host, with `--json`.
#[both_engines]
async fn every_command_with_json_prints_one_object(engine: Engine) {
    let place = Place::new(engine).await;
    let _host = place.serve().await;
    let mut shapes = String::new();
    let mut note = |line: &str, value: &Value| shapes += &format!("{line}: {}\n", shape(value));
    for line in [
        "culvert account create --email ada@example.com --name Ada --plan pro",
        "culvert account create --email bob@example.com --name Bob",
        "culvert team create --name Engines --owner ada@example.com",
        "culvert team add --team Engines --account bob@example.com --role member",
        "culvert team set-role --team Engines --account bob@example.com --role admin",
        "culvert key create --account bob@example.com --team Engines --scopes tunnels:read,tunnels:write",
        "culvert key list",
        "culvert device code --account bob@example.com --team Engines",
        "culvert device list",
        "culvert host list",
        "culvert node list",
        "culvert plan set --team Engines team",
        "culvert plan set --account bob@example.com free",
        "culvert team remove --team Engines --account bob@example.com",
    ] {
        note(line, &place.json(line).await);
    }
    let node = place.json("culvert node list").await["data"][0]["id"].as_str().unwrap().to_owned();
    let set = place
        .json(&format!("culvert node set {node} --name first --region eu-central --country de --status maintenance"))
        .await;
    assert_eq!(
        (&set["region"], &set["country"], &set["status"]),
        (&"eu-central".into(), &"DE".into(), &"maintenance".into())
    );
    note("culvert node set", &set);
    let key = place.json("culvert key list").await["data"][0]["id"].as_str().unwrap().to_owned();
    note("culvert key revoke", &place.json(&format!("culvert key revoke {key}")).await);
    let code = place.json("culvert device code --account ada@example.com").await["code"].as_str().unwrap().to_owned();
    let enrolled = place.json(&format!("culvert-agent enroll --server {} --code {code}", place.url())).await;
    let device = enrolled["device_id"].as_str().unwrap();
    note("culvert device remove", &place.json(&format!("culvert device remove {device}")).await);
    allow_duplicates! { assert_snapshot!(shapes, @"
    culvert account create --email ada@example.com --name Ada --plan pro: created_at display_name email id plan_name
    culvert account create --email bob@example.com --name Bob: created_at display_name email id plan_name
    culvert team create --name Engines --owner ada@example.com: id name owner_id plan_name
    culvert team add --team Engines --account bob@example.com --role member: account_id id role
    culvert team set-role --team Engines --account bob@example.com --role admin: account_id id role
    culvert key create --account bob@example.com --team Engines --scopes tunnels:read,tunnels:write: account_id created_at expires_at id key scope_id scopes
    culvert key list: data[account created_at expires_at id last_used_at name prefix revoked_at scopes team]
    culvert device code --account bob@example.com --team Engines: code expires_at
    culvert device list: data
    culvert host list: data[agent_url devices ended_at id leads lease_until name nodes policy_generation settings started_at state version]
    culvert node list: data[country host host_state hostname id name pro_only region region_flag serves_until status]
    culvert plan set --team Engines team: id plan_name
    culvert plan set --account bob@example.com free: id plan_name
    culvert team remove --team Engines --account bob@example.com: account_id id role
    culvert node set: country hostname id name pro_only region region_flag status
    culvert key revoke: id revoked
    culvert device remove: id removed
    ") }
}

#[both_engines]
async fn failed_command_prints_one_line_error(engine: Engine) {
    let place = Place::new(engine).await;
    place.json("culvert account create --email ada@example.com --name Ada").await;
    place.json("culvert team create --name Engines --owner ada@example.com").await;
    let mut said = String::new();
    for line in [
        "culvert account create --email ada@example.com --name Ada",
        "culvert account create --email ada --name Ada",
        "culvert account create --email bob@example.com --name Bob --plan gold",
        "culvert team add --team Engines --account bob@example.com --role member",
        "culvert team add --team Nobody --account ada@example.com --role member",
        "culvert team remove --team Engines --account ada@example.com",
        "culvert key create --account ada@example.com --scopes tunnels:fly",
        "culvert key create --account eve@example.com --scopes full_access",
        "culvert key revoke ctk_nothing",
        "culvert device remove 00000000-0000-0000-0000-000000000007",
        "culvert plan set --account ada@example.com gold",
        "culvert node set 00000000-0000-0000-0000-000000000007 --name x",
        "culvert policy inspect nothing.wasm",
        "culvert --config nothing.toml key list",
    ] {
        said += &format!("{line}\n  {}\n", refused(&place, line).await);
    }
    allow_duplicates! { assert_snapshot!(said, @"
    culvert account create --email ada@example.com --name Ada
      1: culvert: ada@example.com: the e-mail address has an account
    culvert account create --email ada --name Ada
      1: culvert: --email must be an e-mail address with at most 254 characters
    culvert account create --email bob@example.com --name Bob --plan gold
      1: culvert: no policy knows a plan `gold`
    culvert team add --team Engines --account bob@example.com --role member
      1: culvert: there is no account bob@example.com; `culvert account create` makes one
    culvert team add --team Nobody --account ada@example.com --role member
      1: culvert: there is no Team Nobody; `culvert team create` makes one
    culvert team remove --team Engines --account ada@example.com
      1: culvert: The account is the Team's last owner; make another one first.
    culvert key create --account ada@example.com --scopes tunnels:fly
      2: culvert: --scopes: `tunnels:fly` is no scope; the scopes are account:read, tunnels:read, tunnels:write, tunnels:control, devices:read, devices:write, devices:control, operations:read, webhooks:read, webhooks:write, the presets read_only, operator, tunnel_manager, webhook_manager, full_access
    culvert key create --account eve@example.com --scopes full_access
      1: culvert: there is no account eve@example.com; `culvert account create` makes one
    culvert key revoke ctk_nothing
      1: culvert: there is no key ctk_nothing
    culvert device remove 00000000-0000-0000-0000-000000000007
      1: culvert: there is no device 00000000-0000-0000-0000-000000000007
    culvert plan set --account ada@example.com gold
      1: culvert: no policy knows a plan `gold`
    culvert node set 00000000-0000-0000-0000-000000000007 --name x
      1: culvert: there is no node 00000000-0000-0000-0000-000000000007; `culvert node list` shows them
    culvert policy inspect nothing.wasm
      1: culvert: nothing.wasm: No such file or directory (os error 2)
    culvert --config nothing.toml key list
      2: culvert: nothing.toml: there is no such file
    ") }
    for wrong in ["culvert key create", "culvert fly", "culvert plan set gold", "culvert-agent enroll"] {
        assert!(refused(&place, wrong).await.starts_with("2: error: "), "{wrong}");
    }
}

/// A wrong setting is one line that names it, and exit code 2.
#[tokio::test]
async fn invalid_setting_is_named_in_startup_error() {
    let mut said = String::new();
    for (name, value) in [
        ("CULVERT_LISTEN", "nowhere"),
        ("CULVERT_PUBLIC_URL", "ftp://example.com"),
        ("CULVERT_AGENT_URL", "http://192.0.2.1"),
        ("CULVERT_DATABASE_URL", "mysql://localhost/culvert"),
        ("CULVERT_DATABASE_URL", "postgres://postgres@127.0.0.1:1/culvert"),
        ("CULVERT_SECRET_KEY_FILE", "/dev/null"),
        ("CULVERT_DEFAULT_PLAN", "gold"),
        ("CULVERT_RATE_LIMIT__PER_MINUTE", "0"),
        ("CULVERT_RATE_LIMIT__PER_HOUR", "1"),
        ("CULVERT_TRUSTED_PROXIES", "[\"everybody\"]"),
        ("CULVERT_NODE__PORTS", "30000-20000"),
        ("CULVERT_NODE__HOSTNAME", "a b"),
        ("CULVERT_LOG__FORMAT", "xml"),
        ("CULVERT_COLOUR", "green"),
    ] {
        let place = Place::new(Engine::Sqlite).await.set(name, value);
        let refused = refused(&place, "culvert serve").await;
        said += &format!("{name}={value}\n  {}\n", refused.lines().last().unwrap());
    }
    assert_snapshot!(said, @r#"
    CULVERT_LISTEN=nowhere
      2: culvert: listen: invalid socket address syntax (in `CULVERT_` environment variable(s))
    CULVERT_PUBLIC_URL=ftp://example.com
      2: culvert: public_url: must be an http:// or https:// URL
    CULVERT_AGENT_URL=http://192.0.2.1
      2: culvert: agent_url: http:// is for loopback only; use https://
    CULVERT_DATABASE_URL=mysql://localhost/culvert
      2: culvert: database_url: must be sqlite:<path> or postgres://<user>@<host>/<database>
    CULVERT_DATABASE_URL=postgres://postgres@127.0.0.1:1/culvert
      2: culvert: database_url: error communicating with database: Connection refused (os error 111)
    CULVERT_SECRET_KEY_FILE=/dev/null
      2: culvert: secret_key_file: /dev/null: there is no key in it; delete it, and a new one is made
    CULVERT_DEFAULT_PLAN=gold
      2: culvert: default_plan: no policy knows a plan `gold`
    CULVERT_RATE_LIMIT__PER_MINUTE=0
      2: culvert: rate_limit.per_minute: must be at least 1
    CULVERT_RATE_LIMIT__PER_HOUR=1
      2: culvert: rate_limit.per_hour: there is no such setting; there are per_minute, per_day, failed_auth_per_minute (in `CULVERT_` environment variable(s))
    CULVERT_TRUSTED_PROXIES=["everybody"]
      2: culvert: trusted_proxies[0]: invalid IP address syntax (in `CULVERT_` environment variable(s))
    CULVERT_NODE__PORTS=30000-20000
      2: culvert: node.ports: `30000-20000` is no range of ports, such as 20000-29999 (in `CULVERT_` environment variable(s))
    CULVERT_NODE__HOSTNAME=a b
      2: culvert: node.hostname: must be a host name or an IPv4 address
    CULVERT_LOG__FORMAT=xml
      2: culvert: log.format: unknown variant: found `xml`, expected `text` or `json` (in `CULVERT_` environment variable(s))
    CULVERT_COLOUR=green
      2: culvert: colour: there is no such setting; there are listen, admin_listen, public_url, agent_url, docs_url, data_dir, database_url, database, secret_key_file, default_plan, rate_limit, api, dashboard, mail, metrics_open, trusted_proxies, node, node_authority_seconds, node_replace, drain, extra_node, geoip, dns, webhooks, certificates, acme, log, policy, policies, decisions (in `CULVERT_` environment variable(s))
    "#);
    let mut said = String::new();
    for settings in [
        &[("CULVERT_NODE__DOMAIN", "192.0.2.1")][..],
        &[("CULVERT_NODE__HTTP_LISTEN", "127.0.0.1:9"), ("CULVERT_NODE__HTTPS_LISTEN", "0.0.0.0:9")],
        &[("CULVERT_NODE__HTTP_LISTEN", "nowhere")],
        &[("CULVERT_NODE__HTTPS_PORT", "0")],
        &[("CULVERT_NODE_AUTHORITY_SECONDS", "59")],
        &[("CULVERT_NODE__HTTP__HEADER_KIB", "1")],
        &[("CULVERT_NODE__TRUSTED_PROXIES", "[\"everybody\"]")],
        &[("CULVERT_ACME__DIRECTORY", "http://acme.example.com/")],
        &[("CULVERT_ACME__DIRECTORY", "https://acme.example.com/"), ("CULVERT_ACME__DNS", "builtin")],
        &[("CULVERT_ACME__DIRECTORY", "https://acme.example.com/"), ("CULVERT_ACME__DNS", "command")],
        &[("CULVERT_ACME__DIRECTORY", "https://acme.example.com/"), ("CULVERT_ACME__CONTACT", "[\"ops\"]")],
        &[("CULVERT_ACME__DIRECTORY", "https://acme.example.com/"), ("CULVERT_ACME__ROOT_CERTIFICATES", "/dev/null")],
        &[("CULVERT_ACME__DIRECTORY", "https://acme.example.com/"), ("CULVERT_ACME__ROOT_CERTIFICATES", "/nowhere")],
        &[("CULVERT_ACME__ORDERS_PER_HOUR", "0")],
    ] {
        let mut place = Place::new(Engine::Sqlite).await;
        for (name, value) in settings {
            place = place.set(name, value);
        }
        let given: Vec<String> = settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let refused = refused(&place, "culvert serve").await;
        assert_eq!(refused.lines().count(), 1, "{refused}");
        said += &format!("{}\n  {refused}\n", given.join(" "));
    }
    assert_snapshot!(said, @r#"
    CULVERT_NODE__DOMAIN=192.0.2.1
      2: culvert: node.domain: must be a domain, not an address
    CULVERT_NODE__HTTP_LISTEN=127.0.0.1:9 CULVERT_NODE__HTTPS_LISTEN=0.0.0.0:9
      2: culvert: node.https_listen: must not be the address of node.http_listen
    CULVERT_NODE__HTTP_LISTEN=nowhere
      2: culvert: node.http_listen: must be `off` or <address>:<port> (in `CULVERT_` environment variable(s))
    CULVERT_NODE__HTTPS_PORT=0
      2: culvert: node.https_port: must be between 1 and 65535
    CULVERT_NODE_AUTHORITY_SECONDS=59
      2: culvert: node_authority_seconds: must be between 60 and 3600
    CULVERT_NODE__HTTP__HEADER_KIB=1
      2: culvert: node.http.header_kib: must be between 8 and 1024
    CULVERT_NODE__TRUSTED_PROXIES=["everybody"]
      2: culvert: node.trusted_proxies[0]: invalid IP address syntax (in `CULVERT_` environment variable(s))
    CULVERT_ACME__DIRECTORY=http://acme.example.com/
      2: culvert: acme.directory: must be an https:// URL
    CULVERT_ACME__DIRECTORY=https://acme.example.com/ CULVERT_ACME__DNS=builtin
      2: culvert: acme.dns: `builtin` needs acme.dns_listen
    CULVERT_ACME__DIRECTORY=https://acme.example.com/ CULVERT_ACME__DNS=command
      2: culvert: acme.dns: `command` needs acme.dns_command
    CULVERT_ACME__DIRECTORY=https://acme.example.com/ CULVERT_ACME__CONTACT=["ops"]
      2: culvert: acme.contact: `ops` must be a mailto: URL
    CULVERT_ACME__DIRECTORY=https://acme.example.com/ CULVERT_ACME__ROOT_CERTIFICATES=/dev/null
      2: culvert: acme.root_certificates: /dev/null: there is no certificate in it
    CULVERT_ACME__DIRECTORY=https://acme.example.com/ CULVERT_ACME__ROOT_CERTIFICATES=/nowhere
      2: culvert: acme.root_certificates: /nowhere: No such file or directory (os error 2)
    CULVERT_ACME__ORDERS_PER_HOUR=0
      2: culvert: acme.orders_per_hour: must be at least 1
    "#);
    // The file is read as well, and says where it is wrong.
    let place = Place::new(Engine::Sqlite).await;
    std::fs::write(place.folder.path().join("culvert.toml"), "[node]\nprots = \"1-2\"\n").unwrap();
    let refused = refused(&place, "culvert serve").await;
    assert!(refused.starts_with("2: culvert: node.prots: there is no such setting; there are "), "{refused}");
    assert!(refused.contains("culvert.toml"), "{refused}");
}

/// A second host on the same data refuses to start.
#[tokio::test]
async fn second_host_on_data_folder_is_refused() {
    let place = Place::new(Engine::Sqlite).await;
    let _host = place.serve().await;
    assert_eq!(
        refused(&place, "culvert serve").await.lines().last().unwrap(),
        "2: culvert: data_dir: culvert-data: another host is running on it; stop it, or use another folder"
    );
}

/// Whoever reads it can forge whatever the host signs.
#[tokio::test]
async fn key_file_that_everybody_may_read_is_warned_of() {
    let place = Place::new(Engine::Sqlite).await;
    assert_eq!(place.serve().await.terminate().await, Some(0));
    let log = || std::fs::read_to_string(place.log()).unwrap();
    assert!(!log().contains("secret_key_file"), "{}", log());
    place.shell("chmod o+r culvert-data/secret.key").await;
    let mut host = place.start_logged("culvert serve");
    let warning = host.until("everybody on this machine may read").await;
    assert!(warning.ends_with("take that away: chmod o-r culvert-data/secret.key"), "{warning}");
}

/// What an authority will not issue shows at the start, and not with the first order that fails.
#[tokio::test]
async fn settings_with_which_an_authority_issues_less_are_warned_of() {
    let place = Place::new(Engine::Sqlite).await.set("CULVERT_NODE__DOMAIN", "tunnel.example.com");
    let place = place.set("CULVERT_ACME__DIRECTORY", "https://127.0.0.1:1/directory");
    let mut host = place.start_logged("culvert serve");
    let warning = host.until("neither to port 443").await;
    assert!(warning.contains("(node.https_listen, node.https_port)"), "{warning}");
    let warning = host.until("acme.dns is not set").await;
    assert!(warning.contains("one wildcard serves all"), "{warning}");
    host.until("ready address").await;
    assert_eq!(host.terminate().await, Some(0));
    let place = place.set("CULVERT_NODE__HTTP_PORT", "80");
    place.serve().await;
    let log = std::fs::read_to_string(place.log()).unwrap();
    assert_eq!(log.matches("neither to port 443").count(), 1, "{log}");
}

/// `culvert key list | head -0` has done what it was to do; a full disk has not.
#[tokio::test]
async fn command_whose_output_is_not_read_succeeds() {
    let place = Place::new(Engine::Sqlite).await;
    let run = async |line: &str, out: Stdio| {
        let mut words = line.split(' ');
        let mut command = place.command_of(Place::programs().join(words.next().unwrap()));
        let ended = command.args(words).stdout(out).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().await;
        let ended = ended.unwrap();
        format!("{} {}", ended.status.code().unwrap(), String::from_utf8_lossy(&ended.stderr).trim())
    };
    for line in ["culvert key list --json", "culvert key list", "culvert completions bash"] {
        let (unread, out) = std::io::pipe().unwrap();
        drop(unread);
        assert_eq!(run(line, out.into()).await, "0 ", "{line}");
    }
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(
        run("culvert key list --json", full.into()).await,
        "1 culvert: the result could not be written: No space left on device (os error 28)"
    );
}
