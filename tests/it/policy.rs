//! The shipped policies: built from these sources, and deciding as their cases say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use culvert_policy::engine::engines::Engines;
use culvert_policy::engine::kind::Kind;
use culvert_policy::load::artefact::Artefacts;
use culvert_policy::load::cases::File;
use culvert_policy::load::chain::{Loader, PolicyConfig, Trust};
use culvert_policy::load::component::Module;
use culvert_policy::load::module_source::Origins;
use culvert_policy::load::module_store::ModuleStore;
use culvert_policy::tools::compile;
use culvert_policy::tools::sources::Sources;

use crate::support::artefacts;

const SHIPPED: [&str; 6] =
    ["plan-access", "team-role", "validation", "rules-plan-access", "rules-team-role", "rules-validation"];
/// Those that there were with the interface 1.0.0.
const FROZEN: [&str; 3] = ["plan-access", "team-role", "validation"];

fn engines() -> Engines {
    Engines::new(1).unwrap()
}

fn dist(name: &str) -> PathBuf {
    Path::new("policies/dist").join(format!("{name}.wasm"))
}

/// The modules as they are committed and, where `tests/run` has built them anew, as they come from
/// the sources now.
fn builds(name: &str) -> Vec<Vec<u8>> {
    let rebuilt = std::env::var_os("REBUILT_POLICIES").map(|folder| Path::new(&folder).join(format!("{name}.wasm")));
    std::iter::once(dist(name)).chain(rebuilt).map(|path| std::fs::read(path).unwrap()).collect()
}

#[test]
fn committed_policy_modules_match_their_sources() {
    for name in SHIPPED {
        let now = Sources::of(&Path::new("policies").join(name)).unwrap().digest().unwrap();
        let built = compile::built_from(&std::fs::read(dist(name)).unwrap()).unwrap();
        assert_eq!(
            built, now,
            "policies/{name} has changed; build it: culvert policy build policies/{name} --out policies/dist"
        );
    }
}

#[test]
fn committed_policy_modules_contain_no_build_machine_paths() {
    for name in SHIPPED {
        let wasm = std::fs::read(dist(name)).unwrap();
        for place in ["/home/", "/root/", "/usr/", "/work/", "crates.io"] {
            assert!(!wasm.windows(place.len()).any(|bytes| bytes == place.as_bytes()), "{name} holds {place}");
        }
    }
}

/// Every case holds, and together they come by every rule that a module declares.
#[test]
fn shipped_policy_cases_pass_and_cover_every_rule() {
    let (engines, artefacts) = (engines(), artefacts());
    for name in SHIPPED {
        for wasm in builds(name) {
            let module = Module::read(&engines, &artefacts, wasm.clone(), None).unwrap();
            let (mut declared, mut met) = (BTreeSet::new(), BTreeSet::new());
            for file in File::read_all(Path::new(&format!("policies/{name}/cases"))).unwrap() {
                let results = file.run(&engines, &module).unwrap();
                declared.extend(results.rules);
                for outcome in results.outcomes {
                    let (case, differences) = (outcome.name, outcome.differences);
                    assert!(differences.is_empty(), "{name}, {}: {case}: {differences:?}", file.file);
                    met.extend(outcome.rules);
                }
            }
            assert_eq!(met, declared, "{name}: rules without a case");
        }
    }
}

/// What an operator got wrong is one line that names the entry, and nothing is loaded.
#[test]
fn invalid_policy_chain_is_refused_with_one_line_error() {
    let loader = Loader {
        engines: engines(),
        artefacts: Artefacts::none(),
        modules: ModuleStore::none(),
        folder: ".".into(),
        trust: Trust::Digest,
        origins: Origins::default(),
    };
    let load = |chain: &[PolicyConfig]| loader.load(chain).err().map(|e| e.to_string()).unwrap_or_default();
    let with = |change: fn(&mut PolicyConfig)| {
        let mut chain = PolicyConfig::shipped();
        change(&mut chain[0]);
        load(&chain)
    };
    assert_eq!(
        load(&PolicyConfig::shipped()[..2]),
        "policy: no module of kind validation decides; add one, for instance `module = \"builtin:validation\"`"
    );
    assert_eq!(
        with(|entry| entry.module = "builtin:magic".into()),
        "policy[0].module: there is no `builtin:magic`; shipped are builtin:plan-access, builtin:team-role, builtin:validation, builtin:rules-plan-access, builtin:rules-team-role, builtin:rules-validation"
    );
    assert_eq!(
        with(|entry| entry.module = "builtin:team-role".into()),
        "policy[0] (builtin:team-role): it is no plan-access policy: it exports no `culvert:policy/plans`; it is a team-role policy"
    );
    assert_eq!(
        with(|entry| entry.module = "no/such.wasm".into()),
        "policy[0].module: ./no/such.wasm: No such file or directory (os error 2)"
    );
    let missing = with(|entry| entry.module = "policies/dist/plan-access.wasm".into());
    assert!(
        missing.starts_with("policy[0].sha256: is required for a module that is not built in; this one's is "),
        "{missing}"
    );
    let wrong = with(|entry| {
        entry.module = "policies/dist/plan-access.wasm".into();
        entry.sha256 = Some("00".into());
    });
    assert!(wrong.starts_with("policy[0].sha256: ./policies/dist/plan-access.wasm has the digest "), "{wrong}");
    let twice = [PolicyConfig::shipped(), vec![PolicyConfig::builtin(Kind::TeamRole)]].concat();
    assert_eq!(
        load(&twice),
        "policy[3].module: is the module of policy[1], with the same settings; leave one of them out"
    );
    assert_eq!(with(|entry| entry.deadline_ms = 0), "policy[0].deadline_ms: must be between 1 and 1000");
    assert_eq!(with(|entry| entry.memory_kib = 1), "policy[0].memory_kib: must be between 64 and 65536");
    assert_eq!(
        with(|entry| entry.memory_kib = 64),
        "policy[0] (builtin:plan-access): it needs 128 KiB of memory before it starts; memory_kib gives it 64"
    );
    assert_eq!(
        with(|entry| drop(
            entry.settings.insert("plans".into(), serde_json::json!({"a": {"remote_actions": ["fly"]}}))
        )),
        "policy[0].settings.plans.a.remote_actions[0]: \"fly\" is none of \"start\", \"stop\", \"restart\", \"stop_all\", \"restart_agent\""
    );
}

/// A module is not compiled to find that it cannot start: this one would be refused as no policy then.
#[test]
fn memory_is_looked_at_before_module_is_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let large = r#"(component (import "world" (func)) (core module (memory 100)))"#;
    std::fs::write(folder.path().join("large.wasm"), wat::parse_str(large).unwrap()).unwrap();
    let loader = Loader {
        engines: engines(),
        artefacts: Artefacts::none(),
        modules: ModuleStore::none(),
        folder: folder.path().into(),
        trust: Trust::Path,
        origins: Origins::default(),
    };
    let mut chain = PolicyConfig::shipped();
    chain[0].module = "large.wasm".into();
    let refused = |chain: &[PolicyConfig]| loader.load(chain).err().unwrap().to_string();
    assert_eq!(
        refused(&chain),
        "policy[0] (large.wasm): it needs 6400 KiB of memory before it starts; memory_kib gives it 2048"
    );
    chain[0].memory_kib = 8192;
    assert!(refused(&chain).contains("it does not fit the contract"), "{}", refused(&chain));
}

/// The interface 1.0.0 is what it was but for its comments, and a module of each world that was built for it loads and
/// decides as before: it carries the cases that it passed then.
#[test]
fn policy_built_for_earlier_interface_decides_unchanged() {
    for file in std::fs::read_dir("tests/it/frozen/1.0.0").unwrap() {
        let frozen = file.unwrap().path();
        let now = Path::new("wit").join(frozen.file_name().unwrap());
        let items = |path: &Path| -> Vec<String> {
            let text = std::fs::read_to_string(path).unwrap();
            text.lines().filter(|line| !line.trim().starts_with("///")).map(ToString::to_string).collect()
        };
        assert_eq!(items(&now), items(&frozen), "{}", now.display());
    }
    let (engines, artefacts) = (engines(), artefacts());
    for name in FROZEN {
        let wasm = std::fs::read(dist(&format!("{name}@1.0.0"))).unwrap();
        let files = File::bundled(&wasm).unwrap();
        let module = Module::read(&engines, &artefacts, wasm, None).unwrap();
        let outcomes = files.iter().flat_map(|file| file.run(&engines, &module).unwrap().outcomes);
        let outcomes: Vec<_> = outcomes.collect();
        assert!(outcomes.len() > 5, "{name} has lost its cases");
        for outcome in outcomes {
            assert!(outcome.passed(), "{name}: {}: {}", outcome.name, outcome.problem());
        }
    }
}
