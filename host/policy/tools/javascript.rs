//! JavaScript policies: ComponentizeJS makes them components, which include an interpreter.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::engine::kind::Kind;

const COMPONENTIZE: &str = include_str!("componentize.mjs");

#[derive(Debug, thiserror::Error)]
pub enum JavaScriptError {
    #[error("{path}: {problem}", path = .0.display(), problem = .1)]
    Package(PathBuf, String),
    #[error("ComponentizeJS is not installed here; run `npm install` in {}", .0.display())]
    NotInstalled(PathBuf),
    #[error("`node` could not be run: {0}; install Node 20 or newer")]
    NoNode(io::Error),
    #[error("ComponentizeJS did not build the policy: {0}")]
    Componentize(String),
    #[error("{path}: {problem}", path = .0.display(), problem = .1)]
    File(PathBuf, io::Error),
}

/// The fields of `package.json` that are used here.
#[derive(Deserialize)]
pub struct Package {
    pub name: String,
    main: PathBuf,
    culvert: Settings,
}

#[derive(Deserialize)]
struct Settings {
    kind: Kind,
}

impl Package {
    /// Reads the `package.json` in a folder.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or a field is missing or invalid.
    pub fn of(folder: &Path) -> Result<Self, JavaScriptError> {
        let path = folder.join("package.json");
        let text = std::fs::read_to_string(&path).map_err(|e| JavaScriptError::File(path.clone(), e))?;
        serde_json::from_str(&text).map_err(|error| JavaScriptError::Package(path, error.to_string()))
    }

    /// Builds the component.
    ///
    /// # Errors
    ///
    /// If ComponentizeJS or Node is not installed, or the build fails.
    pub fn build(&self, folder: &Path) -> Result<Vec<u8>, JavaScriptError> {
        if !folder.join("node_modules/@bytecodealliance/componentize-js").is_dir() {
            return Err(JavaScriptError::NotInstalled(folder.into()));
        }
        // Several projects may share one node_modules and be built at once: each build has a file of its own.
        let file = format!("node_modules/.culvert-{}.wasm", std::process::id());
        let output = folder.join(&file);
        let mut node = Command::new("node");
        node.args(["--input-type=module", "--eval", COMPONENTIZE, "--"]);
        node.arg(&self.main).arg("wit").arg(self.culvert.kind.name()).arg(&file);
        // ComponentizeJS reports its progress on standard output, which is not needed.
        node.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::piped());
        let ended = node.output().map_err(JavaScriptError::NoNode)?;
        if !ended.status.success() {
            return Err(JavaScriptError::Componentize(reason(&ended.stderr)));
        }
        let wasm = std::fs::read(&output).map_err(|e| JavaScriptError::File(output.clone(), e))?;
        std::fs::remove_file(&output).map_err(|e| JavaScriptError::File(output, e))?;
        Ok(wasm)
    }
}

/// The line of a stack trace that names the error.
fn reason(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let said = text.lines().find(|line| line.contains("Error")).or(text.lines().last());
    said.unwrap_or("it said nothing").trim().into()
}
