//! The memory that a path shares with the reader of a tap: a ring of bytes with one writer and one
//! reader, in different processes.
//!
//! ```text
//! path ── bytes ──► ring ── writev(2) from the mapping ──► device of the reader
//!      ── a byte, if the reader waits for bytes ──► socket; its end is the end of the tap
//!      ◄── a byte, if the path waits for room ─────
//! ```
//!
//! Positions and waits work as in [`buffer::byte_ring`]: neither side trusts the other, and neither
//! side ever accesses memory outside the ring. The reader may change the bytes of the ring, which
//! only it reads. This module has no sockets: its callers send the notifications.

pub use buffer::byte_ring::{Notification, ReaderState};

use buffer::byte_ring::{
    ByteRingReader, ByteRingWriter, PositionFault, RingWord, RingWordAccess as _,
};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use sys::memory::{GatherWrite, Mapping, Memfd, Seals};

/// Capacity in bytes of the ring between a path and the reader of a tap.
pub const TAP_RING_SIZE: usize = 8 << 20;
/// Offset in the shared file at which the bytes of the ring begin. The control words of both sides
/// precede them.
const DATA_OFFSET: usize = 4096;
/// Length in bytes of the file that a path and the reader of a tap share.
const TAP_FILE_SIZE: usize = DATA_OFFSET + TAP_RING_SIZE;
/// Minimum number of bytes for which memory is allocated in one step. Memory is allocated before it
/// is used, so that a shortage of memory is reported as an error.
const ALLOCATION_STEP_MIN: u64 = 256 << 10;

/// The writing end of a tap's ring, used by the path.
#[derive(Debug)]
pub struct TapRingWriter {
    file: Memfd,
    position: ByteRingWriter<Arc<Mapping>>,
    /// Range of positions in the stream for whose bytes the ring has allocated memory. If the ends
    /// of the range are at least [`TAP_RING_SIZE`] apart, all memory of the ring is allocated.
    allocated: (u64, u64),
}

/// A handle from which any thread reads the number of bytes in the ring of a tap.
#[derive(Clone, Debug)]
pub struct TapRingLevel(Arc<Mapping>);

/// An error after which a ring carries no more bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapRingFault {
    /// The process at the other end of the ring has published an impossible position.
    Position,
    /// No memory can be allocated for the bytes to be written.
    NoMemory,
}

impl From<PositionFault> for TapRingFault {
    fn from(_: PositionFault) -> Self {
        Self::Position
    }
}

impl TapRingWriter {
    /// Creates an empty ring. Its reader counts as waiting, so the writer notifies it of the first
    /// bytes. Memory is allocated only when bytes are written.
    pub fn new() -> sys::Result<Self> {
        let file = Memfd::create("streamline-tap", TAP_FILE_SIZE)?;
        file.allocate(0, DATA_OFFSET)?;
        let position = ByteRingWriter::new(Arc::new(file.map()?), TAP_RING_SIZE);
        file.seal(Seals::SIZE)?;
        Ok(Self { file, position, allocated: (0, 0) })
    }

    /// Returns a descriptor of the ring's memory, for [`TapRingReader::open`].
    pub fn duplicate_descriptor(&self) -> sys::Result<OwnedFd> {
        let copy = self.file.as_fd().try_clone_to_owned();
        copy.map_err(|error| {
            sys::Error::new("fcntl", "F_DUPFD_CLOEXEC", error.raw_os_error().unwrap_or(0))
        })
    }

    /// Returns a handle for the number of bytes in the ring.
    #[must_use]
    pub fn level_handle(&self) -> TapRingLevel {
        TapRingLevel(Arc::clone(self.position.words()))
    }

    /// Copies as many bytes into the ring as fit. Returns the number of bytes copied. Does not
    /// block.
    pub fn put(&mut self, bytes: &[u8]) -> Result<usize, TapRingFault> {
        let length = bytes.len().min(TAP_RING_SIZE - self.position.used_bytes()?);
        let written = self.position.written_byte_count();
        self.allocate(written + length as u64)?;
        let (first, second) = bytes
            .get(..length)
            .unwrap_or_default()
            .split_at(length.min(TAP_RING_SIZE - ring_offset(written)));
        let next = written + first.len() as u64;
        for (at, part) in [(written, first), (next, second)] {
            let memory = self.position.words();
            let stored = memory.store_bytes(DATA_OFFSET + ring_offset(at), part);
            debug_assert!(stored, "the range is in the ring");
        }
        self.position.publish(length);
        Ok(length)
    }

    /// Returns true if the reader waits for bytes, so that the caller must notify it. Further calls
    /// return false until the reader waits again.
    #[must_use]
    pub fn take_reader_request(&self) -> bool {
        self.position.take_reader_waits()
    }

    /// Asks the reader for a notification once a large part of the ring is free. Returns true,
    /// without asking, if that much is free already.
    pub fn announce_wait(&self) -> bool {
        self.position.announce_wait()
    }

    /// Returns true if the ring is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.position.used_bytes() == Ok(TAP_RING_SIZE)
    }

    /// Frees the memory of the ring if the ring is empty.
    pub fn free_if_empty(&mut self) {
        let (from, to) = self.allocated;
        if from < to
            && self.position.used_bytes() == Ok(0)
            && self.file.punch_hole(DATA_OFFSET, TAP_RING_SIZE).is_ok()
        {
            self.allocated =
                (self.position.written_byte_count(), self.position.written_byte_count());
        }
    }

    /// Allocates the memory of the ring at least up to stream position `end`. Later stores to this
    /// memory then cannot fail for lack of memory, unless the reader punches holes into the file.
    fn allocate(&mut self, end: u64) -> Result<(), TapRingFault> {
        let (from, to) = self.allocated;
        let all = from + TAP_RING_SIZE as u64;
        if end <= to || to >= all {
            return Ok(());
        }
        let end = end.max(to + ALLOCATION_STEP_MIN).min(all);
        let length = end.saturating_sub(to) as usize;
        let (at, to_wrap) = (ring_offset(to), TAP_RING_SIZE - ring_offset(to));
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
    /// Returns the number of bytes in the ring. If the reader takes bytes during the call, the
    /// result may be too small by the number of these bytes.
    #[must_use]
    pub fn byte_count(&self) -> usize {
        let written = self.0.load(RingWord::Written);
        // The reader may since have taken bytes that were written after the first load.
        let used = written.saturating_sub(self.0.load(RingWord::Taken));
        usize::try_from(used).map_or(TAP_RING_SIZE, |used| used.min(TAP_RING_SIZE))
    }
}

/// The reading end of a tap's ring, used by the reader of the tap.
#[derive(Debug)]
pub struct TapRingReader(ByteRingReader<Mapping>);

impl TapRingReader {
    /// Opens the reading end of a tap's ring, in the file that the path has shared. Returns `None`
    /// if the file is not such a ring, or if it could shrink.
    pub fn open(file: &Memfd) -> sys::Result<Option<Self>> {
        if file.len() != TAP_FILE_SIZE || !file.seals()?.contains(Seals::SIZE) {
            return Ok(None);
        }
        Ok(Some(Self(ByteRingReader::new(file.map()?, TAP_RING_SIZE))))
    }

    /// Returns the number of bytes that can be read. Fails if the path reports an impossible
    /// number.
    pub fn available(&self) -> Result<usize, TapRingFault> {
        Ok(self.0.available()?)
    }

    /// Returns the state of the ring. If the ring is empty, drains all notifications and requests
    /// another one. `next_notification` reads a notification from the socket and does not block.
    /// Fails if the path reports an impossible number of bytes.
    pub fn state(
        &self,
        next_notification: impl FnMut() -> Notification,
    ) -> Result<ReaderState, TapRingFault> {
        Ok(self.0.poll_state(next_notification)?)
    }

    /// Adds the next `length` bytes of the ring, which must be available, to a list of ranges to
    /// write.
    pub fn gather<'a>(&'a self, length: usize, to: &mut GatherWrite<'a>) {
        let at = ring_offset(self.0.taken_byte_count());
        let first = length.min(TAP_RING_SIZE - at);
        for (at, length) in [(at, first), (0, length - first)] {
            let inside = to.push_mapped(self.0.words(), DATA_OFFSET + at, length);
            debug_assert!(inside, "the range is in the ring");
        }
    }

    /// Frees the next `length` bytes of the ring, which must be available. Returns true if the
    /// caller must notify the path, because the path waits for room, there is now enough, and no
    /// notification has been sent yet.
    #[must_use]
    pub fn release_bytes(&mut self, length: usize) -> bool {
        self.0.take(length)
    }

    /// Asks the path for a notification when the next bytes arrive. The caller must then check once
    /// more for available bytes.
    pub fn announce_wait(&self) {
        self.0.announce_wait();
    }
}

/// Returns the offset in the ring that corresponds to a position in the stream of bytes.
const fn ring_offset(position: u64) -> usize {
    (position % TAP_RING_SIZE as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    fn ring() -> (TapRingWriter, TapRingReader) {
        let writer = TapRingWriter::new().unwrap();
        let file = Memfd::from_fd(writer.duplicate_descriptor().unwrap()).unwrap();
        let reader = TapRingReader::open(&file).unwrap().unwrap();
        (writer, reader)
    }

    /// Takes `length` bytes out of the ring through a pipe, and returns them.
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
        let _ = reader.release_bytes(length);
        reading.join().unwrap().unwrap()
    }

    #[test]
    fn b2_bytes_stay_in_order_across_the_ring_end() {
        let (mut writer, mut reader) = ring();
        let level = writer.level_handle();
        let bytes: Vec<u8> = (0..3 << 20).map(|at: usize| (at / 251) as u8).collect();
        for round in 0..7 {
            assert_eq!(writer.put(&bytes), Ok(bytes.len()), "{round}");
            assert_eq!((reader.available(), level.byte_count()), (Ok(bytes.len()), bytes.len()));
            assert!(take(&mut reader, bytes.len()) == bytes, "{round}");
            if round == 4 {
                writer.free_if_empty();
                assert!(writer.file.allocated_bytes().unwrap() <= DATA_OFFSET as u64);
            }
        }
    }

    #[test]
    fn b2_full_ring_accepts_bytes_only_after_a_read() {
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
        assert_eq!([writer.take_reader_request(), writer.take_reader_request()], [true, false]);
        reader.announce_wait();
        assert_eq!([writer.take_reader_request(), writer.take_reader_request()], [true, false]);
        assert_eq!(writer.put(&vec![1; TAP_RING_SIZE]), Ok(TAP_RING_SIZE));
        assert!(!reader.release_bytes(1) && !writer.announce_wait(), "too little room");
        assert!(!reader.release_bytes(TAP_RING_SIZE / 2 - 2));
        assert_eq!([reader.release_bytes(1), reader.release_bytes(1)], [true, false]);
        assert!(writer.announce_wait() && !reader.release_bytes(1));
    }

    #[test]
    fn b2_level_never_exceeds_the_bytes_in_the_ring() {
        const MESSAGE: [u8; 64] = [7; 64];
        let (mut writer, mut reader) = ring();
        let level = writer.level_handle();
        let done = std::sync::atomic::AtomicBool::new(false);
        let highest = std::thread::scope(|scope| {
            let observer = scope.spawn(|| {
                let mut highest = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    highest = highest.max(level.byte_count());
                }
                highest
            });
            for _ in 0..200_000 {
                assert_eq!(writer.put(&MESSAGE), Ok(MESSAGE.len()));
                let _ = reader.release_bytes(MESSAGE.len());
            }
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            observer.join().unwrap()
        });
        assert!(highest <= MESSAGE.len(), "{highest}");
    }

    #[test]
    fn b2_impossible_positions_are_faults() {
        let (mut writer, reader) = ring();
        reader.0.words().store(RingWord::Taken, 1);
        assert_eq!(writer.put(b"x"), Err(TapRingFault::Position));
        reader.0.words().store(RingWord::Taken, 0);
        for written in [TAP_RING_SIZE as u64 + 1, u64::MAX] {
            reader.0.words().store(RingWord::Written, written);
            assert_eq!(reader.available(), Err(TapRingFault::Position));
        }
        let small = Memfd::create("small", 4096).unwrap();
        assert!(TapRingReader::open(&small).unwrap().is_none());
        let unsealed = Memfd::create("unsealed", TAP_FILE_SIZE).unwrap();
        assert!(TapRingReader::open(&unsealed).unwrap().is_none());
    }
}
