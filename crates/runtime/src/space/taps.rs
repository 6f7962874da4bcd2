//! Taps: frames that leave a node of a running path, for somebody who looks, from the past on.
//! [SL §5.2, readers that begin in the past; RELIABILITY T4]
//!
//! In: blocks as they leave a node, in the thread of the space. Out: the frames in which they lie,
//! as records of a capture, written into a pipe by a thread of the tap. The space copies what it
//! gives and never waits: what a tap has not taken is bounded ([`BEHIND_MAX`]), and beyond that it
//! is skipped and counted, or the tap ends, as its reader has asked. A tap of which nothing was
//! taken for as long as its patience ends, and so does one whose reader has closed the pipe.
//!
//! What was before is there where the path keeps a history of its sources ([`Taps::remembers`]). A
//! tap says at which block it began, so that nobody takes a late beginning for silence.

use super::Space;
use super::node::{Node, Part};
use super::observe::Observer;
use crate::ledger::Missing;
use endpoint::history::{self, From, History, Kept, Reach};
use filter::{Batch, Block, LaneMask, Time, lanes};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes that a tap may be behind.
pub const BEHIND_MAX: usize = 8 << 20;
/// Bytes that can be written at once to a pipe that has room.
const AT_ONCE: usize = 4096;
/// Interval at which a waiting thread checks for the end of the tap.
const LOOK: Duration = Duration::from_millis(100);

/// Policy for frames that arrive while a tap is too far behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// They are skipped and counted.
    #[default]
    Skip,
    /// The tap ends before the first of them.
    End,
}

/// Cause for which a tap has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// Its reader has closed the pipe, or gone.
    Left,
    /// Its reader took nothing for so long.
    Stuck(Duration),
    /// It was too far behind, and its reader wants all or nothing.
    Behind,
    /// The node is no more, or runs in another space now.
    Moved,
    /// The path has ended.
    Ended,
}

impl std::fmt::Display for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Left => f.write_str("its reader has gone"),
            Self::Stuck(patience) => {
                write!(f, "its reader took nothing for {} ms", patience.as_millis())
            }
            Self::Behind => write!(f, "its reader was {} MB behind", BEHIND_MAX >> 20),
            Self::Moved => f.write_str("its node was changed: begin it again"),
            Self::Ended => f.write_str("the path has ended"),
        }
    }
}

/// Starting point of a tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// All remembered blocks.
    Oldest,
    /// Blocks of the last so many ns.
    Ago(u64),
    /// The block of this number, of those that left the node, and what came after it.
    Block(u64),
}

/// The counters of a tap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TapStats {
    /// Frames that it was given.
    pub frames: u64,
    /// Frames that came while it was too far behind.
    pub skipped: u64,
    /// Positions of the missing blocks among those that left the node.
    pub missing: Missing,
    /// Blocks that lie in no frame, or in one of another kind than the first.
    pub no_frame: u64,
    /// Cause of its end, if it has ended.
    pub over: Option<Over>,
}

/// Start of a tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Began {
    /// The number of its first block, of those that left the node.
    pub block: u64,
    /// Number of its blocks that are history.
    pub past: u64,
    /// Age of the first of those, in ns.
    pub ago_ns: u64,
    /// True if the path keeps a history of this node.
    pub remembers: bool,
}

/// A tap as its owner has it. Dropping it ends it.
#[derive(Debug)]
pub struct Tap {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The end of a tap in a space.
#[derive(Debug)]
pub struct Feed {
    shared: Arc<Shared>,
    to: mpsc::Sender<Vec<u8>>,
    policy: Policy,
    /// Number of blocks that had left the node before the next.
    left: u64,
    /// The first frame: what is of another kind cannot stand in the same capture.
    first: Option<Kept>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Bytes that were given and not yet taken.
    behind: AtomicUsize,
    frames: AtomicU64,
    skipped: AtomicU64,
    no_frame: AtomicU64,
    missing: Mutex<Missing>,
    is_over: AtomicBool,
    over: Mutex<Option<Over>>,
}

impl Shared {
    /// It is over for this reason, unless it was before.
    fn end(&self, why: Over) {
        self.over.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        // It only says that there is nothing to give any more.
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }
}

impl Tap {
    /// A tap that writes into this pipe, and its end for a space.
    pub fn new(pipe: OwnedFd, policy: Policy, patience: Duration) -> sys::Result<(Self, Feed)> {
        let shared = Arc::new(Shared::default());
        let (to, comes) = mpsc::channel();
        let writer = Writer { pipe: File::from(pipe), patience, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("tap".to_owned());
        let thread = thread.spawn(move || writer.run(&comes)).map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?;
        let feed = Feed { shared: Arc::clone(&shared), to, policy, left: 0, first: None };
        Ok((Self { shared, thread: Some(thread) }, feed))
    }

    /// Returns its counters.
    #[must_use]
    pub fn stats(&self) -> TapStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Shared { frames, skipped, missing, no_frame, over, .. } = &*self.shared;
        let over = *over.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = missing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (frames, skipped, no_frame) = (read(frames), read(skipped), read(no_frame));
        TapStats { frames, skipped, missing, no_frame, over }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.shared.end(Over::Left);
        if let Some(thread) = self.thread.take() {
            // It looks every now and then, and has nothing to answer.
            let _ended = thread.join();
        }
    }
}

/// The thread of a tap.
struct Writer {
    pipe: File,
    patience: Duration,
    shared: Arc<Shared>,
}

impl Writer {
    fn run(mut self, comes: &mpsc::Receiver<Vec<u8>>) {
        loop {
            match comes.recv_timeout(LOOK) {
                Ok(records) => {
                    let written = self.write(&records);
                    self.shared.behind.fetch_sub(records.len(), Ordering::Relaxed);
                    if let Err(why) = written {
                        return self.shared.end(why);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) if !self.shared.is_over() => {}
                Err(mpsc::RecvTimeoutError::Timeout) => return,
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.shared.end(Over::Ended),
            }
        }
    }

    /// Writes all of it, as long as somebody takes it.
    fn write(&mut self, mut rest: &[u8]) -> Result<(), Over> {
        let mut since = sys::clock::monotonic();
        while !rest.is_empty() {
            if self.shared.is_over() {
                return Err(Over::Left);
            }
            if !sys::poll::writable(&self.pipe, LOOK) {
                let waited = Duration::from_nanos(sys::clock::monotonic().saturating_sub(since));
                if waited >= self.patience {
                    return Err(Over::Stuck(self.patience));
                }
                continue;
            }
            // A pipe that has room takes so much without waiting (pipe(7)).
            match self.pipe.write(rest.get(..AT_ONCE).unwrap_or(rest)) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(Over::Left),
            }
            since = sys::clock::monotonic();
        }
        Ok(())
    }
}

impl Feed {
    /// Gives what was before, whatever its length: the pipe takes it by and by.
    fn past(&mut self, history: &History, from: From) -> u64 {
        let mut records = Vec::new();
        let mut frames = 0;
        history.since(from, |kept, frame| {
            if self.fits(*kept, &mut records) {
                history::record(kept, frame, &mut records);
                frames += 1;
            }
        });
        self.shared.frames.fetch_add(frames, Ordering::Relaxed);
        self.send(records);
        frames
    }

    /// Gives the blocks of these lanes; answers whether it goes on.
    fn give(&mut self, batch: &Batch<'_>, which: LaneMask) -> bool {
        if self.shared.is_over() {
            return false;
        }
        let count = u64::from(which.count_ones());
        let from = self.left;
        self.left += count;
        if self.shared.behind.load(Ordering::Relaxed) >= BEHIND_MAX {
            self.shared.skipped.fetch_add(count, Ordering::Relaxed);
            let missing = self.shared.missing.lock();
            missing.unwrap_or_else(PoisonError::into_inner).add(from, count, None);
            if self.policy == Policy::End {
                self.shared.end(Over::Behind);
            }
            return self.policy == Policy::Skip;
        }
        let mut records = Vec::new();
        let mut frames = 0;
        for lane in lanes(which) {
            let block = batch.block(lane);
            let kept = Kept::of(&block);
            let whole = block.marks.is_frame() && !block.frame.is_empty();
            if whole && self.fits(kept, &mut records) {
                history::record(&kept, block.frame, &mut records);
                frames += 1;
            }
        }
        self.shared.frames.fetch_add(frames, Ordering::Relaxed);
        self.shared.no_frame.fetch_add(count - frames, Ordering::Relaxed);
        self.send(records);
        true
    }

    /// Returns true if a frame of this kind fits into the capture, whose type the first frame sets.
    fn fits(&mut self, kept: Kept, records: &mut Vec<u8>) -> bool {
        if self.first.is_none() {
            records.extend_from_slice(&history::header(kept.link));
        }
        self.first.get_or_insert(kept).link == kept.link
    }

    fn send(&self, records: Vec<u8>) {
        if !records.is_empty() {
            self.shared.behind.fetch_add(records.len(), Ordering::Relaxed);
            // A thread that has gone has said why.
            let _ = self.to.send(records);
        }
    }
}

/// Taps of the nodes of a space, by number of the node.
#[derive(Debug, Default)]
pub struct Taps {
    feeds: Vec<(usize, Feed)>,
    histories: Vec<(usize, History)>,
}

impl Taps {
    /// Remembers what leaves this node, in so many bytes.
    pub fn remember(&mut self, node: usize, bytes: usize) {
        self.histories.push((node, History::new(Reach { bytes, time: Time::MAX })));
    }

    /// Returns the history of a node's output, if one is kept.
    fn remembers(&self, node: usize) -> Option<&History> {
        self.histories.iter().find(|(known, _)| *known == node).map(|(_, history)| history)
    }

    /// Begins to give a tap what leaves this node, of which so many blocks have left.
    pub fn begin(
        &mut self,
        (node, left): (usize, u64),
        from: Option<From>,
        mut feed: Feed,
        now: Time,
    ) -> Began {
        let mut began = Began { block: left, ..Began::default() };
        if let Some(history) = self.remembers(node) {
            began.remembers = true;
            if let Some(from) = from {
                began.past = feed.past(history, from);
                began.block = left - began.past.min(left);
                let mut first = None;
                history.since(from, |kept, _| first = first.or(Some(kept.time)));
                began.ago_ns = first.map_or(0, |first| now.saturating_sub(first));
            }
        }
        feed.left = left;
        self.feeds.push((node, feed));
        began
    }

    /// Ends the taps of nodes for which `is_here` is false.
    pub fn stay(&mut self, is_here: impl Fn(usize) -> bool) {
        self.feeds.retain(|(node, feed)| {
            let here = is_here(*node) && !feed.shared.is_over();
            if !here {
                feed.shared.end(Over::Moved);
            }
            here
        });
        self.histories.retain(|(node, _)| is_here(*node));
    }

    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.feeds.is_empty() && self.histories.is_empty()
    }
}

impl Observer for Taps {
    /// Gives what leaves a node to all its taps.
    fn routed(&mut self, from: &Node, batch: &Batch<'_>, wanted: LaneMask, _: Time) {
        if wanted == 0 || !from.gives() {
            return;
        }
        let node = from.planned;
        for (_, history) in self.histories.iter_mut().filter(|(known, _)| *known == node) {
            let push = |block: Block<'_>| history.push(&block);
            lanes(wanted).map(|lane| batch.block(lane)).for_each(push);
        }
        self.feeds.retain_mut(|(known, feed)| *known != node || feed.give(batch, wanted));
    }
}

impl Space {
    /// Remembers what the sources here give, in so many bytes for each.
    pub fn remember(&mut self, bytes: usize) {
        let sources = self.graph.nodes.iter().filter(|node| matches!(node.part, Part::Source(_)));
        let sources: Vec<usize> = sources.map(|node| node.planned).collect();
        let taps = self.graph.turn.observers.taps();
        sources.into_iter().for_each(|node| taps.remember(node, bytes));
    }

    /// Has a tap look at what leaves the node of this number; none: it does not run here.
    pub fn tap(&mut self, number: usize, since: Option<Since>, feed: Feed) -> Option<Began> {
        let node = self.graph.nodes.iter().find(|node| node.planned == number && node.gives())?;
        let (left, now) = (node.flow.routed.blocks, self.now());
        let from = since.map(|since| match since {
            Since::Oldest => From::Oldest,
            Since::Ago(ns) => From::Time(now.saturating_sub(ns)),
            Since::Block(number) => From::Number(number),
        });
        Some(self.graph.turn.observers.taps().begin((number, left), from, feed, now))
    }

    /// Returns true if the node of this number gives out blocks here.
    pub fn can_tap(&self, number: usize) -> bool {
        self.graph.nodes.iter().any(|node| node.planned == number && node.gives())
    }

    /// Ends taps whose nodes are here no more.
    pub(super) fn keep_taps(&mut self) {
        let nodes = &self.graph.nodes;
        let is_here = |number| nodes.iter().any(|node| node.planned == number && node.gives());
        self.graph.turn.observers.keep_taps(is_here);
    }
}
