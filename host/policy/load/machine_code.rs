//! Compiled code of a module, which several engines run.

use std::fs::File;
use std::io;

use wasmtime::Engine;
use wasmtime::component::Component;

/// Code that this host compiled: in this process, or in an earlier one that had the same key to authenticate its
/// artefacts. It is in memory once, however many engines run it.
pub(crate) struct MachineCode(Place);

enum Place {
    /// A file in memory, which engines map. It cannot be changed.
    Mapped(File),
    /// Where the system has no such files. Each engine has its own copy.
    Copied(Vec<u8>),
}

impl MachineCode {
    /// `code` must be the result of `Component::serialize` or `Engine::precompile_component`.
    pub(crate) fn new(code: Vec<u8>) -> Self {
        Self(sealed(&code).map_or(Place::Copied(code), Place::Mapped))
    }

    /// The component, for an engine of the configuration that the code was compiled for.
    ///
    /// # Errors
    ///
    /// If the engine does not accept the code.
    #[expect(unsafe_code, reason = "wasmtime runs the machine code as it is")]
    pub(crate) fn on(&self, engine: &Engine) -> wasmtime::Result<Component> {
        // SAFETY: see `MachineCode`. The file is sealed, so what was checked is what runs.
        unsafe {
            match &self.0 {
                Place::Mapped(file) => Component::deserialize_file(engine, path(file)),
                Place::Copied(code) => Component::deserialize(engine, code),
            }
        }
    }
}

/// A file in memory that nobody can change any more (memfd_create(2)).
#[cfg(target_os = "linux")]
fn sealed(code: &[u8]) -> io::Result<File> {
    use std::io::Write;

    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    let mut file = File::from(memfd_create("policy", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(code)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    // Where there is no `/proc`, engines cannot open it.
    File::open(path(&file))?;
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn sealed(_: &[u8]) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The path by which this process can open the file.
fn path(file: &File) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::engines;
    use crate::load::bundle;

    #[test]
    fn code_runs_mapped_and_copied() {
        let engine = engines::compiling_for_loader(None).unwrap();
        let code = engine.precompile_component(bundle::find("team-role").unwrap()).unwrap();
        let mapped = MachineCode::new(code.clone());
        assert_eq!(matches!(mapped.0, Place::Mapped(_)), cfg!(target_os = "linux"));
        assert!(mapped.on(&engine).is_ok() && MachineCode(Place::Copied(code)).on(&engine).is_ok());
    }
}
