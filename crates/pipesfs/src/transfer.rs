//! Transfer of bytes from the pipe of a stream to the reader. Small reads are copied through this
//! process. For large reads, the reply refers to the pages in the pipe, and the kernel copies them
//! to the reader. Bytes leave the pipe only after that, because the path may have lent their memory
//! to the pipe: each byte is then copied less often than in a kernel pipe.

use crate::protocol::{REPLY_HEAD, Reply};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

/// Capacity of the pipe of a stream in bytes. Users other than root may have pipes of twice this
/// size, which a transfer needs.
pub const PIPE_SIZE: usize = 512 << 10;
/// Minimum length in bytes at which a reply refers to pages. Below it, copying costs less than the
/// system calls.
const REFERRED_MIN: usize = 32 << 10;
/// Maximum number of idle transfer pipes kept for reuse.
const IDLE_MAX: usize = 4;

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

/// Pipes that refer to the pages of a reply, in addition to the pipe of its stream.
#[derive(Debug)]
pub struct TransferPipes {
    idle: Mutex<Vec<(OwnedFd, OwnedFd)>>,
    /// The device `/dev/null`, which takes bytes out of pipes.
    null: File,
}

impl TransferPipes {
    /// Creates no pipe yet.
    pub fn new() -> sys::Result<Self> {
        let null = File::options().write(true).open("/dev/null");
        let null = null.map_err(|error| {
            sys::Error::new("open", "/dev/null", error.raw_os_error().unwrap_or(0))
        })?;
        Ok(Self { idle: Mutex::default(), null })
    }

    /// Replies to a read with up to `size` bytes from the pipe. Does not block.
    pub fn reply(&self, mut pipe: &File, reply: Reply<'_>, size: u32) -> PipeRead {
        let available = sys::pipe::readable_length(pipe).unwrap_or(0);
        let length = available.min(size as usize);
        if length >= REFERRED_MIN
            && let Some(sent) = self.send_pages(pipe, reply, length)
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
    fn send_pages(&self, pipe: &File, reply: Reply<'_>, length: usize) -> Option<PipeRead> {
        let (reader, writer) = self.take()?;
        let is_filled = reply.begin(length, &writer).is_ok()
            && sys::pipe::tee(pipe, &writer, length).is_ok_and(|filled| filled == length);
        if !is_filled {
            // The bytes in the transfer pipe are lost with it, and the read fails.
            return Some(PipeRead::Failed);
        }
        // If the caller is gone (ENOENT), the transfer pipe, which may contain bytes, is dropped.
        let is_sent = reply.finish(&reader, length).is_ok();
        if discard(pipe, &self.null, length).is_err() {
            return Some(PipeRead::Failed);
        }
        if is_sent {
            self.keep((reader, writer));
        }
        Some(PipeRead::Sent(length))
    }

    /// Returns an empty pipe with room for the contents of a stream's pipe and the header of a
    /// reply.
    fn take(&self) -> Option<(OwnedFd, OwnedFd)> {
        if let Some(kept) = self.lock().pop() {
            return Some(kept);
        }
        let (reader, writer) = sys::descriptor::pipe().ok()?;
        sys::pipe::set_capacity(&writer, 2 * PIPE_SIZE).ok()?;
        Some((reader, writer))
    }

    fn keep(&self, through: (OwnedFd, OwnedFd)) {
        let mut kept = self.lock();
        if kept.len() < IDLE_MAX {
            kept.push(through);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(OwnedFd, OwnedFd)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes exactly `length` bytes out of a pipe. Fails if it contains fewer.
fn discard(pipe: &File, null: &File, mut length: usize) -> sys::Result<()> {
    while length > 0 {
        match sys::pipe::splice_out(pipe, null, length)? {
            0 => return Err(sys::Error::new("splice", "a pipe that ended", 0)),
            taken => length = length.saturating_sub(taken),
        }
    }
    Ok(())
}
