//! The state folder of a device. It keeps what must survive the agent's process: the device's key, the
//! consent, the agreed targets, the journal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

#[derive(Clone, Debug)]
pub struct StateDir(PathBuf);

impl StateDir {
    /// Opens the folder, and creates it if it is missing. Only this user has access to it.
    ///
    /// # Errors
    ///
    /// If the folder cannot be created.
    pub fn open(path: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Ok(Self(path.into()))
    }

    /// The default folder, for when the command line names none.
    pub fn default_path() -> PathBuf {
        let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        state.unwrap_or_else(|| home.join(".local/state")).join("culvert-agent")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// # Errors
    ///
    /// If the file exists but cannot be read as a `T`.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> io::Result<Option<T>> {
        let path = self.path(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let value = serde_json::from_slice(&text);
        value.map(Some).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {e}", path.display())))
    }

    /// Replaces a whole file: after a crash, it has either its old or its new content.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> io::Result<()> {
        self.replace(name, &serde_json::to_vec_pretty(value)?)
    }

    pub(crate) fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let aside = self.path(&format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&aside, self.path(name))?;
        File::open(&self.0)?.sync_all()
    }

    /// Makes this process the only agent on the folder, for as long as the returned file is open.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if another process has the lock.
    pub fn lock(&self) -> io::Result<File> {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(self.path("agent.lock"))?;
        file.try_lock().map_err(io::Error::from)?;
        Ok(file)
    }
}
