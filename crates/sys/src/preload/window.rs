//! Windows: buffers of a program that represent ranges of files. Their pages are inaccessible until
//! the program touches them. [SL §5.3.3: page access revocation; FEATURES E3, E4]
//!
//! A window is used by one thread of the program and by the SIGSEGV handler that interrupts it, so
//! its fields are atomics and the handler never waits. A buffer that the program has touched is
//! never used as a window again, because faults cost more than copies.
//!
//! Invariants, cited below:
//! - W1 The pages from `base` to `base + span` are memory into which the program has requested to
//!   read a file. Only these pages are made inaccessible. Before they become accessible again, they
//!   are filled, by pread(2), with the bytes that the program expects in them.

use rustix::mm::{MprotectFlags, mprotect};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of windows, which are buffers of the program that represent ranges of files. A
/// window whose buffer the program has touched still counts, because this module remembers the
/// buffer.
const WINDOWS_MAX: usize = 4;

#[derive(Debug)]
struct Window {
    /// Address of the first page of the window's buffer; 0 marks an unused window.
    base: AtomicUsize,
    /// Size of the buffer's inaccessible pages in bytes.
    span: AtomicUsize,
    /// Number of bytes of the file that the buffer represents; 0 if its pages hold the program's
    /// own contents.
    len: AtomicUsize,
    /// Descriptor number under which this library holds the file open.
    number: AtomicUsize,
    /// Offset in the file of the byte that the buffer's first byte represents.
    at: AtomicU64,
    /// True once the program has accessed the buffer's pages.
    touched: AtomicBool,
}

static WINDOWS: [Window; WINDOWS_MAX] = [const {
    Window {
        base: AtomicUsize::new(0),
        span: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        number: AtomicUsize::new(0),
        at: AtomicU64::new(0),
        touched: AtomicBool::new(false),
    }
}; WINDOWS_MAX];

/// The SIGSEGV action of the program before our handler was installed.
static PREVIOUS_SIGSEGV_ACTION: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the SIGSEGV handler. Returns false if the installation fails.
pub fn install_handler() -> bool {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut before = action;
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both structures outlive the call; the handler is signal-safe (below).
    let done = unsafe { libc::sigaction(libc::SIGSEGV, &raw const action, &raw mut before) };
    done == 0 && PREVIOUS_SIGSEGV_ACTION.set(before).is_ok()
}

/// SIGSEGV handler. Uses only atomics, mprotect(2), pread(2), sigaction(2) and raise(3). A fault
/// outside the windows is passed to the program's previous handler.
extern "C" fn on_fault(
    signal: libc::c_int,
    info_pointer: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: with SA_SIGINFO the kernel passes a structure that stays valid while the handler
    // runs.
    let info = unsafe { &*info_pointer };
    // SAFETY: for SIGSEGV the structure holds the address (sigaction(2)).
    let address = unsafe { info.si_addr() }.addr();
    for window in &WINDOWS {
        let base = window.base.load(Ordering::Acquire);
        if base != 0 && (base..base + window.span.load(Ordering::Relaxed)).contains(&address) {
            window.touched.store(true, Ordering::Relaxed);
            window.restore();
            return;
        }
    }
    let Some(before) = PREVIOUS_SIGSEGV_ACTION.get() else { return };
    if matches!(before.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
        // With the old action restored the fault recurs and ends the process; a signal sent by a
        // process is raised again.
        // SAFETY: `before` is the action that was installed previously.
        unsafe { libc::sigaction(signal, ptr::from_ref(before), ptr::null_mut()) };
        if info.si_code <= 0 {
            // SAFETY: raise(3) may be called in a handler (signal-safety(7)).
            unsafe { libc::raise(signal) };
        }
        return;
    }
    type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    // SAFETY: a value other than the two constants is the address of a handler, which accepts these
    // arguments, or the first of them.
    let next = unsafe { std::mem::transmute::<libc::sighandler_t, Handler>(before.sa_sigaction) };
    next(signal, info_pointer, context);
}

/// Turns the `len` bytes at `base` (whole pages) into a window: they represent the bytes of the
/// file with descriptor `number` from offset `at` on. Returns false if the program has already
/// touched this buffer, if the buffer overlaps another window, if no window is free, or if the
/// kernel refuses.
#[must_use]
pub fn create_window(base: usize, len: usize, number: usize, at: u64) -> bool {
    let end = base + len;
    let known = WINDOWS.iter().find(|window| window.base.load(Ordering::Relaxed) == base);
    let window = match known {
        Some(window) => window,
        None => {
            let free = WINDOWS.iter().find(|window| window.base.load(Ordering::Relaxed) == 0);
            match free {
                Some(free) if !overlaps_any_window(base, len) => free,
                _ => return false,
            }
        }
    };
    if window.touched.load(Ordering::Relaxed) {
        return false;
    }
    window.len.store(0, Ordering::Relaxed);
    let span = window.span.load(Ordering::Relaxed);
    if span < len {
        window.base.store(base, Ordering::Release);
        if !set_page_access(base + span, end - base - span, MprotectFlags::empty()) {
            if span == 0 {
                // The window is free again, since no page of the buffer is protected.
                window.base.store(0, Ordering::Release);
            }
            return false;
        }
        window.span.store(len, Ordering::Relaxed);
    }
    window.number.store(number, Ordering::Relaxed);
    window.at.store(at, Ordering::Relaxed);
    window.len.store(len, Ordering::Release);
    true
}

/// Returns the file descriptor and the file offset that correspond to the start of a range, if the
/// range lies inside a window; `None` for any other range.
#[must_use]
pub fn find_window(from: usize, count: usize) -> Option<(usize, u64)> {
    WINDOWS.iter().find_map(|window| {
        let base = window.base.load(Ordering::Relaxed);
        let inside = from.checked_sub(base).filter(|_| base != 0)?;
        let fits = inside.checked_add(count)? <= window.len.load(Ordering::Acquire);
        let at = window.at.load(Ordering::Relaxed) + inside as u64;
        fits.then(|| (window.number.load(Ordering::Relaxed), at))
    })
}

fn overlaps_any_window(from: usize, count: usize) -> bool {
    WINDOWS.iter().any(|window| window.overlaps(from, count))
}

/// Fills the windows that overlap a range of the program's memory with the bytes of their files,
/// and makes them accessible. Called before a call that needs these bytes.
pub fn restore_windows_in_range(from: usize, count: usize) {
    WINDOWS.iter().filter(|window| window.overlaps(from, count)).for_each(Window::restore);
}

/// Fills all windows with the bytes of their files, and makes them accessible.
pub fn restore_all_windows() {
    WINDOWS
        .iter()
        .filter(|window| window.base.load(Ordering::Relaxed) != 0)
        .for_each(Window::restore);
}

impl Window {
    fn overlaps(&self, from: usize, count: usize) -> bool {
        let base = self.base.load(Ordering::Relaxed);
        let end = base + self.span.load(Ordering::Relaxed);
        base != 0 && from < end && base < from.saturating_add(count)
    }

    /// Makes the pages of the window's buffer accessible and fills them from the file, up to the
    /// end of the file.
    fn restore(&self) {
        let base = self.base.load(Ordering::Acquire);
        let span = self.span.swap(0, Ordering::Relaxed);
        let len = self.len.swap(0, Ordering::Relaxed);
        if span > 0 && set_page_access(base, span, MprotectFlags::READ | MprotectFlags::WRITE) {
            let (number, at) =
                (self.number.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
            read_file_into_pages(number, at, base, len);
        }
        if !self.touched.load(Ordering::Relaxed) {
            self.base.store(0, Ordering::Release);
        }
    }
}

fn set_page_access(base: usize, len: usize, flags: MprotectFlags) -> bool {
    let at = ptr::with_exposed_provenance_mut(base);
    // SAFETY: W1: these pages are a buffer of the program, which expects nothing of them until its
    // read call has returned, and then exactly the bytes that it gets when it touches them. If they
    // are no longer mapped, the call fails.
    unsafe { mprotect(at, len, flags) }.is_ok()
}

fn read_file_into_pages(number: usize, mut at: u64, to: usize, len: usize) {
    let Ok(number) = libc::c_int::try_from(number) else { return };
    let mut done = 0;
    while done < len {
        let to = ptr::with_exposed_provenance_mut::<u8>(to + done);
        let offset = libc::off_t::try_from(at).unwrap_or(libc::off_t::MAX);
        // SAFETY: the kernel writes into a buffer that the program passed for that purpose (W1),
        // and returns EFAULT where no memory is mapped.
        let count = unsafe { libc::syscall(libc::SYS_pread64, number, to, len - done, offset) };
        match usize::try_from(count) {
            Ok(count) if count > 0 => (done, at) = (done + count, at + count as u64),
            _ => return,
        }
    }
}
