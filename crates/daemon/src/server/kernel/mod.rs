//! The kernel space of the machine, for whoever may have a part of it. [SL §7.1, §8; CONTRACT 21,
//! 25; RELIABILITY T8, T12, T18]
//!
//! ```text
//!  Attach ──► waiting, by user ──► the kernel's thread: policy, books, Points ──► Handout
//! ```
//!
//! Making a program takes milliseconds, and taking one away waits for the kernel, so a thread of
//! its own does it ([`thread`]), one order at a time. Users take turns: who asks for much waits for
//! itself. What somebody leaves goes first, since that makes room. What users have is in the books
//! ([`books`]), and nothing is made that they do not allow.

mod books;
mod thread;

pub(super) use thread::Seen;

use super::Server;
use super::guest;
use super::methods::Answer;
use super::store::Knows;
use abi::access::Credentials;
use engine::kernel::handout::{Ended, Handout};
use member::faults;
use member::place::PACKETS;
use member::protocol::{Attach, Attached, Quota};
use member::varlink::{Fault, Reply};
use pipeline::plan::{Kernel as OfMachine, Machine};
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::local_socket::Framing;
use sys::steps::Steps;
use sys::watcher::{Interest, Watcher};

/// A command to the kernel thread.
#[derive(Debug)]
pub(super) enum Order {
    /// A part of a line is to run for this guest.
    Attach { guest: u64, who: Credentials, process: i32, asked: Attach },
    /// The line of a guest, which was made for that, takes the place of another one.
    Switch { guest: u64 },
    /// The line of a guest leaves; why, if the guest has not asked for it.
    Detach { guest: u64, why: Option<String> },
    /// Reports the running programs.
    Show { guest: u64 },
    /// All lines leave.
    End { why: String },
    /// All lines go on without us: somebody keeps them.
    Keep,
}

/// The result of a command.
#[derive(Debug)]
pub(super) enum Done {
    Attached {
        guest: u64,
        result: Result<Handout, Fault>,
    },
    /// It runs in the place of another one, or will never.
    Switched {
        guest: u64,
        result: Result<(), Fault>,
    },
    Detached {
        guest: u64,
        ended: Box<Ended>,
        why: Option<String>,
    },
    Shown {
        guest: u64,
        shown: Vec<Seen>,
    },
    /// No line is left.
    Ended,
    /// The order is done: the next one, please.
    Ready,
}

/// The line of a guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Line {
    #[default]
    None,
    /// It was asked for.
    Asked,
    /// It is to be in the place of another one, and was asked for.
    AskedInstead,
    /// It waits to be put in the place of another one.
    Waits,
    /// It is to be put there.
    Switches,
    /// It runs.
    Runs,
    /// It is to leave.
    Leaves,
}

/// The thread, and what waits for it.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The release of the kernel, or why no programs run there for us.
    pub(super) open: Result<String, String>,
    orders: Option<Sender<Order>>,
    done: Receiver<Done>,
    /// Something was done.
    bell: Arc<EventFd>,
    used: Arc<Mutex<BTreeMap<u32, Quota>>>,
    thread: Option<JoinHandle<()>>,
    /// Commands that go first.
    urgent: VecDeque<Order>,
    waiting: BTreeMap<u32, VecDeque<Order>>,
    /// The user served last.
    last: u32,
    busy: bool,
}

/// Objects adopted from the previous daemon, and the reasons why others were not.
#[derive(Debug, Default)]
pub(super) struct TakenUp {
    pub(super) lines: Vec<OfGuest>,
    pub(super) notes: Vec<String>,
}

/// The line of a guest of the daemon before.
#[derive(Debug)]
pub(super) struct OfGuest {
    pub(super) guest: u64,
    pub(super) uid: u32,
    /// The counts it left behind: it had been replaced or was about to leave, and its client had
    /// not been told.
    pub(super) ended: Option<Box<Ended>>,
}

/// The number by which its bell is watched.
pub(super) const DONE: u64 = 4;
/// The most queued commands of one user.
const WAITING_MAX: usize = 256;
/// The longest wait for the end of all lines at shutdown: each waits until the kernel has released
/// its program, and no service manager is as patient.
const LAST_NS: u64 = 60_000_000_000;

impl Kernel {
    /// The kernel of this machine.
    /// With the lines that were kept of the daemon before.
    pub(super) fn begin(
        policy: &crate::policy::Policy,
        watcher: &Watcher,
        (kept, steps): (Vec<(String, OwnedFd)>, &Steps),
    ) -> sys::Result<(Self, TakenUp)> {
        let machine = engine::machine::look();
        let open = match &machine.kernel {
            OfMachine::Open { release, .. } => Ok(release.clone()),
            OfMachine::Closed { why, .. } => Err(why.clone()),
        };
        let bell = Arc::new(EventFd::new()?);
        watcher.watch(&*bell, guest::number(DONE, guest::Part::Listener), Interest::Read)?;
        let (done_sender, done) = channel();
        let used = Arc::default();
        let mut kernel = Self {
            open,
            orders: None,
            done,
            bell,
            used,
            thread: None,
            urgent: VecDeque::new(),
            waiting: BTreeMap::new(),
            last: 0,
            busy: false,
        };
        let mut taken = TakenUp::default();
        if kernel.open.is_ok() {
            taken = kernel.start(machine, policy.clone(), (kept, steps.clone(), done_sender))?;
        }
        Ok((kernel, taken))
    }

    fn start(
        &mut self,
        machine: Machine,
        policy: crate::policy::Policy,
        (kept, steps, done): (Vec<(String, OwnedFd)>, Steps, Sender<Done>),
    ) -> sys::Result<TakenUp> {
        let ((sender, orders), (tell, taken)) = (channel(), channel());
        let (bell, used) = (Arc::clone(&self.bell), Arc::clone(&self.used));
        let work = move || {
            let mut work = thread::Work::new(machine, policy, (used, steps));
            let _ = tell.send(work.take_up(kept));
            work.run(&orders, &done, &bell);
        };
        let thread = std::thread::Builder::new().name("kernel".to_owned()).spawn(work);
        let thread = thread.map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?;
        (self.orders, self.thread) = (Some(sender), Some(thread));
        // Of a thread that has panicked the orders will tell.
        Ok(taken.recv().unwrap_or_default())
    }

    /// Returns the usage of a user.
    pub(super) fn used(&self, uid: u32) -> Quota {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.get(&uid).copied().unwrap_or_default()
    }

    /// Lets an order wait for its turn; none: too many wait.
    fn wait(&mut self, uid: u32, order: Order) -> Option<()> {
        let waiting = self.waiting.entry(uid).or_default();
        (waiting.len() < WAITING_MAX).then(|| waiting.push_back(order))?;
        self.next();
        Some(())
    }

    /// Nothing is in front of this.
    fn hurry(&mut self, order: Order) {
        self.urgent.push_back(order);
        self.next();
    }

    /// Gives the thread what is next.
    fn next(&mut self) {
        let Some(orders) = self.orders.as_ref().filter(|_| !self.busy) else { return };
        let order = self.urgent.pop_front().or_else(|| {
            let after = self.waiting.range(self.last.saturating_add(1)..).next();
            let (uid, _) = after.or_else(|| self.waiting.iter().next())?;
            let uid = *uid;
            self.last = uid;
            let waiting = self.waiting.get_mut(&uid)?;
            let order = waiting.pop_front();
            if waiting.is_empty() {
                self.waiting.remove(&uid);
            }
            order
        });
        let Some(order) = order else { return };
        self.busy = orders.send(order).is_ok();
        if !self.busy {
            self.open = Err("a bug has ended what ran them: start the daemon again".to_owned());
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Without orders the thread ends, and takes all lines away.
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // If it has panicked there is nobody to tell here.
            let _ended = thread.join();
        }
    }
}

impl Server {
    /// Runs a part of a line for a guest.
    pub(super) fn attach(&mut self, id: u64, asked: Attach, more: bool) -> Result<Answer, Fault> {
        let closed = |why: &str| faults::not_in_kernel(0, "kernel", why);
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        if guest.connection.form() != Framing::Packets {
            return Err(faults::needs_descriptors(PACKETS));
        }
        if !more {
            return Err(Fault::expected_more());
        }
        if guest.line != Line::None {
            return Err(faults::refused("line", "this connection has one in the kernel already"));
        }
        if let Err(why) = &self.kernel.open {
            return Err(closed(&format!("the daemon runs no programs: {why}")));
        }
        let (who, process) = (guest.who.clone(), guest.process);
        let uid = who.uid;
        let line = if asked.instead.is_some() { Line::AskedInstead } else { Line::Asked };
        let order = Order::Attach { guest: id, who, process, asked };
        self.kernel.wait(uid, order).ok_or_else(|| closed("too many of your lines wait"))?;
        guest.line = line;
        Ok(Answer::later())
    }

    /// The line of a guest takes the place of the one for whose place it was made.
    pub(super) fn switch(&mut self, id: u64) -> Result<Answer, Fault> {
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        if guest.line != Line::Waits {
            return Err(faults::refused("line", "none of this connection waits for that"));
        }
        guest.line = Line::Switches;
        // A path stands still until this is done.
        self.kernel.hurry(Order::Switch { guest: id });
        Ok(Answer::one(&json!({})))
    }

    /// The line of a guest leaves.
    pub(super) fn detach(&mut self, id: u64) -> Result<Answer, Fault> {
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        if matches!(guest.line, Line::Runs | Line::Waits) {
            match guest.line == Line::Runs {
                // The next daemon takes it away, if this one dies before it has told the end.
                true => guest.keep_line(id, Knows::Leaves),
                false => guest.forget_line(id),
            }
            self.steps.checkpoint("the line of a guest leaves");
            self.leaves(id);
        }
        Ok(Answer::one(&json!({})))
    }

    /// The line of a guest is taken away.
    pub(super) fn leaves(&mut self, id: u64) {
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.line = Line::Leaves;
            self.kernel.hurry(Order::Detach { guest: id, why: None });
        }
    }

    /// Tells a guest what runs in the kernel.
    pub(super) fn sharing(&mut self, id: u64) -> Result<Answer, Fault> {
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        let uid = guest.who.uid;
        if self.kernel.open.is_err() {
            return Ok(Answer::one(&member::protocol::Sharing::default()));
        }
        let order = Order::Show { guest: id };
        let busy = || faults::refused("call", "too many of yours wait");
        self.kernel.wait(uid, order).ok_or_else(busy)?;
        guest.waits_for_kernel = true;
        Ok(Answer::later())
    }

    /// A guest is gone: so is its line, and what it has asked for and not got.
    pub(super) fn abandon(&mut self, id: u64, line: Line, uid: u32) {
        let of_guest = |order: &Order| match order {
            Order::Attach { guest, .. } | Order::Show { guest, .. } => *guest == id,
            Order::Switch { .. } | Order::Detach { .. } => false,
            Order::End { .. } | Order::Keep => false,
        };
        if let Some(waiting) = self.kernel.waiting.get_mut(&uid) {
            waiting.retain(|order| !of_guest(order));
            if waiting.is_empty() {
                self.kernel.waiting.remove(&uid);
            }
        }
        let goes = !matches!(line, Line::None | Line::Leaves);
        if goes && self.kernel.orders.is_some() {
            self.kernel.hurry(Order::Detach { guest: id, why: None });
        }
    }

    /// Hears what was done in the kernel. Answers whether all was ended.
    pub(super) fn hear_kernel(&mut self) -> bool {
        self.kernel.bell.clear();
        let mut all = false;
        while let Ok(done) = self.kernel.done.try_recv() {
            match done {
                Done::Attached { guest, result } => self.attached(guest, result),
                Done::Switched { guest, result } => self.switched(guest, result),
                Done::Detached { guest, ended, why } => self.detached(guest, &ended, why),
                Done::Shown { guest, shown } => self.shown(guest, &shown),
                Done::Ended => all = true,
                Done::Ready => {
                    self.kernel.busy = false;
                    self.kernel.next();
                }
            }
        }
        all
    }

    fn attached(&mut self, id: u64, result: Result<Handout, Fault>) {
        // Who is gone meanwhile has been abandoned, and with it the line.
        let Some(guest) = self.guests.get_mut(&id) else { return };
        self.steps.checkpoint("a guest is told what was made for it");
        match result {
            Ok(Handout { layout, records, pointers, bell }) => {
                let waits = guest.line == Line::AskedInstead;
                guest.line = if waits { Line::Waits } else { Line::Runs };
                let layout = Some(layout.text());
                let attached = Attached { layout, line: Some(id), ..Attached::default() };
                let reply = Reply { continues: true, ..Reply::new(&attached) };
                self.say(id, reply, vec![records, pointers, bell]);
                self.steps.checkpoint("the connection of a guest is kept");
                if let Some(guest) = self.guests.get_mut(&id) {
                    guest.keep_line(id, if waits { Knows::Waits } else { Knows::Runs });
                }
            }
            Err(fault) => {
                guest.line = Line::None;
                self.say(id, Reply::from(&fault), Vec::new());
            }
        }
        self.catch_up(id);
    }

    pub(super) fn switched(&mut self, id: u64, result: Result<(), Fault>) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        self.steps.checkpoint("a guest is told that its line is changed");
        guest.line = if result.is_ok() { Line::Runs } else { Line::None };
        let reply = match result {
            Ok(()) => {
                let attached = Attached { switched: Some(true), ..Attached::default() };
                Reply { continues: true, ..Reply::new(&attached) }
            }
            Err(fault) => Reply::from(&fault),
        };
        let runs = guest.line == Line::Runs;
        self.say(id, reply, Vec::new());
        self.steps.checkpoint("a guest knows that its line is changed");
        if let Some(guest) = self.guests.get_mut(&id) {
            match runs {
                true => guest.keep_line(id, Knows::Runs),
                false => guest.forget_line(id),
            }
        }
        self.catch_up(id);
    }

    pub(super) fn detached(&mut self, id: u64, ended: &Ended, why: Option<String>) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        guest.line = Line::None;
        self.steps.checkpoint("a guest is told what its line has counted");
        let attached = Attached { ended: Some(ended.text()), why, ..Attached::default() };
        self.say(id, Reply::new(&attached), Vec::<OwnedFd>::new());
        self.steps.checkpoint("the connection of a guest is kept no more");
        self.guests.get_mut(&id).into_iter().for_each(|guest| guest.forget_line(id));
    }

    fn shown(&mut self, id: u64, shown: &[Seen]) {
        let Some(guest) = self.guests.get(&id) else { return };
        let uid = guest.who.uid;
        let sharing = self.told(uid, shown);
        self.say(id, Reply::new(&sharing), Vec::new());
        if let Some(guest) = self.guests.get_mut(&id) {
            guest.waits_for_kernel = false;
        }
        self.catch_up(id);
    }

    /// Takes all lines away, and tells whose they were what they have counted; or leaves them to
    /// who keeps them for the next daemon.
    pub(super) fn end_lines(&mut self) {
        if self.kernel.orders.is_none() || self.guests.values().all(|g| g.line == Line::None) {
            return;
        }
        self.kernel.waiting.clear();
        self.kernel.urgent.clear();
        let why = "the daemon was asked to end, and with it what it runs in the kernel".to_owned();
        self.kernel.hurry(if sys::service::stores_descriptors() {
            Order::Keep
        } else {
            Order::End { why }
        });
        let until = sys::clock::monotonic() + LAST_NS;
        loop {
            let left = until.saturating_sub(sys::clock::monotonic());
            let left = Some(Duration::from_nanos(left));
            let rung = sys::poll::readable_within(&[self.kernel.bell.as_fd()], left);
            if self.hear_kernel() || rung != [true] {
                return;
            }
        }
    }
}
