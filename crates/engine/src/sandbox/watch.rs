//! The process of a filter, as its two halves see it: whether it gets on, and how it ended.
//!
//! **Deadlines.** A filter that does not get on although blocks wait for it is ended: after
//! [`BUSY`] of its own processor time, or, where it sleeps, after [`ASLEEP`]. Time in which it did
//! not run because others did does not count, so that a busy machine ends nobody.

use super::limits::MEMORY;
use abi::text::Visible;
use endpoint::process::Apart;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use sys::confine::{EXIT_REFUSED_CALL, REFUSED_CALL, REPORT_TEXT, syscall_name};
use sys::helper::HelperProcess;
use sys::process_group::ProcessEnd;

/// Interval of progress checks.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// So much processor time a filter may use without taking or giving anything, in ns.
const BUSY: u64 = 2_000_000_000;
/// So long it may sleep although blocks wait for it, and room.
const ASLEEP: Duration = Duration::from_secs(20);
/// Time limit for a process to exit after its output has ended.
const END: Duration = Duration::from_secs(20);

/// State shared by the entrance and the exit.
#[derive(Debug)]
pub(super) struct Watch {
    name: &'static str,
    kept: HelperProcess,
    /// Over which it says its last words.
    words: OwnedFd,
    /// The reason for which we ended it, if we did.
    why: OnceLock<String>,
    /// Its final message, once read.
    last_words: OnceLock<Vec<u8>>,
    /// We want nothing of it any more.
    released: AtomicBool,
    /// Nothing more will come to it.
    closed: AtomicBool,
    /// It was asked for something and has not answered yet.
    asked: AtomicBool,
    /// Its stream has ended as streams do.
    done: AtomicBool,
    /// Blocks that were put into its ring, that it says it took, that it gave.
    put: AtomicU64,
    taken: AtomicU64,
    given: AtomicU64,
    last: Mutex<Last>,
}

/// The latest progress of the process.
#[derive(Debug)]
struct Last {
    /// Its counts of blocks taken and given by then.
    moved: (u64, u64),
    /// Its processor time by then, in ns.
    processor_ns: u64,
    /// Since when it sleeps, as far as we have looked.
    asleep: Option<Instant>,
}

impl Watch {
    pub(super) fn new(name: &'static str, kept: HelperProcess, words: OwnedFd) -> Self {
        let last = Last { moved: (0, 0), processor_ns: 0, asleep: None };
        Self {
            name,
            kept,
            words,
            why: OnceLock::new(),
            last_words: OnceLock::new(),
            released: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            done: AtomicBool::new(false),
            put: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            given: AtomicU64::new(0),
            last: Mutex::new(last),
        }
    }

    /// Ends it, for this reason.
    pub(super) fn end(&self, why: impl Into<String>) {
        // What is noticed behind the first reason follows from it.
        let _ = self.why.set(why.into());
        self.kept.kill();
    }

    /// Wants nothing of it any more.
    pub(super) fn release(&self) {
        self.released.store(true, Ordering::Relaxed);
        self.kept.kill();
    }

    /// Returns true if it has ended, or is being ended.
    pub(super) fn is_over(&self) -> bool {
        self.why.get().is_some() || self.kept.ended().is_some()
    }

    /// Waits a little, or until it has ended.
    pub(super) fn rest(&self) {
        let _ = self.kept.wait(LOOK / 20);
    }

    /// Nothing more comes to it: now it is to end.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// It is to answer, or has.
    pub(super) fn asks(&self, asks: bool) {
        self.asked.store(asks, Ordering::Relaxed);
    }

    /// So many blocks were put into its ring in all, and so many it says it took.
    pub(super) fn feeds(&self, put: u64, taken: u64) {
        self.put.store(put, Ordering::Relaxed);
        self.taken.store(taken.min(put), Ordering::Relaxed);
    }

    /// It has given all that it had.
    pub(super) fn is_done(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    /// It gave a block.
    pub(super) fn gave(&self) {
        self.given.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if it has work pending.
    pub(super) fn is_due(&self) -> bool {
        let waits = self.put.load(Ordering::Relaxed) > self.taken.load(Ordering::Relaxed);
        waits || self.closed.load(Ordering::Relaxed) || self.asked.load(Ordering::Relaxed)
    }

    /// Looks whether it gets on, and ends it if it does not. `has_room`: nothing keeps it from
    /// giving blocks.
    pub(super) fn look(&self, has_room: bool) {
        let Some(processor_ns) = self.kept.processor_ns() else { return };
        let moved = (self.taken.load(Ordering::Relaxed), self.given.load(Ordering::Relaxed));
        let mut last = self.last();
        if moved != last.moved || !self.is_due() {
            *last = Last { moved, processor_ns, asleep: None };
            return;
        }
        let busy = processor_ns.saturating_sub(last.processor_ns);
        if busy > BUSY {
            drop(last);
            let seconds = BUSY / 1_000_000_000;
            self.end(format!("did not get on for {seconds} s of processor time, and was ended"));
            return;
        }
        // Who sleeps for room does not sleep for good; whoever knows of room counts the time.
        if !has_room {
            return;
        }
        let since = *last.asleep.get_or_insert_with(Instant::now);
        if since.elapsed() > ASLEEP {
            drop(last);
            let seconds = ASLEEP.as_secs();
            self.end(format!("slept for {seconds} s although blocks waited for it, and was ended"));
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason that nothing more comes from an ended or ending process.
    pub(super) fn why(&self) -> String {
        match (self.why.get(), self.kept.wait(END)) {
            (Some(why), _) => why.clone(),
            (None, Some(ProcessEnd::Status(0))) => "ended by itself".to_owned(),
            (None, Some(ended)) => self.how(ended),
            (None, None) => "does not end".to_owned(),
        }
    }

    /// Reports its end, if that was abnormal.
    fn told(&self, ended: ProcessEnd) -> Option<String> {
        let how = match (self.why.get(), ended) {
            (Some(why), _) => why.clone(),
            (None, _) if self.released.load(Ordering::Relaxed) => return None,
            (None, ProcessEnd::Status(0)) if self.done.load(Ordering::Relaxed) => return None,
            (None, ProcessEnd::Status(0)) => "ended by itself before its blocks did".to_owned(),
            (None, ended) => self.how(ended),
        };
        let name = self.name;
        Some(format!(
            "the filter `{name}`, in a process of its own, {how}; what came to it then was dropped"
        ))
    }

    /// Describes its exit, with its final message.
    fn how(&self, ended: ProcessEnd) -> String {
        let words = self.last_words.get_or_init(|| {
            let mut words = [0; 512];
            let length = match sys::descriptor::try_receive(self.words.as_fd(), &mut words) {
                Ok(Some((length, _))) => length,
                _ => 0,
            };
            words.get(..length).unwrap_or_default().to_vec()
        });
        match (ended, words.as_slice()) {
            (ProcessEnd::Status(EXIT_REFUSED_CALL), [REFUSED_CALL, number @ ..]) => {
                let number = number.try_into().map_or(u32::MAX, u32::from_le_bytes);
                let name =
                    syscall_name(number).map_or_else(String::new, |name| format!("`{name}`, "));
                format!("was ended because it asked the kernel for {name}system call {number}")
            }
            (ended, words) => match (text(words), ended) {
                (Some(said), _) => format!("{ended}: {said}"),
                // As the allocator ends who gets no memory.
                (None, ProcessEnd::Signal(6)) => {
                    let most = MEMORY >> 20;
                    format!("{ended}, as one that needs more than the {most} MB that it may have")
                }
                (None, ended) => ended.to_string(),
            },
        }
    }
}

/// Returns the printable text of a process's final message, which is untrusted.
pub(super) fn text(words: &[u8]) -> Option<String> {
    let said = words.strip_prefix(&[REPORT_TEXT])?;
    Some(Visible(&String::from_utf8_lossy(said)).to_string())
}

impl Apart for Watch {
    fn is_deaf(&self) -> bool {
        self.is_over() && !self.closed.load(Ordering::Relaxed)
    }

    fn finish(&self) -> Option<String> {
        let ended = self.kept.wait(END).or_else(|| {
            self.end(format!("did not end for {} s, and was ended", END.as_secs()));
            self.kept.wait(END)
        });
        self.told(ended.unwrap_or(ProcessEnd::Signal(9)))
    }

    fn number(&self) -> Option<u32> {
        self.kept.ended().is_none().then(|| self.kept.number())
    }
}
