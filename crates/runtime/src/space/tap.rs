//! The handle of a tap, the thread that writes the tap's records, and the state that both share
//! with the space. The module [`super::taps`] explains taps and histories, which store a node's
//! past output so that a tap can begin in the past.

use super::class_selection::SelectedClasses;
use super::tap_form::TapForm;
use super::tap_pipe::TapPipe;
use super::tap_writer::TapWriter;
use crate::ledger::LossRanges;
use endpoint::history::FrameHeader;
use endpoint::tap_ring::{TapRingLevel, TapRingWriter};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::memory::Memfd;

/// Maximum number of bytes that wait for a tap's reader.
pub const TAP_BACKLOG_BYTES_MAX: usize = 8 << 20;

/// The policy for frames that arrive while the backlog of a tap is full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OverrunPolicy {
    /// Skip the frames that do not fit, and count them.
    #[default]
    Skip,
    /// End the tap at the first frame that does not fit into the backlog.
    End,
}

/// The event that ended a tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapEndReason {
    /// The reader has closed the pipe or exited.
    ReaderLeft,
    /// The reader has read nothing for the contained time.
    ReaderStalled(Duration),
    /// The tap's backlog was full, and its policy is [`OverrunPolicy::End`].
    BacklogFull,
    /// There is no memory for the records that the reader has not read.
    NoMemory,
    /// The node was removed, or moved to another space.
    NodeMoved,
    /// The node moved into a kernel program that does not export its output.
    NotExported,
    /// The path to which the node belongs has ended.
    PathEnded,
    /// The path has ended, and there was no memory for the records that the reader had not read.
    UnreadRecordsLost,
}

impl std::fmt::Display for TapEndReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ReaderLeft => f.write_str("its reader has disconnected"),
            Self::ReaderStalled(patience) => {
                write!(f, "its reader read nothing for {} ms", patience.as_millis())
            }
            Self::BacklogFull => {
                write!(f, "its reader was {} MB behind", TAP_BACKLOG_BYTES_MAX >> 20)
            }
            Self::NoMemory => {
                f.write_str("there is no memory for the blocks that its reader has not read")
            }
            Self::NodeMoved => f.write_str("its node was changed: start it again"),
            Self::NotExported => f.write_str(
                "its node moved into the kernel, where too many filters are being read: close a \
                 reader, and start it again",
            ),
            Self::PathEnded => f.write_str("the path has ended"),
            Self::UnreadRecordsLost => f.write_str(
                "the path has ended, and there was no memory for the blocks that its reader had \
                 not read",
            ),
        }
    }
}

/// The position at which a tap begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TapOrigin {
    /// The oldest block that the node's history contains.
    Oldest,
    /// The oldest block in the node's history that is at most this many nanoseconds old.
    Ago(u64),
    /// The block at a position in the node's output. Contains the number of the block.
    Block(u64),
}

/// Counters of a tap.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TapStats {
    /// Number of frames that the tap has sent to its thread.
    pub frames: u64,
    /// Number of frames skipped at a full backlog, or lost between the kernel and the tap.
    pub skipped: u64,
    /// Numbers of the skipped blocks in the node's output. Empty if the node has replicas, because
    /// their blocks have no common order.
    pub missing: LossRanges,
    /// Number of blocks without a frame, or with a link type other than that of the first frame.
    pub no_frame: u64,
    /// Number of messages that the tap truncated or dropped, because they were too long or too many
    /// messages were in progress.
    pub cut: u64,
    /// Event that ended the tap; `None` while the tap runs.
    pub end_reason: Option<TapEndReason>,
}

/// The position at which a tap began.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TapStart {
    /// Sequence number of the block at which the tap begins, in the output of the node.
    pub block: u64,
    /// Number of the tap's blocks that were taken from the node's history.
    pub history_blocks: u64,
    /// Age of the first block that was taken from the history, in nanoseconds; 0 if no block was
    /// taken from there.
    pub first_age_ns: u64,
    /// True if the path stores this node's past output, so that a tap can begin in the past.
    pub has_history: bool,
}

/// A handle of a tap. Dropping it ends the tap.
#[derive(Debug)]
pub struct Tap {
    pub(super) shared: Arc<TapState>,
    thread: Option<JoinHandle<()>>,
    /// Receives, when the tap's thread ends, a file with the records that did not fit into the
    /// pipe, or `None` if all of them fit.
    overflow_receiver: mpsc::Receiver<Option<Memfd>>,
}

/// The part of a tap in a space. It sends records to the thread that writes them.
#[derive(Debug)]
pub struct TapFeed {
    pub(super) shared: Arc<TapState>,
    pub(super) to: mpsc::Sender<TapRecords>,
    /// Number of the replica that runs in the space; 0 for a node without replicas.
    pub(super) replica: usize,
    pub(super) policy: OverrunPolicy,
    /// Position of the next block: the number of blocks that had left the node when the tap began,
    /// plus the number that the tap has selected since.
    pub(super) position: u64,
    /// Form of the records that the space sends to the tap's thread.
    pub(super) records: RecordForm,
    /// Classes of blocks that the tap sends; `None` for all blocks that at least one arc accepts.
    pub(super) classes: Option<SelectedClasses>,
    /// True if the kernel, not the node in the space, delivers the node's output to the tap.
    pub(super) in_kernel: bool,
}

/// The form of the records that a space sends to the thread of a tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordForm {
    /// Frames as records of a capture.
    Capture,
    /// The bytes in view of all blocks, concatenated.
    Bytes,
    /// Blocks with their frames.
    Blocks,
    /// Blocks with only their bytes in view, without the rest of their frames.
    Views,
}

impl RecordForm {
    const fn from_tap_form(form: &TapForm) -> Self {
        match form {
            TapForm::Capture => Self::Capture,
            TapForm::Bytes(None) => Self::Bytes,
            TapForm::Bytes(Some(_)) => Self::Views,
            TapForm::Json(_) => Self::Blocks,
        }
    }
}

/// A message with records that a space sends to the tap's thread.
#[derive(Debug)]
pub(super) struct TapRecords {
    /// Index of the replica that emitted these records' blocks.
    pub(super) replica: usize,
    pub(super) bytes: Vec<u8>,
}

/// A value that a tap owns until it has ended, for example a handle whose drop releases a resource.
struct TapOwnedValue(#[expect(dead_code, reason = "kept for its drop")] Box<dyn Send + Sync>);

impl std::fmt::Debug for TapOwnedValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Held")
    }
}

#[derive(Debug, Default)]
pub(super) struct TapState {
    /// True if the tap receives blocks from several replicas, whose blocks have no common order.
    pub(super) is_merged: bool,
    /// Header of the first frame, with its link type; a capture contains only one link type.
    pub(super) first: OnceLock<FrameHeader>,
    /// Number of bytes of records that the tap's thread has not yet written.
    pub(super) backlog: AtomicUsize,
    /// Number of bytes in the ring, which count as backlog; `None` without a ring.
    ring_level: Option<TapRingLevel>,
    pub(super) frames: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) no_frame: AtomicU64,
    pub(super) cut: AtomicU64,
    pub(super) missing: Mutex<LossRanges>,
    pub(super) has_ended: AtomicBool,
    /// True once the handle of the tap ([`Tap`]) is dropped.
    is_dropped: AtomicBool,
    /// True once the tap's thread must finish its work without waiting for the reader
    /// ([`Tap::finish_without_waiting`]).
    pub(super) is_finishing: AtomicBool,
    /// The value that the tap owns until it has ended ([`Tap::own_until_end`]).
    held: Mutex<Option<TapOwnedValue>>,
    pub(super) end_reason: Mutex<Option<TapEndReason>>,
}

/// A handle that ends a tap and does not keep it alive.
#[derive(Clone, Debug)]
pub struct TapStopHandle(Weak<TapState>);

impl TapStopHandle {
    /// Ends the tap, with `why` as the reason that users see. Does nothing if the tap has already
    /// ended. Never blocks.
    pub fn end(&self, why: TapEndReason) {
        if let Some(shared) = self.0.upgrade() {
            shared.end(why);
        }
    }

    /// Returns true if both handles refer to the same tap.
    #[must_use]
    pub fn is_same_tap(&self, other: &Self) -> bool {
        self.0.ptr_eq(&other.0)
    }
}

impl TapFeed {
    /// Declares that the kernel delivers all blocks of the node. The space then does not send the
    /// blocks of a source a second time.
    pub const fn set_fed_by_kernel(&mut self) {
        self.in_kernel = true;
    }
}

impl TapState {
    /// Drops the value that was transferred with [`Tap::own_until_end`], if any.
    pub(super) fn drop_owned_value(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held);
    }

    /// Ends the tap for the reason `why`, which users see, unless it has already ended.
    pub(super) fn end(&self, why: TapEndReason) {
        self.end_reason.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        // Relaxed: the flag guards no other memory.
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns the number of bytes in the backlog.
    pub(super) fn backlog(&self) -> usize {
        let ring = self.ring_level.as_ref().map_or(0, TapRingLevel::byte_count);
        self.backlog.load(Ordering::Relaxed) + ring
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Ordering::Relaxed)
    }
}

impl Tap {
    /// Creates a tap that writes to the pipe, or to the ring if one is given ([`super::tap_pipe`]).
    /// `forms` contains one form or, if the node has replicas, one form for each replica. Returns
    /// the tap's handle, and one feed per form for the space of the node or replica. The feeds send
    /// the blocks with the given classes or, if `classes` is `None`, the blocks that at least one
    /// arc accepts. The tap ends when its reader has read nothing for `patience`.
    ///
    /// # Errors
    ///
    /// Fails if the pipe cannot be made nonblocking, or if the thread cannot be started.
    pub fn new(
        (pipe, ring): (OwnedFd, Option<TapRingWriter>),
        policy: OverrunPolicy,
        patience: Duration,
        (forms, classes): (Vec<TapForm>, Option<SelectedClasses>),
    ) -> sys::Result<(Self, Vec<TapFeed>)> {
        let records: Vec<RecordForm> = forms.iter().map(RecordForm::from_tap_form).collect();
        let is_merged = forms.len() > 1;
        let ring_level = ring.as_ref().map(TapRingWriter::level_handle);
        let shared = Arc::new(TapState { is_merged, ring_level, ..TapState::default() });
        let (to, receiver) = mpsc::channel();
        let (result_sender, ended) = mpsc::channel();
        let writer = TapWriter {
            pipe: TapPipe::new(pipe, ring)?,
            patience,
            shared: Arc::clone(&shared),
            header_sent: false,
            forms,
            overflow: None,
            result_sender,
        };
        let thread = std::thread::Builder::new().name("tap".to_owned());
        let thread = thread.spawn(move || writer.run(&receiver)).map_err(|error| {
            sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0))
        })?;
        let feed = |(replica, records)| TapFeed {
            shared: Arc::clone(&shared),
            to: to.clone(),
            replica,
            policy,
            position: 0,
            records,
            classes: classes.clone(),
            in_kernel: false,
        };
        let feeds = records.into_iter().enumerate().map(feed).collect();
        Ok((Self { shared, thread: Some(thread), overflow_receiver: ended }, feeds))
    }

    /// Returns a handle with which another owner ends the tap.
    #[must_use]
    pub fn stop_handle(&self) -> TapStopHandle {
        TapStopHandle(Arc::downgrade(&self.shared))
    }

    /// Transfers a value to the tap, whose thread drops the value when the tap ends. If the tap has
    /// already ended, drops the value at once.
    pub fn own_until_end(&self, what: Box<dyn Send + Sync>) {
        *self.shared.held.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(TapOwnedValue(what));
        if self.shared.has_ended() {
            self.shared.drop_owned_value();
        }
    }

    /// Waits for at most `limit` until the tap has ended. After the path ends, its taps end once
    /// their readers have read everything.
    pub fn wait_for_end(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        // Records that did not fit into the pipe are discarded here.
        while self
            .overflow_receiver
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
            .is_ok()
        {}
    }

    /// Ends the tap without waiting for its reader, because the path has ended. The records that do
    /// not fit into the pipe are written to a memory file, which [`finish`](Self::finish) returns.
    pub fn finish_without_waiting(&self) {
        // Relaxed: the flag guards no other memory.
        self.shared.is_finishing.store(true, Ordering::Relaxed);
    }

    /// Ends the tap without waiting for its reader, and returns its final counters. Also returns a
    /// sealed file with the records that did not fit into the pipe; the reader may read the pipe
    /// and the file at any later time. Returns `None` instead of a file if the pipe contains all
    /// records, or if the other records were lost. Waits for at most `limit` until the records are
    /// written.
    pub fn finish(mut self, limit: Duration) -> (TapStats, Option<Memfd>) {
        self.finish_without_waiting();
        let rest = match self.overflow_receiver.recv_timeout(limit) {
            Ok(rest) => rest,
            Err(_) => {
                self.shared.end(TapEndReason::UnreadRecordsLost);
                None
            }
        };
        let stats = self.stats();
        // The thread has ended, or ends once it has written the file.
        self.thread = None;
        (stats, rest)
    }

    /// Returns the counters of the tap.
    #[must_use]
    pub fn stats(&self) -> TapStats {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let TapState { frames, skipped, missing, no_frame, cut, end_reason, .. } = &*self.shared;
        let end_reason = *end_reason.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = missing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (frames, skipped, no_frame) = (read(frames), read(skipped), read(no_frame));
        TapStats { frames, skipped, missing, no_frame, cut: read(cut), end_reason }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shared.end(TapEndReason::ReaderLeft);
            // Relaxed: the flag guards no other memory.
            self.shared.is_dropped.store(true, Ordering::Relaxed);
            // The thread polls the flag, so it ends soon. It returns nothing.
            let _ended = thread.join();
        }
    }
}
