//! Receipt of clients' messages and sending of replies. Limits keep clients from delaying each
//! other.

use super::client::{DescriptorKind, encode_event_number};
use super::event_loop::Server;
use super::registry::PathEntry;
use member::connection::Received;
use member::protocol::PathListEvent;
use member::varlink::{Call, Fault, Reply};
use std::os::fd::OwnedFd;
use sys::descriptor_closer::ForeignDescriptor;
use sys::watcher::WatchEvent;

/// Maximum number of messages handled per client in one event.
const MESSAGES_PER_EVENT: usize = 8;
/// Maximum number of messages that a client may queue while a reply is outstanding.
const DEFERRED_MESSAGES_MAX: usize = 16;

impl Server {
    /// Handles an event on a client's connection: sends queued replies, and handles or defers up to
    /// [`MESSAGES_PER_EVENT`] messages. Disconnects a client that has hung up, sends too long a
    /// message, or makes too many calls while it waits.
    pub(super) fn handle_connection_event(&mut self, id: u64, event: WatchEvent) {
        if event.writable {
            self.flush_replies(id);
        }
        for _ in 0..MESSAGES_PER_EVENT {
            let Some(client) = self.clients.get_mut(&id) else { return };
            match client.connection.next_message() {
                Received::Pending => return,
                Received::Closed => return self.pending_disconnects.push(id),
                Received::TooLong => {
                    self.send_reply(
                        id,
                        Reply::from(&Fault::invalid_parameter("message")),
                        Vec::new(),
                    );
                    return self.pending_disconnects.push(id);
                }
                // Replies must be in the order of the calls.
                Received::Message(..)
                    if client.is_waiting_for_kernel()
                        && client.deferred.len() >= DEFERRED_MESSAGES_MAX =>
                {
                    return self.pending_disconnects.push(id);
                }
                Received::Message(bytes, descriptors) if client.is_waiting_for_kernel() => {
                    client.deferred.push_back((bytes, descriptors));
                }
                Received::Message(bytes, descriptors) => {
                    self.handle_message(id, &bytes, descriptors)
                }
            }
            if self.pending_disconnects.contains(&id) {
                return;
            }
        }
    }

    /// Handles the messages that a client sent while it waited for the kernel thread. Stops when a
    /// message makes the client wait for the thread again.
    pub(super) fn handle_deferred_messages(&mut self, id: u64) {
        while let Some(client) =
            self.clients.get_mut(&id).filter(|client| !client.is_waiting_for_kernel())
        {
            let Some((bytes, descriptors)) = client.deferred.pop_front() else { return };
            self.handle_message(id, &bytes, descriptors);
        }
    }

    fn handle_message(&mut self, id: u64, bytes: &[u8], descriptors: Vec<ForeignDescriptor>) {
        let Ok(call) = Call::read(bytes) else {
            // A peer that does not speak Varlink receives one error and is disconnected.
            self.send_reply(id, Reply::from(&Fault::invalid_parameter("message")), Vec::new());
            return self.pending_disconnects.push(id);
        };
        let answered = self.call_method(id, &call, descriptors);
        if let Err(fault) = &answered {
            self.log_refusal(id, &call.method, fault);
        }
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
                    self.send_reply(id, reply, descriptors);
                }
            }
            Err(fault) => self.send_reply(id, Reply::from(&fault), Vec::new()),
        }
    }

    /// Queues a reply. Disconnects a client that reads its replies too slowly.
    pub(super) fn send_reply(&mut self, id: u64, reply: Reply, descriptors: Vec<OwnedFd>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let number = encode_event_number(id, DescriptorKind::Connection);
        let connection = &mut client.connection;
        let sent = connection.send(reply.to_bytes(), descriptors);
        if sent.and_then(|()| connection.watch_writable(&self.watcher, number)).is_err() {
            self.pending_disconnects.push(id);
        }
    }

    fn flush_replies(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let number = encode_event_number(id, DescriptorKind::Connection);
        let connection = &mut client.connection;
        let flushed = connection.flush();
        if flushed.and_then(|()| connection.watch_writable(&self.watcher, number)).is_err() {
            self.pending_disconnects.push(id);
        }
    }

    /// Reads and discards the messages that the process of a path has sent through its admission
    /// socket. If the process has closed the socket or has sent a message that is too long,
    /// disconnects the client that has registered the path.
    pub(super) fn drain_admission_socket(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let Some(path) = &mut client.path else { return };
        for _ in 0..MESSAGES_PER_EVENT {
            match path.admissions.next_message() {
                Received::Pending => return,
                Received::Message(..) => {}
                Received::TooLong | Received::Closed => return self.pending_disconnects.push(id),
            }
        }
    }

    /// Notifies clients that a path was registered (`came`), changed or removed (`went`). The
    /// clients are those that watch the paths and may see this path.
    pub(super) fn announce_path_event(&mut self, event: &str, entry: &PathEntry) {
        let watches = self.clients.iter().filter(|(_, client)| client.watches);
        let visible: Vec<_> = watches
            .filter_map(|(id, client)| {
                Some((*id, entry.status(client.credentials.uid, &self.policy)?))
            })
            .collect();
        for (id, path) in visible {
            let event = PathListEvent { event: event.to_owned(), path };
            let reply = Reply { continues: true, ..Reply::new(&event) };
            self.send_reply(id, reply, Vec::new());
        }
    }
}
