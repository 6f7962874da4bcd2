//! Forwarding of signals to child programs in this process's process group.
//!
//! Without job control a shell puts a whole pipeline into one group. The kernel delivers a signal
//! from the terminal to every member, so this process neither forwards such a signal nor exits;
//! like a shell, it waits until its children have exited. A signal sent to this process alone is
//! forwarded.

use crate::error::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::process::Child;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// Maximum number of children that receive forwarded signals.
const CHILDREN_MAX: usize = 64;
static CHILDREN: [AtomicI32; CHILDREN_MAX] = [const { AtomicI32::new(0) }; CHILDREN_MAX];
/// The last forwarded signal, or 0. A child added later receives this signal at once.
static LAST_FORWARDED: AtomicI32 = AtomicI32::new(0);

/// Installs handlers for SIGINT, SIGTERM, SIGHUP and SIGQUIT that forward these signals to the
/// children if a process, rather than the terminal, sent them.
pub fn forward_signals() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: all-zero bytes are a valid `sigaction`: an empty mask and no flags.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) =
            on_signal;
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART | libc::SA_SIGINFO;
        // SAFETY: `action` is fully initialized and lives through the call; its handler is
        // signal-safe (below).
        let status = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
        if status != 0 {
            return Err(Error::last("sigaction", format!("signal {signal}")));
        }
    }
    Ok(())
}

/// Signal handler. Uses only atomics and kill(2), which signal-safety(7) allows.
extern "C" fn on_signal(
    signal: libc::c_int,
    about: *const libc::siginfo_t,
    _: *const libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel gives a structure that lives as long as the handler runs.
    let from_terminal = unsafe { (*about).si_code } > 0;
    if from_terminal {
        return;
    }
    // SYNC POINT: forwarding; pairs with the load in `add`. SeqCst on both sides: either this loop
    // sees the new child, or `add` sees the signal.
    LAST_FORWARDED.store(signal, Ordering::SeqCst);
    for child in CHILDREN.iter().map(|child| child.load(Ordering::SeqCst)).filter(|pid| *pid > 0) {
        send_signal(child, signal);
    }
}

fn send_signal(child: i32, signal: libc::c_int) {
    // SAFETY: kill(2) accepts any numbers. The number is the child's own, except between the reaping
    // of the child in `wait` and its removal from the table.
    unsafe { libc::kill(child, signal) };
}

/// Adds a child to the table of children that receive forwarded signals, unless the table is full.
/// If a signal has been forwarded before, sends the last one to the child at once.
pub fn add(child: &Child) {
    let pid = i32::try_from(child.id()).unwrap_or(0);
    for place in &CHILDREN {
        if place.compare_exchange(0, pid, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    // SYNC POINT: forwarding; pairs with the store in `on_signal`.
    let signal = LAST_FORWARDED.load(Ordering::SeqCst);
    if signal != 0 && pid > 0 {
        send_signal(pid, signal);
    }
}

/// Waits for a child and returns its status as a shell reports it: the exit status, 128 plus the
/// signal number, or 127 if the wait failed.
pub fn wait(child: &mut Child) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let pid = i32::try_from(child.id()).unwrap_or(0);
    let ended = child.wait();
    for place in &CHILDREN {
        // A child beyond the table's size was never entered.
        let _ = place.compare_exchange(pid, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
    let Ok(status) = ended else { return 127 };
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(127)
}

/// Duplicates a descriptor to a number of at least `lowest`. The duplicate stays open across exec.
pub fn dup_inheritable(fd: impl AsFd, lowest: i32) -> Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    // SAFETY: fcntl(2) with F_DUPFD takes any number and makes a new one.
    let made = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_DUPFD, lowest) };
    if made < 0 {
        return Err(Error::last("fcntl", "F_DUPFD"));
    }
    // SAFETY: F_DUPFD has just made the descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
