//! Orders to a running path: what somebody outside wants done or known, done by the space itself
//! between two passes, at a block boundary. [Th §5.4]
//!
//! In: a closure over the space. Out: its answer, or why there is none. The thread of the space
//! runs it when no block is under way in it: every block was taken by all that want it, or is held
//! by a filter, or lies in a ring. So nothing on the data path is shared, locked or atomic for the
//! sake of who may want to look or change something. While nobody orders, that costs a space one
//! load per pass, of a word that nobody writes; a space that sleeps is rung for.
//!
//! A space that waits for room in a ring stands in the middle of a walk: it takes no orders until
//! the far side has gone on, and says which ring it is ([`NotTaken::HeldUp`]). An order that was
//! not taken in time is withdrawn: whoever is told that it was not taken can rely on it.
//!
//! A [`Live`] outlives its path: what has ended answers [`NotTaken::Ended`], and its counters are
//! those with which it ended.

use crate::build::running::Whole;
use crate::control::Control;
use crate::failure::PathFailure;
use crate::kernel::{Kernel, ProgramRan, SoFar};
use crate::latency::{Breach, Latency};
use crate::ledger::Ledger;
use crate::report::{self, Counted, Reported};
use crate::run::Crew;
use crate::space::{Remains, Space};
use crate::spaces::{Found, Has, Runs};
use buffer::signal::Doorbell;
use pipeline::plan::Plan;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A path as somebody outside reaches it, from before it starts until long after it has ended.
#[derive(Clone, Debug)]
pub struct Live {
    control: Arc<Control>,
    spaces: Arc<Mutex<Vec<Arc<Orders>>>>,
    /// The whole request, and which part of it this is.
    whole: Option<(Arc<Whole>, usize)>,
}

/// How much is remembered of what a path did by itself.
const ADAPTED_MAX: usize = 32;

/// Why an order was not taken. Nothing of it was done then, and nothing will be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// Nobody runs the path yet.
    NotBegun,
    /// The space has ended, or there is none of this number.
    Ended,
    /// The space waits for room in a ring.
    HeldUp {
        /// The space.
        space: String,
        /// The edge of the plan that is full.
        edge: usize,
    },
    /// The space was busy all the time: a sink or a program keeps it, or it has no processor.
    Late {
        /// The space.
        space: String,
    },
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBegun => f.write_str("the path has not begun to run"),
            Self::Ended => f.write_str("the path has ended"),
            Self::HeldUp { space, .. } => {
                write!(f, "{space} waits for room in a ring: who reads it takes nothing")
            }
            Self::Late { space } => write!(f, "{space} did not come to it in time"),
        }
    }
}

impl std::error::Error for NotTaken {}

/// What a path had counted when it was asked.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// When it was asked: the monotonic clock, in ns.
    pub at: u64,
    /// Nodes, edges and sources as in the ledger at the end. The position of an edge is what was
    /// put on it; what is resident in a ring is what had been put and not taken, the far side asked
    /// first.
    pub ledger: Ledger,
    /// What filters have to say so far.
    pub reports: Vec<Reported>,
    /// Each space, in the order of the plan; processes behind the threads.
    pub spaces: Vec<Found>,
}

/// How fresh the counters of a space are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fresh {
    /// It answered.
    Now,
    /// It has ended, and these are its last.
    Ended,
    /// It did not answer: these are those of the last time, if there was one.
    Old(NotTaken),
}

impl Live {
    pub(crate) fn new(control: Arc<Control>, spaces: Arc<Mutex<Vec<Arc<Orders>>>>) -> Self {
        Self { control, spaces, whole: None }
    }

    pub(crate) fn belongs_to(&mut self, whole: &Arc<Whole>, part: usize) {
        self.whole = Some((Arc::clone(whole), part));
    }

    pub(crate) fn whole(&self) -> Option<&Arc<Whole>> {
        self.whole.as_ref().map(|(whole, _)| whole)
    }

    /// Somebody runs it, or does so no more.
    pub(crate) fn is_run_by(&self, crew: Option<Crew>) {
        if let Some((whole, part)) = &self.whole {
            whole.is_run_by(*part, crew);
        }
    }

    /// Gives nodes and edges of a ledger the places that they have in the plan.
    pub(crate) fn place(&self, ledger: &mut Ledger, reports: &mut [Reported]) {
        let Some(whole) = self.whole() else { return };
        let (node, edge) = whole.state().place_of();
        ledger.filters.iter_mut().for_each(|line| line.planned = node.of(line.planned));
        ledger.edges.iter_mut().for_each(|line| line.planned = edge.of(line.planned));
        reports.iter_mut().for_each(|report| report.planned = node.of(report.planned));
    }

    /// Gives nodes and edges of programs the places that they have in the plan.
    pub(crate) fn place_programs(&self, programs: &mut [ProgramRan]) {
        let Some(whole) = self.whole() else { return };
        let (node, edge) = whole.state().place_of();
        for program in programs {
            program.source = node.of(program.source);
            program.edges.iter_mut().for_each(|number| *number = edge.of(*number));
        }
    }

    /// Says which request this path runs: only then can it be changed by edits.
    pub fn says(&self, text: &str) {
        if let Some(whole) = self.whole() {
            whole.state().text = Some(text.to_owned());
        }
    }

    /// The request that the path runs now, if anybody said it.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        self.whole()?.state().text.clone()
    }

    /// The plan that the path follows now. What ledger and reports call by a place stands there;
    /// what has the place [`GONE`](crate::build::GONE) was in an earlier one.
    #[must_use]
    pub fn plan(&self) -> Option<Plan> {
        Some(self.whole()?.state().plan.clone())
    }

    /// How often it has been changed, by somebody or by itself.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.whole().map_or(0, |whole| whole.state().changes)
    }

    /// What programs have counted so far of what they do for it, by the places of the plan.
    pub(crate) fn in_kernel(&self) -> Vec<SoFar> {
        let Some((whole, part)) = &self.whole else { return Vec::new() };
        let state = whole.state();
        let kernels = state.parts.get(*part).and_then(|part| part.kernels.upgrade());
        let (node, edge) = state.place_of();
        let Some(kernels) = kernels else { return Vec::new() };
        let kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<SoFar> = kernels.iter().filter_map(Kernel::counts).collect();
        for counts in &mut all {
            counts.nodes.iter_mut().for_each(|(number, _)| *number = node.of(*number));
            counts.edges.iter_mut().for_each(|(number, _)| *number = edge.of(*number));
        }
        all
    }

    /// What the path did by itself while it ran, and why: the last that it did.
    #[must_use]
    pub fn adapted(&self) -> Vec<String> {
        self.whole().map_or_else(Vec::new, |whole| whole.state().adapted.iter().cloned().collect())
    }

    /// How long blocks were on their way, where the request bounds that.
    #[must_use]
    pub fn latency(&self) -> Option<Latency> {
        self.whole()?.extras.budget.told(sys::clock::monotonic())
    }

    /// Whether blocks were late since this was asked last.
    pub(crate) fn breach(&self) -> Option<Breach> {
        self.whole()?.extras.budget.breach(sys::clock::monotonic())
    }

    /// How often the path has looked whether it should do anything by itself.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.whole().map_or(0, |whole| whole.state().looks)
    }

    /// It has looked.
    pub(crate) fn has_looked(&self) {
        if let Some(whole) = self.whole() {
            whole.state().looks += 1;
        }
    }

    /// It did this by itself.
    pub(crate) fn adapts(&self, what: String) {
        if let Some(whole) = self.whole() {
            let adapted = &mut whole.state().adapted;
            adapted.push_back(what);
            if adapted.len() > ADAPTED_MAX {
                adapted.pop_front();
            }
        }
    }

    /// The names of the spaces, in the order of the plan: their places are their numbers.
    #[must_use]
    pub fn spaces(&self) -> Vec<String> {
        self.all().iter().map(|orders| orders.name.clone()).collect()
    }

    /// Whether all spaces have ended.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.all().iter().all(|orders| orders.inbox().ended)
    }

    /// Lets the sources of the path end: what is under way drains.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Has a space do this between two passes, and waits for its answer, at most until `limit` is
    /// over; what has been begun by then is waited for. It must not block, and no space may order
    /// anything of its own path.
    pub fn order<A: Send + 'static>(
        &self,
        space: usize,
        limit: Duration,
        order: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<A, NotTaken> {
        let orders = self.all().get(space).cloned().ok_or(NotTaken::Ended)?;
        orders.ask(limit, order)
    }

    /// What all spaces have counted. Those that do not answer in their share of `limit` are told as
    /// they were the last time.
    #[must_use]
    pub fn counters(&self, limit: Duration) -> Snapshot {
        let all = self.all();
        let at = sys::clock::monotonic();
        let share = limit / u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
        let (mut spaces, mut counted, mut has) = (Vec::new(), Vec::new(), Vec::new());
        // The far side of a ring has not taken more than the near side has put when that is asked
        // later.
        for orders in all.iter().rev() {
            let held_up = orders.held_up();
            let task = orders.task();
            let given = orders.give(|space: &mut Space| (space.counted(), space.has()));
            let answer = given.and_then(|given| given.answer(share));
            let mut inbox = orders.inbox();
            let fresh = match answer {
                Ok((now, has)) => {
                    (inbox.last, inbox.has) = (Some(now), Some(has));
                    Fresh::Now
                }
                Err(NotTaken::Ended) => Fresh::Ended,
                Err(why) => Fresh::Old(why),
            };
            let (name, runs) =
                (orders.name.clone(), task.as_ref().map(|(id, _)| Runs::Thread(*id)));
            let memory = inbox.has.as_ref().map(Has::memory);
            let task = task.map(|(_, task)| task);
            spaces.push(Found { name, fresh, runs, task, held_up, memory });
            counted.extend(inbox.last.clone());
            has.extend(inbox.has.clone());
        }
        spaces.reverse();
        counted.reverse();
        has.reverse();
        spaces.extend(self.processes(&has));
        // What crossed to spaces that are no more, they have counted.
        if let Some((whole, part)) = &self.whole {
            let gone = whole.state().parts.get(*part).map(|part| part.gone.clone());
            let last = gone.into_iter().flatten().filter_map(|one| one.last(Duration::ZERO));
            counted.extend(last);
        }
        let mut reports = report::joined_reports(&counted);
        let mut ledger = report::joined(counted, true);
        self.place(&mut ledger, &mut reports);
        if let Some(whole) = self.whole() {
            let (_, edge) = whole.state().place_of();
            let edges = spaces.iter_mut().filter_map(|space| space.held_up.as_mut());
            edges.for_each(|number| *number = edge.of(*number));
        }
        Snapshot { at, ledger, reports, spaces }
    }

    /// Has the spaces measure the time in their filters from now on, or no more. One that does not
    /// come to it in its share of `limit` goes on as before.
    pub fn measure_time(&self, on: bool, limit: Duration) {
        let spaces = self.all().len();
        let share = limit / u32::try_from(spaces.max(1)).unwrap_or(u32::MAX);
        for number in 0..spaces {
            let _ = self.order(number, share, move |space| space.measure_time(on));
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Orders>> {
        self.spaces.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type Order = Box<dyn FnOnce(&mut Space) + Send>;

/// Where orders to one space lie until it takes them.
pub(crate) struct Orders {
    name: String,
    /// Whether something lies there.
    waits: AtomicBool,
    /// One more than the edge of the plan in which the space waits for room; 0: it does not.
    held_up: AtomicUsize,
    /// The thread of the space; 0: it has not begun.
    pub(crate) thread: AtomicU32,
    inbox: Mutex<Inbox>,
    /// Is told when the space has ended.
    gone: Condvar,
    bell: Arc<Doorbell>,
}

#[derive(Default)]
pub(crate) struct Inbox {
    orders: VecDeque<(u64, Order)>,
    /// The number of the next order.
    next: u64,
    /// What was counted when somebody asked last, or when the space ended.
    last: Option<Counted>,
    /// What the space had then.
    has: Option<Has>,
    pub(crate) ended: bool,
    /// Whether nothing more is taken, although the space goes on.
    refuses: bool,
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orders").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Orders {
    /// Orders to a space that sleeps on this bell.
    pub(crate) fn new(name: String, bell: Arc<Doorbell>) -> Self {
        let (waits, held_up) = (AtomicBool::new(false), AtomicUsize::new(0));
        let (thread, inbox, gone) = (AtomicU32::new(0), Mutex::default(), Condvar::new());
        Self { name, waits, held_up, thread, inbox, gone, bell }
    }

    /// Puts an order there and rings.
    fn give<A: Send + 'static>(
        self: &Arc<Self>,
        order: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<Given<A>, NotTaken> {
        let (tell, answer) = mpsc::channel();
        // Who gave it may have been told that the path ended, and does not listen any more.
        let order = Box::new(move |space: &mut Space| drop(tell.send(order(space))));
        let mut inbox = self.inbox();
        if inbox.ended || inbox.refuses {
            return Err(NotTaken::Ended);
        }
        let number = inbox.next;
        inbox.next += 1;
        inbox.orders.push_back((number, order));
        // SYNC POINT: order; pairs with the Acquire in `waits`. The order itself is under the lock.
        self.waits.store(true, Ordering::Release);
        drop(inbox);
        self.bell.notify();
        Ok(Given { orders: Arc::clone(self), number, answer })
    }

    /// Has the space do this between two passes, and waits for its answer.
    pub(crate) fn ask<A: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        order: impl FnOnce(&mut Space) -> A + Send + 'static,
    ) -> Result<A, NotTaken> {
        self.give(order)?.answer(limit)
    }

    /// Takes the space over from its thread, at a block boundary.
    pub(crate) fn borrow(self: &Arc<Self>, limit: Duration) -> Result<Lent, NotTaken> {
        let ((to, comes), (back, goes)) = (mpsc::channel(), mpsc::channel());
        let loan = Loan { to, back: goes };
        self.give(move |space: &mut Space| space.is_wanted(loan))?.answer(limit)?;
        // It comes before its next pass.
        let space = comes.recv().map_err(|_| NotTaken::Ended)?;
        space.is_lent();
        Ok(Lent { space, back })
    }

    /// Waits until the space has ended; answers what it had counted, or nothing if it goes on.
    pub(crate) fn last(&self, limit: Duration) -> Option<Counted> {
        let inbox = self.inbox();
        let waited = self.gone.wait_timeout_while(inbox, limit, |inbox| !inbox.ended);
        let (inbox, _) = waited.unwrap_or_else(PoisonError::into_inner);
        inbox.last.clone().filter(|_| inbox.ended)
    }

    /// Takes an order back; answers whether it was still there.
    fn withdraw(&self, number: u64) -> bool {
        let mut inbox = self.inbox();
        let before = inbox.orders.len();
        inbox.orders.retain(|(other, _)| *other != number);
        inbox.orders.len() < before
    }

    /// Why nothing was taken in time.
    fn excuse(&self) -> NotTaken {
        let space = self.name.clone();
        match self.held_up() {
            Some(edge) => NotTaken::HeldUp { space, edge },
            None => NotTaken::Late { space },
        }
    }

    /// Whether there is something to do.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        // SYNC POINT: order; pairs with the Release in `give`.
        self.waits.load(Ordering::Acquire)
    }

    /// Takes the next order.
    pub(crate) fn next(&self) -> Option<Order> {
        let mut inbox = self.inbox();
        let next = inbox.orders.pop_front();
        if next.is_none() {
            self.waits.store(false, Ordering::Relaxed);
        }
        next.map(|(_, order)| order)
    }

    /// The space takes no orders any more.
    pub(crate) fn refuse(&self) {
        let mut inbox = self.inbox();
        inbox.refuses = true;
        // Who waits for an answer hears that there will be none.
        inbox.orders.clear();
    }

    /// This thread runs the space, which has this.
    pub(crate) fn is_run_here(&self, has: Has) {
        self.inbox().has = Some(has);
        self.thread.store(sys::task::own(), Ordering::Relaxed);
    }

    /// The edge on which the space waits for room.
    fn held_up(&self) -> Option<usize> {
        // It only says which; nothing else travels with it.
        self.held_up.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The space waits for room on this edge, or (`None`) goes on.
    pub(crate) fn is_held_up(&self, edge: Option<usize>) {
        self.held_up.store(edge.map_or(0, |edge| edge + 1), Ordering::Relaxed);
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An order that lies there or is being done.
struct Given<A> {
    orders: Arc<Orders>,
    number: u64,
    answer: mpsc::Receiver<A>,
}

impl<A> Given<A> {
    fn answer(self, limit: Duration) -> Result<A, NotTaken> {
        match self.answer.recv_timeout(limit) {
            Ok(answer) => Ok(answer),
            Err(RecvTimeoutError::Disconnected) => Err(NotTaken::Ended),
            Err(RecvTimeoutError::Timeout) if self.orders.withdraw(self.number) => {
                Err(self.orders.excuse())
            }
            // It is being done, or the space has just ended.
            Err(RecvTimeoutError::Timeout) => self.answer.recv().map_err(|_| NotTaken::Ended),
        }
    }
}

/// Somebody has a space for a while: where it goes, and where it comes back from.
#[derive(Debug)]
pub(crate) struct Loan {
    to: mpsc::Sender<Space>,
    back: mpsc::Receiver<Space>,
}

/// A space that was lent. Whoever has it gives it back; else it ends.
pub(crate) struct Lent {
    pub(crate) space: Space,
    back: mpsc::Sender<Space>,
}

impl Loan {
    /// Hands the space over and waits until it is back.
    pub(crate) fn out(self, space: Space) -> Result<Space, Box<Remains>> {
        if let Err(mpsc::SendError(space)) = self.to.send(space) {
            return Ok(space);
        }
        let failure = || Some(PathFailure::space(0));
        let lost = |_| Box::new(Remains { failure: failure(), ..Remains::default() });
        self.back.recv().map_err(lost)
    }
}

impl Lent {
    /// Gives it back.
    pub(crate) fn back(self) {
        self.space.moves();
        // Its thread waits for it.
        let _ = self.back.send(self.space);
    }
}

/// The end at which a space takes orders. When it goes, the space has ended, however that came.
#[derive(Debug)]
pub(crate) struct Duty(pub(crate) Arc<Orders>);

impl Duty {
    /// Leaves what was counted behind.
    pub(crate) fn leave(&self, counted: Counted) {
        self.0.inbox().last = Some(counted);
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        let mut inbox = self.0.inbox();
        inbox.ended = true;
        // Who waits for an answer hears that there will be none.
        inbox.orders.clear();
        drop(inbox);
        self.0.gone.notify_all();
    }
}
