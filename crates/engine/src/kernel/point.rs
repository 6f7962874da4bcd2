//! An attach point, and the one program that runs there for all lines. [SL §7.1, prefix sharing,
//! allocation; CONTRACT 21; RELIABILITY, rollback]
//!
//! Lines ([`line`]) come and go while frames pass: a program ([`version`]) for those that are to be
//! there is assembled, verified and loaded beside the one that runs, and put in its place between
//! two frames by the link. What belongs to a line (its pointers, its bell, what its filters keep)
//! and to an owner (the frames) is used by both programs, so who reads there notices nothing. Until
//! the new program is in its place nothing has changed, and what was made goes away again if a step
//! fails.
//!
//! Tallies belong to a program. When it has run for the last time ([`GracePeriod`]), they are added
//! to the counts of each of its lines.
//!
//! Each owner has a ring of frames of its own, in which lines of the same owner that ask for the
//! same memory meet; each line has its own pointers. Nobody else's bytes ever lie there: memory is
//! zeroed when a map is made of it, and no map passes from one owner to another.
//!
//! A program is as large as the kernel takes it: so many maps, so much to verify. For a line that
//! finds no room in it another point is opened at the same place, which stands before it in the
//! chain and shares nothing with it.

mod kept;
mod line;
mod shown;
mod sockets;
mod standing;
mod successor;
mod version;

pub use self::kept::{Adopted, KEPT, Keeper, Read, Still};
pub(crate) use self::line::New;
pub use self::line::Whose;
pub use self::shown::{Shown, ShownLine, ShownRing};
pub(crate) use self::standing::Standing;

use self::kept::{Next, Stored};
use self::line::Line;
use self::sockets::Sockets;
use self::version::Version;
use super::ended::Ended;
use super::host::{Lent, Refusal, closed};
use super::joint::Counted;
use crate::error::BuildError;
use endpoint::source::kernel::place::{Closed, Place};
use filter::Attach;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use sys::bpf::{GracePeriod, Link, Map, Program};
use sys::steps::{Resource, Steps, UNLOGGED};

/// The attach points of a process.
#[derive(Clone, Debug, Default)]
pub struct Points {
    known: Arc<Mutex<Vec<Weak<Point>>>>,
    /// Number of requests ever added at any of them, which is the number of the next.
    numbers: Arc<AtomicU32>,
    /// Is told each step of adding lines for others.
    pub(crate) steps: Steps,
    /// The keeper of descriptors across restarts of this process.
    pub(crate) keeper: Option<Arc<dyn Keeper>>,
}

/// An attach point at which lines are.
#[derive(Debug)]
pub(crate) struct Point {
    attach: Attach,
    place: Place,
    hardened: bool,
    /// The user's sockets that it covers, if it is no interface.
    sockets: Option<Sockets>,
    /// See [`Points`].
    numbers: Arc<AtomicU32>,
    keeper: Option<Arc<dyn Keeper>>,
    state: Mutex<State>,
}

/// The reason a request was not added.
#[derive(Debug)]
pub(crate) enum NotAdded {
    /// Beside those that are there it is too much for one program.
    Full,
    /// The line cannot be there.
    Refused(Refusal),
}

#[derive(Debug, Default)]
struct State {
    /// True if no request has fitted since one left.
    full: bool,
    /// Number of replacements of its program.
    replaced: u64,
    /// Frames that programs were given which run no more.
    frames: u64,
    lines: Vec<Line>,
    running: Option<Running>,
    /// Programs that were replaced, whose tallies are not yet their lines'.
    retired: Vec<Version>,
    grace: Option<GracePeriod>,
    /// True if programs may still be running a while after they were unlinked.
    lingers: bool,
    /// The last words about lines that have left, the newest last: who died before they were told
    /// leaves them to the next.
    left: VecDeque<(String, Ended)>,
    /// The descriptors held by the keeper.
    stored: Stored,
}

/// Number of final reports kept: a process that lives to add another has delivered those before.
const LEFT_MAX: usize = 8;

#[derive(Debug)]
struct Running {
    links: Vec<Link>,
    version: Version,
}

impl Points {
    /// Points that tell this log each step of adding a line for others.
    #[must_use]
    pub fn telling(steps: Steps) -> Self {
        Self { steps, ..Self::default() }
    }

    /// The same; and somebody keeps their links, programs and memory while this process is started
    /// again.
    #[must_use]
    pub fn kept_by(keeper: Arc<dyn Keeper>, steps: Steps) -> Self {
        Self { keeper: Some(keeper), ..Self::telling(steps) }
    }

    /// Adds a line to the first program at its place that has room for it, or to a new one.
    pub(crate) fn put(
        &self,
        (attach, hardened): (&Attach, bool),
        new: &New,
    ) -> Result<Lent, BuildError> {
        for nth in 0.. {
            let point = self.at(attach, hardened, new.owner, nth);
            let point = point.map_err(|why| closed(why, new.source))?;
            match point.add(new.clone()) {
                Ok(lent) => return Ok(lent),
                Err(NotAdded::Full) => {}
                Err(NotAdded::Refused(refusal)) => return Err(BuildError::Refused(refusal)),
            }
        }
        Err(BuildError::Unexpected("there is no end of points".to_owned()))
    }

    /// One of the points at which programs for this stand; of this user, where it is about sockets.
    /// There is one more for whoever has no room at all others.
    fn at(
        &self,
        attach: &Attach,
        hardened: bool,
        owner: u32,
        nth: usize,
    ) -> Result<Arc<Point>, Closed> {
        let place = Place::find(attach)?;
        let sockets = if attach.own { Some(Sockets::of(&place, owner, None)?) } else { None };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|point| point.strong_count() > 0);
        let here = |point: &Arc<Point>| {
            let same =
                point.sockets.as_ref().map(Sockets::whose) == sockets.as_ref().map(Sockets::whose);
            same && point.attach == *attach && point.place.is(&place)
        };
        if let Some(point) = known.iter().filter_map(Weak::upgrade).filter(here).nth(nth) {
            return Ok(point);
        }
        drop(known);
        Ok(self.another((attach, hardened), place, sockets))
    }

    /// A further point, at which nothing runs yet.
    fn another(
        &self,
        (attach, hardened): (&Attach, bool),
        place: Place,
        sockets: Option<Sockets>,
    ) -> Arc<Point> {
        let state = State { lingers: sockets.is_some(), ..State::default() };
        let (attach, state) = (attach.clone(), Mutex::new(state));
        let (numbers, keeper) = (Arc::clone(&self.numbers), self.keeper.clone());
        let point = Arc::new(Point { attach, place, hardened, sockets, numbers, keeper, state });
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.push(Arc::downgrade(&point));
        point
    }
}

impl Point {
    /// Adds a line. If that fails, everything is as before.
    fn add(self: &Arc<Self>, new: New) -> Result<Lent, NotAdded> {
        let source = new.source;
        let refused = |why: String| NotAdded::Refused(Refusal { node: source, why });
        let steps = new.steps.clone();
        let step =
            |makes, what| steps.take(makes, what).map_err(|error| refused(error.to_string()));
        let mut state = self.state();
        if state.full {
            return Err(NotAdded::Full);
        }
        let waits = !state.lines.is_empty() || self.sockets.is_some();
        if waits && state.grace.is_none() {
            step(Resource::Memory, "what waits for programs")?;
            state.begin_to_wait().map_err(refused)?;
        }
        let number = self.next_number();
        let made = Line::make(number, &state.lines, new);
        let (mut line, bell) = made.map_err(refused)?;
        line.busy_before = self.busy();
        let rings = Arc::clone(&line.pointers);
        let mut lines: Vec<&Line> = state.lines.iter().filter(|line| !line.leaving).collect();
        lines.push(&line);
        let among = lines.len() > 1;
        let made = Version::make(self, &lines, &steps);
        let (version, states) = match made {
            Ok(made) => made,
            Err(failure) if failure.full && among => {
                state.full = true;
                return Err(NotAdded::Full);
            }
            Err(failure) => {
                let node = failure.node_of(number).unwrap_or(source);
                return Err(NotAdded::Refused(Refusal { node, why: failure.why }));
            }
        };
        step(Resource::Program, "a place at an interface")?;
        let behind_tag = version.behind_tag(number);
        let next = Next { version: &version, line: Some(&line), states: &states };
        self.store(&mut state, Some(next));
        let put = self.put(&mut state, version, &steps);
        if put.is_err() {
            self.store(&mut state, None);
        }
        put.map_err(refused)?;
        steps.checkpoint("a line runs");
        state.lines.push(line);
        state.keep(states);
        self.store(&mut state, None);
        steps.checkpoint("a line is kept");
        let standing = Standing { point: Arc::clone(self), number, ended: OnceLock::new() };
        Ok(Lent { held: Arc::new(standing), rings, bell, behind_tag })
    }

    /// Puts a program in the place of the one that runs.
    fn put(&self, state: &mut State, version: Version, steps: &Steps) -> Result<(), String> {
        match &mut state.running {
            Some(running) => {
                let (new, old) = (version.program(), running.version.program());
                update(&running.links, (new, old), steps).map_err(|error| error.to_string())?;
                let old = std::mem::replace(&mut running.version, version);
                state.retired.push(old);
                state.replaced += 1;
            }
            None => {
                let links =
                    self.place.attach(version.program()).map_err(|closed| match closed {
                        Closed::Nobody(failure) => failure.to_string(),
                        Closed::Program(why) => why,
                    })?;
                state.running = Some(Running { links, version });
            }
        }
        Ok(())
    }

    /// Takes a line away; answers what it leaves behind. Where no smaller program can be put in the
    /// place of the one that runs, the line goes with the next change.
    fn remove(&self, number: u32) -> Ended {
        let mut state = self.state();
        match state.lines.iter_mut().find(|line| line.number == number) {
            Some(line) => line.leaving = true,
            // It was never put there.
            None => return Ended::default(),
        }
        let stay: Vec<&Line> = state.lines.iter().filter(|line| !line.leaving).collect();
        let gone = if stay.is_empty() {
            true
        } else {
            let made = Version::make(self, &stay, &UNLOGGED);
            let put = made.map_err(|failure| failure.why).and_then(|(version, states)| {
                let next = Next { version: &version, line: None, states: &states };
                self.store(&mut state, Some(next));
                self.put(&mut state, version, &UNLOGGED)
            });
            // Of an interface that is gone so are its programs.
            put.is_err() && self.place.is_gone()
        };
        if gone && let Some(running) = state.running.take() {
            drop(running.links);
            state.retired.push(running.version);
        }
        state.settle();
        let mut ended = Ended::default();
        let State { lines, running, .. } = &mut *state;
        if let Some(line) = lines.iter_mut().find(|line| line.number == number) {
            let running = running.as_ref().filter(|running| running.version.runs(number));
            running.iter().for_each(|running| line.measure(running.version.program()));
            ended = self.ended(line);
            if let Some(running) = running {
                ended.counted.add(&running.version.counted(line));
            }
            let about = line.about.clone();
            state.has_left(about, &ended);
        }
        let running = state.running.as_ref().map(|running| &running.version);
        let runs = |line: &Line| running.is_some_and(|version| version.runs(line.number));
        let stays: Vec<bool> = state.lines.iter().map(|line| !line.leaving || runs(line)).collect();
        let mut stays = stays.into_iter();
        state.lines.retain(|_| stays.next().unwrap_or(true));
        state.full = false;
        self.store(&mut state, None);
        ended
    }

    /// The number of a new line.
    fn next_number(&self) -> u32 {
        // It guards no other memory.
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the counters of a request so far.
    fn counted(&self, number: u32) -> Option<Counted> {
        let state = self.state();
        let line = state.lines.iter().find(|line| line.number == number)?;
        Some(state.counted(line, &state.running.as_ref()?.version))
    }

    /// Returns the owner of a request.
    fn owner_of(&self, number: u32) -> Option<u32> {
        let state = self.state();
        state.lines.iter().find(|line| line.number == number).map(|line| line.uid)
    }

    /// Returns the final record of a request that no program runs any more.
    fn ended(&self, line: &Line) -> Ended {
        Ended { busy: self.busy().saturating_sub(line.busy_before), ..line.ended() }
    }

    /// Returns the number of packets that came while too many were in flight.
    fn busy(&self) -> u64 {
        self.sockets.as_ref().map_or(0, Sockets::busy)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// From now on it can be waited for programs that were replaced.
    fn begin_to_wait(&mut self) -> Result<(), String> {
        if self.grace.is_none() {
            self.grace = Some(GracePeriod::new().map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// Returns the counters of a request so far.
    fn counted(&self, line: &Line, running: &Version) -> Counted {
        let mut counted = line.counted.clone();
        let versions = self.retired.iter().chain([running]);
        versions.for_each(|version| counted.add(&version.counted(line)));
        counted
    }

    /// A line has left.
    fn has_left(&mut self, about: String, ended: &Ended) {
        if self.left.len() >= LEFT_MAX {
            self.left.pop_front();
        }
        self.left.push_back((about, ended.clone()));
    }

    /// Gives the lines the maps in which their filters keep something from now on.
    fn keep(&mut self, states: Vec<(u32, usize, Map)>) {
        for (number, step, map) in states {
            if let Some(line) = self.lines.iter_mut().find(|line| line.number == number) {
                line.states.push((step, Arc::new(map)));
            }
        }
    }

    /// Adds what programs have counted that run no more to what their lines have counted.
    fn settle(&mut self) {
        if self.retired.is_empty() {
            return;
        }
        // At an interface nobody is under way without running ones: the link waited for that.
        let waits = self.lingers || self.running.is_some();
        if let Some(grace) = self.grace.as_ref().filter(|_| waits) {
            // The kernel refuses this to nobody who could make the maps.
            let waited = grace.wait();
            debug_assert!(waited.is_ok(), "{waited:?}");
        }
        for version in std::mem::take(&mut self.retired) {
            self.frames += version.ran();
            for line in self.lines.iter_mut().filter(|line| version.runs(line.number)) {
                let counted = version.counted(line);
                line.counted.add(&counted);
                line.measure(version.program());
            }
        }
    }
}

/// The step in front of the link that follows another one.
const FOLLOWS: &str = "the second link follows the first";

/// Puts a program in the place of another everywhere, or nowhere.
fn update(links: &[Link], (new, old): (&Program, &Program), steps: &Steps) -> sys::Result<()> {
    for (done, link) in links.iter().enumerate() {
        if done > 0 {
            steps.checkpoint(FOLLOWS);
        }
        if let Err(error) = link.update(new, Some(old)) {
            for link in links.iter().take(done) {
                link.update(old, Some(new))?;
            }
            return Err(error);
        }
    }
    Ok(())
}
