//! `docs/operate/fleet.md`, step by step: its files are written and its commands run, on loopback addresses in place of its
//! machines.

use std::collections::HashMap;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use regex::{Captures, Regex};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::support::api::Api;
use crate::support::host::{own_address, within};
use crate::support::program::Place;
use crate::support::server::{postgres_programs, postgres_user};
use crate::support::share_artefacts;
use crate::support::visitor::{Visitor, echo_service};

/// The machines, with their addresses on the page.
const MACHINES: [(&str, &str); 6] = [
    ("db1", "10.0.0.21"),
    ("db2", "10.0.0.22"),
    ("lb", "10.0.0.10"),
    ("a", "10.0.0.1"),
    ("b", "10.0.0.2"),
    ("c", "10.0.0.3"),
];

/// A fenced block: the text before it, its language and its lines.
struct Block {
    before: String,
    language: String,
    lines: Vec<String>,
}

/// The blocks of a page, with the paragraph before each.
fn blocks(page: &str) -> Vec<Block> {
    let (mut blocks, mut paragraph, mut current) = (Vec::new(), String::new(), None::<Block>);
    let mut is_new = false;
    for line in page.lines() {
        match (&mut current, line.strip_prefix("```")) {
            (Some(_), Some(_)) => blocks.extend(current.take()),
            (Some(block), None) => block.lines.push(line.into()),
            (None, Some(language)) => {
                let before = std::mem::take(&mut paragraph);
                current = Some(Block { before, language: language.into(), lines: Vec::new() });
            }
            (None, None) if line.is_empty() => is_new = true,
            (None, None) => {
                if std::mem::take(&mut is_new) {
                    paragraph.clear();
                }
                paragraph = format!("{paragraph} {line}");
            }
        }
    }
    blocks
}

/// The page's machines, in folders of one.
struct Site {
    folder: TempDir,
    addresses: HashMap<&'static str, String>,
    running: Vec<Child>,
}

impl Site {
    fn new() -> Self {
        let addresses = MACHINES.into_iter().map(|(name, _)| (name, own_address().to_string())).collect();
        let site = Self { folder: tempfile::tempdir().unwrap(), addresses, running: Vec::new() };
        std::fs::set_permissions(site.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        for (machine, _) in MACHINES {
            for folder in ["srv/postgresql", "etc/haproxy", "etc/culvert", "var/lib/culvert"] {
                let path = site.at(machine, folder);
                std::fs::create_dir_all(&path).unwrap();
                if let Some(user) = postgres_user().filter(|_| machine.starts_with("db")) {
                    for owned in [&path, &site.at(machine, ""), &site.at(machine, "srv")] {
                        chown(owned, Some(user), None).unwrap();
                    }
                }
            }
            share_artefacts(&site.at(machine, "var/lib/culvert"));
        }
        site
    }

    fn at(&self, machine: &str, path: &str) -> PathBuf {
        self.folder.path().join(machine).join(path.trim_start_matches('/'))
    }

    fn url(&self) -> String {
        format!("http://{}:8000", self.addresses["lb"])
    }

    /// What stands on the page, as it is here.
    fn here(&self, machine: &str, text: &str) -> String {
        let mut text = text.replace("https://api.example.com", &self.url());
        text = text
            .replace("10.0.0.10:443 ssl crt /etc/haproxy/api.pem", "10.0.0.10:8000")
            .replace("10.0.0.0/24", "127.0.0.0/8");
        for (name, address) in MACHINES {
            let own = Regex::new(&format!(r"{}\b", regex::escape(address))).unwrap();
            text = own.replace_all(&text, &self.addresses[name]).into_owned();
            text = text.replace(&format!("\"{name}.example.com\""), &format!("\"{}\"", self.addresses[name]));
        }
        let path = Regex::new(r"(^|[\s\x22'=])(/(?:srv|etc/haproxy|etc/culvert|var/lib/culvert)\b)").unwrap();
        let folder = self.at(machine, "").display().to_string();
        path.replace_all(&text, |found: &Captures<'_>| {
            format!("{}{}{}", &found[1], folder.trim_end_matches('/'), &found[2])
        })
        .into_owned()
    }

    fn write(&self, machine: &str, path: &str, text: &str, adds: bool) {
        let (file, text) = (self.at(machine, path), self.here(machine, text));
        let former = if adds { std::fs::read_to_string(&file).unwrap() } else { String::new() };
        std::fs::write(file, format!("{former}{text}\n")).unwrap();
    }

    /// One command. Its output must be what the page shows, at least soon.
    async fn run(&mut self, machine: &str, command: &str, shown: &[String]) {
        let line = self.here(machine, command);
        if let Some(line) = line.strip_suffix(" &") {
            let child = self.shell(machine, &format!("exec {line}")).stdout(Stdio::null()).spawn().unwrap();
            self.running.push(child);
            let port = if machine == "lb" { 8000 } else { 8080 };
            let address = format!("{}:{port}", self.addresses[machine]);
            within(60, async { while TcpStream::connect(&address).await.is_err() {} }).await;
            return;
        }
        let output = within(60, async {
            loop {
                let output = self.shell(machine, &line).output().await.unwrap();
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{machine}$ {line}: {said}");
                let output = String::from_utf8(output.stdout).unwrap();
                if shown.is_empty() || output.lines().eq(shown) {
                    return output;
                }
            }
        });
        output.await;
    }

    fn shell(&self, machine: &str, line: &str) -> Command {
        let home = format!("HOME={}", self.at(machine, "").display());
        // `runuser` has another home for its user.
        let mut shell = Command::new("env");
        if postgres_user().is_some() && machine.starts_with("db") {
            shell.args(["runuser", "-u", "postgres", "--", "env"]);
        }
        shell.args([&*home, "sh"]);
        let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin");
        let path = std::env::var("PATH").unwrap();
        let path = [
            tools.display().to_string(),
            Place::programs().display().to_string(),
            postgres_programs().display().to_string(),
            path,
        ]
        .join(":");
        // What `pg_ctl` starts keeps its output.
        let line = if line.contains("pg_ctl") { format!("{line} >/dev/null 2>&1") } else { line.into() };
        shell.args(["-c", &line]).env("PATH", path).current_dir(self.at(machine, ""));
        shell.stdin(Stdio::null()).kill_on_drop(true);
        shell
    }

    async fn follow(&mut self, block: &Block) {
        let named = Regex::new(r"[Oo]n ((?:`\w+`(?:, | and )?)+)").unwrap();
        let machines = named.captures_iter(&block.before);
        let machines = if block.language == "console" { machines.last() } else { machines.into_iter().next() };
        let machines = machines.unwrap_or_else(|| panic!("on which? {}", block.before));
        let machines: Vec<String> = machines[1].split('`').skip(1).step_by(2).map(String::from).collect();
        if block.language != "console" {
            let file = Regex::new("`(/[^`]*)`").unwrap().captures(&block.before).unwrap()[1].to_owned();
            self.write(&machines[0], &file, &block.lines.join("\n"), block.before.contains("Add to"));
            if block.before.contains("it is the same") {
                let own = Regex::new(r"10\.0\.0\.1\b").unwrap();
                for (other, number) in [("b", 2), ("c", 3)] {
                    let text = own.replace_all(&block.lines.join("\n"), format!("10.0.0.{number}")).into_owned();
                    self.write(other, &file, &text.replace("\"a.", &format!("\"{other}.")), false);
                }
            }
            return;
        }
        if block.before.contains("copy of `~/.pgpass`") {
            self.copy("db1", "db2", ".pgpass");
        }
        if block.before.contains("Copy `/etc/culvert/secret.key`") {
            self.copy("a", "b", "etc/culvert/secret.key");
            self.copy("a", "c", "etc/culvert/secret.key");
        }
        for machine in machines {
            let mut lines = block.lines.iter().peekable();
            while let Some(command) = lines.next() {
                let command = command.strip_prefix("$ ").unwrap();
                let mut shown = Vec::new();
                while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                    shown.push(line.clone());
                }
                self.run(&machine, command, &shown).await;
            }
        }
    }

    fn copy(&self, from: &str, to: &str, file: &str) {
        let copied = self.at(to, file);
        std::fs::copy(self.at(from, file), &copied).unwrap();
        if let Some(user) = postgres_user().filter(|_| to.starts_with("db")) {
            chown(copied, Some(user), None).unwrap();
        }
    }

    /// A database ends as by a power cut.
    async fn lose(&self, machine: &str) {
        let process = std::fs::read_to_string(self.at(machine, "srv/postgresql/data/postmaster.pid")).unwrap();
        let process = process.lines().next().unwrap().to_owned();
        assert!(Command::new("kill").args(["-QUIT", &process]).status().await.unwrap().success());
        within(20, async {
            while Path::new("/proc").join(&process).exists() {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for machine in ["db1", "db2"] {
            let process =
                std::fs::read_to_string(self.at(machine, "srv/postgresql/data/postmaster.pid")).unwrap_or_default();
            if let Some(process) = process.lines().next() {
                let _ = std::process::Command::new("kill").args(["-QUIT", process]).status();
            }
        }
    }
}

/// The set-up serves, and goes on when the standby takes the database's place.
#[tokio::test]
async fn three_hosts_are_set_up_as_the_page_says() {
    let page = std::fs::read_to_string("docs/operate/fleet.md").unwrap();
    let blocks = blocks(&page);
    let fails_over = blocks.iter().position(|block| block.before.contains("is lost")).unwrap();
    let mut site = Site::new();
    for block in &blocks[..fails_over] {
        site.follow(block).await;
    }
    let key: Value = serde_json::from_str(&std::fs::read_to_string(site.at("a", "key.json")).unwrap()).unwrap();
    let api = Api::new(&site.url(), key["key"].as_str().unwrap());
    assert_eq!(api.get("/nodes").await.data().as_array().unwrap().len(), 3);
    site.run("a", "culvert --config /etc/culvert/culvert.toml host list --json > hosts.json", &[]).await;
    let hosts: Value = serde_json::from_str(&std::fs::read_to_string(site.at("a", "hosts.json")).unwrap()).unwrap();
    let states: Vec<_> = hosts["data"].as_array().unwrap().iter().map(|host| host["state"].clone()).collect();
    assert_eq!(states, ["alive", "alive", "alive"]);
    let device = Place::new(crate::support::host::Engine::Sqlite).await;
    site.run(
        "a",
        "culvert --config /etc/culvert/culvert.toml device code --account ada@example.com --json > code.json",
        &[],
    )
    .await;
    let code: Value = serde_json::from_str(&std::fs::read_to_string(site.at("a", "code.json")).unwrap()).unwrap();
    device
        .json(&format!("culvert-agent enroll --server {} --code {}", site.url(), code["code"].as_str().unwrap()))
        .await;
    let mut agent = device.start_logged("culvert-agent run");
    within(20, agent.until("connected server=")).await;
    let tunnel = api.post("/tunnels", json!({"local_port": echo_service().await.port(), "name": "echo"})).await;
    device.json("culvert-agent start echo").await;
    let address = &tunnel.data()["public_address"];
    let public = format!("{}:{}", address["hostname"].as_str().unwrap(), address["port"]);
    let mut visitor = within(20, async {
        loop {
            if let Ok(stream) = TcpStream::connect(&public).await {
                return Visitor(stream);
            }
        }
    })
    .await;
    assert_eq!(visitor.echo(b"hello").await.unwrap(), b"hello");

    site.lose("db1").await;
    for block in &blocks[fails_over..] {
        site.follow(block).await;
    }
    assert_eq!(visitor.echo(b"still there").await.unwrap(), b"still there");
    let path = format!("/tunnels/{}", tunnel.id());
    within(60, async { while api.get(&path).await.status != 200 {} }).await;
    let renamed = within(60, async {
        loop {
            let renamed = api.patch(&path, json!({"name": "renamed"})).await;
            if renamed.status != 503 {
                return renamed;
            }
        }
    });
    assert_eq!(renamed.await.data()["name"], "renamed");
}
