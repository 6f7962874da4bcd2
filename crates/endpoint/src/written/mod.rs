//! Writers outside a path: programs whose blocks leave a node as if the node had emitted them.
//!
//! ```text
//! WriterSocket ── packets: 1 byte of kind, then bytes ──► WrittenBlocks ──► output of the node
//!              ◄── 1 packet: reason of the end ──────────
//! ```
//!
//! Each writer has a pair of sockets. A program holds the outside end, [`WriterSocket`]. The inside
//! end, [`WrittenBlocks`], is a [`Source`](crate::Source) that the space of the node drives, though
//! it is no node of the graph. A writer waits while the sockets are full. The inside end is
//! closed for input before its rest is read, so nothing is accepted that is not emitted.

mod blocks;
#[cfg(test)]
mod tests;

pub(crate) use blocks::new_session;
pub use blocks::{WrittenBlocks, WrittenForm};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maximum number of bytes in one packet, after the kind.
pub const PACKET_MAX: usize = 64 << 10;
/// Bytes that wait for a space that is busy, including the kernel's memory for each packet.
const WAITING_MAX: usize = 1 << 20;

/// Kind of a packet with bytes.
const DATA: u8 = 0;
/// Kind of the packet that ends what is written.
const END: u8 = 1;

/// The outside end of a writer. Dropping it without [`WriterSocket::end`] ends the session as
/// broken.
#[derive(Debug)]
pub struct WriterSocket {
    socket: OwnedFd,
    packet: Vec<u8>,
}

/// Error of writing: the path no longer accepts anything. The text is the reason, if the path gave
/// one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct WriterEnded(pub String);

/// Reason for the end of a writer whose path gave none.
const NO_REASON: &str = "the path has ended, or the filter was removed";

/// Creates the two ends of a writer.
pub fn pair() -> sys::Result<(WriterSocket, OwnedFd)> {
    let (outside, inside) = sys::descriptor::pair()?;
    // With a smaller limit of the machine, less waits.
    let _ = sys::local_socket::set_send_buffer(&outside, WAITING_MAX);
    Ok((WriterSocket::new(outside), inside))
}

impl WriterSocket {
    /// Creates the end from the outside socket of a pair.
    #[must_use]
    pub const fn new(socket: OwnedFd) -> Self {
        Self { socket, packet: Vec::new() }
    }

    /// Returns the socket.
    #[must_use]
    pub fn into_socket(self) -> OwnedFd {
        self.socket
    }

    /// Writes bytes, at most [`PACKET_MAX`] of them, which leave as one block if the node emits
    /// blocks. Returns the number written; `None` if there is no room now. Never blocks.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Option<usize>, WriterEnded> {
        let bytes = bytes.get(..PACKET_MAX).unwrap_or(bytes);
        if bytes.is_empty() {
            return Ok(Some(0));
        }
        self.packet.clear();
        self.packet.push(DATA);
        self.packet.extend_from_slice(bytes);
        let sent = self.send()?;
        Ok(sent.then_some(bytes.len()))
    }

    /// Ends what is written. Returns false if there is no room for that now. Never blocks.
    pub fn end(&mut self) -> Result<bool, WriterEnded> {
        self.packet.clear();
        self.packet.push(END);
        self.send()
    }

    fn send(&self) -> Result<bool, WriterEnded> {
        match sys::local_socket::send_now(&self.socket, &self.packet, &[]) {
            Ok(sent) => Ok(sent.is_some()),
            Err(_) => {
                let mut reason = [0; 512];
                let came = sys::descriptor::try_receive(&self.socket, &mut reason);
                let length = came.ok().flatten().map_or(0, |(length, _)| length);
                let reason = reason.get(..length).unwrap_or_default();
                Err(WriterEnded(match String::from_utf8_lossy(reason) {
                    reason if reason.is_empty() => NO_REASON.to_owned(),
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
