//! Open streams, each a tap of its own at a node of a path.
//!
//! A reader gets what its pipe holds, at its own pace. A read without data waits here, without a
//! thread, until the pipe has data, the stream ends, or a signal interrupts the caller. The tap
//! begins when the file is opened and ends when it is closed.

use crate::events::Follower;
use crate::protocol::{REPLY_HEAD, Reply, errno};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use streamline::paths::{PATH_ENDED, PathClient};
use sys::watcher::{Interest, Watcher};

/// The open streams.
#[derive(Debug)]
pub struct Streams {
    device: Arc<File>,
    watcher: Watcher,
    open: Mutex<HashMap<u64, OpenStream>>,
}

/// An open stream.
#[derive(Debug)]
struct OpenStream {
    pipe: File,
    /// Origin of the bytes, which ends with this value.
    of: Tapped,
    /// Reads that wait for data, oldest first.
    waiting: Vec<WaitingRead>,
    /// Number under which callers of poll(2) wait, if any do.
    wake: Option<u64>,
    watched: bool,
}

/// The origin of a stream.
#[derive(Debug)]
pub enum Tapped {
    /// The connection of a tap.
    Path(PathClient),
    /// The events of the daemon.
    Events(Follower),
}

#[derive(Debug)]
struct WaitingRead {
    unique: u64,
    size: u32,
}

/// Events of poll(2): data can be read.
const READABLE: u32 = 0x001 | 0x040;
/// Events of poll(2): the other end has closed.
const CLOSED: u32 = 0x010;

impl Streams {
    /// Creates the set of open streams of a mount.
    pub fn new(device: Arc<File>) -> sys::Result<Self> {
        Ok(Self { device, watcher: Watcher::new()?, open: Mutex::default() })
    }

    /// Adds a stream that arrives through a pipe, whose reads do not block.
    pub fn add(&self, handle: u64, pipe: File, of: Tapped) {
        let stream = OpenStream { pipe, of, waiting: Vec::new(), wake: None, watched: false };
        self.lock().insert(handle, stream);
    }

    /// Returns true if the handle is that of a stream.
    #[must_use]
    pub fn contains(&self, handle: u64) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Replies to a read at once if the stream has data or has ended, or if `waits` is false.
    /// Otherwise the reply follows later.
    pub fn read(&self, handle: u64, (unique, size): (u64, u32), waits: bool) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(stream) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        if stream.waiting.is_empty()
            && let Some(read) = stream.try_read(size)
        {
            return send(reply, read);
        }
        if !waits {
            return reply.error(errno::EAGAIN);
        }
        stream.waiting.push(WaitingRead { unique, size });
        self.watch(handle, stream);
    }

    /// Replies to a poll, and remembers to wake its callers if they want it.
    pub fn poll(&self, handle: u64, unique: u64, wake: Option<u64>) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(stream) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        let events = stream.events();
        if events == 0 && wake.is_some() {
            stream.wake = wake;
            self.watch(handle, stream);
        }
        reply.polled(events);
    }

    /// Ends a waiting read whose caller got a signal. Returns false if no such read waits.
    pub fn interrupt(&self, unique: u64) -> bool {
        let mut open = self.lock();
        for stream in open.values_mut() {
            if let Some(at) = stream.waiting.iter().position(|read| read.unique == unique) {
                stream.waiting.remove(at);
                Reply::new(&self.device, unique).error(errno::EINTR);
                return true;
            }
        }
        false
    }

    /// Ends a stream with its tap. Returns false if the handle is not that of a stream.
    pub fn close(&self, handle: u64) -> bool {
        let Some(stream) = self.lock().remove(&handle) else { return false };
        if stream.watched {
            let _ = self.watcher.forget(&stream.pipe);
        }
        for read in &stream.waiting {
            Reply::new(&self.device, read.unique).error(errno::EINTR);
        }
        true
    }

    /// Serves waiting reads and polls, for good.
    pub fn serve(&self) {
        loop {
            for event in self.watcher.wait(Some(Duration::from_secs(3600))) {
                self.serve_stream(event.number);
            }
        }
    }

    fn serve_stream(&self, handle: u64) {
        let mut open = self.lock();
        let Some(stream) = open.get_mut(&handle) else { return };
        while let Some(size) = stream.waiting.first().map(|read| read.size) {
            let Some(read) = stream.try_read(size) else { break };
            let first = stream.waiting.remove(0);
            send(Reply::new(&self.device, first.unique), read);
        }
        if let Some(wake) = stream.wake.filter(|_| stream.events() != 0) {
            stream.wake = None;
            Reply::wake(&self.device, wake);
        }
        if stream.waiting.is_empty() && stream.wake.is_none() {
            stream.watched = false;
            let _ = self.watcher.forget(&stream.pipe);
        }
    }

    fn watch(&self, handle: u64, stream: &mut OpenStream) {
        if !stream.watched && self.watcher.watch(&stream.pipe, handle, Interest::Read).is_ok() {
            stream.watched = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, OpenStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenStream {
    /// Reads what the pipe holds, behind room for the head of the reply; `None` if it holds
    /// nothing.
    fn try_read(&self, size: u32) -> Option<io::Result<Vec<u8>>> {
        let mut message = vec![0; REPLY_HEAD + size as usize];
        let mut pipe = &self.pipe;
        loop {
            return match pipe.read(message.get_mut(REPLY_HEAD..)?) {
                Ok(0) if self.has_failed() => Some(Err(ErrorKind::ConnectionAborted.into())),
                Ok(length) => {
                    message.truncate(REPLY_HEAD + length);
                    Some(Ok(message))
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Some(Err(error)),
            };
        }
    }

    /// Returns true if the end of the bytes is not the end of the path: the tap has ended for
    /// another reason, for example because its node was removed.
    fn has_failed(&self) -> bool {
        match &self.of {
            // A path that does not reply has ended.
            Tapped::Path(to) => {
                to.tap_report().is_ok_and(|report| report.over.is_some_and(|why| why != PATH_ENDED))
            }
            Tapped::Events(_) => false,
        }
    }

    /// Returns the events of poll(2) now.
    fn events(&self) -> u32 {
        let pipe = [self.pipe.as_fd()];
        let (readable, gone) = sys::poll::readable_or_gone(&pipe, &pipe, Some(Duration::ZERO));
        let bits = |ready: Vec<bool>, events| u32::from(ready == [true]) * events;
        bits(readable, READABLE) | bits(gone, CLOSED)
    }
}

fn send(reply: Reply<'_>, read: io::Result<Vec<u8>>) {
    match read {
        Ok(message) => reply.message(message),
        Err(_) => reply.error(errno::EIO),
    }
}
