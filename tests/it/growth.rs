//! The cost of a request or of a background job does not depend on how much there is: each is done by somebody who has
//! little, amid few tunnels of others and amid many.
//!
//! Blocks that PostgreSQL reads are counted and compared. Times are only printed, for `tests/bench/growth`, which sets the
//! sizes and the number of rounds.

#![allow(clippy::print_stdout, reason = "the table is what `tests/bench/growth` is run for")]

mod meter;
mod plans;
mod seed;
mod walk;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use culvert_test_macros::both_engines;
use insta::assert_snapshot;

use crate::support::database::{columns, count};
use crate::support::host::{Engine, TestHost};
use meter::Meter;
use plans::{scans_on_postgres, scans_on_sqlite};
use seed::seed;
use walk::Stage;

/// The tables of which the rows are as many as what people have and do.
const GROWING: &[&str] = &[
    "accounts",
    "api_keys",
    "assignment_changes",
    "audit_log",
    "certificates",
    "custom_domains",
    "deliveries",
    "device_codes",
    "device_presence",
    "devices",
    "email_changes",
    "events",
    "extra_ports",
    "firewall_rules",
    "geoip_rules",
    "hints",
    "idempotency",
    "identities",
    "invitations",
    "links",
    "mails",
    "node_ports",
    "node_requests",
    "operations",
    "passkeys",
    "passwords",
    "rate_windows",
    "recovery_codes",
    "refusals",
    "resting_ports",
    "resting_subdomains",
    "scopes",
    "session_ports",
    "sessions",
    "sign_in_tries",
    "sign_ins",
    "sign_ups",
    "team_members",
    "temporary_tunnels",
    "totp",
    "traffic_batches",
    "tunnel_devices",
    "tunnels",
    "usage_days",
    "usage_hours",
    "usage_hours_of_scopes",
    "usage_minutes",
    "usage_of_scopes",
    "used_challenges",
    "webhooks",
];

/// The tables of which the rows are as many as nodes, hosts, modules, domains and orders of certificates that are under way.
const FIXED: &[&str] = &[
    "acme_accounts",
    "acme_challenges",
    "acme_orders",
    "certificate_counts",
    "cluster",
    "hosts",
    "key_checks",
    "local_roots",
    "node_loads",
    "node_revisions",
    "nodes",
    "platform_domains",
    "policy_generations",
    "policy_modules",
    "policy_stages",
    "presets",
    "setup_links",
];

/// Tunnels of others, few and many, as `TEST_GROWTH=1000,100000` says.
fn sizes() -> (usize, usize) {
    let sizes = std::env::var("TEST_GROWTH").unwrap_or_else(|_| "1000,10000".into());
    let (few, many) = sizes.split_once(',').unwrap();
    (few.parse().unwrap(), many.parse().unwrap())
}

fn by_hand() -> bool {
    std::env::var("TEST_GROWTH").is_ok()
}

/// How often everything is done, as `TEST_GROWTH_ROUNDS=100` says.
fn rounds() -> usize {
    std::env::var("TEST_GROWTH_ROUNDS").map_or(3, |rounds| rounds.parse().unwrap())
}

/// How often as many blocks are read amid many tunnels as amid few, at most.
const MOST: f64 = 1.5;

/// Blocks of each statement that are no growth: an index of many rows has a level more than one of few, and a statement
/// reads or changes several. Each row that is read may be looked up in such an index.
const LEVELS: i64 = 8;

#[tokio::test]
async fn blocks_that_are_read_do_not_grow_with_what_others_have() {
    let (small, large) = walked(Engine::Postgres).await;
    assert!(small.measured()["GET /tunnels"].reads().blocks > 0, "blocks are not counted");
    let mut grown = String::new();
    for (what, few) in small.measured() {
        let (few, many) = (few.reads(), large.measured()[what].reads());
        let levels = LEVELS * few.statements.len() as i64 + few.rows;
        if many.blocks as f64 > few.blocks as f64 * MOST && many.blocks > few.blocks + levels {
            writeln!(grown, "{what}: {} blocks, then {}: {:#?}", few.blocks, many.blocks, many.statements).unwrap();
        }
    }
    assert!(grown.is_empty(), "{grown}");
}

/// By hand alone: the times, which differ from machine to machine.
#[tokio::test]
async fn every_route_and_job_is_walked_on_sqlite() {
    walked(Engine::Sqlite).await;
}

/// Does everything amid few tunnels and amid many, in turns; what it cost, which is printed as well.
async fn walked(engine: Engine) -> (Meter, Meter) {
    let (few, many) = sizes();
    let (mut small, mut large) = (Stage::set(engine, few).await, Stage::set(engine, many).await);
    for _ in 0..rounds() {
        small.walk().await;
        large.walk().await;
    }
    println!("{}", table(&small.meter, &large.meter));
    (small.meter, large.meter)
}

fn table(small: &Meter, large: &Meter) -> String {
    let mut table = format!(
        "{:<58}{:>8}{:>8}{:>8}{:>8}{:>10}{:>10}{:>10}{:>10}\n",
        "", "blocks", "", "rows", "", "p50 µs", "", "p99 µs", ""
    );
    for (what, few) in small.measured() {
        let many = &large.measured()[what];
        writeln!(
            table,
            "{what:<58}{:>8}{:>8}{:>8}{:>8}{:>10}{:>10}{:>10}{:>10}",
            few.reads().blocks,
            many.reads().blocks,
            few.reads().rows,
            many.reads().rows,
            few.micros(0.5),
            many.micros(0.5),
            few.micros(0.99),
            many.micros(0.99)
        )
        .unwrap();
    }
    table
}

/// Also prints how long the longest deletion took, for `tests/bench/growth`.
#[both_engines]
async fn what_is_old_is_deleted_in_batches(engine: Engine) {
    let host = TestHost::with(engine, Meter::enable).await;
    let (few, many) = sizes();
    let tunnels = if by_hand() { many } else { few };
    seed(&host, engine, tunnels).await;
    let mut meter = Meter::of(&host, engine).await;
    host.clock.advance(Duration::from_hours(24 * 91));
    meter.note("prune", host.app.store.prune()).await.unwrap();
    let url = host.config().database_url();
    for table in ["operations", "sessions", "deliveries", "events"] {
        let left = count(&url, table).await;
        // Those that have not ended, and the events that wait for their delivery.
        assert!(left <= (tunnels / 10) as i64, "{table}: {left}");
    }
    let all = meter.measured()["prune"].micros(1.0) / 1000;
    println!("{engine:?}: {all} ms for all; the longest statement {:.1} ms", meter.longest().await);
}

/// But for what an operator's command lists, and what a host does once when it starts: the keys that were used last, and
/// the devices that it has held.
#[tokio::test]
async fn postgres_reads_no_growing_table_whole() {
    let host = TestHost::start(Engine::Postgres).await;
    seed(&host, Engine::Postgres, sizes().1).await;
    let scans = scans_on_postgres(&host.config().database_url()).await;
    assert_snapshot!(scans, @"
    api_keys | …SELECT public_id FROM api_keys WHERE last_used_at >= $1 AND revoked_at IS NULL ORDER BY last_used_at DESC LIMIT $2
    api_keys | …am FROM api_keys k JOIN accounts a ON a.id = k.account_id JOIN scopes s ON s.id = k.scope_id ORDER BY k.created_at, k.id
    devices | … NOT NULL)) AS owner_active FROM devices d LEFT JOIN device_presence p ON p.device_id = d.id ORDER BY d.created_at, d.id
    passkeys | …SELECT 1 AS one FROM passkeys LIMIT 1
    passwords | …SELECT 1 AS one FROM passwords LIMIT 1
    team_members | … NOT NULL)) AS owner_active FROM devices d LEFT JOIN device_presence p ON p.device_id = d.id ORDER BY d.created_at, d.id
    ");
}

/// As on PostgreSQL, and orders of certificates are resumed once when a host starts. The indexes of operators, of locked accounts, of
/// Teams and of certificates that fail hold nothing else.
#[tokio::test]
async fn sqlite_reads_no_growing_table_whole() {
    let host = TestHost::start(Engine::Sqlite).await;
    seed(&host, Engine::Sqlite, sizes().1).await;
    let scans = scans_on_sqlite(&host.config().database_url()).await;
    assert_snapshot!(scans, @"
    accounts: SCAN a USING INDEX accounts_locked | …NULL AND (p.online = TRUE OR EXISTS (SELECT 1 FROM sessions s WHERE s.device_id = d.id AND s.ended_at IS NULL)) LIMIT $1
    accounts: SCAN a USING INDEX accounts_operators | … $1 AND NOT EXISTS (SELECT 1 FROM accounts a JOIN passwords p ON p.account_id = a.id WHERE a.operator_since IS NOT NULL)
    accounts: SCAN accounts USING INDEX accounts_operators | … AND NOT EXISTS (SELECT 1 FROM accounts WHERE id <> $1 AND operator_since IS NOT NULL AND locked_at IS NULL)) AS is_last
    accounts: SCAN accounts USING INDEX accounts_operators | …SELECT id FROM accounts WHERE operator_since IS NOT NULL ORDER BY id
    api_keys: SCAN api_keys | …SELECT public_id FROM api_keys WHERE last_used_at >= $1 AND revoked_at IS NULL ORDER BY last_used_at DESC LIMIT $2
    api_keys: SCAN k | …am FROM api_keys k JOIN accounts a ON a.id = k.account_id JOIN scopes s ON s.id = k.scope_id ORDER BY k.created_at, k.id
    audit_log: SCAN audit_log USING INDEX audit_log_of_commands | …SELECT scope_id, number FROM audit_log WHERE origin = 'cli' ORDER BY at DESC LIMIT 1
    certificates: SCAN certificates USING INDEX certificates_failing | …SELECT name, error FROM certificates WHERE error IS NOT NULL ORDER BY id LIMIT $1
    certificates: SCAN certificates | …UPDATE certificates SET due_at = $1 WHERE status NOT IN ('issued', 'failed') AND due_at > $1
    devices: SCAN d USING INDEX sqlite_autoindex_devices_1 | … NOT NULL)) AS owner_active FROM devices d LEFT JOIN device_presence p ON p.device_id = d.id ORDER BY d.created_at, d.id
    passkeys: SCAN passkeys USING COVERING INDEX passkeys_by_account | …SELECT 1 AS one FROM passkeys LIMIT 1
    passwords: SCAN passwords USING COVERING INDEX sqlite_autoindex_passwords_1 | …SELECT 1 AS one FROM passwords LIMIT 1
    scopes: SCAN scopes USING INDEX teams | …ELECT id, kind, name, plan FROM scopes WHERE kind = 'team' AND deleted_at IS NULL AND (id = $1 OR name = $2) ORDER BY id
    ");
}

#[both_engines]
async fn every_table_is_known_to_grow_or_not(engine: Engine) {
    let host = TestHost::start(engine).await;
    let columns = columns(&host.config().database_url()).await;
    let columns = columns.keys().filter(|name| !name.starts_with("index ") && !name.starts_with("constraint "));
    let tables: BTreeSet<&str> = columns.map(|name| name.split('.').next().unwrap()).collect();
    let known: BTreeSet<&str> = GROWING.iter().chain(FIXED).copied().collect();
    assert_eq!(tables, known);
}

/// Rows are there in every growing table, so that an empty one hides nothing.
#[tokio::test]
async fn seed_fills_every_growing_table() {
    let host = TestHost::start(Engine::Postgres).await;
    seed(&host, Engine::Postgres, 1000).await;
    let url = host.config().database_url();
    for table in GROWING {
        let rows = count(&url, table).await;
        assert!(rows >= 5, "{table}: {rows}");
    }
}
