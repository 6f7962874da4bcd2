//! Open streams. Each is a separate tap at a node of a path. A reader gets the data in its own
//! pipe, at its own pace. A read without data waits here, without occupying a thread, until the
//! pipe has data, the stream ends, or a signal interrupts the caller. The tap begins when the file
//! is opened and ends when the file is closed.

mod moves;

pub use moves::Continuation;

use crate::entries::StreamForm;
use crate::events::Follower;
use crate::failures::Failures;
use crate::protocol::{Reply, errno};
use crate::totals::Totals;
use crate::transfer::{PipeRead, TransferPipes};
use crate::tree::DirectoryId;
use moves::Move;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use streamline::paths::{PATH_ENDED, PathClient, TapReport};
use sys::watcher::{Interest, Watcher};

/// The open streams.
#[derive(Debug)]
pub struct Streams {
    device: Arc<File>,
    watcher: Watcher,
    open: Mutex<HashMap<u64, OpenStream>>,
    /// Sender of the taps whose end must be examined.
    ends: mpsc::Sender<StreamEnd>,
    failures: Arc<Failures>,
    transfers: TransferPipes,
}

/// Receiver of the taps whose end must be examined, for [`Streams::examine_ends`].
pub type StreamEnds = mpsc::Receiver<StreamEnd>;

/// A tap whose stream has ended or was closed.
#[derive(Debug)]
pub struct StreamEnd {
    handle: u64,
    uid: u32,
    tap: PathClient,
    is_late: bool,
}

/// An open stream.
#[derive(Debug)]
struct OpenStream {
    pipe: File,
    /// The origin of the bytes, or `None` while the end of the stream is examined. Dropping the
    /// origin ends it.
    of: Option<StreamOrigin>,
    /// True if the stream ended before the path did, or `None` until this is known.
    failed: Option<bool>,
    /// The user who opened the stream.
    uid: u32,
    /// Byte counters of the directory; `None` for the events of the daemon.
    totals: Option<Arc<Totals>>,
    /// Reads that wait for data, oldest first.
    waiting: Vec<WaitingRead>,
    /// The number under which callers of poll(2) wait, if any do.
    wake: Option<u64>,
    watched: bool,
    /// The node or class whose blocks the stream carries, and their form; `None` for events.
    place: Option<(DirectoryId, StreamForm)>,
    /// The state of a move of the node to another path, during and after such an edit.
    moving: Option<Move>,
    /// True if the process of the path exited before the reader had read everything.
    is_late: bool,
}

/// The user, the directory, the form and the byte counters of a stream that is being opened.
#[derive(Debug)]
pub struct StreamFacts {
    /// User who opened the stream.
    pub uid: u32,
    /// The node or class, and the form of the blocks; `None` for the events of the daemon.
    pub place: Option<(DirectoryId, StreamForm)>,
    /// Byte counters of the directory; `None` for the events of the daemon.
    pub totals: Option<Arc<Totals>>,
}

/// The origin of a stream.
#[derive(Debug)]
pub enum StreamOrigin {
    /// The connection of a tap.
    Path(PathClient),
    /// The events of the daemon.
    Events(Follower),
}

#[derive(Clone, Copy, Debug)]
struct WaitingRead {
    unique: u64,
    size: u32,
}

/// Reason of a stream that may be incomplete.
const LATE: &str = "a stream may be incomplete: its path had ended before the reader had read \
                    everything, and did not say how many blocks were skipped";

/// Event bits of poll(2): data can be read.
const READABLE: u32 = 0x001 | 0x040;
/// Event bit of poll(2): the other end has been closed.
const CLOSED: u32 = 0x010;

impl Streams {
    /// Creates the set of open streams of a mount.
    pub fn new(device: Arc<File>, failures: Arc<Failures>) -> sys::Result<(Self, StreamEnds)> {
        let (ends, endings) = mpsc::channel();
        let (open, watcher, transfers) = (Mutex::default(), Watcher::new()?, TransferPipes::new()?);
        let streams = Self { device, watcher, open, ends, failures, transfers };
        Ok((streams, endings))
    }

    /// Adds a stream that arrives through a pipe. Reads from the pipe must not block.
    pub fn add(&self, handle: u64, pipe: File, (of, facts): (StreamOrigin, StreamFacts)) {
        let StreamFacts { uid, place, totals } = facts;
        let stream = OpenStream {
            pipe,
            of: Some(of),
            failed: None,
            uid,
            totals,
            waiting: Vec::new(),
            wake: None,
            watched: false,
            place,
            moving: None,
            is_late: false,
        };
        self.lock().insert(handle, stream);
    }

    /// Returns true if the handle belongs to a stream.
    #[must_use]
    pub fn contains(&self, handle: u64) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Replies to a read immediately if the stream has data or has ended, or if `waits` is false.
    /// Otherwise, the reply is sent later.
    pub fn read(&self, handle: u64, (unique, size): (u64, u32), waits: bool) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(stream) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        let read = if stream.waiting.is_empty() {
            stream.reply(&self.transfers, reply, size)
        } else {
            PipeRead::Empty
        };
        match read {
            PipeRead::End => {
                stream.waiting.push(WaitingRead { unique, size });
                return self.examine(handle, stream);
            }
            PipeRead::Failed => return reply.error(errno::EIO),
            PipeRead::Sent(_) => return,
            PipeRead::Empty => {}
        }
        if !waits {
            return reply.error(errno::EAGAIN);
        }
        stream.waiting.push(WaitingRead { unique, size });
        self.watch(handle, stream);
    }

    /// Replies to a poll. If `wake` is set, callers are notified later under that number.
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

    /// Ends a waiting read whose caller received a signal. Returns false if no such read is
    /// waiting.
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

    /// Ends a stream and its tap. Returns false if the handle does not belong to a stream.
    pub fn close(&self, handle: u64) -> bool {
        let Some(mut stream) = self.lock().remove(&handle) else { return false };
        if let Some(StreamOrigin::Path(tap)) = stream.of.take() {
            // If the thread that examines ends no longer runs, the tap ends here.
            let (uid, is_late) = (stream.uid, stream.is_late);
            let _ = self.ends.send(StreamEnd { handle, uid, tap, is_late });
        }
        if stream.watched {
            let _ = self.watcher.forget(&stream.pipe);
        }
        for read in &stream.waiting {
            Reply::new(&self.device, read.unique).error(errno::EINTR);
        }
        true
    }

    /// Serves waiting reads and polls. Never returns.
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
        while let Some(WaitingRead { unique, size }) = stream.waiting.first().copied() {
            let reply = Reply::new(&self.device, unique);
            match stream.reply(&self.transfers, reply, size) {
                PipeRead::Sent(_) => {}
                PipeRead::Empty => break,
                PipeRead::End => return self.examine(handle, stream),
                PipeRead::Failed => reply.error(errno::EIO),
            }
            stream.waiting.remove(0);
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

    /// Passes the tap of an ended stream to the thread that examines ends. Reads of the stream wait
    /// until the examination is complete.
    fn examine(&self, handle: u64, stream: &mut OpenStream) {
        if stream.watched {
            stream.watched = false;
            let _ = self.watcher.forget(&stream.pipe);
        }
        match stream.of.take() {
            Some(StreamOrigin::Path(tap)) => {
                let (uid, is_late) = (stream.uid, stream.is_late);
                let _ = self.ends.send(StreamEnd { handle, uid, tap, is_late });
            }
            Some(StreamOrigin::Events(_)) => self.end(stream, false),
            None => {}
        }
    }

    /// Queries each ended tap for the reason why it ended and for blocks that its reader has lost.
    /// Blocks while a path does not reply. Returns when the streams are dropped.
    pub fn examine_ends(&self, endings: &StreamEnds) {
        while let Ok(StreamEnd { handle, uid, tap, is_late }) = endings.recv() {
            // A path that does not reply has ended.
            let report = tap.tap_report();
            drop(tap);
            if report.is_err() && is_late {
                self.failures.set(uid, LATE.to_owned());
            }
            let report = report.unwrap_or_default();
            let over = report.over.as_ref().filter(|why| *why != PATH_ENDED);
            if report.skipped > 0 || report.cut > 0 {
                let TapReport { skipped, cut, missing, .. } = &report;
                let missing = missing.as_deref().unwrap_or("unknown");
                let why = format!(
                    "a stream was incomplete: {skipped} blocks were skipped, because its reader \
                     was too slow (numbers {missing}), and {cut} messages were cut"
                );
                self.failures.set(uid, why);
            }
            let mut open = self.lock();
            if let Some(stream) = open.get_mut(&handle) {
                if self.outlives_tap(handle, stream, over.map(String::as_str)) {
                    continue;
                }
                over.iter().for_each(|why| self.failures.set(uid, (*why).clone()));
                self.end(stream, over.is_some());
            }
        }
    }

    /// Ends the waiting reads of a stream, and all later reads.
    fn end(&self, stream: &mut OpenStream, failed: bool) {
        stream.failed = Some(failed);
        for read in stream.waiting.drain(..) {
            let reply = Reply::new(&self.device, read.unique);
            if failed { reply.error(errno::EIO) } else { reply.data(&[]) }
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
    /// Replies with the data that the pipe contains, up to `size` bytes. Does not block.
    fn reply(&mut self, transfers: &TransferPipes, reply: Reply<'_>, size: u32) -> PipeRead {
        if self.failed == Some(true) {
            return PipeRead::Failed;
        }
        match transfers.reply(&self.pipe, reply, size) {
            PipeRead::End if self.failed.is_some() => {
                reply.data(&[]);
                PipeRead::Sent(0)
            }
            PipeRead::Sent(length) => {
                self.totals.iter().for_each(|totals| totals.add_read(length));
                self.is_late |= self.has_lost_path();
                PipeRead::Sent(length)
            }
            read => read,
        }
    }

    /// Returns true if the pipe contains data, and the process of the path has exited.
    fn has_lost_path(&self) -> bool {
        let Some(StreamOrigin::Path(tap)) = &self.of else { return false };
        sys::pipe::readable_length(&self.pipe).is_ok_and(|left| left > 0)
            && sys::poll::readable(&[tap.process()], Some(Duration::ZERO)) == [true]
    }

    /// Returns the current events of poll(2).
    fn events(&self) -> u32 {
        let pipe = [self.pipe.as_fd()];
        let (readable, gone) = sys::poll::readable_or_gone(&pipe, &pipe, Some(Duration::ZERO));
        let bits = |ready: Vec<bool>, events| u32::from(ready == [true]) * events;
        bits(readable, READABLE) | bits(gone, CLOSED)
    }
}
