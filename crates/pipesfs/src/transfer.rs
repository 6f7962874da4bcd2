//! Transfer of bytes from the pipe of a stream to the reader. Small reads are copied through this
//! process. For large reads, pages move from the pipe into the reply without a copy in this
//! process, so each byte is copied only as often as in a kernel pipe.

use crate::protocol::{REPLY_HEAD, Reply};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Capacity of the pipe of a stream in bytes. Users other than root may have pipes of twice this
/// size, which a transfer needs.
pub const PIPE_SIZE: usize = 512 << 10;
/// Minimum length in bytes at which pages are moved. Below it, copying costs less than the system
/// calls.
const MOVED_MIN: usize = 32 << 10;
/// Maximum number of idle transfer pipes kept for reuse.
const KEPT_MAX: usize = 4;

/// The outcome of a nonblocking read from the pipe of a stream.
#[derive(Debug)]
pub enum PipeRead {
    /// The reply has been sent, with this number of bytes.
    Sent(usize),
    /// The pipe is empty.
    Empty,
    /// The other end of the pipe is closed, and the pipe is empty.
    End,
    /// The read failed.
    Failed,
}

/// Pipes through which pages move from the pipes of streams into replies.
#[derive(Debug, Default)]
pub struct TransferPipes(Mutex<Vec<(OwnedFd, OwnedFd)>>);

impl TransferPipes {
    /// Replies to a read with up to `size` bytes from the pipe. Does not block.
    pub fn reply(&self, mut pipe: &File, reply: Reply<'_>, size: u32) -> PipeRead {
        let available = sys::pipe::readable_length(pipe).unwrap_or(0);
        let length = available.min(size as usize);
        if length >= MOVED_MIN
            && let Some(sent) = self.move_pages(pipe, reply, length)
        {
            return sent;
        }
        // Only a read distinguishes an empty pipe from one whose other end is closed.
        let mut message = vec![0; REPLY_HEAD + length.max(1).min(size as usize)];
        loop {
            let room = message.get_mut(REPLY_HEAD..).unwrap_or_default();
            return match pipe.read(room) {
                Ok(0) if size > 0 => PipeRead::End,
                Ok(length) => {
                    message.truncate(REPLY_HEAD + length);
                    reply.message(message);
                    PipeRead::Sent(length)
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => PipeRead::Empty,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => PipeRead::Failed,
            };
        }
    }

    /// Replies with `length` bytes from the pipe, which must contain them. Returns `None` if no
    /// transfer pipe can be created; the bytes then remain in the pipe of the stream.
    fn move_pages(&self, pipe: &File, reply: Reply<'_>, length: usize) -> Option<PipeRead> {
        let through = self.take()?;
        let (near, far) = &through;
        let moved = reply.begin(length, far).is_ok() && move_all(pipe, far, length).is_ok();
        if !moved {
            // The bytes in the transfer pipe are lost with it, and the read fails.
            return Some(PipeRead::Failed);
        }
        match reply.finish(near, length) {
            // The caller is gone (ENOENT). The transfer pipe, which may contain bytes, is dropped.
            Err(_) => {}
            Ok(()) => self.keep(through),
        }
        Some(PipeRead::Sent(length))
    }

    /// Returns an empty pipe with room for the contents of a stream's pipe and the header of a
    /// reply.
    fn take(&self) -> Option<(OwnedFd, OwnedFd)> {
        if let Some(kept) = self.lock().pop() {
            return Some(kept);
        }
        let (near, far) = sys::descriptor::pipe().ok()?;
        sys::pipe::set_capacity(&far, 2 * PIPE_SIZE).ok()?;
        Some((near, far))
    }

    fn keep(&self, through: (OwnedFd, OwnedFd)) {
        let mut kept = self.lock();
        if kept.len() < KEPT_MAX {
            kept.push(through);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(OwnedFd, OwnedFd)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves exactly `length` bytes between pipes. Fails if the first pipe contains fewer.
fn move_all(from: &File, to: &OwnedFd, mut length: usize) -> sys::Result<()> {
    while length > 0 {
        match sys::pipe::splice_out(from, to, length)? {
            0 => return Err(sys::Error::new("splice", "a pipe that ended", 0)),
            moved => length = length.saturating_sub(moved),
        }
    }
    Ok(())
}
