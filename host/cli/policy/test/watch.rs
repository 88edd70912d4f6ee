//! Does something again whenever a project changes.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use notify::{Event, EventKind, RecursiveMode, Watcher};

use crate::cli::{CliError, refused};

/// An editor writes several times; what it wrote last counts.
const QUIET: Duration = Duration::from_millis(200);
/// What a build makes by itself is no change.
const MADE: [&str; 3] = ["target", "node_modules", ".git"];
const SOURCES: [&str; 6] = ["rs", "js", "toml", "json", "wit", "mjs"];

/// What is watched.
pub(super) struct Watched {
    pub folder: PathBuf,
    /// A component that somebody else builds, and that is tested as it is.
    pub module: Option<PathBuf>,
}

/// Runs until the process is ended.
pub(super) fn again(watched: Watched, mut work: impl FnMut()) -> Result<(), CliError> {
    let canonical = |path: &Path| path.canonicalize().map_err(|error| refused(format!("{}: {error}", path.display())));
    let folder = canonical(&watched.folder)?;
    let module = watched.module.as_deref().map(canonical).transpose()?;
    let (changes, changed) = channel();
    let (root, tested) = (folder.clone(), module.clone());
    let tell = move |event: notify::Result<Event>| {
        if event.is_ok_and(|event| matters(&event, &root, tested.as_deref())) {
            let _ = changes.send(());
        }
    };
    let mut watcher = notify::recommended_watcher(tell).map_err(refused)?;
    watcher.watch(&folder, RecursiveMode::Recursive).map_err(refused)?;
    // Its folder, for it may be replaced.
    if let Some(beside) = module.as_deref().and_then(Path::parent).filter(|beside| *beside != folder) {
        watcher.watch(beside, RecursiveMode::NonRecursive).map_err(refused)?;
    }
    loop {
        work();
        anstream::eprintln!("watching {}; Ctrl-C ends", folder.display());
        wait(&changed)?;
    }
}

fn wait(changed: &Receiver<()>) -> Result<(), CliError> {
    changed.recv().map_err(refused)?;
    while changed.recv_timeout(QUIET).is_ok() {}
    Ok(())
}

fn matters(event: &Event, folder: &Path, module: Option<&Path>) -> bool {
    let source = |path: &Path| {
        if module.is_some_and(|module| module == path) {
            return true;
        }
        let Ok(path) = path.strip_prefix(folder) else { return false };
        let made = path.components().any(|part| MADE.iter().any(|made| part.as_os_str() == *made));
        let extension = path.extension().and_then(|extension| extension.to_str());
        let lock = path.file_name().is_some_and(|name| name == "Cargo.lock");
        !made && !lock && extension.is_some_and(|extension| SOURCES.contains(&extension))
    };
    let change = matches!(event.kind, EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_));
    change && event.paths.iter().any(|path| source(path))
}
