//! Transfer of file contents from the page cache to another descriptor, without a copy in this
//! process. [SL §5.3.3]
//!
//! The kernel receives the address in the mapping, and copies from there (to a file or socket) or
//! references the pages (in a pipe). The kernel detects missing pages, but after a truncation the
//! last page reads as zeros beyond the new end. Therefore the size is checked once after each call,
//! and excess bytes are reported exactly ([`FileRefusal::Truncated`]). The check costs as much as a
//! small block, so it is skipped for memory sealed against truncation (`F_SEAL_SHRINK`).

use super::{CachedFile, FileRefusal, FileView};
use abi::{Extent, RichPointer};
use std::os::fd::{AsFd, BorrowedFd};
use sys::file::{FileKind, RANGES_PER_CALL_MAX};

/// The result of a transfer of file contents to another descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferResult {
    /// Number of bytes that the target descriptor accepted, possibly fewer than requested.
    Bytes(usize),
    /// No byte was transferred, because the requested range is beyond the end of the file.
    End,
}

/// The system call that transfers bytes from the page cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpliceCall {
    /// `write` or `writev` of the mapped address: one copy, by the kernel.
    Write,
    /// `vmsplice`: the pipe references the pages.
    Vmsplice,
    /// `sendfile`, for files that cannot be mapped.
    Sendfile,
}

impl SpliceCall {
    /// Returns the best call to transfer `length` bytes of a file to a descriptor of kind `to`.
    /// `is_mapped` is true if the file is mapped. References in a pipe save the copy, which pays
    /// off for one page or more. The pipe's reader may find newer contents in the referenced pages,
    /// as any reader of a file must expect.
    #[must_use]
    pub const fn choose(is_mapped: bool, to: FileKind, length: usize) -> Self {
        match to {
            _ if !is_mapped => Self::Sendfile,
            FileKind::Pipe if length >= VMSPLICE_BYTES_MIN => Self::Vmsplice,
            _ => Self::Write,
        }
    }
}

/// Minimum length in bytes of a transfer to a pipe for which the pipe gets references to the pages
/// (`vmsplice`) instead of a copy. Compared with read and write, 512 B by reference are 0.4 times
/// as fast, 4 KB 1.2 to 1.5 times, and 16 KB or more 2.3 times (`examples/splice_calls.rs`).
const VMSPLICE_BYTES_MIN: usize = 4 << 10;

impl CachedFile {
    /// Transfers the bytes of an extent to another descriptor, by the best system call.
    pub fn splice(&self, place: Extent, to: impl AsFd) -> Result<TransferResult, FileRefusal> {
        let view = self.view(place.position().saturating_add(place.length().into()))?;
        let kind = sys::file::status(&to)?.kind;
        let call = SpliceCall::choose(view.mapping.is_some(), kind, place.length() as usize);
        self.splice_with_call(call, place, to)
    }

    /// Transfers the bytes of an extent like [`CachedFile::splice`], but by the given system call,
    /// or by `sendfile` if the file is not mapped.
    pub fn splice_with_call(
        &self,
        call: SpliceCall,
        place: Extent,
        to: impl AsFd,
    ) -> Result<TransferResult, FileRefusal> {
        retry_missing_page(|| self.splice_once(call, place, to.as_fd()))
    }

    fn splice_once(
        &self,
        call: SpliceCall,
        place: Extent,
        to: BorrowedFd<'_>,
    ) -> Result<TransferResult, FileRefusal> {
        let view = self.view(place.position().saturating_add(place.length().into()))?;
        let Some((at, length)) = clamp_to_file(&view, place) else {
            return Ok(TransferResult::End);
        };
        let sent = match (call, &view.mapping) {
            (SpliceCall::Write, Some(mapping)) => mapping.write_to(at, length, to)?,
            (SpliceCall::Vmsplice, Some(mapping)) => mapping.splice_to(&[(at, length)], to)?,
            _ => sys::file::send_file(self.descriptor(), at as u64, length, to)?,
        };
        self.check_not_truncated(&view, sent, &[(at, length)])
    }

    /// Transfers the bytes named by several pointers to another descriptor in order, with one call.
    /// Stops before the first pointer into another dbuf or beyond the end of the file, and after
    /// [`RANGES_PER_CALL_MAX`] pointers. Transfers only the first extent if the file cannot be
    /// mapped.
    pub fn splice_all(
        &self,
        pointers: &[RichPointer],
        to: impl AsFd,
    ) -> Result<TransferResult, FileRefusal> {
        retry_missing_page(|| self.splice_extents_once(pointers, to.as_fd()))
    }

    fn splice_extents_once(
        &self,
        pointers: &[RichPointer],
        to: BorrowedFd<'_>,
    ) -> Result<TransferResult, FileRefusal> {
        let ours = || pointers.iter().take_while(|pointer| pointer.dbuf() == self.id());
        let end = |p: &RichPointer| p.place.position().saturating_add(p.length().into());
        let view = self.view(ours().map(end).max().unwrap_or(0))?;
        let mut pieces = Vec::new();
        for pointer in ours().take(RANGES_PER_CALL_MAX) {
            let Some((at, length)) = clamp_to_file(&view, pointer.place) else { break };
            pieces.push((at, length));
            if length < pointer.length() as usize {
                break;
            }
        }
        let (Some(mapping), false) = (&view.mapping, pieces.is_empty()) else {
            let first = pointers.first().filter(|first| first.dbuf() == self.id());
            return first.map_or(Ok(TransferResult::End), |first| self.splice(first.place, to));
        };
        let sent = mapping.write_ranges(&pieces, to)?;
        self.check_not_truncated(&view, sent, &pieces)
    }

    /// Checks after a transfer that the file still contains the transferred bytes. The transfer
    /// moved `sent` bytes from the ranges `pieces` (offset and length). Fails with
    /// [`FileRefusal::Truncated`] if the file has become shorter. If `sent` is 0 although bytes
    /// were requested, returns [`TransferResult::End`] if the file has shrunk, and otherwise fails
    /// with EFAULT, so that the caller retries.
    fn check_not_truncated(
        &self,
        view: &FileView,
        sent: usize,
        pieces: &[(usize, usize)],
    ) -> Result<TransferResult, FileRefusal> {
        if self.inner.cannot_be_truncated && sent > 0 {
            return Ok(TransferResult::Bytes(sent));
        }
        let size = self.refresh_view()?.size;
        let (mut left, mut good) = (sent, 0);
        for &(at, length) in pieces {
            let taken = length.min(left);
            let available = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(at);
            good += taken.min(available);
            left -= taken;
            if taken > available {
                return Err(FileRefusal::Truncated { sent, valid: good });
            }
        }
        match sent {
            0 if pieces.iter().all(|(_, length)| *length == 0) => Ok(TransferResult::Bytes(0)),
            // EFAULT: everything has been truncated since the mapping was updated;
            // `retry_missing_page` retries.
            0 if size < view.size => Ok(TransferResult::End),
            0 => Err(super::system_refusal("write", EFAULT)),
            sent => Ok(TransferResult::Bytes(sent)),
        }
    }
}

/// EFAULT: a page that should exist cannot be read.
const EFAULT: i32 = 14;
/// Maximum number of attempts to transfer a missing page. In a file that is constantly truncated
/// and extended, a page is missing once in a few thousand calls; on a broken disk it is always
/// missing.
const SPLICE_ATTEMPTS_MAX: usize = 8;

/// Repeats a transfer that fails with EFAULT, because a page was missing. Makes at most
/// [`SPLICE_ATTEMPTS_MAX`] attempts.
fn retry_missing_page(
    once: impl Fn() -> Result<TransferResult, FileRefusal>,
) -> Result<TransferResult, FileRefusal> {
    for _ in 1..SPLICE_ATTEMPTS_MAX {
        match once() {
            Err(FileRefusal::System(error)) if error.errno == EFAULT => {}
            done => return done,
        }
    }
    once()
}

/// Returns the part of an extent that is within the file, as offset and length, or `None` if there
/// is none.
fn clamp_to_file(view: &FileView, place: Extent) -> Option<(usize, usize)> {
    let left = view.size.checked_sub(place.position()).filter(|&left| left > 0)?;
    let length = left.min(place.length().into());
    Some((usize::try_from(place.position()).ok()?, usize::try_from(length).ok()?))
}
