//! Access to the bytes of an aggregate: indexing, copying, comparing, hashing, and reading through
//! the file traits. [IOL §2.1, §2.4]

use super::{Aggregate, Slices};
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::io::{self, BufRead, ErrorKind, IoSlice, Read, Write};

impl Aggregate {
    /// Returns the byte of the aggregate at an offset, or `None` beyond the end.
    #[must_use]
    pub fn byte(&self, mut at: usize) -> Option<u8> {
        for slice in self.slices() {
            if at < slice.len() {
                return slice.bytes().get(at).copied();
            }
            at -= slice.len();
        }
        None
    }

    /// Returns all bytes of the aggregate as one byte slice, or `None` if the aggregate has several
    /// slices.
    #[must_use]
    pub fn contiguous_bytes(&self) -> Option<&[u8]> {
        let mut slices = self.slices();
        let first = slices.next().map_or(Some(&[][..]), |slice| Some(slice.bytes()));
        if slices.next().is_none() { first } else { None }
    }

    /// Copies bytes that begin at offset `from` into `out`, until the aggregate ends or `out` is
    /// full. Returns the number of bytes copied.
    pub fn copy(&self, mut from: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in self.slices() {
            if from >= slice.len() {
                from -= slice.len();
                continue;
            }
            let rest = out.get_mut(done..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            done += copy_available(slice.bytes().get(from..).unwrap_or_default(), rest);
            from = 0;
        }
        done
    }

    /// Returns a copy of all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }

    /// Returns a reader that starts at the first byte.
    #[must_use]
    pub fn reader(&self) -> AggregateReader<'_> {
        let mut reader = AggregateReader { piece: &[], rest: self.slices() };
        reader.refill();
        reader
    }

    /// Writes all bytes, up to 64 slices per call if `out` supports vectored writes (`writev`).
    /// After an error, the number of bytes written is unknown; a caller that needs the number uses
    /// [`Aggregate::reader`].
    pub fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        let mut reader = self.reader();
        loop {
            let mut parts = [IoSlice::new(&[]); VECTORED_SLICES_MAX];
            let count = reader.io_slices(&mut parts);
            if count == 0 {
                return Ok(());
            }
            match out.write_vectored(parts.get(..count).unwrap_or_default()) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => reader.consume(written),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Maximum number of slices per vectored write. An array of this many slices takes 1 KB of stack;
/// the kernel accepts up to 1024 slices.
const VECTORED_SLICES_MAX: usize = 64;

/// A reader of an aggregate's bytes. Implements [`Read`], and [`BufRead`] without a copy.
#[derive(Clone, Debug)]
pub struct AggregateReader<'a> {
    /// Unread bytes of the slice at the read position; empty only at the end of the aggregate.
    piece: &'a [u8],
    rest: Slices<'a>,
}

impl<'a> AggregateReader<'a> {
    /// Fills `out` with the next unread byte ranges for a vectored write, and returns their number.
    /// Consumes nothing; the caller reports the written bytes with [`BufRead::consume`].
    pub fn io_slices(&self, out: &mut [IoSlice<'a>]) -> usize {
        let pieces = std::iter::once(self.piece).filter(|piece| !piece.is_empty());
        let mut count = 0;
        for (place, piece) in
            out.iter_mut().zip(pieces.chain(self.rest.clone().map(super::Slice::bytes)))
        {
            *place = IoSlice::new(piece);
            count += 1;
        }
        count
    }

    fn refill(&mut self) {
        if self.piece.is_empty() {
            self.piece = self.rest.next().map(super::Slice::bytes).unwrap_or_default();
        }
    }
}

impl Read for AggregateReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while !self.piece.is_empty() && done < out.len() {
            let count = copy_available(self.piece, out.get_mut(done..).unwrap_or_default());
            self.consume(count);
            done += count;
        }
        Ok(done)
    }
}

impl BufRead for AggregateReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.piece)
    }

    fn consume(&mut self, mut count: usize) {
        while count > 0 && !self.piece.is_empty() {
            let here = count.min(self.piece.len());
            self.piece = self.piece.get(here..).unwrap_or_default();
            count -= here;
            self.refill();
        }
    }
}

/// Copies bytes until `from` ends or `to` is full. Returns the number of bytes copied.
fn copy_available(from: &[u8], to: &mut [u8]) -> usize {
    let count = from.len().min(to.len());
    if let (Some(from), Some(to)) = (from.get(..count), to.get_mut(..count)) {
        to.copy_from_slice(from);
    }
    count
}

/// Compares two byte sequences, each given as nonempty pieces, regardless of their division into
/// pieces.
fn compare_pieces<'a>(
    mut left: impl Iterator<Item = &'a [u8]>,
    mut right: impl Iterator<Item = &'a [u8]>,
) -> Ordering {
    let (mut left_slice, mut right_slice): (&[u8], &[u8]) = (&[], &[]);
    loop {
        if left_slice.is_empty() {
            left_slice = left.next().unwrap_or_default();
        }
        if right_slice.is_empty() {
            right_slice = right.next().unwrap_or_default();
        }
        let count = left_slice.len().min(right_slice.len());
        if count == 0 {
            return left_slice.len().cmp(&right_slice.len());
        }
        let (first, second) = (left_slice.split_at(count), right_slice.split_at(count));
        match first.0.cmp(second.0) {
            Ordering::Equal => (left_slice, right_slice) = (first.1, second.1),
            differ => return differ,
        }
    }
}

fn as_single_piece(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::once(bytes).filter(|bytes| !bytes.is_empty())
}

impl PartialEq for Aggregate {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && compare_pieces(self.pieces(), other.pieces()).is_eq()
    }
}

impl Eq for Aggregate {}

impl PartialEq<[u8]> for Aggregate {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len() && compare_pieces(self.pieces(), as_single_piece(other)).is_eq()
    }
}

impl PartialOrd for Aggregate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Aggregate {
    fn cmp(&self, other: &Self) -> Ordering {
        compare_pieces(self.pieces(), other.pieces())
    }
}

impl Hash for Aggregate {
    /// Hashes in steps of 64 bytes, so that the division into slices does not matter. Otherwise
    /// equal aggregates could have different hashes, because the result of a hasher may depend on
    /// the steps.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut reader = self.reader();
        let mut step = [0; 64];
        loop {
            let count = reader.read(&mut step).unwrap_or(0);
            if count == 0 {
                return state.write_usize(self.len());
            }
            state.write(step.get(..count).unwrap_or_default());
        }
    }
}
