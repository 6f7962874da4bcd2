//! The thread that runs lines in the kernel: one order at a time, in the order in which they come.

use super::books::{Books, Cost};
use super::{Done, OfGuest, Order, TakenUp};
use crate::policy::Policy;
use crate::server::store::Manager;
use abi::access::Credentials;
use engine::build::BuildError;
use engine::catalogue::Strangers;
use engine::kernel::handout::{
    Allows, Attach as Watched, Handout, Needs, Owner, Part, Running, Side, Waiting,
};
use engine::kernel::point::{Adopted, Points, Read, Shown, Still};
use member::faults;
use member::host::network;
use member::protocol::{Attach, Instead, Quota, Stay};
use member::rights::Missing;
use member::varlink::Fault;
use pipeline::Share;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{Machine, Refused, complete};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use sys::eventfd::EventFd;
use sys::steps::Steps;

/// The place of a program as printed: interface, namespace, direction.
pub(in crate::server) type Where = (String, Option<String>, &'static str);

/// The program at an interface, and its clients.
#[derive(Debug)]
pub(in crate::server) struct Seen {
    pub(in crate::server) at: Where,
    pub(in crate::server) shown: Shown,
    /// The process and cost of each line, by number.
    pub(in crate::server) lines: BTreeMap<u32, (i32, u64)>,
}

/// The state of the thread.
#[derive(Debug)]
pub(super) struct Work {
    points: Points,
    machine: Machine,
    policy: Policy,
    lines: BTreeMap<u64, Line>,
    /// Lines that wait to be put in the place of others, by guest.
    waiting: BTreeMap<u64, Successor>,
    books: Books,
    used: Arc<Mutex<BTreeMap<u32, Quota>>>,
}

/// The line of a guest.
#[derive(Debug)]
struct Line {
    running: Running,
    owner: u32,
    at: Where,
    number: u32,
    process: i32,
}

/// The description of a line from which another daemon adopts it.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    guest: u64,
    process: i32,
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    line: String,
    part: String,
}

/// The line in whose place another one is to be: whose, itself, its steps that stay.
type Before<'l> = (u64, &'l Running, Vec<(usize, usize)>);

/// A line that is to be in the place of another one.
#[derive(Debug)]
struct Successor {
    waiting: Waiting,
    /// The owner of that line.
    instead: u64,
    process: i32,
}

/// The interval at which the cost of lines is measured.
const EVERY: Duration = Duration::from_secs(1);

impl Work {
    pub(super) fn new(
        machine: Machine,
        policy: Policy,
        (used, steps): (Arc<Mutex<BTreeMap<u32, Quota>>>, Steps),
    ) -> Self {
        let books = Books::new(machine.costs.clone());
        // Who keeps nothing would be told in vain with each change.
        let points = match sys::service::stores_descriptors() {
            true => Points::kept_by(Arc::new(Manager), steps),
            false => Points::telling(steps),
        };
        let (lines, waiting) = (BTreeMap::new(), BTreeMap::new());
        Self { points, machine, policy, lines, waiting, books, used }
    }

    /// Takes up the lines that were kept of the daemon before, as far as the policy still lets them
    /// run.
    pub(super) fn take_up(&mut self, kept: Vec<(String, OwnedFd)>) -> TakenUp {
        let read = |about: &str| {
            let about: About =
                serde_json::from_str(about).map_err(|_| "nobody knows whose it is".to_owned())?;
            let graph = self.read(&about.line).map_err(|fault| fault.text("why").to_owned())?;
            let part = Part::from_text(&about.part).ok_or("nobody knows which part runs")?;
            let who = Credentials { uid: about.uid, gid: about.gid, groups: about.groups };
            let programs = part.nodes.iter().find_map(|node| {
                let used = graph.node(*node).filter()?;
                Some((*node, used.attach()?.ok()?))
            });
            let (source, attach) = programs.ok_or("nothing says where it stands")?;
            let needs = Needs {
                attach: &attach,
                source,
                bytes: (0, 0),
                share: Share::asked(&graph),
                ways: 0,
            };
            self.opens(&who, (&graph, &part), &needs).map_err(|(_, why)| why)?;
            Ok(Read { graph, part, owner: about.uid })
        };
        let (adopted, refused) = self.points.adopt(kept, &self.machine, &read);
        let mut taken = TakenUp::default();
        for Adopted { about, still } in adopted {
            let Ok(About { guest, process, uid, .. }) = serde_json::from_str(&about) else {
                continue;
            };
            let ended = match still {
                Still::Ended(ended) => Some(ended),
                Still::Runs(running) => {
                    let (at, number) = self.enter(guest, uid, &running);
                    self.lines.insert(guest, Line { running, owner: uid, at, number, process });
                    None
                }
            };
            taken.lines.push(OfGuest { guest, uid, ended });
        }
        let note = |why: String| {
            format!("lines that ran in the kernel for the daemon before do so no more: {why}")
        };
        taken.notes = refused.into_iter().map(note).collect();
        taken
    }

    /// Does what is ordered, until nobody orders any more.
    pub(super) fn run(mut self, orders: &Receiver<Order>, done: &Sender<Done>, bell: &EventFd) {
        // Who does not listen any more need not know.
        let tell = |what: Done| drop(done.send(what));
        loop {
            let order = match self.lines.is_empty() {
                true => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => orders.recv_timeout(EVERY),
            };
            match order {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => self.look(&tell),
                Ok(Order::Keep) => {
                    tell(Done::Ended);
                    bell.notify();
                    // What is dropped takes lines away.
                    std::mem::forget(self);
                    return;
                }
                Ok(order) => {
                    self.follow(order, &tell);
                    self.look(&tell);
                    tell(Done::Ready);
                }
            }
            *self.used.lock().unwrap_or_else(PoisonError::into_inner) = self.books.used();
            bell.notify();
        }
    }

    fn follow(&mut self, order: Order, tell: &dyn Fn(Done)) {
        match order {
            Order::Attach { guest, who, process, asked } => {
                if let Some(Instead { line, .. }) = asked.instead {
                    self.give_way(who.uid, line, tell);
                }
                let result = self.attach(guest, (&who, process), &asked);
                tell(Done::Attached { guest, result });
            }
            Order::Switch { guest } => {
                let result = self.switch(guest, tell);
                tell(Done::Switched { guest, result });
            }
            Order::Detach { guest, why } => self.detach(guest, why, tell),
            Order::Show { guest } => tell(Done::Shown { guest, shown: self.shown() }),
            Order::End { why } => {
                let all: Vec<u64> = self.lines.keys().chain(self.waiting.keys()).copied().collect();
                all.into_iter().for_each(|guest| self.detach(guest, Some(why.clone()), tell));
                tell(Done::Ended);
            }
            // Done where the thread ends.
            Order::Keep => {}
        }
    }

    fn attach(
        &mut self,
        guest: u64,
        (who, process): (&Credentials, i32),
        asked: &Attach,
    ) -> Result<Handout, Fault> {
        let own = env!("CARGO_PKG_VERSION");
        if asked.version != own {
            let version: String = asked.version.chars().take(40).collect();
            let why = format!("the daemon is of version {own}, and this program of {version}");
            return Err(faults::not_in_kernel(0, "version", &why));
        }
        let part = Part::from_text(&asked.part).ok_or_else(|| Fault::invalid("part"))?;
        let graph = self.read(&asked.line)?;
        let instead = asked.instead.as_ref().map(|instead| self.instead(who, instead));
        let instead = instead.transpose()?;
        let by = RefCell::new("kernel");
        let refused = |name: &'static str, node: NodeId, why: String| {
            by.replace(name);
            Refused { node, why }
        };
        let allows = |needs: &Needs<'_>| {
            let attach = needs.attach;
            let source = needs.source;
            if attach.netns.is_none() && asked.network != network() {
                return Err(refused("place", source, ELSEWHERE.to_owned()));
            }
            self.opens(who, (&graph, &part), needs)
                .map_err(|(node, why)| refused("policy", node, why))?;
            let quota = self.policy.quota(who.uid);
            let at = place(attach, who.uid);
            let goes = asked.instead.as_ref().map(|instead| instead.line);
            let (nodes, bytes, share) = (&part.nodes, needs.bytes, &needs.share);
            let cost = Cost { nodes, source, bytes, share, goes };
            let allowed = self.books.allow(who.uid, &at, &cost, quota);
            allowed.map_err(|(node, why)| refused("quota", node, why))
        };
        let about = About {
            guest,
            process,
            uid: who.uid,
            gid: who.gid,
            groups: who.groups.clone(),
            line: asked.line.clone(),
            part: asked.part.clone(),
        };
        let about = serde_json::to_string(&about).unwrap_or_default();
        let request = (&graph, &part);
        let (owner, about) = (who.uid, Owner { uid: who.uid, about: &about });
        let told = |error: BuildError| match error {
            BuildError::Refused(Refused { node, why }) => {
                faults::not_in_kernel(node.0, by.take(), &why)
            }
            BuildError::Outside { node, failure } => {
                faults::not_in_kernel(node.0, "kernel", &failure.to_string())
            }
            other => faults::not_in_kernel(0, "kernel", &other.to_string()),
        };
        if let Some((instead, running, stays)) = instead {
            let by = (about, &allows as Allows<'_>);
            let made = self.points.succeed_if(running, request, &self.machine, &stays, by);
            let (handout, waiting) = made.map_err(told)?;
            self.enter(guest, owner, waiting.running());
            self.waiting.insert(guest, Successor { waiting, instead, process });
            return Ok(handout);
        }
        let attached = self.points.attach_if(request, &self.machine, about, &allows);
        let (handout, running) = attached.map_err(told)?;
        let (at, number) = self.enter(guest, owner, &running);
        self.lines.insert(guest, Line { running, owner, at, number, process });
        Ok(handout)
    }

    /// Enters a line into the books.
    fn enter(&mut self, guest: u64, owner: u32, running: &Running) -> (Where, u32) {
        let at = place(&running.attach, owner);
        let number = running.number().unwrap_or_default();
        self.books.enter(guest, owner, (&at, number), (running.bytes, running.share.clone()));
        (at, number)
    }

    /// Removes the pending replacement of a user's line to make room for another: its client has
    /// given up, and we may not have heard so yet.
    fn give_way(&mut self, uid: u32, line: u64, tell: &dyn Fn(Done)) {
        let ours = self.lines.get(&line).is_some_and(|line| line.owner == uid);
        let waits = self.waiting.iter().find(|(_, one)| ours && one.instead == line);
        if let Some(guest) = waits.map(|(guest, _)| *guest) {
            let why = "another one is to be in the place for which it was made".to_owned();
            self.detach(guest, Some(why), tell);
        }
    }

    /// The line of the same user in whose place another one is to be, and its steps that stay.
    fn instead(&self, who: &Credentials, instead: &Instead) -> Result<Before<'_>, Fault> {
        let refused = |why: &str| Err(faults::not_in_kernel(0, "line", why));
        let line = self.lines.get(&instead.line);
        let Some(line) = line.filter(|line| line.owner == who.uid) else {
            return refused("no line of yours is there in whose place it could be");
        };
        let step = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let stays = instead.stays.iter().map(|Stay { was, is }| (step(*was), step(*is)));
        Ok((instead.line, &line.running, stays.collect()))
    }

    /// The request of a line, its ends complete.
    fn read(&self, line: &str) -> Result<Graph, Fault> {
        let (graph, mistakes) = pipeline::read(line, &Strangers);
        match mistakes.iter().find(|mistake| mistake.is_error()) {
            None => Ok(complete(graph, &Strangers).0),
            Some(mistake) => {
                let why = format!("the daemon does not read this line: {}", mistake.what);
                Err(faults::not_in_kernel(0, "line", &why))
            }
        }
    }

    /// Checks that root has opened to a user all that a part of its line needs; the error names the
    /// node and the reason.
    fn opens(
        &self,
        who: &Credentials,
        (graph, part): (&Graph, &Part),
        needs: &Needs<'_>,
    ) -> Result<(), (NodeId, String)> {
        let words = Missing { uid: who.uid, file: &self.policy.place() };
        let attach = needs.attach;
        // What somebody's own sockets exchange is theirs; where they are is for root to name.
        let is_named = attach.netns.as_ref().is_none_or(|name| !name.contains('/'));
        if attach.own && !is_named {
            let why =
                "through the daemon a name space is named as `ip netns list` does, not by a path";
            return Err((needs.source, why.to_owned()));
        }
        if !attach.own && !self.policy.opens(who, &attach.interface, attach.netns.as_deref()) {
            return Err((needs.source, words.closed(&attach.interface, attach.netns.as_deref())));
        }
        if let Share::Group(name) = &needs.share {
            match self.policy.is_in(who, name) {
                Some(true) => {}
                Some(false) => return Err((needs.source, words.not_in(name))),
                None => return Err((needs.source, words.no_group(name))),
            }
        }
        for node in &part.nodes {
            let name = graph.node(*node).name();
            if !self.policy.has(who.uid, name) {
                return Err((*node, words.not_safe(name)));
            }
        }
        Ok(())
    }

    /// Puts a line in the place of another one, which leaves.
    fn switch(&mut self, guest: u64, tell: &dyn Fn(Done)) -> Result<(), Fault> {
        let refused = |why: &str| faults::not_in_kernel(0, "kernel", why);
        let gone = || refused("the line in whose place it was to be has ended");
        let Successor { waiting, instead, process } =
            self.waiting.remove(&guest).ok_or_else(gone)?;
        let switched = match self.lines.contains_key(&instead) {
            true => waiting.switch().map_err(|why| refused(&why.to_string())),
            false => Err(gone()),
        };
        let running = switched.inspect_err(|_| self.books.leave(guest))?;
        let owner = self.lines.get(&instead).map_or(0, |line| line.owner);
        let (at, number) = (place(&running.attach, owner), running.number().unwrap_or_default());
        self.lines.insert(guest, Line { running, owner, at, number, process });
        self.detach(instead, None, tell);
        Ok(())
    }

    fn detach(&mut self, guest: u64, why: Option<String>, tell: &dyn Fn(Done)) {
        if self.waiting.remove(&guest).is_some() {
            self.books.leave(guest);
            return tell(Done::Detached { guest, ended: Box::default(), why });
        }
        let Some(line) = self.lines.remove(&guest) else { return };
        let ended = line.running.detach();
        self.books.leave(guest);
        let ended = Box::new(ended);
        tell(Done::Detached { guest, ended, why });
    }

    /// Looks what lines have cost, and ends those whose users have spent more than they may.
    fn look(&mut self, tell: &dyn Fn(Done)) {
        if !self.books.is_due() {
            return;
        }
        let shown = self.shown();
        let quota = |uid: u32| self.policy.quota(uid).kernel_ns;
        for (guest, why) in self.books.look(&shown, quota) {
            self.detach(guest, Some(why), tell);
        }
    }

    fn shown(&self) -> Vec<Seen> {
        let seen = |(attach, shown): (Watched, Shown)| {
            // Sockets are shown as their user's.
            let at = place(&attach, shown.user.unwrap_or_default());
            // At one place there may be several programs.
            let runs = |number| shown.each.iter().any(|line| line.number == number);
            let here = self.lines.iter();
            let here = here.filter(|(_, line)| line.at == at && runs(line.number));
            let lines =
                here.map(|(guest, line)| (line.number, (line.process, self.books.costs(*guest))));
            Seen { lines: lines.collect(), at, shown }
        };
        self.points.shown().into_iter().map(seen).collect()
    }
}

/// The message to a caller in another network namespace.
const ELSEWHERE: &str = "the daemon is in another network name space, where interfaces are others: \
                         start one there, or name the space by `netns=`";

/// A place as people say it; sockets as those of a user.
fn place(attach: &Watched, user: u32) -> Where {
    if attach.own {
        return (format!("sockets of {user}"), attach.netns.clone(), "both");
    }
    let side = match attach.side {
        Side::Received => "received",
        Side::Sent => "sent",
    };
    (attach.interface.clone(), attach.netns.clone(), side)
}
