//! The allocator of a policy module.
//!
//! The host configures a module once, keeps its memory as an image, and starts every decision
//! from a fresh copy of that image. A copy is cheapest where a decision asks for no memory pages,
//! so there are two places to allocate from. Until [`seal`] (that is, in `configure`) it is the
//! heap, which grows by pages and becomes part of the image. After it (in a decision) it is the
//! arena, a fixed piece of static memory that is already there; only a request too large for it
//! grows the heap again, up to the host's limit. Nothing is freed but the newest allocation, for
//! the whole memory is thrown away with the decision.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32;
use core::cell::UnsafeCell;
use core::ptr;

/// Enough for a request body of ordinary size; with the stack and the module's own data it leaves
/// the memory of a module at two pages.
const ARENA_BYTES: usize = 32 * 1024;
const PAGE_BYTES: usize = 64 * 1024;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator(UnsafeCell::new(State {
    sealed: false,
    arena: Region { next: 0, end: 0 },
    heap: Region { next: 0, end: 0 },
}));

static ARENA: Arena = Arena(UnsafeCell::new([0; ARENA_BYTES]));

/// From here on, allocations come from the arena. Called when `configure` has succeeded.
pub(crate) fn seal() {
    // SAFETY: a module has one thread, and no reference into the state outlives a call.
    unsafe { (*ALLOCATOR.0.get()).seal() }
}

#[repr(align(16))]
struct Arena(UnsafeCell<[u8; ARENA_BYTES]>);

// SAFETY: a module has one thread.
unsafe impl Sync for Arena {}

struct Allocator(UnsafeCell<State>);

// SAFETY: a module has one thread.
unsafe impl Sync for Allocator {}

struct State {
    sealed: bool,
    arena: Region,
    heap: Region,
}

/// Addresses from `next` up to `end` are free.
struct Region {
    next: usize,
    end: usize,
}

impl Region {
    fn take(&mut self, layout: Layout) -> Option<usize> {
        let start = self.next.checked_next_multiple_of(layout.align())?;
        let next = start.checked_add(layout.size())?;
        if next > self.end {
            return None;
        }
        self.next = next;
        Some(start)
    }

    /// Makes the newest allocation larger or smaller where it stands.
    fn resize(&mut self, start: usize, old: usize, new: usize) -> bool {
        let fits = start + old == self.next && start.checked_add(new).is_some_and(|n| n <= self.end);
        if fits {
            self.next = start + new;
        }
        fits
    }
}

impl State {
    fn seal(&mut self) {
        let start = ARENA.0.get() as usize;
        self.arena = Region { next: start, end: start + ARENA_BYTES };
        self.sealed = true;
    }

    fn allocate(&mut self, layout: Layout) -> Option<usize> {
        if self.sealed
            && let Some(start) = self.arena.take(layout)
        {
            return Some(start);
        }
        if self.heap.end == 0 {
            self.heap = Region { next: heap_base(), end: wasm32::memory_size(0) * PAGE_BYTES };
        }
        if let Some(start) = self.heap.take(layout) {
            return Some(start);
        }
        let pages = layout.size().checked_add(layout.align())?.div_ceil(PAGE_BYTES);
        if wasm32::memory_grow(0, pages) == usize::MAX {
            return None;
        }
        self.heap.end += pages * PAGE_BYTES;
        self.heap.take(layout)
    }
}

/// Where the linker says that the module's own data ends.
fn heap_base() -> usize {
    unsafe extern "C" {
        static __heap_base: u8;
    }
    &raw const __heap_base as usize
}

// SAFETY: `take` hands out addresses of one region in rising order, aligned, never twice but for
// what `resize` gave back; all of them lie inside the module's memory.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: a module has one thread, and `allocate` runs no foreign code.
        let state = unsafe { &mut *self.0.get() };
        state.allocate(layout).map_or(ptr::null_mut(), |start| start as *mut u8)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        let state = unsafe { &mut *self.0.get() };
        if !state.sealed {
            state.heap.resize(start as usize, layout.size(), 0);
            // The image that is kept of this memory is smaller where it is zero.
            // SAFETY: the caller gives up these bytes.
            unsafe { ptr::write_bytes(start, 0, layout.size()) };
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let state = unsafe { &mut *self.0.get() };
        let address = start as usize;
        if state.heap.resize(address, layout.size(), size) || state.arena.resize(address, layout.size(), size) {
            return start;
        }
        // SAFETY: the caller's layout is valid, and `size` is, for it.
        let Ok(larger) = Layout::from_size_align(size, layout.align()) else {
            return ptr::null_mut();
        };
        let Some(moved) = state.allocate(larger) else {
            return ptr::null_mut();
        };
        let moved = moved as *mut u8;
        // SAFETY: both are allocations of at least that many bytes, and they do not overlap.
        unsafe { ptr::copy_nonoverlapping(start, moved, layout.size().min(size)) };
        moved
    }
}
