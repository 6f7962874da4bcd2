//! Buffers of a program that stand for ranges of files: pages that were made inaccessible, and what
//! happens when the program looks. [SL §5.3.3: page access revocation; FEATURES E3, E4]
//!
//! A window is used by one thread of the program, and by the handler of SIGSEGV that interrupts it;
//! so its words are atomics, and a handler never waits. Where a window was looked into, it is never
//! lent again: faults cost more than copies.
//!
//! Invariants, cited below:
//! - W1 The pages from `base` to `base + span` are memory into which the program asked to have a
//!   file read; only those were made inaccessible, and whoever makes them accessible again first
//!   writes into them, by pread(2), what the program believes to be there.

use rustix::mm::{MprotectFlags, mprotect};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// How many windows there are: the last so many buffers are known.
const WINDOWS: usize = 4;

#[derive(Debug)]
struct Window {
    /// Where it begins; 0: free.
    base: AtomicUsize,
    /// Bytes that are inaccessible.
    span: AtomicUsize,
    /// Bytes that stand for the file; 0: the program's own.
    len: AtomicUsize,
    /// Which file, by a descriptor of ours.
    number: AtomicUsize,
    /// From where on.
    at: AtomicU64,
    /// It was looked into.
    seen: AtomicBool,
}

static LENT: [Window; WINDOWS] = [const {
    Window {
        base: AtomicUsize::new(0),
        span: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        number: AtomicUsize::new(0),
        at: AtomicU64::new(0),
        seen: AtomicBool::new(false),
    }
}; WINDOWS];

/// What was there for SIGSEGV before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Has faults in windows be caught; whether that is possible.
pub fn install_handler() -> bool {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut before = action;
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = fault;
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both structures live through the call; the handler is signal-safe (below).
    let done = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
    done == 0 && BEFORE.set(before).is_ok()
}

/// Only atomics, mprotect(2), pread(2) and sigaction(2) as system calls: signal-safety(7) and what
/// it says of system calls in general.
extern "C" fn fault(signal: libc::c_int, about: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: with SA_SIGINFO the kernel gives a structure that lives as long as the handler runs.
    let about_it = unsafe { &*about };
    // SAFETY: for SIGSEGV the structure holds the address (sigaction(2)).
    let address = unsafe { about_it.si_addr() }.addr();
    for window in &LENT {
        let base = window.base.load(Ordering::Acquire);
        if base != 0 && (base..base + window.span.load(Ordering::Relaxed)).contains(&address) {
            window.seen.store(true, Ordering::Relaxed);
            window.restore();
            return;
        }
    }
    let Some(before) = BEFORE.get() else { return };
    if matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        // It happens again at once, and ends the process as it would have; what somebody has sent
        // is sent again.
        // SAFETY: the structure is the one that was there.
        unsafe { libc::sigaction(signal, ptr::from_ref(before), ptr::null_mut()) };
        if about_it.si_code <= 0 {
            // SAFETY: raise(3) may be called in a handler (signal-safety(7)).
            unsafe { libc::raise(signal) };
        }
        return;
    }
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: what is neither of the two constants is the address of a handler, which takes these
    // arguments, or the first of them.
    let next = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(before.sa_sigaction) };
    next(signal, about, context);
}

/// Has `len` bytes from `base` on (whole pages) stand for those of a file. False: it was looked
/// into before, or there are too many.
#[must_use]
pub fn lend(base: usize, len: usize, number: usize, at: u64) -> bool {
    let end = base + len;
    let known = LENT.iter().find(|window| window.base.load(Ordering::Relaxed) == base);
    let window = match known {
        Some(window) => window,
        None => {
            let free = LENT.iter().find(|window| window.base.load(Ordering::Relaxed) == 0);
            match free {
                Some(free) if !overlaps(base, len) => free,
                _ => return false,
            }
        }
    };
    if window.seen.load(Ordering::Relaxed) {
        return false;
    }
    window.len.store(0, Ordering::Relaxed);
    let span = window.span.load(Ordering::Relaxed);
    if span < len {
        window.base.store(base, Ordering::Release);
        if !access(base + span, end - base - span, MprotectFlags::empty()) {
            return false;
        }
        window.span.store(len, Ordering::Relaxed);
    }
    window.number.store(number, Ordering::Relaxed);
    window.at.store(at, Ordering::Relaxed);
    window.len.store(len, Ordering::Release);
    true
}

/// What the bytes stand for: a file, by its descriptor, and the place in it.
#[must_use]
pub fn find(from: usize, count: usize) -> Option<(usize, u64)> {
    LENT.iter().find_map(|window| {
        let base = window.base.load(Ordering::Relaxed);
        let inside = from.checked_sub(base).filter(|_| base != 0)?;
        let fits = inside.checked_add(count)? <= window.len.load(Ordering::Acquire);
        let at = window.at.load(Ordering::Relaxed) + inside as u64;
        fits.then(|| (window.number.load(Ordering::Relaxed), at))
    })
}

fn overlaps(from: usize, count: usize) -> bool {
    LENT.iter().any(|window| window.overlaps(from, count))
}

/// Has these bytes be the program's own, before a call that needs them.
pub fn restore_range(from: usize, count: usize) {
    LENT.iter().filter(|window| window.overlaps(from, count)).for_each(Window::restore);
}

/// Has all windows be the program's own.
pub fn restore_all() {
    LENT.iter()
        .filter(|window| window.base.load(Ordering::Relaxed) != 0)
        .for_each(Window::restore);
}

impl Window {
    fn overlaps(&self, from: usize, count: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        let end = base + self.span.load(Ordering::Relaxed);
        base != 0 && from < end && base < from.saturating_add(count)
    }

    /// Makes the pages accessible and copies into them what they stand for. A file that was cut
    /// leaves what is left of it.
    fn restore(&self) {
        let base = self.base.load(Ordering::Acquire);
        let span = self.span.swap(0, Ordering::Relaxed);
        let len = self.len.swap(0, Ordering::Relaxed);
        if span > 0 && access(base, span, MprotectFlags::READ | MprotectFlags::WRITE) {
            let (number, at) =
                (self.number.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
            copy(number, at, base, len);
        }
        if !self.seen.load(Ordering::Relaxed) {
            self.base.store(0, Ordering::Release);
        }
    }
}

fn access(base: usize, len: usize, flags: MprotectFlags) -> bool {
    let at = ptr::with_exposed_provenance_mut(base);
    // SAFETY: W1: these pages are a buffer of the program, which expects nothing of them until the
    // call by which it asked for bytes has come back, and then exactly those bytes, which it gets
    // when it looks. Where they are mapped no more, the call fails.
    unsafe { mprotect(at, len, flags) }.is_ok()
}

fn copy(number: usize, mut at: u64, to: usize, len: usize) {
    let Ok(number) = libc::c_int::try_from(number) else { return };
    let mut done = 0;
    while done < len {
        let to = ptr::with_exposed_provenance_mut::<u8>(to + done);
        let offset = libc::off_t::try_from(at).unwrap_or(libc::off_t::MAX);
        // SAFETY: the kernel writes into a buffer that the program gave for that (W1), and answers
        // EFAULT where there is no memory any more.
        let count = unsafe { libc::syscall(libc::SYS_pread64, number, to, len - done, offset) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => (done, at) = (done + count, at + count as u64),
            _ => return,
        }
    }
}
