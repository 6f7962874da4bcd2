//! The methods of `io.streamline`.

use super::guest::{self, Guest, Part, Worker};
use super::kernel::Seen;
use super::registry::Entry;
use super::{Server, seconds, store};
use crate::policy::Seen as Sees;
use engine::kernel::point::{ShownLine, ShownRing, Whose};
use member::connection::Connection;
use member::faults;
use member::place::PACKETS;
use member::protocol::{
    About, Admit, Allowed, Amount, Connect, Connected, Event, InKernel, KernelRing, NewLine,
    Number, Path, Paths, Program, Quota, Register, Sharing, Step,
};
use member::varlink::{Call, Fault, REPLY_MAX, interface};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::os::fd::{AsFd as _, OwnedFd};
use sys::local_socket::{self, Framing};
use sys::steps::Resource;
use sys::watcher::Interest;

/// An answer: replies and their descriptors.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) replies: Vec<(Value, Vec<OwnedFd>)>,
    /// True if more replies follow later.
    pub(super) continues: bool,
}

/// The most bytes of a path as text, without its line: a name and a log.
const PATH_BYTES: usize = 4096 + 512;

/// A method that takes nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Answer {
    pub(super) fn one(parameters: &impl Serialize) -> Self {
        Self::with(parameters, Vec::new())
    }

    /// The reply comes when the kernel's thread has done what it needs.
    pub(super) const fn later() -> Self {
        Self { replies: Vec::new(), continues: true }
    }

    fn with(parameters: &impl Serialize, descriptors: Vec<OwnedFd>) -> Self {
        let value = serde_json::to_value(parameters).unwrap_or_default();
        Self { replies: vec![(value, descriptors)], continues: false }
    }
}

impl Server {
    pub(super) fn answer(
        &mut self,
        id: u64,
        call: &Call,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Fault> {
        let (named, method) = call.parts();
        if named == interface::SERVICE.name {
            return interface::service(call, interface::DAEMON).map(|value| Answer::one(&value));
        }
        if named != interface::DAEMON.name {
            return Err(Fault::interface(named));
        }
        if call.upgrade {
            return Err(Fault::invalid("upgrade"));
        }
        let guest = self.guests.get(&id).ok_or_else(Fault::denied)?;
        match method {
            "About" => call.take().map(|Nothing {}| Answer::one(&self.about())),
            "List" => {
                let Nothing {} = call.take()?;
                self.list(guest, call.more)
            }
            "Allowed" => call.take().map(|Nothing {}| Answer::one(&self.allowed(guest))),
            "Watch" if !call.more => Err(Fault::expected_more()),
            "Watch" => {
                let Nothing {} = call.take()?;
                self.watch(id)
            }
            "Register" => {
                let wanted = call.take()?;
                self.register(id, wanted, descriptors)
            }
            "Changed" => {
                let NewLine { line } = call.take()?;
                let number = guest.path.as_ref().map(|path| path.number);
                let number = number.ok_or_else(Fault::denied)?;
                self.registry.change(number, line)?.into_iter().for_each(store::change);
                Ok(Answer::one(&serde_json::json!({})))
            }
            "Attach" => {
                let asked = call.take()?;
                self.attach(id, asked, call.more)
            }
            "Switch" => {
                let Nothing {} = call.take()?;
                self.switch(id)
            }
            "Detach" => {
                let Nothing {} = call.take()?;
                self.detach(id)
            }
            "Sharing" => {
                let Nothing {} = call.take()?;
                self.sharing(id)
            }
            "Connect" => {
                let Connect { path } = call.take()?;
                self.connect(id, &path)
            }
            _ => Err(Fault::method(&call.method)),
        }
    }

    fn about(&self) -> About {
        About {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process: std::process::id(),
            uid: sys::process::identity().0,
            started: self.started,
            policy: self.policy.file.as_ref().map(|file| file.display().to_string()),
        }
    }

    /// All paths; in several replies where the caller understands more than one.
    fn list(&self, guest: &Guest, more: bool) -> Result<Answer, Fault> {
        let shown = |entry: &Entry| entry.shown(guest.who.uid, &self.policy);
        let mut rest: Vec<Path> = self.registry.all().filter_map(shown).collect();
        let long = |path: &Path| path.line.as_ref().map_or(0, String::len) + PATH_BYTES;
        if !more {
            let fits = rest.iter().map(long).sum::<usize>() < REPLY_MAX;
            return if fits {
                Ok(Answer::one(&Paths { paths: rest }))
            } else {
                Err(Fault::expected_more())
            };
        }
        let mut replies = Vec::new();
        while !rest.is_empty() || replies.is_empty() {
            let mut bytes = 0;
            let fits = |path: &&Path| {
                bytes += long(path);
                bytes < REPLY_MAX
            };
            let many = rest.iter().take_while(fits).count().max(1);
            let later = rest.split_off(many.min(rest.len()));
            let paths = std::mem::replace(&mut rest, later);
            replies.push((serde_json::to_value(Paths { paths }).unwrap_or_default(), Vec::new()));
        }
        Ok(Answer { replies, continues: false })
    }

    fn allowed(&self, guest: &Guest) -> Allowed {
        let uid = guest.who.uid;
        let used = Quota {
            paths: Some(self.registry.of_user(uid)),
            connections: self.per_user.get(&uid).copied(),
            ..self.kernel.used(uid)
        };
        Allowed {
            everything: uid == 0,
            quota: self.policy.quota(uid),
            used,
            filters: self.policy.filters.clone(),
            interfaces: self.policy.interfaces(&guest.who),
            kernel: self.kernel.open.clone().ok(),
            closed: self.kernel.open.clone().err(),
        }
    }

    /// Describes what runs in the kernel, as far as this user may know of it.
    pub(super) fn told(&self, uid: u32, seen: &[Seen]) -> Sharing {
        let free = self.policy.is_free(uid);
        let path_of = |process: i32| {
            let mut all = self.registry.all();
            all.find(|entry| entry.process == process).map(|entry| entry.number)
        };
        let program = |seen: &Seen| {
            let (shown, (interface, netns, side)) = (&seen.shown, seen.at.clone());
            let ours = |owner: u32| free || owner == uid;
            let known = |owner: u32| ours(owner) || self.policy.others_see != Sees::Nothing;
            let line = |line: &ShownLine| {
                let of_guest = seen.lines.get(&line.number);
                let ours = ours(line.owner);
                InKernel {
                    path: of_guest.and_then(|(process, _)| path_of(*process)),
                    uid: line.owner,
                    taken: ours.then_some(line.taken.blocks),
                    given: ours
                        .then_some(Amount { blocks: line.given.blocks, bytes: line.given.bytes }),
                    lost: ours.then_some(line.lost),
                    kernel_ns: of_guest.filter(|_| ours).map(|(_, ns)| *ns),
                }
            };
            let step = |(name, lines, blocks): &(String, usize, u64)| Step {
                name: name.clone(),
                lines: *lines,
                blocks: *blocks,
            };
            let mut steps: Vec<Step> = Vec::new();
            if free {
                steps.extend(shown.steps.iter().map(step));
            }
            for line in shown.each.iter().filter(|line| !free && line.owner == uid) {
                for step in line.steps.iter().map(step) {
                    if !steps.contains(&step) {
                        steps.push(step);
                    }
                }
            }
            let rings = shown.rings.iter();
            let sees_all = free || self.policy.others_see != Sees::Nothing;
            let rings = rings.filter(|(whose, ..)| match whose {
                Whose::User(owner) => known(*owner),
                Whose::Group(_) | Whose::World => sees_all,
            });
            let ring = |(whose, bytes, lines): &ShownRing| {
                let (uid, group) = match whose {
                    Whose::User(uid) => (Some(*uid), None),
                    Whose::Group(name) => (None, Some(name.to_string())),
                    Whose::World => (None, None),
                };
                KernelRing { uid, group, bytes: *bytes, lines: *lines }
            };
            Program {
                interface,
                netns,
                side: side.to_owned(),
                program: shown.program,
                replaced: shown.replaced,
                frames: shown.frames,
                lines: shown.each.iter().filter(|line| known(line.owner)).map(line).collect(),
                steps,
                rings: rings.map(ring).collect(),
            }
        };
        let programs = seen.iter().map(program);
        // Of what runs for others alone not even that is told, where others see nothing.
        Sharing { programs: programs.filter(|told| free || !told.lines.is_empty()).collect() }
    }

    fn watch(&mut self, id: u64) -> Result<Answer, Fault> {
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        guest.watches = true;
        let uid = guest.who.uid;
        let shown = self.registry.all().filter_map(|entry| entry.shown(uid, &self.policy));
        let event = |path| Event { event: "present".to_owned(), path };
        let value = |event| serde_json::to_value(event).unwrap_or_default();
        let replies = shown.map(|path| (value(event(path)), Vec::new())).collect();
        Ok(Answer { replies, continues: true })
    }

    fn register(
        &mut self,
        id: u64,
        wanted: Register,
        descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Fault> {
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        if guest.path.is_some() {
            return Err(faults::refused("path", "this connection has one already"));
        }
        let untaken = |error: sys::Error| faults::refused("path", &error.to_string());
        self.steps.take(Resource::Descriptor, "the process of a path").map_err(untaken)?;
        let way = way_to(guest, descriptors)?;
        let gone = |_| faults::refused("process", "it has ended");
        let process = local_socket::peer_process(guest.connection.as_fd()).map_err(gone)?;
        let who = (guest.who.uid, guest.process);
        let entry = self.enter(id, who, wanted)?;
        let number = entry.number;
        if let Err(error) = self.steps.take(Resource::Entry, "a path") {
            self.registry.remove(number);
            return Err(untaken(error));
        }
        let guest = self.guests.get_mut(&id).ok_or_else(Fault::denied)?;
        let watched = [(process.as_fd(), Part::Process), (way.as_fd(), Part::Way)];
        for (descriptor, part) in watched {
            if self.watcher.watch(descriptor, guest::number(id, part), Interest::Read).is_err() {
                self.registry.remove(number);
                return Err(faults::refused("path", "the daemon cannot watch it"));
            }
        }
        store::keep(&entry, guest.connection.as_fd(), way.as_fd());
        guest.path = Some(Worker { number, process, way });
        self.steps.checkpoint("a path is registered");
        self.announce("came", &entry);
        Ok(Answer::one(&Number { number }))
    }

    /// Takes a path up. What one that has just ended had is free, whoever is heard first.
    fn enter(&mut self, id: u64, who: (u32, i32), wanted: Register) -> Result<Entry, Fault> {
        let paths_max = self.policy.quota(who.0).paths;
        let entered = self.registry.add(who, wanted.clone(), paths_max, seconds()).cloned();
        entered.or_else(|_| {
            self.sweep(who.0, id);
            self.registry.add(who, wanted, paths_max, seconds()).cloned()
        })
    }

    fn connect(&mut self, id: u64, wanted: &str) -> Result<Answer, Fault> {
        let guest = self.guests.get(&id).ok_or_else(Fault::denied)?;
        if guest.connection.form() != Framing::Packets {
            return Err(faults::needs_descriptors(PACKETS));
        }
        let uid = guest.who.uid;
        let entry = self.registry.find(wanted, uid, &self.policy)?;
        if !entry.is_controlled_by(uid) {
            return Err(faults::not_yours(wanted, entry.uid));
        }
        let connected = Connected { number: entry.number, uid: entry.uid };
        let number = entry.number;
        let of_path =
            |guest: &&mut Guest| guest.path.as_ref().is_some_and(|path| path.number == number);
        let worker = self.guests.values_mut().find(of_path);
        let worker = worker.and_then(|guest| guest.path.as_mut());
        // Who answers for it hangs up before its process is seen to end: it has gone then.
        let gone = || faults::no_such_path(wanted);
        let worker = worker.ok_or_else(gone)?;
        // One that has not taken the last is not sent another.
        worker.way.flush().map_err(|_| gone())?;
        if worker.way.has_unsent() {
            return Err(faults::busy(wanted));
        }
        let busy = |_| faults::busy(wanted);
        let (near, far) = sys::descriptor::pair().map_err(busy)?;
        let process = worker.process.try_clone().map_err(|_| faults::busy(wanted))?;
        let admit = Call { oneway: true, ..Call::new("io.streamline.path.Admit", &Admit { uid }) };
        // The kernel may refuse a message for other reasons, too.
        let said = worker.way.say(admit.text(), vec![far]);
        match said {
            Err(_) if local_socket::is_gone(&worker.way) => Err(gone()),
            Ok(()) if !worker.way.has_unsent() => Ok(Answer::with(&connected, vec![near, process])),
            _ => Err(faults::busy(wanted)),
        }
    }
}

/// Returns the one descriptor that comes with a path: the socket on which its process accepts
/// connections.
fn way_to(guest: &Guest, descriptors: Vec<OwnedFd>) -> Result<Connection, Fault> {
    if guest.connection.form() != Framing::Packets {
        return Err(faults::needs_descriptors(PACKETS));
    }
    let mut descriptors = descriptors.into_iter();
    match (descriptors.next(), descriptors.next()) {
        (Some(one), None) if sys::descriptor::is_packet_socket(&one) => {
            Ok(Connection::new(one, Framing::Packets))
        }
        _ => Err(faults::refused(
            "descriptor",
            "with a path comes one end of a pair of sockets that keep messages apart",
        )),
    }
}
