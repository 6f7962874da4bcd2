//! Processes of ours under another user, and threads on one processor.

use crate::error::{Error, Named as _, Result};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// The user that nobody is.
pub const NOBODY: u32 = 65534;

/// The user that the kernel names where it means one that has no number here.
#[must_use]
pub fn overflow_uid() -> u32 {
    let told = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    told.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NOBODY)
}

/// A command that runs this very executable again as user and group `id`, with no other groups, and
/// with `socket` as its standard input: the way by which it gets messages and descriptors
/// ([`crate::descriptor`]). Needs root. The caller adds arguments and environment.
pub fn reexec_as(id: u32, socket: OwnedFd) -> Result<Command> {
    let path = std::env::current_exe()
        .map_err(|e| Error::new("readlink", "/proc/self/exe", e.raw_os_error().unwrap_or(0)))?;
    let mut command = Command::new(path);
    // From root, the standard library drops the groups (setgroups), then sets group and user; all
    // three of real, effective and saved, because the process is privileged (setuid(2)).
    command.gid(id).uid(id).stdin(Stdio::from(socket));
    Ok(command)
}

/// Starts a command.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let target = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|e| Error::new("execve", target, e.raw_os_error().unwrap_or(0)))
}

/// The effective user and group of this process.
#[must_use]
pub fn identity() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Leaves the terminal and the group of whoever started us: a session of its own, in the background
/// for good.
pub fn leave_terminal() -> Result<()> {
    rustix::process::setsid().named("setsid", "")?;
    Ok(())
}

/// Has nothing to read on standard input any more; answers what was there before.
pub fn detach_stdin() -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let before = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).named("dup", "stdin")?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let nothing = rustix::fs::open("/dev/null", flags, Mode::empty()).named("open", "/dev/null")?;
    rustix::stdio::dup2_stdin(nothing).named("dup2", "stdin")?;
    Ok(before)
}

/// Has as many descriptors as this process may have at most; answers how many.
#[must_use]
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let most = Rlimit { current: now.maximum, maximum: now.maximum };
    // Refused nowhere; and if it were, it is as it was.
    let _ = setrlimit(Resource::Nofile, most);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Keeps this thread on one processor.
pub fn pin_to(processor: usize) -> Result<()> {
    crate::task::pin(None, &[processor])
}

/// The processors on which this thread may run.
pub fn allowed_processors() -> Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None).named("sched_getaffinity", "this thread")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Keeps this thread, and those that it starts, on these processors: those of them that there can
/// be.
pub fn pin_among(processors: &[usize]) -> Result<()> {
    let known = |processor: &usize| *processor < rustix::thread::CpuSet::MAX_CPU;
    let known: Vec<usize> = processors.iter().copied().filter(known).collect();
    crate::task::pin(None, &known)
}

/// Has the waits of this thread end when their time is over, and not up to 50 us later.
pub fn set_exact_timers() {
    // Refused nowhere; and if it were, waits would only be less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Has this thread run before all ordinary ones: it preempts them whenever it is woken
/// (`SCHED_FIFO`). Needs CAP_SYS_NICE. For measurements in which every event is a switch.
pub fn set_real_time() -> Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: sched_setscheduler(2) reads the structure, which lives; 0 is the calling thread.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    match set {
        0 => Ok(()),
        _ => Err(Error::last("sched_setscheduler", "SCHED_FIFO")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_where_there_is_a_processor() {
        let pinned = std::thread::spawn(|| (pin_to(0), pin_to(100_000)));
        let (first, beyond) = pinned.join().unwrap();
        first.unwrap();
        assert_eq!(beyond.unwrap_err().errno, libc::EINVAL);
    }
}
