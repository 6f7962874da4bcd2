//! Writes a record beside a running path.
//!
//! In: the turns of every space, from the threads that take them. Out: a file that only its owner
//! can read, since it holds what others sent, with a digest over all of it at its end. A space puts
//! its turns into memory of its own and hands over a chunk when that is full or when it would sleep
//! anyway; one thread writes. Where the disk is slower than the path, the path waits: a record with
//! gaps could not be played. When as much was written as may be, the record ends, the path goes on,
//! and what came after that is counted.

use super::change::{self, Change};
use super::event;
use super::form::{self, Local, Put};
use super::head::{Head, VERSION};
use abi::{Entry, Marks};
use endpoint::Failure;
use filter::Time;
use pipeline::plan::Machine;
use runtime::space::events::{Journal, SpaceEvent};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use sys::steps::{Resource, Steps};

/// Default limit of a record, in bytes.
pub const BYTES: u64 = 1 << 30;
/// The least that makes sense: the head, and some blocks.
pub const BYTES_MIN: u64 = 64 << 10;
/// Bytes that a space collects before it hands them over.
const CHUNK: usize = 256 << 10;
/// Maximum number of chunks that wait for the disk.
const WAITING: usize = 32;
/// Maximum number of source link types stored as interfaces of their own; frames of others are kept
/// as bytes.
const INTERFACES_MAX: usize = 64;

/// A record that is being written.
#[derive(Debug)]
pub struct Recording {
    target: String,
    seed: u64,
    machine: Machine,
    bytes_max: u64,
    bytes: AtomicU64,
    ended: AtomicBool,
    beyond: Mutex<Beyond>,
    interfaces: Mutex<Vec<(u16, u16)>>,
    origins: Mutex<Vec<String>>,
    to: Mutex<Option<SyncSender<Message>>>,
    thread: Mutex<Option<JoinHandle<Result<u64, std::io::Error>>>>,
}

/// Input that came when the record was full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beyond {
    /// Blocks of sources.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The path's time of the first turn that is not in it.
    pub since: Option<Time>,
}

/// The result of writing a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// The file.
    pub target: String,
    /// Its length, in bytes.
    pub bytes: u64,
    /// Its limit, in bytes.
    pub bytes_max: u64,
    /// Input that the record lacks.
    pub beyond: Beyond,
    /// The reason it could not be written to its end.
    pub failure: Option<String>,
}

enum Message {
    Bytes(Vec<u8>),
    /// The last block, to be closed with the digest of all before.
    End(Vec<u8>),
}

impl Recording {
    /// Begins a record in a new file.
    pub fn create(
        path: &Path,
        head: &Head,
        bytes_max: u64,
        steps: &Steps,
    ) -> Result<Arc<Self>, Failure> {
        let target = path.display().to_string();
        let step =
            |makes| steps.take(makes, &target).map_err(|error| refused(&target, &error.into()));
        step(Resource::File)?;
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = opened.map_err(|error| refused(&target, &error))?;
        let made = path.to_owned();
        // It is empty, and nobody was told of it.
        steps.on_rollback(format!("record {target}"), move || drop(std::fs::remove_file(made)));
        let mut first = Vec::new();
        form::section(&mut first);
        form::local(&mut first, Local::Head, |out| {
            out.word(VERSION);
            let pairs = head.pairs();
            out.word(u32::try_from(pairs.len()).unwrap_or(0));
            for (name, value) in pairs {
                out.text(name);
                out.text(&value);
            }
        });
        let bytes = AtomicU64::new(first.len() as u64);
        let (to, from) = sync_channel(WAITING);
        step(Resource::Thread)?;
        let thread = std::thread::Builder::new().name("record".to_owned());
        let thread = thread.spawn(move || written(file, first, &from));
        let thread = thread.map_err(|error| Failure::new("start", "the writer of a record", error));
        Ok(Arc::new(Self {
            target,
            seed: head.seed,
            machine: head.machine.clone(),
            bytes_max: bytes_max.max(BYTES_MIN),
            bytes,
            ended: AtomicBool::new(false),
            beyond: Mutex::default(),
            interfaces: Mutex::default(),
            origins: Mutex::default(),
            to: Mutex::new(Some(to)),
            thread: Mutex::new(Some(thread?)),
        }))
    }

    /// Names the sources of the path, by origin.
    pub(crate) fn name(&self, origins: &[String]) {
        *locked(&self.origins) = origins.to_vec();
    }

    pub(super) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the planner's view of the machine: another could not be repeated.
    pub(crate) const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Writes a change down, unless the record is full. The spaces that it differs in stand still,
    /// and have handed over all turns that they took.
    pub(crate) fn change(&self, change: &Change) {
        let mut bytes = Vec::new();
        change::put(&mut bytes, change);
        if !self.is_over() && self.claim(bytes.len()) {
            self.send(Message::Bytes(bytes));
        }
    }

    /// Returns true if nothing more is written.
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Resource room for so many bytes; answers whether there is.
    fn claim(&self, bytes: usize) -> bool {
        // A count, which guards no other memory.
        let before = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let fits = before + bytes as u64 <= self.bytes_max;
        if !fits {
            self.ended.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// The number of the interface of frames of this source and link type.
    fn interface(&self, origin: u16, link: u16) -> Option<u32> {
        let mut known = locked(&self.interfaces);
        if let Some(at) = known.iter().position(|other| *other == (origin, link)) {
            return u32::try_from(at).ok();
        }
        if known.len() >= INTERFACES_MAX {
            return None;
        }
        let name = locked(&self.origins).get(usize::from(origin)).cloned().unwrap_or_default();
        let mut bytes = Vec::new();
        form::interface(&mut bytes, link, &name);
        // Before any chunk in which a frame names it: those who know it wait for this lock.
        self.send(Message::Bytes(bytes));
        known.push((origin, link));
        u32::try_from(known.len() - 1).ok()
    }

    fn send(&self, message: Message) {
        let to = locked(&self.to).clone();
        if to.is_none_or(|to| to.send(message).is_err()) {
            // The disk refused; the thread says why when it is asked.
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the record with what the run did. All spaces of the path must have ended.
    pub fn finish(&self, told: &str) -> Summary {
        let beyond = *locked(&self.beyond);
        let mut last = Vec::new();
        last.word(u32::from(self.is_over()));
        last.long(beyond.blocks);
        last.long(beyond.bytes);
        last.long(beyond.since.unwrap_or(Time::MAX));
        last.text(told);
        self.send(Message::End(last));
        *locked(&self.to) = None;
        let thread = locked(&self.thread).take();
        let written = thread.map(JoinHandle::join);
        let (bytes, failure) = match written {
            Some(Ok(Ok(bytes))) => (bytes, None),
            Some(Ok(Err(error))) => (0, Some(reason(&error))),
            Some(Err(_)) | None => (0, Some("its writer has ended".to_owned())),
        };
        let (target, bytes_max) = (self.target.clone(), self.bytes_max);
        Summary { target, bytes, bytes_max, beyond, failure }
    }
}

/// Writes what comes until the end, and answers how much that was.
fn written(mut file: File, first: Vec<u8>, from: &Receiver<Message>) -> std::io::Result<u64> {
    let mut digest = Sha256::new();
    let mut all = 0;
    let mut write = |bytes: &[u8], digest: &mut Sha256| {
        digest.update(bytes);
        all += bytes.len() as u64;
        file.write_all(bytes)
    };
    write(&first, &mut digest)?;
    while let Ok(message) = from.recv() {
        match message {
            Message::Bytes(bytes) => write(&bytes, &mut digest)?,
            Message::End(mut rest) => {
                // Nothing fills up the block behind what the digest is over.
                rest.resize(rest.len().next_multiple_of(4), 0);
                let sum = digest.clone().chain_update(&rest).finalize();
                let mut last = Vec::new();
                form::local(&mut last, Local::End, |out| {
                    out.extend_from_slice(&sum);
                    out.extend_from_slice(&rest);
                });
                write(&last, &mut digest)?;
                break;
            }
        }
    }
    file.sync_data()?;
    Ok(all)
}

fn refused(target: &str, error: &std::io::Error) -> Failure {
    let failure = Failure::new("record into", target, reason(error)).errno(error.raw_os_error());
    match error.kind() {
        ErrorKind::AlreadyExists => failure.hint("a record replaces nothing: name a new file"),
        _ => failure,
    }
}

fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes one space's part of a record.
#[derive(Debug)]
pub(crate) struct Recorder {
    recording: Arc<Recording>,
    space: u32,
    chunk: Vec<u8>,
    /// Blocks that came when the record was full.
    beyond: Beyond,
}

impl Recorder {
    pub(crate) fn new(recording: Arc<Recording>, space: usize) -> Self {
        let space = u32::try_from(space).unwrap_or(u32::MAX);
        Self { recording, space, chunk: Vec::new(), beyond: Beyond::default() }
    }

    /// Keeps what was put into the chunk from here on, if the record has room for it.
    fn commit(&mut self, begin: usize) -> bool {
        if !self.recording.claim(self.chunk.len() - begin) {
            self.chunk.truncate(begin);
            return false;
        }
        if self.chunk.len() >= CHUNK {
            self.flush();
        }
        true
    }
}

impl Journal for Recorder {
    fn event(&mut self, event: &SpaceEvent) {
        if !self.recording.is_over() {
            let begin = self.chunk.len();
            event::put(&mut self.chunk, event);
            self.commit(begin);
        }
    }

    fn pull(&mut self, event: &SpaceEvent, blocks: &mut dyn Iterator<Item = (Entry, &[u8])>) {
        let SpaceEvent::Pull { now, .. } = event else { return };
        let (over, begin) = (self.recording.is_over(), self.chunk.len());
        if !over {
            event::put(&mut self.chunk, event);
        }
        let mut all = Beyond::default();
        for (entry, bytes) in blocks {
            all.blocks += 1;
            all.bytes += u64::from(entry.pointer.length());
            if !over {
                let Entry { context, marks, .. } = entry;
                let framed = marks.link < Marks::DESCRIBED && !entry.pointer.is_hole();
                let known = framed.then(|| self.recording.interface(context.origin, marks.link));
                form::entry(&mut self.chunk, &entry, bytes, known.flatten());
            }
        }
        if over || !self.commit(begin) {
            self.beyond.since.get_or_insert(*now);
            self.beyond.blocks += all.blocks;
            self.beyond.bytes += all.bytes;
        }
    }

    /// Hands over what there is: before the space sleeps, and when it ends.
    fn flush(&mut self) {
        if self.chunk.is_empty() {
            return;
        }
        let chunk = std::mem::take(&mut self.chunk);
        let mut bytes = Vec::with_capacity(chunk.len() + 32);
        form::local(&mut bytes, Local::Chunk, |out| {
            out.word(self.space);
            out.word(u32::try_from(chunk.len()).unwrap_or(0));
        });
        bytes.extend_from_slice(&chunk);
        self.recording.send(Message::Bytes(bytes));
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.flush();
        let mut all = locked(&self.recording.beyond);
        all.blocks += self.beyond.blocks;
        all.bytes += self.beyond.bytes;
        all.since = [all.since, self.beyond.since].into_iter().flatten().min();
    }
}
