//! What a policy says beside its answer: the text of a panic, and the lines of [`debug!`](crate::debug).
//!
//! A policy imports nothing, so it cannot print. The text stays in the module's memory. After a trap the host reads it
//! there: it finds the marker, and behind it the address and the number of bytes. The authors' tools read it by the
//! export `culvert:debug/debug` as well.

use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

/// Most bytes of text; what is longer is cut off.
const MOST: usize = 4000;

static TEXT: Text = Text(UnsafeCell::new([0; MOST]));
/// The host looks for the marker, so the compiler must not leave it out.
#[used]
static NOTES: Notes = Notes { head: UnsafeCell::new(Head { marker: *b"culvert:notes/1\0", text: &TEXT, length: 0 }) };
static DEBUGGING: AtomicBool = AtomicBool::new(false);

struct Text(UnsafeCell<[u8; MOST]>);

struct Notes {
    head: UnsafeCell<Head>,
}

#[repr(C)]
struct Head {
    marker: [u8; 16],
    text: &'static Text,
    length: u32,
}

// SAFETY: a module has one thread; natively only tests of rules run, which do not read it.
unsafe impl Sync for Text {}
// SAFETY: as for `Text`.
unsafe impl Sync for Notes {}

/// Appends to the text.
struct Writer;

impl Write for Writer {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        // SAFETY: a module has one thread, and no reference outlives this function.
        let (head, text) = unsafe { (&mut *NOTES.head.get(), &mut *TEXT.0.get()) };
        let start = head.length as usize;
        let mut end = more.len().min(MOST - start);
        while !more.is_char_boundary(end) {
            end -= 1;
        }
        text[start..start + end].copy_from_slice(&more.as_bytes()[..end]);
        head.length += end as u32;
        Ok(())
    }
}

/// Keeps the text of panics from here on.
pub fn keep_panics() {
    #[cfg(target_arch = "wasm32")]
    std::panic::set_hook(Box::new(|panic| {
        let _ = Writer.write_str("panic ");
        if let Some(place) = panic.location() {
            let _ = write!(Writer, "{}:{}:{}: ", place.file(), place.line(), place.column());
        }
        let _ = Writer.write_str(panic.payload_as_str().unwrap_or("no message"));
    }));
}

/// Has the lines of `debug!` kept. Only the authors' tools ask for that.
pub fn enable_debugging() {
    DEBUGGING.store(true, Ordering::Relaxed);
}

pub fn is_debugging() -> bool {
    DEBUGGING.load(Ordering::Relaxed)
}

/// Adds a line; `debug!` calls it.
pub fn add_line(line: fmt::Arguments<'_>) {
    let _ = writeln!(Writer, "debug {line}");
}

/// The text so far.
pub fn text() -> String {
    // SAFETY: as in `Writer`.
    let (head, text) = unsafe { (&*NOTES.head.get(), &*TEXT.0.get()) };
    String::from_utf8_lossy(&text[..head.length as usize]).into_owned()
}

/// Prints a line under `culvert policy test` and `culvert policy run`, formatted as by `format!`. In a host it does
/// nothing.
#[macro_export]
macro_rules! debug {
    ($($line:tt)*) => {
        if $crate::notes::is_debugging() {
            $crate::notes::add_line(format_args!($($line)*));
        }
    };
}
