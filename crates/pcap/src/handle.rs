//! Table of the program's capture handles that this library serves, by address.
//!
//! The table is static and is searched without a lock, so that `pcap_breakloop` can use it in a
//! signal handler. If the table is full, further handles are left to libpcap.

use crate::live::LiveCapture;
use crate::settings::Settings;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of handles in the table.
const HANDLES_MAX: usize = 64;
/// `PCAP_ERRBUF_SIZE`: the size of an error text in bytes.
pub(crate) const ERROR_BUFFER_SIZE: usize = 256;
/// Value of a descriptor number that is not set.
const NO_DESCRIPTOR: i32 = -1;

/// Status values that a call returns, as libpcap defines them.
pub(crate) mod status {
    /// `PCAP_ERROR`: the call failed, for the reason in the error text.
    pub(crate) const ERROR: i32 = -1;
    /// `PCAP_ERROR_BREAK`: `pcap_breakloop` was called.
    pub(crate) const BREAK: i32 = -2;
    /// `PCAP_ERROR_ACTIVATED`: the handle has already been activated.
    pub(crate) const ACTIVATED: i32 = -4;
}

static HANDLES: [Handle; HANDLES_MAX] = [const { Handle::new() }; HANDLES_MAX];
/// Number of entries of the table that have ever been used.
static USED_HANDLE_COUNT: AtomicUsize = AtomicUsize::new(0);

/// A handle that libpcap has created for the program.
#[derive(Debug)]
pub(crate) struct Handle {
    /// Address of libpcap's handle, or 0 if the entry is free.
    address: AtomicUsize,
    /// True if `pcap_breakloop` has requested the end of the current or next read.
    has_break_request: AtomicBool,
    /// Number of the descriptor that wakes a blocked read of the handle, or [`NO_DESCRIPTOR`].
    waker: AtomicI32,
    settings: Mutex<Settings>,
    /// Capture from which this library reads the handle; `None` before activation, and if libpcap
    /// reads the handle.
    live: Mutex<Option<Arc<LiveCapture>>>,
    /// Error text of the last failed call, terminated by a zero byte.
    error: Mutex<[u8; ERROR_BUFFER_SIZE]>,
}

/// Finds a handle by the address that the program passes; `None` if the handle is not in the table.
pub(crate) fn find(address: usize) -> Option<&'static Handle> {
    let used = USED_HANDLE_COUNT.load(Ordering::Acquire).min(HANDLES_MAX);
    let known = |handle: &&Handle| handle.address.load(Ordering::Acquire) == address;
    HANDLES.iter().take(used).find(known).filter(|_| address != 0)
}

/// Adds a handle that libpcap has created for this device. Returns `None` if the table is full.
pub(crate) fn add(address: usize, device: &str) -> Option<&'static Handle> {
    let takes = |handle: &&Handle| {
        let new = handle.address.compare_exchange(0, address, Ordering::AcqRel, Ordering::Relaxed);
        new.is_ok()
    };
    let place = HANDLES.iter().position(|handle| takes(&handle))?;
    let handle = HANDLES.get(place)?;
    handle.reset();
    handle.settings().device = device.to_owned();
    USED_HANDLE_COUNT.fetch_max(place + 1, Ordering::AcqRel);
    Some(handle)
}

/// Calls `body` with each capture that is still open.
pub(crate) fn for_each_capture(mut body: impl FnMut(&LiveCapture)) {
    for handle in HANDLES.iter().take(USED_HANDLE_COUNT.load(Ordering::Acquire).min(HANDLES_MAX)) {
        if let Some(live) = handle.try_live_capture() {
            body(&live);
        }
    }
}

impl Handle {
    const fn new() -> Self {
        Self {
            address: AtomicUsize::new(0),
            has_break_request: AtomicBool::new(false),
            waker: AtomicI32::new(NO_DESCRIPTOR),
            settings: Mutex::new(Settings::new()),
            live: Mutex::new(None),
            error: Mutex::new([0; ERROR_BUFFER_SIZE]),
        }
    }

    fn reset(&self) {
        self.has_break_request.store(false, Ordering::Relaxed);
        self.waker.store(NO_DESCRIPTOR, Ordering::Release);
        *self.settings() = Settings::new();
        *lock(&self.live) = None;
        self.set_error("");
    }

    /// Removes the handle from the table, and returns its capture; `None` if the handle has not
    /// been activated, or if libpcap reads it.
    pub(crate) fn remove(&self) -> Option<Arc<LiveCapture>> {
        self.waker.store(NO_DESCRIPTOR, Ordering::Release);
        let live = lock(&self.live).take();
        self.address.store(0, Ordering::Release);
        live
    }

    /// Locks and returns the settings that the program has made on the handle.
    pub(crate) fn settings(&self) -> MutexGuard<'_, Settings> {
        lock(&self.settings)
    }

    /// Returns the capture; `None` before activation, and if libpcap reads the handle.
    pub(crate) fn live_capture(&self) -> Option<Arc<LiveCapture>> {
        lock(&self.live).clone()
    }

    /// Returns the capture like [`Self::live`]; safe to call in a signal handler. Also returns
    /// `None` if the lock is held, which may be by the code that the signal has interrupted.
    pub(crate) fn try_live_capture(&self) -> Option<Arc<LiveCapture>> {
        self.live.try_lock().ok()?.clone()
    }

    /// Stores the capture from which the handle will be read.
    pub(crate) fn set_live_capture(&self, live: LiveCapture) {
        self.waker.store(live.waker_fd(), Ordering::Release);
        *lock(&self.live) = Some(Arc::new(live));
    }

    /// Ends the current or the next read. Safe to call in a signal handler.
    pub(crate) fn break_loop(&self) {
        self.has_break_request.store(true, Ordering::Release);
        if let Some(waker) = sys::preload::borrow_descriptor(self.waker.load(Ordering::Acquire)) {
            sys::preload::write_all(waker, &1u64.to_ne_bytes());
        }
    }

    /// Returns true if the program has requested the end of the read, and clears the request.
    pub(crate) fn take_break_request(&self) -> bool {
        self.has_break_request.load(Ordering::Relaxed)
            && self.has_break_request.swap(false, Ordering::AcqRel)
    }

    /// Sets the error text. Returns [`status::ERROR`].
    pub(crate) fn set_error(&self, text: &str) -> i32 {
        let mut place = lock(&self.error);
        place.fill(0);
        for (to, from) in place.iter_mut().take(ERROR_BUFFER_SIZE - 1).zip(text.bytes()) {
            *to = from;
        }
        status::ERROR
    }

    /// Returns the address of the error text, which remains valid.
    pub(crate) fn error_address(&self) -> *mut u8 {
        lock(&self.error).as_mut_ptr()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
