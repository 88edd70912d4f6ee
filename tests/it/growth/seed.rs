//! Tunnels of others, with what belongs to them in proportion: 20 tunnels a scope, of which one in ten runs.

use std::fmt::Write as _;

use crate::support::database::execute_script;
use crate::support::host::{Engine, TestHost, start_of_time};

/// Fills the database of a host, and has the engine count what is there.
pub async fn seed(host: &TestHost, engine: Engine, tunnels: usize) {
    let url = host.config().database_url();
    execute_script(&url, &Seed { engine }.script(tunnels)).await;
    let count = if engine == Engine::Postgres { "VACUUM (ANALYZE)" } else { "ANALYZE" };
    execute_script(&url, count).await;
}

/// PostgreSQL cannot clean up the former versions of a row in the transaction that makes them: triggers that count a million
/// tunnels one by one would read them all each time.
const WITHOUT_TRIGGERS: &str = "SET LOCAL session_replication_role = replica;\n";
/// What the triggers count.
const COUNTS: &str = "INSERT INTO node_loads (node_id, part, tunnels) \
                          SELECT node_id, 0, COUNT(*) FROM tunnels GROUP BY node_id \
                          ON CONFLICT (node_id, part) DO UPDATE SET tunnels = node_loads.tunnels + excluded.tunnels;\n\
                      INSERT INTO certificate_counts (status, part, certificates) \
                          SELECT status, 0, COUNT(*) FROM certificates WHERE issuer = 'local:seed' GROUP BY status \
                          ON CONFLICT (status, part) DO UPDATE \
                          SET certificates = certificate_counts.certificates + excluded.certificates;\n";

struct Seed {
    engine: Engine,
}

impl Seed {
    /// The id of the nth thing of a kind, as SQL.
    fn id(&self, kind: u32, number: &str) -> String {
        match self.engine {
            Engine::Sqlite => format!("unhex('{kind:08x}' || printf('%024x', {number}))"),
            Engine::Postgres => {
                format!("CAST('{kind:08x}' || lpad(to_hex(CAST({number} AS BIGINT)), 24, '0') AS UUID)")
            }
        }
    }

    fn bytes(&self) -> &'static str {
        match self.engine {
            Engine::Sqlite => "X'00'",
            Engine::Postgres => "CAST('x' AS BYTEA)",
        }
    }

    fn script(&self, tunnels: usize) -> String {
        let now = start_of_time().timestamp_micros();
        let (past, later) = (now - 3_600_000_000, now + 86_400_000_000_000);
        let today = start_of_time().timestamp() / 86_400;
        let bytes = self.bytes();
        let scope = |number: &str| self.id(1, number);
        let node = |number: &str| self.id(2, number);
        let tunnel = |number: &str| self.id(3, number);
        let device = |number: &str| self.id(4, number);
        let (session, operation, event, webhook) = (self.id(5, "i"), self.id(6, "i"), self.id(7, "i"), self.id(8, "i"));
        let key = self.id(9, "i");
        let (own, of_20) = (scope("i"), scope("i / 20"));
        let domain = "(SELECT id FROM platform_domains WHERE is_default LIMIT 1)";
        let scopes = tunnels / 20;
        let mut script = String::from("BEGIN;\n");
        if self.engine == Engine::Postgres {
            script.push_str(WITHOUT_TRIGGERS);
        }
        let mut insert = |count: usize, table: &str, columns: &str, values: String| {
            writeln!(
                script,
                "INSERT INTO {table} ({columns}) \
                 WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {count}) \
                 SELECT {values} FROM n;"
            )
            .unwrap();
        };

        insert(
            4,
            "nodes",
            "id, name, hostname, region, country, status, pro_only, first_port, last_port, created_at",
            format!(
                "{}, 'seed-' || i, 'seed.example.test', 'eu', 'DE', 'offline', FALSE, 20000, 65000, {past}",
                node("i")
            ),
        );
        insert(
            scopes,
            "scopes",
            "id, kind, name, plan, created_at",
            format!("{own}, 'personal', 'seed', 'self-hosted', {past}"),
        );
        insert(scopes, "accounts", "id, email, created_at", format!("{own}, 'seed-' || i || '@example.test', {past}"));
        insert(
            scopes,
            "api_keys",
            "id, public_id, secret_hash, account_id, scope_id, grants, created_at",
            format!("{key}, 'seed' || i, {bytes}, {own}, {own}, 'full_access', {past}"),
        );
        insert(
            scopes,
            "rate_windows",
            "api_key_id, minute_start, minute_count, day_start, day_count",
            format!("{key}, {past}, 1, {past}, 1"),
        );
        insert(
            scopes,
            "webhooks",
            "id, scope_id, url, events, status, secret, due_at, created_at, updated_at, waiting",
            format!(
                "{webhook}, {own}, 'https://8.8.8.8/', 'tunnel.started', 'enabled', {bytes}, \
                 CASE WHEN i % 5 = 0 THEN {later} END, {past}, {past}, CASE WHEN i % 5 = 0 THEN 1 ELSE 0 END"
            ),
        );
        insert(scopes, "passwords", "account_id, hash, changed_at", format!("{own}, 'none', {past}"));
        let hash = match self.engine {
            Engine::Sqlite => "CAST('seed' || i AS BLOB)",
            Engine::Postgres => "CAST('seed' || i AS BYTEA)",
        };
        insert(scopes, "links", "hash, account_id, expires_at", format!("{hash}, {own}, {later}"));
        insert(
            scopes,
            "identities",
            "issuer, subject, account_id, created_at",
            format!("'https://id.example.test', CAST(i AS TEXT), {own}, {past}"),
        );
        insert(
            scopes,
            "email_changes",
            "hash, account_id, email, expires_at",
            format!("{hash}, {own}, 'seed@example.test', {later}"),
        );
        insert(
            scopes,
            "sign_ups",
            "hash, email, expires_at",
            format!("{hash}, 'seed' || i || '@example.test', {later}"),
        );
        insert(scopes, "sign_in_tries", "what, count, last_at, expires_at", format!("{hash}, 2, {now}, {later}"));
        insert(
            scopes,
            "mails",
            "id, recipient, content, attempts, due_at, expires_at",
            format!("{}, 'seed@example.test', {bytes}, 1, {later}, {later}", self.id(19, "i")),
        );
        insert(
            scopes,
            "sign_ins",
            "id, hash, account_id, method, agent, created_at, last_seen_at, expires_at",
            format!("{}, {hash}, {own}, 'link', 'seed', {past}, {past}, {later}", self.id(15, "i")),
        );
        insert(
            scopes,
            "invitations",
            "id, hash, team_id, email, role, invited_by, created_at, expires_at",
            format!("{}, {hash}, {own}, 'seed', 'member', {own}, {past}, {later}", self.id(16, "i")),
        );
        insert(
            scopes,
            "passkeys",
            "id, account_id, credential_id, passkey, name, created_at",
            format!("{}, {own}, {hash}, '{{}}', 'seed', {past}", self.id(18, "i")),
        );
        insert(scopes, "used_challenges", "hash, expires_at", format!("{hash}, {later}"));
        insert(scopes, "totp", "account_id, secret, last_step", format!("{own}, {bytes}, 0"));
        insert(scopes, "recovery_codes", "account_id, hash", format!("{own}, {hash}"));
        insert(
            tunnels,
            "refusals",
            "request_id, at, scope_id, account_id, credential, credential_id, method, path, status, code, detail, stage, \
             faults, modules, generation, question",
            format!(
                "{}, {past} + i, {of_20}, {of_20}, 'key', {}, 'POST', '/v2/tunnels', 403, 'team_role_forbidden', '', \
                 'team-role', '[]', '[]', 0, ''",
                self.id(17, "i"),
                self.id(9, "i / 20")
            ),
        );
        insert(
            tunnels,
            "audit_log",
            "scope_id, number, at, origin, account_id, credential_id, action, details, address, previous, digest",
            format!(
                "{of_20}, i % 20 + 1, {past} + i, 'api', {of_20}, {}, 'tunnels.create', '', '', {bytes}, {bytes}",
                self.id(9, "i / 20")
            ),
        );
        insert(
            scopes,
            "device_codes",
            "hash, account_id, scope_id, expires_at",
            format!("{hash}, {own}, {own}, {later}"),
        );
        let of_2 = scope("i / 2");
        insert(
            scopes * 2,
            "devices",
            "id, scope_id, owner_id, capabilities, public_key, remote_control, consent_revision, created_at",
            format!("{}, {of_2}, {of_2}, 'tunnel', {bytes}, TRUE, 0, {past}", device("i")),
        );
        insert(
            scopes * 2,
            "device_presence",
            "device_id, epoch, host_id, boot_id, online, last_seen_at, told",
            format!(
                "{}, 1, {}, {}, i % 2 = 0, CASE WHEN i % 2 = 0 THEN {later} ELSE {past} END + i, i % 2 = 0",
                device("i"),
                node("i % 4"),
                node("i % 4")
            ),
        );
        insert(
            tunnels,
            "tunnels",
            "id, scope_id, created_by, name, protocol, local_host, local_port, remote_port, node_id, domain_id, subdomain, \
             https, basic_auth, buffer_size, pro_network, epoch, desired_device_id, created_at, updated_at",
            format!(
                "{}, {of_20}, {of_20}, 'seed-' || i, CASE i % 2 WHEN 0 THEN 'http' ELSE 'tcp' END, '127.0.0.1', 80, \
                 CASE i % 2 WHEN 0 THEN 443 ELSE 20000 + i / 4 END, {}, {domain}, \
                 CASE i % 2 WHEN 0 THEN 'seed-' || i END, i % 2 = 0, FALSE, 8192, FALSE, 1, \
                 CASE WHEN i % 10 = 0 THEN {} END, {past} + i, {past}",
                tunnel("i"),
                node("i % 4"),
                device("i / 20 * 2")
            ),
        );
        insert(
            tunnels / 2,
            "node_ports",
            "node_id, port, transport, tunnel_id",
            format!("{}, 20000 + (i * 2 + 1) / 4, 'tcp', {}", node("(i * 2 + 1) % 4"), tunnel("(i * 2 + 1)")),
        );
        insert(
            tunnels / 4,
            "extra_ports",
            "id, tunnel_id, local_port, remote_port, protocol, created_at",
            format!("{}, {}, 81, 1024, 'tcp', {past}", self.id(10, "i"), tunnel("i * 4")),
        );
        insert(
            tunnels / 4,
            "tunnel_devices",
            "tunnel_id, device_id",
            format!("{}, {}", tunnel("i * 4"), device("i / 5 * 2")),
        );
        insert(
            tunnels,
            "firewall_rules",
            "id, tunnel_id, position, rule_type, ip_address, created_at",
            format!("{}, {}, 0, 'blacklist', '192.0.2.1', {past}", self.id(11, "i"), tunnel("i")),
        );
        insert(
            tunnels / 4,
            "geoip_rules",
            "tunnel_id, country_code, position, action",
            format!("{}, 'DE', 0, 'block'", tunnel("i * 4")),
        );
        insert(
            tunnels / 10,
            "custom_domains",
            "tunnel_id, domain, status, assigned, verified_at, last_checked_at, missed, updated_at",
            format!("{}, i || '.seed.test', 'verified', TRUE, {past}, {now}, 0, {past}", tunnel("i * 10")),
        );
        insert(
            tunnels / 10,
            "certificates",
            "id, tunnel_id, name, status, issuer, due_at, failures",
            format!(
                "{}, {}, i || '.seed.test', 'issued', 'local:seed', {later}, 0",
                self.id(12, "i"),
                tunnel("i * 10")
            ),
        );
        insert(
            tunnels / 10,
            "resting_subdomains",
            "domain_id, subdomain, scope_id, until",
            format!("{domain}, 'rests-' || i, {}, {later}", scope("i / 2")),
        );
        insert(
            tunnels / 10,
            "resting_ports",
            "node_id, port, transport, scope_id, until",
            format!("{}, 20000 + i, 'udp', {}, {later}", node("0"), scope("i / 2")),
        );
        insert(
            tunnels / 100,
            "temporary_tunnels",
            "tunnel_id, device_id, check_at",
            format!("{}, {}, {later}", tunnel("i * 100"), device("i * 10")),
        );
        insert(
            tunnels * 3,
            "sessions",
            "id, tunnel_id, scope_id, device_id, node_id, epoch, boot_id, local_host, local_port, started_at, lease_until, \
             ended_at, end_reason, bytes_in, bytes_out",
            format!(
                "{session}, {}, {}, {}, {}, 1, {}, '127.0.0.1', 80, {past} + i, {later}, \
                 CASE WHEN i % 30 <> 0 THEN {past} + i END, CASE WHEN i % 30 <> 0 THEN 'stopped_api' END, 1, 1",
                tunnel("i / 3"),
                scope("i / 60"),
                device("i / 60 * 2"),
                node("i / 3 % 4"),
                node("0")
            ),
        );
        insert(
            tunnels / 10,
            "session_ports",
            "session_id, port_id, local_port",
            format!("{}, {}, 81", self.id(5, "i * 30"), self.id(10, "i")),
        );
        insert(
            tunnels / 10,
            "assignment_changes",
            "node_id, item_id, revision, changed_at",
            format!("{}, {}, i + 1, {now}", node("i * 10 % 4"), tunnel("i * 10")),
        );
        insert(
            tunnels * 3,
            "operations",
            "id, scope_id, account_id, action, status, device_id, tunnel_id, session_id, created_at, claimed_at, started_at, \
             finished_at, expires_at, due_at",
            format!(
                "{operation}, {of}, {of}, 'start', CASE WHEN i % 300 = 0 THEN 'queued' ELSE 'succeeded' END, {}, {}, NULL, \
                 {past} + i, {past}, {past}, CASE WHEN i % 300 <> 0 THEN {past} + i END, {later}, \
                 CASE WHEN i % 300 = 0 THEN {later} END",
                device("i / 60 * 2"),
                tunnel("i / 3"),
                of = scope("i / 60")
            ),
        );
        insert(
            tunnels * 3,
            "events",
            "id, scope_id, kind, body, created_at",
            format!("{event}, {}, 'tunnel.started', {bytes}, {past} + i", scope("i / 60")),
        );
        insert(
            tunnels * 3,
            "deliveries",
            "id, webhook_id, event_id, attempt, status, run_at, in_flight, lease, created_at, finished_at",
            format!(
                "{}, {}, {event}, 1, CASE WHEN i % 300 = 0 THEN 'pending' ELSE 'succeeded' END, \
                 CASE WHEN i % 300 = 0 THEN {later} ELSE {past} END, FALSE, 1, {past} + i, CASE WHEN i % 300 <> 0 THEN {past} + i END",
                self.id(13, "i"),
                self.id(8, "i / 60")
            ),
        );
        insert(
            tunnels * 5,
            "usage_days",
            "tunnel_id, day, scope_id, bytes_in, bytes_out",
            format!("{}, {today} - i % 5, {}, 1000, 1000", tunnel("i / 5"), scope("i / 100")),
        );
        insert(
            scopes * 5,
            "usage_of_scopes",
            "scope_id, day, bytes_in, bytes_out",
            format!("{}, {today} - i % 5, 20000, 20000", scope("i / 5")),
        );
        insert(
            tunnels * 10,
            "usage_hours",
            "tunnel_id, hour, scope_id, bytes_in, bytes_out",
            format!("{}, {today} * 24 - i % 10, {}, 1000, 1000", tunnel("i / 10"), scope("i / 200")),
        );
        insert(
            tunnels * 5,
            "usage_minutes",
            "tunnel_id, minute, scope_id, bytes_in, bytes_out",
            format!("{}, {today} * 1440 - i % 5, {}, 1000, 1000", tunnel("i / 5"), scope("i / 100")),
        );
        insert(
            scopes * 10,
            "usage_hours_of_scopes",
            "scope_id, hour, bytes_in, bytes_out",
            format!("{}, {today} * 24 - i % 10, 20000, 20000", scope("i / 10")),
        );
        insert(
            tunnels,
            "idempotency",
            "credential_id, key, fingerprint, status, answer, expires_at",
            format!("{}, 'seed-' || i, {bytes}, 201, {bytes}, {later}", self.id(9, "i / 20")),
        );
        insert(
            tunnels / 10,
            "traffic_batches",
            "node_id, boot_id, number, applied_at",
            format!("{}, {}, i, {now}", node("0"), node("0")),
        );
        insert(scopes / 2, "hints", "host_id, device_id", format!("{}, {}", node("i"), device("i * 4")));
        insert(
            scopes,
            "node_requests",
            "id, host_id, asked_by, node_id, kind, state, expires_at",
            format!("{}, {}, {}, {}, 'apply', 'withdrawn', {later}", self.id(20, "i"), node("i"), node("i"), node("i")),
        );
        insert(
            scopes / 10,
            "scopes",
            "id, kind, name, plan, created_at",
            format!("{}, 'team', 'seed', 'self-hosted', {past}", self.id(14, "i")),
        );
        insert(
            scopes / 5,
            "team_members",
            "team_id, account_id, role, created_at",
            format!(
                "{}, {}, CASE i % 2 WHEN 0 THEN 'owner' ELSE 'member' END, {past}",
                self.id(14, "i / 2"),
                scope("i")
            ),
        );
        if self.engine == Engine::Postgres {
            script.push_str(COUNTS);
        }
        script.push_str("COMMIT;\n");
        script
    }
}
