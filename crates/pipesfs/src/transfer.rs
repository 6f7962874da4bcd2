//! Transfer of bytes from a tap to the reader of its stream. The bytes arrive through a pipe or, if
//! the path shares its memory, in a ring. The kernel copies the bytes of a ring directly to the
//! reader. The path and the server notify each other of changes to the ring over a socket, which
//! the path closes when the tap ends.

use crate::protocol::{REPLY_HEADER_LENGTH, Reply};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use streamline::paths::{Notification, ReaderState, TapRingReader};

/// Maximum number of bytes that are read from a pipe at once.
pub const PIPE_READ_BYTES_MAX: usize = 512 << 10;

/// The outcome of a nonblocking read of a stream.
#[derive(Debug)]
pub enum StreamRead {
    /// The reply has been sent, with this number of bytes.
    Sent(usize),
    /// No bytes are available yet.
    Empty,
    /// The other end of the pipe is closed, and all its bytes have been read.
    End,
    /// The read from the pipe failed.
    Failed,
}

/// The input of a stream: the pipe of a tap, or the tap's ring with its socket.
#[derive(Debug)]
pub struct StreamInput {
    /// The pipe of the tap, or its socket if the tap has a ring.
    pipe: File,
    ring: Option<TapRingReader>,
}

impl StreamInput {
    /// Creates the input of a stream. Makes the pipe, or the socket that accompanies a ring,
    /// nonblocking.
    pub fn new(pipe: OwnedFd, ring: Option<TapRingReader>) -> sys::Result<Self> {
        sys::fuse::set_nonblocking(&pipe)?;
        Ok(Self { pipe: File::from(pipe), ring })
    }

    /// Replies to a read with up to `size` bytes. Does not block. If no bytes are available,
    /// returns [`StreamRead::Empty`], and the descriptor of this input becomes readable as soon as
    /// there are some.
    pub fn reply(&mut self, reply: Reply<'_>, size: u32) -> StreamRead {
        match &mut self.ring {
            None => reply_from_pipe(&self.pipe, reply, size as usize),
            Some(ring) => match ring.state(|| next_notification(&self.pipe)) {
                Ok(ReaderState::Bytes(available)) => {
                    let length = available.min(size as usize);
                    // The ring does not advance if the reply fails, so the next read returns the
                    // same bytes.
                    if !reply.send_from_ring(ring, length) {
                        return StreamRead::Failed;
                    }
                    if ring.release_bytes(length) {
                        // A failed notification is ignored: the path has exited.
                        let _ = sys::local_socket::send_nonblocking(&self.pipe, &[0], &[]);
                    }
                    StreamRead::Sent(length)
                }
                Ok(ReaderState::Empty) => StreamRead::Empty,
                Ok(ReaderState::End) => StreamRead::End,
                Err(_) => StreamRead::Failed,
            },
        }
    }

    /// Returns two values: true if a read would not block, and true if the tap has ended. Does not
    /// block.
    pub fn poll_readable_and_ended(&mut self) -> (bool, bool) {
        let pipe = [self.pipe.as_fd()];
        let (readable, gone) =
            sys::poll::wait_until_readable_or_hung_up(&pipe, &pipe, Some(Duration::ZERO));
        let (readable, gone) = (readable == [true], gone == [true]);
        match &mut self.ring {
            None => (readable, gone),
            Some(ring) => {
                let state = ring.state(|| next_notification(&self.pipe));
                (state != Ok(ReaderState::Empty), gone)
            }
        }
    }
}

impl AsFd for StreamInput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// Receives a notification from the socket of a ring.
fn next_notification(socket: &File) -> Notification {
    match sys::descriptor::try_receive(socket, &mut [0; 8]) {
        Ok(None) => Notification::Pending,
        Ok(Some((1.., _))) => Notification::Taken,
        // An error is treated like the end of the tap.
        Ok(Some(_)) | Err(_) => Notification::Closed,
    }
}

fn reply_from_pipe(mut pipe: &File, reply: Reply<'_>, size: usize) -> StreamRead {
    let available = sys::pipe::readable_length(pipe).unwrap_or(0).min(PIPE_READ_BYTES_MAX);
    // The pipe is read even if it has no bytes, because only a read distinguishes an empty pipe
    // from a closed one.
    let mut message = vec![0; REPLY_HEADER_LENGTH + available.max(1).min(size)];
    loop {
        let room = message.get_mut(REPLY_HEADER_LENGTH..).unwrap_or_default();
        return match pipe.read(room) {
            Ok(0) if size > 0 => StreamRead::End,
            Ok(length) => {
                message.truncate(REPLY_HEADER_LENGTH + length);
                reply.send_message(message);
                StreamRead::Sent(length)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => StreamRead::Empty,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => StreamRead::Failed,
        };
    }
}
