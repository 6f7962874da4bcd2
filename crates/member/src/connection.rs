//! The server's end of a connection between a client and the daemon or a path. Receives messages
//! and sends replies without ever blocking on the peer. (RELIABILITY T8, T12)
//!
//! The memory that a peer can occupy is bounded: one partial message, and [`UNSENT_BYTES_MAX`]
//! bytes of unsent replies. A peer that reads its replies too slowly is disconnected. The server
//! always reads incoming data promptly, so no descriptor of the peer stays in the receive queue,
//! and every hangup is detected. Another thread ([`sys::descriptor_closer`]) closes the received
//! descriptors that are not used, and the socket. A peer that sends more descriptors while its
//! earlier descriptors wait to be closed is disconnected.

use crate::receive_buffer::with_receive_buffer;
use crate::varlink::MESSAGE_BYTES_MAX;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::descriptor_closer::{self, ForeignDescriptor};
use sys::local_socket::{self, Framing};
use sys::watcher::{EpollWatcher, EventInterest};

/// Maximum number of bytes queued for sending, per connection.
pub const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Maximum number of descriptors queued for sending, per connection.
const UNSENT_DESCRIPTORS_MAX: usize = 16;

/// The server's end of a connection to a peer, on a non-blocking socket.
#[derive(Debug)]
pub struct Connection {
    socket: ForeignDescriptor,
    framing: Framing,
    /// Received beginning of an incomplete message; always empty on a packet socket.
    partial: Vec<u8>,
    /// Number of leading bytes of `partial` that were searched and contain no terminator.
    scanned: usize,
    unsent_messages: VecDeque<UnsentMessage>,
    unsent_bytes: usize,
    /// True while an epoll set watches the socket for room in its send buffer.
    watched_for_room: bool,
}

#[derive(Debug)]
struct UnsentMessage {
    bytes: Vec<u8>,
    /// Number of leading bytes of the message that have been written to the socket.
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// The result of reading from a connection.
#[derive(Debug)]
pub enum Received {
    /// No complete message is available yet.
    Pending,
    /// A message, with its descriptors.
    Message(Vec<u8>, Vec<ForeignDescriptor>),
    /// The message is longer than permitted, or carries too many descriptors. The connection is
    /// then unusable.
    TooLong,
    /// The peer has closed the connection.
    Closed,
}

/// The error for a connection that became unusable because the peer closed it, or because the peer
/// reads its replies too slowly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionLost;

impl Connection {
    /// Creates the server's end of a connection on a connected socket.
    #[must_use]
    pub fn new(socket: OwnedFd, framing: Framing) -> Self {
        Self::from_foreign(ForeignDescriptor::from_peer_socket(socket), framing)
    }

    /// Creates a connection on a socket whose peer is the user recorded in `socket`.
    #[must_use]
    pub fn from_foreign(socket: ForeignDescriptor, framing: Framing) -> Self {
        let (partial, out) = (Vec::new(), VecDeque::new());
        Self {
            socket,
            framing,
            partial,
            scanned: 0,
            unsent_messages: out,
            unsent_bytes: 0,
            watched_for_room: false,
        }
    }

    /// Returns the framing of the socket.
    #[must_use]
    pub const fn framing(&self) -> Framing {
        self.framing
    }

    /// Returns the next message. Never blocks.
    pub fn next_message(&mut self) -> Received {
        match self.framing {
            Framing::Packets => self.receive_packet(),
            Framing::Stream => self.receive_from_stream(),
        }
    }

    fn receive_packet(&self) -> Received {
        let received = with_receive_buffer(|buffer| {
            let buffer = buffer.get_mut(..MESSAGE_BYTES_MAX).unwrap_or_default();
            let received = sys::descriptor::try_receive(&self.socket, buffer)?;
            Ok(received.map(|(length, descriptors)| {
                (buffer.get(..length).unwrap_or_default().to_vec(), descriptors)
            }))
        });
        match received {
            Ok(None) => Received::Pending,
            Ok(Some((bytes, _))) if bytes.is_empty() => Received::Closed,
            Ok(Some((bytes, descriptors))) => {
                let uid = self.socket.uid();
                let has_some = !descriptors.is_empty();
                let descriptors = ForeignDescriptor::wrap_all(descriptors, uid);
                match has_some && descriptor_closer::is_user_overloaded(uid) {
                    true => Received::Closed,
                    false => Received::Message(bytes, descriptors),
                }
            }
            Err(sys::Error { errno: EMSGSIZE, .. }) => Received::TooLong,
            Err(_) => Received::Closed,
        }
    }

    fn receive_from_stream(&mut self) -> Received {
        loop {
            let new = self.partial.get(self.scanned..).unwrap_or_default();
            if let Some(end) = new.iter().position(|byte| *byte == 0) {
                let end = self.scanned + end;
                self.scanned = 0;
                let rest = self.partial.split_off(end + 1);
                let mut message = std::mem::replace(&mut self.partial, rest);
                message.pop();
                return Received::Message(message, Vec::new());
            }
            self.scanned = self.partial.len();
            if self.partial.len() > MESSAGE_BYTES_MAX {
                return Received::TooLong;
            }
            let mut bytes = [0; 4096];
            match sys::descriptor::try_receive(&self.socket, &mut bytes) {
                Ok(None) => return Received::Pending,
                Ok(Some((0, _))) => return Received::Closed,
                // On a stream, descriptors do not belong to a message, so they are dropped, which
                // closes them.
                Ok(Some((length, descriptors))) => {
                    drop(ForeignDescriptor::wrap_all(descriptors, self.socket.uid()));
                    self.partial.extend_from_slice(bytes.get(..length).unwrap_or_default());
                }
                Err(error) if error.errno == EMSGSIZE => return Received::TooLong,
                Err(_) => return Received::Closed,
            }
        }
    }

    /// Queues a message and sends as much as the socket accepts without blocking;
    /// [`flush`](Self::flush) sends the rest. Never blocks. Fails if the queue limits are exceeded,
    /// or if the peer has disconnected.
    pub fn send(
        &mut self,
        mut bytes: Vec<u8>,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), ConnectionLost> {
        if self.framing == Framing::Stream {
            bytes.push(0);
        }
        self.unsent_bytes += bytes.len();
        let queued: usize =
            self.unsent_messages.iter().map(|unsent| unsent.descriptors.len()).sum();
        if self.unsent_bytes > UNSENT_BYTES_MAX
            || queued + descriptors.len() > UNSENT_DESCRIPTORS_MAX
        {
            return Err(ConnectionLost);
        }
        self.unsent_messages.push_back(UnsentMessage { bytes, sent: 0, descriptors });
        self.flush()
    }

    /// Sends queued messages until the socket buffer is full. Never blocks. Fails if the peer has
    /// disconnected.
    pub fn flush(&mut self) -> Result<(), ConnectionLost> {
        while let Some(first) = self.unsent_messages.front_mut() {
            let rest = first.bytes.get(first.sent..).unwrap_or_default();
            let with: Vec<BorrowedFd<'_>> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match local_socket::send_nonblocking(&self.socket, rest, &with) {
                Ok(None) => return Ok(()),
                Ok(Some(sent)) => {
                    first.sent += sent;
                    first.descriptors.clear();
                    self.unsent_bytes = self.unsent_bytes.saturating_sub(sent);
                    if first.sent >= first.bytes.len() {
                        self.unsent_messages.pop_front();
                    }
                }
                Err(_) => return Err(ConnectionLost),
            }
        }
        Ok(())
    }

    /// Makes `watcher` report free space in the socket buffer, as event `number`, for as long as
    /// messages are queued.
    pub fn watch_writable(
        &mut self,
        watcher: &EpollWatcher,
        number: u64,
    ) -> Result<(), ConnectionLost> {
        let waits = self.has_unsent_messages();
        if waits == std::mem::replace(&mut self.watched_for_room, waits) {
            return Ok(());
        }
        let interest = if waits { EventInterest::ReadWrite } else { EventInterest::Read };
        watcher.change_interest(&*self, number, interest).map_err(|_| ConnectionLost)
    }

    /// Returns true if queued messages remain.
    pub fn has_unsent_messages(&self) -> bool {
        !self.unsent_messages.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const EMSGSIZE: i32 = 90;

#[cfg(test)]
mod tests {
    use super::*;

    fn connection_pair(framing: Framing) -> (Connection, OwnedFd) {
        let (here, there) = match framing {
            Framing::Packets => sys::descriptor::socket_pair().unwrap(),
            Framing::Stream => {
                let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
                (here.into(), there.into())
            }
        };
        (Connection::new(here, framing), there)
    }

    fn send_bytes(to: &OwnedFd, bytes: &[u8]) {
        assert_eq!(local_socket::send_nonblocking(to, bytes, &[]).unwrap(), Some(bytes.len()));
    }

    fn expect_message(from: &mut Connection) -> String {
        match from.next_message() {
            Received::Message(bytes, _) => String::from_utf8(bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stream_fragments_are_joined_to_messages() {
        let (mut here, there) = connection_pair(Framing::Stream);
        for piece in [&b"on"[..], b"", b"e\0two\0th"] {
            if !piece.is_empty() {
                send_bytes(&there, piece);
            }
        }
        assert_eq!(expect_message(&mut here), "one");
        assert_eq!(expect_message(&mut here), "two");
        assert!(matches!(here.next_message(), Received::Pending));
        send_bytes(&there, b"ree\0");
        assert_eq!(expect_message(&mut here), "three");
        drop(there);
        assert!(matches!(here.next_message(), Received::Closed));
    }

    #[test]
    fn oversized_message_is_rejected() {
        for framing in [Framing::Packets, Framing::Stream] {
            let (mut here, there) = connection_pair(framing);
            send_bytes(&there, &[b'x'; MESSAGE_BYTES_MAX + 4097]);
            assert!(matches!(here.next_message(), Received::TooLong), "{framing:?}");
        }
    }

    #[test]
    fn slow_reader_is_disconnected() {
        for framing in [Framing::Packets, Framing::Stream] {
            let (mut here, there) = connection_pair(framing);
            let refused_at =
                (0..1_000_000).find(|_| here.send(vec![b'x'; 1000], Vec::new()).is_err());
            assert!(refused_at.is_some_and(|n| n > 100), "{framing:?}: {refused_at:?}");
            assert!(here.has_unsent_messages());
            drop(there);
            assert_eq!(here.flush(), Err(ConnectionLost));
        }
    }

    #[test]
    fn unsent_bytes_are_flushed_later() {
        let (mut here, there) = connection_pair(Framing::Stream);
        let sent: usize = (0..300)
            .map(|n: usize| {
                here.send(vec![b'a'; n * 3], Vec::new()).unwrap();
                n * 3 + 1
            })
            .sum();
        let mut taken = 0;
        while taken < sent {
            let mut bytes = [0; 5000];
            taken += sys::descriptor::try_receive(&there, &mut bytes).unwrap().unwrap().0;
            here.flush().unwrap();
        }
        assert!(taken == sent && !here.has_unsent_messages());
    }
}
