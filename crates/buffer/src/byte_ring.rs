//! The positions and the wait flags of a ring of bytes with one writer and one reader, in different
//! processes that do not trust each other.
//!
//! ```text
//! writer ── bytes, then WRITTEN ──► reader        a byte over a socket, if READER_WAITS
//!        ◄── TAKEN, after the bytes ──            a byte over a socket, if TAKEN >= ROOM_WANTED
//! ```
//!
//! Positions count bytes from the start. Each side writes only its own position, and treats the
//! position of the other side as an allegation ([`PositionFault`]).
//!
//! A side that waits sets a word, and then reads the position of the other side again. The other
//! side first publishes its position, and then reads the word. The fences (SYNC POINT: waiting)
//! order these two accesses, so at least one side sees the other's store. This module has neither
//! bytes nor sockets: its callers copy bytes and send notifications. The other side may also clear
//! the word late, after the waiting side has set it again. A notification always follows, so a side
//! that is woken reads the position and, if it still waits, sets the word again.

use crate::atomic::{Ordering, fence};

/// A control word of a ring of bytes, in memory that the writer and the reader share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RingWord {
    /// Number of bytes that the writer has written into the ring so far.
    Written,
    /// Number of bytes that the reader has taken from the ring so far.
    Taken,
    /// 1 while the reader waits for bytes, otherwise 0.
    ReaderWaits,
    /// Number of bytes that the reader must have taken before it notifies the waiting writer; 0
    /// while the writer does not wait.
    RoomWanted,
}

/// Access to the control words of a ring, in memory that both sides share.
pub trait RingWordAccess {
    /// Loads a control word of the ring with Acquire ordering.
    fn load(&self, word: RingWord) -> u64;
    /// Stores a control word of the ring with Release ordering.
    fn store(&self, word: RingWord, value: u64);
}

impl RingWord {
    /// Returns the byte offset of the word in the memory that writer and reader share. Each word
    /// has its own cache line.
    #[must_use]
    pub const fn offset(self) -> usize {
        match self {
            Self::Written => 0,
            Self::Taken => 64,
            Self::ReaderWaits => 128,
            Self::RoomWanted => 192,
        }
    }
}

impl RingWordAccess for sys::memory::Mapping {
    fn load(&self, word: RingWord) -> u64 {
        self.word(word.offset()).unwrap_or_default()
    }

    fn store(&self, word: RingWord, value: u64) {
        let stored = self.set_word(word.offset(), value);
        debug_assert!(stored, "the words are in the mapping");
    }
}

impl<W: RingWordAccess> RingWordAccess for std::sync::Arc<W> {
    fn load(&self, word: RingWord) -> u64 {
        (**self).load(word)
    }

    fn store(&self, word: RingWord, value: u64) {
        (**self).store(word, value);
    }
}

/// The error returned if the position that the other side of the ring has published is impossible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PositionFault;

/// Returns the number of bytes that the reader has not yet taken from a ring of `size` bytes in
/// which the writer has written `written` bytes. Fails if the reader's position is impossible.
fn bytes_in_ring(
    words: &impl RingWordAccess,
    written: u64,
    size: usize,
) -> Result<usize, PositionFault> {
    // This Acquire pairs with the Release in `ByteRingReader::take`.
    let used = written.checked_sub(words.load(RingWord::Taken));
    let used = used.and_then(|used| usize::try_from(used).ok());
    used.filter(|used| *used <= size).ok_or(PositionFault)
}

/// The writer's side of a ring of bytes.
#[derive(Debug)]
pub struct ByteRingWriter<W> {
    words: W,
    size: usize,
    written: u64,
}

impl<W: RingWordAccess> ByteRingWriter<W> {
    /// Creates the writer's side of an empty ring of `size` bytes. Marks the reader as waiting, so
    /// that the first bytes cause a notification.
    pub fn new(words: W, size: usize) -> Self {
        words.store(RingWord::ReaderWaits, 1);
        Self { words, size, written: 0 }
    }

    /// Returns the shared words of the ring.
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Returns the number of bytes published so far.
    #[must_use]
    pub const fn written_byte_count(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes in the ring. Fails if the reader's position is impossible.
    pub fn used_bytes(&self) -> Result<usize, PositionFault> {
        bytes_in_ring(&self.words, self.written, self.size)
    }

    /// Publishes the next `length` bytes, which the caller has copied into the ring.
    pub fn publish(&mut self, length: usize) {
        self.written += length as u64;
        // This Release pairs with the Acquire in `ByteRingReader::available`.
        self.words.store(RingWord::Written, self.written);
    }

    /// Returns true if the reader waits for bytes, so that it must be notified. Clears the reader's
    /// flag, so that the next call returns false unless the reader waits again.
    #[must_use]
    pub fn take_reader_waits(&self) -> bool {
        // SYNC POINT: waiting. Pairs with the fence in `ByteRingReader::announce_wait`.
        fence(Ordering::SeqCst);
        let waits = self.words.load(RingWord::ReaderWaits) != 0;
        if waits {
            self.words.store(RingWord::ReaderWaits, 0);
        }
        waits
    }

    /// Requests a notification from the reader, which sends it when half of the ring is free. If
    /// half of the ring is already free, requests none and returns true.
    pub fn announce_wait(&self) -> bool {
        let room_min = self.size as u64 / 2;
        let wanted = self.written.saturating_sub(self.size as u64) + room_min;
        self.words.store(RingWord::RoomWanted, wanted);
        // SYNC POINT: waiting. Pairs with the fence in `ByteRingReader::take`.
        fence(Ordering::SeqCst);
        let has_room = self.words.load(RingWord::Taken) >= wanted;
        if has_room {
            self.words.store(RingWord::RoomWanted, 0);
        }
        has_room
    }
}

/// The result of reading a notification from the socket that a ring's writer and reader share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notification {
    /// A notification was read from the socket.
    Taken,
    /// No notification has arrived yet.
    Pending,
    /// The other side has closed the socket.
    Closed,
}

/// The state of a ring of bytes as its reader sees it: bytes to read, none yet, or the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReaderState {
    /// The reader can take this number of bytes.
    Bytes(usize),
    /// Nothing is available, and the writer will send a notification.
    Empty,
    /// Nothing is available, and the writer has closed the socket.
    End,
}

/// The reader's side of a ring of bytes.
#[derive(Debug)]
pub struct ByteRingReader<W> {
    words: W,
    size: usize,
    taken: u64,
}

impl<W: RingWordAccess> ByteRingReader<W> {
    /// Creates the reader's side of a ring of `size` bytes, from which nothing has been read yet.
    pub const fn new(words: W, size: usize) -> Self {
        Self { words, size, taken: 0 }
    }

    /// Returns the shared words of the ring.
    pub const fn words(&self) -> &W {
        &self.words
    }

    /// Returns the number of bytes taken so far.
    #[must_use]
    pub const fn taken_byte_count(&self) -> u64 {
        self.taken
    }

    /// Returns the number of bytes that can be taken. Fails if the writer's position is impossible.
    pub fn available(&self) -> Result<usize, PositionFault> {
        // This Acquire pairs with the Release in `ByteRingWriter::publish`.
        let available = self.words.load(RingWord::Written).checked_sub(self.taken);
        let available = available.and_then(|all| usize::try_from(all).ok());
        available.filter(|all| *all <= self.size).ok_or(PositionFault)
    }

    /// Returns the state of the ring. If the ring is empty, first reads all pending notifications
    /// through `next_notification`, and requests another one from the writer. `next_notification`
    /// reads from the socket and must not block. Fails if the writer's position is impossible.
    pub fn poll_state(
        &self,
        mut next_notification: impl FnMut() -> Notification,
    ) -> Result<ReaderState, PositionFault> {
        let mut has_ended = false;
        loop {
            match self.available()? {
                0 if has_ended => return Ok(ReaderState::End),
                0 => self.announce_wait(),
                available => return Ok(ReaderState::Bytes(available)),
            }
            if self.available()? > 0 {
                continue;
            }
            match next_notification() {
                Notification::Taken => {}
                Notification::Pending => return Ok(ReaderState::Empty),
                // Published bytes are delivered before the end of the stream.
                Notification::Closed => has_ended = true,
            }
        }
    }

    /// Removes the next `length` bytes from the ring, which the caller must have read. Returns true
    /// if the caller must notify the writer, because the writer waits for room and enough is now
    /// free. Each wait of the writer yields true at most once.
    #[must_use]
    pub fn take(&mut self, length: usize) -> bool {
        self.taken += length as u64;
        // This Release pairs with the Acquire in `bytes_in_ring`: the writer reuses memory after
        // the reader has read it.
        self.words.store(RingWord::Taken, self.taken);
        // SYNC POINT: waiting. Pairs with the fence in `ByteRingWriter::announce_wait`.
        fence(Ordering::SeqCst);
        let wanted = self.words.load(RingWord::RoomWanted);
        let waits = wanted != 0 && self.taken >= wanted;
        if waits {
            self.words.store(RingWord::RoomWanted, 0);
        }
        waits
    }

    /// Requests a notification from the writer, which sends it after the next bytes. The caller
    /// must check for available bytes once more, because bytes published in the meantime cause no
    /// notification.
    pub fn announce_wait(&self) {
        self.words.store(RingWord::ReaderWaits, 1);
        // SYNC POINT: waiting. Pairs with the fence in `ByteRingWriter::take_reader_waits`.
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
#[expect(unsafe_code, reason = "accesses the cells that detect concurrent accesses")]
mod models;
