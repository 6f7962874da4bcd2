//! `inject`: a source of frames that the embedding program injects, one per call.
//!
//! Any thread can inject frames through an [`Injector`]. The source emits them, copied once, with
//! the time of injection. The injector never blocks. A frame that exceeds the queue limit is
//! dropped and counted, and the return value of the call reports the drop. A source that owns the
//! memory of its frames can avoid the copy by lending that memory
//! ([`SourceProperties::lender`](crate::SourceProperties::lender)).

use crate::{Failure, Intake, OpenArguments, Source, SourceCounters, SourceEntry, SourceStatus};
use abi::{BLOCK_LENGTH_MAX, Entry, Marks};
use filter::{Amount, Description, Parameter, ParameterType, StateFacts, Time, WorkerRule};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use sys::eventfd::EventFd;
use wire::link::LinkType;

/// Description of `inject`, the source of frames from the embedding program.
pub const INJECT: Description = Description {
    name: "inject",
    summary: "read the frames that the embedding program injects",
    details: "\
Reads frames from the program that embeds Streamline as a library. The program creates
`endpoint::source::inject::Injector::new(\"name\")` and calls `injector.inject(frame)` for each
frame. At most `queue` bytes wait; a frame without room is dropped and counted as `queue`. The path
ends when the injector is dropped. The streamline command itself injects nothing.",
    example: "inject driver0 | dport |53 count",
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs("injected frames arrive in one process", WorkerRule::DEFAULT_HINT)
    }),
    parameters: &[
        Parameter::required("name", ParameterType::Text, "name of the injector"),
        Parameter::with_default(
            "queue",
            ParameterType::Size { low: 64 << 10, high: 1 << 30 },
            "4M",
            "maximum number of waiting bytes",
        ),
    ],
    ..Description::SOURCE_DEFAULTS
};

/// The catalog entry of `inject`.
pub const ENTRY: SourceEntry = SourceEntry::new(&INJECT, open);

/// Queues of all injectors that exist in this process, by name.
static INJECTORS: Mutex<BTreeMap<String, Arc<SharedQueue>>> = Mutex::new(BTreeMap::new());

/// The handle through which a program injects frames into a path. At most one exists per name.
/// Dropping the injector ends the input of the path.
#[derive(Debug)]
pub struct Injector {
    name: String,
    shared: Arc<SharedQueue>,
}

/// The queue through which an injector passes frames to its source, with counters of both ends.
#[derive(Debug)]
struct SharedQueue {
    queue: Mutex<Queue>,
    event: EventFd,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<QueuedFrame>,
    bytes: u64,
    /// Maximum number of queued bytes, set when the source is opened; 0 while no source is open.
    bytes_max: u64,
    /// Frames that were injected since the source was opened, queued or not.
    offered: Amount,
    /// Frames among `offered` that were dropped.
    refused: u64,
    ended: bool,
}

#[derive(Debug)]
struct QueuedFrame {
    bytes: Vec<u8>,
    link: LinkType,
    time: Time,
}

/// Outcome of an attempt to inject a frame into a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InjectOutcome {
    /// The frame is queued; the path will emit it.
    Queued,
    /// The queue is full, or the frame is longer than a block. The frame is dropped and counted.
    Dropped,
    /// No open path uses this injector. The frame is not counted.
    NoPath,
}

impl Injector {
    /// Registers an injector for requests with `inject NAME`. Fails if the name is in use or no
    /// event descriptor can be created.
    pub fn new(name: &str) -> Result<Self, Failure> {
        let event = EventFd::new().map_err(|error| Failure::new("make", "an injector", error))?;
        let shared = Arc::new(SharedQueue { queue: Mutex::default(), event });
        let mut injectors = lock(&INJECTORS);
        if injectors.contains_key(name) {
            return Err(Failure::new("make", name, "an injector of this name exists already"));
        }
        injectors.insert(name.to_owned(), Arc::clone(&shared));
        Ok(Self { name: name.to_owned(), shared })
    }

    /// Injects an Ethernet frame, stamped with the current time. Never blocks.
    pub fn inject(&self, frame: &[u8]) -> InjectOutcome {
        self.inject_frame(frame, LinkType::ETHERNET, sys::clock::realtime_ns())
    }

    /// Injects a frame of link type `link` with the timestamp `time`, in nanoseconds since 1970.
    /// Never blocks.
    pub fn inject_frame(&self, frame: &[u8], link: LinkType, time: Time) -> InjectOutcome {
        let length = frame.len() as u64;
        let mut queue = lock(&self.shared.queue);
        if queue.bytes_max == 0 {
            return InjectOutcome::NoPath;
        }
        queue.offered.blocks += 1;
        queue.offered.bytes += length;
        if queue.bytes + length > queue.bytes_max || frame.len() > BLOCK_LENGTH_MAX {
            queue.refused += 1;
            return InjectOutcome::Dropped;
        }
        queue.bytes += length;
        queue.frames.push_back(QueuedFrame { bytes: frame.to_vec(), link, time });
        let first = queue.frames.len() == 1;
        drop(queue);
        if first {
            self.shared.event.notify();
        }
        InjectOutcome::Queued
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        lock(&INJECTORS).remove(&self.name);
        lock(&self.shared.queue).ended = true;
        self.shared.event.notify();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct InjectSource {
    shared: Arc<SharedQueue>,
    origin: u16,
    emitted: Amount,
    /// Amount injected, number of frames refused, and number of frames left unread when the source
    /// was closed; `None` while it is open.
    closed: Option<(Amount, u64, u64)>,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let name = opening.arguments.text("name").unwrap_or_default();
    let Some(shared) = lock(&INJECTORS).get(name).cloned() else {
        let why = "this program injects no frames under this name";
        return Err(Failure::new("open", format!("injector {name}"), why)
            .with_hint("make the `Injector` before the path is built"));
    };
    let mut queue = lock(&shared.queue);
    if queue.bytes_max > 0 {
        let why = "another path already uses it as its source";
        return Err(Failure::new("open", format!("injector {name}"), why));
    }
    queue.bytes_max = opening.arguments.number("queue").unwrap_or_default();
    drop(queue);
    let (origin, emitted) = (opening.origin, Amount::default());
    Ok(Box::new(InjectSource { shared, origin, emitted, closed: None }))
}

impl Source for InjectSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        self.shared.event.clear();
        let mut queue = lock(&self.shared.queue);
        let before = self.emitted.blocks;
        while intake.room() > 0
            && let Some(waiting) = queue.frames.front()
        {
            let Some(entry) = self.copy_frame_to_pool(intake, waiting)? else {
                return Ok(SourceStatus::retry_at(intake.now));
            };
            intake.append_block_entry(entry);
            self.emitted.add_block(entry.pointer.length());
            queue.bytes -= waiting.bytes.len() as u64;
            queue.frames.pop_front();
        }
        Ok(match (self.emitted.blocks > before, queue.ended && queue.frames.is_empty()) {
            (_, true) => SourceStatus::End,
            (true, false) => SourceStatus::Blocks,
            (false, false) => SourceStatus::AWAITS_INPUT,
        })
    }

    fn counters(&self) -> SourceCounters {
        let (offered, refused, unread) = match self.closed {
            Some((offered, refused, unread)) => (offered, refused, Some(unread)),
            None => {
                let queue = lock(&self.shared.queue);
                (queue.offered, queue.refused, None)
            }
        };
        let mut dropped = vec![("queue".into(), Some(refused))];
        dropped.extend(unread.map(|unread| (crate::DropReason::Unread, Some(unread))));
        SourceCounters {
            dropped,
            observed: Some(offered),
            ..SourceCounters::lossless(self.emitted)
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.event.as_fd())
    }

    fn close(&mut self) {
        if self.closed.is_some() {
            return;
        }
        // The next path that uses the injector begins with an empty queue and counts from 0.
        let mut queue = lock(&self.shared.queue);
        let empty = Queue { ended: queue.ended, ..Queue::default() };
        let Queue { frames, offered, refused, .. } = std::mem::replace(&mut *queue, empty);
        self.closed = Some((offered, refused, frames.len() as u64));
    }
}

impl Drop for InjectSource {
    fn drop(&mut self) {
        // A path that was built but did not start does not close its source.
        self.close();
    }
}

impl InjectSource {
    /// Copies a frame into the pool. Returns `None` if the pool has no free memory until the next
    /// pass. Fails if the frame is longer than a block of the pool.
    fn copy_frame_to_pool(
        &self,
        intake: &Intake<'_>,
        frame: &QueuedFrame,
    ) -> Result<Option<Entry>, Failure> {
        let pool = intake.pool;
        let bytes = &frame.bytes;
        if bytes.len() > pool.block_length_max() {
            let why =
                format!("the buffers of this path hold {} bytes at most", pool.block_length_max());
            return Err(Failure::new("take", "an injected frame", why));
        }
        let copied = pool.append(bytes.len(), |room| {
            room.copy_from_slice(bytes);
            bytes.len()
        });
        let Some((place, _)) = copied else { return Ok(None) };
        let length = place.length();
        let marks = Marks::frame(frame.link.0, length, length);
        Ok(Some(intake.entry(place, (frame.time, self.origin), marks)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        checked_arguments, expect_failure, produce_once, sink_opening, small_segment_pool,
    };

    fn inject_source(name: &str) -> Result<Box<dyn Source>, Failure> {
        let arguments = checked_arguments(&INJECT, &[("name", name), ("queue", "64k")]);
        open(&sink_opening(&arguments, &[]))
    }

    #[test]
    fn g5_injected_frames_are_emitted_unchanged_in_order() {
        let injector = Injector::new("order").unwrap();
        assert_eq!(injector.inject(b"too early"), InjectOutcome::NoPath);
        let mut source = inject_source("order").unwrap();
        let mut pool = small_segment_pool(1 << 16);
        let wait = SourceStatus::AWAITS_INPUT;
        assert_eq!(produce_once(&mut *source, &mut pool, 8, 5).unwrap().0, wait);
        assert_eq!(injector.inject_frame(b"one", LinkType::RAW, 7), InjectOutcome::Queued);
        assert_eq!(injector.inject(b"two"), InjectOutcome::Queued);
        let event = source.descriptor().unwrap();
        assert_eq!(sys::poll::wait_until_readable(&[event], None), [true]);
        let (status, emitted) = produce_once(&mut *source, &mut pool, 8, 5).unwrap();
        assert_eq!((status, emitted.len()), (SourceStatus::Blocks, 2));
        assert_eq!((&emitted[0].bytes[..], &emitted[1].bytes[..]), (&b"one"[..], &b"two"[..]));
        assert_eq!((emitted[0].entry.context.time, emitted[0].entry.marks.link), (7, 101));
        injector.inject(b"last");
        injector.inject(b"");
        drop(injector);
        let (status, emitted) = produce_once(&mut *source, &mut pool, 8, 5).unwrap();
        assert_eq!((status, emitted.len()), (SourceStatus::End, 2));
        assert!(emitted[1].bytes.is_empty());
        let counters = source.counters();
        assert_eq!(
            (counters.observed, counters.given.blocks),
            (Some(Amount { blocks: 4, bytes: 10 }), 4)
        );
        assert!(Injector::new("order").is_ok(), "the name is free again");
    }

    #[test]
    fn frames_beyond_queue_limit_are_counted() {
        let injector = Injector::new("full").unwrap();
        let mut source = inject_source("full").unwrap();
        let frame = [0; 1 << 10];
        let queued = (0..70).filter(|_| injector.inject(&frame) == InjectOutcome::Queued).count();
        assert_eq!(queued, 64);
        let mut pool = small_segment_pool(1 << 16);
        let (_, emitted) = produce_once(&mut *source, &mut pool, 10, 5).unwrap();
        assert_eq!(emitted.len(), 10);
        source.close();
        assert_eq!(injector.inject(&frame), InjectOutcome::NoPath);
        let counters = source.counters();
        assert_eq!(
            counters.dropped,
            [("queue".into(), Some(6)), (crate::DropReason::Unread, Some(54))]
        );
        assert_eq!((counters.observed.unwrap().blocks, counters.given.blocks), (70, 10));
    }

    #[test]
    fn second_path_of_an_injector_begins_empty_and_counts_from_zero() {
        let injector = Injector::new("again").unwrap();
        let mut first = inject_source("again").unwrap();
        injector.inject(b"left unread");
        first.close();
        let mut second = inject_source("again").unwrap();
        assert_eq!(injector.inject(b"two"), InjectOutcome::Queued);
        let mut pool = small_segment_pool(1 << 16);
        let (_, emitted) = produce_once(&mut *second, &mut pool, 8, 5).unwrap();
        assert_eq!(emitted.iter().map(|block| &block.bytes[..]).collect::<Vec<_>>(), [b"two"]);
        let counters = second.counters();
        assert_eq!((counters.observed, counters.given), (Some(counters.given), counters.given));
        let counters = first.counters();
        assert_eq!(counters.observed, Some(Amount { blocks: 1, bytes: 11 }));
        assert_eq!(
            counters.dropped,
            [("queue".into(), Some(0)), (crate::DropReason::Unread, Some(1))]
        );
        // A path that fails to start drops its source without closing it.
        drop(second);
        assert!(inject_source("again").is_ok());
    }

    #[test]
    fn injector_name_is_unique_and_used_by_one_path() {
        let failure = expect_failure(inject_source("nobody"));
        assert_eq!(
            failure.to_string(),
            "cannot open injector nobody: this program injects no frames under this name; \
             make the `Injector` before the path is built"
        );
        let _injector = Injector::new("one").unwrap();
        assert!(expect_failure(Injector::new("one")).to_string().contains("exists already"));
        let _source = inject_source("one").unwrap();
        assert!(expect_failure(inject_source("one")).to_string().contains("another path"));
    }
}
