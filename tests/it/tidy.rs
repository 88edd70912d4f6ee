//! The invariants of the house (README, "Invariants"), kept by looking at it.

use std::path::{Path, PathBuf};

use culvert::domain::event::EventKind;
use culvert::domain::word::Word;
use culvert::error::Code;

fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The code of a file, without its comments.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

fn names(text: &str, word: &str) -> bool {
    let boundary = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
    text.match_indices(word)
        .any(|(at, _)| boundary(text[..at].chars().next_back()) && boundary(text[at + word.len()..].chars().next()))
}

/// Files of the host outside of these places that name a crate.
fn strangers(word: &str, places: &[&str]) -> Vec<PathBuf> {
    let allowed =
        |path: &Path| places.iter().any(|place| path.starts_with(place) || path == Path::new(&format!("{place}.rs")));
    files("host").into_iter().filter(|path| !allowed(path) && names(&code(path), word)).collect()
}

#[test]
fn each_framework_is_named_in_its_own_rooms() {
    let http =
        ["host/http", "host/gateway", "host/admin", "host/dashboard", "host/app", "host/cli/serve", "host/cli/dev"];
    assert_eq!(strangers("salvo", &http), Vec::<PathBuf>::new());
    assert_eq!(strangers("sqlx", &["host/store"]), Vec::<PathBuf>::new());
    assert_eq!(strangers("wasmtime", &["host/policy"]), Vec::<PathBuf>::new());
    assert_eq!(strangers("hickory_resolver", &["host/dns"]), Vec::<PathBuf>::new());
    assert_eq!(strangers("maxminddb", &["host/node/countries"]), Vec::<PathBuf>::new());
}

#[test]
fn only_one_file_knows_the_status_of_a_code() {
    let knowing: Vec<_> =
        files("host/http").into_iter().filter(|path| code(path).contains("StatusCode::CONFLICT")).collect();
    assert_eq!(knowing, [PathBuf::from("host/http/problem.rs")]);
}

#[test]
fn the_domain_knows_nobody() {
    for path in files("host/domain") {
        let code = code(&path);
        for word in ["tokio", "reqwest", "crate::store", "crate::http", "crate::gate", "crate::policy", "crate::node"] {
            assert!(!code.contains(word), "{} names {word}", path.display());
        }
    }
}

/// A `Permit` has private fields, so the compiler sees to it that only the gate makes one; what is
/// left to see to is that nobody writes without.
#[test]
fn changes_on_behalf_of_callers_are_written_with_a_permit() {
    for path in files("host/http").into_iter().filter(|path| !path.starts_with("host/http/hoop")) {
        assert!(!code(&path).contains(".write("), "{} writes without a permit", path.display());
    }
}

#[test]
fn agent_and_policies_stay_small() {
    let manifest = std::fs::read_to_string("agent/Cargo.toml").unwrap();
    for heavy in ["salvo", "sqlx", "wasmtime"] {
        assert!(!manifest.contains(heavy), "the agent depends on {heavy}");
    }
}

/// House style: every file begins with what it is, none is an attic.
#[test]
fn files_say_what_they_are() {
    for path in ["host", "agent/src", "policies/sdk/src", "tests/it"].into_iter().flat_map(files) {
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("//! "), "{} does not say what it is", path.display());
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            !["mod", "util", "utils", "common", "helpers", "types", "core", "misc"].contains(&name),
            "{}",
            path.display()
        );
    }
}

#[test]
fn nothing_is_left_for_later() {
    for path in ["host", "agent/src", "policies", "tests/it"].into_iter().flat_map(files) {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("HA", "CK")] {
            assert!(!text.contains(word), "{} holds a {word}", path.display());
        }
    }
}

/// The README's table from the specification to its tests has every row, and every test in it exists.
#[test]
fn everything_that_is_specified_names_its_test() {
    let readme = std::fs::read_to_string("README.md").unwrap();
    let table = readme.split("<summary>The table</summary>").nth(1).unwrap().split("</details>").next().unwrap();
    let rows: Vec<(&str, &str)> =
        table.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")).collect();
    let endpoints = culvert::http::routes::table().iter().map(|row| format!("`{} {}`", row.method, row.path)).collect();
    let codes = Code::ALL.iter().map(|code| format!("`{}`", code.as_str())).collect();
    let events = EventKind::ALL.iter().map(|kind| format!("`{kind}`")).collect();
    for expected in <[Vec<String>; 3]>::into_iter([endpoints, codes, events]).flatten() {
        assert!(rows.iter().any(|(what, _)| *what == expected), "{expected} has no row");
    }
    for (what, tests) in rows.iter().filter(|(_, tests)| tests.contains("::")) {
        for test in tests.split(", ") {
            let (file, name) = test.trim_matches('`').split_once("::").unwrap();
            let code = std::fs::read_to_string(format!("tests/it/{file}.rs")).unwrap_or_default();
            assert!(code.contains(&format!("fn {name}(")), "{what}: there is no test {test}");
        }
    }
}

/// Tests wait for events, never for time.
#[test]
fn no_test_sleeps() {
    for path in files("tests/it") {
        let code = code(&path);
        for word in [concat!("time::", "sleep"), concat!("thread::", "sleep"), concat!("#[", "ignore")] {
            assert!(!code.contains(word), "{} uses {word}", path.display());
        }
    }
}
