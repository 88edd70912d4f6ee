//! What a policy in JavaScript takes to load, and what of the memory is given back. The module includes an interpreter
//! of 12 MB.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark ends where something is not as it must be")]
#![allow(clippy::disallowed_methods, reason = "this is what measures time")]

use std::path::{Path, PathBuf};
use std::time::Instant;

use culvert_bench::server::Servers;
use culvert_bench::{median, verdict};
use culvert_policy::tools::javascript::Package;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// Changes of settings.
const CHANGES: usize = 5;

fn main() {
    // The servers' own process goes no further than this.
    let servers = Servers::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(javascript(&servers));
    runtime.block_on(rules(&servers));
}

async fn javascript(servers: &Servers) {
    let module = build(&servers.addresses.folder);
    let before = servers.resident();
    let entry = |number: usize| {
        format!(
            "module = \"{}\"\nmemory_kib = 32768\nsettings = {{ reserved = {{ name-{number} = [] }} }}\n",
            module.display()
        )
    };
    let first = reload(servers, &entry(0)).await;
    let loaded = servers.resident();
    let mut changes = Vec::new();
    for number in 1..=CHANGES {
        changes.push(reload(servers, &entry(number)).await);
    }
    println!("a policy in JavaScript; the first load takes {first:.1} s");
    verdict(
        "a change of settings, the median of 5, in seconds",
        median(changes.clone()),
        "<= 5",
        median(changes) <= 5.0,
    );
    verdict(
        "resident after the first load, beyond before, in MiB",
        loaded - before,
        "<= 120",
        loaded - before <= 120.0,
    );
    println!("  after {CHANGES} changes of settings {:>37.2}", servers.resident() - before);
}

async fn rules(servers: &Servers) {
    let entry = |number: usize| {
        format!(
            "module = \"builtin:rules-plan-access\"\n[[policy.settings.rules]]\nname = \"rule-{number}\"\n\
             when = \"usage.tunnels > {number}\"\ncode = \"too_many\"\nmessage = \"No.\"\n"
        )
    };
    reload(servers, &entry(0)).await;
    let mut changes = Vec::new();
    for number in 1..=CHANGES {
        changes.push(reload(servers, &entry(number)).await);
    }
    println!("a policy of rules");
    verdict(
        "a change of settings, the median of 5, in seconds",
        median(changes.clone()),
        "<= 1",
        median(changes) <= 1.0,
    );
}

/// A new project of plan access, with what `tests/setup` has installed. Returns the path of its module.
fn build(folder: &Path) -> PathBuf {
    let project = folder.join("javascript");
    std::fs::create_dir_all(&project).unwrap();
    let template = Path::new(ROOT).join("policies/templates/javascript");
    for file in ["package.json", "plan-access.js"] {
        let text = std::fs::read_to_string(template.join(file)).unwrap();
        let text = text.replace("__NAME__", "bench").replace("__KIND__", "plan-access");
        std::fs::write(project.join(file.replace("plan-access.js", "policy.js")), text).unwrap();
    }
    std::os::unix::fs::symlink(Path::new(ROOT).canonicalize().unwrap().join("wit"), project.join("wit")).unwrap();
    let modules = Path::new(ROOT).canonicalize().unwrap().join("target/tools/javascript/node_modules");
    std::os::unix::fs::symlink(modules, project.join("node_modules")).unwrap();
    let wasm = Package::of(&project).unwrap().build(&project).unwrap();
    let module = project.join("policy.wasm");
    std::fs::write(&module, wasm).unwrap();
    module
}

/// Puts a module in front of the shipped ones. Returns the seconds that it takes.
async fn reload(servers: &Servers, entry: &str) -> f64 {
    let shipped = |kind: &str| format!("[[policy]]\nkind = {kind:?}\nmodule = \"builtin:{kind}\"\n");
    let all: String = ["team-role", "validation", "plan-access"].map(shipped).concat();
    let policies = format!("{all}[[policy]]\nkind = \"plan-access\"\n{entry}");
    std::fs::write(servers.addresses.folder.join("culvert.toml"), policies).unwrap();
    let started = Instant::now();
    servers.reload().await;
    started.elapsed().as_secs_f64()
}
