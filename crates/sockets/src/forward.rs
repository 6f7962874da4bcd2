//! Forwarding of file ranges as pointers, if a program reads them from one edge and writes them to
//! another. [SL §5.3.3: the last sources are known by address; FEATURES E1]
//!
//! `cat` and `dd` receive such a range without any copy, in inaccessible pages (`lazy`). `tee` and
//! `head` read into a buffer on their stack, which cannot be made inaccessible, so the bytes are
//! copied into the buffer. These two programs write the bytes unchanged, so their writes pass the
//! pointer on. They write through unbuffered stdio, whose calls this library implements for them
//! (`export::stdio`).

use crate::lazy::FileRange;
use iolite::file::CachedFile;
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The file names of the programs for which forwarding is enabled. They read into a buffer, and
/// write the bytes unchanged.
const FORWARDING_PROGRAMS: &[&str] = &["tee", "head"];

static FORWARDING_ENABLED: AtomicBool = AtomicBool::new(false);
/// The file range that was copied last, and the buffer that contains its bytes; `None` if no copy
/// is known.
static LAST_COPY: Mutex<Option<CopiedRange>> = Mutex::new(None);
/// Files that contain ranges represented by buffers of the program. A file stays open until the
/// program exits, because a buffer may represent one of its ranges until then. The number of these
/// files is limited, because an edge carries only a limited number of files.
static KEPT_FILES: Mutex<Vec<CachedFile>> = Mutex::new(Vec::new());

/// A range of a file whose bytes were copied into a buffer of the program, with the address of the
/// buffer.
#[derive(Debug)]
struct CopiedRange {
    address: usize,
    range: FileRange,
}

/// Enables forwarding for the programs of [`FORWARDING_PROGRAMS`], if the launcher allows lazy
/// copies.
pub(crate) fn start(lazy_copies: bool, name: &str) {
    FORWARDING_ENABLED.store(lazy_copies && FORWARDING_PROGRAMS.contains(&name), Ordering::Release);
}

/// Returns true if this library implements the program's stdio writes.
pub(crate) fn is_enabled() -> bool {
    FORWARDING_ENABLED.load(Ordering::Relaxed)
}

/// Records that the buffer of the program at `address` now holds a copy of the bytes of the file
/// range.
pub(crate) fn record_copy(address: usize, range: FileRange) {
    if is_enabled()
        && let Ok(mut last) = LAST_COPY.try_lock()
    {
        *last = Some(CopiedRange { address, range });
    }
}

/// Forgets the last buffer into which bytes of a file range were copied. Called before a read,
/// which may change that buffer.
pub(crate) fn forget_copy() {
    if is_enabled()
        && let Ok(mut last) = LAST_COPY.try_lock()
    {
        *last = None;
    }
}

/// Returns the file range whose bytes were copied to the `count` bytes at the address `from`, which
/// are still unchanged; `None` if there is no such range.
pub(crate) fn find_copied_range(from: usize, count: usize) -> Option<FileRange> {
    if !is_enabled() {
        return None;
    }
    let last = LAST_COPY.try_lock().ok()?;
    let copied = last.as_ref()?;
    let inside = from.checked_sub(copied.address)?;
    let fits = inside.checked_add(count)? <= copied.range.len;
    fits.then(|| FileRange {
        file: copied.range.file.clone(),
        at: copied.range.at + inside as u64,
        len: count,
    })
}

/// Keeps a file open because a buffer of the program represents a range of it, and returns the
/// file's descriptor. Returns `None` if the list of such files is locked, possibly by a call that a
/// signal has interrupted.
pub(crate) fn keep_file_open(file: &CachedFile) -> Option<usize> {
    let number = file.descriptor().as_raw_fd();
    let mut lent = KEPT_FILES.try_lock().ok()?;
    if !lent.iter().any(|known| known.descriptor().as_raw_fd() == number) {
        lent.push(file.clone());
    }
    usize::try_from(number).ok()
}

/// Returns the file with this descriptor that [`keep_file_open`] keeps open. Returns `None` if
/// there is none, or if the list of such files is locked.
pub(crate) fn find_kept_file(number: usize) -> Option<CachedFile> {
    let lent = KEPT_FILES.try_lock().ok()?;
    let same = |file: &&CachedFile| usize::try_from(file.descriptor().as_raw_fd()) == Ok(number);
    lent.iter().find(same).cloned()
}
