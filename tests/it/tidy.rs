//! Rules of the code (CONTRIBUTING.md, "Rules of the code") that neither the compiler nor clippy can check.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;

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

/// In the root package: the other crates cannot name what `crates.rs` does not allow them.
#[test]
fn web_framework_is_used_only_where_something_is_served() {
    let serving =
        ["host/http", "host/gateway", "host/dashboard", "host/admin", "host/app", "host/cli/serve", "host/cli/dev"];
    assert_eq!(strangers("salvo", &serving), Vec::<PathBuf>::new());
}

#[test]
fn error_code_status_mapping_exists_in_one_file() {
    let knowing: Vec<_> =
        files("host/http").into_iter().filter(|path| code(path).contains("StatusCode::CONFLICT")).collect();
    assert_eq!(knowing, [PathBuf::from("host/http/problem.rs")]);
}

/// The composition root, the operator's commands and the listeners call use cases for what they change.
#[test]
fn only_use_cases_begin_transactions() {
    let begins = Regex::new(r"\.write\(\s*(None|Some)\b").unwrap();
    let begun: Vec<_> = files("host").into_iter().filter(|path| begins.is_match(&code(path))).collect();
    let others: Vec<_> =
        begun.iter().filter(|path| !path.starts_with("host/service") && !path.starts_with("host/store")).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(begun.contains(&PathBuf::from("host/service/api_keys.rs")), "transactions are begun in another way now");
}

/// What serves requests, agents or time has a context of its own.
#[test]
fn app_is_named_in_the_composition_root_and_commands_only() {
    assert_eq!(strangers("App", &["host/app", "host/cli"]), Vec::<PathBuf>::new());
}

/// Other crates call use cases and reach nothing else. A tenth field needs a reason beside this number. The ninth is where
/// the host stands among others: use cases refuse outside of its window.
#[test]
fn service_has_at_most_nine_private_fields() {
    let text = code(Path::new("host/service/lib.rs"));
    let (_, fields) = text.split_once("pub struct Service {").unwrap();
    let fields: Vec<&str> =
        fields.split_once('}').unwrap().0.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    assert!(fields.len() <= 9 && fields.iter().all(|field| !field.starts_with("pub")), "{fields:#?}");
}

/// The files of a folder whose code has a match.
fn matching(folder: &str, expression: &str) -> Vec<PathBuf> {
    let expression = Regex::new(expression).unwrap();
    files(folder).into_iter().filter(|path| expression.is_match(&code(path))).collect()
}

#[test]
fn one_file_writes_events_and_one_advances_operations() {
    let of = |method: &str| matching("host", &format!(r"\b{method}\("));
    let paths = |paths: [&str; 2]| paths.map(PathBuf::from).to_vec();
    assert_eq!(of("insert_event"), paths(["host/service/events.rs", "host/store/outbox.rs"]));
    assert_eq!(of("compare_and_set_operation"), paths(["host/service/operations.rs", "host/store/operations.rs"]));
}

/// Errors are logged where they leave the process, not where they are made.
#[test]
fn domain_does_not_log() {
    assert_eq!(matching("host/domain", r"\btracing\b"), Vec::<PathBuf>::new());
}

/// A file that is longer holds more than one noun.
#[test]
fn source_files_are_short() {
    let mut lengths: Vec<(usize, PathBuf)> = Vec::new();
    for path in ["host", "agent"].into_iter().flat_map(files) {
        lengths.push((std::fs::read_to_string(&path).unwrap().lines().count(), path));
    }
    lengths.sort();
    let (longest, p90) = (lengths.last().unwrap(), &lengths[lengths.len() * 9 / 10]);
    assert!(longest.0 <= 500, "{longest:?}");
    assert!(p90.0 <= 300, "{p90:?}");
}

/// House style: every file begins with what it is, none is an attic.
#[test]
fn source_files_have_module_docs_and_specific_names() {
    for path in ["host", "agent", "tests/macros", "policies/sdk/src", "tests/it"].into_iter().flat_map(files) {
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
fn source_files_contain_no_todo_markers() {
    for path in ["host", "agent", "tests/macros", "policies", "tests/it"].into_iter().flat_map(files) {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:"), concat!("HA", "CK")] {
            assert!(!text.contains(word), "{} holds a {word}", path.display());
        }
    }
}

/// Tests wait for events, never for time.
/// Languages that are written from the right would need another sheet.
#[test]
fn style_sheets_name_no_side() {
    let sheet = std::fs::read_to_string("host/dashboard/assets/dashboard.css").unwrap();
    for word in ["left", "right"] {
        assert!(!names(&sheet, word), "{word}");
    }
    let sides = Regex::new(r"(?:margin|padding): ([^ ;]+) ([^ ;]+) ([^ ;]+) ([^ ;]+);").unwrap();
    for found in sides.captures_iter(&sheet) {
        assert_eq!(&found[2], &found[4], "{}: one side is another", &found[0]);
    }
}

#[test]
fn tests_do_not_sleep_and_are_not_ignored() {
    for path in files("tests/it") {
        let code = code(&path);
        for word in [concat!("time::", "sleep"), concat!("thread::", "sleep"), concat!("#[", "ignore")] {
            assert!(!code.contains(word), "{} uses {word}", path.display());
        }
    }
}

/// Each line of `retired_names.txt` is a folder, a regular expression and, behind an arrow, the present name.
#[test]
fn retired_names_are_not_used() {
    let list = std::fs::read_to_string("tests/it/retired_names.txt").unwrap();
    let rules: Vec<(&str, Regex, &str)> = list
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (rule, present) = line.split_once(" -> ").unwrap_or_else(|| panic!("no arrow: {line}"));
            let (folder, expression) = rule.split_once(' ').unwrap();
            (folder, Regex::new(expression).unwrap(), present)
        })
        .collect();
    assert!(rules.len() >= 60, "the list only grows");
    let mut used = Vec::new();
    for path in ["host", "agent", "tests/it"].into_iter().flat_map(files) {
        let text = code(&path);
        for (folder, expression, present) in rules.iter().filter(|(folder, ..)| path.starts_with(folder)) {
            for found in expression.find_iter(&text) {
                used.push(format!("{} in {}: {folder} has {present}", found.as_str(), path.display()));
            }
        }
    }
    assert!(used.is_empty(), "{}", used.join("\n"));
}

/// The modules of a crate by their paths (`gate::tunnels`; the root is empty), and which of them each imports. Unit
/// tests do not count.
fn imports(root: &str) -> BTreeMap<String, BTreeSet<String>> {
    let module = |path: &Path| {
        let name = path.strip_prefix(root).unwrap().with_extension("").to_str().unwrap().replace('/', "::");
        if name == "lib" || name == "main" { String::new() } else { name }
    };
    let paths = files(root);
    let modules: BTreeSet<String> = paths.iter().map(|path| module(path)).collect();
    let import = Regex::new(r"use (crate|super|self)((?:::\w+)*)(?:::\{([^;]*)\})?").unwrap();
    let first = Regex::new(r"(?:^|,)\s*(\w+)").unwrap();
    let mut found = BTreeMap::new();
    for path in &paths {
        let (from, text) = (module(path), code(path));
        let text = text.split("#[cfg(test)]").next().unwrap().replace('\n', " ");
        let own: Vec<&str> = from.split("::").filter(|part| !part.is_empty()).collect();
        let targets: &mut BTreeSet<String> = found.entry(from.clone()).or_default();
        for used in import.captures_iter(&text) {
            let base = match &used[1] {
                "crate" => &[][..],
                "super" => &own[..own.len().saturating_sub(1)],
                _ => &own[..],
            };
            let path: Vec<&str> =
                base.iter().copied().chain(used[2].split("::").filter(|part| !part.is_empty())).collect();
            let group = used.get(3).map_or("", |group| group.as_str());
            let members =
                first.captures_iter(group).map(|member| [&path[..], &[member.get(1).unwrap().as_str()]].concat());
            for candidate in std::iter::once(path.clone()).chain(members) {
                let names = (1..=candidate.len()).rev().map(|length| candidate[..length].join("::"));
                targets.extend(names.into_iter().find(|name| modules.contains(name) && *name != from));
            }
        }
    }
    found
}

/// A cycle means that its modules cannot be understood one at a time.
#[test]
fn modules_of_a_crate_import_each_other_in_one_direction() {
    let crates =
        ["domain", "api-types", "policy", "store", "webhook", "node", "service", "gateway", "http", "dashboard"];
    let roots = crates.iter().map(|name| format!("host/{name}")).chain(["agent/src".into(), "agent/wire".into()]);
    for root in roots {
        let mut left = imports(&root);
        assert!(left.len() > 3, "{root} has more modules");
        // Whoever imports nothing that is left is in no cycle.
        while let Some(free) = {
            let known: BTreeSet<&String> = left.keys().collect();
            left.iter()
                .find(|(_, targets)| targets.iter().all(|target| !known.contains(target)))
                .map(|(name, _)| name.clone())
        } {
            left.remove(&free);
        }
        assert!(left.is_empty(), "{root} has a cycle among {left:#?}");
    }
}
