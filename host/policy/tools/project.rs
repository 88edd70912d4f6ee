//! Creates a new policy project: a folder with all that is needed to build it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::engine::kind::Kind;
use crate::tools::rules_project::RULES;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    Rust,
    #[value(name = "javascript", alias = "js")]
    JavaScript,
    /// Rules in CEL, which need no compiler.
    Rules,
}

#[derive(Debug, thiserror::Error)]
pub enum ProjectError {
    #[error("{}: it is there already; choose another name", .0.display())]
    Exists(PathBuf),
    #[error("`{0}` is no name for a policy; use lower-case letters, digits and hyphens, and begin with a letter")]
    Name(String),
    #[error("{path}: {problem}", path = .0.display(), problem = .1)]
    File(PathBuf, io::Error),
}

/// The files of the contract, which every project contains.
const WIT: [(&str, &str); 4] = [
    ("wit/types.wit", include_str!("../../../wit/types.wit")),
    ("wit/plan-access.wit", include_str!("../../../wit/plan-access.wit")),
    ("wit/team-role.wit", include_str!("../../../wit/team-role.wit")),
    ("wit/validation.wit", include_str!("../../../wit/validation.wit")),
];

/// The files of the SDK, which every Rust project contains.
const SDK: [(&str, &str); 11] = [
    ("sdk/Cargo.toml", include_str!("../../../policies/templates/rust/sdk.toml")),
    ("sdk/src/lib.rs", include_str!("../../../policies/sdk/src/lib.rs")),
    ("sdk/src/arena.rs", include_str!("../../../policies/sdk/src/arena.rs")),
    ("sdk/src/configured.rs", include_str!("../../../policies/sdk/src/configured.rs")),
    ("sdk/src/export.rs", include_str!("../../../policies/sdk/src/export.rs")),
    ("sdk/src/facts.rs", include_str!("../../../policies/sdk/src/facts.rs")),
    ("sdk/src/notes.rs", include_str!("../../../policies/sdk/src/notes.rs")),
    ("sdk/src/pattern.rs", include_str!("../../../policies/sdk/src/pattern.rs")),
    ("sdk/src/rate.rs", include_str!("../../../policies/sdk/src/rate.rs")),
    ("sdk/src/time.rs", include_str!("../../../policies/sdk/src/time.rs")),
    ("sdk/src/url.rs", include_str!("../../../policies/sdk/src/url.rs")),
];

/// The files that depend on the policy's kind.
struct Template {
    rust: &'static str,
    javascript: &'static str,
    schema: &'static str,
    cases: &'static str,
    rules: &'static str,
    rules_cases: &'static str,
}

macro_rules! template {
    ($kind:literal) => {
        Template {
            rust: include_str!(concat!("../../../policies/templates/rust/", $kind, ".rs")),
            javascript: include_str!(concat!("../../../policies/templates/javascript/", $kind, ".js")),
            schema: include_str!(concat!("../../../policies/templates/", $kind, ".schema.json")),
            cases: include_str!(concat!("../../../policies/templates/cases/", $kind, ".toml")),
            rules: include_str!(concat!("../../../policies/templates/rules/", $kind, ".toml")),
            rules_cases: include_str!(concat!("../../../policies/templates/rules/cases/", $kind, ".toml")),
        }
    };
}

fn template(kind: Kind) -> Template {
    match kind {
        Kind::PlanAccess => template!("plan-access"),
        Kind::TeamRole => template!("team-role"),
        Kind::Validation => template!("validation"),
    }
}

/// What the template of a kind does.
fn summary(kind: Kind, language: Language) -> &'static str {
    match (kind, language) {
        (Kind::PlanAccess, Language::Rules) => "Leaves custom domains to paid plans",
        (Kind::TeamRole, Language::Rules) => "Leaves moving tunnels to the Team's owner",
        (Kind::Validation, Language::Rules) => "Has tunnels named by team and stage",
        (Kind::PlanAccess, _) => "Keeps subdomains for the customers that they were promised to",
        (Kind::TeamRole, _) => "Leaves some actions to the Team's owner",
        (Kind::Validation, _) => "Keeps words out of the names of tunnels",
    }
}

/// Creates a project in a new folder `name` and returns the files written.
///
/// # Errors
///
/// If the name is not allowed, the folder exists, or a file cannot be written.
pub fn create(parent: &Path, name: &str, kind: Kind, language: Language) -> Result<Vec<PathBuf>, ProjectError> {
    let letters = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let begins = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
    if !begins || !name.bytes().all(letters) || name.len() > 64 {
        return Err(ProjectError::Name(name.into()));
    }
    let folder = parent.join(name);
    if folder.exists() {
        return Err(ProjectError::Exists(folder));
    }
    let mut written = Vec::new();
    for (file, text) in files(kind, language) {
        let path = folder.join(file);
        let text = text.replace("__NAME__", name).replace("__KIND__", kind.name());
        let text = text.replace("__SUMMARY__", summary(kind, language));
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text));
        made.map_err(|error| ProjectError::File(path.clone(), error))?;
        written.push(path);
    }
    Ok(written)
}

fn files(kind: Kind, language: Language) -> Vec<(&'static str, &'static str)> {
    let Template { rust, javascript, schema, cases, rules, rules_cases } = template(kind);
    let mut files = match language {
        Language::Rust => vec![
            ("Cargo.toml", include_str!("../../../policies/templates/rust/Cargo.toml")),
            ("src/lib.rs", rust),
            ("settings.schema.json", schema),
        ],
        Language::JavaScript => vec![
            ("package.json", include_str!("../../../policies/templates/javascript/package.json")),
            ("policy.js", javascript),
        ],
        Language::Rules => return vec![(RULES, rules), ("cases/first.toml", rules_cases)],
    };
    files.push(("cases/first.toml", cases));
    files.push((".gitignore", include_str!("../../../policies/templates/gitignore")));
    files.extend(WIT);
    if language == Language::Rust {
        files.extend(SDK);
    }
    files
}
