//! Frames of a UMEM, each lent to the kernel and returned as a block of a pool.
//!
//! A frame is being filled by the kernel ([`XdpReceiver`]), held as a block, or being sent
//! ([`XdpSender`]). The memory is a [`SegmentLender`] with one frame per segment. A block therefore
//! refers directly to the bytes that the kernel has written, and a forwarded frame stays in place
//! until it has been sent. [SL §5.5: the driver's own ring as a dbuf; FEATURES G1, G6]
//!
//! One word per frame holds the state of the frame. Invariants, cited below:
//! - F1 A frame is lent to be filled only if its word is 0, and the word is 0 only while the frame
//!   is in `free` or in a fill ring. Only [`XdpReceiver::lend_free_frames`] lends frames of this
//!   memory: the sockets are not exposed.
//! - F2 `RECEIVED_BIT` is set when the frame is taken from a receive ring, and cleared in
//!   `give_back`. While the bit is set, the kernel does not write the frame.
//! - F3 The remaining bits count the frame's uses in send rings. The kernel only reads a frame in a
//!   send ring. A received frame is sent unmodified. A frame taken from `free` to be written and
//!   sent never has `RECEIVED_BIT` set, so no pool reaches it.
//!
//! SYNC POINT *frame given back*: each release subtracts with AcqRel, and the last release pushes
//! the frame onto `free` under the lock that a lender takes. All accesses by this process therefore
//! precede the kernel's accesses.
//!
//! [`XdpReceiver`]: super::XdpReceiver
//! [`XdpReceiver::lend_free_frames`]: super::XdpReceiver::lend_free_frames
//! [`XdpSender`]: super::XdpSender

use super::ring::XdpDescriptor;
use super::socket::{SocketSettings, XdpSocket};
use super::umem::{Umem, UmemSizes};
use crate::error::{Error, Result};
use crate::memory::SegmentLender;
use std::any::Any;
use std::os::fd::{AsFd as _, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// State bit of a frame that has been taken from a receive ring and not yet given back.
const RECEIVED_BIT: u32 = 1 << 31;

/// The frames of one path, which all sockets of the path share.
#[derive(Debug)]
pub struct Frames {
    umem: Arc<Umem>,
    /// State word of each frame, as the invariants F1 to F3 of this module describe.
    words: Box<[AtomicU32]>,
    free: Mutex<Vec<u32>>,
    /// Number of free frames that only senders may take, in order to copy packets into them.
    reserve: AtomicUsize,
    /// The socket with which the UMEM was registered. Other sockets share the UMEM through this
    /// socket.
    first: Mutex<Weak<OwnedFd>>,
}

impl Frames {
    /// Creates `frames` frames of one page each, the only size that both the kernel and a pool
    /// permit. `frames` must be a power of two and at least 2.
    pub fn create(name: &str, frames: u32) -> Result<Arc<Self>> {
        if !frames.is_power_of_two() || frames < 2 {
            let target = format!("a memory of {frames} frames");
            return Err(Error::new("setsockopt", target, libc::EINVAL));
        }
        let frame = u32::try_from(rustix::param::page_size().min(4096)).unwrap_or(4096);
        let umem = Umem::create(name, UmemSizes { frame, frames, headroom: 0 })?;
        Ok(Arc::new(Self {
            umem: Arc::new(umem),
            words: (0..frames).map(|_| AtomicU32::new(0)).collect(),
            free: Mutex::new((0..frames).rev().collect()),
            reserve: AtomicUsize::new(0),
            first: Mutex::default(),
        }))
    }

    /// Converts a [`SegmentLender`] back to its frames; `None` if the lender has another type.
    #[must_use]
    pub fn from_lender(lender: &Arc<dyn SegmentLender>) -> Option<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = lender.clone();
        any.downcast().ok()
    }

    /// Returns the number of frames in the memory.
    #[must_use]
    pub fn count(&self) -> usize {
        self.words.len()
    }

    /// Returns the size of a frame in bytes.
    #[must_use]
    pub fn frame_size(&self) -> usize {
        self.umem.sizes().frame as usize
    }

    /// Returns the number of free frames, including those reserved for senders.
    #[must_use]
    pub fn free_count(&self) -> usize {
        self.lock_free_list().len()
    }

    /// Reserves at least `frames` free frames for senders that copy packets into frames.
    pub fn reserve_send_frames(&self, frames: usize) {
        self.reserve.fetch_max(frames, Ordering::Relaxed);
    }

    /// Converts an address to a frame number and an offset in that frame; `None` if the address is
    /// outside the memory.
    #[must_use]
    pub fn locate_address(&self, address: u64) -> Option<(usize, usize)> {
        let frame = self.umem.frame_at_address(address)?;
        let within = address - self.umem.address(frame);
        Some((frame as usize, usize::try_from(within).ok()?))
    }

    /// Returns the location of `bytes` as a descriptor. Returns `None` unless all of `bytes` is in
    /// one received frame of this memory.
    #[must_use]
    pub fn find_descriptor(&self, bytes: &[u8]) -> Option<XdpDescriptor> {
        let base = self.umem.memory().base().addr().get();
        let address = bytes.as_ptr().addr().checked_sub(base)? as u64;
        let length = u32::try_from(bytes.len()).ok()?;
        let here = |frame: u32| self.state_word(frame).load(Ordering::Acquire) & RECEIVED_BIT != 0;
        let holds = self.umem.is_in_one_frame(address, length);
        (holds && self.umem.frame_at_address(address).is_some_and(here)).then_some(XdpDescriptor {
            address,
            length,
            is_continued: false,
        })
    }

    /// Copies bytes at an address of the UMEM into `to`. Returns false if the range is not inside
    /// one frame. Does not check that the frame has been received.
    #[must_use]
    pub fn copy(&self, address: u64, to: &mut [u8]) -> bool {
        let length = u32::try_from(to.len()).unwrap_or(u32::MAX);
        let at = usize::try_from(address).unwrap_or(usize::MAX);
        self.umem.is_in_one_frame(address, length) && self.umem.memory().copy(at, to)
    }

    /// Binds a new socket to a queue of an interface. The first call registers the UMEM with the
    /// kernel; later sockets share it.
    pub(super) fn bind(&self, settings: SocketSettings) -> Result<XdpSocket> {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registered) = first.upgrade() {
            return XdpSocket::open_with_shared_memory(&self.umem, settings, registered.as_fd());
        }
        let socket = XdpSocket::open(&self.umem, settings)?;
        *first = Arc::downgrade(socket.descriptor());
        Ok(socket)
    }

    /// Returns the UMEM, for callers that maintain the invariants F1 to F3 of this module.
    pub(super) const fn umem(&self) -> &Arc<Umem> {
        &self.umem
    }

    /// Removes up to `most` frames from the free list, except those reserved for senders, and
    /// appends their addresses to `into`. Returns the number of frames removed.
    pub(super) fn take_free_frames(&self, most: usize, into: &mut Vec<u64>) -> usize {
        let mut free = self.lock_free_list();
        let available = free.len().saturating_sub(self.reserve.load(Ordering::Relaxed));
        let keep = free.len() - available.min(most);
        let taken = free.drain(keep..).rev();
        let before = into.len();
        into.extend(taken.map(|frame| self.umem.address(frame)));
        into.len() - before
    }

    /// Puts frames back on the free list because a fill ring had no room for them.
    pub(super) fn return_to_free_list(&self, addresses: &[u64]) {
        self.lock_free_list()
            .extend(addresses.iter().rev().filter_map(|at| self.umem.frame_at_address(*at)));
    }

    /// Marks the frame at `address` as received (F2). Returns false if the frame is already
    /// received or is being sent. Does not notice if the frame was never lent to the kernel.
    pub(super) fn mark_frame_received(&self, address: u64) -> bool {
        let Some(frame) = self.umem.frame_at_address(address) else { return false };
        let word = self.state_word(frame);
        word.compare_exchange(0, RECEIVED_BIT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Removes a frame from the free list, to be written and sent (F3), and returns its address;
    /// `None` if no frame is free.
    pub(super) fn take_send_frame(&self) -> Option<u64> {
        let frame = self.lock_free_list().pop()?;
        self.state_word(frame).fetch_add(1, Ordering::AcqRel);
        Some(self.umem.address(frame))
    }

    /// Counts one more use of a frame in a send ring. Returns false if the frame is free or lent.
    pub(super) fn retain(&self, address: u64) -> bool {
        let Some(frame) = self.umem.frame_at_address(address) else { return false };
        let more = |word: u32| (word != 0).then_some(word + 1);
        self.state_word(frame).fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Ends one use, in a send ring, of the frame at an address. Returns false if the frame is in
    /// no send ring.
    pub(super) fn release(&self, address: u64) -> bool {
        let Some(frame) = self.umem.frame_at_address(address) else { return false };
        let less = |word: u32| (word & !RECEIVED_BIT != 0).then(|| word - 1);
        // SYNC POINT: frame given back.
        let before = self.state_word(frame).fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        if before == Ok(1) {
            self.lock_free_list().push(frame);
        }
        before.is_ok()
    }

    fn lock_free_list(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_word(&self, frame: u32) -> &AtomicU32 {
        // `frame_at_address` returns valid frame numbers only.
        &self.words[frame as usize]
    }
}

// SAFETY: the mapping has a page for each frame, readable and writable, is unmapped only on drop,
// and its shape never changes (1). A frame has arrived while `RECEIVED_BIT` is set; until
// `give_back` clears it, the kernel does not write it (F1, F2), and reads it only while it is being
// sent, as do other readers (F3) (2).
unsafe impl SegmentLender for Frames {
    fn base(&self) -> NonNull<u8> {
        self.umem.memory().base()
    }

    fn segment_size(&self) -> usize {
        self.frame_size()
    }

    fn segment_count(&self) -> usize {
        self.count()
    }

    fn has_arrived(&self, slot: usize) -> bool {
        self.words.get(slot).is_some_and(|word| word.load(Ordering::Acquire) & RECEIVED_BIT != 0)
    }

    fn give_back(&self, slot: usize) {
        let Some(word) = self.words.get(slot) else { return };
        // SYNC POINT: frame given back.
        let before = word.fetch_and(!RECEIVED_BIT, Ordering::AcqRel);
        debug_assert!(before & RECEIVED_BIT != 0, "frame {slot} is not ours to give");
        if let (RECEIVED_BIT, Ok(frame)) = (before, u32::try_from(slot)) {
            self.lock_free_list().push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create_frames() -> Arc<Frames> {
        Frames::create("sys-test", 4).unwrap()
    }

    fn bytes_at(frames: &Frames, address: u64, length: usize) -> &[u8] {
        let base = frames.base().as_ptr().wrapping_add(usize::try_from(address).unwrap());
        // SAFETY: the tests ask for bytes inside the memory, which lives as long as `frames`, and
        // nothing writes it.
        unsafe { std::slice::from_raw_parts(base, length) }
    }

    #[test]
    fn xdp_frame_has_one_owner_at_a_time() {
        let frames = create_frames();
        let mut lent = Vec::new();
        assert_eq!((frames.take_free_frames(3, &mut lent), frames.free_count()), (3, 1));
        let at = lent[1] + 256;
        assert!(!frames.release(at) && !frames.retain(at), "the kernel has it");
        assert!(frames.mark_frame_received(at) && !frames.mark_frame_received(at), "once");
        let (slot, within) = frames.locate_address(at).unwrap();
        assert!(within == 256 && frames.has_arrived(slot));
        frames.give_back(slot);
        assert!(!frames.has_arrived(slot));
        assert_eq!(frames.free_count(), 2);
        frames.return_to_free_list(&lent[2..]);
        assert_eq!(frames.free_count(), 3);
        assert!(!frames.mark_frame_received(1 << 40), "not of this memory");
    }

    #[test]
    fn sent_frame_is_freed_after_transmission() {
        let frames = create_frames();
        let mut lent = Vec::new();
        frames.take_free_frames(4, &mut lent);
        let at = lent[0];
        assert!(frames.mark_frame_received(at) && frames.retain(at));
        frames.give_back(frames.locate_address(at).unwrap().0);
        assert_eq!(frames.free_count(), 0, "the send ring has it");
        assert!(frames.release(at) && !frames.release(at));
        assert_eq!(frames.free_count(), 1);
        let drafted = frames.take_send_frame().unwrap();
        assert!(
            !frames.has_arrived(frames.locate_address(drafted).unwrap().0),
            "no pool may reach it"
        );
        assert!(frames.take_send_frame().is_none());
        assert!(frames.release(drafted));
    }

    #[test]
    fn received_frame_bytes_are_found_by_address() {
        let frames = create_frames();
        let mut lent = Vec::new();
        frames.take_free_frames(2, &mut lent);
        let at = lent[1];
        assert!(frames.find_descriptor(bytes_at(&frames, at + 10, 20)).is_none(), "lent");
        assert!(frames.mark_frame_received(at));
        let expected = XdpDescriptor { address: at + 10, length: 20, is_continued: false };
        assert_eq!(frames.find_descriptor(bytes_at(&frames, at + 10, 20)), Some(expected));
        assert!(frames.find_descriptor(&[0; 20]).is_none(), "bytes outside the memory");
        frames.reserve_send_frames(3);
        assert_eq!(
            frames.take_free_frames(9, &mut lent),
            0,
            "two are free, and three are reserved"
        );
    }
}
