//! Builds a policy project into a component, with whichever toolchain is installed.
//!
//! The target is not `wasm32-wasip2`: its standard library imports WASI, and a policy imports nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::load::cases::{self, CasesError, File};
use crate::load::sections;
use crate::tools::javascript::{JavaScriptError, Package};
use crate::tools::sources::{self, Sources};
use crate::tools::target_folder::TargetFolder;
use serde::Deserialize;

const TARGET: &str = "wasm32-unknown-unknown";
/// Bytes of a module's stack. Calls in a policy are not deep, and a smaller stack makes for a smaller
/// memory.
const STACK_BYTES: u32 = 32 * 1024;

/// The same profile as in the root `Cargo.toml`, for crates outside the workspace.
const PROFILE: [&str; 6] = [
    "profile.policy.inherits='release'",
    "profile.policy.opt-level='s'",
    "profile.policy.lto=true",
    "profile.policy.panic='abort'",
    "profile.policy.strip=true",
    "profile.policy.codegen-units=1",
];

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error("{0}")]
    Sources(#[from] sources::SourcesError),
    #[error(
        "no Rust toolchain here can build for {TARGET}. Install the target (`rustup target add {TARGET}`), \
         or Debian's packages rustc-web, cargo-web and rust-web-src"
    )]
    NoToolchain,
    #[error("no linker for WebAssembly was found; install the package lld")]
    NoLinker,
    #[error("`{0}` could not be run: {1}")]
    Run(&'static str, io::Error),
    #[error("cargo did not build the crate; its messages stand above")]
    Cargo,
    #[error("the crate has no cdylib; its Cargo.toml needs `[lib] crate-type = [\"cdylib\", \"rlib\"]`")]
    NoModule,
    #[error("{0}: {1}")]
    File(PathBuf, io::Error),
    #[error("the module does not become a component: {0}")]
    Encode(String),
    #[error("{0}")]
    Cases(#[from] CasesError),
    #[error("{0}")]
    JavaScript(#[from] JavaScriptError),
}

/// A component, and the digest of its sources.
pub struct CompiledPolicy {
    pub name: String,
    pub wasm: Vec<u8>,
    pub sources: String,
}

/// Builds the project in a folder: a Rust crate, or a JavaScript package.
///
/// # Errors
///
/// If the sources or the cases cannot be read, the tools for the build are not installed, or the build
/// fails.
pub fn build(folder: &Path) -> Result<CompiledPolicy, BuildError> {
    let (name, mut wasm, digest) =
        if folder.join("package.json").is_file() { javascript(folder)? } else { rust(folder)? };
    sections::append(&mut wasm, sections::SOURCES, digest.as_bytes());
    let cases = folder.join("cases");
    if cases.is_dir() {
        sections::append(&mut wasm, sections::CASES, &cases::bundle(&File::read_all(&cases)?));
    }
    Ok(CompiledPolicy { name, wasm, sources: digest })
}

fn rust(folder: &Path) -> Result<(String, Vec<u8>, String), BuildError> {
    let sources = Sources::of(folder)?;
    let toolchain = Toolchain::find()?;
    let module = compile(&sources, &toolchain)?;
    let wasm = wit_component::ComponentEncoder::default()
        .module(&module)
        .and_then(|encoder| encoder.validate(true).encode())
        .map_err(|e| BuildError::Encode(format!("{e:#}")))?;
    Ok((sources.package().into(), wasm, sources.digest()?))
}

fn javascript(folder: &Path) -> Result<(String, Vec<u8>, String), BuildError> {
    let package = Package::of(folder)?;
    let wasm = package.build(folder)?;
    Ok((package.name, wasm, sources::digest(&[folder.to_owned()])?))
}

/// The digest of its sources that a component contains.
pub fn built_from(wasm: &[u8]) -> Option<String> {
    String::from_utf8(sections::find(wasm, sections::SOURCES)?.into()).ok()
}

/// The toolchains that can build for WebAssembly, in the order in which they are tried.
enum Toolchain {
    /// The current toolchain, with the target installed.
    Installed,
    /// Debian's toolchain, which includes the sources of the standard library.
    Debian { linker: PathBuf },
}

const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";

impl Toolchain {
    fn find() -> Result<Self, BuildError> {
        let installed = printed("rustc", &["--print", "target-libdir", "--target", TARGET]);
        if installed.is_some_and(|folder| folder.is_dir()) {
            return Ok(Self::Installed);
        }
        let sysroot = printed(DEBIAN_RUSTC, &["--print", "sysroot"]).ok_or(BuildError::NoToolchain)?;
        let library = sysroot.join("lib/rustlib/src/rust/library/std/Cargo.toml");
        if !library.exists() || !Path::new(DEBIAN_CARGO).exists() {
            return Err(BuildError::NoToolchain);
        }
        Ok(Self::Debian { linker: find_linker().ok_or(BuildError::NoLinker)? })
    }

    fn cargo(&self) -> Command {
        match self {
            Self::Installed => Command::new("cargo"),
            Self::Debian { .. } => {
                let mut cargo = Command::new(DEBIAN_CARGO);
                cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
                cargo.args(["-Zbuild-std=std,panic_abort"]);
                cargo
            }
        }
    }

    fn linker(&self) -> Option<&Path> {
        match self {
            Self::Installed => None,
            Self::Debian { linker } => Some(linker),
        }
    }
}

/// Finds LLD: the current toolchain's own, or one that is installed on the path.
fn find_linker() -> Option<PathBuf> {
    let own = printed("rustc", &["--print", "sysroot"]).and_then(|sysroot| {
        let host = printed_text("rustc", &["--print", "host-tuple"])?;
        Some(sysroot.join("lib/rustlib").join(host).join("bin/rust-lld"))
    });
    let on_path = ["wasm-ld", "rust-lld"].into_iter().flat_map(|name| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(move |folder| folder.join(name)).collect::<Vec<_>>()
    });
    own.into_iter().chain(on_path).find(|linker| linker.exists())
}

fn compile(sources: &Sources, toolchain: &Toolchain) -> Result<Vec<u8>, BuildError> {
    let file = |(path, error)| BuildError::File(path, error);
    let target = TargetFolder::open(sources).map_err(file)?;
    let changed = target.changed(sources)?;
    if !changed.is_empty() {
        let mut cargo = cargo(sources, toolchain, &target, "clean");
        cargo.arg("--quiet").args(changed.iter().flat_map(|package| ["--package", package]));
        let cleaned = cargo.status().map_err(|e| BuildError::Run("cargo", e))?;
        if !cleaned.success() {
            return Err(BuildError::Cargo);
        }
    }
    target.remember(sources)?;
    let mut cargo = cargo(sources, toolchain, &target, "rustc");
    cargo.args(["--lib", "--crate-type", "cdylib", "--message-format", "json-render-diagnostics"]);
    if let Some(linker) = toolchain.linker() {
        cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
    // These variables may be set for a build of the host; they must not affect this one.
    for name in ["RUSTFLAGS", "RUSTC_WRAPPER", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags(sources, &target).join("\x1f"));
    cargo.stdout(std::process::Stdio::piped());
    let output =
        cargo.spawn().and_then(std::process::Child::wait_with_output).map_err(|e| BuildError::Run("cargo", e))?;
    if !output.status.success() {
        return Err(BuildError::Cargo);
    }
    let module = module_file(&output.stdout, sources.manifest()).ok_or(BuildError::NoModule)?;
    std::fs::read(&module).map_err(|e| BuildError::File(module, e))
}

/// A command of Cargo about a project, in the profile of policies.
fn cargo(sources: &Sources, toolchain: &Toolchain, target: &TargetFolder, command: &str) -> Command {
    let mut cargo = toolchain.cargo();
    cargo.arg(command).arg("--manifest-path").arg(sources.manifest());
    cargo.args(["--profile", "policy", "--target", TARGET]).arg("--target-dir").arg(&target.path);
    for setting in PROFILE {
        cargo.args(["--config", setting]);
    }
    cargo
}

/// The fields of cargo's messages about an artefact that are used here.
#[derive(Deserialize)]
struct Artefact {
    manifest_path: PathBuf,
    filenames: Vec<PathBuf>,
}

/// Compiler flags of all crates. They remove local paths, so that a module reveals nothing of the machine it was
/// built on.
fn flags(sources: &Sources, target: &TargetFolder) -> Vec<String> {
    let mut flags = vec!["-C".into(), format!("link-arg=-zstack-size={STACK_BYTES}")];
    let mut remap = |from: &Path, to: &str| flags.push(format!("--remap-path-prefix={}={to}", from.display()));
    for sysroot in [printed("rustc", &["--print", "sysroot"]), printed(DEBIAN_RUSTC, &["--print", "sysroot"])] {
        sysroot.iter().for_each(|sysroot| remap(&sysroot.join("lib/rustlib/src/rust"), "rust"));
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cargo_home = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let registries = std::fs::read_dir(cargo_home.join("registry/src")).into_iter().flatten().flatten();
    registries.for_each(|registry| remap(&registry.path(), "registry"));
    // Crates are compiled again where the flags differ, so a shared folder has the same ones for all projects: paths in a
    // workspace are relative there by themselves, but for crates that are vendored in it. In a folder of its own a workspace
    // has flags of its own, for another one's crates may have the same names.
    if !target.is_shared || sources.is_vendored() {
        remap(sources.workspace(), "policy");
    }
    let outside = sources.folders().iter().filter(|folder| !folder.starts_with(sources.workspace()));
    outside.for_each(|folder| remap(folder, "policy"));
    remap(if target.is_shared { &target.path } else { sources.target() }, "target");
    flags
}

fn module_file(messages: &[u8], manifest: &Path) -> Option<PathBuf> {
    messages
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Artefact>(line).ok())
        .filter(|artefact| artefact.manifest_path == manifest)
        .flat_map(|artefact| artefact.filenames)
        .find(|file| file.extension().is_some_and(|extension| extension == "wasm"))
}

fn printed(command: &str, arguments: &[&str]) -> Option<PathBuf> {
    printed_text(command, arguments).map(PathBuf::from)
}

fn printed_text(command: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(command).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
