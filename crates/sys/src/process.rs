//! This process and its threads: user identity, children that run as another user, limits, and CPU
//! affinity.

use crate::error::{Error, ErrorContext as _, Result};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

/// User and group id of `nobody`, which also stands for ids that a user namespace does not map.
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
pub fn reexec_command(id: u32, socket: OwnedFd) -> Result<Command> {
    let path = std::env::current_exe().context("readlink", "/proc/self/exe")?;
    let mut command = Command::new(path);
    // From root, the standard library drops the groups (setgroups), then sets group and user: real,
    // effective and saved, because the process is privileged (setuid(2)).
    command.gid(id).uid(id).stdin(Stdio::from(socket));
    Ok(command)
}

/// The numeric ids that determine the rights of a user's process.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UserIds {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

/// Makes a command run with the rights of a user. The process gets the ids of `user` as real,
/// effective and saved ids, and no capabilities unless the user is root. It gets a session of its
/// own, and no open descriptors except the standard streams. Needs root.
pub fn set_command_user<'c>(command: &'c mut Command, user: &UserIds) -> &'c mut Command {
    use rustix::fs::{Gid, Uid};
    use rustix::thread::{CapabilitySet, CapabilitySets};
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    let groups: Vec<Gid> = user.groups.iter().copied().map(Gid::from_raw).collect();
    let become_user = move || {
        rustix::process::setsid()?;
        rustix::thread::set_thread_groups(&groups)?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        if !uid.is_root() {
            let none = CapabilitySet::empty();
            let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
            rustix::thread::set_capabilities(None, none)?;
        }
        set_close_on_exec_from(3)
    };
    // SAFETY: the closure only makes system calls: it allocates nothing and takes no lock, as the
    // time between fork(2) and execve(2) requires (CommandExt::pre_exec).
    unsafe { command.pre_exec(become_user) }
}

/// Makes all descriptors whose numbers are at least `first` close at execve(2).
fn set_close_on_exec_from(first: libc::c_uint) -> std::io::Result<()> {
    let (number, last) = (libc::SYS_close_range, libc::c_uint::MAX);
    // SAFETY: with this flag close_range(2) accepts any numbers, and closes nothing.
    match unsafe { libc::syscall(number, first, last, libc::CLOSE_RANGE_CLOEXEC) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Starts a command as a child process. An error names the program.
pub fn spawn(command: &mut Command) -> Result<Child> {
    let target = command.get_program().to_string_lossy().into_owned();
    command.spawn().context("execve", target)
}

/// Returns the effective user id and group id of this process.
#[must_use]
pub fn effective_ids() -> (u32, u32) {
    if cfg!(miri) {
        // Miri has no getegid(2).
        return (0, 0);
    }
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Runs `body` with the effective user and group of another user, and without supplementary groups,
/// in this thread only. The real and saved user ids remain root's, so that the other user can
/// neither signal nor trace this process. Needs root.
///
/// # Errors
///
/// Returns errors only before `body` runs. If the rights of this thread cannot be restored
/// afterwards, the process aborts.
pub fn run_as_user<T>((uid, gid): (u32, u32), body: impl FnOnce() -> T) -> Result<T> {
    use rustix::fs::{Gid, Uid};
    let subject = || format!("user {uid}");
    let own = (rustix::process::getuid(), rustix::process::geteuid());
    let own_group = (rustix::process::getgid(), rustix::process::getegid());
    let groups = rustix::process::getgroups().context("getgroups", "")?;
    let (other, other_group) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let begin = || {
        rustix::thread::set_thread_groups(&[]).context("setgroups", subject())?;
        rustix::thread::set_thread_res_gid(own_group.0, other_group, own_group.1)
            .context("setresgid", subject())?;
        rustix::thread::set_thread_res_uid(own.0, other, own.1).context("setresuid", subject())
    };
    let end = || {
        rustix::thread::set_thread_res_uid(own.0, own.1, own.1)?;
        rustix::thread::set_thread_res_gid(own_group.0, own_group.1, own_group.1)?;
        rustix::thread::set_thread_groups(&groups)
    };
    let begun = begin();
    let done = begun.map(|()| body());
    if end().is_err() {
        // Otherwise the next request that this thread serves would run as this user.
        std::process::abort();
    }
    done
}

/// Starts a new session, which detaches this process from its terminal and process group for good.
pub fn start_session() -> Result<()> {
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

/// Redirects standard error to the destination of standard output.
pub fn redirect_stderr_to_stdout() -> Result<()> {
    rustix::stdio::dup2_stderr(std::io::stdout()).context("dup2", "stderr")
}

/// Raises the soft limit on open descriptors to the hard limit if possible. Returns the resulting
/// soft limit; `u64::MAX` if there is no limit.
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
pub fn pin_to_processor(processor: usize) -> Result<()> {
    crate::task::pin_thread(None, &[processor])
}

/// Returns the CPUs that this thread may use.
pub fn allowed_processors() -> Result<Vec<usize>> {
    let set =
        rustix::thread::sched_getaffinity(None).context("sched_getaffinity", "this thread")?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Restricts this thread, and threads that it starts later, to the CPUs in `processors`. Ignores
/// CPU numbers beyond the kernel's maximum.
pub fn pin_to_processors(processors: &[usize]) -> Result<()> {
    let known = |processor: &usize| *processor < rustix::thread::CpuSet::MAX_CPU;
    let known: Vec<usize> = processors.iter().copied().filter(known).collect();
    crate::task::pin_thread(None, &known)
}

/// Sets this thread's timer slack to 1 ns. With the default slack, waits may end up to 50 µs late.
pub fn set_minimal_timer_slack() {
    // On failure waits are merely less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Gives this thread real-time priority (`SCHED_FIFO`), so that it runs before all ordinary
/// threads. Needs CAP_SYS_NICE.
pub fn set_real_time_priority() -> Result<()> {
    // The kernel's structure has one member. The structure of musl has more members, and the
    // sched_setscheduler(3) of musl always fails, so the system call is made directly.
    let priority: libc::c_int = 1;
    let number = libc::SYS_sched_setscheduler;
    // SAFETY: sched_setscheduler(2) reads the integer, which is valid; 0 is the calling thread.
    let set = unsafe { libc::syscall(number, 0, libc::SCHED_FIFO, &raw const priority) };
    match set {
        0 => Ok(()),
        _ => Err(Error::last_os_error("sched_setscheduler", "SCHED_FIFO")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_has_the_rights_of_a_user_and_no_descriptors() {
        let Some(()) = testkit::need::require_root() else { return };
        let (inherited, _peer) = crate::descriptor::socket_pair().unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let user = UserIds { uid: 64_001, gid: 64_002, groups: vec![64_003, 64_004] };
        let mut command = Command::new("sh");
        command.args(["-c", "ls /proc/self/fd | wc -l; cat /proc/$$/status; ps -o sid= -p $$"]);
        let output = set_command_user(&mut command, &user).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        // The fourth descriptor is that of the listed directory.
        assert_eq!(text.lines().next(), Some("4"), "{text}");
        assert_eq!(field("Uid:"), "64001 64001 64001 64001");
        assert_eq!(field("Gid:"), "64002 64002 64002 64002");
        assert_eq!(field("Groups:"), "64003 64004");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert_eq!(u64::from_str_radix(&field(set), 16), Ok(0), "{set}");
        }
        assert_eq!(text.lines().last().map(str::trim), Some(field("Pid:").as_str()), "a session");
    }

    #[test]
    fn thread_is_pinned_to_an_existing_cpu_only() {
        let pinned = std::thread::spawn(|| (pin_to_processor(0), pin_to_processor(100_000)));
        let (first, beyond) = pinned.join().unwrap();
        first.unwrap();
        assert_eq!(beyond.unwrap_err().errno, libc::EINVAL);
    }
}
