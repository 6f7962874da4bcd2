//! A region of memory that several processes access at any offset. [Th §5.3.3], FEATURES D17
//!
//! All bytes are foreign: they are copied in and out, and concurrent writes to the same bytes may
//! mix. Each single word is read and written atomically. Programs that need an order across words
//! synchronize through a stream in addition.
//!
//! If the access list allows no writer, the memory is sealed and only its creator's mapping can
//! write. Otherwise readers get a read-only descriptor of a file that only the creator's user may
//! reopen, because seals cannot distinguish readers from writers.

use super::Error;
use crate::atomic::{AtomicU64, Ordering};
use crate::foreign_memory;
use crate::region::Region;
use abi::ring::PAGE_SIZE;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use sys::memory::{Memfd, Seals};
use sys::poll;

/// A shared region, mapped into this process.
#[derive(Debug)]
pub struct SharedRegion {
    memory: Region,
    bytes: usize,
    writable: bool,
    /// Connection to the region's host, if the host is another process. Hangs up when the host
    /// exits or withdraws the name.
    host: Option<OwnedFd>,
}

/// The descriptors that a host sends to the clients of a region.
#[derive(Debug)]
pub(crate) struct RegionFiles {
    pub(super) read: OwnedFd,
    pub(super) write: Option<OwnedFd>,
    pub(super) bytes: u64,
}

/// Maximum size of a region in bytes.
const REGION_SIZE_MAX: u64 = 1 << 40;

impl SharedRegion {
    /// Creates a region of `bytes` zero bytes. If `writers` is true, other processes may also write
    /// to the region.
    pub(crate) fn create(bytes: usize, writers: bool) -> sys::Result<(Self, RegionFiles)> {
        let length = bytes.max(1).next_multiple_of(PAGE_SIZE);
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
        // The holder of a read-only descriptor cannot reopen it for writing, unless it runs under
        // this user or root.
        fd.set_permissions(PermissionsExt::from_mode(0o600)).map_err(failed("fchmod"))?;
        let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
        let read = File::open(path).map_err(failed("open"))?;
        let write = writers.then(|| fd.into());
        let files = RegionFiles { read: read.into(), write, bytes: bytes as u64 };
        Ok((Self { memory, bytes, writable: true, host: None }, files))
    }

    /// Maps the received file of a region. Fails if the file does not have the size or the seals
    /// that the region must have.
    pub(super) fn open(
        file: OwnedFd,
        bytes: u64,
        writable: bool,
        host: OwnedFd,
    ) -> Result<Self, Error> {
        let file = Memfd::from_fd(file)?;
        let seals = file.seals()?;
        if !seals.contains(Seals::SIZE) {
            return Err(crate::share::OfferRefusal::Unsealed { file: "region", seals }.into());
        }
        // The size was read before the seals; it is final only now, so it is read again.
        let file = Memfd::from_fd(file.into())?;
        let fits = (1..=REGION_SIZE_MAX).contains(&bytes) && bytes <= file.len() as u64;
        let Some(bytes) = usize::try_from(bytes).ok().filter(|_| fits) else {
            let should = usize::try_from(bytes).unwrap_or(usize::MAX);
            let is = file.len();
            return Err(
                crate::share::OfferRefusal::Size { file: "region", is, expected: should }.into()
            );
        };
        let memory = match writable {
            true => Region::mapped(file.map()?),
            false => Region::read_only(file.map_read()?),
        };
        Ok(Self { memory, bytes, writable, host: Some(host) })
    }

    /// Returns the size of the region in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region has at least one byte")]
    pub const fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true if this process may write to the region.
    #[must_use]
    pub const fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns true if the host has withdrawn the name or exited, after which no further process
    /// can open the region. Always returns false in the host itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.host.as_ref().is_some_and(|host| {
            let (_, gone) =
                poll::wait_until_readable_or_hung_up(&[], &[host.as_fd()], Some(Duration::ZERO));
            gone.contains(&true)
        })
    }

    /// Returns the descriptor that hangs up when the host exits, or `None` in the host itself.
    #[must_use]
    pub fn host_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.host.as_ref().map(AsFd::as_fd)
    }

    /// Returns all words of the region, which other processes may change at any time.
    pub(crate) const fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Copies bytes at offset `at` into `out`. Fails with [`Error::Range`] if the range exceeds the
    /// region.
    pub fn read_at(&self, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let at = self.checked_offset(at, out.len())?;
        foreign_memory::copy_out(self.memory.words(), at, out);
        Ok(())
    }

    /// Copies bytes to offset `at`. Fails with [`Error::Range`] if the range exceeds the region,
    /// and with [`Error::ReadOnly`] if this process has no write access.
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = self.checked_offset(at, bytes.len())?;
        if !self.writable {
            return Err(Error::ReadOnly);
        }
        // Words that are written partially are updated atomically, so that concurrent writes to
        // their other bytes are retained.
        let (head, rest) = bytes.split_at((at.wrapping_neg() % WORD_SIZE).min(bytes.len()));
        let (body, tail) = rest.split_at(rest.len() / WORD_SIZE * WORD_SIZE);
        self.change_bytes(at, head);
        foreign_memory::copy_in(self.memory.words(), (at + head.len()) / WORD_SIZE, body);
        self.change_bytes(at + head.len() + body.len(), tail);
        Ok(())
    }

    /// Returns the offset as a `usize`. Fails with [`Error::Range`] if the range exceeds the
    /// region.
    fn checked_offset(&self, at: u64, length: usize) -> Result<usize, Error> {
        let first = usize::try_from(at).ok();
        let end = first.and_then(|first| first.checked_add(length));
        match (first, end) {
            (Some(first), Some(end)) if end <= self.bytes => Ok(first),
            _ => Err(Error::Range { at, length, bytes: self.bytes }),
        }
    }

    /// Replaces bytes of the word that contains offset `at`, beginning at that offset, in one
    /// atomic update.
    fn change_bytes(&self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let changed = |word: u64| {
            let mut whole = word.to_ne_bytes();
            if let Some(to) = whole.get_mut(at % WORD_SIZE..at % WORD_SIZE + bytes.len()) {
                to.copy_from_slice(bytes);
            }
            Some(u64::from_ne_bytes(whole))
        };
        let word = self.memory.word(at / WORD_SIZE);
        // The closure always returns a value, so the update cannot fail.
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

const WORD_SIZE: usize = size_of::<u64>();
