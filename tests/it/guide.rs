//! The guide to policies, followed as it is written: a stranger's first module, from an empty folder
//! to a host that refuses by it, and back.

use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;

use crate::support::host::Engine;
use crate::support::program::Place;

const GUIDE: &str = include_str!("../../policies/README.md");

/// One command, and what the guide says that it prints.
struct Step {
    command: String,
    prints: String,
}

/// The commands of the `console` blocks: after `$`, with lines that go on after `>`.
fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in GUIDE.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            if let Some(command) = line.strip_prefix("$ ") {
                steps.push(Step { command: command.into(), prints: String::new() });
                continue;
            }
            let step = steps.last_mut().unwrap();
            match line.strip_prefix("> ").or((line == ">").then_some("")) {
                Some(more) => step.command += &format!("\n{more}"),
                None => step.prints += &format!("{line}\n"),
            }
        }
    }
    steps
}

/// Without what is another one every time: digests, ids, times, sizes.
fn settled(text: &str) -> String {
    let mut settled = Vec::new();
    for word in text.split_inclusive([' ', '\n', '"', ',']) {
        let (core, end) = word.split_at(word.trim_end_matches([' ', '\n', '"', ',']).len());
        let is_hex = core.len() >= 36 && core.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let is_time = core.len() > 20 && core.as_bytes()[10] == b'T' && core.ends_with('Z');
        let is_number = core.len() >= 2 && core.bytes().all(|b| b.is_ascii_digit());
        let same = if is_hex || is_time {
            "…"
        } else if is_number {
            "0"
        } else {
            core
        };
        settled.push(same.to_owned() + end);
    }
    settled.concat()
}

/// A person's shell in a place. What the guide calls 127.0.0.1:8080 is the place's own address here,
/// for tests share a machine.
async fn shell(place: &Place, key: &str, command: &str) -> Output {
    let mut shell = place.command_of("bash");
    shell.env("KEY", key).env("XDG_CACHE_HOME", CACHE).env("HOME", std::env::var_os("HOME").unwrap());
    shell.env("PATH", format!("{}:{}", Place::programs().display(), std::env::var("PATH").unwrap()));
    let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let command = command.replace("http://127.0.0.1:8080", &place.url());
    shell.stdin.take().unwrap().write_all(command.as_bytes()).await.unwrap();
    shell.wait_with_output().await.unwrap()
}

/// The cache of the tests' person, in which projects are built.
pub const CACHE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-cache");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guide_commands_print_documented_output() {
    let place = Place::new(Engine::Sqlite).await;
    let (mut steps, mut host, mut key) = (steps().into_iter(), None, String::new());
    for (number, Step { command, prints }) in steps.by_ref().enumerate() {
        if command.starts_with("grep ") {
            // The host writes records beside its answers.
            place.until_written("decisions.jsonl", "subdomain_reserved").await;
        }
        let output = shell(&place, &key, &command).await;
        let said = String::from_utf8(output.stdout).unwrap().replace(&place.url(), "http://127.0.0.1:8080");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}{errors}");
        assert_eq!(settled(&said).trim(), settled(&prints).trim(), "{command}\n{errors}");
        if number == 0 {
            let mut dev = place.start("culvert dev");
            let said = dev.until("API key").await;
            key = said.split_whitespace().last().unwrap().into();
            dev.until("Ctrl-C").await;
            host = Some(dev);
        }
    }
    assert_eq!(host.unwrap().interrupt().await, Some(0));
}

/// The page that is served is the one in the repository.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_guide_is_served_as_docs_page() {
    let host = crate::support::host::TestHost::start(Engine::Sqlite).await;
    let page = reqwest::get(format!("{}/docs/policies", host.url())).await.unwrap().text().await.unwrap();
    for heading in GUIDE.lines().filter_map(|line| line.strip_prefix("### ")) {
        assert!(page.contains(&format!(">{heading}</h3>")), "{heading}");
    }
    assert!(page.contains("<table>"));
}
