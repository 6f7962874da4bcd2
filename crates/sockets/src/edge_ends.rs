//! The descriptors of this program that are ends of edges (pipes between the programs of a
//! pipeline), and the state of each edge.
//!
//! The edges are in an environment variable set by the launcher (`streamline sh`). A descriptor is
//! classified when it is first used, and again after it is closed and reopened. Descriptors
//! numbered [`DESCRIPTORS_MAX`] or higher are never ends.

use crate::reading::ReadingEnd;
use crate::rendezvous::is_open;
use crate::writing::WritingEnd;
use abi::edge::{EDGES_MAX, Edge, PipeEnd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use sys::preload;

/// The number of descriptors that can be ends of edges: 0 to 1023.
const DESCRIPTORS_MAX: usize = 1024;
/// The value in [`DESCRIPTOR_MARKS`] of a descriptor that has not been classified.
const UNCLASSIFIED_MARK: u8 = 0;
/// The value in [`DESCRIPTOR_MARKS`] of a descriptor that is not an end of an edge.
const NOT_AN_EDGE_END_MARK: u8 = 1;
/// The value in [`DESCRIPTOR_MARKS`] of a descriptor that is an end of the first edge. Later edges
/// have the following values.
const FIRST_EDGE_MARK: u8 = 2;

/// Number of times that a waiting program yields the processor before it sleeps, on a machine with
/// a single processor.
const YIELDS_BEFORE_SLEEP: usize = 8;

static DESCRIPTOR_MARKS: [AtomicU8; DESCRIPTORS_MAX] =
    [const { AtomicU8::new(UNCLASSIFIED_MARK) }; DESCRIPTORS_MAX];
static SHARED_EDGES: OnceLock<Vec<SharedEdge>> = OnceLock::new();
/// True if the program has edges; false before start-up and in a forked child.
static HAS_EDGES: AtomicBool = AtomicBool::new(false);

/// An edge with one end in this program.
#[derive(Debug)]
pub(crate) struct SharedEdge {
    pub(crate) edge: Edge,
    state: Mutex<EdgeState>,
    /// Id of the thread that holds the lock of `state` (`this_thread_number`); 0 if no thread holds
    /// it.
    owner: AtomicUsize,
}

/// The state of the end of an edge that is in this program.
#[derive(Debug)]
pub(crate) enum EdgeState {
    Reading(ReadingEnd),
    Writing(WritingEnd),
}

/// The state of an edge, locked for the duration of one call of the program.
#[derive(Debug)]
pub(crate) struct LockedEdge<'a> {
    pub(crate) state: MutexGuard<'a, EdgeState>,
    shared_edge: &'a SharedEdge,
}

impl Drop for LockedEdge<'_> {
    fn drop(&mut self) {
        self.shared_edge.owner.store(0, Ordering::Relaxed);
    }
}

/// Reads the edges from the environment. Called once, at start-up.
pub(crate) fn start() {
    let Ok(variable) = std::env::var(abi::edge::EDGES_VARIABLE) else { return };
    let fits = |edge: &Edge| preload::inode(edge.socket) == Some(edge.inode);
    let shared_edges: Vec<SharedEdge> =
        abi::edge::parse_edges(&variable).filter(fits).map(SharedEdge::new).collect();
    let any = !shared_edges.is_empty();
    if SHARED_EDGES.set(shared_edges).is_ok() {
        HAS_EDGES.store(any, Ordering::Release);
    }
}

/// Forgets all edges of this process. Called in a forked child, whose parent keeps them.
pub(crate) fn stop() {
    HAS_EDGES.store(false, Ordering::Release);
}

/// Returns the edges with an end in this process.
pub(crate) fn shared_edges() -> &'static [SharedEdge] {
    match HAS_EDGES.load(Ordering::Acquire) {
        true => SHARED_EDGES.get().map_or(&[], Vec::as_slice),
        false => &[],
    }
}

/// Returns the number of times that a wait for the peer yields the processor before it sleeps: 0
/// with several processors. On a single processor the peer most likely runs next and needs no
/// wakeup (a yield costs 1.25 us, a sleep and a wakeup 4 us: BASELINES).
pub(crate) fn yields_before_sleep() -> u32 {
    static YIELD_COUNT: AtomicUsize = AtomicUsize::new(usize::MAX);
    let mut yields = YIELD_COUNT.load(Ordering::Relaxed);
    if yields == usize::MAX {
        let alone = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        yields = if alone { YIELDS_BEFORE_SLEEP } else { 0 };
        YIELD_COUNT.store(yields, Ordering::Relaxed);
    }
    u32::try_from(yields).unwrap_or(0)
}

/// Returns the edge of which this descriptor is an end, or `None` if it is not an end.
#[inline]
pub(crate) fn find_edge(number: i32) -> Option<&'static SharedEdge> {
    if !HAS_EDGES.load(Ordering::Relaxed) {
        return None;
    }
    let known = DESCRIPTOR_MARKS.get(usize::try_from(number).ok()?)?;
    match known.load(Ordering::Relaxed) {
        NOT_AN_EDGE_END_MARK => None,
        UNCLASSIFIED_MARK => {
            let what = classify_descriptor(number);
            known.store(what, Ordering::Relaxed);
            edge_with_mark(what)
        }
        what => edge_with_mark(what),
    }
}

fn edge_with_mark(what: u8) -> Option<&'static SharedEdge> {
    shared_edges().get(usize::from(what.checked_sub(FIRST_EDGE_MARK)?))
}

fn classify_descriptor(number: i32) -> u8 {
    let Some(pipe) = preload::pipe_inode(number) else { return NOT_AN_EDGE_END_MARK };
    let writes = preload::is_write_only(number);
    let fits = |shared_edge: &SharedEdge| {
        shared_edge.edge.pipe == pipe && writes == (shared_edge.edge.end == PipeEnd::Writes)
    };
    let found = shared_edges().iter().take(EDGES_MAX).position(fits);
    found
        .and_then(|at| u8::try_from(at).ok())
        .map_or(NOT_AN_EDGE_END_MARK, |at| at + FIRST_EDGE_MARK)
}

/// Records that descriptor `to` is now a duplicate of descriptor `from`.
pub(crate) fn record_duplicate(from: i32, to: i32) {
    let what = |number: i32| usize::try_from(number).ok().and_then(|at| DESCRIPTOR_MARKS.get(at));
    if let Some(to) = what(to) {
        find_edge(from);
        to.store(
            what(from).map_or(UNCLASSIFIED_MARK, |w| w.load(Ordering::Relaxed)),
            Ordering::Relaxed,
        );
    }
}

/// Records that a descriptor is about to be closed. If it is the last known descriptor of an edge's
/// end, returns the edge. Returns `None` otherwise.
pub(crate) fn forget_descriptor(number: i32) -> Option<&'static SharedEdge> {
    let shared_edge = find_edge(number);
    let known = usize::try_from(number).ok().and_then(|at| DESCRIPTOR_MARKS.get(at))?;
    let what = known.swap(UNCLASSIFIED_MARK, Ordering::Relaxed);
    let shared_edge = shared_edge?;
    let same = |known: &AtomicU8| known.load(Ordering::Relaxed) == what;
    (!DESCRIPTOR_MARKS.iter().any(same)).then_some(shared_edge)
}

/// Records that a descriptor is no longer an end of an edge.
pub(crate) fn mark_not_an_end(number: i32) {
    if let Some(known) = usize::try_from(number).ok().and_then(|at| DESCRIPTOR_MARKS.get(at)) {
        known.store(NOT_AN_EDGE_END_MARK, Ordering::Relaxed);
    }
}

/// Returns all descriptors that are ends of this edge.
pub(crate) fn descriptor_numbers(of: &'static SharedEdge) -> impl Iterator<Item = i32> {
    (0..i32::try_from(DESCRIPTORS_MAX).unwrap_or(i32::MAX))
        .filter(move |number| find_edge(*number).is_some_and(|found| std::ptr::eq(found, of)))
}

impl SharedEdge {
    fn new(edge: Edge) -> Self {
        let state = match edge.end {
            PipeEnd::Reads => EdgeState::Reading(ReadingEnd::default()),
            PipeEnd::Writes => EdgeState::Writing(WritingEnd::default()),
        };
        Self { edge, state: Mutex::new(state), owner: AtomicUsize::new(0) }
    }

    /// Returns true if this call must use the edge as a plain pipe. This is the case if no ring has
    /// been requested or offered, or if the caller is a signal handler that has interrupted another
    /// call that uses the edge.
    pub(crate) fn is_pipe(&self) -> bool {
        self.lock_for_call().is_none_or(|locked| locked.is_inheritable())
    }

    /// Shuts down the rendezvous socket of the edge permanently, so that no ring can be offered any
    /// more.
    pub(crate) fn shut_down_rendezvous(&self) {
        if is_open(&self.edge) {
            preload::close_rendezvous(self.edge.socket);
        }
    }

    /// Locks the state for one call. Blocks while another thread holds the lock; returns `None` if
    /// this thread holds it, because a signal interrupted a call.
    pub(crate) fn lock_for_call(&self) -> Option<LockedEdge<'_>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(broken)) => broken.into_inner(),
            Err(TryLockError::WouldBlock) => {
                if self.owner.load(Ordering::Relaxed) == this_thread_number() {
                    return None;
                }
                self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
            }
        };
        self.owner.store(this_thread_number(), Ordering::Relaxed);
        Some(LockedEdge { state, shared_edge: self })
    }

    /// Locks the state of the edge for one call. Returns `None` if it is locked, even by another
    /// thread.
    pub(crate) fn try_lock_for_call(&self) -> Option<LockedEdge<'_>> {
        let state = self.state.try_lock().ok()?;
        self.owner.store(this_thread_number(), Ordering::Relaxed);
        Some(LockedEdge { state, shared_edge: self })
    }
}

impl LockedEdge<'_> {
    /// Returns true if another program image can inherit the edge unchanged, because no ring has
    /// been requested or created.
    pub(crate) fn is_inheritable(&self) -> bool {
        match &*self.state {
            EdgeState::Writing(writing) => !matches!(writing, WritingEnd::Ring { .. }),
            EdgeState::Reading(reading) => {
                matches!(reading, ReadingEnd::Pipe { .. } | ReadingEnd::PipeOnly)
            }
        }
    }

    /// Returns true if the edge has a ring to read.
    pub(crate) fn has_ring_to_read(&self) -> bool {
        matches!(&*self.state, EdgeState::Reading(ReadingEnd::Ring(_) | ReadingEnd::Offered(_)))
    }
}

/// Returns a nonzero number that is unique to this thread.
fn this_thread_number() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.try_with(|here| std::ptr::from_ref(here).addr()).unwrap_or(1)
}
