//! The documentation: every page is served, and every link leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use culvert_dashboard::docs::book::{PAGES, PICTURES, render};
use regex::Regex;

use crate::support::host::{Engine, TestHost};
use crate::support::tab::Tab;

/// The Markdown files that people read, in the repository.
fn sources() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "policies/README.md"].map(PathBuf::from).into();
    found.push("tests/bench/README.md".into());
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_page = path.extension().is_some_and(|end| end == "md");
            if path.is_dir() {
                folders.push(path);
            } else if is_page {
                found.push(path);
            }
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
    let embedded: BTreeSet<String> = PAGES.iter().map(culvert_dashboard::docs::book::Page::path).collect();
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
    let picture = Regex::new(r#"<img src="([^"]+)" alt="[^"]+""#).unwrap();
    let shown: BTreeSet<&str> = pages
        .values()
        .flat_map(|page| picture.captures_iter(page))
        .map(|found| found.get(1).unwrap().as_str())
        .collect();
    let kept: BTreeSet<String> = PICTURES.iter().map(|(name, _)| format!("/docs/pictures/{name}")).collect();
    assert_eq!(shown, kept.iter().map(String::as_str).collect(), "each picture is shown");
    for path in shown {
        let answer = client.get(format!("{}{path}", host.url())).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["content-type"]),
            (200, &"image/webp".parse().unwrap()),
            "{path}"
        );
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

/// The pages of the documentation have the frame and the headers of the dashboard, and nothing inline.
#[tokio::test]
async fn documentation_has_the_frame_and_the_headers_of_the_dashboard() {
    let host = TestHost::start(Engine::Sqlite).await;
    for path in ["/docs", "/docs/errors", "/docs/policies", "/docs/book", "/docs/search?q=backup"] {
        let page = Tab::open(&host).get(path).await;
        assert_eq!(page.status, 200, "{path}");
        let text = &page.text;
        assert!(text.matches("<h1").count() == 1 && text.contains("id=\"content\""), "{path}");
        for inline in [" style=", "<style", "<script>"] {
            assert!(!text.contains(inline), "{path}: {inline}");
        }
        let csp = page.headers["content-security-policy"].to_str().unwrap();
        assert!(csp.contains("default-src 'none'") && !csp.contains("unsafe"), "{path}: {csp}");
    }
}

#[tokio::test]
async fn search_of_the_documentation_leads_to_sections() {
    let host = TestHost::start(Engine::Sqlite).await;
    let mut tab = Tab::open(&host);
    for (question, href) in [
        ("device_offline", "/docs/errors#device_offline"),
        ("outcome_unknown", "/docs/errors#operation-outcome_unknown"),
        ("secret_key_file", "/docs/operate/backup#"),
        ("POST+tunnels", "/docs#tunnels_create"),
        ("idempot", "/docs/api/idempotency#"),
    ] {
        let page = tab.get(&format!("/docs/search?q={question}")).await;
        assert!(page.text.contains(&format!("href=\"{href}")), "{question}: {}", page.text);
    }
    let hostile = tab.get("/docs/search?q=%3Cimg%20src%3Dx%3E%22").await;
    assert!(hostile.status == 200 && !hostile.text.contains("<img"), "{}", hostile.text);
    let long = tab.get(&format!("/docs/search?q={}", "a".repeat(5000))).await;
    assert!(long.status == 200 && !long.text.contains(&"a".repeat(101)));
}

/// The samples of the reference, by their language.
fn samples(page: &str, language: &str) -> Vec<String> {
    let begin = format!("<summary>{language}</summary>");
    let code = |part: &str| {
        let code = part.split("<code>").nth(1).unwrap().split("</code>").next().unwrap();
        code.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    };
    page.split(&begin).skip(1).map(code).collect()
}

/// Each sample is a program of its language.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_of_the_reference_are_programs() {
    let host = TestHost::start(Engine::Sqlite).await;
    let page = Tab::open(&host).get("/docs").await.text;
    let folder = tempfile::tempdir().unwrap();
    for (language, name, program, options) in [
        ("curl", "sample.sh", "bash", vec!["-n"]),
        ("Python", "sample.py", "python3", vec!["-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())"]),
        ("TypeScript", "sample.mjs", "node", vec!["--check"]),
    ] {
        let samples = samples(&page, language);
        assert_eq!(samples.len(), culvert_http::routes::table().len(), "{language}");
        let file = folder.path().join(name);
        // All in one run; names that a module declares are in a block of their own.
        let block =
            |sample: &String| if language == "TypeScript" { format!("{{\n{sample}\n}}") } else { sample.clone() };
        std::fs::write(&file, samples.iter().map(block).collect::<Vec<_>>().join("\n")).unwrap();
        let run = tokio::process::Command::new(program).args(&options).arg(&file).output().await.unwrap();
        assert!(run.status.success(), "{language}: {}", String::from_utf8_lossy(&run.stderr));
    }
}
