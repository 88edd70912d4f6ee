//! Modules that mean harm, or do not know better: none of them lets anything through, takes the host
//! with it, or takes longer than it is given.

use std::sync::Arc;
use std::time::Duration;

use culvert_policy::engine::bindings::roles::Ask;
use culvert_policy::engine::bindings::types::{Caller, Scope, Verdict};
use culvert_policy::engine::engines::Engines;
use culvert_policy::engine::kind::Kind;
use culvert_policy::engine::sandbox::{Failed, Limits};
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::chain::{Loaded, PolicyConfig};
use culvert_policy::load::component::Module as Policy;
use culvert_policy::load::load_error::LoadError;
use culvert_policy::serve::live::PolicySet;
use culvert_policy::serve::observer::DecisionObserver;
use culvert_policy::serve::pinned::Pinned;
use culvert_policy::serve::records::RecordsConfig;
use culvert_wire::clock::Clock;
use prometheus_client::registry::Registry;
use serde_json::Map;

use crate::support::host::start_of_time;
use crate::support::hostile::{DENY, GOOD, Module};

const LIMITS: Limits = Limits { deadline: Duration::from_millis(50), memory_bytes: 256 * 1024 };

fn engines() -> Engines {
    Engines::new(1).unwrap()
}

fn load(module: &Module) -> Result<Pinned, LoadError> {
    load_wasm(module.component())
}

fn load_wasm(wasm: Vec<u8>) -> Result<Pinned, LoadError> {
    pinned(wasm, &RecordsConfig::default()).map(|(pinned, _)| pinned)
}

/// A team-role module as a host would ask it, and what sees its answers.
pub fn pinned(wasm: Vec<u8>, records: &RecordsConfig) -> Result<(Pinned, Arc<DecisionObserver>), LoadError> {
    let (engines, clock) = (engines(), Clock::manual(start_of_time()));
    let module = Policy::read(&engines, &Artefacts::none(), wasm, None)?;
    let module = module.configure(&engines, &Artefacts::none(), &Map::new(), LIMITS)?;
    let loaded =
        vec![Loaded { entry: PolicyConfig::builtin(Kind::TeamRole), module: Arc::new(module), is_signed: false }];
    let observer = Arc::new(DecisionObserver::open(clock.clone(), &mut Registry::default(), records, None).unwrap());
    let set = PolicySet::new(&engines, &observer.metrics, loaded, clock.now())?;
    Ok((Pinned::new(Arc::new(set), observer.clone(), None), observer))
}

pub fn ask() -> Ask {
    Ask {
        caller: Caller {
            account_id: "ada".into(),
            scope: Scope::Personal,
            scope_id: "ada".into(),
            role: None,
            plan: "free".into(),
        },
        action: "tunnels.create".into(),
        tunnel: None,
        devices: Vec::new(),
        attributes: Vec::new(),
    }
}

/// What a module answers.
pub fn decide(pinned: &Pinned) -> Result<Verdict, Failed> {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
        let denied = pinned.team_role(ask()).await?;
        Ok(denied.map_or(Verdict::Allow, |denied| Verdict::Deny(denied.denial)))
    })
}

/// What a module's decision fails with.
fn decision(check: &'static str) -> String {
    decision_of(&Module { check, ..GOOD })
}

fn decision_of(module: &Module) -> String {
    decide(&load(module).unwrap()).unwrap_err().to_string()
}

fn load_failure(module: &Module) -> String {
    load(module).err().unwrap().to_string()
}

#[test]
fn well_formed_policy_allows_and_denies() {
    assert_eq!(decide(&load(&GOOD).unwrap()).unwrap(), Verdict::Allow);
    let denied = decide(&load(&Module { check: DENY, ..GOOD }).unwrap()).unwrap();
    let Verdict::Deny(denial) = denied else { panic!("{denied:?}") };
    assert_eq!((denial.code.as_str(), denial.rule.as_str()), ("test_denied", "test-rule"));
}

#[test]
fn policy_in_endless_loop_fails_at_its_deadline() {
    let failed = decision("(loop $again (br $again)) unreachable");
    assert_eq!(failed, "policy hostile failed: it took longer than its deadline");
}

#[test]
fn policy_exceeding_memory_limit_fails() {
    let bomb = "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable";
    assert_eq!(decision(bomb), "policy hostile failed: it asked for more memory than it may use");
}

/// What a module may use is for all of its memories together.
#[test]
fn several_wasm_memories_cannot_bypass_memory_limit() {
    let module = Module { memory: r#"(memory (export "memory") 1) (memory 4)"#, ..GOOD };
    let failed = load_failure(&module);
    assert!(failed.contains("memory"), "{failed}");
}

#[test]
fn trapping_policy_fails_the_decision() {
    assert_eq!(decision("unreachable"), "policy hostile failed: it trapped: wasm `unreachable` instruction executed");
}

#[test]
fn deep_recursion_traps_within_sandbox() {
    let module = Module {
        more: "(func $deep (param i32) (result i32) (call $deep (i32.add (local.get 0) (i32.const 1))))",
        check: "(call $deep (i32.const 0))",
        ..GOOD
    };
    assert_eq!(decision_of(&module), "policy hostile failed: it trapped: call stack exhausted");
}

#[test]
fn policy_answer_violating_contract_fails() {
    // A verdict that there is not.
    let failed = decision("(i32.store8 (i32.const 600) (i32.const 7)) i32.const 600");
    assert!(failed.starts_with("policy hostile failed: its answer breaks the contract:"), "{failed}");
    // A denial out of memory's bounds.
    let failed = decision("i32.const 0x7ffffff0");
    assert!(failed.starts_with("policy hostile failed: its answer breaks the contract:"), "{failed}");
    // A text that is no UTF-8.
    let failed = decision("(i32.store8 (i32.const 2048) (i32.const 0xff)) i32.const 1200");
    assert!(failed.starts_with("policy hostile failed: its answer breaks the contract:"), "{failed}");
    // A code that it never declared.
    let failed = decision("(i32.store8 (i32.const 2080) (i32.const 0x78)) i32.const 1200");
    assert_eq!(
        failed,
        "policy hostile failed: its answer breaks the contract: it denies with the undeclared code \"xest_denied\""
    );
    // A rule that it never declared.
    let failed = decision("(i32.store8 (i32.const 2064) (i32.const 0x78)) i32.const 1200");
    assert_eq!(
        failed,
        "policy hostile failed: its answer breaks the contract: it decides by the undeclared rule \"xest-rule\""
    );
}

#[test]
fn oversized_policy_answer_fails() {
    // The detail is 60,000 bytes long.
    let failed = decision("(i32.store (i32.const 1216) (i32.const 60000)) i32.const 1200");
    assert_eq!(
        failed,
        "policy hostile failed: its answer breaks the contract: a detail has 60000 bytes; 1 to 2000 are allowed"
    );
}

#[test]
fn policy_state_is_reset_between_decisions() {
    // The first call in a sandbox allows and remembers; a second one would deny.
    let module = Module {
        more: "(global $called (mut i32) (i32.const 0))",
        check: "(if (result i32) (global.get $called) (then (i32.const 1200))
            (else (global.set $called (i32.const 1)) (i32.const 512)))",
        ..GOOD
    };
    let set = load(&module).unwrap();
    for _ in 0..3 {
        assert_eq!(decide(&set).unwrap(), Verdict::Allow);
    }
}

#[test]
fn configured_policy_state_is_kept_for_every_decision() {
    let module = Module {
        more: "(global $configured (mut i32) (i32.const 0))",
        configure: "(global.set $configured (i32.const 1)) i32.const 512",
        check: "(if (result i32) (global.get $configured) (then (i32.const 1200)) (else (i32.const 512)))",
        ..GOOD
    };
    let set = load(&module).unwrap();
    for _ in 0..3 {
        assert!(matches!(decide(&set).unwrap(), Verdict::Deny(_)));
    }
}

#[test]
fn policy_with_failing_configure_is_not_loaded() {
    let endless = Module { configure: "(loop $again (br $again)) unreachable", ..GOOD };
    assert_eq!(load_failure(&endless), "its configure failed: it took longer than its deadline");
    let trap = Module { configure: "unreachable", ..GOOD };
    assert_eq!(load_failure(&trap), "its configure failed: it trapped: wasm `unreachable` instruction executed");
    let bomb = Module {
        configure: "(loop $again (br_if $again (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) unreachable",
        ..GOOD
    };
    assert_eq!(load_failure(&bomb), "its configure failed: it asked for more memory than it may use");
    // An error without a word about what is wrong.
    let silent = Module { configure: "(i32.store8 (i32.const 600) (i32.const 1)) i32.const 600", ..GOOD };
    assert_eq!(load_failure(&silent), "its settings do not fit: ");
}

#[test]
fn policy_with_invalid_describe_is_not_loaded() {
    let trap = Module { describe: "unreachable", ..GOOD };
    assert_eq!(load_failure(&trap), "its describe failed: it trapped: wasm `unreachable` instruction executed");
    let endless = Module { describe: "(loop $again (br $again)) unreachable", ..GOOD };
    assert_eq!(load_failure(&endless), "its describe failed: it took longer than its deadline");
    let code = Module { describe: "(i32.store8 (i32.const 2080) (i32.const 0x58)) i32.const 1024", ..GOOD };
    assert_eq!(
        load_failure(&code),
        "its describe failed: its answer breaks the contract: `Xest_denied` is no code; a code is `^[a-z][a-z0-9_]{2,63}$`"
    );
}

/// The snapshot reads the memory by way of growing it; one that cannot grow must not bring down the
/// loader.
#[test]
fn policy_whose_memory_cannot_grow_is_not_loaded() {
    let full = Module { memory: r#"(memory (export "memory") 1 2)"#, ..GOOD };
    assert_eq!(
        load_failure(&full),
        "its memory cannot grow by the 128 KiB that keeping its configured state takes; give it a larger maximum, or none"
    );
    let roomy = Module { memory: r#"(memory (export "memory") 1 3)"#, ..GOOD };
    assert_eq!(decide(&load(&roomy).unwrap()).unwrap(), Verdict::Allow);
}

#[test]
fn policy_import_is_refused_and_named() {
    let wasm = wat::parse_str(
        r#"(component
            (import "wasi:clocks/wall-clock@0.2.0" (instance (export "now" (func (result u64)))))
            (instance (export "culvert:policy/roles@1.0.0")))"#,
    );
    let error = load_wasm(wasm.unwrap()).err().unwrap().to_string();
    assert_eq!(
        error,
        "it imports `wasi:clocks/wall-clock@0.2.0/now`; a policy imports nothing (build it for wasm32-unknown-unknown, without WASI)"
    );
}

#[test]
fn non_policy_file_is_refused_with_specific_error() {
    let error = |wasm: Vec<u8>| load_wasm(wasm).err().unwrap().to_string();
    let core = wat::parse_str("(module)").unwrap();
    assert_eq!(
        error(core),
        "it is a core WebAssembly module, not a component; `culvert policy build` makes components"
    );
    assert!(error(b"hello".into()).starts_with("it is no WebAssembly component: "));
    assert!(error(Vec::new()).starts_with("it is no WebAssembly component: "));
    let other = wat::parse_str(r#"(component (instance (export "culvert:policy/roles@1.3.0")))"#).unwrap();
    assert_eq!(
        error(other),
        "it needs policy API 1.3.0, this host offers 1.0.0; build it with this release's SDK, or load it into a host that offers 1.3.0"
    );
    let foreign = wat::parse_str(r#"(component (instance (export "some:thing/else@1.0.0")))"#).unwrap();
    assert_eq!(
        error(foreign),
        "it does not fit the contract in wit/: it exports neither plans, roles nor inputs of `culvert:policy`"
    );
    let hollow = wat::parse_str(r#"(component (instance (export "culvert:policy/roles@1.0.0")))"#).unwrap();
    assert!(error(hollow).starts_with("its describe failed: its answer breaks the contract: "));
}

/// A module cut short at any place is a message, never a panic.
#[test]
fn truncated_policy_file_is_refused_without_panic() {
    let whole = GOOD.component();
    for length in (0..whole.len()).step_by(97) {
        assert!(load_wasm(whole[..length].into()).is_err(), "{length}");
    }
}
