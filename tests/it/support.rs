//! What tests stand on: a real host on a real database, with a clock that is moved by hand.

pub mod agent_end;
pub mod api;
pub mod ari;
pub mod authenticator;
pub mod cable;
pub mod countries;
pub mod database;
pub mod device;
pub mod fleet;
pub mod host;
pub mod hostile;
pub mod link;
pub mod names;
pub mod node;
pub mod pebble;
pub mod policies;
pub mod postgres;
pub mod program;
pub mod proxies;
pub mod receiver;
pub mod registry;
pub mod relay;
pub mod server;
pub mod tab;
pub mod visitor;
pub mod web;
pub mod wire;

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::Path;
use std::sync::Arc;

use culvert::config::Config;
use culvert_policy::load::artefact::Artefacts;
use culvert_service::secrets::Secrets;
use culvert_wire::clock::Clock;

/// Compiled modules, shared by all tests: compiling is most of what they would do.
pub fn artefacts() -> Artefacts {
    Artefacts::in_folder(Path::new(ARTEFACTS), Arc::new(Secrets::open(Path::new(KEY), &Clock::system()).unwrap()))
        .unwrap()
}

/// Gives a host of a test the compiled modules of all tests, and the key that vouches for them.
pub fn share_artefacts(data_dir: &Path) {
    DirBuilder::new().recursive(true).mode(0o700).create(data_dir).unwrap();
    drop(artefacts());
    symlink(ARTEFACTS, data_dir.join("policies")).unwrap();
    std::fs::copy(KEY, data_dir.join("secret.key")).unwrap();
}

/// Gives a host of a test a folder of its own for compiled modules: the shared one must stay as it is.
pub fn own_artefacts(config: &mut Config) {
    let folder = config.data_dir.join("policies");
    std::fs::remove_file(&folder).unwrap();
    DirBuilder::new().mode(0o700).create(&folder).unwrap();
}

/// Where they are.
pub const ARTEFACTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-policies");

/// The key that vouches for them, made by the first test.
const KEY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/test-secret.key");
