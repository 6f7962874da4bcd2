//! A connected client: its messages, its answers, and its share of the daemon's time.

use super::Server;
use super::kernel::Line;
use super::registry::Entry;
use super::store::Knows;
use abi::access::Credentials;
use member::connection::{Arrived, Connection};
use member::protocol::Event;
use member::varlink::{Call, Fault, Reply};
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, OwnedFd};
use sys::watcher::{Interest, WatchEvent};

/// A connected client.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) connection: Connection,
    /// Its credentials at connect time.
    pub(super) who: Credentials,
    /// Its process number, for people.
    pub(super) process: i32,
    /// True if it is notified of paths that come and go.
    pub(super) watches: bool,
    /// The path that it has registered.
    pub(super) path: Option<Worker>,
    /// Its part in the kernel.
    pub(super) line: Line,
    /// Its knowledge of that part, according to the service manager's store.
    pub(super) kept: Option<Knows>,
    /// True if it waits for the kernel thread's answer.
    pub(super) waits_for_kernel: bool,
    /// Messages received in the meantime.
    later: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// True if it waits for room to send.
    waits: bool,
}

/// The process of a path.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) number: u32,
    /// It ends when this can be read.
    pub(super) process: OwnedFd,
    /// The socket on which it accepts connections.
    pub(super) way: Connection,
}

/// The descriptor of a client on which an event occurred.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Connection = 0,
    Process = 1,
    Way = 2,
    /// None of a guest's.
    Listener = 3,
}

/// The number by which a descriptor is watched.
pub(super) const fn number(id: u64, part: Part) -> u64 {
    id << 2 | part as u64
}

/// Splits an event number into client and descriptor.
pub(super) const fn parts(number: u64) -> (u64, Part) {
    let part = match number & 3 {
        0 => Part::Connection,
        1 => Part::Process,
        2 => Part::Way,
        _ => Part::Listener,
    };
    (number >> 2, part)
}

/// Messages of one client answered before the others get their turn.
const MESSAGES_A_TURN: usize = 8;
/// The most messages queued until the kernel thread answers.
const LATER_MAX: usize = 16;

impl Guest {
    pub(super) fn new(connection: Connection, who: Credentials, process: i32) -> Self {
        Self {
            connection,
            who,
            process,
            watches: false,
            path: None,
            line: Line::None,
            kept: None,
            waits_for_kernel: false,
            later: VecDeque::new(),
            waits: false,
        }
    }

    fn is_waiting(&self) -> bool {
        let asked = matches!(self.line, Line::Asked | Line::AskedInstead | Line::Switches);
        self.waits_for_kernel || asked
    }
}

impl Server {
    /// A guest says something, or can be told more.
    pub(super) fn hear(&mut self, id: u64, happened: WatchEvent) {
        if happened.writable {
            self.flush(id);
        }
        for _ in 0..MESSAGES_A_TURN {
            let Some(guest) = self.guests.get_mut(&id) else { return };
            match guest.connection.next_message() {
                Arrived::Nothing => return,
                Arrived::Gone => return self.leaving.push(id),
                Arrived::TooLong => {
                    self.say(id, Reply::from(&Fault::invalid("message")), Vec::new());
                    return self.leaving.push(id);
                }
                // Answers come in the order of the calls.
                Arrived::Message(..) if guest.is_waiting() && guest.later.len() >= LATER_MAX => {
                    return self.leaving.push(id);
                }
                Arrived::Message(bytes, descriptors) if guest.is_waiting() => {
                    guest.later.push_back((bytes, descriptors));
                }
                Arrived::Message(bytes, descriptors) => self.message(id, &bytes, descriptors),
            }
            if self.leaving.contains(&id) {
                return;
            }
        }
    }

    /// Answers what came while an answer was waited for.
    pub(super) fn catch_up(&mut self, id: u64) {
        while let Some(guest) = self.guests.get_mut(&id).filter(|guest| !guest.is_waiting()) {
            let Some((bytes, descriptors)) = guest.later.pop_front() else { return };
            self.message(id, &bytes, descriptors);
        }
    }

    fn message(&mut self, id: u64, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        let Ok(call) = Call::read(bytes) else {
            // Who does not speak Varlink is told so, and not listened to any more.
            self.say(id, Reply::from(&Fault::invalid("message")), Vec::new());
            return self.leaving.push(id);
        };
        let answered = self.answer(id, &call, descriptors);
        if call.oneway {
            return;
        }
        match answered {
            Ok(answer) => {
                let continues = call.more && answer.continues;
                let replies = answer.replies.len();
                for (place, (parameters, descriptors)) in answer.replies.into_iter().enumerate() {
                    let continues = continues || place + 1 < replies;
                    let reply = Reply { continues, ..Reply::new(&parameters) };
                    self.say(id, reply, descriptors);
                }
            }
            Err(fault) => self.say(id, Reply::from(&fault), Vec::new()),
        }
    }

    /// Tells a guest something; who does not take what it asked for is let go.
    pub(super) fn say(&mut self, id: u64, reply: Reply, descriptors: Vec<OwnedFd>) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if guest.connection.say(reply.text(), descriptors).is_err() {
            return self.leaving.push(id);
        }
        self.wait_for_room(id);
    }

    fn flush(&mut self, id: u64) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        if guest.connection.flush().is_err() {
            return self.leaving.push(id);
        }
        self.wait_for_room(id);
    }

    /// Watches for room where something is unsent.
    fn wait_for_room(&mut self, id: u64) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let waits = guest.connection.has_unsent();
        if waits == guest.waits {
            return;
        }
        guest.waits = waits;
        let interest = if waits { Interest::ReadWrite } else { Interest::Read };
        let number = number(id, Part::Connection);
        if self.watcher.change(guest.connection.as_fd(), number, interest).is_err() {
            self.leaving.push(id);
        }
    }

    /// The way to a process: it says nothing there, and when it is gone so is the path.
    pub(super) fn look_at_way(&mut self, id: u64) {
        let Some(guest) = self.guests.get_mut(&id) else { return };
        let Some(path) = &mut guest.path else { return };
        for _ in 0..MESSAGES_A_TURN {
            match path.way.next_message() {
                Arrived::Nothing => return,
                Arrived::Message(..) => {}
                Arrived::TooLong | Arrived::Gone => return self.leaving.push(id),
            }
        }
    }

    /// Tells those who watch that a path came or went.
    pub(super) fn announce(&mut self, event: &str, entry: &Entry) {
        let watches = self.guests.iter().filter(|(_, guest)| guest.watches);
        let told: Vec<_> = watches
            .filter_map(|(id, guest)| Some((*id, entry.shown(guest.who.uid, &self.policy)?)))
            .collect();
        for (id, path) in told {
            let event = Event { event: event.to_owned(), path };
            let reply = Reply { continues: true, ..Reply::new(&event) };
            self.say(id, reply, Vec::new());
        }
    }
}
