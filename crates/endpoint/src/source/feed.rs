//! The bytes of an input in pieces that lie in the pool, so that records can be named where they
//! are.
//!
//! In: an [`Input`]. Out: pieces of up to [`PIECE`] bytes, read straight into the pool. The current
//! piece is pinned while unread bytes are in it. What a piece ends with, a record without its end,
//! is the only thing that is copied: it stands at the front of the next piece.

use super::input::{Got, Input};
use crate::Failure;
use abi::Extent;
use buffer::pool::{Pin, Pool};
use std::os::fd::BorrowedFd;

/// Bytes per read: small enough that they are still in the processor's cache when filters look at
/// them, large enough that a system call for them costs nothing. Of 64 KB to 1 MB, 128 and 256 KB
/// were fastest (76 ns a packet of 600 bytes looked at whole, 1 MB 90 ns).
pub(crate) const PIECE: usize = 256 * 1024;
/// A segment with less room than this is left for a fresh one.
const LEAST: usize = 64 * 1024;

/// An input, and its bytes that are in the pool.
#[derive(Debug)]
pub(crate) struct Feed {
    input: Input,
    piece: Option<Piece>,
    /// The bytes in front of the next piece.
    carry: Vec<u8>,
    ended: bool,
}

/// The current piece.
#[derive(Debug)]
struct Piece {
    place: Extent,
    pin: Pin,
    /// Bytes consumed.
    at: u32,
}

/// The result of asking for more bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    /// At least as many bytes as were wanted are there.
    Ready,
    /// Nothing yet: wait for the descriptor.
    Nothing,
    /// The pool has no memory before the next turn.
    Full,
    /// The input has ended, and so many bytes are left, fewer than were wanted. They are in no
    /// piece.
    End(usize),
}

impl Feed {
    /// A feed at the beginning of an input.
    pub(crate) const fn new(input: Input) -> Self {
        Self { input, piece: None, carry: Vec::new(), ended: false }
    }

    /// Returns the input.
    pub(crate) const fn input(&self) -> &Input {
        &self.input
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.input.descriptor()
    }

    /// The bytes of the current piece that are not done with.
    pub(crate) fn bytes<'p>(&self, pool: &'p Pool) -> &'p [u8] {
        let Some(piece) = &self.piece else { return &[] };
        let bytes = pool.bytes(piece.place).unwrap_or_default();
        bytes.get(piece.at as usize..).unwrap_or_default()
    }

    /// The place of `length` bytes that begin `from` bytes behind what is done with.
    pub(crate) fn place(&self, from: u32, length: u32) -> Extent {
        match &self.piece {
            Some(piece) => piece.place.within(piece.at + from, length),
            None => Extent::default(),
        }
    }

    /// Is done with so many more bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        if let Some(piece) = &mut self.piece {
            piece.at += u32::try_from(count).unwrap_or(u32::MAX - piece.at);
        }
    }

    /// Tells the pool what is done with: filters may change it where it lies.
    pub(crate) fn settle(&self, pool: &Pool) {
        if let Some(piece) = &self.piece {
            let left = piece.place.length().saturating_sub(piece.at);
            pool.needs_from(piece.pin, piece.place.within(piece.at, left));
        }
    }

    /// Makes a piece that holds what is left and at least `wanted` bytes in all.
    pub(crate) fn fill(&mut self, pool: &Pool, wanted: usize) -> Result<Filled, Failure> {
        self.let_go(pool);
        loop {
            if self.ended {
                return self.last(pool, wanted);
            }
            let begun = self.carry.len();
            let min = wanted.max(begun + 1);
            let enough = min.max(LEAST.min(pool.block_max() / 4));
            let Some(mut draft) = pool.draft(enough, min.max(PIECE)) else {
                return self.no_draft(pool, min);
            };
            let room = draft.get_mut(begun..).unwrap_or_default();
            let count = match self.input.read(room)? {
                Got::Bytes(count) => count,
                Got::Nothing => return Ok(Filled::Nothing),
                Got::End => {
                    self.ended = true;
                    continue;
                }
            };
            if begun + count < wanted {
                self.carry.extend_from_slice(room.get(..count).unwrap_or_default());
                continue;
            }
            if let Some(front) = draft.get_mut(..begun) {
                front.copy_from_slice(&self.carry);
            }
            self.carry.clear();
            let place = draft.commit(begun + count);
            return self.hold(pool, place);
        }
    }

    /// The bytes left at the end of the input as a piece of their own.
    pub(crate) fn rest(&mut self, pool: &Pool) -> Result<Filled, Failure> {
        let count = self.carry.len();
        let Some(mut draft) = pool.draft(count, count) else { return Ok(Filled::Full) };
        draft.copy_from_slice(&self.carry);
        let place = draft.commit(count);
        self.carry.clear();
        self.hold(pool, place)
    }

    /// After the end, what was carried may still hold records.
    fn last(&mut self, pool: &Pool, wanted: usize) -> Result<Filled, Failure> {
        match self.carry.len() {
            left if left < wanted => Ok(Filled::End(left)),
            _ => self.rest(pool),
        }
    }

    fn no_draft(&self, pool: &Pool, min: usize) -> Result<Filled, Failure> {
        if min <= pool.block_max() {
            return Ok(Filled::Full);
        }
        let why = format!(
            "a record of {min} bytes came, and the buffers of this path hold {} bytes at most",
            pool.block_max()
        );
        Err(Failure::new("read", self.input.target(), why).hint("give the path larger buffers"))
    }

    fn hold(&mut self, pool: &Pool, place: Extent) -> Result<Filled, Failure> {
        let Some(pin) = pool.pin(place) else {
            return Err(Failure::new(
                "read",
                self.input.target(),
                "the buffers of this path failed",
            ));
        };
        self.piece = Some(Piece { place, pin, at: 0 });
        Ok(Filled::Ready)
    }

    /// Carries what is left of the current piece, and gives the piece back, so that its memory can
    /// be used again after this turn. Blocks in it stay until then. Answers how many bytes are
    /// carried.
    pub(crate) fn let_go(&mut self, pool: &Pool) -> usize {
        self.carry.extend_from_slice(self.bytes(pool));
        if let Some(piece) = self.piece.take() {
            pool.unpin(piece.pin);
        }
        self.carry.len()
    }
}
