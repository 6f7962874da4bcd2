//! The memory that a path shares with the reader of a tap: a ring of bytes with one writer and one
//! reader, in different processes.
//!
//! ```text
//! path ── bytes ──► ring ── writev(2) from the mapping ──► device of the reader
//!      ── a byte, if the reader waits for bytes ──► socket; its end is the end of the tap
//!      ◄── a byte, if the path waits for room ─────
//! ```
//!
//! Positions count bytes from the start of the tap. Each side writes only its own position, and
//! treats the position of the other side as an allegation: a position that does not fit ends the
//! tap or fails the read, and neither side ever accesses memory outside the ring. The reader may
//! change the bytes of the ring, which only it reads.
//!
//! A side that waits says so in a word, and then looks again at the position of the other side. The
//! other side first publishes its position, and then looks at the word. The fences (SYNC POINT:
//! waiting) order these two accesses, so at least one side sees the other. This module has no
//! sockets: its callers send the notifications.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use sys::memory::{GatherWrite, Mapping, Memfd, Seals};

/// Capacity of a ring in bytes.
pub const TAP_RING_SIZE: usize = 8 << 20;
/// Offset of the first byte of the ring; the words of both sides precede it.
const DATA_OFFSET: usize = 4096;
/// Length of the file in bytes.
const FILE_SIZE: usize = DATA_OFFSET + TAP_RING_SIZE;
/// Offset of the number of bytes that the path has written.
const WRITTEN: usize = 0;
/// Offset of the number of bytes that the reader has taken.
const TAKEN: usize = 64;
/// Offset of the word that is 1 while the reader waits for bytes.
const READER_WAITS: usize = 128;
/// Offset of the number of taken bytes for which the path waits; 0 while it does not wait.
const ROOM_WANTED: usize = 192;
/// Number of bytes whose memory is allocated at once, so that a shortage is an error.
const ALLOCATED_MIN: u64 = 256 << 10;
/// Share of the ring that the reader must have taken before it wakes a path that waits for room.
const ROOM_MIN: u64 = TAP_RING_SIZE as u64 / 2;

/// The path's side of a ring.
#[derive(Debug)]
pub struct TapRingWriter {
    file: Memfd,
    memory: Arc<Mapping>,
    /// Number of bytes written.
    written: u64,
    /// Positions between which memory is allocated. Beyond a whole ring, all of it is.
    allocated: (u64, u64),
}

/// A handle that returns the number of bytes in a ring.
#[derive(Clone, Debug)]
pub struct TapRingLevel(Arc<Mapping>);

/// The error of a ring that cannot carry bytes any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapRingFault {
    /// The other side alleges a position that it cannot have.
    Position,
    /// There is no memory for the bytes.
    NoMemory,
}

impl TapRingWriter {
    /// Creates an empty ring, whose reader counts as waiting for the first bytes. Memory is
    /// allocated when bytes are written.
    pub fn new() -> sys::Result<Self> {
        let file = Memfd::create("streamline-tap", FILE_SIZE)?;
        file.allocate(0, DATA_OFFSET)?;
        let memory = Arc::new(file.map()?);
        memory.set_word(READER_WAITS, 1);
        file.seal(Seals::SIZE)?;
        Ok(Self { file, memory, written: 0, allocated: (0, 0) })
    }

    /// Returns a descriptor of the memory, for [`TapRingReader::open`].
    pub fn share(&self) -> sys::Result<OwnedFd> {
        let copy = self.file.as_fd().try_clone_to_owned();
        copy.map_err(|error| {
            sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", error.raw_os_error().unwrap_or(0))
        })
    }

    /// Returns a handle for the number of bytes in the ring.
    #[must_use]
    pub fn level(&self) -> TapRingLevel {
        TapRingLevel(Arc::clone(&self.memory))
    }

    /// Copies as many bytes into the ring as fit, and returns their number. Does not block.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize, TapRingFault> {
        let length = bytes.len().min(TAP_RING_SIZE - self.used()?);
        self.allocate(self.written + length as u64)?;
        let (first, second) = bytes
            .get(..length)
            .unwrap_or_default()
            .split_at(length.min(TAP_RING_SIZE - offset_of(self.written)));
        let next = self.written + first.len() as u64;
        for (at, part) in [(self.written, first), (next, second)] {
            let stored = self.memory.store_bytes(DATA_OFFSET + offset_of(at), part);
            debug_assert!(stored, "the range is in the ring");
        }
        self.written += length as u64;
        // This Release pairs with the Acquire in `TapRingReader::available`.
        self.memory.set_word(WRITTEN, self.written);
        Ok(length)
    }

    /// Returns true, once, if the reader waits for bytes, so that it must be notified.
    #[must_use]
    pub fn take_reader_waits(&self) -> bool {
        // SYNC POINT: waiting. Pairs with the fence in `TapRingReader::announce_wait`.
        fence(Ordering::SeqCst);
        let waits = self.memory.word(READER_WAITS).is_some_and(|waits| waits != 0);
        if waits {
            self.memory.set_word(READER_WAITS, 0);
        }
        waits
    }

    /// Asks the reader for a notification when it has taken a large part of the ring. Returns true,
    /// and asks for none, if there is that much room already.
    pub fn announce_wait(&self) -> bool {
        let wanted = self.written.saturating_sub(TAP_RING_SIZE as u64) + ROOM_MIN;
        self.memory.set_word(ROOM_WANTED, wanted);
        // SYNC POINT: waiting. Pairs with the fence in `TapRingReader::take`.
        fence(Ordering::SeqCst);
        let has_room = self.memory.word(TAKEN).is_some_and(|taken| taken >= wanted);
        if has_room {
            self.memory.set_word(ROOM_WANTED, 0);
        }
        has_room
    }

    /// Returns true if the ring is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.used() == Ok(TAP_RING_SIZE)
    }

    /// Frees the memory of the ring if the reader has taken all bytes.
    pub fn free_if_empty(&mut self) {
        let (from, to) = self.allocated;
        if from < to && self.used() == Ok(0) && self.file.punch(DATA_OFFSET, TAP_RING_SIZE).is_ok()
        {
            self.allocated = (self.written, self.written);
        }
    }

    /// Returns the number of bytes in the ring. Fails if the reader alleges an impossible position.
    fn used(&self) -> Result<usize, TapRingFault> {
        used(&self.memory, Some(self.written)).ok_or(TapRingFault::Position)
    }

    /// Allocates the memory up to this position, so that a store cannot fail
    /// unless the reader punches the file.
    fn allocate(&mut self, end: u64) -> Result<(), TapRingFault> {
        let (from, to) = self.allocated;
        let all = from + TAP_RING_SIZE as u64;
        if end <= to || to >= all {
            return Ok(());
        }
        let end = end.max(to + ALLOCATED_MIN).min(all);
        let length = end.saturating_sub(to) as usize;
        let (at, to_wrap) = (offset_of(to), TAP_RING_SIZE - offset_of(to));
        for (at, length) in [(at, length.min(to_wrap)), (0, length.saturating_sub(to_wrap))] {
            if length > 0 {
                self.file.allocate(DATA_OFFSET + at, length).map_err(|_| TapRingFault::NoMemory)?;
            }
        }
        self.allocated.1 = end;
        Ok(())
    }
}

impl TapRingLevel {
    /// Returns the number of bytes in the ring.
    #[must_use]
    pub fn get(&self) -> usize {
        used(&self.0, self.0.word(WRITTEN)).unwrap_or(TAP_RING_SIZE)
    }
}

/// Returns the number of bytes in a ring in which this number was written, or `None` if the
/// reader's position does not fit.
fn used(memory: &Mapping, written: Option<u64>) -> Option<usize> {
    let used = written?.checked_sub(memory.word(TAKEN)?)?;
    usize::try_from(used).ok().filter(|used| *used <= TAP_RING_SIZE)
}

/// The reader's side of a ring.
#[derive(Debug)]
pub struct TapRingReader {
    memory: Mapping,
    /// Number of bytes taken.
    taken: u64,
}

impl TapRingReader {
    /// Opens the ring in a file that a path has shared. Returns `None` if the file is no ring, or
    /// if it could shrink.
    pub fn open(file: &Memfd) -> sys::Result<Option<Self>> {
        if file.len() != FILE_SIZE || !file.seals()?.has(Seals::SIZE) {
            return Ok(None);
        }
        Ok(Some(Self { memory: file.map()?, taken: 0 }))
    }

    /// Returns the number of bytes that can be taken. Fails if the path alleges an impossible
    /// number.
    pub fn available(&self) -> Result<usize, TapRingFault> {
        // This Acquire pairs with the Release in `TapRingWriter::put`.
        let written = self.memory.word(WRITTEN).unwrap_or_default();
        let available = written.checked_sub(self.taken).and_then(|all| usize::try_from(all).ok());
        available.filter(|all| *all <= TAP_RING_SIZE).ok_or(TapRingFault::Position)
    }

    /// Adds the next `length` bytes, which must be available, to a list of ranges to write.
    pub fn gather<'a>(&'a self, length: usize, to: &mut GatherWrite<'a>) {
        let at = offset_of(self.taken);
        let first = length.min(TAP_RING_SIZE - at);
        for (at, length) in [(at, first), (0, length - first)] {
            let inside = to.push_mapped(&self.memory, DATA_OFFSET + at, length);
            debug_assert!(inside, "the range is in the ring");
        }
    }

    /// Takes `length` bytes, which must be available, out of the ring. Returns true, once, if the
    /// path waits for room and there is enough, so that it must be notified.
    #[must_use]
    pub fn take(&mut self, length: usize) -> bool {
        self.taken += length as u64;
        // This Release pairs with the Acquire in `used`: the path reuses memory after the reader
        // has read it.
        self.memory.set_word(TAKEN, self.taken);
        // SYNC POINT: waiting. Pairs with the fence in `TapRingWriter::announce_wait`.
        fence(Ordering::SeqCst);
        let wanted = self.memory.word(ROOM_WANTED).unwrap_or_default();
        let waits = wanted != 0 && self.taken >= wanted;
        if waits {
            self.memory.set_word(ROOM_WANTED, 0);
        }
        waits
    }

    /// Asks the path for a notification when the next bytes come. The caller then checks for
    /// available bytes once more.
    pub fn announce_wait(&self) {
        self.memory.set_word(READER_WAITS, 1);
        // SYNC POINT: waiting. Pairs with the fence in `TapRingWriter::take_reader_waits`.
        fence(Ordering::SeqCst);
    }
}

/// Returns the offset of a position in the ring.
const fn offset_of(position: u64) -> usize {
    (position % TAP_RING_SIZE as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn ring() -> (TapRingWriter, TapRingReader) {
        let writer = TapRingWriter::new().unwrap();
        let file = Memfd::from_fd(writer.share().unwrap()).unwrap();
        let reader = TapRingReader::open(&file).unwrap().unwrap();
        (writer, reader)
    }

    /// Takes `length` bytes through a pipe.
    fn take(reader: &mut TapRingReader, length: usize) -> Vec<u8> {
        let (mut near, far) = std::io::pipe().unwrap();
        let reading = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            near.read_to_end(&mut bytes).map(|_| bytes)
        });
        let mut gather = GatherWrite::default();
        reader.gather(length, &mut gather);
        gather.write_all(&far, |_| unreachable!("the pipe blocks")).1.unwrap();
        drop(far);
        let _ = reader.take(length);
        reading.join().unwrap().unwrap()
    }

    #[test]
    fn b2_ring_carries_bytes_in_order_around_its_end() {
        let (mut writer, mut reader) = ring();
        let level = writer.level();
        let bytes: Vec<u8> = (0..3 << 20).map(|at: usize| (at / 251) as u8).collect();
        for round in 0..7 {
            assert_eq!(writer.put(&bytes), Ok(bytes.len()), "{round}");
            assert_eq!((reader.available(), level.get()), (Ok(bytes.len()), bytes.len()));
            assert!(take(&mut reader, bytes.len()) == bytes, "{round}");
            if round == 4 {
                writer.free_if_empty();
                assert!(writer.file.resident().unwrap() <= DATA_OFFSET as u64);
            }
        }
    }

    #[test]
    fn b2_full_ring_takes_no_more_until_bytes_are_taken() {
        let (mut writer, mut reader) = ring();
        let bytes = vec![7; TAP_RING_SIZE - 5];
        assert_eq!(writer.put(&bytes), Ok(bytes.len()));
        assert_eq!(writer.put(b"0123456789"), Ok(5));
        assert_eq!(writer.put(b"56789"), Ok(0));
        assert!(writer.is_full() && !writer.announce_wait());
        take(&mut reader, TAP_RING_SIZE - 5);
        assert!(!writer.is_full() && writer.announce_wait());
        assert_eq!(writer.put(b"56789"), Ok(5));
        assert_eq!(take(&mut reader, 10), b"0123456789");
    }

    #[test]
    fn b2_waiting_side_is_notified_once() {
        let (mut writer, mut reader) = ring();
        assert_eq!([writer.take_reader_waits(), writer.take_reader_waits()], [true, false]);
        reader.announce_wait();
        assert_eq!([writer.take_reader_waits(), writer.take_reader_waits()], [true, false]);
        assert_eq!(writer.put(&vec![1; TAP_RING_SIZE]), Ok(TAP_RING_SIZE));
        assert!(!reader.take(1) && !writer.announce_wait(), "too little room");
        assert!(!reader.take(TAP_RING_SIZE / 2 - 2));
        assert_eq!([reader.take(1), reader.take(1)], [true, false]);
        assert!(writer.announce_wait() && !reader.take(1));
    }

    #[test]
    fn b2_impossible_positions_are_faults() {
        let (mut writer, reader) = ring();
        reader.memory.set_word(TAKEN, 1);
        assert_eq!(
            (writer.put(b"x"), writer.level().get()),
            (Err(TapRingFault::Position), TAP_RING_SIZE)
        );
        reader.memory.set_word(TAKEN, 0);
        for written in [TAP_RING_SIZE as u64 + 1, u64::MAX] {
            reader.memory.set_word(WRITTEN, written);
            assert_eq!(reader.available(), Err(TapRingFault::Position));
        }
        let small = Memfd::create("small", 4096).unwrap();
        assert!(TapRingReader::open(&small).unwrap().is_none());
        let unsealed = Memfd::create("unsealed", FILE_SIZE).unwrap();
        assert!(TapRingReader::open(&unsealed).unwrap().is_none());
    }
}
