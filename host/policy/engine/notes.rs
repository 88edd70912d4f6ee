//! What a module built with the SDK leaves in its memory beside its answer: the text of a panic, and the lines that it
//! prints in the authors' tools. See `policies/sdk/src/notes.rs`.

use wasmtime::component::{Func, Instance};
use wasmtime::{Error, Store, WasmCoreDump};

use culvert_domain::text;

/// Behind it in the memory are the text's address and number of bytes, both u32 in little-endian.
const MARKER: &[u8; 16] = b"culvert:notes/1\0";
/// Only so many bytes of a memory are searched for the marker: the static data of a module stands at its beginning.
const SEARCHED: usize = 1024 * 1024;
/// Most bytes of the text.
const TEXT_LIMIT: usize = 4_000;

/// The interface by which the authors' tools read the text of a module that has not trapped.
const DEBUG: &str = "culvert:debug/debug@1.0.0";

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    /// The lines of the SDK's `debug!`.
    pub(crate) debug: Vec<String>,
    /// Place and message of a panic.
    pub(crate) panic: Option<String>,
}

impl Notes {
    /// What a trapped module has left.
    pub(crate) fn after<T: 'static>(store: &Store<T>, error: &Error) -> Self {
        let Some(dump) = error.downcast_ref::<WasmCoreDump>() else { return Self::default() };
        let text = dump.memories().iter().find_map(|memory| find(memory.data(store)));
        text.map(|text| Self::parse(&String::from_utf8_lossy(text))).unwrap_or_default()
    }

    /// What an instance has left, if it is built with the SDK.
    pub(crate) fn of<T: 'static>(store: &mut Store<T>, instance: &Instance) -> Self {
        let text = call(store, instance, "text", |store, function| {
            let text = function.typed::<(), (String,)>(&*store)?.call(store, ())?;
            Ok(text.0)
        });
        text.map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let (lines, panic) = match text.strip_prefix("panic ") {
            Some(panic) => ("", Some(panic)),
            None => text.split_once("\npanic ").map_or((text, None), |(lines, panic)| (lines, Some(panic))),
        };
        let debug = lines.lines().map(|line| shown(line.strip_prefix("debug ").unwrap_or(line))).collect();
        Self { debug, panic: panic.map(shown) }
    }
}

/// Has an instance keep the lines that it prints, if it is built with the SDK.
pub(crate) fn enable_debugging<T: 'static>(store: &mut Store<T>, instance: &Instance) {
    call(store, instance, "enable", |store, function| function.typed::<(), ()>(&*store)?.call(store, ()));
}

fn call<D: 'static, T>(
    store: &mut Store<D>,
    instance: &Instance,
    name: &str,
    call: impl FnOnce(&mut Store<D>, Func) -> wasmtime::Result<T>,
) -> Option<T> {
    let (_, interface) = instance.get_export(&mut *store, None, DEBUG)?;
    let (_, function) = instance.get_export(&mut *store, Some(&interface), name)?;
    let function = instance.get_func(&mut *store, function)?;
    call(store, function).ok()
}

/// The text in a memory. Nothing in the memory is trusted.
fn find(memory: &[u8]) -> Option<&[u8]> {
    let marked = memory[..memory.len().min(SEARCHED)].windows(MARKER.len()).position(|bytes| bytes == MARKER)?;
    let number = |at: usize| {
        let bytes: [u8; 4] = memory.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let (address, length) = (number(marked + MARKER.len())?, number(marked + MARKER.len() + 4)?);
    memory.get(address..address.checked_add(length.min(TEXT_LIMIT))?)
}

/// One line, without control characters.
fn shown(line: &str) -> String {
    text::cleaned(line, TEXT_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_in_memory_is_found_and_bounded() {
        let mut memory = vec![0; 4096];
        memory[100..116].copy_from_slice(MARKER);
        memory[116..120].copy_from_slice(&200_u32.to_le_bytes());
        memory[120..124].copy_from_slice(&5_u32.to_le_bytes());
        memory[200..205].copy_from_slice(b"hello");
        assert_eq!(find(&memory), Some(&b"hello"[..]));
        memory[116..124].fill(0xff);
        assert_eq!(find(&memory), None);
        assert_eq!(find(&memory[..118]), None);
        assert_eq!(find(&[]), None);
    }

    #[test]
    fn text_is_lines_and_at_most_one_panic() {
        let notes = Notes::parse("debug one\ndebug panic two\npanic src/lib.rs:1:2: three\nfour\u{7}");
        assert_eq!(notes.debug, ["one", "panic two"]);
        assert_eq!(notes.panic.as_deref(), Some("src/lib.rs:1:2: three four"));
        assert_eq!(Notes::parse(""), Notes::default());
    }
}
