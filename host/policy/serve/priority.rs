//! The priority of threads that all requests go before.

/// By `nice(2)`: a tenth of the share of a thread that serves requests. At the lowest, 19, a busy machine would give it
/// no time within a deadline.
const NICE: i32 = 10;

/// Lowers the priority of the calling thread. A thread that keeps its priority still works.
#[cfg(not(target_os = "linux"))]
pub(crate) fn lower() {
    let _ = rustix::process::setpriority_process(None, NICE);
}

/// Lowers the priority of the calling thread, and lets every other thread interrupt it after a tenth of a millisecond
/// (sched_setattr(2)). Kernels before 6.12 know no such time and let it run for some milliseconds. A thread that keeps its
/// priority still works.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "the C library has no function for this system call")]
pub(crate) fn lower() {
    const SLICE_NANOSECONDS: u64 = 100_000;
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: NICE,
        sched_priority: 0,
        sched_runtime: SLICE_NANOSECONDS,
        sched_deadline: 0,
        sched_period: 0,
    };
    const CALLING_THREAD: libc::pid_t = 0;
    const NO_FLAGS: libc::c_uint = 0;
    // SAFETY: the kernel reads `size` bytes of the attributes, and keeps no pointer to them.
    let failed =
        unsafe { libc::syscall(libc::SYS_sched_setattr, CALLING_THREAD, &raw const attributes, NO_FLAGS) != 0 };
    // Some sandboxes do not allow that call.
    if failed {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
}
