//! The documentation: every page is served, and every link leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use culvert_http::book::{PAGES, render};
use regex::Regex;

use crate::support::host::{Engine, TestHost};

/// The Markdown files that people read, in the repository.
fn sources() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "policies/README.md"].map(PathBuf::from).into();
    found.push("tests/bench/README.md".into());
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

fn anchors(page: &str) -> BTreeSet<String> {
    let id = Regex::new(r#"id="([^"]+)""#).unwrap();
    id.captures_iter(page).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_page_of_the_book_is_embedded() {
    let embedded: BTreeSet<String> = PAGES.iter().map(culvert_http::book::Page::path).collect();
    for source in sources().iter().filter(|source| source.starts_with("docs") && !source.ends_with("errors.md")) {
        let path = source.with_extension("");
        let path = if path.ends_with("docs/README") { "docs/book".into() } else { path.display().to_string() };
        assert!(embedded.contains(&path), "{} is not in book.rs", source.display());
    }
}

#[test]
fn pages_are_at_most_300_lines_and_readme_150() {
    for source in sources().iter().filter(|source| !source.starts_with("policies")) {
        let lines = std::fs::read_to_string(source).unwrap().lines().count();
        let most = if source == Path::new("README.md") { 150 } else { 300 };
        assert!(lines <= most, "{} has {lines} lines", source.display());
    }
}

/// Links within the repository: the file is there, and the heading in it.
#[test]
fn repository_links_resolve() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let fences = Regex::new(r"(?s)```.*?```").unwrap();
    let mut broken = Vec::new();
    for source in sources() {
        let text = std::fs::read_to_string(&source).unwrap();
        for found in link.captures_iter(&fences.replace_all(&text, "")) {
            let target = &found[1];
            if target.contains("://") || target.starts_with("mailto:") || target.starts_with('/') {
                continue;
            }
            let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { source.clone() } else { source.parent().unwrap().join(file) };
            if !path.exists() {
                broken.push(format!("{}: {target}", source.display()));
            } else if !fragment.is_empty() {
                let page = render("", &std::fs::read_to_string(&path).unwrap());
                if !anchors(&page).contains(fragment) {
                    broken.push(format!("{}: {target}: no such heading", source.display()));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[tokio::test]
async fn every_page_is_served_and_its_links_resolve() {
    let host = TestHost::start(Engine::Sqlite).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let link = Regex::new(r##"href="(/docs[^"#]*)(?:#([^"]*))?""##).unwrap();
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    let mut open: Vec<String> = PAGES.iter().map(|page| format!("/{}", page.path())).collect();
    let mut links = Vec::new();
    while let Some(path) = open.pop() {
        if pages.contains_key(&path) {
            continue;
        }
        let response = client.get(format!("{}{path}", host.url())).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        let page = response.text().await.unwrap();
        for found in link.captures_iter(&page) {
            open.push(found[1].to_owned());
            if let Some(fragment) = found.get(2) {
                links.push((path.clone(), found[1].to_owned(), fragment.as_str().to_owned()));
            }
        }
        pages.insert(path, page);
    }
    assert!(pages.len() > PAGES.len());
    let broken: Vec<_> = links.iter().filter(|(_, target, id)| !anchors(&pages[target]).contains(id)).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

/// An optional field of a tunnel is in eight files, and in those that act on it while the tunnel runs. The page names
/// all of them. A ninth makes a column more work than it is meant to be.
#[test]
fn added_tunnel_column_changes_eight_files() {
    let page = std::fs::read_to_string("docs/develop/add-a-column.md").unwrap();
    let (definition, runtime) = page.split_once("## Where it acts").unwrap();
    let mut folders = vec![PathBuf::from("host"), PathBuf::from("migrations")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "sql")
                && std::fs::read_to_string(&path).unwrap().contains("idle_timeout")
            {
                found.push(path);
            }
        }
    }
    let named = |page: &str, path: &Path| {
        let migration = path.starts_with("migrations") && page.contains("migrations/sqlite");
        migration || page.contains(&format!("`{}`", path.strip_prefix("host").unwrap_or(path).display()))
    };
    let (defining, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|path| named(definition, path));
    let unnamed: Vec<_> = others.iter().filter(|path| !named(runtime, path)).collect();
    assert!(unnamed.is_empty(), "the page does not name {unnamed:?}");
    assert_eq!(defining.len(), 8, "{defining:#?}");
}
