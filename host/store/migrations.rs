//! The schema's migrations, one list for both engines.
//!
//! `sqlx::migrate!` would embed the files as well, but its macro compiles both drivers a second time, for
//! the build machine. The checksums are the same, so a database that was made with the macro opens.

use std::borrow::Cow;
use std::sync::LazyLock;

use sqlx::SqlSafeStr;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// A file of `migrations/`: its number, its name, and its text for each engine.
struct File {
    version: i64,
    name: &'static str,
    sqlite: &'static str,
    postgres: &'static str,
}

macro_rules! files {
    ($($version:literal $name:literal)*) => {
        &[$(File {
            version: $version,
            name: $name,
            sqlite: include_str!(concat!("../../migrations/sqlite/", $name, ".sql")),
            postgres: include_str!(concat!("../../migrations/postgres/", $name, ".sql")),
        }),*]
    };
}

const FILES: &[File] = files! {
    1 "0001_tenancy"
    2 "0002_keys"
    3 "0003_catalog"
    4 "0004_devices"
    5 "0005_tunnels"
    6 "0006_operations"
    7 "0007_webhooks"
    8 "0008_reach"
    9 "0009_targets"
    10 "0010_bounds"
    11 "0011_nodes"
    12 "0012_names"
    13 "0013_http"
    14 "0014_certificates"
    15 "0015_device_commands"
    16 "0016_http_services"
    17 "0017_local_services"
    18 "0018_certificates_by_status"
    19 "0019_growth"
    20 "0020_liveness"
    21 "0021_certificate_counts"
    22 "0022_certificate_count_parts"
    23 "0023_people"
    24 "0024_ended_keys"
    25 "0025_teams"
    26 "0026_refusals"
    27 "0027_second_factors"
    28 "0028_audit_log"
    29 "0029_resent_deliveries"
    30 "0030_passkeys"
    31 "0031_operator_pages"
    32 "0032_mails"
    33 "0033_locked_accounts"
    34 "0034_email_changes"
    35 "0035_identities"
    36 "0036_usage_hours"
    37 "0037_sign_ups"
    38 "0038_audit_of_commands"
    39 "0039_proved_addresses"
    40 "0040_own_audit_entries"
    41 "0041_hosts"
    42 "0042_hints"
    43 "0043_node_hosts"
    44 "0044_node_requests"
    45 "0045_host_agent_urls"
    46 "0046_node_authority"
    47 "0047_counting"
    48 "0048_policy_generations"
    49 "0049_rolling_upgrades"
    50 "0050_local_roots"
    51 "0051_usage_minutes"
    52 "0052_sign_in_tries"
    53 "0053_host_settings"
    54 "0054_policy_trials"
    55 "0055_former_answers"
};

pub static SQLITE: LazyLock<Migrator> = LazyLock::new(|| migrator(|file| file.sqlite));
pub static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| migrator(|file| file.postgres));

/// The number of the newest migration that this program knows.
pub fn newest() -> i64 {
    FILES.last().map_or(0, |file| file.version)
}

/// The files' names, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|file| file.name)
}

fn migrator(text: impl Fn(&File) -> &'static str) -> Migrator {
    let migration = |file: &File| {
        let description = file.name.split_once('_').map_or(file.name, |(_, rest)| rest);
        let sql = text(file).into_sql_str();
        Migration::new(file.version, Cow::Borrowed(description), MigrationType::Simple, sql, false)
    };
    let mut migrator = Migrator::with_migrations(FILES.iter().map(migration).collect());
    // A newer version may have migrated the database, which this one can work with.
    migrator.set_ignore_missing(true);
    migrator
}
