//! Notifications from programs through a BPF ring buffer, which this module reads through memory
//! mappings.
//!
//! A program submits a record and may wake waiters; the owner consumes records. A process with a
//! read-only descriptor ([`Map::open_read_only`]) cannot consume records; its edge-triggered
//! [`RingBufferListener`] waits for new ones. The owner must drain the ring, because a full ring
//! sends no notification. Lengths and positions in the ring are treated as allegations.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll;

use super::map::{Map, MapKind, MapSpecification};
use crate::error::{Error, ErrorContext as _, Result};
use crate::memory::{Mapping, ReadMapping};
use crate::poll::timespec;

/// Size in bytes of a record's header, which holds the length with two flag bits, and a word
/// private to the kernel.
const RECORD_HEADER_SIZE: usize = 8;
/// BPF_RINGBUF_BUSY_BIT: the record is being written.
const BPF_RINGBUF_BUSY_BIT: u32 = 1 << 31;
/// BPF_RINGBUF_DISCARD_BIT: the record was discarded.
const BPF_RINGBUF_DISCARD_BIT: u32 = 1 << 30;

/// A BPF ring buffer, owned together with the consumer's state.
#[derive(Debug)]
pub struct RingBuffer {
    map: Map,
    consumer: Mapping,
    producer: ReadMapping,
    size: usize,
}

impl RingBuffer {
    /// Creates a ring buffer of `bytes` bytes, a power of two and a multiple of the page size.
    pub fn create(name: &str, bytes: u32) -> Result<Self> {
        let words = MapSpecification::with_u32_elements(name, MapKind::RingBuffer, bytes);
        let map = Map::create(&MapSpecification { key_size: 0, value_size: 0, ..words })?;
        Self::from_map(map, bytes, name)
    }

    /// Adopts a ring buffer from a received descriptor, as its consumer.
    ///
    /// Fails with EINVAL if the descriptor is not a ring buffer.
    pub fn from_received(fd: OwnedFd) -> Result<Self> {
        let map = Map::from_received(fd)?;
        let info = map.info()?;
        let page = rustix::param::page_size();
        let whole = info.entries.is_power_of_two() && info.entries as usize >= page;
        if map.kind() != MapKind::RingBuffer || !whole {
            let what = format!("map {:?}: no ring buffer", info.name);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        Self::from_map(map, info.entries, &info.name)
    }

    fn from_map(map: Map, bytes: u32, name: &str) -> Result<Self> {
        let (page, size) = (rustix::param::page_size(), bytes as usize);
        let consumer = Mapping::shared(map.as_fd(), page, name)?;
        // After the producer's page, the kernel maps the ring twice in a row, so that every record
        // is contiguous.
        let producer = ReadMapping::shared(map.as_fd(), page as u64, page + 2 * size, name)?;
        Ok(Self { map, consumer, producer, size })
    }

    /// Returns the BPF map that is the ring buffer, for use by programs or to be passed to other
    /// processes.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// Sets the flag that tells programs whether the consumer is awake. The ring buffer must be one
    /// without records, because the flag occupies the word of the consumer's position.
    ///
    /// A program that read the flag before it was cleared may still be writing frames. Once
    /// [`ProgramRings::has_active_writer`](super::ProgramRings::has_active_writer) has returned
    /// false, everything that the program has written is visible to the caller.
    pub fn set_awake(&self, is_awake: bool) {
        self.consumer.set_word(0, u64::from(is_awake));
        // Sync point, awake: orders the store of the flag before all reads of what the programs
        // have written.
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }

    /// Returns the number of bytes in the ring buffer that have not been consumed.
    #[must_use]
    pub fn unconsumed_bytes(&self) -> u64 {
        let put = self.producer.word(0).unwrap_or(0);
        put.wrapping_sub(self.consumer.word(0).unwrap_or(0))
    }

    /// Consumes the completed records, up to the first record that is still being written, and
    /// calls `each` with those that were not discarded. Returns the number of calls.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let (mut count, mut record) = (0, Vec::new());
        let mut taken = self.consumer.word(0).unwrap_or(0);
        // Read once, so that a fast producer cannot keep this loop running.
        let put = self.producer.word(0).unwrap_or(taken);
        while taken < put && put - taken <= self.size as u64 {
            let at = rustix::param::page_size() + (taken as usize & (self.size - 1));
            let Some(word) = self.producer.word32(at) else { break };
            let length = (word & !(BPF_RINGBUF_BUSY_BIT | BPF_RINGBUF_DISCARD_BIT)) as usize;
            if word & BPF_RINGBUF_BUSY_BIT != 0 || length > self.size {
                break;
            }
            record.resize(length, 0);
            if word & BPF_RINGBUF_DISCARD_BIT == 0
                && self.producer.copy(at + RECORD_HEADER_SIZE, &mut record)
            {
                each(&record);
                count += 1;
            }
            taken += (RECORD_HEADER_SIZE + length).next_multiple_of(8) as u64;
            // Release: the copy is complete before the producer may reuse the space.
            self.consumer.set_word(0, taken);
        }
        count
    }
}

impl AsFd for RingBuffer {
    /// Returns the descriptor, which is readable while records are available.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// An edge-triggered waiter for new records in ring buffers. Does not consume the records.
#[derive(Debug)]
pub struct RingBufferListener {
    epoll: OwnedFd,
}

impl RingBufferListener {
    /// Creates a listener for the ring buffers with these descriptors.
    pub fn new(doorbells: &[BorrowedFd<'_>]) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create1", "")?;
        for doorbell in doorbells {
            let number = u64::from(doorbell.as_raw_fd().cast_unsigned());
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, doorbell, epoll::EventData::new_u64(number), flags)
                .context("epoll_ctl", "a ring buffer")?;
        }
        Ok(Self { epoll })
    }

    /// Blocks until a record arrives that no earlier call has reported, a signal arrives, or
    /// `limit` passes. Returns true if a record arrived.
    pub fn wait(&self, limit: Duration) -> bool {
        let limit = timespec(limit);
        let mut events = Vec::with_capacity(8);
        let found =
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&limit));
        found.is_ok_and(|count| count > 0)
    }
}

impl AsFd for RingBufferListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
