//! The writer of a recording, which works while the recorded path runs.
//!
//! Input: the events of every space, in its own thread. Output: a file that only its owner can
//! read, because it may contain private traffic. The file ends with a digest of its contents.
//!
//! A space collects events in its own memory. It passes them to the writing thread as a chunk when
//! the chunk is full and before the space sleeps. If the disk is slower than the path, the path
//! waits, because a recording with gaps could not be replayed. At its size limit the recording
//! ends; the path continues, and further input is only counted.

use super::change::{self, RecordedChange};
use super::event;
use super::file_format::{self, LocalBlockKind, WriteValues};
use super::head::{FORMAT_VERSION, RecordingHead};
use crate::error::reason_text;
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
use sys::rollback::{RollbackLog, StepResource};

/// Default size limit of a recording in bytes.
pub const RECORDING_BYTES_DEFAULT: u64 = 1 << 30;
/// Minimum size limit in bytes: enough for the head and some blocks.
pub const RECORDING_BYTES_MIN: u64 = 64 << 10;
/// Number of bytes that a space collects before it passes them to the writing thread.
const CHUNK_BYTES: usize = 256 << 10;
/// Maximum number of chunks that wait for the writing thread.
const QUEUED_CHUNKS_MAX: usize = 32;
/// Maximum number of interface descriptions, one per source and link type. Frames beyond this limit
/// are stored as raw bytes.
const INTERFACES_MAX: usize = 64;

/// A recording that is being written.
#[derive(Debug)]
pub struct Recording {
    target: String,
    pub(super) seed: u64,
    pub(crate) machine: Machine,
    bytes_max: u64,
    bytes: AtomicU64,
    ended: AtomicBool,
    beyond: Mutex<MissingInput>,
    interfaces: Mutex<Vec<(u16, u16)>>,
    origins: Mutex<Vec<String>>,
    to: Mutex<Option<SyncSender<WriterMessage>>>,
    thread: Mutex<Option<JoinHandle<Result<u64, std::io::Error>>>>,
}

/// Input that is missing from a recording, because it arrived after the recording had reached its
/// size limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MissingInput {
    /// Number of blocks from sources that are missing from the recording.
    pub blocks: u64,
    /// Total size of the missing blocks in bytes.
    pub bytes: u64,
    /// Time, in ns on the path's clock, at which the first missing input arrived; `None` if nothing
    /// is missing.
    pub since: Option<Time>,
}

/// The result of writing a recording: the file, its size, and the input that did not fit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordingSummary {
    /// Path of the file, for messages.
    pub target: String,
    /// Length of the file in bytes; 0 after a failure to write it.
    pub bytes: u64,
    /// Size limit of the recording, in bytes. It applies to the head, the events and the changes,
    /// so the file may be slightly longer.
    pub bytes_max: u64,
    /// Amount and time of the input that arrived after the recording had reached its size limit.
    pub missing: MissingInput,
    /// The failure that ended the writing early, if any.
    pub failure: Option<String>,
}

enum WriterMessage {
    Bytes(Vec<u8>),
    /// Asks the writing thread to end the file with a last block that has these contents. The
    /// thread adds a digest of all bytes of the file up to and including these contents.
    End(Vec<u8>),
}

impl Recording {
    /// Starts a recording in a new file, with a thread that writes it. A size limit below
    /// [`RECORDING_BYTES_MIN`] is raised to [`RECORDING_BYTES_MIN`]. Fails if the file exists, or
    /// if the kernel refuses the file or the thread.
    pub fn create(
        path: &Path,
        head: &RecordingHead,
        bytes_max: u64,
        steps: &RollbackLog,
    ) -> Result<Arc<Self>, Failure> {
        let target = path.display().to_string();
        let step = |makes| {
            steps
                .announce_creation(makes, &target)
                .map_err(|error| creation_failure(&target, &error.into()))
        };
        step(StepResource::File)?;
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = opened.map_err(|error| creation_failure(&target, &error))?;
        let made = path.to_owned();
        // The file is empty and its name has not been published yet, so a rollback may remove it.
        steps.on_rollback(format!("record {target}"), move || drop(std::fs::remove_file(made)));
        let mut first = Vec::new();
        file_format::append_section_header(&mut first);
        file_format::append_local_block(&mut first, LocalBlockKind::RecordingHead, |out| {
            let pairs = head.to_pairs();
            out.put_u32s(&[FORMAT_VERSION, file_format::saturating_u32(pairs.len())]);
            for (name, value) in pairs {
                out.put_text(name);
                out.put_text(&value);
            }
        });
        let bytes = AtomicU64::new(first.len() as u64);
        let (to, from) = sync_channel(QUEUED_CHUNKS_MAX);
        step(StepResource::Thread)?;
        let thread = std::thread::Builder::new().name("record".to_owned());
        let thread = thread.spawn(move || write_messages(file, first, &from));
        let thread = thread.map_err(|error| Failure::new("start", "the writer of a record", error));
        Ok(Arc::new(Self {
            target,
            seed: head.seed,
            machine: head.machine.clone(),
            bytes_max: bytes_max.max(RECORDING_BYTES_MIN),
            bytes,
            ended: AtomicBool::new(false),
            beyond: Mutex::default(),
            interfaces: Mutex::default(),
            origins: Mutex::default(),
            to: Mutex::new(Some(to)),
            thread: Mutex::new(Some(thread?)),
        }))
    }

    /// Sets the names of the path's sources, by origin.
    pub(crate) fn set_source_names(&self, origins: &[String]) {
        *lock(&self.origins) = origins.to_vec();
    }

    /// Writes a change, unless the recording is full. The caller must have stopped the affected
    /// spaces and flushed their events.
    pub(crate) fn write_change(&self, change: &RecordedChange) {
        let mut bytes = Vec::new();
        change::encode_change(&mut bytes, change);
        if !self.is_over() && self.reserve(bytes.len()) {
            self.send(WriterMessage::Bytes(bytes));
        }
    }

    /// Returns true if the recording accepts no further events and changes.
    fn is_over(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Reserves `bytes` bytes of the size limit for data to be written. If fewer bytes remain, ends
    /// the recording and returns false.
    fn reserve(&self, bytes: usize) -> bool {
        // Relaxed suffices, because the counter guards no other memory.
        let before = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let fits = before + bytes as u64 <= self.bytes_max;
        if !fits {
            self.ended.store(true, Ordering::Relaxed);
        }
        fits
    }

    /// Returns the interface number for frames of this source and link type. On the first call for
    /// this pair, writes an interface description. Returns `None` if there are too many interfaces.
    fn interface_number(&self, origin: u16, link: u16) -> Option<u32> {
        let mut known = lock(&self.interfaces);
        if let Some(at) = known.iter().position(|other| *other == (origin, link)) {
            return u32::try_from(at).ok();
        }
        if known.len() >= INTERFACES_MAX {
            return None;
        }
        let name = lock(&self.origins).get(usize::from(origin)).cloned().unwrap_or_default();
        let mut bytes = Vec::new();
        file_format::append_interface(&mut bytes, link, &name);
        // Sending under the lock puts the description before any chunk with a frame of this
        // interface.
        self.send(WriterMessage::Bytes(bytes));
        known.push((origin, link));
        u32::try_from(known.len() - 1).ok()
    }

    fn send(&self, message: WriterMessage) {
        let to = lock(&self.to).clone();
        if to.is_none_or(|to| to.send(message).is_err()) {
            // The write failed, and `finish` reports the cause.
            self.ended.store(true, Ordering::Relaxed);
        }
    }

    /// Ends the recording with the digest of the run. All spaces of the path must have ended.
    /// Blocks until the file is written.
    pub fn finish(&self, digest: &str) -> RecordingSummary {
        let beyond = *lock(&self.beyond);
        let mut last = Vec::new();
        last.put_u32s(&[u32::from(self.is_over())]);
        last.put_u64s(&[beyond.blocks, beyond.bytes, beyond.since.unwrap_or(Time::MAX)]);
        last.put_text(digest);
        self.send(WriterMessage::End(last));
        *lock(&self.to) = None;
        let thread = lock(&self.thread).take();
        let write_messages = thread.map(JoinHandle::join);
        let (bytes, failure) = match write_messages {
            Some(Ok(Ok(bytes))) => (bytes, None),
            Some(Ok(Err(error))) => (0, Some(reason_text(&error))),
            Some(Err(_)) | None => (0, Some("its writer has ended".to_owned())),
        };
        let (target, bytes_max) = (self.target.clone(), self.bytes_max);
        RecordingSummary { target, bytes, bytes_max, missing: beyond, failure }
    }
}

/// Writes `first`, and then the bytes of all messages, to the file until the recording ends.
/// Returns the number of bytes written.
fn write_messages(
    mut file: File,
    first: Vec<u8>,
    from: &Receiver<WriterMessage>,
) -> std::io::Result<u64> {
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
            WriterMessage::Bytes(bytes) => write(&bytes, &mut digest)?,
            WriterMessage::End(mut rest) => {
                // The padding is part of the digest, so the block must not need any padding of its
                // own.
                rest.resize(rest.len().next_multiple_of(4), 0);
                let sum = digest.clone().chain_update(&rest).finalize();
                let mut last = Vec::new();
                file_format::append_local_block(&mut last, LocalBlockKind::End, |out| {
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

fn creation_failure(target: &str, error: &std::io::Error) -> Failure {
    let failure =
        Failure::new("record into", target, reason_text(error)).with_errno(error.raw_os_error());
    match error.kind() {
        ErrorKind::AlreadyExists => {
            failure.with_hint("a record never overwrites a file: name a new file")
        }
        _ => failure,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The writer of one space's events, which collects them in chunks.
#[derive(Debug)]
pub(crate) struct EventRecorder {
    recording: Arc<Recording>,
    space: u32,
    chunk: Vec<u8>,
    /// Input that arrived after the recording had reached its size limit.
    beyond: MissingInput,
}

impl EventRecorder {
    pub(crate) fn new(recording: Arc<Recording>, space: usize) -> Self {
        let space = u32::try_from(space).unwrap_or(u32::MAX);
        Self { recording, space, chunk: Vec::new(), beyond: MissingInput::default() }
    }

    /// Accepts the newest events of the chunk, which begin at offset `begin`, if the recording's
    /// size limit permits them. Otherwise removes them from the chunk and returns false.
    fn commit(&mut self, begin: usize) -> bool {
        if !self.recording.reserve(self.chunk.len() - begin) {
            self.chunk.truncate(begin);
            return false;
        }
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush();
        }
        true
    }
}

impl Journal for EventRecorder {
    fn record_event(&mut self, event: &SpaceEvent) {
        if !self.recording.is_over() {
            let begin = self.chunk.len();
            event::encode_event(&mut self.chunk, event);
            self.commit(begin);
        }
    }

    fn record_pull(
        &mut self,
        event: &SpaceEvent,
        blocks: &mut dyn Iterator<Item = (Entry, &[u8])>,
    ) {
        let SpaceEvent::Pull { now, .. } = event else { return };
        let (over, begin) = (self.recording.is_over(), self.chunk.len());
        if !over {
            event::encode_event(&mut self.chunk, event);
        }
        let mut all = MissingInput::default();
        for (entry, bytes) in blocks {
            all.blocks += 1;
            all.bytes += u64::from(entry.pointer.length());
            if !over {
                let Entry { context, marks, .. } = entry;
                let framed = marks.link < Marks::DESCRIPTION_LINK_TYPE && !entry.pointer.is_hole();
                let known =
                    framed.then(|| self.recording.interface_number(context.origin, marks.link));
                file_format::append_entry(&mut self.chunk, &entry, bytes, known.flatten());
            }
        }
        if over || !self.commit(begin) {
            self.beyond.since.get_or_insert(*now);
            self.beyond.blocks += all.blocks;
            self.beyond.bytes += all.bytes;
        }
    }

    /// Passes the collected events, a chunk, to the writing thread. Blocks while
    /// [`QUEUED_CHUNKS_MAX`] chunks wait to be written.
    fn flush(&mut self) {
        if self.chunk.is_empty() {
            return;
        }
        let chunk = std::mem::take(&mut self.chunk);
        let mut bytes = Vec::with_capacity(chunk.len() + 32);
        file_format::append_local_block(&mut bytes, LocalBlockKind::Chunk, |out| {
            out.put_u32s(&[self.space, file_format::saturating_u32(chunk.len())]);
        });
        bytes.extend_from_slice(&chunk);
        self.recording.send(WriterMessage::Bytes(bytes));
    }
}

impl Drop for EventRecorder {
    fn drop(&mut self) {
        self.flush();
        let mut all = lock(&self.recording.beyond);
        all.blocks += self.beyond.blocks;
        all.bytes += self.beyond.bytes;
        all.since = [all.since, self.beyond.since].into_iter().flatten().min();
    }
}
