//! Clocks, in nanoseconds. The data path reads only the monotonic clock (CONTRACT 11).

use rustix::time::{ClockId, clock_gettime};

/// Returns the monotonic time in ns. Costs about 20 ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    read_clock(ClockId::Monotonic)
}

/// Returns the wall-clock time in ns since 1970, which may jump. For names and reports only.
#[must_use]
pub fn realtime_ns() -> u64 {
    read_clock(ClockId::Realtime)
}

/// Returns the CPU time that all threads of this process have used, user and system, in ns.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    read_clock(ClockId::ProcessCPUTime)
}

/// Returns the CPU time that this thread has used, user and system, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read_clock(ClockId::ThreadCPUTime)
}

fn read_clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let ns = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(ns)
}
