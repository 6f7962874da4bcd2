//! Tools for tests with hostile descriptors: a descriptor whose close(2) blocks, and a message with
//! the maximum number of descriptors.

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{ErrorKind, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

/// Returns a TCP socket whose close(2) blocks for `linger`, and the peer socket. Dropping the peer
/// socket ends the wait. Closing one of several duplicates of the descriptor does not block.
#[must_use]
pub fn lingering_socket(linger: Duration) -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let slow = TcpStream::connect(listener.local_addr().expect("an address")).expect("connects");
    let (peer, _) = listener.accept().expect("a peer");
    slow.set_nonblocking(true).expect("a socket");
    let full = (0..100_000).find_map(|_| (&slow).write(&[0; 65536]).err());
    assert_eq!(full.map(|error| error.kind()), Some(ErrorKind::WouldBlock));
    rustix::net::sockopt::set_socket_linger(&slow, Some(linger)).expect("a socket");
    (slow.into(), peer)
}

/// Maximum number of descriptors that the kernel passes in one message (SCM_MAX_FD).
const PASSED_DESCRIPTORS_MAX: usize = 253;

/// Sends a message with the maximum number of duplicates of a descriptor.
pub fn send_duplicates(socket: &OwnedFd, message: &[u8], descriptor: &OwnedFd) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PASSED_DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let all = [descriptor.as_fd(); PASSED_DESCRIPTORS_MAX];
    assert!(control.push(SendAncillaryMessage::ScmRights(&all)));
    let message = [IoSlice::new(message)];
    sendmsg(socket, &message, &mut control, SendFlags::empty()).expect("a message");
}
