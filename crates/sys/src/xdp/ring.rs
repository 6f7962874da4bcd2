//! The four rings of an AF_XDP socket: indices and entries shared with the kernel.
//!
//! Each side writes its own index and reads the index of the other side. This process keeps its own
//! index in private memory and publishes it. It reads the kernel's index once per call, and rejects
//! it (EBADMSG) if the two indices differ by more than the ring's size.

use super::uapi::RingOffsets;
use super::umem::Umem;
use crate::error::{Error, Result};
use crate::memory::Mapping;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// XDP_RING_NEED_WAKEUP: the kernel must be woken to read the ring.
const XDP_RING_NEED_WAKEUP: u32 = 1;
/// XDP_PKT_CONTD: the next descriptor continues the packet.
const XDP_PKT_CONTD: u32 = 1;

/// Address of a ring entry that the kernel must skip, because the address is beyond any memory.
const SKIPPED_ENTRY_ADDRESS: u64 = u64::MAX >> 1;

/// A packet, or a part of one, within one frame of the UMEM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpDescriptor {
    /// Address, in the UMEM, of the first byte of the packet or part.
    pub address: u64,
    /// Length of the packet or part in bytes.
    pub length: u32,
    /// True if the next descriptor continues the packet.
    pub is_continued: bool,
}

/// The ring of frames lent to the kernel for reception.
#[derive(Debug)]
pub struct FillRing(pub(super) EntryRing);

/// The ring of frames that the kernel has sent.
#[derive(Debug)]
pub struct CompletionRing(pub(super) EntryRing);

/// The ring of received descriptors.
#[derive(Debug)]
pub struct RxRing(pub(super) EntryRing);

/// The ring of descriptors to send.
#[derive(Debug)]
pub struct TxRing(pub(super) EntryRing);

impl FillRing {
    /// Lends frames to the kernel until the ring is full. Each frame is identified by any address
    /// in it. Returns the number of frames lent.
    pub fn lend(&mut self, addresses: &[u64]) -> Result<usize> {
        self.0.produce_entries(addresses, |ring, at, address| {
            ring.umem.frame_at_address(*address).is_some() && ring.memory.set_word(at, *address)
        })
    }

    /// Returns true if the kernel must be woken to use newly lent frames ([`XdpSocket::wake_rx`]).
    ///
    /// [`XdpSocket::wake_rx`]: super::XdpSocket::wake_rx
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }

    /// Returns the number of free entries of the fill ring.
    pub fn free_entries(&self) -> Result<u32> {
        self.0.free_entries()
    }

    /// Returns the number of frames in the fill ring that the kernel has not taken yet.
    pub fn pending_entries(&self) -> Result<u32> {
        Ok(self.0.size - self.0.free_entries()?)
    }
}

impl CompletionRing {
    /// Appends up to `most` addresses of sent frames to `into`. Returns the number of entries
    /// consumed.
    pub fn take(&mut self, into: &mut Vec<u64>, most: usize) -> Result<usize> {
        self.0.take(most, |ring, at| {
            let address = ring.memory.word(at)?;
            // Some kernels report skipped entries as sent.
            if address != SKIPPED_ENTRY_ADDRESS {
                ring.umem.frame_at_address(address)?;
                into.push(address);
            }
            Some(())
        })
    }
}

impl RxRing {
    /// Removes up to `most` descriptors of received packets from the ring, and appends them to
    /// `into`. Returns the number of descriptors appended.
    pub fn take(&mut self, into: &mut Vec<XdpDescriptor>, most: usize) -> Result<usize> {
        self.0.take(most, |ring, at| {
            let (address, length) = (ring.memory.word(at)?, ring.memory.word32(at + 8)?);
            let continues = ring.memory.word32(at + 12)? & XDP_PKT_CONTD != 0;
            if !ring.umem.is_in_one_frame(address, length) {
                return None;
            }
            into.push(XdpDescriptor { address, length, is_continued: continues });
            Some(())
        })
    }

    /// Returns the number of descriptors of received packets that wait in the ring.
    pub fn pending_entries(&self) -> Result<u32> {
        self.0.available_entries()
    }
}

impl TxRing {
    /// Returns the number of descriptors to send that the kernel has not yet taken from the ring.
    pub fn pending_entries(&self) -> Result<u32> {
        Ok(self.0.size - self.0.free_entries()?)
    }

    /// Replaces all descriptors that the kernel has not yet taken by those in `all`, of which there
    /// must be at least as many. Correct only if the kernel reads the ring only during calls of
    /// this process.
    pub(super) fn replace_pending_entries(&mut self, all: &[XdpDescriptor]) -> Result<()> {
        let old = self.pending_entries()?;
        self.0.index = self.0.index.wrapping_sub(old);
        let count = self.enqueue(all)?;
        debug_assert!(count == all.len() && count >= old as usize, "the kernel knows of {old}");
        Ok(())
    }

    /// Makes the kernel skip the last `entries` descriptors in the ring instead of sending them.
    pub(super) fn skip_last(&mut self, entries: usize) -> Result<()> {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX).min(self.pending_entries()?);
        for number in 1..=entries {
            let at = self.0.entry_offset(self.0.index.wrapping_sub(number));
            if !(self.0.memory.set_word(at, SKIPPED_ENTRY_ADDRESS)
                && self.0.memory.set_word32(at + 8, 1))
            {
                return Err(self.0.corrupt_error());
            }
        }
        Ok(())
    }

    /// Adds descriptors until the ring is full, and returns the number added. Afterwards, call
    /// [`XdpSocket::wake_tx`](super::XdpSocket::wake_tx) if [`TxRing::needs_wakeup`] returns true.
    pub fn enqueue(&mut self, descriptors: &[XdpDescriptor]) -> Result<usize> {
        self.0.produce_entries(descriptors, |ring, at, descriptor| {
            let XdpDescriptor { address, length, is_continued: continues } = *descriptor;
            ring.umem.is_in_one_frame(address, length)
                && ring.memory.set_word(at, address)
                && ring.memory.set_word32(at + 8, length)
                && ring.memory.set_word32(at + 12, if continues { XDP_PKT_CONTD } else { 0 })
        })
    }

    /// Returns the number of free entries of the send ring.
    pub fn free_entries(&self) -> Result<u32> {
        self.0.free_entries()
    }

    /// Returns true if the kernel must be woken to send new descriptors.
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// The parameters for mapping a ring: its offset, size and field offsets.
pub(super) struct RingLayout<'a> {
    pub(super) name: &'static str,
    pub(super) at: u64,
    pub(super) offsets: RingOffsets,
    pub(super) entry: usize,
    pub(super) size: u32,
    pub(super) umem: &'a Arc<Umem>,
}

impl RingLayout<'_> {
    /// Returns the size of the mapping in bytes; `None` if the size overflows or the number of
    /// entries is not a power of two.
    fn bytes(&self) -> Option<usize> {
        let entries = (self.size as usize).checked_mul(self.entry)?;
        let all = usize::try_from(self.offsets.entries).ok()?.checked_add(entries)?;
        self.size.is_power_of_two().then_some(all)
    }
}

#[derive(Debug)]
pub(super) struct EntryRing {
    memory: Mapping,
    umem: Arc<Umem>,
    name: &'static str,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    entry: usize,
    size: u32,
    /// Index of the next entry that this process produces or consumes. It counts modulo 2³², not
    /// modulo the ring size.
    index: u32,
}

impl EntryRing {
    pub(super) fn map(socket: BorrowedFd<'_>, form: &RingLayout<'_>) -> Result<Self> {
        let bytes = form.bytes().ok_or_else(|| Error::new("mmap", form.name, libc::EINVAL))?;
        Ok(Self::from_mapping(Mapping::shared_at_offset(socket, form.at, bytes, form.name)?, form))
    }

    fn from_mapping(memory: Mapping, form: &RingLayout<'_>) -> Self {
        let RingLayout { name, offsets, entry, size, umem, .. } = *form;
        let place = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        Self {
            memory,
            umem: Arc::clone(umem),
            name,
            producer: place(offsets.producer),
            consumer: place(offsets.consumer),
            flags: place(offsets.flags),
            entries: place(offsets.entries),
            entry,
            size,
            index: 0,
        }
    }

    fn needs_wakeup(&self) -> bool {
        self.memory.word32(self.flags).is_some_and(|flags| flags & XDP_RING_NEED_WAKEUP != 0)
    }

    fn entry_offset(&self, index: u32) -> usize {
        self.entries + (index & (self.size - 1)) as usize * self.entry
    }

    fn corrupt_error(&self) -> Error {
        Error::new(
            "AF_XDP",
            format!("the {}: its indices or entries are invalid", self.name),
            libc::EBADMSG,
        )
    }

    /// Returns the number of free entries, which a producer may write.
    fn free_entries(&self) -> Result<u32> {
        let theirs = self.memory.word32(self.consumer).ok_or_else(|| self.corrupt_error())?;
        self.size.checked_sub(self.index.wrapping_sub(theirs)).ok_or_else(|| self.corrupt_error())
    }

    fn produce_entries<T>(
        &mut self,
        all: &[T],
        write: impl Fn(&Self, usize, &T) -> bool,
    ) -> Result<usize> {
        let room = (self.free_entries()? as usize).min(all.len());
        let mut done = 0;
        for entry in all.iter().take(room) {
            let index = self.index.wrapping_add(done);
            if !write(self, self.entry_offset(index), entry) {
                return Err(Error::new(
                    "AF_XDP",
                    format!("an entry outside of the memory for the {}", self.name),
                    libc::EINVAL,
                ));
            }
            done += 1;
        }
        self.index = self.index.wrapping_add(done);
        // Release: entries are complete before the kernel sees the index.
        self.memory.set_word32(self.producer, self.index);
        Ok(done as usize)
    }

    /// Returns the number of filled entries, which a consumer may read.
    fn available_entries(&self) -> Result<u32> {
        // Acquire: entries published by the kernel are complete.
        let theirs = self.memory.word32(self.producer).ok_or_else(|| self.corrupt_error())?;
        let available = theirs.wrapping_sub(self.index);
        if available > self.size { Err(self.corrupt_error()) } else { Ok(available) }
    }

    fn take(
        &mut self,
        most: usize,
        mut read: impl FnMut(&Self, usize) -> Option<()>,
    ) -> Result<usize> {
        let available = self.available_entries()?;
        let count = u32::try_from(most).unwrap_or(u32::MAX).min(available);
        for number in 0..count {
            let index = self.index.wrapping_add(number);
            read(self, self.entry_offset(index)).ok_or_else(|| self.corrupt_error())?;
        }
        self.index = self.index.wrapping_add(count);
        // Release: entries are read before the kernel may overwrite them.
        self.memory.set_word32(self.consumer, self.index);
        Ok(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::UmemSizes;
    use super::*;
    use crate::memory::Memfd;

    const OFFSETS: RingOffsets =
        RingOffsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
    const RING_SIZE: u32 = 8;

    /// Creates a ring. Also returns a second mapping of the ring, through which the test plays the
    /// role of the kernel.
    fn entry_ring(entry: usize) -> (EntryRing, Mapping) {
        let shape = UmemSizes { frame: 2048, frames: 4, headroom: 0 };
        let umem = &Arc::new(Umem::create("sys-test", shape).unwrap());
        let form =
            RingLayout { name: "ring", at: 0, offsets: OFFSETS, entry, size: RING_SIZE, umem };
        let file = Memfd::create("sys-test", 4096).unwrap();
        assert_eq!(form.bytes(), Some(192 + RING_SIZE as usize * entry));
        (EntryRing::from_mapping(file.map().unwrap(), &form), file.map().unwrap())
    }

    fn rx_ring() -> (RxRing, Mapping) {
        let (ring, theirs) = entry_ring(16);
        (RxRing(ring), theirs)
    }

    fn fill_ring() -> (FillRing, Mapping) {
        let (ring, theirs) = entry_ring(8);
        (FillRing(ring), theirs)
    }

    fn completion_ring() -> (CompletionRing, Mapping) {
        let (ring, theirs) = entry_ring(8);
        (CompletionRing(ring), theirs)
    }

    /// Returns values of the kernel's ring index that a correct kernel cannot publish while this
    /// process's index is `index`.
    fn impossible_indices(index: u32) -> impl Iterator<Item = u32> {
        [RING_SIZE + 1, RING_SIZE + 2, 1 << 16, 1 << 31, u32::MAX - 1]
            .map(|by| index.wrapping_add(by))
            .into_iter()
    }

    #[test]
    fn impossible_ring_index_is_rejected_without_transfer() {
        let (mut rx, theirs) = rx_ring();
        let mut pieces = Vec::new();
        for index in impossible_indices(0) {
            theirs.set_word32(0, index);
            assert_eq!(rx.take(&mut pieces, 100).unwrap_err().errno, libc::EBADMSG, "{index}");
        }
        theirs.set_word32(0, 2);
        theirs.set_word(192, 2048);
        theirs.set_word32(200, 2000);
        theirs.set_word(208, 100);
        theirs.set_word32(216, 60);
        theirs.set_word32(220, 1);
        assert_eq!(rx.take(&mut pieces, 100).unwrap(), 2);
        let piece =
            |address, length, continues| XdpDescriptor { address, length, is_continued: continues };
        assert_eq!(pieces, [piece(2048, 2000, false), piece(100, 60, true)]);
        assert_eq!(theirs.word32(64), Some(2), "their places are given back");

        let (mut fill, theirs) = fill_ring();
        assert_eq!(fill.lend(&[0, 2048, 4096]).unwrap(), 3);
        for index in impossible_indices(3).filter(|index| 3_u32.wrapping_sub(*index) > RING_SIZE) {
            theirs.set_word32(64, index);
            assert_eq!(fill.lend(&[0]).unwrap_err().errno, libc::EBADMSG, "{index}");
        }
        theirs.set_word32(64, 0);
        assert_eq!(fill.lend(&[0; 9]).unwrap(), 5, "as many as find room");
        assert_eq!((fill.lend(&[0]).unwrap(), fill.pending_entries().unwrap()), (0, RING_SIZE));
        assert_eq!(theirs.word32(0), Some(RING_SIZE));
    }

    #[test]
    fn ring_entries_outside_the_memory_are_rejected() {
        for (address, length) in [(0, 2049), (2047, 2), (8192, 1), (u64::MAX, 1), (1, u32::MAX)] {
            let (mut rx, theirs) = rx_ring();
            theirs.set_word(192, address);
            theirs.set_word32(200, length);
            theirs.set_word32(0, 1);
            let refused = rx.take(&mut Vec::new(), 1).unwrap_err();
            assert_eq!(refused.errno, libc::EBADMSG, "{address} {length}");
            let mut tx = TxRing(entry_ring(16).0);
            let descriptor = XdpDescriptor { address, length, is_continued: false };
            assert_eq!(tx.enqueue(&[descriptor]).unwrap_err().errno, libc::EINVAL);
            assert_eq!(tx.free_entries().unwrap(), RING_SIZE, "nothing was given");
        }
        let (mut completion, theirs) = completion_ring();
        theirs.set_word(192, 8192);
        theirs.set_word32(0, 1);
        assert!(completion.take(&mut Vec::new(), 1).is_err());
    }
}
