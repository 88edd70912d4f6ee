//! Pages that are made from the code: each equals what is generated.
//!
//! `UPDATE_PAGES=1 cargo test --test it generated` writes them anew.

use std::collections::{BTreeMap, BTreeSet};

use culvert::config::Config;
use culvert_domain::error::Code;
use culvert_domain::event::EventKind;
use culvert_domain::policy_fact::PolicyFact;
use culvert_domain::string_enum::StringEnum;
use culvert_http::problem;
use regex::Regex;
use serde_json::Value;

use crate::support::host::{Engine, TestHost};

/// The environment variable that has a page written instead of compared.
const UPDATE: &str = "UPDATE_PAGES";

fn compare(path: &str, generated: &str) {
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, generated).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == generated, "{path} is not what is generated; {UPDATE}=1 writes it anew");
}

/// Compares the lines of a file that begin with a prefix, the first ones behind a marker, with generated ones.
fn compare_lines(path: &str, marker: &str, prefix: &str, generated: &[String]) {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let marked = lines.iter().position(|line| line.contains(marker)).unwrap_or_else(|| panic!("{path}: no {marker}"));
    let first = marked + lines[marked..].iter().position(|line| line.starts_with(prefix)).unwrap();
    let count = lines[first..].iter().take_while(|line| line.starts_with(prefix)).count();
    let before = lines[..first].iter().map(ToString::to_string);
    let after = lines[first + count..].iter().map(ToString::to_string);
    let all: Vec<String> = before.chain(generated.iter().cloned()).chain(after).collect();
    compare(path, &(all.join("\n") + "\n"));
}

#[test]
fn facts_for_policies_are_listed_in_contract_sdk_and_guide() {
    let listed = |line: fn(&str, &str, &str) -> String| -> Vec<String> {
        PolicyFact::ALL.iter().map(|fact| line(fact.as_str(), fact.meaning().0, fact.meaning().1)).collect()
    };
    compare_lines(
        "wit/types.wit",
        "Names and types",
        "  /// - `",
        &listed(|name, json, about| format!("  /// - `{name}`: {json}; {about}")),
    );
    compare_lines(
        "policies/README.md",
        "| fact | JSON |",
        "| `",
        &listed(|name, json, about| format!("| `{name}` | {json} | {about} |")),
    );
    let sdk = std::fs::read_to_string("policies/sdk/src/facts.rs").unwrap();
    for fact in PolicyFact::ALL {
        assert!(sdk.contains(&format!("= \"{fact}\",")), "the SDK has no constant for {fact}");
    }
}

/// What tests say that they cover: the lines `/// covers: <what>` above a test, by what is covered.
fn covered() -> BTreeMap<String, BTreeSet<String>> {
    let mut covered: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in std::fs::read_dir("tests/it").unwrap() {
        let path = file.unwrap().path();
        let Some(module) = path.to_str().and_then(|path| path.strip_prefix("tests/it/")?.strip_suffix(".rs")) else {
            continue;
        };
        let mut pending = Vec::new();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if let Some(what) = line.trim().strip_prefix("/// covers: ") {
                pending.push(what.to_owned());
            } else if let Some((_, function)) = line.split_once("fn ") {
                let name = function.split('(').next().unwrap();
                for what in pending.drain(..) {
                    covered.entry(what).or_default().insert(format!("`{module}::{name}`"));
                }
            }
        }
    }
    covered
}

#[test]
fn coverage_page_lists_every_endpoint_code_and_event() {
    let mut covered = covered();
    let endpoints = culvert_http::routes::table().iter().map(|row| format!("{} {}", row.method, row.path)).collect();
    let codes = Code::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    let events = EventKind::ALL.iter().map(ToString::to_string).collect();
    let mut page = String::from(
        "# What the tests cover\n\nGenerated from the `/// covers:` lines above the tests. \
         `authorization::every_route_enforces_role_and_ownership` asks every endpoint in every role, `bad_input` \
         every body, `tests/contract` the whole API.\n",
    );
    let parts: [(&str, Vec<String>); 3] = [("Endpoints", endpoints), ("Codes", codes), ("Events", events)];
    for (title, expected) in parts {
        page += &format!("\n## {title}\n\n| | tests |\n|---|---|\n");
        for what in expected {
            let tests = covered.remove(&what).unwrap_or_else(|| panic!("no test says `/// covers: {what}`"));
            page += &format!("| `{what}` | {} |\n", Vec::from_iter(tests).join(", "));
        }
    }
    page += "\n## Limits and delivery\n\n| | tests |\n|---|---|\n";
    for (what, tests) in covered {
        page += &format!("| {what} | {} |\n", Vec::from_iter(tests).join(", "));
    }
    compare("tests/it/coverage.md", &page);
}

/// A field of a settings structure, as the source has it.
struct Field {
    name: String,
    kind: String,
    about: String,
}

/// The structures of a source file, with their public fields and doc comments.
fn structures(path: &str) -> BTreeMap<String, Vec<Field>> {
    let source = std::fs::read_to_string(path).unwrap();
    let (mut structures, mut current, mut about) = (BTreeMap::<String, Vec<Field>>::new(), None, Vec::new());
    for line in source.lines() {
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
            current = Some(name.to_owned());
            about.clear();
        } else if line == "}" {
            current = None;
        } else if let Some(text) = line.trim().strip_prefix("/// ") {
            about.push(text.to_owned());
        } else if line.contains("#[serde(skip)]") {
            about = vec!["(skipped)".into()];
        } else if let (Some(structure), Some(field)) = (&current, line.strip_prefix("    pub ")) {
            let (name, kind) = field.trim_end_matches(',').split_once(": ").unwrap();
            let about = std::mem::take(&mut about).join(" ");
            if !about.contains("(skipped)") {
                let field = Field { name: name.into(), kind: kind.into(), about };
                structures.entry(structure.clone()).or_default().push(field);
            }
        }
    }
    structures
}

/// A default as the page shows it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::Array(items) if items.is_empty() => "none".into(),
        Value::String(text) => format!("`{text}`"),
        other => format!("`{other}`"),
    }
}

/// Rows of a structure: `name`, default, meaning. A nested structure gives rows with its own name before them.
fn rows(prefix: &str, structure: &str, defaults: &Value, structures: &BTreeMap<String, Vec<Field>>, page: &mut String) {
    for Field { name, kind, about } in &structures[structure] {
        let (path, default) = (format!("{prefix}{name}"), &defaults[name.as_str()]);
        if structures.contains_key(kind) {
            rows(&format!("{path}."), kind, default, structures, page);
            continue;
        }
        assert!(!about.is_empty(), "the setting {path} has no doc comment");
        let (about, default) = match about.split_once(" (default: ") {
            Some((before, rest)) => {
                let (default, after) = rest.split_once(')').unwrap();
                (format!("{before}{after}"), default.to_owned())
            }
            None => (about.clone(), shown(default)),
        };
        *page += &format!("| `{path}` | {default} | {about} |\n");
    }
}

#[test]
fn settings_page_equals_configuration() {
    let mut structures = structures("host/config.rs");
    structures.extend(self::structures("host/config/node.rs"));
    structures.extend(self::structures("host/config/certificates.rs"));
    structures.extend(self::structures("host/config/dashboard.rs"));
    structures.extend(self::structures("host/config/database.rs"));
    structures.extend(self::structures("host/config/drain.rs"));
    structures.extend(self::structures("host/config/mail.rs"));
    structures.extend(
        self::structures("host/policy/serve/records.rs").into_iter().filter(|(name, _)| name == "RecordsConfig"),
    );
    let defaults = serde_json::to_value(Config::default()).unwrap();
    let mut page = String::from(
        "# Settings\n\nGenerated from the configuration's own types.\n\nDefaults, then `culvert.toml` (or `--config FILE`), \
         then the environment: `CULVERT_NODE__HOSTNAME` is `node.hostname`. A setting that is wrong is one line that names \
         it, and exit code 2.\n\n| Setting | Default | Meaning |\n|---|---|---|\n",
    );
    rows("", "Config", &defaults, &structures, &mut page);
    compare("docs/operate/settings.md", &page);
}

#[test]
fn errors_page_lists_every_code() {
    let mut page = String::from(
        "# Error codes\n\nGenerated from the code. Every error is a problem record (RFC 9457, \
         `application/problem+json`); clients branch on `code`. A policy may bring codes of its own, with status 403; \
         `/docs/errors` of a host lists them as well.\n\n| Code | Status | Meaning | What to do |\n|---|---|---|---|\n",
    );
    for code in Code::ALL {
        let status = problem::status(code).as_u16();
        page += &format!("| `{}` | {status} | {} | {} |\n", code.as_str(), code.title(), code.explanation());
    }
    compare("docs/api/errors.md", &page);
}

/// Metrics as the sources register them.
fn metrics() -> Vec<(String, String)> {
    let registration = Regex::new(r#"\.register(?:_with_unit)?\(\s*"(\w+)",\s*"([^"]+)",\s*(?:Unit::(\w+))?"#).unwrap();
    let sources = [
        ("culvert_", "host/service/metrics.rs"),
        ("culvert_", "host/service/metrics/nodes.rs"),
        ("culvert_", "host/service/metrics/fleet.rs"),
        ("culvert_", "host/node/bounds.rs"),
        ("culvert_policy_", "host/policy/serve/metrics.rs"),
    ];
    let mut metrics = Vec::new();
    for (prefix, path) in sources {
        for found in registration.captures_iter(&std::fs::read_to_string(path).unwrap()) {
            let unit = found.get(3).map(|unit| format!("_{}", unit.as_str().to_lowercase())).unwrap_or_default();
            metrics.push((format!("{prefix}{}{unit}", &found[1]), found[2].to_owned()));
        }
    }
    metrics.sort();
    metrics
}

#[tokio::test]
async fn metrics_page_lists_every_metric() {
    let metrics = metrics();
    let mut page = String::from(
        "# Metrics\n\nGenerated from the code. `/metrics` on `admin_listen` serves them in the text format of OpenMetrics \
         1.0; a counter's samples end in `_total`, a histogram's in `_bucket`, `_sum` and `_count`.\n\n\
         | Metric | Meaning |\n|---|---|\n",
    );
    for (name, about) in &metrics {
        page += &format!("| `{name}` | {about} |\n");
    }
    compare("docs/operate/metrics.md", &page);

    let host = TestHost::start(Engine::Sqlite).await;
    let served = host.metrics().await;
    for line in served.lines().filter_map(|line| line.strip_prefix("# HELP ")) {
        let (name, _) = line.split_once(' ').unwrap();
        assert!(metrics.iter().any(|(known, _)| known == name), "{name} is served and not on the page");
    }
}
