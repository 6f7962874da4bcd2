//! The doorbell of programs: a ring buffer of the kernel, its two sides mapped, and a way to wait.
//!
//! A program puts a record in and may wake whoever waits; the owner of the map takes records out.
//! Who has only a read-only descriptor ([`Map::read_only`]) can wait but not take out, so it waits
//! for edges ([`Listener`]) and the owner empties the ring now and then: a full ring rings no more.
//! All lengths and positions in it are taken as alleged.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use super::map::{Map, MapKind, Specification};
use crate::error::{Error, Named as _, Result};
use crate::memory::{Mapping, ReadMapping};

/// Before each record: its length and two marks, and a word for the kernel.
const HEADER: usize = 8;
/// BPF_RINGBUF_BUSY_BIT: it is being written. BPF_RINGBUF_DISCARD_BIT: it was given up.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// A ring buffer, and the one who takes records out of it.
#[derive(Debug)]
pub struct RingBuffer {
    map: Map,
    consumer: Mapping,
    producer: ReadMapping,
    size: usize,
}

impl RingBuffer {
    /// Makes one of so many bytes: a power of two, whole pages.
    pub fn create(name: &str, bytes: u32) -> Result<Self> {
        let map = Map::create(&Specification {
            name,
            kind: MapKind::RingBuffer,
            key_size: 0,
            value_size: 0,
            entries: bytes,
            mappable: false,
            types: None,
        })?;
        Self::mapped(map, bytes, name)
    }

    /// Takes one that somebody handed over, to take records out of it. What is none is refused.
    pub fn received(fd: OwnedFd) -> Result<Self> {
        let map = Map::received(fd)?;
        let info = map.info()?;
        let page = rustix::param::page_size();
        let whole = info.entries.is_power_of_two() && info.entries as usize >= page;
        if map.kind() != MapKind::RingBuffer || !whole {
            let what = format!("map {:?}: no ring buffer", info.name);
            return Err(Error::new("bpf", what, libc::EINVAL));
        }
        Self::mapped(map, info.entries, &info.name)
    }

    fn mapped(map: Map, bytes: u32, name: &str) -> Result<Self> {
        let (page, size) = (rustix::param::page_size(), bytes as usize);
        let consumer = Mapping::shared(map.as_fd(), page, name)?;
        // Behind the page of the producer's position the ring, mapped twice in a row.
        let producer = ReadMapping::shared(map.as_fd(), page as u64, page + 2 * size, name)?;
        Ok(Self { map, consumer, producer, size })
    }

    /// The map, for programs and to be handed to others.
    #[must_use]
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// Bytes that were put in and not taken out.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        let put = self.producer.word(0).unwrap_or(0);
        put.wrapping_sub(self.consumer.word(0).unwrap_or(0))
    }

    /// Takes out all records that are finished; answers how many there were.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) -> usize {
        let (mut count, mut record) = (0, Vec::new());
        let mut taken = self.consumer.word(0).unwrap_or(0);
        // Once: who puts in as fast as we take out cannot keep us here.
        let put = self.producer.word(0).unwrap_or(taken);
        while taken < put && put - taken <= self.size as u64 {
            let at = rustix::param::page_size() + (taken as usize & (self.size - 1));
            let Some(word) = self.producer.half(at) else { break };
            let length = (word & !(BUSY | DISCARDED)) as usize;
            if word & BUSY != 0 || length > self.size {
                break;
            }
            record.resize(length, 0);
            if word & DISCARDED == 0 && self.producer.copy(at + HEADER, &mut record) {
                each(&record);
                count += 1;
            }
            taken += (HEADER + length).next_multiple_of(8) as u64;
            // What was copied is copied before its place is given back.
            self.consumer.set_word(0, taken);
        }
        count
    }
}

impl AsFd for RingBuffer {
    /// Readable as long as there is a record.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

/// Somebody who waits for the next ring of bells, whether or not the records are taken out.
#[derive(Debug)]
pub struct Listener {
    epoll: OwnedFd,
}

impl Listener {
    /// Listens to these: ring buffers, by any descriptor of theirs.
    pub fn to(bells: &[BorrowedFd<'_>]) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).named("epoll_create1", "")?;
        for bell in bells {
            let number = u64::from(bell.as_raw_fd().cast_unsigned());
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, bell, epoll::EventData::new_u64(number), flags)
                .named("epoll_ctl", "a bell")?;
        }
        Ok(Self { epoll })
    }

    /// Sleeps until a bell has rung since the last time, or until `limit`. Answers whether one has;
    /// a signal ends it early.
    pub fn wait(&self, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let mut events = Vec::with_capacity(8);
        let found =
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&limit));
        found.is_ok_and(|count| count > 0)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
