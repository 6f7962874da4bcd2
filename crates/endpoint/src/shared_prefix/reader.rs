//! `shared`: a source that reads the streams of a shared prefix from the process that runs the
//! prefix. A *prefix* is the sequence of filters with which several requests begin.
//!
//! The source copies the index of each bundle that `share` has written. It copies into the pool
//! only the frames of blocks whose classes are selected downstream. It emits the blocks of sessions
//! that begin after it has joined, with a hole in place of overwritten blocks. If the process of
//! the prefix ends while it has readers, all open sessions end, and the source connects to a new
//! process, or fails with the reason for which no process could be started.

use super::bundle::BundleCursor;
use super::description::SHARED;
use super::interface::PrefixInterface;
use super::sessions::ReaderSessions;
use super::{has_live_source, join_ring};
use crate::{
    DropReason, Failure, Intake, OpenArguments, Source, SourceCounters, SourceEntry, SourceStatus,
};
use abi::{DbufId, Entry};
use buffer::stream::Input;
use filter::Amount;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread::JoinHandle;

mod pause;
mod reading;

use pause::{PAUSE_DURATION_NS, Pause};

/// The catalog entry of `shared`.
pub const ENTRY: SourceEntry = SourceEntry::new(&SHARED, open);

const OVERWRITTEN_REASON: DropReason = DropReason::Named("overwritten");
/// Drop reason for blocks that were lost in the process that runs the shared prefix, before this
/// source could read them.
const PREFIX_LOSS_REASON: DropReason = DropReason::Named("prefix");
/// Interval, in ns, between attempts to join a new process of the shared prefix after the previous
/// one has exited.
const REJOIN_INTERVAL_NS: u64 = 10_000_000;
/// Maximum number of successive processes of the shared prefix that end without any output. If one
/// more process ends in this way, the source fails.
const SILENT_EXITS_MAX: u64 = 8;

/// The source `shared`, which reads the ring of a shared prefix.
struct SharedSource {
    prefix: String,
    /// The network interface that the shared prefix observes, or `None` if the text of the prefix
    /// names no interface.
    interface: Option<PrefixInterface>,
    /// The reading end of the ring, or `None` after the end of the ring and until a new ring is
    /// found.
    input: Option<Input>,
    /// A thread that finds or starts a process to replace one that has exited; `None` while no
    /// replacement is needed.
    rejoin: Option<JoinHandle<Result<Input, Failure>>>,
    sessions: ReaderSessions,
    /// Blocks created by this source, such as holes, which are emitted before all others.
    created_blocks: Vec<Entry>,
    /// A block that has been read from the ring but must be emitted after the blocks in `created`,
    /// which did not all fit into one pass. `None` if no block is waiting.
    deferred: Option<DeferredBlock>,
    /// The bundle of the shared ring from which the source is reading blocks.
    bundle: BundleCursor,
    /// Dbuf id in the pointers to blocks whose bytes this source did not copy, because no filter or
    /// sink reads them. The id refers to no memory. `None` if no ids remain.
    placeholder_dbuf: Option<DbufId>,
    origin: u16,
    asleep: bool,
    rest: Option<Pause>,
    /// True if blocks have been read since the source last paused ([`pause`]).
    has_read: bool,
    /// True if blocks were overwritten between the last block that was read and the next one.
    is_gap: bool,
    /// Number of the next block in the ring, or `None` before the first one has been read.
    next_block: Option<u64>,
    /// Number of the next bundle to read from the shared ring, counted from 0.
    next_bundle: u64,
    /// Number of the bundle in the ring at which a stopped source ends, or `None` while the source
    /// is not stopped.
    end_number: Option<u64>,
    is_over: bool,
    emitted: Amount,
    unbegun: u64,
    /// Number of blocks in the ring that this source skipped because no arc selects their class.
    untaken: u64,
    /// Number of blocks that this source lost, because they or the beginning of their message were
    /// overwritten in the ring.
    lost: u64,
    /// Number of blocks that were still unread in the current ring when they were last counted.
    unread: u64,
    /// Number of processes of the shared prefix that have ended and were replaced.
    writer_exits: u64,
    /// Number of successive processes of the shared prefix that have ended without any output.
    /// Reset when a block is read.
    silent_exits: u64,
    /// Number of blocks that earlier processes of the shared prefix have lost while this source
    /// read their rings.
    lost_in_earlier: u64,
    /// Number of blocks that the current process of the shared prefix had lost before this source
    /// joined.
    lost_at_join: u64,
    /// Number of blocks lost by the processes of the shared prefix, as this source last reported
    /// it.
    lost_reported: u64,
}

/// A block that the source has read and admitted, but could not emit yet.
struct DeferredBlock {
    entry: Entry,
    /// The bytes of the block's frame; `None` if they were not copied.
    bytes: Option<Vec<u8>>,
}

/// Result of reading blocks from a bundle.
enum ReadBlocksOutcome {
    Emitted,
    Nothing,
    Full,
    End,
    /// The process that ran the shared prefix has exited.
    WriterEnded,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let prefix = opening.arguments.text("prefix").unwrap_or_default().to_owned();
    let interface = PrefixInterface::find(&prefix);
    let input = join_ring(&prefix, interface)?;
    Ok(Box::new(SharedSource {
        prefix,
        interface,
        // Approximate; the first bundle that is read contains the exact number.
        next_bundle: input.writer_counts().blocks,
        lost_at_join: input.lost_before_ring(),
        input: Some(input),
        rejoin: None,
        sessions: ReaderSessions::default(),
        created_blocks: Vec::new(),
        deferred: None,
        bundle: BundleCursor::default(),
        placeholder_dbuf: buffer::ids::allocate_id(),
        origin: opening.origin,
        asleep: false,
        rest: None,
        has_read: false,
        is_gap: false,
        next_block: None,
        end_number: None,
        is_over: false,
        emitted: Amount::default(),
        unbegun: 0,
        untaken: 0,
        lost: 0,
        unread: 0,
        writer_exits: 0,
        silent_exits: 0,
        lost_in_earlier: 0,
        lost_reported: 0,
    }))
}

impl Source for SharedSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let before = self.emitted.blocks;
        if let Some(until) = self.current_pause_end(intake.now) {
            return Ok(SourceStatus::Wait { until: Some(until), readable: true });
        }
        // The end of a pause is not notified, so there is no notification to drain.
        let is_rest = self.rest.take().is_some();
        if let Some(input) = self.input.as_mut().filter(|_| std::mem::take(&mut self.asleep)) {
            input.announce_wake(!is_rest);
        }
        let lost = self.prefix_losses();
        if std::mem::replace(&mut self.lost_reported, lost) != lost {
            super::report_upstream_loss();
        }
        let again = SourceStatus::retry_at(intake.now);
        let status = loop {
            if !self.emit_created_blocks(intake) || intake.room() == 0 {
                break again;
            }
            if self.is_over {
                return Ok(SourceStatus::End);
            }
            if self.rejoin.is_some() {
                match self.try_rejoin()? {
                    true => continue,
                    false => break SourceStatus::retry_at(intake.now + REJOIN_INTERVAL_NS),
                }
            }
            match self.read_blocks(intake)? {
                ReadBlocksOutcome::Emitted => {}
                ReadBlocksOutcome::Full => break again,
                ReadBlocksOutcome::Nothing if self.emitted.blocks > before => break again,
                ReadBlocksOutcome::Nothing if std::mem::take(&mut self.has_read) => {
                    let until = intake.now + PAUSE_DURATION_NS;
                    self.announce_pause(until);
                    break SourceStatus::Wait { until: Some(until), readable: true };
                }
                ReadBlocksOutcome::Nothing => match self.announce_sleep() {
                    true => {}
                    false => break SourceStatus::AWAITS_INPUT,
                },
                ReadBlocksOutcome::End | ReadBlocksOutcome::WriterEnded
                    if self.end_number.is_some() =>
                {
                    self.disconnect();
                    self.is_over = true;
                }
                ReadBlocksOutcome::End if !has_live_source(&self.prefix) => {
                    self.disconnect();
                    self.is_over = true;
                }
                // A process may also close its ring before it ends: if its source fails, if it is
                // stopped, or if it has had no reader yet.
                ReadBlocksOutcome::End | ReadBlocksOutcome::WriterEnded => {
                    self.disconnect();
                    self.begin_rejoin()?;
                }
            }
        };
        Ok(if self.emitted.blocks > before { SourceStatus::Blocks } else { status })
    }

    fn counters(&self) -> SourceCounters {
        let in_prefix = self.prefix_losses();
        let dropped = [
            (OVERWRITTEN_REASON, self.lost),
            (PREFIX_LOSS_REASON, in_prefix),
            (DropReason::Unread, self.unread),
        ];
        let dropped = dropped.into_iter().filter(|(_, count)| *count > 0);
        let dropped: Vec<_> = dropped.map(|(reason, count)| (reason, Some(count))).collect();
        let blocks = self.emitted.blocks.saturating_add(self.lost).saturating_add(self.unread);
        let blocks = blocks.saturating_add(in_prefix);
        let observed = Amount { blocks, bytes: self.emitted.bytes };
        let remark = Some(self.loss_remark());
        SourceCounters {
            dropped,
            observed: Some(observed),
            remark,
            warns: self.writer_exits > 0,
            ..SourceCounters::lossless(self.emitted)
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.input.as_ref()?.as_fd())
    }

    fn stop(&mut self) -> bool {
        self.end_number = self.input.as_ref().map(|input| input.writer_counts().blocks);
        self.is_over |= self.end_number.is_none();
        self.rejoin = None;
        true
    }

    fn close(&mut self) {
        if let Some(input) = &self.input {
            self.count_unread(self.end_number.unwrap_or_else(|| input.writer_counts().blocks));
        }
    }
}

impl SharedSource {
    /// Emits the blocks created by this source. Returns false if they do not all fit in the intake.
    fn emit_created_blocks(&mut self, intake: &mut Intake<'_>) -> bool {
        if self.created_blocks.is_empty() {
            return true;
        }
        let count = self.created_blocks.len().min(intake.room());
        for entry in self.created_blocks.drain(..count) {
            self.emitted.add_block(entry.pointer.length());
            intake.append_block_entry(entry);
        }
        self.created_blocks.is_empty()
    }

    /// Disconnects from the ring, and ends the sessions whose blocks were read from the ring.
    fn disconnect(&mut self) {
        self.lost_in_earlier = self.prefix_losses();
        (self.input, self.lost_at_join) = (None, 0);
        (self.next_block, self.is_gap, self.bundle) = (None, false, BundleCursor::default());
        self.sessions.end_sessions_and_messages(&mut self.created_blocks);
    }

    /// Starts a thread that finds or starts another process for the prefix. Fails if too many
    /// processes have ended without any output.
    fn begin_rejoin(&mut self) -> Result<(), Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new("share", &*self.prefix, why);
        self.writer_exits += 1;
        self.silent_exits += 1;
        if self.silent_exits > SILENT_EXITS_MAX {
            return Err(failed(&"its process exits immediately each time it is started"));
        }
        let (prefix, interface) = (self.prefix.clone(), self.interface);
        let thread = std::thread::Builder::new().name("rejoin".to_owned());
        let thread =
            thread.spawn(move || join_ring(&prefix, interface)).map_err(|error| failed(&error))?;
        self.rejoin = Some(thread);
        Ok(())
    }

    /// Returns the number of blocks that the processes of the shared prefix have lost while this
    /// source read their output.
    fn prefix_losses(&self) -> u64 {
        let current = self.input.as_ref().map_or(0, Input::lost_before_ring);
        self.lost_in_earlier.saturating_add(current.saturating_sub(self.lost_at_join))
    }

    /// Takes over the ring that the thread `rejoin` has found. Returns false while the thread is
    /// still searching.
    fn try_rejoin(&mut self) -> Result<bool, Failure> {
        let Some(thread) = self.rejoin.take_if(|thread| thread.is_finished()) else {
            return Ok(false);
        };
        let ended =
            || Failure::new("share", &*self.prefix, "the thread that searches for it has ended");
        let input = thread.join().map_err(|_| ended())??;
        self.next_bundle = input.writer_counts().blocks;
        self.lost_at_join = input.lost_before_ring();
        self.input = Some(input);
        Ok(true)
    }

    fn invalid_message_failure(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::new("read", format!("the shared prefix `{}`", self.prefix), why)
    }

    fn loss_remark(&self) -> String {
        let messages = self.sessions.messages.begun;
        let (begun, what) = match messages {
            0 => (self.sessions.begun, "connection"),
            messages => (messages, "message"),
        };
        let mut remark =
            format!("{begun} {what}s of `{}`, which runs once for all that share it", self.prefix);
        if self.unbegun > 0 {
            remark += &format!(
                "; {} blocks were of {what}s that had begun before this request joined, and were \
                 left out",
                self.unbegun
            );
        }
        if self.untaken > 0 {
            remark += &format!("; {} blocks were of classes that no arc selects", self.untaken);
        }
        if self.sessions.torn > 0 {
            remark += &format!("; {} times it was too slow for a {what}", self.sessions.torn);
        }
        if self.writer_exits > 0 {
            remark += &format!(
                "; its process ended {} times and was replaced, and the data that arrived in \
                 between is missing",
                self.writer_exits
            );
        }
        remark
    }
}
