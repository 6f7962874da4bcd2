//! The four rings of an AF_XDP socket: indices and entries shared with the kernel.
//!
//! Each side writes one index and reads the other. Our index is kept in private memory and only
//! published; the kernel's is read once per call and rejected (EBADMSG) if it differs by more than
//! the ring's size.

use super::setting::Offsets;
use super::umem::Umem;
use crate::error::{Error, Result};
use crate::memory::Mapping;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// XDP_RING_NEED_WAKEUP
const NEEDS_WAKEUP: u32 = 1;
/// XDP_PKT_CONTD
const CONTINUES: u32 = 1;

/// Address of an entry that is not to be sent: beyond any memory.
const INVALID_ADDRESS: u64 = u64::MAX >> 1;

/// A part of a packet in one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// Address of its first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u32,
    /// True if the next descriptor continues the packet.
    pub continues: bool,
}

/// Frames lent to the kernel for reception.
#[derive(Debug)]
pub struct FillRing(pub(super) EntryRing);

/// Frames that the kernel has sent.
#[derive(Debug)]
pub struct CompletionRing(pub(super) EntryRing);

/// Received descriptors.
#[derive(Debug)]
pub struct RxRing(pub(super) EntryRing);

/// Descriptors to send.
#[derive(Debug)]
pub struct TxRing(pub(super) EntryRing);

impl FillRing {
    /// Lends frames, by any address in them, as far as there is room; returns their number.
    pub fn lend(&mut self, addresses: &[u64]) -> Result<usize> {
        self.0.put(addresses, |ring, at, address| {
            ring.umem.frame_of(*address).is_some() && ring.memory.set_word(at, *address)
        })
    }

    /// Returns true if the kernel must be woken to see new frames ([`XdpSocket::wake_rx`]).
    ///
    /// [`XdpSocket::wake_rx`]: super::XdpSocket::wake_rx
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }

    /// Returns the number of free entries.
    pub fn room(&self) -> Result<u32> {
        self.0.room()
    }

    /// Returns the number of lent frames not yet used.
    pub fn waiting(&self) -> Result<u32> {
        Ok(self.0.size - self.0.room()?)
    }
}

impl CompletionRing {
    /// Appends up to `most` addresses of sent frames to `into`; returns the number of entries
    /// consumed.
    pub fn take(&mut self, into: &mut Vec<u64>, most: usize) -> Result<usize> {
        self.0.take(most, |ring, at| {
            let address = ring.memory.word(at)?;
            // Some kernels report skipped entries as sent.
            if address != INVALID_ADDRESS {
                ring.umem.frame_of(address)?;
                into.push(address);
            }
            Some(())
        })
    }
}

impl RxRing {
    /// Appends up to `most` received descriptors to `into` and returns their number.
    pub fn take(&mut self, into: &mut Vec<Descriptor>, most: usize) -> Result<usize> {
        self.0.take(most, |ring, at| {
            let (address, length) = (ring.memory.word(at)?, ring.memory.half(at + 8)?);
            let continues = ring.memory.half(at + 12)? & CONTINUES != 0;
            if !ring.umem.holds(address, length) {
                return None;
            }
            into.push(Descriptor { address, length, continues });
            Some(())
        })
    }

    /// Returns the number of descriptors not taken.
    pub fn waiting(&self) -> Result<u32> {
        self.0.available()
    }
}

impl TxRing {
    /// Returns the number of descriptors that the kernel has not taken.
    pub fn waiting(&self) -> Result<u32> {
        Ok(self.0.size - self.0.room()?)
    }

    /// Replaces all descriptors that the kernel has not taken by at least as many others. Sound
    /// only if the kernel reads the ring only during calls of this process.
    pub(super) fn rewrite(&mut self, all: &[Descriptor]) -> Result<()> {
        let old = self.waiting()?;
        self.0.index = self.0.index.wrapping_sub(old);
        let count = self.enqueue(all)?;
        debug_assert!(count == all.len() && count >= old as usize, "the kernel knows of {old}");
        Ok(())
    }

    /// Turns the last `entries` descriptors into descriptors that the kernel skips.
    pub(super) fn forget(&mut self, entries: usize) -> Result<()> {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX).min(self.waiting()?);
        for number in 1..=entries {
            let at = self.0.entry_offset(self.0.index.wrapping_sub(number));
            if !(self.0.memory.set_word(at, INVALID_ADDRESS) && self.0.memory.set_half(at + 8, 1)) {
                return Err(self.0.corrupt());
            }
        }
        Ok(())
    }

    /// Adds descriptors as far as there is room and returns their number. Follow with
    /// [`XdpSocket::wake_tx`](super::XdpSocket::wake_tx) if needed.
    pub fn enqueue(&mut self, descriptors: &[Descriptor]) -> Result<usize> {
        self.0.put(descriptors, |ring, at, descriptor| {
            let Descriptor { address, length, continues } = *descriptor;
            ring.umem.holds(address, length)
                && ring.memory.set_word(at, address)
                && ring.memory.set_half(at + 8, length)
                && ring.memory.set_half(at + 12, if continues { CONTINUES } else { 0 })
        })
    }

    /// Returns the number of free entries.
    pub fn room(&self) -> Result<u32> {
        self.0.room()
    }

    /// Returns true if the kernel must be woken to see new descriptors.
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// Layout of a ring's mapping.
pub(super) struct RingLayout<'a> {
    pub(super) name: &'static str,
    pub(super) at: u64,
    pub(super) offsets: Offsets,
    pub(super) entry: usize,
    pub(super) size: u32,
    pub(super) umem: &'a Arc<Umem>,
}

impl RingLayout<'_> {
    /// Returns the size of the mapping in bytes; `None` if it is invalid.
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
    /// Our index, not yet masked.
    index: u32,
}

impl EntryRing {
    pub(super) fn map(socket: BorrowedFd<'_>, form: &RingLayout<'_>) -> Result<Self> {
        let bytes = form.bytes().ok_or_else(|| Error::new("mmap", form.name, libc::EINVAL))?;
        Ok(Self::from_mapping(Mapping::shared_at(socket, form.at, bytes, form.name)?, form))
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
        self.memory.half(self.flags).is_some_and(|flags| flags & NEEDS_WAKEUP != 0)
    }

    fn entry_offset(&self, index: u32) -> usize {
        self.entries + (index & (self.size - 1)) as usize * self.entry
    }

    fn corrupt(&self) -> Error {
        Error::new(
            "AF_XDP",
            format!("the {}: its indices or entries make no sense", self.name),
            libc::EBADMSG,
        )
    }

    /// Returns the entries free to a producer.
    fn room(&self) -> Result<u32> {
        let theirs = self.memory.half(self.consumer).ok_or_else(|| self.corrupt())?;
        self.size.checked_sub(self.index.wrapping_sub(theirs)).ok_or_else(|| self.corrupt())
    }

    fn put<T>(&mut self, all: &[T], write: impl Fn(&Self, usize, &T) -> bool) -> Result<usize> {
        let room = (self.room()? as usize).min(all.len());
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
        self.memory.set_half(self.producer, self.index);
        Ok(done as usize)
    }

    /// Returns the entries available to a consumer.
    fn available(&self) -> Result<u32> {
        // Acquire: entries published by the kernel are complete.
        let theirs = self.memory.half(self.producer).ok_or_else(|| self.corrupt())?;
        let there = theirs.wrapping_sub(self.index);
        if there > self.size { Err(self.corrupt()) } else { Ok(there) }
    }

    fn take(
        &mut self,
        most: usize,
        mut read: impl FnMut(&Self, usize) -> Option<()>,
    ) -> Result<usize> {
        let there = self.available()?;
        let count = u32::try_from(most).unwrap_or(u32::MAX).min(there);
        for number in 0..count {
            let index = self.index.wrapping_add(number);
            read(self, self.entry_offset(index)).ok_or_else(|| self.corrupt())?;
        }
        self.index = self.index.wrapping_add(count);
        // Release: entries are read before the kernel may overwrite them.
        self.memory.set_half(self.consumer, self.index);
        Ok(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::UmemShape;
    use super::*;
    use crate::memory::Memfd;

    const OFFSETS: Offsets = Offsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
    const SIZE: u32 = 8;

    /// Creates a ring whose other side the test plays.
    fn ring(entry: usize) -> (EntryRing, Mapping) {
        let shape = UmemShape { frame: 2048, frames: 4, headroom: 0 };
        let umem = &Arc::new(Umem::create("sys-test", shape).unwrap());
        let form = RingLayout { name: "ring", at: 0, offsets: OFFSETS, entry, size: SIZE, umem };
        let file = Memfd::create("sys-test", 4096).unwrap();
        assert_eq!(form.bytes(), Some(192 + SIZE as usize * entry));
        (EntryRing::from_mapping(file.map().unwrap(), &form), file.map().unwrap())
    }

    fn rx() -> (RxRing, Mapping) {
        let (ring, theirs) = ring(16);
        (RxRing(ring), theirs)
    }

    fn fill() -> (FillRing, Mapping) {
        let (ring, theirs) = ring(8);
        (FillRing(ring), theirs)
    }

    fn completion() -> (CompletionRing, Mapping) {
        let (ring, theirs) = ring(8);
        (CompletionRing(ring), theirs)
    }

    /// Returns indices that an honest peer cannot publish.
    fn impossible_indices(index: u32) -> impl Iterator<Item = u32> {
        [SIZE + 1, SIZE + 2, 1 << 16, 1 << 31, u32::MAX - 1]
            .map(|by| index.wrapping_add(by))
            .into_iter()
    }

    #[test]
    fn impossible_index_is_rejected_and_nothing_moves() {
        let (mut rx, theirs) = rx();
        let mut came = Vec::new();
        for index in impossible_indices(0) {
            theirs.set_half(0, index);
            assert_eq!(rx.take(&mut came, 100).unwrap_err().errno, libc::EBADMSG, "{index}");
        }
        theirs.set_half(0, 2);
        theirs.set_word(192, 2048);
        theirs.set_half(200, 2000);
        theirs.set_word(208, 100);
        theirs.set_half(216, 60);
        theirs.set_half(220, 1);
        assert_eq!(rx.take(&mut came, 100).unwrap(), 2);
        let piece = |address, length, continues| Descriptor { address, length, continues };
        assert_eq!(came, [piece(2048, 2000, false), piece(100, 60, true)]);
        assert_eq!(theirs.half(64), Some(2), "their places are given back");

        let (mut fill, theirs) = fill();
        assert_eq!(fill.lend(&[0, 2048, 4096]).unwrap(), 3);
        for index in impossible_indices(3).filter(|index| 3_u32.wrapping_sub(*index) > SIZE) {
            theirs.set_half(64, index);
            assert_eq!(fill.lend(&[0]).unwrap_err().errno, libc::EBADMSG, "{index}");
        }
        theirs.set_half(64, 0);
        assert_eq!(fill.lend(&[0; 9]).unwrap(), 5, "as many as find room");
        assert_eq!((fill.lend(&[0]).unwrap(), fill.waiting().unwrap()), (0, SIZE));
        assert_eq!(theirs.half(0), Some(SIZE));
    }

    #[test]
    fn entries_outside_the_memory_are_rejected() {
        for (address, length) in [(0, 2049), (2047, 2), (8192, 1), (u64::MAX, 1), (1, u32::MAX)] {
            let (mut rx, theirs) = rx();
            theirs.set_word(192, address);
            theirs.set_half(200, length);
            theirs.set_half(0, 1);
            let refused = rx.take(&mut Vec::new(), 1).unwrap_err();
            assert_eq!(refused.errno, libc::EBADMSG, "{address} {length}");
            let mut tx = TxRing(ring(16).0);
            let descriptor = Descriptor { address, length, continues: false };
            assert_eq!(tx.enqueue(&[descriptor]).unwrap_err().errno, libc::EINVAL);
            assert_eq!(tx.room().unwrap(), SIZE, "nothing was given");
        }
        let (mut completion, theirs) = completion();
        theirs.set_word(192, 8192);
        theirs.set_half(0, 1);
        assert!(completion.take(&mut Vec::new(), 1).is_err());
    }
}
