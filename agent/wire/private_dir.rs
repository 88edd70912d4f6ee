//! Private folders and files of the host: accessible to its own user only.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::Mode;

/// Permissions of the group and of others.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;

/// Sets the umask, so that all files that this process creates are private, including the database's.
pub fn keep_private() {
    rustix::process::umask(Mode::from_raw_mode(OTHERS));
}

/// Creates a private folder if it is missing. A folder that exists and is accessible to others is not
/// changed, because the operator may have reasons; a warning is logged.
///
/// # Errors
///
/// If the folder cannot be created, or its permissions cannot be read.
pub fn open(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let mode = fs::metadata(folder)?.mode() & 0o777;
    if mode & OTHERS != 0 {
        let folder = folder.display();
        tracing::warn!(%folder, mode = format!("{mode:o}"), "other users can look into this folder; `chmod 700` closes it");
    }
    Ok(())
}

/// Creates a private folder like [`open`], but fails if another user could write into it, because its
/// content is executed.
///
/// # Errors
///
/// If the folder cannot be created or read, belongs to another user, or can be written into by others.
pub fn open_trusted(folder: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let about = fs::metadata(folder)?;
    let denied = |problem: &str| {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{}: {problem}", folder.display())))
    };
    if about.uid() != rustix::process::geteuid().as_raw() {
        return denied("it belongs to another user, and what is in it would be run; remove it");
    }
    if about.mode() & OTHERS_WRITE != 0 {
        return denied("other users can write into it, and what is in it would be run; `chmod 700` it");
    }
    Ok(())
}

/// Replaces a private file, or creates it: a reader finds the old content or the new one, whole.
///
/// # Errors
///
/// If the file beside it cannot be written, or cannot take the old one's place.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    static REPLACED: AtomicUsize = AtomicUsize::new(0);
    let number = REPLACED.fetch_add(1, Ordering::Relaxed);
    let aside = path.with_extension(format!("{}.{number}.new", std::process::id()));
    let written =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside).and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        });
    written.and_then(|()| fs::rename(&aside, path)).inspect_err(|_| {
        let _ = fs::remove_file(&aside);
    })
}

/// Creates a private file; fails if it exists.
///
/// # Errors
///
/// If the file exists, or cannot be created or written.
pub fn create_file(path: &Path, text: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
