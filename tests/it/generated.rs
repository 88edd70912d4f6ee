//! Pages that are made from the code: each equals what is generated.
//!
//! `UPDATE_PAGES=1 cargo test --test it generated` writes them anew.

use std::collections::{BTreeMap, BTreeSet};

use culvert_domain::error::Code;
use culvert_domain::event::EventKind;
use culvert_domain::string_enum::StringEnum;

/// The environment variable that has a page written instead of compared.
const UPDATE: &str = "UPDATE_PAGES";

fn compare(path: &str, generated: &str) {
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(path, generated).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(page == generated, "{path} is not what is generated; {UPDATE}=1 writes it anew");
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
    let endpoints = culvert::http::routes::table().iter().map(|row| format!("{} {}", row.method, row.path)).collect();
    let codes = Code::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    let events = EventKind::ALL.iter().map(|kind| kind.to_string()).collect();
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
