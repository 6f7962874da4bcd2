//! Writers outside a path: programs that write to a node of a running path. The blocks leave the
//! node as if the node itself had emitted them.
//!
//! ```text
//! WriterSocket ── packets: 1 byte of type, then bytes ──► WrittenBlocks ──► output of the node
//!              ◄── 1 packet: reason for the end ──────────
//! ```
//!
//! Each writer has a pair of sockets. A program holds the outside end, [`WriterSocket`]. The inside
//! end, [`WriterSource`], is a [`Source`](crate::Source) that the space of the node drives,
//! although it is not a node of the graph. A writer waits while the sockets are full. When the path
//! stops, the inside end is first closed for input and then drained, so that no accepted bytes are
//! lost.

mod blocks;
#[cfg(test)]
mod tests;

pub(crate) use blocks::next_session_number;
pub use blocks::{WriterForm, WriterSource};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of data bytes in a packet, excluding the byte with the packet type.
pub const PACKET_DATA_BYTES_MAX: usize = 64 << 10;
/// Maximum number of bytes that may wait in a writer's sockets while the space is busy, including
/// the kernel's overhead for each packet.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// Type of a packet that contains bytes of the writer.
const DATA_PACKET_TYPE: u8 = 0;
/// Type of the packet with which a writer ends its session.
const END_PACKET_TYPE: u8 = 1;

/// The outside end of a writer. Dropping it without a call to [`WriterSocket::end_session`] aborts
/// the session.
#[derive(Debug)]
pub struct WriterSocket {
    socket: OwnedFd,
    packet: Vec<u8>,
}

/// Error returned if the path no longer accepts bytes. The text is the reason sent by the path, or
/// a default text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputClosed(pub String);

/// Reason that a writer gets if the path has ended without sending a reason.
const DEFAULT_END_REASON: &str = "the path has ended, or the filter was removed";

/// Creates the two ends of a writer: the outside end, and the socket from which the inside end is
/// created.
pub fn create_writer_pair() -> sys::Result<(WriterSocket, OwnedFd)> {
    let (outside, inside) = sys::descriptor::socket_pair()?;
    // If the machine has a lower limit, fewer bytes can wait.
    let _ = sys::local_socket::set_send_buffer(&outside, WAITING_BYTES_MAX);
    Ok((WriterSocket::new(outside), inside))
}

impl WriterSocket {
    /// Creates the outside end of a writer from its socket.
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self { socket, packet: Vec::new() }
    }

    /// Converts the outside end of a writer into its socket, without ending the session.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Writes at most [`PACKET_DATA_BYTES_MAX`] bytes as one packet. If the node emits blocks, the
    /// packet becomes one block. Returns the number of bytes written, or `None` if the socket is
    /// full. Never blocks.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, InputClosed> {
        let bytes = bytes.get(..PACKET_DATA_BYTES_MAX).unwrap_or(bytes);
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        self.packet.clear();
        self.packet.push(DATA_PACKET_TYPE);
        self.packet.extend_from_slice(bytes);
        let sent = self.send()?;
        Ok(sent.then_some(bytes.len()))
    }

    /// Ends the writer's session. Returns false if the socket is full. Never blocks.
    pub fn end_session(&mut self) -> Result<bool, InputClosed> {
        self.packet.clear();
        self.packet.push(END_PACKET_TYPE);
        self.send()
    }

    fn send(&self) -> Result<bool, InputClosed> {
        match sys::local_socket::send_nonblocking(&self.socket, &self.packet, &[]) {
            Ok(sent) => Ok(sent.is_some()),
            Err(_) => {
                let mut reason = [0; 512];
                let received = sys::descriptor::try_receive(&self.socket, &mut reason);
                let length = received.ok().flatten().map_or(0, |(length, _)| length);
                let reason = reason.get(..length).unwrap_or_default();
                Err(InputClosed(match String::from_utf8_lossy(reason) {
                    reason if reason.is_empty() => DEFAULT_END_REASON.to_owned(),
                    reason => reason.into_owned(),
                }))
            }
        }
    }
}

impl AsFd for WriterSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
