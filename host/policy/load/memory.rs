//! Memory that is not needed any more.

/// Gives back to the system what the compiler has freed. The allocator of glibc keeps it otherwise: some hundred MiB for a
/// large module.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a function of the C library")]
pub(crate) fn give_back() {
    // SAFETY: it takes no pointer, and may be called at any time from any thread (malloc_trim(3)).
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back() {}
