//! The thread that answers for a path.

use super::{Registered, SEEK, Shared, Tie, counters, spaces, taps};
use crate::client::Client;
use crate::connection::{Arrived, Connection};
use crate::faults;
use crate::protocol::{Admit, Change, Changed, Count, Described, Ended, Follow, Followed};
use crate::varlink::{Call, Fault, REPLY_MAX, Reply, interface};
use engine::live::Live;
use pipeline::edit::Edit;
use pipeline::keep::Keep;
use pipeline::plan::Plan;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use sys::local_socket::Framing;
use sys::watcher::{Interest, WatchEvent, Watcher};

/// Answers for a path.
#[derive(Debug)]
pub(super) struct Answering {
    shared: Arc<Shared>,
    path: Registered,
    about: Described,
    /// Number of changes of the path when that was written.
    changes: u64,
    lives: Vec<Live>,
    watcher: Watcher,
    /// The tie to a daemon; `None` if it has ended.
    tie: Option<Tie>,
    /// The directory of that daemon.
    directory: PathBuf,
    /// Time of the next search for a daemon.
    seek: u64,
    callers: BTreeMap<u64, Caller>,
    next: u64,
    begin: u64,
    /// True if time is measured because a client watches.
    measures: bool,
}

/// An accepted caller.
#[derive(Debug)]
struct Caller {
    connection: Connection,
    follows: Option<Follows>,
    waits: bool,
    /// Its tap, which ends with it.
    tap: Option<runtime::space::taps::Tap>,
}

/// A caller that is sent updates.
#[derive(Clone, Copy, Debug)]
struct Follows {
    every: u64,
    next: u64,
}

/// Numbers by which descriptors are watched; callers follow.
const TURN: u64 = 0;
const DAEMON: u64 = 1;
const WAY: u64 = 2;
const FIRST: u64 = 16;
/// The most callers.
const CALLERS_MAX: usize = 64;
/// Messages of one caller answered in a row.
const MESSAGES_A_TURN: usize = 4;
/// The timeout for counters.
const COUNTED: Duration = Duration::from_millis(200);
/// The timeout for spaces to come to a boundary between two blocks: on a busy machine they may not
/// have run for a while. Clients are more patient ([`crate::client::LONG`]).
const SWITCHED: Duration = Duration::from_secs(10);
/// The default interval of updates, and the shortest, in ms.
const EVERY_MS: (u64, u64) = (1000, 50);
/// The time that followers get to take the last update.
const LAST_WORD: Duration = Duration::from_millis(500);

/// A method that takes nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl Answering {
    pub(super) fn new(
        shared: Arc<Shared>,
        path: Registered,
        about: Described,
        lives: Vec<Live>,
        (directory, tie): (PathBuf, Option<Tie>),
    ) -> sys::Result<Self> {
        let watcher = Watcher::new()?;
        watcher.watch(&shared.turn, TURN, Interest::Read)?;
        let mut answering = Self {
            shared,
            path,
            about,
            changes: 0,
            lives,
            watcher,
            tie: None,
            directory,
            seek: 0,
            callers: BTreeMap::new(),
            next: FIRST,
            begin: sys::clock::monotonic(),
            measures: false,
        };
        tie.map(|tie| answering.be_tied(tie)).transpose()?;
        Ok(answering)
    }

    pub(super) fn run(mut self) {
        loop {
            if let Some(ended) = self.ended() {
                return self.finish(&ended);
            }
            for happened in self.watcher.wait(self.limit()) {
                match happened.number {
                    TURN => drop(self.shared.turn.clear()),
                    DAEMON => self.lose_tie(),
                    WAY => self.let_in(),
                    id => self.hear(id, happened),
                }
            }
            self.tell_followers();
            self.seek_daemon();
            self.measure();
        }
    }

    fn ended(&self) -> Option<Ended> {
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the time until the next task.
    fn limit(&self) -> Option<Duration> {
        let follows = self.callers.values().filter_map(|caller| caller.follows);
        let next = follows.map(|follows| follows.next);
        let next = next.chain(self.tie.is_none().then_some(self.seek)).min()?;
        Some(Duration::from_nanos(next.saturating_sub(sys::clock::monotonic())))
    }

    /// Takes connections from the daemon.
    fn let_in(&mut self) {
        loop {
            let Some(tie) = &mut self.tie else { return };
            let (bytes, descriptors) = match tie.way.next_message() {
                Arrived::Nothing => return,
                Arrived::TooLong | Arrived::Gone => return self.lose_tie(),
                Arrived::Message(bytes, descriptors) => (bytes, descriptors),
            };
            let Ok(call) = Call::read(&bytes) else { return self.lose_tie() };
            let admits = call.method == "io.streamline.path.Admit";
            if admits && call.take::<Admit>().is_ok() && self.callers.len() < CALLERS_MAX {
                // Who is not let in sees that it is hung up on.
                let _ = descriptors.into_iter().next().map(|socket| self.admit(socket));
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd) -> sys::Result<()> {
        let id = self.next;
        self.next += 1;
        let connection = Connection::new(socket, Framing::Packets);
        self.watcher.watch(&connection, id, Interest::Read)?;
        self.callers.insert(id, Caller { connection, follows: None, waits: false, tap: None });
        Ok(())
    }

    /// A caller says something, or can be told more.
    fn hear(&mut self, id: u64, happened: WatchEvent) {
        if happened.writable {
            self.flush(id);
        }
        for _ in 0..MESSAGES_A_TURN {
            let Some(caller) = self.callers.get_mut(&id) else { return };
            match caller.connection.next_message() {
                Arrived::Nothing => return,
                Arrived::TooLong | Arrived::Gone => return self.drop_caller(id),
                Arrived::Message(bytes, _) => self.message(id, &bytes),
            }
        }
    }

    fn message(&mut self, id: u64, bytes: &[u8]) {
        let Ok(call) = Call::read(bytes) else { return self.drop_caller(id) };
        let reply = match self.answer(id, &call) {
            Ok(reply) => reply,
            Err(fault) => Some(Reply::from(&fault)),
        };
        if let Some(reply) = reply.filter(|_| !call.oneway) {
            self.say(id, &reply);
        }
    }

    /// The reply, unless replies come by and by.
    fn answer(&mut self, id: u64, call: &Call) -> Result<Option<Reply>, Fault> {
        fn one(value: &impl Serialize) -> Result<Option<Reply>, Fault> {
            Ok(Some(Reply::new(value)))
        }
        let (named, method) = call.parts();
        if named == interface::SERVICE.name {
            return one(&interface::service(call, interface::PATH)?);
        }
        if named != interface::PATH.name {
            return Err(Fault::interface(named));
        }
        match method {
            "Describe" => {
                let Nothing {} = call.take()?;
                self.look_again();
                one(&self.about)
            }
            "Count" => {
                let Nothing {} = call.take()?;
                one(&Count { counters: self.counters() })
            }
            "Change" => {
                let Change { words } = call.take()?;
                one(&self.change(&words)?)
            }
            "Stop" => {
                let Nothing {} = call.take()?;
                self.shared.stop.notify();
                one(&serde_json::json!({}))
            }
            "Tap" => {
                let wanted = call.take()?;
                let (tap, began, pipe) = taps::begin(&self.lives, &wanted, SWITCHED)?;
                if let Some(caller) = self.callers.get_mut(&id) {
                    caller.tap = Some(tap);
                }
                self.say_with(id, &Reply::new(&began), vec![pipe]);
                Ok(None)
            }
            "Tapped" => {
                let Nothing {} = call.take()?;
                let tap = self.callers.get(&id).and_then(|caller| caller.tap.as_ref());
                one(&taps::told(tap)?)
            }
            "Follow" if !call.more => Err(Fault::expected_more()),
            "Follow" => {
                let Follow { every_ms } = call.take()?;
                let every = every_ms.unwrap_or(EVERY_MS.0).clamp(EVERY_MS.1, 3_600_000);
                let now = sys::clock::monotonic();
                if let Some(caller) = self.callers.get_mut(&id) {
                    caller.follows = Some(Follows { every: every * 1_000_000, next: now });
                }
                Ok(None)
            }
            // The daemon alone lets people in, and not this way.
            "Admit" => Err(Fault::denied()),
            _ => Err(Fault::method(&call.method)),
        }
    }

    /// Edits the line. Of several parts that know nothing of each other none can be edited yet.
    fn change(&mut self, words: &[String]) -> Result<Changed, Fault> {
        let refused = |why: &dyn std::fmt::Display| faults::unchanged(&why.to_string());
        if let Some(keep) = Keep::parse(words).map_err(|why| refused(&why))? {
            let said = self.keep(&keep).map_err(|why| refused(&why))?;
            return Ok(Changed { said, line: self.path.line.clone() });
        }
        if let Some(joint) = self.path.joint.clone() {
            let edit = Edit::parse(words).map_err(|why| refused(&why))?;
            let text = edit.apply(&self.path.line).map_err(|why| refused(&why))?.text;
            let (said, plan) = joint.change(&edit).map_err(|why| refused(&why))?;
            self.looks_so(&plan);
            return Ok(self.changed(said, text));
        }
        let [live] = self.lives.as_slice() else {
            return Err(refused(&"it has several parts that nothing joins"));
        };
        let edit = Edit::parse(words).map_err(|why| refused(&why))?;
        let mut machine = engine::machine::look();
        if let Some(kernel) = &self.path.kernel {
            machine.kernel.clone_from(kernel);
        }
        let switched = engine::change::change(live, &edit, &machine, SWITCHED);
        let switched = switched.map_err(|why| refused(&why))?;
        self.look_again();
        let said = switched.to_string();
        Ok(self.changed(said, switched.text))
    }

    /// Has a space run on a processor.
    fn keep(&self, keep: &Keep) -> Result<String, String> {
        match &self.path.joint {
            Some(joint) => spaces::keep_engine(&joint.processes(), keep),
            None => spaces::keep(&self.lives, keep, (&self.path.nodes, COUNTED)),
        }
    }

    /// Another line runs.
    fn changed(&mut self, said: String, line: String) -> Changed {
        self.about.line.clone_from(&line);
        self.path.line.clone_from(&line);
        if let Some(tie) = &self.tie {
            // A daemon that has just ended hears it when the path registers again.
            let _ = tie.client.changed(&line);
        }
        Changed { said, line }
    }

    /// Records the current place of every node.
    fn looks_so(&mut self, plan: &Plan) {
        let now = Registered::new(&self.path.line, plan);
        (self.about.nodes, self.about.links) = (now.nodes.clone(), now.links.clone());
        (self.path.nodes, self.path.links) = (now.nodes, now.links);
    }

    /// Reads the current places if the path has changed, which it may do by itself.
    fn look_again(&mut self) {
        let Some(live) = self.lives.first() else { return };
        let changes = live.changes();
        if std::mem::replace(&mut self.changes, changes) == changes {
            return;
        }
        if let Some(plan) = live.plan() {
            self.looks_so(&plan);
        }
    }

    fn counters(&mut self) -> crate::protocol::Counters {
        self.look_again();
        let elapsed = sys::clock::monotonic().saturating_sub(self.begin);
        match &self.path.joint {
            Some(joint) => counters::of_joint(&**joint, &self.path.nodes, elapsed),
            None => {
                let plan = (self.path.nodes.as_slice(), self.path.links.as_slice());
                counters::counters(&self.lives, plan, elapsed, COUNTED)
            }
        }
    }

    fn tell_followers(&mut self) {
        let now = sys::clock::monotonic();
        let due = |caller: &Caller| caller.follows.is_some_and(|follows| follows.next <= now);
        let ids: Vec<u64> =
            self.callers.iter().filter(|(_, caller)| due(caller)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let followed = Followed { counters: Some(self.counters()), ended: None };
        let reply = Reply { continues: true, ..Reply::new(&followed) };
        for id in ids {
            if let Some(follows) = self.callers.get_mut(&id).and_then(|c| c.follows.as_mut()) {
                // Who comes late does not catch up.
                follows.next = (follows.next + follows.every).max(now);
            }
            self.say(id, &reply);
        }
    }

    /// Tells a caller something; who does not take what it asked for is let go.
    fn say(&mut self, id: u64, reply: &Reply) {
        self.say_with(id, reply, Vec::new());
    }

    fn say_with(&mut self, id: u64, reply: &Reply, descriptors: Vec<OwnedFd>) {
        let Some(caller) = self.callers.get_mut(&id) else { return };
        let mut text = reply.text();
        if text.len() > REPLY_MAX {
            text = Reply::from(&Fault::invalid("the path: it is too large to be told")).text();
        }
        if caller.connection.say(text, descriptors).is_err() {
            return self.drop_caller(id);
        }
        self.wait_for_room(id);
    }

    fn flush(&mut self, id: u64) {
        let Some(caller) = self.callers.get_mut(&id) else { return };
        if caller.connection.flush().is_err() {
            return self.drop_caller(id);
        }
        self.wait_for_room(id);
    }

    fn wait_for_room(&mut self, id: u64) {
        let Some(caller) = self.callers.get_mut(&id) else { return };
        let waits = caller.connection.has_unsent();
        if waits != caller.waits {
            caller.waits = waits;
            let interest = if waits { Interest::ReadWrite } else { Interest::Read };
            if self.watcher.change(&caller.connection, id, interest).is_err() {
                self.drop_caller(id);
            }
        }
    }

    fn drop_caller(&mut self, id: u64) {
        if let Some(caller) = self.callers.remove(&id) {
            // The daemon made this socket, and may have a copy for a moment.
            let _ = self.watcher.forget(&caller.connection);
        }
    }

    /// Measures time in the filters while somebody looks.
    fn measure(&mut self) {
        let wanted = !self.callers.is_empty();
        if wanted != self.measures && !self.path.timed {
            self.measures = wanted;
            self.lives.iter().for_each(|live| live.measure_time(wanted, COUNTED));
        }
    }

    fn be_tied(&mut self, tie: Tie) -> sys::Result<()> {
        self.watcher.watch(&tie.client, DAEMON, Interest::Read)?;
        self.watcher.watch(&tie.way, WAY, Interest::Read)?;
        self.about.number = tie.number;
        self.tie = Some(tie);
        Ok(())
    }

    /// The daemon has ended.
    fn lose_tie(&mut self) {
        let Some(tie) = self.tie.take() else { return };
        for descriptor in [tie.client.as_fd(), tie.way.as_fd()] {
            // What is closed in a moment need not be forgotten first, if nobody else has it.
            let _ = self.watcher.forget(descriptor);
        }
        self.seek = sys::clock::monotonic();
    }

    /// Registers with another daemon, if one has come.
    fn seek_daemon(&mut self) {
        let now = sys::clock::monotonic();
        if self.tie.is_some() || now < self.seek {
            return;
        }
        let wait = u64::try_from(SEEK.as_nanos()).unwrap_or(u64::MAX);
        self.seek = now.saturating_add(wait);
        // Numbers begin with 1: who was never registered has none.
        let number = Some(self.about.number).filter(|number| *number > 0);
        let register = self.path.register(number, self.about.started);
        let client = Client::at(&self.directory).or_else(|_| Client::find(None));
        let tie = client.and_then(|client| Tie::new(client, &register));
        match tie.map(|tie| self.be_tied(tie)) {
            // Whatever it is, the next try may find it better.
            Ok(_) | Err(_) => {}
        }
    }

    /// Tells all who follow how it ended.
    fn finish(mut self, ended: &Ended) {
        // Who has come or asked already is told, too.
        self.let_in();
        for id in self.callers.keys().copied().collect::<Vec<_>>() {
            let readable = true;
            self.hear(id, WatchEvent { number: id, readable, writable: false, gone: false });
        }
        let counters = Some(self.counters());
        let reply = Reply::new(&Followed { counters, ended: Some(ended.clone()) });
        let follow = self.callers.iter().filter(|(_, caller)| caller.follows.is_some());
        let ids: Vec<u64> = follow.map(|(id, _)| *id).collect();
        for id in ids {
            self.say(id, &reply);
        }
        let deadline = sys::clock::monotonic() + LAST_WORD.as_nanos() as u64;
        while self.callers.values().any(|caller| caller.connection.has_unsent()) {
            let now = sys::clock::monotonic();
            if now >= deadline {
                return;
            }
            for happened in self.watcher.wait(Some(Duration::from_nanos(deadline - now))) {
                match happened.number {
                    TURN => drop(self.shared.turn.clear()),
                    id if happened.gone => self.drop_caller(id),
                    id if happened.writable => self.flush(id),
                    id => self.drop_caller(id),
                }
            }
        }
    }
}
