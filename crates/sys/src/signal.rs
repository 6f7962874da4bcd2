//! Counting of stop signals, none of which is lost. (CONTRACT 28)
//!
//! The first SIGINT, SIGTERM or SIGHUP requests an orderly stop: [`stop_signal_count`] counts it,
//! and the descriptor from [`watch_stop_signals`] becomes readable. The second SIGINT or SIGTERM
//! kills our child groups ([`crate::process_group`]) and exits with status 130 at once. A signal
//! that follows the first within 100 ms is ignored, because `timeout` signals the process and then
//! its group. SIGHUP stays ignored if it was ignored when the process started (`nohup`).

use crate::error::{Error, Result};
use crate::eventfd::EventFd;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Number of stop signals counted so far.
static STOP_SIGNAL_COUNT: AtomicU32 = AtomicU32::new(0);
/// Descriptor number of the eventfd to which the signal handler writes; -1 if there is none.
static STOP_EVENT_FD: AtomicI32 = AtomicI32::new(-1);
/// Eventfd whose descriptor number is in [`STOP_EVENT_FD`].
static STOP_EVENT: OnceLock<EventFd> = OnceLock::new();

/// Monotonic time in ns of the first stop signal; 0 if there was none.
static FIRST_STOP_SIGNAL_NS: AtomicU64 = AtomicU64::new(0);

/// Time in ns after the first signal during which further signals are ignored.
const REPEAT_INTERVAL_NS: u64 = 100_000_000;
/// Exit status of a process that a second stop signal ends.
const INTERRUPTED_EXIT_STATUS: i32 = 130;

/// Starts counting SIGINT, SIGTERM and SIGHUP. The returned eventfd becomes readable with the first
/// signal. Later calls return the same eventfd.
pub fn watch_stop_signals() -> Result<&'static EventFd> {
    let event = match STOP_EVENT.get() {
        Some(event) => event,
        None => {
            let made = EventFd::new()?;
            STOP_EVENT.get_or_init(|| made)
        }
    };
    STOP_EVENT_FD.store(event.as_fd().as_raw_fd(), Ordering::Release);
    let handler: extern "C" fn(libc::c_int) = on_stop_signal;
    let hangup = (!is_signal_ignored(libc::SIGHUP)?).then_some(libc::SIGHUP);
    for signal in [libc::SIGINT, libc::SIGTERM].into_iter().chain(hangup) {
        install_action(signal, handler as *const () as libc::sighandler_t, libc::SA_RESTART)?;
    }
    Ok(event)
}

/// Returns the eventfd of [`watch_stop_signals`]; `None` before the first call of
/// [`watch_stop_signals`].
pub fn stop_event() -> Option<&'static EventFd> {
    STOP_EVENT.get()
}

/// Returns the number of stop signals counted: 0 or 1, because the second ends the process.
pub fn stop_signal_count() -> u32 {
    STOP_SIGNAL_COUNT.load(Ordering::Acquire)
}

/// Signal handler. Uses only atomics, clock_gettime(2), write(2), kill(2) and _exit(2), which
/// signal-safety(7) allows.
extern "C" fn on_stop_signal(signal: libc::c_int) {
    let now = crate::clock::monotonic_ns().max(1);
    let first = FIRST_STOP_SIGNAL_NS.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err_and(|first| now.saturating_sub(first) < REPEAT_INTERVAL_NS) {
        return;
    }
    // The kernel and the shell both send SIGHUP when a terminal closes, so a repeated SIGHUP is
    // ignored.
    if signal == libc::SIGHUP && stop_signal_count() > 0 {
        return;
    }
    if STOP_SIGNAL_COUNT.fetch_add(1, Ordering::AcqRel) > 0 {
        crate::process_group::kill_all_process_groups();
        // SAFETY: _exit(2) may be called at any time and does not return.
        unsafe { libc::_exit(INTERRUPTED_EXIT_STATUS) }
    }
    let one = 1u64;
    let event = STOP_EVENT_FD.load(Ordering::Acquire);
    preserve_errno(|| {
        // SAFETY: the buffer is 8 readable bytes; with an invalid descriptor the call only fails
        // (write(2)).
        unsafe { libc::write(event, ptr::from_ref(&one).cast(), size_of::<u64>()) };
    });
}

/// Runs `body`, which is part of a signal handler, and then restores `errno` for the interrupted
/// code.
pub(crate) fn preserve_errno(body: impl FnOnce()) {
    // SAFETY: errno belongs to this thread; its address is valid as long as the thread runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address was just given out for this thread.
    let before = unsafe { errno.read() };
    body();
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

/// Returns true if the process ignores this signal.
pub(crate) fn is_signal_ignored(signal: libc::c_int) -> Result<bool> {
    // SAFETY: all-zero bytes are a valid `sigaction`: an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: no new action is given, and `action` is valid for the current one (sigaction(2)).
    let status = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    if status != 0 {
        return Err(Error::last_os_error("sigaction", format!("signal {signal}")));
    }
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Sets the action of a signal; `handler` must be signal-safe and match `flags` (sigaction(2)).
pub(crate) fn install_action(
    signal: libc::c_int,
    handler: libc::sighandler_t,
    flags: libc::c_int,
) -> Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`: an empty mask and no flags.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: `action` is fully initialized and outlives the call; its handler is signal-safe (its
    // caller's promise), or one of the constants of sigaction(2).
    let status = unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) };
    if status == 0 {
        Ok(())
    } else {
        Err(Error::last_os_error("sigaction", format!("signal {signal}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raise(signal: i32) {
        // SAFETY: raise(3) sends a signal to this thread, and only after `watch` has installed a
        // handler for it.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
    }

    /// Raises a stop signal. This must remain the only test that does so, because the count of stop
    /// signals is global to the process.
    #[test]
    fn first_stop_signal_is_counted_and_wakes_the_watcher() {
        let event = watch_stop_signals().unwrap();
        assert!(ptr::eq(event, watch_stop_signals().unwrap()));
        assert_eq!(stop_signal_count(), 0);
        raise(libc::SIGTERM);
        assert_eq!(stop_signal_count(), 1);
        // Makes the next signal count as simultaneous with the first one, even if this thread
        // continues late.
        FIRST_STOP_SIGNAL_NS.store(u64::MAX, Ordering::Release);
        raise(libc::SIGTERM);
        assert_eq!(stop_signal_count(), 1, "the same signal, sent to us and to our group");
        FIRST_STOP_SIGNAL_NS.store(1, Ordering::Release);
        raise(libc::SIGHUP);
        assert_eq!(stop_signal_count(), 1, "a closed terminal sends it twice");
        assert_eq!(crate::poll::wait_until_readable(&[event.as_fd()], None), [true]);
    }
}
