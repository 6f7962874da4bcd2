//! Streams that are open for writing. Each open file is one writer, which adds blocks at the output
//! of a node until the file is closed.
//!
//! The bytes of a write are sent to the writer's socket, in packets, until the socket is full. The
//! rest of the write waits here, without occupying a thread, until the path has read from the
//! socket, a signal interrupts the caller, or the path ends. When the file is closed, an end
//! message follows the data in the socket.

use crate::failures::LatestFailures;
use crate::protocol::{Reply, errno};
use crate::totals::Totals;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use streamline::paths::{InputClosed, WriterSocket};
use sys::watcher::{EpollWatcher, EventInterest};

/// The open writers of a mount.
#[derive(Debug)]
pub struct Writers {
    device: Arc<File>,
    watcher: EpollWatcher,
    open: Mutex<HashMap<u64, OpenWriter>>,
    failures: Arc<LatestFailures>,
}

/// A stream that is open for writing.
#[derive(Debug)]
struct OpenWriter {
    socket: WriterSocket,
    /// Id of the user who opened the file.
    uid: u32,
    totals: Arc<Totals>,
    /// Writes that wait for room in the socket, oldest first.
    waiting_writes: VecDeque<WaitingWrite>,
    /// FUSE poll handle (`kh`) through which the kernel is notified when the socket has room;
    /// `None` if no caller polls.
    poll_number: Option<u64>,
    is_watched: bool,
    /// True if the program has closed the file. The end message may not have been sent yet, for
    /// lack of room in the socket.
    is_closed: bool,
}

#[derive(Debug)]
struct WaitingWrite {
    unique: u64,
    bytes: Vec<u8>,
    /// Number of bytes of this write that the socket has accepted.
    written: usize,
}

/// Events of poll(2): data can be written.
const POLLOUT_EVENTS: u32 = 0x004 | 0x100;

impl Writers {
    /// Creates an empty set of writers.
    pub fn new(device: Arc<File>, failures: Arc<LatestFailures>) -> sys::Result<Self> {
        Ok(Self { device, watcher: EpollWatcher::new()?, open: Mutex::default(), failures })
    }

    /// Adds a stream that a program has opened for writing.
    pub fn add(&self, handle: u64, socket: WriterSocket, (uid, totals): (u32, Arc<Totals>)) {
        let writer = OpenWriter {
            socket,
            uid,
            totals,
            waiting_writes: VecDeque::new(),
            poll_number: None,
            is_watched: false,
            is_closed: false,
        };
        self.lock().insert(handle, writer);
    }

    /// Returns true if the handle belongs to a writer.
    #[must_use]
    pub fn contains(&self, handle: u64) -> bool {
        self.lock().contains_key(&handle)
    }

    /// Replies to a write immediately if the socket accepts all bytes, if the path has ended, or if
    /// `waits` is false. Otherwise sends the reply later.
    pub fn write(&self, handle: u64, (unique, bytes): (u64, Vec<u8>), waits: bool) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(writer) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        let mut write = WaitingWrite { unique, bytes, written: 0 };
        // Writes through one open file keep their order.
        let done = writer
            .waiting_writes
            .is_empty()
            .then(|| write.write_remaining((&mut writer.socket, &writer.totals)));
        match done.unwrap_or(Ok(false)) {
            Ok(false) if waits => {
                writer.waiting_writes.push_back(write);
                self.watch(handle, writer);
            }
            Ok(false) if write.written == 0 => reply.error(errno::EAGAIN),
            Ok(_) => reply.written(write.written),
            Err(ended) => self.refuse(reply, &write, (writer.uid, &ended)),
        }
    }

    /// Replies to a write whose path has ended: with the number of bytes that the socket had
    /// accepted or, if it had accepted none, with EPIPE.
    fn refuse(&self, reply: Reply<'_>, write: &WaitingWrite, (uid, ended): (u32, &InputClosed)) {
        self.failures.set_failure(uid, ended.to_string());
        match write.written {
            0 => reply.error(errno::EPIPE),
            written => reply.written(written),
        }
    }

    /// Replies to a poll of a stream that is open for writing. If no event is ready and `wake` is
    /// `Some`, a later event is reported under the number `wake`.
    pub fn poll(&self, handle: u64, unique: u64, wake: Option<u64>) {
        let mut open = self.lock();
        let reply = Reply::new(&self.device, unique);
        let Some(writer) = open.get_mut(&handle) else { return reply.error(errno::ESTALE) };
        let events = writer.events();
        if events == 0 && wake.is_some() {
            writer.poll_number = wake;
            self.watch(handle, writer);
        }
        reply.polled(events);
    }

    /// Ends a waiting write whose caller received a signal: replies with the number of bytes
    /// written so far, or EINTR if there are none. Returns false if no such write is waiting.
    pub fn interrupt(&self, unique: u64) -> bool {
        let mut open = self.lock();
        for writer in open.values_mut() {
            let Some(at) = writer.waiting_writes.iter().position(|write| write.unique == unique)
            else {
                continue;
            };
            let written = writer.waiting_writes.remove(at).map_or(0, |write| write.written);
            let reply = Reply::new(&self.device, unique);
            match written {
                0 => reply.error(errno::EINTR),
                written => reply.written(written),
            }
            return true;
        }
        false
    }

    /// Closes a writer, at once or as soon as the socket has room for the end message. Does not
    /// block. Returns false if the handle does not belong to a writer.
    pub fn close(&self, handle: u64) -> bool {
        let mut open = self.lock();
        let Some(writer) = open.get_mut(&handle) else { return false };
        writer.is_closed = true;
        if writer.send_end_message() {
            self.remove(&mut open, handle);
        } else {
            self.watch(handle, writer);
        }
        true
    }

    /// Serves waiting writes and polls. Never returns.
    pub fn serve(&self) {
        loop {
            for event in self.watcher.wait(Some(Duration::from_secs(3600))) {
                self.answer_waiting_writes(event.number);
            }
        }
    }

    fn answer_waiting_writes(&self, handle: u64) {
        let mut open = self.lock();
        let Some(writer) = open.get_mut(&handle) else { return };
        while let Some(write) = writer.waiting_writes.front_mut() {
            let done = write.write_remaining((&mut writer.socket, &writer.totals));
            if done == Ok(false) {
                break;
            }
            let Some(write) = writer.waiting_writes.pop_front() else { break };
            let reply = Reply::new(&self.device, write.unique);
            match done {
                Ok(_) => reply.written(write.written),
                Err(ended) => self.refuse(reply, &write, (writer.uid, &ended)),
            }
        }
        if let Some(wake) = writer.poll_number.filter(|_| writer.events() != 0) {
            writer.poll_number = None;
            Reply::wake_poll_callers(&self.device, wake);
        }
        if writer.is_closed && writer.waiting_writes.is_empty() && writer.send_end_message() {
            return self.remove(&mut open, handle);
        }
        if writer.waiting_writes.is_empty() && writer.poll_number.is_none() && !writer.is_closed {
            writer.is_watched = false;
            let _ = self.watcher.unwatch(&writer.socket);
        }
    }

    fn remove(&self, open: &mut HashMap<u64, OpenWriter>, handle: u64) {
        if let Some(writer) = open.remove(&handle) {
            if writer.is_watched {
                let _ = self.watcher.unwatch(&writer.socket);
            }
            for write in &writer.waiting_writes {
                Reply::new(&self.device, write.unique).error(errno::EINTR);
            }
        }
    }

    fn watch(&self, handle: u64, writer: &mut OpenWriter) {
        if !writer.is_watched
            && self.watcher.watch(&writer.socket, handle, EventInterest::ReadWrite).is_ok()
        {
            writer.is_watched = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, OpenWriter>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitingWrite {
    /// Writes as many of the remaining bytes as the socket accepts. Returns true if all bytes have
    /// been written.
    fn write_remaining(
        &mut self,
        (socket, totals): (&mut WriterSocket, &Totals),
    ) -> Result<bool, InputClosed> {
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match socket.write(rest)? {
                Some(length) => {
                    self.written += length;
                    totals.add_written_bytes(length);
                }
                None => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl OpenWriter {
    /// Tells the path, with an end message, that the writer has ended. Returns false if the socket
    /// has no room for the message now.
    fn send_end_message(&mut self) -> bool {
        // A path that has ended needs no end message.
        self.socket.end_session().unwrap_or(true)
    }

    /// Returns the current event bits for poll(2). If the path has ended, the file counts as
    /// writable, because a write fails immediately.
    fn events(&self) -> u32 {
        match sys::poll::wait_until_writable(&self.socket, Duration::ZERO) {
            true => POLLOUT_EVENTS,
            false => 0,
        }
    }
}
