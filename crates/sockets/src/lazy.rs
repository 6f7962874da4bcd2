//! Lazy copies: files that a program such as `dd` or `cat` reads only to write them are not copied
//! into its buffer. [SL §5.3.3: lazy copying by revoked access; FEATURES E3, E4, E5]
//!
//! ```text
//! read(3, buffer, n)    no copy and no system call: `buffer` now represents (file, offset, n); its
//!                      pages were made inaccessible once and stay so
//! write(4, buffer, n)   one system call from the cached file to the destination
//! buffer[0]             a fault: the bytes are copied in, the pages are accessible again, and this
//!                      buffer is never used this way again
//! ```
//!
//! Lazy copies are restricted to a table of programs, and to launches with `--lazy`, because they
//! have visible effects: a write sends the contents of the file at the time of the *write*, and a
//! system call that bypasses this library fails with `EFAULT` for such a buffer. They are
//! restricted to files that the program opened itself, because the kernel's file position lags
//! behind; it is corrected (`sync_source_file_position`) before a fork and before calls that use
//! it.
//!
//! The file is mapped once ([`CachedFile`]) and stays mapped. A thread populates the page tables
//! ahead of the program, because a fault per page costs as much as a copy. This library never reads
//! the mapping but passes it to system calls (CONTRACT 26). If the file was truncated after the
//! read, the write is short.

use crate::forward;
use abi::Extent;
use iolite::file::{CachedFile, FileRefusal, SpliceCall, TransferResult};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use sys::preload::{self, window};

/// The file names of the programs whose reads may be lazy, because they write the bytes that they
/// read. (For other programs see `forward`.)
const LAZY_PROGRAMS: &[&str] = &["cat", "dd"];
/// Page size in bytes. A read is lazy only if its address and its size are multiples of this size;
/// other reads copy the bytes.
const PAGE_SIZE: usize = 4096;
/// The minimum size of a file in bytes; smaller files are read as usual.
const LAZY_FILE_SIZE_MIN: u64 = 256 << 10;
/// The maximum number of bytes that one system call writes from a file.
const WRITE_BYTES_MAX: usize = 512 << 10;
/// Number of bytes, beyond the program's read position, for which the page tables of a mapped file
/// are populated in advance.
const PREFAULT_BYTES: u64 = 32 << 20;

/// The number of misaligned reads of a file after which it is read as usual.
const MISALIGNED_READS_MAX: u32 = 4;

static LAZY_READS_ENABLED: AtomicBool = AtomicBool::new(false);
/// True while there are files whose reads may be lazy.
static HAS_LAZY_SOURCES: AtomicBool = AtomicBool::new(false);
static LAZY_SOURCES: Mutex<Vec<LazySource>> = Mutex::new(Vec::new());

/// A file that the program has opened for reading and may read lazily.
#[derive(Debug)]
struct LazySource {
    /// The descriptors that refer to the file.
    numbers: Vec<i32>,
    file: CachedFile,
    /// Position in the file that the program expects.
    at: Arc<AtomicU64>,
    size: u64,
    /// True if the kernel's position in the file is lower than `at`, because lazy reads do not
    /// advance the kernel's position.
    kernel_position_lags: bool,
    /// True if a call may have changed the kernel's position in the file, so that the next lazy
    /// read must first set `at` to it.
    is_position_stale: bool,
    /// Number of times that the program has read the file so far.
    reads: u64,
    /// Number of reads of the file that were not lazy because they were misaligned: the address or
    /// the size was not a multiple of [`PAGE_SIZE`].
    misaligned_reads: u32,
    /// True once a thread that populates the page tables has been started.
    has_prefault_thread: bool,
    /// Set to true to stop the thread that populates the file's page tables.
    is_stopped: Arc<AtomicBool>,
}

impl LazySource {
    /// Returns the number of the duplicate of the file's descriptor that this library keeps for
    /// itself.
    fn own_descriptor_number(&self) -> usize {
        usize::try_from(self.file.descriptor().as_raw_fd()).unwrap_or(usize::MAX)
    }

    /// Ends lazy reads of this file: copies the bytes into the buffers that represent them, and
    /// brings the kernel's file position up to date.
    fn stop(&mut self) {
        sync_source_file_position(self);
        window::restore_all_windows();
        self.is_stopped.store(true, Ordering::Release);
    }
}

/// A range of a file that a buffer represents.
#[derive(Clone, Debug)]
pub(crate) struct FileRange {
    pub(crate) file: CachedFile,
    /// Offset of the range in the file, in bytes.
    pub(crate) at: u64,
    /// Length of the range in bytes.
    pub(crate) len: usize,
}

impl FileRange {
    /// Returns true if this file range ends at offset `at` of the file `file`, so that a range that
    /// starts there continues it.
    pub(crate) fn is_continued_by(&self, file: &CachedFile, at: u64) -> bool {
        let same = self.file.descriptor().as_raw_fd() == file.descriptor().as_raw_fd();
        same && self.at.checked_add(self.len as u64) == Some(at)
    }
}

/// Enables lazy copies if the launcher and the program allow them. Called once, at start-up.
pub(crate) fn start() {
    let asked = std::env::var_os(abi::edge::LAZY_COPIES_VARIABLE).is_some_and(|value| value == "1");
    let own = std::env::current_exe().unwrap_or_default();
    let name = own.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    forward::start(asked, name);
    if asked && LAZY_PROGRAMS.contains(&name) && window::install_handler() {
        LAZY_READS_ENABLED.store(true, Ordering::Release);
    }
}

/// Locks the list of files whose reads may be lazy. Returns `None` if there are no such files, or
/// if the lock is held, possibly by a function that a signal has interrupted.
fn lock_sources() -> Option<MutexGuard<'static, Vec<LazySource>>> {
    if !HAS_LAZY_SOURCES.load(Ordering::Relaxed) {
        return None;
    }
    LAZY_SOURCES.try_lock().ok()
}

/// Records that the program opened a file, if lazy reads are enabled and the file is large enough.
pub(crate) fn record_opened_file(number: i32) {
    if !LAZY_READS_ENABLED.load(Ordering::Relaxed) {
        return;
    }
    let Ok(mut sources) = LAZY_SOURCES.try_lock() else { return };
    let Some(size) = preload::regular_file_size(number).filter(|size| *size >= LAZY_FILE_SIZE_MIN)
    else {
        return;
    };
    let Some(fd) = preload::borrow_descriptor(number) else { return };
    let (Ok(copy), Some(id)) = (fd.try_clone_to_owned(), buffer::ids::allocate_id()) else {
        return;
    };
    let Ok(file) = CachedFile::from_descriptor(id, copy) else { return };
    sources.push(LazySource {
        numbers: vec![number],
        file,
        at: Arc::default(),
        size,
        kernel_position_lags: false,
        is_position_stale: true,
        reads: 0,
        misaligned_reads: 0,
        has_prefault_thread: false,
        is_stopped: Arc::default(),
    });
    HAS_LAZY_SOURCES.store(true, Ordering::Relaxed);
}

/// Ends lazy reads of the file that contains `range`. Called when the program writes bytes of the
/// file to a destination that accepts no pointers, because ordinary reads are faster in this case.
/// Measured: the kernel writes mapped pages of tmpfs at 0.8 times the speed of read and write,
/// because each page is mapped for a single use (decision 0014).
pub(crate) fn end_lazy_reads(range: &FileRange) {
    let Some(mut sources) = lock_sources() else { return };
    let number = range.file.descriptor().as_raw_fd();
    let is_left = |source: &LazySource| source.file.descriptor().as_raw_fd() == number;
    sources.iter_mut().filter(|source| is_left(source)).for_each(LazySource::stop);
    sources.retain(|source| !is_left(source));
    HAS_LAZY_SOURCES.store(!sources.is_empty(), Ordering::Relaxed);
}

/// Records that descriptor `to` is now a duplicate of descriptor `from`.
pub(crate) fn record_duplicate(from: i32, to: i32) {
    let Some(mut sources) = lock_sources() else { return };
    sources.iter_mut().for_each(|source| source.numbers.retain(|number| *number != to));
    if let Some(source) = sources.iter_mut().find(|source| source.numbers.contains(&from)) {
        source.numbers.push(to);
    }
}

/// Records that a descriptor is about to be closed. If it is the last descriptor of a file, ends
/// lazy reads of the file.
pub(crate) fn forget_descriptor(number: i32) {
    let Some(mut sources) = lock_sources() else { return };
    for source in sources.iter_mut() {
        source.numbers.retain(|known| *known != number);
        if source.numbers.is_empty() {
            source.stop();
        }
    }
    sources.retain(|source| !source.numbers.is_empty());
    HAS_LAZY_SOURCES.store(!sources.is_empty(), Ordering::Relaxed);
}

/// Performs a read lazily, without a system call, if possible: the buffer at the address `to` then
/// represents the bytes. Returns the number of bytes, or `None` if the kernel must read.
pub(crate) fn read_lazily(number: i32, to: usize, count: usize) -> Option<usize> {
    let Some(mut sources) = lock_sources() else {
        restore_buffer(to, count);
        return None;
    };
    let found = sources.iter().position(|source| source.numbers.contains(&number));
    let source = found.and_then(|at| sources.get_mut(at));
    let call_result = source.and_then(|source| lend_file_range(source, number, to, count));
    if call_result.is_some() {
        return call_result;
    }
    window::restore_windows_in_range(to, count);
    if let Some(at) = found
        && sources.get(at).is_some_and(|source| source.misaligned_reads >= MISALIGNED_READS_MAX)
    {
        sources.swap_remove(at).stop();
        HAS_LAZY_SOURCES.store(!sources.is_empty(), Ordering::Relaxed);
    }
    None
}

fn lend_file_range(source: &mut LazySource, number: i32, to: usize, count: usize) -> Option<usize> {
    if std::mem::take(&mut source.is_position_stale) {
        source.at.store(preload::file_position(number)?, Ordering::Release);
    }
    let at = source.at.load(Ordering::Relaxed);
    source.reads += 1;
    let whole = to.is_multiple_of(PAGE_SIZE) && count.is_multiple_of(PAGE_SIZE) && count > 0;
    let there = at.saturating_add(count as u64) <= source.size;
    // The first read is copied, because a single lazy read gains nothing, and so is the last one.
    if !whole
        || !there
        || source.reads == 1
        || !window::create_window(to, count, source.own_descriptor_number(), at)
    {
        source.misaligned_reads += u32::from(!whole);
        sync_source_file_position(source);
        return None;
    }
    source.kernel_position_lags = true;
    source.at.store(at + count as u64, Ordering::Release);
    Some(count)
}

/// Advances the recorded position of the file with the descriptor `number` after a read by the
/// kernel with the result `count`; a negative result means that the read failed, and changes
/// nothing.
pub(crate) fn advance_position(number: i32, count: isize) {
    let Some(sources) = lock_sources() else { return };
    if let Some(source) = sources.iter().find(|source| source.numbers.contains(&number)) {
        source.at.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Returns the file range that the buffer of `count` bytes at the address `from` represents.
/// Returns `None` if the buffer contains ordinary bytes.
pub(crate) fn represented_range(from: usize, count: usize) -> Option<FileRange> {
    if !LAZY_READS_ENABLED.load(Ordering::Relaxed) {
        return None;
    }
    let (number, at) = window::find_window(from, count)?;
    let fits = |source: &&LazySource| source.own_descriptor_number() == number;
    let opened =
        lock_sources().and_then(|all| all.iter().find(fits).map(|found| found.file.clone()));
    let file = opened.or_else(|| forward::find_kept_file(number))?;
    Some(FileRange { file, at, len: count })
}

/// Makes the program's buffer at the address `to` represent the first bytes of a file range that
/// was read from an edge. Returns the number of represented bytes. Returns `None` if the bytes must
/// be copied into the buffer instead.
pub(crate) fn lend_from_edge(range: &FileRange, to: usize, count: usize) -> Option<usize> {
    if !LAZY_READS_ENABLED.load(Ordering::Relaxed)
        || !to.is_multiple_of(PAGE_SIZE)
        || !count.is_multiple_of(PAGE_SIZE)
    {
        return None;
    }
    let length = count.min(range.len) / PAGE_SIZE * PAGE_SIZE;
    let number = (length > 0).then(|| forward::keep_file_open(&range.file))??;
    window::create_window(to, length, number, range.at).then_some(length)
}

/// Writes the range to a descriptor with the semantics of write(2); returns the number of bytes.
/// Fails with an error number.
pub(crate) fn write_range(range: &FileRange, to: i32) -> Result<usize, i32> {
    start_prefault_thread(range);
    let mut done = 0;
    while done < range.len {
        let Some(fd) = preload::borrow_descriptor(to) else { return Err(preload::EBADF) };
        let piece = (range.len - done).min(WRITE_BYTES_MAX);
        let length = u32::try_from(piece).unwrap_or(0);
        let place = Extent::new(range.at + done as u64, length);
        match range.file.splice_with_call(SpliceCall::Write, place, fd) {
            Ok(TransferResult::Bytes(count)) => {
                done += count;
                if count < piece {
                    break;
                }
            }
            Ok(TransferResult::End) => break,
            Err(_) if done > 0 => break,
            Err(FileRefusal::System(error)) => return Err(error.errno),
            Err(_) => return Err(preload::EIO),
        }
    }
    if done == 0 { Err(preload::EIO) } else { Ok(done) }
}

/// Sets the kernel's position in a file to the position that the program expects, before a call
/// that uses the kernel's position. Marks the recorded position as stale, because the call may
/// change it.
pub(crate) fn sync_file_position(number: i32) {
    let Some(mut sources) = lock_sources() else { return };
    if let Some(source) = sources.iter_mut().find(|source| source.numbers.contains(&number)) {
        sync_source_file_position(source);
        source.is_position_stale = true;
    }
}

/// Copies the bytes of the file into the buffer at the address `from` if the buffer represents
/// them. Called before a call that reads the buffer's contents.
pub(crate) fn restore_buffer(from: usize, count: usize) {
    if LAZY_READS_ENABLED.load(Ordering::Relaxed) {
        window::restore_windows_in_range(from, count);
    }
}

/// Fills all buffers that only represent file ranges, and disables lazy reads. Called before a fork
/// or an exec.
pub(crate) fn stop() {
    if !LAZY_READS_ENABLED.load(Ordering::Relaxed) {
        return;
    }
    window::restore_all_windows();
    let Ok(mut sources) = LAZY_SOURCES.try_lock() else { return };
    sources.iter_mut().for_each(LazySource::stop);
    sources.clear();
    HAS_LAZY_SOURCES.store(false, Ordering::Relaxed);
    LAZY_READS_ENABLED.store(false, Ordering::Release);
}

fn sync_source_file_position(source: &mut LazySource) {
    if std::mem::take(&mut source.kernel_position_lags)
        && let Some(number) = source.numbers.first()
    {
        preload::seek(*number, source.at.load(Ordering::Relaxed));
    }
}

/// Starts a thread that populates the page tables of a file in advance, so that the program's
/// writes cause no page faults. `range` is a range of the file. Does nothing if the file already
/// has such a thread.
fn start_prefault_thread(range: &FileRange) {
    let Some(mut sources) = lock_sources() else { return };
    let fits = |source: &&mut LazySource| {
        source.file.descriptor().as_raw_fd() == range.file.descriptor().as_raw_fd()
    };
    let Some(source) = sources.iter_mut().find(fits).filter(|source| !source.has_prefault_thread)
    else {
        return;
    };
    source.has_prefault_thread = true;
    let (file, size) = (source.file.clone(), source.size);
    let (at, over) = (source.at.clone(), source.is_stopped.clone());
    let mut next = at.load(Ordering::Relaxed);
    let ahead = move || {
        while next < size && !over.load(Ordering::Acquire) {
            if next > at.load(Ordering::Acquire).saturating_add(PREFAULT_BYTES) {
                std::thread::yield_now();
                continue;
            }
            let length = u32::try_from((size - next).min(WRITE_BYTES_MAX as u64)).unwrap_or(0);
            if file.populate(Extent::new(next, length)).is_err() {
                return;
            }
            next += WRITE_BYTES_MAX as u64;
        }
    };
    // Without the thread, the pages fault in one by one.
    let _ = preload::with_signals_blocked(|| {
        std::thread::Builder::new().stack_size(64 << 10).spawn(ahead)
    });
}
