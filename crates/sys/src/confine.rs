//! Irreversible confinement of a process that runs untrusted code.
//!
//! In this order, the process drops root and all capabilities, gives up the means of regaining
//! privileges (`no_new_privs`), prevents inspection by other processes (dumpable), limits its
//! memory, files and processes, and loses access to the file system and the network (Landlock).
//! Finally it loses all system calls except calls for memory, waiting, and traffic over sockets
//! that are already open (seccomp).
//!
//! A refused call ends the process after the call's number has been sent over a report socket
//! ([`set_report_socket`]). The process also reports over this socket that it is ready, and sends
//! reports as text. Receivers must not trust these reports.
//!
//! seccomp uses an allow list. Landlock forbids nothing that the list allows. It is a second line
//! of defense in case a later kernel extends an allowed call. Without Landlock the process runs
//! under seccomp alone; without seccomp [`confine`] fails.
//!
//! docs/book/decisions/0030-untrusted-filters.md

use crate::error::{Error, ErrorContext as _, Result};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, Ruleset, RulesetAttr as _, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is,
    SeccompCondition as Condition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Exit status after a refused system call, as a shell reports SIGSYS.
pub const REFUSED_CALL_EXIT_STATUS: i32 = 128 + libc::SIGSYS;
/// First byte of a confined process's report about a refused system call. The call's number follows
/// as a little-endian u32.
pub const REFUSED_CALL_REPORT_BYTE: u8 = b'S';
/// First byte of a confined process's report that contains text. The text follows.
pub const TEXT_REPORT_BYTE: u8 = b'T';

/// The Landlock ABI version that defines the access rights to deny. An older kernel denies only the
/// rights that it supports.
const LANDLOCK_ABI: ABI = ABI::V6;

/// Descriptor of the report socket; -1 if none.
static REPORT_SOCKET: AtomicI32 = AtomicI32::new(-1);

/// The extent to which the kernel enforces Landlock rules on this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LandlockSupport {
    /// The kernel enforces all Landlock rules.
    Full,
    /// The kernel enforces only the rules that it supports.
    Partial,
    /// The kernel enforces no rules: Landlock is missing or disabled.
    Missing,
}

/// Makes the kernel kill this process when the thread that started it ends.
pub fn set_parent_death_signal() -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .context("prctl", "PR_SET_PDEATHSIG")
}

/// Closes every descriptor except standard input, output and error.
///
/// Must be called only at the start of a program, because it also closes descriptors that already
/// have an owner.
pub fn close_all_but_standard_streams() -> Result<()> {
    let (first, last, flags) = (3u32, u32::MAX, 0u32);
    // SAFETY: close_range(2) accepts any numbers; at the start of a program no value owns one of
    // them, as the caller promises.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error("close_range", "all descriptors from 3 on")),
    }
}

/// Sets the socket over which this process sends its reports. The socket stays open until the
/// process ends.
pub fn set_report_socket(socket: OwnedFd) {
    REPORT_SOCKET.store(socket.as_raw_fd(), Ordering::Release);
    // The socket is never closed, so that its number stays valid.
    std::mem::forget(socket);
}

/// Sends a report as text, truncated to 511 bytes. Never blocks: the report is lost if the socket
/// is full or not set.
pub fn report(text: &str) {
    let mut message = [0; 512];
    let room = message.len() - 1;
    let length = text.len().min(room);
    message[0] = TEXT_REPORT_BYTE;
    message[1..=length].copy_from_slice(&text.as_bytes()[..length]);
    send_report(&message[..=length]);
}

/// Reports that the process is ready. Sends `words` unchanged, without a first byte such as
/// [`TEXT_REPORT_BYTE`], which marks all other messages.
pub fn report_ready(words: &[u8]) {
    send_report(words);
}

/// Sends a message over the report socket. Uses only an atomic and send(2), which signal-safety(7)
/// allows.
fn send_report(message: &[u8]) {
    let socket = REPORT_SOCKET.load(Ordering::Acquire);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: send(2) reads the message, which is valid; the call fails if the number is not that
    // of a socket.
    unsafe { libc::send(socket, message.as_ptr().cast(), message.len(), flags) };
}

/// Confines this process and returns the extent to which Landlock is enforced. The calling thread
/// must be the only thread of the process. `memory` is the number of bytes by which the process's
/// address space may still grow.
pub fn confine(memory: u64) -> Result<LandlockSupport> {
    drop_privileges()?;
    // A change of user clears the parent-death signal (prctl(2)).
    set_parent_death_signal()?;
    rustix::thread::set_no_new_privs(true).context("prctl", "PR_SET_NO_NEW_PRIVS")?;
    let hidden = DumpableBehavior::NotDumpable;
    rustix::process::set_dumpable_behavior(hidden).context("prctl", "PR_SET_DUMPABLE")?;
    set_resource_limits(memory)?;
    let landlock = enforce_landlock()?;
    restore_fault_actions()?;
    install_sigsys_handler()?;
    let program = seccomp_filter()?;
    seccompiler::apply_filter(&program).map_err(|error| error_from_library("seccomp", &error))?;
    Ok(landlock)
}

/// Returns the extent to which this kernel would enforce Landlock, without enforcing it.
#[must_use]
pub fn landlock_support() -> LandlockSupport {
    let (none, size, version) = (ptr::null::<u8>(), 0usize, 1u32);
    // SAFETY: with the flag for the version landlock_create_ruleset(2) reads no memory.
    let known = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, size, version) };
    match known {
        ..=0 => LandlockSupport::Missing,
        1..6 => LandlockSupport::Partial,
        _ => LandlockSupport::Full,
    }
}

/// Drops all capabilities. Root also becomes user nobody and loses its supplementary groups.
fn drop_privileges() -> Result<()> {
    use rustix::fs::{Gid, Uid};
    if rustix::process::geteuid().is_root() {
        let (group, user) = (
            Gid::from_raw(crate::process::OVERFLOW_ID),
            Uid::from_raw(crate::process::OVERFLOW_ID),
        );
        rustix::thread::set_thread_groups(&[]).context("setgroups", "none")?;
        rustix::thread::set_thread_res_gid(group, group, group).context("setresgid", "nobody")?;
        rustix::thread::set_thread_res_uid(user, user, user).context("setresuid", "nobody")?;
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, none).context("capset", "none")
}

fn set_resource_limits(memory: u64) -> Result<()> {
    let used = used_address_space();
    let most = [
        (Resource::As, used.saturating_add(memory)),
        (Resource::Nproc, 0),
        (Resource::Fsize, 0),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
        (Resource::Sigpending, 0),
    ];
    for (resource, most) in most {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, limit)
            .context("setrlimit", format!("{resource:?}"))?;
    }
    Ok(())
}

/// Returns the size of the address space in use, in bytes (proc_pid_statm(5)).
fn used_address_space() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    pages.saturating_mul(rustix::param::page_size() as u64)
}

/// Denies, through Landlock, opening files, binding and connecting TCP sockets, connecting to
/// abstract sockets of other processes, and signaling other processes. Returns the extent to which
/// the kernel enforces these rules.
fn enforce_landlock() -> Result<LandlockSupport> {
    let rules = || {
        let rules = Ruleset::default().handle_access(AccessFs::from_all(LANDLOCK_ABI))?;
        let rules = rules
            .handle_access(AccessNet::from_all(LANDLOCK_ABI))?
            .scope(Scope::from_all(LANDLOCK_ABI))?;
        rules.create()?.restrict_self()
    };
    let status =
        rules().map_err(|error: landlock::RulesetError| error_from_library("landlock", &error))?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => LandlockSupport::Full,
        RulesetStatus::PartiallyEnforced => LandlockSupport::Partial,
        RulesetStatus::NotEnforced => LandlockSupport::Missing,
    })
}

/// Converts a library's error to [`Error`]. Keeps the errno if there is one; otherwise uses EINVAL
/// and the error's text.
fn error_from_library(call: &'static str, error: &(dyn std::error::Error + 'static)) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(found) = cause {
        let number = found.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        if let Some(number) = number {
            return Error::new(call, "", number);
        }
        cause = found.source();
    }
    Error::new(call, error.to_string(), libc::EINVAL)
}

/// Installs the SIGSYS handler, which reports a refused call and ends the process.
fn install_sigsys_handler() -> Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`: an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) =
        on_sigsys;
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: `action` is fully initialized and outlives the call; its handler is signal-safe
    // (below).
    match unsafe { libc::sigaction(libc::SIGSYS, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error("sigaction", "SIGSYS")),
    }
}

/// Restores the default action of SIGSEGV and SIGBUS. The standard library's handler for these
/// signals, which reports stack overflows, makes system calls that the seccomp filter refuses.
fn restore_fault_actions() -> Result<()> {
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // SAFETY: all-zero bytes are a valid `sigaction`, and mean SIG_DFL.
        let action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: `action` is fully initialized and outlives the call.
        if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
            return Err(Error::last_os_error("sigaction", format!("signal {signal}")));
        }
    }
    Ok(())
}

/// Offset of the system call number in a `siginfo_t` of SIGSYS: after three integers and the
/// aligned call address (sigaction(2), `si_syscall`).
const SI_SYSCALL_OFFSET: usize = 24;

/// SIGSYS handler: reports the refused call and exits. Uses only send(2) and _exit(2), which
/// signal-safety(7) allows.
extern "C" fn on_sigsys(_: libc::c_int, about: *const libc::siginfo_t, _: *const libc::c_void) {
    let place = about.cast::<u8>().wrapping_add(SI_SYSCALL_OFFSET).cast::<u32>();
    // SAFETY: with SA_SIGINFO the kernel passes a structure of 128 bytes that stays valid while the
    // handler runs; for SIGSYS these four bytes are the number of the call.
    let call = unsafe { ptr::read_unaligned(place) }.to_le_bytes();
    send_report(&[REFUSED_CALL_REPORT_BYTE, call[0], call[1], call[2], call[3]]);
    // SAFETY: _exit(2) accepts any status and does not return.
    unsafe { libc::_exit(REFUSED_CALL_EXIT_STATUS) };
}

/// System calls allowed with any arguments: traffic over open descriptors, memory, time, exit.
const ALLOWED_SYSCALLS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getrandom,
    libc::SYS_sched_yield,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Builds the seccomp filter that allows only the listed system calls.
fn seccomp_filter() -> Result<BpfProgram> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED_SYSCALLS.iter().map(|call| (*call, Vec::new())).collect();
    let bits = |number: libc::c_int| u64::try_from(number).unwrap_or(0);
    let (exec, anonymous) = (bits(libc::PROT_EXEC), bits(libc::MAP_ANONYMOUS));
    let own = u64::from(std::process::id());
    // Anonymous memory, never executable.
    let rest = [
        (libc::SYS_mmap, vec![(2, Is::MaskedEq(exec), 0), (3, Is::MaskedEq(anonymous), anonymous)]),
        (libc::SYS_mprotect, vec![(2, Is::MaskedEq(exec), 0)]),
        // Debug builds call this before closing a descriptor.
        (libc::SYS_fcntl, vec![(1, Is::Eq, bits(libc::F_GETFD))]),
        // Called by abort(3).
        (libc::SYS_tgkill, vec![(0, Is::Eq, own), (2, Is::Eq, bits(libc::SIGABRT))]),
    ];
    let wrong = |error: seccompiler::BackendError| error_from_library("seccomp", &error);
    for (call, conditions) in rest {
        let conditions: std::result::Result<Vec<_>, _> = conditions
            .into_iter()
            .map(|(argument, is, value)| Condition::new(argument, Length::Dword, is, value))
            .collect();
        let rule = SeccompRule::new(conditions.map_err(wrong)?).map_err(wrong)?;
        rules.insert(call, vec![rule]);
    }
    let (otherwise, allowed) = (SeccompAction::Trap, SeccompAction::Allow);
    let here = std::env::consts::ARCH.try_into().map_err(wrong)?;
    let filter = SeccompFilter::new(rules, otherwise, allowed, here).map_err(wrong)?;
    filter.try_into().map_err(wrong)
}

/// Returns the name of a system call that hostile code is likely to try; `None` for any other call.
#[must_use]
pub fn syscall_name(call: u32) -> Option<&'static str> {
    let known: &[(libc::c_long, &str)] = &[
        (libc::SYS_openat, "openat"),
        (libc::SYS_openat2, "openat2"),
        (libc::SYS_socket, "socket"),
        (libc::SYS_socketpair, "socketpair"),
        (libc::SYS_connect, "connect"),
        (libc::SYS_bind, "bind"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_clone3, "clone3"),
        (libc::SYS_execve, "execve"),
        (libc::SYS_execveat, "execveat"),
        (libc::SYS_ptrace, "ptrace"),
        (libc::SYS_process_vm_readv, "process_vm_readv"),
        (libc::SYS_process_vm_writev, "process_vm_writev"),
        (libc::SYS_kill, "kill"),
        (libc::SYS_tgkill, "tgkill"),
        (libc::SYS_pidfd_open, "pidfd_open"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_memfd_create, "memfd_create"),
        (libc::SYS_unlinkat, "unlinkat"),
        (libc::SYS_bpf, "bpf"),
        (libc::SYS_io_uring_setup, "io_uring_setup"),
        (libc::SYS_rt_sigaction, "rt_sigaction"),
        (libc::SYS_setresuid, "setresuid"),
        (libc::SYS_prctl, "prctl"),
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_fcntl, "fcntl"),
        (libc::SYS_fallocate, "fallocate"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, "open"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_fork, "fork"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_vfork, "vfork"),
    ];
    known.iter().find(|(number, _)| *number == libc::c_long::from(call)).map(|(_, name)| *name)
}
