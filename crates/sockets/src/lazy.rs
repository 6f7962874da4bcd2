//! Files that a program reads only to write them again, such as `dd` and `cat` do: the bytes are
//! not copied into its buffer. [SL §5.3.3: lazy copying by revoked access; FEATURES E3, E4, E5]
//!
//! ```text
//! read(3, buffer, n)    no copy, no system call: `buffer` now stands for (file, place, n); its
//!                       pages were made inaccessible once, and stay so
//! write(4, buffer, n)   from the cached file to where it goes, by one system call
//! buffer[0]             a fault: the bytes are copied in, the pages are the program's again, and
//!                       this buffer is never lent again
//! ```
//!
//! Only for programs of a table, and only where the launcher asked for it (`--lazy`): what is
//! written is what the file holds when it is *written*, not when it was read, and a system call
//! that this library does not see finds no memory at the buffer (`EFAULT`). Only for files that
//! the program has opened itself, so that nobody else sees that their position lags behind; before
//! a fork, and before the program asks for the position, it is set right (`settle`).
//!
//! The file is mapped once ([`CachedFile`]) and kept; a thread fills the tables of the mapping
//! ahead of the program, because a fault for each page costs what a copy costs. No byte of the
//! mapping is loaded here: it is handed to system calls (CONTRACT 26). Where a file was cut since
//! it was read, the write answers what is left.

use abi::{DbufId, Extent};
use iolite::file::{CachedFile, Refusal, Sent, SpliceCall};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use sys::preload::{self, window};

/// The programs that write what they read.
const PROGRAMS: &[&str] = &["cat", "dd"];
/// Smallest aligned read that is done lazily; shorter ones copy.
const PAGE: usize = 4096;
/// Files that are shorter are read as ever.
const SHORTEST: u64 = 256 << 10;
/// Bytes that are handed over at once.
const PIECE: usize = 512 << 10;
/// Bytes by which the tables of a mapping are filled ahead of the program.
const AHEAD: u64 = 32 << 20;

static ON: AtomicBool = AtomicBool::new(false);
static SOURCES: Mutex<Vec<Source>> = Mutex::new(Vec::new());

/// A file that the program has opened for reading.
#[derive(Debug)]
struct Source {
    /// Its descriptors.
    numbers: Vec<i32>,
    file: CachedFile,
    /// File position of the program.
    at: Arc<AtomicU64>,
    size: u64,
    /// True if the kernel's position lags behind.
    lags: bool,
    /// The kernel's position may have changed.
    asked: bool,
    /// Reads so far.
    reads: u64,
    /// True if a thread fills the page tables ahead.
    runs_ahead: bool,
    /// Set when the file is read no more: the thread that runs ahead ends.
    over: Arc<AtomicBool>,
}

impl Source {
    /// The descriptor that we have of it.
    fn number(&self) -> usize {
        usize::try_from(self.file.descriptor().as_raw_fd()).unwrap_or(usize::MAX)
    }
}

/// A range of a file that a buffer stands for.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) file: CachedFile,
    pub(crate) at: u64,
    pub(crate) len: usize,
}

/// Starts lazy copies where the program allows them. Called once, at its start.
pub(crate) fn start() {
    let asked = std::env::var_os(abi::edge::LAZY_VARIABLE).is_some_and(|value| value == "1");
    let own = std::env::current_exe().unwrap_or_default();
    let name = own.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if asked && PROGRAMS.contains(&name) && window::install_handler() {
        ON.store(true, Ordering::Release);
    }
}

fn sources() -> Option<MutexGuard<'static, Vec<Source>>> {
    if !ON.load(Ordering::Relaxed) {
        return None;
    }
    SOURCES.try_lock().ok()
}

/// The program has opened a file.
pub(crate) fn opened(number: i32) {
    let Some(mut sources) = sources() else { return };
    let Some(size) = preload::plain_file_size(number).filter(|size| *size >= SHORTEST) else {
        return;
    };
    let Some(fd) = preload::borrow(number) else { return };
    let (Ok(copy), Some(id)) = (fd.try_clone_to_owned(), DbufId::new(1)) else { return };
    let Ok(file) = CachedFile::of(id, copy) else { return };
    sources.push(Source {
        numbers: vec![number],
        file,
        at: Arc::default(),
        size,
        lags: false,
        asked: true,
        reads: 0,
        runs_ahead: false,
        over: Arc::default(),
    });
}

/// A descriptor is a copy of another one.
pub(crate) fn copied(from: i32, to: i32) {
    let Some(mut sources) = sources() else { return };
    sources.iter_mut().for_each(|source| source.numbers.retain(|number| *number != to));
    if let Some(source) = sources.iter_mut().find(|source| source.numbers.contains(&from)) {
        source.numbers.push(to);
    }
}

/// A descriptor is about to be closed.
pub(crate) fn closing(number: i32) {
    let Some(mut sources) = sources() else { return };
    for source in sources.iter_mut() {
        source.numbers.retain(|known| *known != number);
        if source.numbers.is_empty() {
            window::restore_all();
            source.over.store(true, Ordering::Release);
        }
    }
    sources.retain(|source| !source.numbers.is_empty());
}

/// The program reads. The answer, if nothing need be asked of the kernel.
pub(crate) fn read(number: i32, to: usize, count: usize) -> Option<usize> {
    let mut sources = sources()?;
    let found = sources.iter_mut().find(|source| source.numbers.contains(&number));
    let answer = found.and_then(|source| lend(source, number, to, count));
    if answer.is_none() {
        window::restore_range(to, count);
    }
    answer
}

fn lend(source: &mut Source, number: i32, to: usize, count: usize) -> Option<usize> {
    if std::mem::take(&mut source.asked) {
        source.at.store(preload::position(number)?, Ordering::Release);
    }
    let at = source.at.load(Ordering::Relaxed);
    source.reads += 1;
    let whole = to.is_multiple_of(PAGE) && count.is_multiple_of(PAGE) && count > 0;
    let there = at.saturating_add(count as u64) <= source.size;
    // The first is copied: who reads once has nothing to gain. So is the last.
    if !whole || !there || source.reads == 1 || !window::lend(to, count, source.number(), at) {
        settle(source);
        return None;
    }
    source.lags = true;
    source.at.store(at + count as u64, Ordering::Release);
    Some(count)
}

/// The kernel has read so many bytes itself.
pub(crate) fn was_read(number: i32, count: isize) {
    let Some(sources) = sources() else { return };
    if let Some(source) = sources.iter().find(|source| source.numbers.contains(&number)) {
        source.at.fetch_add(u64::try_from(count).unwrap_or(0), Ordering::Relaxed);
    }
}

/// Returns the file range behind a buffer that the program has not looked into.
pub(crate) fn range(from: usize, count: usize) -> Option<Range> {
    let sources = sources()?;
    let (number, at) = window::find(from, count)?;
    let fits = |source: &&Source| source.number() == number;
    let file = sources.iter().find(fits)?.file.clone();
    Some(Range { file, at, len: count })
}

/// Hands the range to a descriptor, as write(2) does. `Err`: the number of the error.
pub(crate) fn hand(range: &Range, to: i32) -> Result<usize, i32> {
    run_ahead(range);
    let mut done = 0;
    while done < range.len {
        let Some(fd) = preload::borrow(to) else { return Err(preload::EBADF) };
        let piece = (range.len - done).min(PIECE);
        let length = u32::try_from(piece).unwrap_or(0);
        let place = Extent::new(range.at + done as u64, length);
        match range.file.splice_by(SpliceCall::Write, place, fd) {
            Ok(Sent::Bytes(count)) => {
                done += count;
                if count < piece {
                    break;
                }
            }
            Ok(Sent::End) => break,
            Err(_) if done > 0 => break,
            Err(Refusal::System(error)) => return Err(error.errno),
            Err(_) => return Err(preload::EIO),
        }
    }
    if done == 0 { Err(preload::EIO) } else { Ok(done) }
}

/// Sets the kernel's position of a file where the program believes it to be, for a call that uses
/// it; it is looked at again after that.
pub(crate) fn asks(number: i32) {
    let Some(mut sources) = sources() else { return };
    if let Some(source) = sources.iter_mut().find(|source| source.numbers.contains(&number)) {
        settle(source);
        source.asked = true;
    }
}

/// The program gives these bytes to a call that is not followed.
pub(crate) fn needs(from: usize, count: usize) {
    if ON.load(Ordering::Relaxed) {
        window::restore_range(from, count);
    }
}

/// Before a fork, and before another program takes the place of this one: all files are the
/// kernel's again.
pub(crate) fn stop() {
    let Some(mut sources) = sources() else { return };
    for source in sources.iter_mut() {
        settle(source);
        source.over.store(true, Ordering::Release);
    }
    sources.clear();
    window::restore_all();
    ON.store(false, Ordering::Release);
}

fn settle(source: &mut Source) {
    if std::mem::take(&mut source.lags)
        && let Some(number) = source.numbers.first()
    {
        preload::seek(*number, source.at.load(Ordering::Relaxed));
    }
}

/// Fills the tables of the mapping ahead of the program, by a thread of its own.
fn run_ahead(range: &Range) {
    let Some(mut sources) = sources() else { return };
    let fits = |source: &&mut Source| {
        source.file.descriptor().as_raw_fd() == range.file.descriptor().as_raw_fd()
    };
    let Some(source) = sources.iter_mut().find(fits).filter(|source| !source.runs_ahead) else {
        return;
    };
    source.runs_ahead = true;
    let (file, size) = (source.file.clone(), source.size);
    let (at, over) = (source.at.clone(), source.over.clone());
    let mut next = at.load(Ordering::Relaxed);
    let ahead = move || {
        while next < size && !over.load(Ordering::Acquire) {
            if next > at.load(Ordering::Acquire).saturating_add(AHEAD) {
                std::thread::yield_now();
                continue;
            }
            let length = u32::try_from((size - next).min(PIECE as u64)).unwrap_or(0);
            if file.populate(Extent::new(next, length)).is_err() {
                return;
            }
            next += PIECE as u64;
        }
    };
    // Without it pages are found one by one.
    let _ = preload::with_signals_blocked(|| {
        std::thread::Builder::new().stack_size(64 << 10).spawn(ahead)
    });
}
