//! The crates of the workspace: which may depend on which, and which frameworks each may name
//! (`docs/develop/architecture.md`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// What a crate may depend on: crates of the workspace, and frameworks.
struct Rule {
    name: &'static str,
    crates: &'static [&'static str],
    frameworks: &'static [&'static str],
}

/// Crates that shape the code that names them. Each belongs to the crates whose rule lists it.
const FRAMEWORKS: &[&str] = &[
    "argon2",
    "aws-lc-rs",
    "cel",
    "chacha20poly1305",
    "hickory-resolver",
    "hickory-server",
    "http-body-util",
    "hyper",
    "hyper-util",
    "instant-acme",
    "jsonschema",
    "jsonwebtoken",
    "lettre",
    "maud",
    "maxminddb",
    "oci-client",
    "prometheus-client",
    "pulldown-cmark",
    "quinn",
    "rcgen",
    "reqwest",
    "rustls",
    "salvo",
    "sqlx",
    "tokio",
    "tokio-rustls",
    "tokio-tungstenite",
    "wasmparser",
    "wasmtime",
    "wasmtime-wizer",
    "wasm-encoder",
    "wit-component",
];

const RULES: &[Rule] = &[
    Rule { name: "culvert-wire", crates: &[], frameworks: &["aws-lc-rs", "quinn", "rustls", "tokio", "tokio-rustls"] },
    Rule { name: "culvert-domain", crates: &["culvert-wire"], frameworks: &[] },
    Rule { name: "culvert-api-types", crates: &["culvert-domain"], frameworks: &[] },
    Rule {
        name: "culvert-certificates",
        crates: &["culvert-domain", "culvert-wire"],
        frameworks: &["hickory-server", "http-body-util", "instant-acme", "rcgen", "reqwest", "tokio"],
    },
    Rule {
        name: "culvert-node",
        crates: &["culvert-domain", "culvert-wire"],
        frameworks: &[
            "argon2",
            "http-body-util",
            "hyper",
            "hyper-util",
            "maxminddb",
            "quinn",
            "rcgen",
            "rustls",
            "tokio",
            "tokio-rustls",
        ],
    },
    Rule {
        name: "culvert-policy",
        crates: &["culvert-domain", "culvert-wire"],
        frameworks: &[
            "jsonschema",
            "prometheus-client",
            "tokio",
            "wasm-encoder",
            "wasmparser",
            "wasmtime",
            "wasmtime-wizer",
            "wit-component",
        ],
    },
    Rule { name: "culvert-store", crates: &["culvert-domain", "culvert-wire"], frameworks: &["sqlx", "tokio"] },
    Rule {
        name: "culvert-webhook",
        crates: &["culvert-domain", "culvert-wire"],
        frameworks: &["hickory-resolver", "reqwest", "rustls"],
    },
    Rule {
        name: "culvert-service",
        crates: &[
            "culvert-api-types",
            "culvert-certificates",
            "culvert-domain",
            "culvert-policy",
            "culvert-store",
            "culvert-webhook",
            "culvert-wire",
        ],
        frameworks: &["argon2", "chacha20poly1305", "lettre", "prometheus-client", "tokio"],
    },
    Rule { name: "culvert-oidc", crates: &["culvert-wire"], frameworks: &["jsonwebtoken", "reqwest"] },
    Rule {
        name: "culvert-registry",
        crates: &["culvert-policy", "culvert-wire"],
        frameworks: &["aws-lc-rs", "oci-client", "reqwest", "tokio"],
    },
    Rule {
        name: "culvert-gateway",
        crates: &["culvert-domain", "culvert-service", "culvert-wire"],
        frameworks: &["salvo", "tokio", "tokio-tungstenite"],
    },
    Rule {
        name: "culvert-http",
        crates: &["culvert-api-types", "culvert-domain", "culvert-service", "culvert-wire"],
        frameworks: &["salvo"],
    },
    Rule {
        name: "culvert-dashboard",
        crates: &["culvert-api-types", "culvert-domain", "culvert-oidc", "culvert-service", "culvert-wire"],
        frameworks: &["maud", "pulldown-cmark", "salvo"],
    },
    Rule {
        name: "culvert-agent",
        crates: &["culvert-wire"],
        frameworks: &["aws-lc-rs", "quinn", "reqwest", "rustls", "tokio", "tokio-rustls", "tokio-tungstenite"],
    },
    Rule {
        name: "culvert",
        crates: &[
            "culvert-agent",
            "culvert-certificates",
            "culvert-dashboard",
            "culvert-domain",
            "culvert-gateway",
            "culvert-http",
            "culvert-node",
            "culvert-oidc",
            "culvert-policy",
            "culvert-registry",
            "culvert-service",
            "culvert-store",
            "culvert-webhook",
            "culvert-wire",
        ],
        frameworks: &["prometheus-client", "reqwest", "salvo", "tokio"],
    },
    Rule { name: "culvert-test-macros", crates: &[], frameworks: &[] },
    Rule { name: "culvert-policy-sdk", crates: &[], frameworks: &[] },
    Rule { name: "culvert-policy-rules", crates: &["culvert-policy-sdk"], frameworks: &["cel"] },
    Rule {
        name: "culvert-policy-rules-plan-access",
        crates: &["culvert-policy-rules", "culvert-policy-sdk"],
        frameworks: &[],
    },
    Rule {
        name: "culvert-policy-rules-team-role",
        crates: &["culvert-policy-rules", "culvert-policy-sdk"],
        frameworks: &[],
    },
    Rule {
        name: "culvert-policy-rules-validation",
        crates: &["culvert-policy-rules", "culvert-policy-sdk"],
        frameworks: &[],
    },
    Rule { name: "culvert-policy-plan-access", crates: &["culvert-policy-sdk"], frameworks: &[] },
    Rule { name: "culvert-policy-team-role", crates: &["culvert-policy-sdk"], frameworks: &[] },
    Rule { name: "culvert-policy-validation", crates: &["culvert-policy-sdk"], frameworks: &[] },
    Rule { name: "loud-policy", crates: &["culvert-policy-sdk"], frameworks: &[] },
];

/// The crate whose rule the examples of policies follow.
const EXAMPLE: &str = "culvert-policy-validation";

/// The dependencies of each package that are part of what is built from it.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let output = Command::new(env!("CARGO")).args(["metadata", "--no-deps", "--format-version", "1"]).output().unwrap();
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |package: &Value| {
        let built = |dependency: &&Value| dependency["kind"].is_null();
        let all = package["dependencies"].as_array().unwrap().iter();
        all.filter(built).map(|dependency| text(&dependency["name"])).collect()
    };
    metadata["packages"].as_array().unwrap().iter().map(|package| (text(&package["name"]), of(package))).collect()
}

#[test]
fn workspace_crates_depend_only_on_what_their_rule_lists() {
    let found = dependencies();
    let mut wrong = Vec::new();
    for (name, dependencies) in found.iter().filter(|(name, _)| *name != "culvert-bench") {
        let is_example = Path::new("policies/examples").join(name).is_dir();
        let Some(rule) = RULES.iter().find(|rule| rule.name == name || (is_example && rule.name == EXAMPLE)) else {
            wrong.push(format!("{name} has no rule"));
            continue;
        };
        let allowed = |dependency: &&String| match dependency.as_str() {
            own if found.contains_key(own) => rule.crates.contains(&own),
            other => !FRAMEWORKS.contains(&other) || rule.frameworks.contains(&other),
        };
        wrong.extend(dependencies.iter().filter(|d| !allowed(d)).map(|d| format!("{name} depends on {d}")));
        let listed = rule.crates.iter().chain(rule.frameworks);
        let unused = listed.filter(|listed| !dependencies.contains(**listed));
        wrong.extend(unused.map(|listed| format!("{name} does not need {listed}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
