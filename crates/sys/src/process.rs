//! This process and its threads: user identity, children that run as another user, limits, and CPU
//! affinity.

use crate::error::{Error, ErrorContext as _, Result};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// User and group id of `nobody`.
pub const OVERFLOW_ID: u32 = 65534;

/// Returns the user id that the kernel shows for users without an id in this user namespace.
#[must_use]
pub fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_ID)
}

/// Returns a command that runs this executable as user and group `id`, without supplementary
/// groups. `socket` becomes standard input, to exchange messages and descriptors
/// ([`crate::descriptor`]). The caller adds arguments and environment. Needs root.
pub fn reexec_as(id: u32, socket: OwnedFd) -> Result<Command> {
    let path = std::env::current_exe().context("readlink", "/proc/self/exe")?;
    let mut command = Command::new(path);
    // From root, the standard library drops the groups (setgroups), then sets group and user: real,
    // effective and saved, because the process is privileged (setuid(2)).
    command.gid(id).uid(id).stdin(Stdio::from(socket));
    Ok(command)
}

/// Spawns a command.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let target = command.get_program().to_string_lossy().into_owned();
    command.spawn().context("execve", target)
}

/// Returns the effective user id and group id of this process.
#[must_use]
pub fn identity() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Runs `body` with the effective user and group of another user, and without supplementary groups,
/// in this thread only. The real and saved user ids stay root, so that the other user can neither
/// signal nor trace this process. Needs root.
///
/// # Errors
///
/// Returns errors only before `body` runs. If the rights of this thread cannot be restored
/// afterwards, the process aborts.
pub fn act_as<T>((uid, gid): (u32, u32), body: impl FnOnce() -> T) -> Result<T> {
    use rustix::fs::{Gid, Uid};
    let who = || format!("user {uid}");
    let own = (rustix::process::getuid(), rustix::process::geteuid());
    let own_group = (rustix::process::getgid(), rustix::process::getegid());
    let groups = rustix::process::getgroups().context("getgroups", "")?;
    let (other, other_group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let begin = || {
        rustix::thread::set_thread_groups(&[]).context("setgroups", who())?;
        rustix::thread::set_thread_res_gid(own_group.0, other_group, own_group.1)
            .context("setresgid", who())?;
        rustix::thread::set_thread_res_uid(own.0, other, own.1).context("setresuid", who())
    };
    let end = || {
        rustix::thread::set_thread_res_uid(own.0, own.1, own.1)?;
        rustix::thread::set_thread_res_gid(own_group.0, own_group.1, own_group.1)?;
        rustix::thread::set_thread_groups(&groups)
    };
    let begun = begin();
    let done = begun.map(|()| body());
    if end().is_err() {
        // The next request of this thread would run as this user.
        std::process::abort();
    }
    done
}

/// Starts a new session, which detaches this process from its terminal and process group for good.
pub fn leave_terminal() -> Result<()> {
    rustix::process::setsid().context("setsid", "")?;
    Ok(())
}

/// Redirects standard input to `/dev/null` and returns a duplicate of the previous descriptor.
pub fn detach_stdin() -> Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let before = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).context("dup", "stdin")?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let nothing =
        rustix::fs::open("/dev/null", flags, Mode::empty()).context("open", "/dev/null")?;
    rustix::stdio::dup2_stdin(nothing).context("dup2", "stdin")?;
    Ok(before)
}

/// Raises the soft limit on open descriptors to the hard limit if possible. Returns the resulting
/// soft limit; `u64::MAX` if there is none.
#[must_use]
pub fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let most = Rlimit { current: now.maximum, maximum: now.maximum };
    // A failure leaves the limit as it was.
    let _ = setrlimit(Resource::Nofile, most);
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Pins this thread to one CPU.
pub fn pin_to(processor: usize) -> Result<()> {
    crate::task::pin(None, &[processor])
}

/// Returns the CPUs that this thread may use.
pub fn allowed_processors() -> Result<Vec<usize>> {
    let set =
        rustix::thread::sched_getaffinity(None).context("sched_getaffinity", "this thread")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Restricts this thread, and threads that it starts later, to the CPUs in `processors`. Ignores
/// CPU numbers beyond the kernel's maximum.
pub fn pin_among(processors: &[usize]) -> Result<()> {
    let known = |processor: &usize| *processor < rustix::thread::CpuSet::MAX_CPU;
    let known: Vec<usize> = processors.iter().copied().filter(known).collect();
    crate::task::pin(None, &known)
}

/// Sets this thread's timer slack to 1 ns. With the default slack, waits may end up to 50 µs late.
pub fn set_exact_timers() {
    // On failure waits are merely less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Gives this thread real-time priority (`SCHED_FIFO`), above all ordinary threads, for
/// measurements in which every event is a context switch. Needs CAP_SYS_NICE.
pub fn set_real_time() -> Result<()> {
    // The kernel's structure has one member. Musl has another one, and does not make this call.
    let priority: libc::c_int = 1;
    let number = libc::SYS_sched_setscheduler;
    // SAFETY: sched_setscheduler(2) reads the integer, which lives; 0 is the calling thread.
    let set = unsafe { libc::syscall(number, 0, libc::SCHED_FIFO, &raw const priority) };
    match set {
        0 => Ok(()),
        _ => Err(Error::last("sched_setscheduler", "SCHED_FIFO")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_is_pinned_to_an_existing_cpu_only() {
        let pinned = std::thread::spawn(|| (pin_to(0), pin_to(100_000)));
        let (first, beyond) = pinned.join().unwrap();
        first.unwrap();
        assert_eq!(beyond.unwrap_err().errno, libc::EINVAL);
    }
}
