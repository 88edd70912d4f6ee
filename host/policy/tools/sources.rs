//! The source folders of a policy: its crate, the local crates that it depends on, and the further
//! sources that their manifests name (`[package.metadata.culvert] sources`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use sha2::{Digest, Sha256};

/// Names inside a project that are not part of the module's code.
const NOT_SOURCES: [&str; 6] = ["target", "node_modules", "cases", "tests", "Cargo.lock", "package-lock.json"];

#[derive(Debug, thiserror::Error)]
pub enum SourcesError {
    #[error("{} is no crate: {said}", .folder.display())]
    NoCrate { folder: PathBuf, said: String },
    #[error("{}: {error}", .path.display())]
    File { path: PathBuf, error: io::Error },
}

/// The sources of one policy crate.
#[derive(Debug)]
pub struct Sources {
    package: String,
    manifest: PathBuf,
    workspace: PathBuf,
    target: PathBuf,
    folders: Vec<PathBuf>,
    local: Vec<LocalPackage>,
    is_vendored: bool,
}

/// A package of a local path that a policy is built from.
#[derive(Debug)]
pub struct LocalPackage {
    pub name: String,
    folders: Vec<PathBuf>,
}

impl LocalPackage {
    /// The digest of its sources.
    ///
    /// # Errors
    ///
    /// If a folder or a file cannot be read.
    pub fn digest(&self) -> Result<String, SourcesError> {
        digest(&self.folders)
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
    target_directory: PathBuf,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
    /// None for a package from a local path.
    source: Option<String>,
    metadata: Option<PackageMetadata>,
}

#[derive(Deserialize)]
struct PackageMetadata {
    culvert: Option<Extra>,
}

#[derive(Deserialize)]
struct Extra {
    sources: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    dependencies: Vec<String>,
}

impl Sources {
    /// Finds the sources of the crate in a folder.
    ///
    /// # Errors
    ///
    /// If the folder contains no package, or `cargo metadata` fails.
    pub fn of(folder: &Path) -> Result<Self, SourcesError> {
        let no_crate = |said: String| SourcesError::NoCrate { folder: folder.into(), said };
        let manifest = folder.join("Cargo.toml");
        let manifest = fs::canonicalize(&manifest).map_err(|e| no_crate(format!("Cargo.toml: {e}")))?;
        let mut cargo = Command::new("cargo");
        cargo.args(["metadata", "--format-version", "1", "--manifest-path"]).arg(&manifest);
        let output = cargo.output().map_err(|e| no_crate(format!("cargo metadata: {e}")))?;
        if !output.status.success() {
            return Err(no_crate(String::from_utf8_lossy(&output.stderr).trim().into()));
        }
        let metadata: Metadata =
            serde_json::from_slice(&output.stdout).map_err(|e| no_crate(format!("cargo metadata: {e}")))?;
        let root = metadata.packages.iter().find(|package| package.manifest_path == manifest);
        let root = root.ok_or_else(|| no_crate("its Cargo.toml is a workspace, not a package".into()))?;
        Ok(Self {
            package: root.name.clone(),
            target: metadata.target_directory.clone(),
            workspace: metadata.workspace_root.clone(),
            folders: metadata.local_folders(&root.id),
            local: metadata.local_packages(&root.id).map(Package::local).collect(),
            is_vendored: metadata.is_vendored(),
            manifest,
        })
    }

    pub fn package(&self) -> &str {
        &self.package
    }

    pub fn manifest(&self) -> &Path {
        &self.manifest
    }

    /// The root folder of the crate's workspace.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Cargo's target folder.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The folders that contain the sources.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// The crate, and the local crates that it depends on.
    pub fn local_packages(&self) -> &[LocalPackage] {
        &self.local
    }

    /// Whether crates of a registry stand in the workspace.
    pub fn is_vendored(&self) -> bool {
        self.is_vendored
    }

    /// The digest of all sources.
    ///
    /// # Errors
    ///
    /// If a folder or a file cannot be read.
    pub fn digest(&self) -> Result<String, SourcesError> {
        digest(&self.folders)
    }
}

/// SHA-256 over every file's name and content, in hexadecimal.
///
/// # Errors
///
/// If a folder or a file cannot be read.
pub fn digest(folders: &[PathBuf]) -> Result<String, SourcesError> {
    let mut digest = Sha256::new();
    for folder in folders {
        let mut files = Vec::new();
        collect(folder, &mut files).map_err(|error| SourcesError::File { path: folder.clone(), error })?;
        files.sort();
        for path in files {
            let content = fs::read(&path).map_err(|error| SourcesError::File { path: path.clone(), error })?;
            let name = path.strip_prefix(folder).unwrap_or(&path).to_string_lossy().into_owned();
            for part in [name.as_bytes(), &content] {
                digest.update((part.len() as u64).to_le_bytes());
                digest.update(part);
            }
        }
    }
    Ok(hex::encode(digest.finalize()))
}

impl Metadata {
    fn is_vendored(&self) -> bool {
        let inside = |package: &Package| package.manifest_path.starts_with(&self.workspace_root);
        self.packages.iter().any(|package| package.source.is_some() && inside(package))
    }

    /// The folders of a package and of the local packages that it depends on, and the sources that they
    /// name.
    fn local_folders(&self, root: &str) -> Vec<PathBuf> {
        let mut folders: Vec<_> = self.local_packages(root).flat_map(Package::folders).collect();
        folders.sort();
        folders
    }

    /// A package, and the local packages that it depends on.
    fn local_packages(&self, root: &str) -> impl Iterator<Item = &Package> {
        let mut reached = vec![root];
        let mut next = 0;
        while let Some(id) = reached.get(next).copied() {
            let node = self.resolve.nodes.iter().find(|node| node.id == id);
            for dependency in node.iter().flat_map(|node| &node.dependencies) {
                if !reached.contains(&dependency.as_str()) {
                    reached.push(dependency);
                }
            }
            next += 1;
        }
        let reached: Vec<String> = reached.into_iter().map(String::from).collect();
        self.packages.iter().filter(move |p| p.source.is_none() && reached.contains(&p.id))
    }
}

impl Package {
    fn local(&self) -> LocalPackage {
        LocalPackage { name: self.name.clone(), folders: self.folders() }
    }

    fn folders(&self) -> Vec<PathBuf> {
        let Some(folder) = self.manifest_path.parent() else { return Vec::new() };
        let extra = self.metadata.iter().flat_map(|metadata| &metadata.culvert).flat_map(|extra| &extra.sources);
        let extra = extra.map(|path| folder.join(path)).map(|path| fs::canonicalize(&path).unwrap_or(path));
        std::iter::once(folder.to_owned()).chain(extra).collect()
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || name.ends_with(".wasm") || NOT_SOURCES.contains(&name.as_ref()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), files)?;
        } else {
            files.push(entry.path());
        }
    }
    Ok(())
}
