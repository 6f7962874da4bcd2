//! Open streams. Each stream is a separate tap at a node of a path, so each reader receives the
//! data through a separate pipe and at its own pace. A read without data waits here, without
//! occupying a thread, until the pipe has data, the stream ends, or a signal interrupts the caller.
//! The tap begins when the file is opened and ends when the file is closed.

mod ends;
mod moves;
mod taps;

pub use ends::{EndedTap, EndedTaps};
pub use moves::StreamContinuation;
pub use taps::TapConnection;

use crate::entries::StreamForm;
use crate::events::EventFollower;
use crate::failures::LatestFailures;
use crate::protocol::{REPLY_HEADER_LENGTH, Reply, errno};
use crate::totals::Totals;
use crate::transfer::{PIPE_READ_BYTES_MAX, StreamInput, StreamRead};
use crate::tree::DirectoryId;
use moves::StreamMove;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use sys::watcher::{EpollWatcher, EventInterest};

/// The streams of a mount that programs have opened for reading.
#[derive(Debug)]
pub struct Streams {
    device: Arc<File>,
    watcher: EpollWatcher,
    open: Mutex<HashMap<u64, OpenStream>>,
    /// Channel to the thread that examines ended taps.
    ends: mpsc::Sender<EndedTap>,
    failures: Arc<LatestFailures>,
}

/// A stream that a program has opened for reading.
#[derive(Debug)]
struct OpenStream {
    input: StreamInput,
    /// Source of the stream's bytes: a tap, or the thread that writes events. Dropping it ends the
    /// tap or the thread. `None` once the stream has ended and its tap is being examined.
    origin: Option<StreamOrigin>,
    /// Outcome of the stream: true if it ends with an error, and false if it ends normally. `None`
    /// until the outcome is known.
    failed: Option<bool>,
    /// Bytes that the tap had not yet sent when its path ended; `None` if there are none. Readers
    /// of the stream receive these bytes after the bytes of `input`.
    rest: Option<RemainingBytes>,
    /// True if an earlier tap of the stream skipped blocks or truncated messages, before the
    /// stream's node moved to another path.
    is_incomplete: bool,
    /// Id of the user who opened the stream.
    uid: u32,
    /// Counters of the bytes read and written in the stream's directory; `None` for the events of
    /// the daemon.
    totals: Option<Arc<Totals>>,
    /// Reads that wait for data, oldest first.
    waiting_reads: Vec<WaitingRead>,
    /// Poll handle (`kh`) to notify of the next event, or `None` if no caller polls.
    poll_number: Option<u64>,
    is_watched: bool,
    /// The node or class whose blocks the stream carries, and the format of the blocks; `None` for
    /// the events of the daemon.
    place: Option<(DirectoryId, StreamForm)>,
    /// Progress of the move of the stream's node to another path; `None` if the node is not being
    /// moved.
    moving: Option<StreamMove>,
}

/// The last bytes of a stream, which its tap had not yet written to the pipe or ring when the path
/// ended.
#[derive(Debug)]
struct RemainingBytes {
    /// Sealed memory file with these bytes.
    file: File,
    /// Number of bytes of the file that have been sent to readers.
    bytes_read: u64,
}

/// Properties of a stream that is being opened: its user, its directory, the format of its blocks,
/// and its byte counters.
#[derive(Debug)]
pub struct StreamFacts {
    /// Id of the user who opened the stream.
    pub uid: u32,
    /// The node or class whose blocks the stream carries, given by its directory, and the format of
    /// the blocks; `None` for the events of the daemon.
    pub place: Option<(DirectoryId, StreamForm)>,
    /// Byte counters of the stream's directory; `None` for the events of the daemon.
    pub totals: Option<Arc<Totals>>,
}

/// The source of a stream's bytes.
#[derive(Debug)]
pub enum StreamOrigin {
    /// The connection of a tap on a path.
    Path(Arc<TapConnection>),
    /// The events of the daemon.
    Events(EventFollower),
}

#[derive(Clone, Copy, Debug)]
struct WaitingRead {
    unique: u64,
    size: u32,
}

/// Event bits of poll(2): data can be read.
const READABLE_EVENTS: u32 = 0x001 | 0x040;
/// Event bit of poll(2): the other end has been closed.
const HANGUP_EVENT: u32 = 0x010;

impl Streams {
    /// Creates an empty set of streams. Also returns the receiver for
    /// [`examine_ended_taps`](Self::examine_ended_taps).
    pub fn new(device: Arc<File>, failures: Arc<LatestFailures>) -> sys::Result<(Self, EndedTaps)> {
        let (ends, endings) = mpsc::channel();
        let (open, watcher) = (Mutex::default(), EpollWatcher::new()?);
        let streams = Self { device, watcher, open, ends, failures };
        Ok((streams, endings))
    }

    /// Adds a stream that a program has opened for reading.
    pub fn add(
        &self,
        handle: u64,
        input: StreamInput,
        (origin, facts): (StreamOrigin, StreamFacts),
    ) {
        let StreamFacts { uid, place, totals } = facts;
        let stream = OpenStream {
            input,
            origin: Some(origin),
            failed: None,
            rest: None,
            is_incomplete: false,
            uid,
            totals,
            waiting_reads: Vec::new(),
            poll_number: None,
            is_watched: false,
            place,
            moving: None,
        };
        self.lock().insert(handle, stream);
    }

    /// Returns true if the handle belongs to a stream.
    #[must_use]
    pub fn contains(&self, handle: u64) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Serves a read of an open stream. Replies at once if data is available, if the stream has
    /// ended and its outcome is known, or if the read must not wait (`waits` is false) and the
    /// stream has not ended. Otherwise sends the reply later.
    pub fn read(&self, handle: u64, (unique, size): (u64, u32), waits: bool) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(stream) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        let read = if stream.waiting_reads.is_empty() {
            stream.reply(reply, size)
        } else {
            StreamRead::Empty
        };
        match read {
            StreamRead::End => {
                stream.waiting_reads.push(WaitingRead { unique, size });
                return self.hand_over_ended_stream(handle, stream);
            }
            StreamRead::Failed => return reply.error(errno::EIO),
            StreamRead::Sent(_) => return,
            StreamRead::Empty => {}
        }
        if !waits {
            return reply.error(errno::EAGAIN);
        }
        stream.waiting_reads.push(WaitingRead { unique, size });
        self.watch(handle, stream);
    }

    /// Replies to a poll of an open stream. If no event is ready and `wake` is `Some`, a later
    /// event is reported under the number `wake`.
    pub fn poll(&self, handle: u64, unique: u64, wake: Option<u64>) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(stream) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        let events = stream.events();
        if events == 0 && wake.is_some() {
            stream.poll_number = wake;
            self.watch(handle, stream);
        }
        reply.polled(events);
    }

    /// Replies EINTR to a waiting read whose caller received a signal. Returns false if no such
    /// read is waiting.
    pub fn interrupt(&self, unique: u64) -> bool {
        let mut open = self.lock();
        for stream in open.values_mut() {
            if let Some(at) = stream.waiting_reads.iter().position(|read| read.unique == unique) {
                stream.waiting_reads.remove(at);
                Reply::new(&self.device, unique).error(errno::EINTR);
                return true;
            }
        }
        false
    }

    /// Ends a stream and its tap. Returns false if the handle does not belong to a stream.
    pub fn close(&self, handle: u64) -> bool {
        let Some(mut stream) = self.lock().remove(&handle) else { return false };
        if let Some(StreamOrigin::Path(tap)) = stream.origin.take() {
            self.send_ended_tap(handle, (&stream, true), tap);
        }
        if stream.is_watched {
            let _ = self.watcher.unwatch(&stream.input);
        }
        for read in &stream.waiting_reads {
            Reply::new(&self.device, read.unique).error(errno::EINTR);
        }
        true
    }

    /// Serves the waiting reads and polls of all streams. Never returns.
    pub fn serve(&self) {
        loop {
            for event in self.watcher.wait(Some(Duration::from_secs(3600))) {
                self.answer_waiting_reads(event.number);
            }
        }
    }

    fn answer_waiting_reads(&self, handle: u64) {
        let mut open = self.lock();
        let Some(stream) = open.get_mut(&handle) else { return };
        while let Some(WaitingRead { unique, size }) = stream.waiting_reads.first().copied() {
            let reply = Reply::new(&self.device, unique);
            match stream.reply(reply, size) {
                StreamRead::Sent(_) => {}
                StreamRead::Empty => break,
                StreamRead::End => return self.hand_over_ended_stream(handle, stream),
                StreamRead::Failed => reply.error(errno::EIO),
            }
            stream.waiting_reads.remove(0);
        }
        if let Some(wake) = stream.poll_number.filter(|_| stream.events() != 0) {
            stream.poll_number = None;
            Reply::wake_poll_callers(&self.device, wake);
        }
        if stream.waiting_reads.is_empty() && stream.poll_number.is_none() {
            stream.is_watched = false;
            let _ = self.watcher.unwatch(&stream.input);
        }
    }

    fn watch(&self, handle: u64, stream: &mut OpenStream) {
        if !stream.is_watched
            && self.watcher.watch(&stream.input, handle, EventInterest::Read).is_ok()
        {
            stream.is_watched = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, OpenStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenStream {
    /// Replies to a read with up to `size` bytes of the stream's input. Once the outcome of the
    /// stream is known, replies with the bytes in `rest` instead, and then with the end of the
    /// stream. Does not block.
    fn reply(&mut self, reply: Reply<'_>, size: u32) -> StreamRead {
        // Once the outcome is known, the input has been read completely.
        let read = match (&mut self.rest, self.failed) {
            (Some(rest), Some(failed)) => rest.reply(reply, size, failed),
            (None, Some(failed)) => reply_end_of_stream(reply, failed),
            (_, None) => self.input.reply(reply, size),
        };
        if let StreamRead::Sent(length) = read {
            self.totals.iter().for_each(|totals| totals.add_read_bytes(length));
        }
        read
    }

    /// Returns the event bits that poll(2) reports for the stream at present.
    fn events(&mut self) -> u32 {
        let (readable, ended) = self.input.poll_readable_and_ended();
        (u32::from(readable) * READABLE_EVENTS) | (u32::from(ended) * HANGUP_EVENT)
    }
}

impl RemainingBytes {
    /// Replies with up to `size` remaining bytes, or with the end of the stream. Does not block.
    fn reply(&mut self, reply: Reply<'_>, size: u32, failed: bool) -> StreamRead {
        let mut bytes = vec![0; REPLY_HEADER_LENGTH + (size as usize).min(PIPE_READ_BYTES_MAX)];
        let room = bytes.get_mut(REPLY_HEADER_LENGTH..).unwrap_or_default();
        match self.file.read_at(room, self.bytes_read) {
            Ok(0) if size > 0 => reply_end_of_stream(reply, failed),
            Ok(length) => {
                self.bytes_read += length as u64;
                bytes.truncate(REPLY_HEADER_LENGTH + length);
                reply.send_message(bytes);
                StreamRead::Sent(length)
            }
            Err(_) => reply_end_of_stream(reply, true),
        }
    }
}

/// Replies with the end of a stream: EIO if the stream has failed, otherwise end of file.
fn reply_end_of_stream(reply: Reply<'_>, failed: bool) -> StreamRead {
    if failed {
        reply.error(errno::EIO)
    } else {
        reply.data(&[])
    }
    StreamRead::Sent(0)
}
