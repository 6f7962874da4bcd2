//! Forwarding of signals to child programs in this process's process group, and the exit statuses
//! of these programs.
//!
//! Without job control a shell puts a whole pipeline into one group. The kernel delivers a signal
//! from the terminal to every member, so this process neither forwards such a signal nor exits;
//! like a shell, it waits until its children have exited. A signal sent to this process alone is
//! forwarded. A child that is being started when the signal arrives, or is started later, gets the
//! signal from [`add`]. Otherwise the signal could be lost, because a child has the handlers of
//! this process until its exec. A signal that is ignored at the start (`nohup`, or a job of a
//! script in the background) stays ignored, also by the children.

use crate::error::{Error, Result};
use crate::process_group::ProcessOutcome;
use crate::signal::{install_action, is_signal_ignored};
use crate::signal_table::SignalTable;
use rustix::process::{Pid, WaitIdOptions};
use std::os::fd::{AsFd, FromRawFd as _, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicI32, Ordering};

/// Maximum number of children that receive forwarded signals.
const CHILDREN_MAX: usize = 64;
static CHILDREN: SignalTable<CHILDREN_MAX> = SignalTable::new();
/// The last signal that was received, forwarded or not; 0 for none. A child added later receives it
/// at once.
static LAST_RECEIVED_SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Exit status that [`wait`] returns if the child's own status is unknown, because waiting failed.
const WAIT_FAILED_STATUS: i32 = 127;

/// Restores the default action of SIGCHLD, so that the id and the exit status of an exited child
/// remain until this process waits for it. A process inherits the action, and while SIGCHLD is
/// ignored the kernel reaps each child as soon as it exits (wait(2)). Programs that this process
/// starts inherit the default action.
pub fn keep_exited_children() -> Result<()> {
    install_action(libc::SIGCHLD, libc::SIG_DFL, 0)
}

/// Installs handlers for SIGINT, SIGTERM, SIGHUP and SIGQUIT that forward these signals to the
/// children if a process, rather than the terminal, sent them. Signals that are ignored stay
/// ignored.
pub fn forward_signals() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        if is_signal_ignored(signal)? {
            continue;
        }
        let handler: extern "C" fn(libc::c_int, *const libc::siginfo_t, *const libc::c_void) =
            on_signal;
        let flags = libc::SA_RESTART | libc::SA_SIGINFO;
        install_action(signal, handler as *const () as libc::sighandler_t, flags)?;
    }
    Ok(())
}

/// Terminates this process with SIGINT or SIGQUIT if it has received this signal and `status`, as
/// returned by [`wait`], shows that the signal also killed a child. Only then does a shell that
/// runs this process in a loop end the loop after ^C.
pub fn exit_by_received_signal(status: u8) {
    let signal = LAST_RECEIVED_SIGNAL.load(Ordering::SeqCst);
    if [libc::SIGINT, libc::SIGQUIT].contains(&signal) && i32::from(status) == 128 + signal {
        let number = rustix::process::Signal::from_named_raw(signal);
        if let (Ok(()), Some(number)) = (install_action(signal, libc::SIG_DFL, 0), number) {
            let _ = rustix::process::kill_process(rustix::process::getpid(), number);
        }
    }
}

/// Signal handler. Uses only atomics and kill(2), which signal-safety(7) allows.
extern "C" fn on_signal(
    signal: libc::c_int,
    about: *const libc::siginfo_t,
    _: *const libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a structure that stays valid while the handler
    // runs.
    let from_terminal = unsafe { (*about).si_code } > 0;
    // SYNC POINT: forwarding; pairs with the load in `add`. SeqCst on both sides: either the loop
    // below sees the new child, or `add` sees the signal.
    LAST_RECEIVED_SIGNAL.store(signal, Ordering::SeqCst);
    if from_terminal {
        return;
    }
    crate::signal::preserve_errno(|| CHILDREN.for_each(|child| send_signal(child, signal)));
}

fn send_signal(child: i32, signal: libc::c_int) {
    // SAFETY: kill(2) accepts any numbers. The number belongs to the child, which `wait` reaps only
    // after it has removed the child from the table.
    unsafe { libc::kill(child, signal) };
}

/// Adds a child to the table of children that receive forwarded signals, unless the table is full.
/// If this process has received a signal before, sends the last one to the child at once.
pub fn add(child: &Child) {
    let pid = Pid::from_child(child).as_raw_nonzero().get();
    if let Some(slot) = CHILDREN.reserve() {
        CHILDREN.set_process(slot, Some(pid));
    }
    // SYNC POINT: forwarding; pairs with the store in `on_signal`.
    let signal = LAST_RECEIVED_SIGNAL.load(Ordering::SeqCst);
    if signal != 0 {
        send_signal(pid, signal);
    }
}

/// Waits for a child and returns its status as a shell reports it: the exit status, 128 plus the
/// signal number, or 127 if the wait failed.
pub fn wait(child: &mut Child) -> u8 {
    let pid = Pid::from_child(child);
    // Does not reap the child, so its process id is not reused before the child is removed from the
    // table.
    let ended = ProcessOutcome::observe(pid, WaitIdOptions::empty());
    // A child beyond the table's size was never entered.
    if let Some(slot) = CHILDREN.find(pid.as_raw_nonzero().get()) {
        CHILDREN.remove(slot);
    }
    // Reaps the child. Its status is already known, so an error is ignored.
    let _ = child.wait();
    let code = match ended {
        Ok(Some(ProcessOutcome::Status(status))) => status,
        Ok(Some(ProcessOutcome::Signal(signal))) => 128 + signal,
        Ok(None) | Err(_) => WAIT_FAILED_STATUS,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Duplicates a descriptor to a number of at least `lowest`. The duplicate stays open across exec.
pub fn duplicate_inheritable(fd: impl AsFd, lowest: i32) -> Result<OwnedFd> {
    use std::os::fd::AsRawFd as _;
    // SAFETY: fcntl(2) with F_DUPFD accepts any number and returns a new descriptor.
    let made = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), libc::F_DUPFD, lowest) };
    if made < 0 {
        return Err(Error::last_os_error("fcntl", "F_DUPFD"));
    }
    // SAFETY: F_DUPFD has just created the descriptor, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Mutex, PoisonError};

    /// Lock that each test holds while it uses the statics of this module, so that these tests run
    /// one after another.
    static STATICS_LOCK: Mutex<()> = Mutex::new(());

    /// Number of children for which [`child_is_not_reaped_while_it_gets_signals`] waits. With so
    /// many, the test almost certainly detects a `wait` that reaps a child before removing it from
    /// the table.
    const CHILDREN_WAITED_FOR: usize = 100;

    #[test]
    fn child_is_not_reaped_while_it_gets_signals() {
        let _alone = STATICS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let is_done = AtomicBool::new(false);
        let reaped = std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut reaped = 0;
                while !is_done.load(Ordering::Relaxed) {
                    CHILDREN.for_each(|pid| {
                        // SAFETY: kill(2) with signal 0 only checks that the process exists.
                        let exists = unsafe { libc::kill(pid, 0) } == 0;
                        reaped += usize::from(!exists);
                    });
                }
                reaped
            });
            for _ in 0..CHILDREN_WAITED_FOR {
                let mut child = Command::new("true").spawn().unwrap();
                add(&child);
                assert_eq!(wait(&mut child), 0);
            }
            is_done.store(true, Ordering::Relaxed);
            observer.join().unwrap()
        });
        assert_eq!(reaped, 0);
    }

    /// Expects a child to get a signal of the terminal that arrived while the child was being
    /// started. Otherwise, ^C would not end a pipeline that is being started.
    #[test]
    fn child_started_around_a_signal_of_the_terminal_gets_it() {
        let _alone = STATICS_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        // SIGTERM, because a test in the background of a script inherits that SIGINT is ignored.
        // SAFETY: all-zero bytes are a value of this structure of numbers.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        about.si_code = libc::SI_KERNEL;
        on_signal(libc::SIGTERM, &raw const about, std::ptr::null());
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        add(&child);
        LAST_RECEIVED_SIGNAL.store(0, Ordering::SeqCst);
        // Ends the child if it did not get SIGTERM; an earlier signal decides the status.
        send_signal(Pid::from_child(&child).as_raw_nonzero().get(), libc::SIGUSR1);
        assert_eq!(i32::from(wait(&mut child)), 128 + libc::SIGTERM);
    }
}
