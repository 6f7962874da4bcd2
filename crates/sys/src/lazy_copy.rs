//! Lazy copies: the bytes of the source are copied into a buffer only when the program accesses the
//! buffer. [SL §5.3.3, lazy copying]
//!
//! The buffer appears to be a copy of a source, but access to its pages is revoked. The first
//! access faults, and the handler restores access and copies the bytes. If there is no access, the
//! cost is two changes to the page protection and no copy. The module is an experiment, used only
//! by `streamline bench lazy`.
//!
//! Invariants, cited below:
//! - L1 A slot in [`BUFFER_SLOTS`] belongs to one [`LazyBuffer`], which reserves the slot before
//!   publishing its pages there, and frees the slot before unmapping these pages.
//! - L2 `source` is nonzero only while there is a [`LazyCopy`], which borrows the buffer and a
//!   source of the same length.
//! - L3 The handler writes only pages to which access is revoked at that moment: no thread can
//!   access these pages except the thread that has just faulted, or is waiting for the same fault.

use crate::error::{Error, ErrorContext as _, Result};
use crate::memory::Mapping;
use rustix::mm::{MprotectFlags, mprotect};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maximum number of lazy buffers that exist at one time.
const LAZY_BUFFERS_MAX: usize = 8;
static BUFFER_SLOTS: [BufferSlot; LAZY_BUFFERS_MAX] =
    [const { BufferSlot::new_free() }; LAZY_BUFFERS_MAX];
static INSTALL_HANDLER: Once = Once::new();

/// The addresses of a lazy buffer and of its source, for the SIGSEGV handler.
struct BufferSlot {
    /// Address of the lazy buffer; 0 marks a free slot, 1 a reserved one.
    base: AtomicUsize,
    len: AtomicUsize,
    /// Address of the bytes that the buffer copies lazily; 0 while access to the buffer's pages is
    /// not revoked.
    source: AtomicUsize,
    faults: AtomicU64,
}

impl BufferSlot {
    const fn new_free() -> Self {
        Self {
            base: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            source: AtomicUsize::new(0),
            faults: AtomicU64::new(0),
        }
    }
}

/// A buffer that can become a lazy copy: its pages are then inaccessible until the program touches
/// them.
#[derive(Debug)]
pub struct LazyBuffer {
    pages: Mapping,
    place: usize,
}

const PAGE_SIZE: usize = 4096;

impl LazyBuffer {
    /// Allocates `len` bytes, rounded up to whole pages.
    ///
    /// Fails with ENOSPC if there are eight buffers already.
    pub fn new(len: usize) -> Result<Self> {
        let pages = Mapping::anonymous(len.max(1).next_multiple_of(PAGE_SIZE))?;
        pages.populate(0, pages.len())?;
        let is_taken = |place: &BufferSlot| {
            place.base.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let place = BUFFER_SLOTS.iter().position(is_taken);
        let place = place.ok_or_else(|| Error::new("mprotect", "a ninth buffer", libc::ENOSPC))?;
        INSTALL_HANDLER.call_once(install_handler);
        let known = &BUFFER_SLOTS[place];
        known.len.store(pages.len(), Ordering::Relaxed);
        known.faults.store(0, Ordering::Relaxed);
        known.base.store(pages.base().as_ptr().addr(), Ordering::Release);
        Ok(Self { pages, place })
    }

    /// Makes the buffer a lazy copy of `source`, which must be as long as the buffer.
    pub fn copy_lazily<'a>(&'a mut self, source: &'a [u8]) -> Result<LazyCopy<'a>> {
        if source.len() != self.pages.len() {
            return Err(Error::new("mprotect", "a source of another length", libc::EINVAL));
        }
        self.set_page_protection(MprotectFlags::empty())?;
        // L2: the guard borrows both.
        BUFFER_SLOTS[self.place].source.store(source.as_ptr().addr(), Ordering::Release);
        Ok(LazyCopy { buffer: self, source: PhantomData })
    }

    /// Returns the number of accesses that made the handler copy bytes into the buffer.
    #[must_use]
    pub fn copies_made(&self) -> u64 {
        BUFFER_SLOTS[self.place].faults.load(Ordering::Relaxed)
    }

    fn set_page_protection(&self, access: MprotectFlags) -> Result<()> {
        let base = self.pages.base().as_ptr().cast();
        // SAFETY: the range is all of our own mapping; only `LazyCopy` lends its bytes, and the
        // handler resolves the first access to a revoked page.
        let changed = unsafe { mprotect(base, self.pages.len(), access) };
        changed.context("mprotect", format!("{} bytes", self.pages.len()))
    }
}

impl Drop for LazyBuffer {
    fn drop(&mut self) {
        // L1: cleared before the pages are unmapped.
        BUFFER_SLOTS[self.place].base.store(0, Ordering::Release);
    }
}

/// A lazy copy in a [`LazyBuffer`]. On the first access, the handler copies the bytes.
#[derive(Debug)]
pub struct LazyCopy<'a> {
    buffer: &'a LazyBuffer,
    source: PhantomData<&'a [u8]>,
}

impl LazyCopy<'_> {
    /// Returns the address of the buffer, without accessing its bytes.
    #[must_use]
    pub fn address(&self) -> usize {
        self.buffer.pages.base().as_ptr().addr()
    }

    /// Returns true if the buffer has not been accessed. The source may then be used instead.
    #[must_use]
    pub fn is_untouched(&self) -> bool {
        BUFFER_SLOTS[self.buffer.place].source.load(Ordering::Acquire) != 0
    }
}

impl Deref for LazyCopy<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let base = self.buffer.pages.base().as_ptr();
        // SAFETY: the range is our mapping, initialized (anonymous memory is zero). Any access
        // either finds the copy, or faults and finds it then (L3); no code writes it afterwards.
        unsafe { std::slice::from_raw_parts(base, self.buffer.pages.len()) }
    }
}

impl Drop for LazyCopy<'_> {
    fn drop(&mut self) {
        let untouched = BUFFER_SLOTS[self.buffer.place].source.swap(0, Ordering::AcqRel) != 0;
        if untouched {
            // If access cannot be restored, the next lazy copy reports the error.
            let _given_back =
                self.buffer.set_page_protection(MprotectFlags::READ | MprotectFlags::WRITE);
        }
    }
}

/// Installs the SIGSEGV handler.
fn install_handler() {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_fault;
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: all-zero bytes are a valid `sigaction` (no flags, default action, empty mask).
    let action = unsafe { action.assume_init_mut() };
    action.sa_sigaction = handler as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: `action` is a fully initialized sigaction, and the handler calls nothing that
    // signal-safety(7) does not allow.
    let installed = unsafe { libc::sigaction(libc::SIGSEGV, action, ptr::null_mut()) };
    debug_assert_eq!(installed, 0, "SIGSEGV can be caught");
}

/// SIGSEGV handler. On an access to a revoked buffer, restores access and copies the source; any
/// other fault results in the default action.
extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a siginfo to a handler with SA_SIGINFO.
    let info = unsafe { &*info };
    // SAFETY: for SIGSEGV this field of the union holds the address (sigaction(2)).
    let address = unsafe { info.si_addr() }.addr();
    for place in &BUFFER_SLOTS {
        let (base, len) = (place.base.load(Ordering::Acquire), place.len.load(Ordering::Relaxed));
        if base <= 1 || address.wrapping_sub(base) >= len {
            continue;
        }
        let source = place.source.swap(0, Ordering::AcqRel);
        if source == 0 {
            break;
        }
        let access = MprotectFlags::READ | MprotectFlags::WRITE;
        let to = ptr::with_exposed_provenance_mut::<u8>(base);
        // SAFETY: the pages of the buffer that has this place (L1).
        if unsafe { mprotect(to.cast(), len, access) }.is_err() {
            break;
        }
        let from = ptr::with_exposed_provenance::<u8>(source);
        // SAFETY: both ranges have `len` valid bytes (L1, L2) and do not overlap; no other code
        // writes these pages, which were revoked until now (L3).
        unsafe { ptr::copy_nonoverlapping(from, to, len) };
        place.faults.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: SIG_DFL is a valid action; the access is repeated, faults again and ends the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn e3_lazy_copy_is_made_on_first_access_only() {
        let source: Vec<u8> = (0..3 * PAGE_SIZE).map(|at| at as u8).collect();
        let mut buffer = LazyBuffer::new(source.len()).unwrap();
        for round in 1..=3 {
            let lazy = buffer.copy_lazily(&source).unwrap();
            assert!(lazy.is_untouched());
            assert_eq!(lazy[5000], 5000_u32 as u8, "in the middle of what is revoked");
            assert!(!lazy.is_untouched());
            assert_eq!(*lazy, source[..]);
            drop(lazy);
            assert_eq!(buffer.copies_made(), round);
        }
        assert!(buffer.copy_lazily(&source).unwrap().is_untouched(), "and nobody looks");
        assert_eq!(buffer.copies_made(), 3);
        assert!(buffer.copy_lazily(&source[1..]).is_err());
    }
}
