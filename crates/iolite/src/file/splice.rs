//! From the cache to another descriptor, without passing through this process. [SL §5.3.3]
//!
//! The kernel is given the address in the kept mapping and copies from there (a file, a socket), or
//! refers to the pages (a pipe). It finds out by itself what is not there any more; that the last
//! page of a file which was cut reads as zeros behind the end it does not say, so the size is
//! looked at afterwards, once for each call: what was sent too much is told, to the byte
//! ([`Refusal::Cut`]). That costs as much as a small block does; memory that is sealed against
//! being cut (`F_SEAL_SHRINK`) is not asked.

use super::{CachedFile, FileView, Refusal};
use abi::{Extent, RichPointer};
use std::os::fd::{AsFd, BorrowedFd};
use sys::file::{FileKind, RANGES_MAX};

/// The result of a splice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// So many bytes were taken, maybe fewer than asked for.
    Bytes(usize),
    /// The file ends before the first byte.
    End,
}

/// The system call by which bytes leave the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpliceCall {
    /// `write` or `writev` of the mapped address: one copy, by the kernel.
    Write,
    /// `vmsplice`: the pipe refers to the pages.
    Refer,
    /// `sendfile`: for files that cannot be mapped.
    Send,
}

impl SpliceCall {
    /// The way for so many bytes to a descriptor of this kind. What a pipe refers to is not copied,
    /// which pays from some pages on; but it is only read later, so it may then show what others
    /// have written to the file since: no more than any reader of a file must expect.
    #[must_use]
    pub const fn choose(is_mapped: bool, to: FileKind, length: usize) -> Self {
        match to {
            _ if !is_mapped => Self::Send,
            FileKind::Pipe if length >= REFER_MIN => Self::Refer,
            _ => Self::Write,
        }
    }
}

/// Fewer bytes are copied into a pipe. Against read and write: 512 B 0.4 times as fast by
/// reference, 4 KB 1.2 to 1.5, from 16 KB on 2.3 (`examples/splice_ways.rs`).
const REFER_MIN: usize = 4 << 10;

impl CachedFile {
    /// Hands the bytes of a place to another descriptor, by the way that fits it.
    pub fn splice(&self, place: Extent, to: impl AsFd) -> Result<Sent, Refusal> {
        let view = self.view(place.position().saturating_add(place.length().into()))?;
        let kind = sys::file::status(&to)?.kind;
        let way = SpliceCall::choose(view.mapping.is_some(), kind, place.length() as usize);
        self.splice_by(way, place, to)
    }

    /// As [`CachedFile::splice`], by this way.
    pub fn splice_by(
        &self,
        way: SpliceCall,
        place: Extent,
        to: impl AsFd,
    ) -> Result<Sent, Refusal> {
        again(|| self.splice_once(way, place, to.as_fd()))
    }

    fn splice_once(
        &self,
        way: SpliceCall,
        place: Extent,
        to: BorrowedFd<'_>,
    ) -> Result<Sent, Refusal> {
        let view = self.view(place.position().saturating_add(place.length().into()))?;
        let Some((at, length)) = inside(&view, place) else { return Ok(Sent::End) };
        let sent = match (way, &view.mapping) {
            (SpliceCall::Write, Some(mapping)) => mapping.write_to(at, length, to)?,
            (SpliceCall::Refer, Some(mapping)) => mapping.splice_to(&[(at, length)], to)?,
            _ => sys::file::send(self.descriptor(), at as u64, length, to)?,
        };
        self.are_there(&view, sent, &[(at, length)])
    }

    /// Hands the bytes of several places to another descriptor by one call, one behind the other.
    /// Pointers into other dbufs end the list; so does what the file does not have.
    pub fn splice_all(&self, pointers: &[RichPointer], to: impl AsFd) -> Result<Sent, Refusal> {
        again(|| self.splice_all_once(pointers, to.as_fd()))
    }

    fn splice_all_once(
        &self,
        pointers: &[RichPointer],
        to: BorrowedFd<'_>,
    ) -> Result<Sent, Refusal> {
        let ours = || pointers.iter().take_while(|pointer| pointer.dbuf() == self.id());
        let end = |p: &RichPointer| p.place.position().saturating_add(p.length().into());
        let view = self.view(ours().map(end).max().unwrap_or(0))?;
        let mut pieces = Vec::new();
        for pointer in ours().take(RANGES_MAX) {
            let Some((at, length)) = inside(&view, pointer.place) else { break };
            pieces.push((at, length));
            if length < pointer.length() as usize {
                break;
            }
        }
        let (Some(mapping), false) = (&view.mapping, pieces.is_empty()) else {
            let first = pointers.first().filter(|first| first.dbuf() == self.id());
            return first.map_or(Ok(Sent::End), |first| self.splice(first.place, to));
        };
        let sent = mapping.write_ranges(&pieces, to)?;
        self.are_there(&view, sent, &pieces)
    }

    /// Returns true if the file still has what was sent of these pieces.
    fn are_there(
        &self,
        view: &FileView,
        sent: usize,
        pieces: &[(usize, usize)],
    ) -> Result<Sent, Refusal> {
        if self.inner.is_uncut && sent > 0 {
            return Ok(Sent::Bytes(sent));
        }
        let size = self.look()?.size;
        let (mut left, mut good) = (sent, 0);
        for &(at, length) in pieces {
            let taken = length.min(left);
            let there = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(at);
            good += taken.min(there);
            left -= taken;
            if taken > there {
                return Err(Refusal::Cut { sent, good });
            }
        }
        match sent {
            0 if pieces.iter().all(|(_, length)| *length == 0) => Ok(Sent::Bytes(0)),
            // EFAULT: all was cut off since the view was made; it may be there again (`again`).
            0 if size < view.size => Ok(Sent::End),
            0 => Err(super::system("write", FAULT)),
            sent => Ok(Sent::Bytes(sent)),
        }
    }
}

/// EFAULT: a page that should be there cannot be read.
const FAULT: i32 = 14;
/// Retries for a page that should be there. In a file that is cut and grown all the time it is
/// missing once in some thousand calls; on a broken disk it is missing each time.
const TRIES: usize = 8;

/// Does it again where nothing was sent because of a page that was missing for a moment.
fn again(once: impl Fn() -> Result<Sent, Refusal>) -> Result<Sent, Refusal> {
    for _ in 1..TRIES {
        match once() {
            Err(Refusal::System(error)) if error.errno == FAULT => {}
            done => return done,
        }
    }
    once()
}

/// Returns the part of a place that the mapping holds.
fn inside(view: &FileView, place: Extent) -> Option<(usize, usize)> {
    let left = view.size.checked_sub(place.position()).filter(|&left| left > 0)?;
    let length = left.min(place.length().into());
    Some((usize::try_from(place.position()).ok()?, usize::try_from(length).ok()?))
}
