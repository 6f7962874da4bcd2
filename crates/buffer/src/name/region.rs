//! A region of memory that several processes read, and perhaps write, at any place. [Th §5.3.3],
//! FEATURES D17
//!
//! All bytes are foreign: they are copied in and out, and two who write the same bytes at once get
//! some of each. There is no order but that of single words; who needs one has a stream beside it.
//!
//! Where the access list lets nobody write, the memory is sealed, and only its creator's mapping
//! writes. Where it lets somebody, readers get a descriptor that cannot write, of a file that only
//! the creator's user may open again; sealing cannot tell the two apart.

use super::Error;
use crate::atomic::{AtomicU64, Ordering};
use crate::foreign;
use crate::region::Region;
use abi::ring::PAGE;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use sys::memory::{Memfd, Seals};
use sys::poll;

/// A mapped region.
#[derive(Debug)]
pub struct SharedRegion {
    memory: Region,
    bytes: usize,
    writable: bool,
    /// The way to its host, where it is another's: closed when that is gone.
    host: Option<OwnedFd>,
}

/// The memory that the host hands out.
#[derive(Debug)]
pub(crate) struct Handout {
    pub(super) read: OwnedFd,
    pub(super) write: Option<OwnedFd>,
    pub(super) bytes: u64,
}

/// The longest region.
const BYTES_MAX: u64 = 1 << 40;

impl SharedRegion {
    /// Makes a region of so many zero bytes; `writers`: others may write too.
    pub(crate) fn create(bytes: usize, writers: bool) -> sys::Result<(Self, Handout)> {
        let length = bytes.max(1).next_multiple_of(PAGE);
        let file = Memfd::create("streamline-region", length)?;
        file.allocate(0, length)?;
        let memory = Region::mapped(file.map()?);
        file.seal(if writers { Seals::SIZE } else { Seals::READER })?;
        let fd = File::from(OwnedFd::from(file));
        let failed = |call| {
            move |e: std::io::Error| {
                sys::Error::new(call, "a region", e.raw_os_error().unwrap_or(0))
            }
        };
        // Who has a descriptor to read cannot make one to write out of it, unless it is ours or
        // root's.
        fd.set_permissions(PermissionsExt::from_mode(0o600)).map_err(failed("fchmod"))?;
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let read = File::open(path).map_err(failed("open"))?;
        let write = writers.then(|| fd.into());
        let handout = Handout { read: read.into(), write, bytes: bytes as u64 };
        Ok((Self { memory, bytes, writable: true, host: None }, handout))
    }

    /// Maps what was handed out, after it was checked.
    pub(super) fn open(
        file: OwnedFd,
        bytes: u64,
        writable: bool,
        host: OwnedFd,
    ) -> Result<Self, Error> {
        let file = Memfd::from_fd(file)?;
        let seals = file.seals()?;
        if !seals.has(Seals::SIZE) {
            return Err(crate::share::Refusal::Unsealed { part: "region", seals }.into());
        }
        // Its size was read before the seals; now that it cannot change any more, it is read again.
        let file = Memfd::from_fd(file.into())?;
        let fits = (1..=BYTES_MAX).contains(&bytes) && bytes <= file.len() as u64;
        let Some(bytes) = usize::try_from(bytes).ok().filter(|_| fits) else {
            let should = usize::try_from(bytes).unwrap_or(usize::MAX);
            let is = file.len();
            return Err(crate::share::Refusal::Size { part: "region", is, should }.into());
        };
        let memory = match writable {
            true => Region::mapped(file.map()?),
            false => Region::reading(file.map_read()?),
        };
        Ok(Self { memory, bytes, writable, host: Some(host) })
    }

    /// Bytes that it has.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region has at least one byte")]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if it can be written here.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns true if the host has withdrawn the name or is gone: no reader comes to it any more,
    /// and where the host alone writes, it stays as it is.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.host.as_ref().is_some_and(|host| {
            let (_, gone) = poll::readable_or_gone(&[], &[host.as_fd()], Some(Duration::ZERO));
            gone.contains(&true)
        })
    }

    /// Returns the descriptor that polls ready when the host is gone.
    #[must_use]
    pub fn host(&self) -> Option<BorrowedFd<'_>> {
        self.host.as_ref().map(AsFd::as_fd)
    }

    /// All words, foreign ones.
    pub(crate) const fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Copies bytes out.
    pub fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let at = self.range(at, out.len())?;
        foreign::copy_out(self.memory.words(), at, out);
        Ok(())
    }

    /// Copies bytes in.
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = self.range(at, bytes.len())?;
        if !self.writable {
            return Err(Error::ReadOnly);
        }
        // Words of which we write only a part are changed in one piece, so that what others write
        // into the rest of them stays.
        let (head, rest) = bytes.split_at((at.wrapping_neg() % WORD).min(bytes.len()));
        let (body, tail) = rest.split_at(rest.len() / WORD * WORD);
        self.change(at, head);
        foreign::copy_in(self.memory.words(), (at + head.len()) / WORD, body);
        self.change(at + head.len() + body.len(), tail);
        Ok(())
    }

    /// Returns the offset of a range that lies in the region.
    fn range(&self, at: u64, length: usize) -> Result<usize, Error> {
        let first = usize::try_from(at).ok();
        let end = first.and_then(|first| first.checked_add(length));
        match (first, end) {
            (Some(first), Some(end)) if end <= self.bytes => Ok(first),
            _ => Err(Error::Range { at, length, bytes: self.bytes }),
        }
    }

    /// Changes some bytes of one word.
    fn change(&self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let changed = |word: u64| {
            let mut whole = word.to_ne_bytes();
            if let Some(to) = whole.get_mut(at % WORD..at % WORD + bytes.len()) {
                to.copy_from_slice(bytes);
            }
            Some(u64::from_ne_bytes(whole))
        };
        let word = self.memory.word(at / WORD);
        // The change never says no.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

const WORD: usize = size_of::<u64>();
