//! One connection, seen from the side that answers: whole messages in, replies out, no waiting for
//! the peer. (RELIABILITY T8, T12)
//!
//! What a peer may cost is bounded: one message half read, and [`UNSENT_MAX`] bytes that it has not
//! taken. A peer that takes less than it asks for is let go, not waited for: as long as we read all
//! that it sends, no descriptor of its own lies in our queue, and its end is always seen.

use crate::varlink::MESSAGE_MAX;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::local_socket::{self, Framing};

/// The most bytes of replies that lie here.
pub const UNSENT_MAX: usize = 1 << 20;
/// The most descriptors that lie here.
const DESCRIPTORS_MAX: usize = 16;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    form: Framing,
    /// Bytes of an incomplete message, on a stream.
    half: Vec<u8>,
    /// Bytes of it already searched for an end.
    looked: usize,
    out: VecDeque<Unsent>,
    unsent: usize,
}

#[derive(Debug)]
struct Unsent {
    bytes: Vec<u8>,
    /// Number of them already sent.
    sent: usize,
    descriptors: Vec<OwnedFd>,
}

/// The next event of a connection.
#[derive(Debug)]
pub enum Arrived {
    /// Nothing more for now.
    Nothing,
    /// A message and what came with it.
    Message(Vec<u8>, Vec<OwnedFd>),
    /// More than a message may have, or more descriptors: nothing that follows can be understood.
    TooLong,
    /// The other end is gone.
    Gone,
}

/// The end of a connection: the peer has gone, or takes less than it asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Over;

impl Connection {
    /// A connection over this socket.
    #[must_use]
    pub const fn new(socket: OwnedFd, form: Framing) -> Self {
        Self { socket, form, half: Vec::new(), looked: 0, out: VecDeque::new(), unsent: 0 }
    }

    /// The form of its socket.
    #[must_use]
    pub const fn form(&self) -> Framing {
        self.form
    }

    /// Returns the next message. Never waits.
    pub fn next_message(&mut self) -> Arrived {
        match self.form {
            Framing::Packets => self.packet(),
            Framing::Stream => self.piece(),
        }
    }

    fn packet(&self) -> Arrived {
        let mut bytes = vec![0; MESSAGE_MAX];
        match sys::descriptor::try_receive(&self.socket, &mut bytes) {
            Ok(None) => Arrived::Nothing,
            Ok(Some((0, _))) => Arrived::Gone,
            Ok(Some((length, descriptors))) => {
                bytes.truncate(length);
                Arrived::Message(bytes, descriptors)
            }
            Err(error) if error.errno == TOO_LONG => Arrived::TooLong,
            Err(_) => Arrived::Gone,
        }
    }

    fn piece(&mut self) -> Arrived {
        loop {
            let new = self.half.get(self.looked..).unwrap_or_default();
            if let Some(end) = new.iter().position(|byte| *byte == 0) {
                let end = self.looked + end;
                self.looked = 0;
                let rest = self.half.split_off(end + 1);
                let mut message = std::mem::replace(&mut self.half, rest);
                message.pop();
                return Arrived::Message(message, Vec::new());
            }
            self.looked = self.half.len();
            if self.half.len() > MESSAGE_MAX {
                return Arrived::TooLong;
            }
            let mut bytes = [0; 4096];
            match sys::descriptor::try_receive(&self.socket, &mut bytes) {
                Ok(None) => return Arrived::Nothing,
                Ok(Some((0, _))) => return Arrived::Gone,
                // Descriptors have no place in a stream of messages: they are closed here.
                Ok(Some((length, _))) => {
                    self.half.extend_from_slice(bytes.get(..length).unwrap_or_default());
                }
                Err(error) if error.errno == TOO_LONG => return Arrived::TooLong,
                Err(_) => return Arrived::Gone,
            }
        }
    }

    /// Says something. What cannot go at once goes when the socket has room again.
    pub fn say(&mut self, mut bytes: Vec<u8>, descriptors: Vec<OwnedFd>) -> Result<(), Over> {
        if self.form == Framing::Stream {
            bytes.push(0);
        }
        self.unsent += bytes.len();
        let many: usize = self.out.iter().map(|unsent| unsent.descriptors.len()).sum();
        if self.unsent > UNSENT_MAX || many + descriptors.len() > DESCRIPTORS_MAX {
            return Err(Over);
        }
        self.out.push_back(Unsent { bytes, sent: 0, descriptors });
        self.flush()
    }

    /// Sends what there is, as far as there is room.
    pub fn flush(&mut self) -> Result<(), Over> {
        while let Some(first) = self.out.front_mut() {
            let rest = first.bytes.get(first.sent..).unwrap_or_default();
            let with: Vec<BorrowedFd<'_>> = first.descriptors.iter().map(AsFd::as_fd).collect();
            match local_socket::send_now(&self.socket, rest, &with) {
                Ok(None) => return Ok(()),
                Ok(Some(sent)) => {
                    first.sent += sent;
                    first.descriptors.clear();
                    self.unsent = self.unsent.saturating_sub(sent);
                    if first.sent >= first.bytes.len() {
                        self.out.pop_front();
                    }
                }
                Err(_) => return Err(Over),
            }
        }
        Ok(())
    }

    /// Returns true if messages wait for room.
    pub fn has_unsent(&self) -> bool {
        !self.out.is_empty()
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// EMSGSIZE.
const TOO_LONG: i32 = 90;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(form: Framing) -> (Connection, OwnedFd) {
        let (here, there) = match form {
            Framing::Packets => sys::descriptor::pair().unwrap(),
            Framing::Stream => {
                let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
                (here.into(), there.into())
            }
        };
        (Connection::new(here, form), there)
    }

    fn send(to: &OwnedFd, bytes: &[u8]) {
        assert_eq!(local_socket::send_now(to, bytes, &[]).unwrap(), Some(bytes.len()));
    }

    fn message(from: &mut Connection) -> String {
        match from.next_message() {
            Arrived::Message(bytes, _) => String::from_utf8(bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pieces_become_messages() {
        let (mut here, there) = pair(Framing::Stream);
        for piece in [&b"on"[..], b"", b"e\0two\0th"] {
            if !piece.is_empty() {
                send(&there, piece);
            }
        }
        assert_eq!(message(&mut here), "one");
        assert_eq!(message(&mut here), "two");
        assert!(matches!(here.next_message(), Arrived::Nothing));
        send(&there, b"ree\0");
        assert_eq!(message(&mut here), "three");
        drop(there);
        assert!(matches!(here.next_message(), Arrived::Gone));
    }

    #[test]
    fn a_message_has_its_bounds() {
        for form in [Framing::Packets, Framing::Stream] {
            let (mut here, there) = pair(form);
            send(&there, &[b'x'; MESSAGE_MAX + 4097]);
            assert!(matches!(here.next_message(), Arrived::TooLong), "{form:?}");
        }
    }

    #[test]
    fn who_takes_nothing_is_let_go() {
        for form in [Framing::Packets, Framing::Stream] {
            let (mut here, there) = pair(form);
            let said = (0..1_000_000).find(|_| here.say(vec![b'x'; 1000], Vec::new()).is_err());
            assert!(said.is_some_and(|n| n > 100), "{form:?}: {said:?}");
            assert!(here.has_unsent());
            drop(there);
            assert_eq!(here.flush(), Err(Over));
        }
    }

    #[test]
    fn what_did_not_go_at_once_goes_later() {
        let (mut here, there) = pair(Framing::Stream);
        let sent: usize = (0..300)
            .map(|n: usize| {
                here.say(vec![b'a'; n * 3], Vec::new()).unwrap();
                n * 3 + 1
            })
            .sum();
        let mut taken = 0;
        while taken < sent {
            let mut bytes = [0; 5000];
            taken += sys::descriptor::try_receive(&there, &mut bytes).unwrap().unwrap().0;
            here.flush().unwrap();
        }
        assert!(taken == sent && !here.has_unsent());
    }
}
