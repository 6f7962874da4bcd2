//! The descriptors of this program that are ends of edges, and the state of each edge.
//!
//! In: the variable that the launcher has set. A descriptor is looked at when it is first used, and
//! again after it was closed; numbers from [`NUMBERS`] on are never ends.

use crate::reading::Reading;
use crate::writing::Writing;
use abi::edge::{EDGES_MAX, Edge, PipeEnd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use sys::preload;

/// Descriptors below this number are known.
const NUMBERS: usize = 1024;
/// State of a descriptor that has not been looked at yet.
const UNKNOWN: u8 = 0;
/// State of a descriptor that is no end of an edge.
const OTHER: u8 = 1;
/// State of a descriptor of the first edge; others follow.
const FIRST: u8 = 2;

/// Times that others are let run before a sleep, where there is one processor.
const TURNS_ALONE: usize = 8;

static KNOWN: [AtomicU8; NUMBERS] = [const { AtomicU8::new(UNKNOWN) }; NUMBERS];
static HOLDERS: OnceLock<Vec<Holder>> = OnceLock::new();
/// False before the start, without edges, and in a child: then there is nothing to do.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// An edge of this program.
#[derive(Debug)]
pub(crate) struct Holder {
    pub(crate) edge: Edge,
    state: Mutex<State>,
    /// The thread that has the state.
    owner: AtomicUsize,
}

/// The progress of an edge.
#[derive(Debug)]
pub(crate) enum State {
    Reading(Reading),
    Writing(Writing),
}

/// The state of an edge, for one call.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    pub(crate) state: MutexGuard<'a, State>,
    holder: &'a Holder,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.holder.owner.store(0, Ordering::Relaxed);
    }
}

/// Reads the variable. To be called once, when the program starts.
pub(crate) fn start() {
    let Ok(variable) = std::env::var(abi::edge::EDGES_VARIABLE) else { return };
    let fits = |edge: &Edge| preload::inode(edge.socket) == Some(edge.inode);
    let holders: Vec<Holder> = abi::edge::edges(&variable).filter(fits).map(Holder::new).collect();
    let any = !holders.is_empty();
    if HOLDERS.set(holders).is_ok() {
        ACTIVE.store(any, Ordering::Release);
    }
}

/// Has no edges any more: this process shares them with the one that it was forked from.
pub(crate) fn stop() {
    ACTIVE.store(false, Ordering::Release);
}

/// The edges of this process.
pub(crate) fn holders() -> &'static [Holder] {
    match ACTIVE.load(Ordering::Acquire) {
        true => HOLDERS.get().map_or(&[], Vec::as_slice),
        false => &[],
    }
}

/// Returns how often an idle program yields before it sleeps: where all share one processor the
/// other end is most likely to run next, and needs no wake-up (a yield costs 1.25 us, a sleep and a
/// wake 4 us: BASELINES).
pub(crate) fn turns() -> u32 {
    static TURNS: AtomicUsize = AtomicUsize::new(usize::MAX);
    let mut turns = TURNS.load(Ordering::Relaxed);
    if turns == usize::MAX {
        let alone = std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
        turns = if alone { TURNS_ALONE } else { 0 };
        TURNS.store(turns, Ordering::Relaxed);
    }
    u32::try_from(turns).unwrap_or(0)
}

/// The edge of which this descriptor is an end.
#[inline]
pub(crate) fn find(number: i32) -> Option<&'static Holder> {
    if !ACTIVE.load(Ordering::Relaxed) {
        return None;
    }
    let known = KNOWN.get(usize::try_from(number).ok()?)?;
    match known.load(Ordering::Relaxed) {
        OTHER => None,
        UNKNOWN => {
            let what = classify(number);
            known.store(what, Ordering::Relaxed);
            at(what)
        }
        what => at(what),
    }
}

fn at(what: u8) -> Option<&'static Holder> {
    holders().get(usize::from(what.checked_sub(FIRST)?))
}

fn classify(number: i32) -> u8 {
    let Some(pipe) = preload::pipe(number) else { return OTHER };
    let writes = preload::is_for_writing(number);
    let fits = |holder: &Holder| {
        holder.edge.pipe == pipe && writes == (holder.edge.end == PipeEnd::Writes)
    };
    let found = holders().iter().take(EDGES_MAX).position(fits);
    found.and_then(|at| u8::try_from(at).ok()).map_or(OTHER, |at| at + FIRST)
}

/// A descriptor was made that is the same as another one.
pub(crate) fn copied(from: i32, to: i32) {
    let what = |number: i32| usize::try_from(number).ok().and_then(|at| KNOWN.get(at));
    if let Some(to) = what(to) {
        find(from);
        to.store(what(from).map_or(UNKNOWN, |w| w.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

/// A descriptor is about to be closed: the edge, if this was the last one of it.
pub(crate) fn closing(number: i32) -> Option<&'static Holder> {
    let holder = find(number);
    let known = usize::try_from(number).ok().and_then(|at| KNOWN.get(at))?;
    let what = known.swap(UNKNOWN, Ordering::Relaxed);
    let holder = holder?;
    let same = |known: &AtomicU8| known.load(Ordering::Relaxed) == what;
    (!KNOWN.iter().any(same)).then_some(holder)
}

/// A descriptor is no end of an edge any more.
pub(crate) fn replaced(number: i32) {
    if let Some(known) = usize::try_from(number).ok().and_then(|at| KNOWN.get(at)) {
        known.store(OTHER, Ordering::Relaxed);
    }
}

/// Returns true if the rendezvous descriptor is still the same: the program may have closed it and
/// reused its number.
pub(crate) fn meets(edge: &Edge) -> bool {
    preload::inode(edge.socket) == Some(edge.inode)
}

/// The descriptors that are known to be ends of this edge, after all were looked at.
pub(crate) fn numbers(of: &'static Holder) -> impl Iterator<Item = i32> {
    (0..i32::try_from(NUMBERS).unwrap_or(i32::MAX))
        .filter(move |number| find(*number).is_some_and(|found| std::ptr::eq(found, of)))
}

impl Holder {
    fn new(edge: Edge) -> Self {
        let state = match edge.end {
            PipeEnd::Reads => State::Reading(Reading::default()),
            PipeEnd::Writes => State::Writing(Writing::default()),
        };
        Self { edge, state: Mutex::new(state), owner: AtomicUsize::new(0) }
    }

    /// Returns true if the edge is a pipe now, and no ring can be on its way.
    pub(crate) fn is_pipe(&self) -> bool {
        self.enter().is_none_or(|entered| entered.is_fresh())
    }

    /// Shuts the meeting place for ever.
    pub(crate) fn shut(&self) {
        if meets(&self.edge) {
            preload::shut_down(self.edge.socket);
        }
    }

    /// The state, for one call. `None`: this very thread has it, and was interrupted by a signal.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        let state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(broken)) => broken.into_inner(),
            Err(TryLockError::WouldBlock) => {
                if self.owner.load(Ordering::Relaxed) == this_thread() {
                    return None;
                }
                self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
            }
        };
        self.owner.store(this_thread(), Ordering::Relaxed);
        Some(Entered { state, holder: self })
    }

    /// The state, if nobody has it.
    pub(crate) fn try_enter(&self) -> Option<Entered<'_>> {
        let state = self.state.try_lock().ok()?;
        self.owner.store(this_thread(), Ordering::Relaxed);
        Some(Entered { state, holder: self })
    }
}

impl Entered<'_> {
    /// Returns true if nothing has happened here that another program in this process must know.
    pub(crate) fn is_fresh(&self) -> bool {
        match &*self.state {
            State::Writing(writing) => !matches!(writing, Writing::Ring { .. }),
            State::Reading(reading) => matches!(reading, Reading::Pipe { .. } | Reading::Plain),
        }
    }

    /// Returns true if there is a ring to be read.
    pub(crate) fn reads_ring(&self) -> bool {
        matches!(&*self.state, State::Reading(Reading::Ring(_) | Reading::Offered(_)))
    }
}

/// A number that only this thread has.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.try_with(|here| std::ptr::from_ref(here).addr()).unwrap_or(1)
}
