//! Events of a space, and the port for recording and replaying them.
//!
//! A filter's behaviour depends only on its blocks, their order, and the time passed to it. Since a
//! space is a single thread, the sequence of its events determines its run. A [`Journal`] records
//! these events. A space that has an [`EventReader`] repeats recorded events instead of reading
//! sources and clocks. Both are traits; the implementors decide how events are stored.

use super::arc::NodeId;
use super::count_limit::ClaimPolicy;
use super::stall::ReplayState;
use crate::failure::PathFailure;
use abi::Entry;
use endpoint::{LossRanges, Sink, Source};
use filter::{Amount, Time};
use std::fmt;

/// An event in the run of a space. The sequence of a space's events determines everything that the
/// space does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpaceEvent {
    /// A source emitted blocks. The blocks follow this event in the record.
    Pull {
        /// Index of the source's node in the space.
        node: usize,
        /// Time at which the source was read, on the path's clock, in nanoseconds.
        now: Time,
        /// Number of blocks that the source emitted. The blocks follow this event in the record.
        count: usize,
        /// Index of the arc over which the source sent the blocks; `None` if the source does not
        /// choose arcs.
        edge: Option<usize>,
        /// Failure that ended the source; `None` if it did not fail.
        failure: Option<String>,
    },
    /// The space took blocks from a ring.
    Import {
        /// Index, in the space, of the node at which the ring's blocks enter the graph.
        node: usize,
        /// Time at which the ring was read, on the path's clock, in nanoseconds.
        now: Time,
        /// Number of blocks that the space took from the ring.
        count: usize,
    },
    /// The filters whose timers had expired were called.
    Tick {
        /// Time at which the filters were called, on the path's clock, in nanoseconds.
        now: Time,
    },
    /// The sinks of this space were permitted to accept more blocks under the limit on delivered
    /// blocks (`-c`).
    Claim {
        /// Number of blocks that this event permits the sinks to accept, in addition to earlier
        /// events.
        count: u32,
    },
    /// The run of the space ends. Unless the space has failed, its nodes then release the blocks
    /// that they hold.
    Finish {
        /// Time at which the run ended, on the path's clock, in nanoseconds.
        now: Time,
        /// Failure that ended the space, if it failed.
        failure: Option<String>,
    },
    /// The space has stopped for a hot swap. The events from here to [`SpaceEvent::Changed`] drain
    /// the old graph.
    Change {
        /// Sequence number of the hot swap among all hot swaps of the path.
        number: u64,
    },
    /// A hot swap is about to end the nodes that it removes. These nodes then release the blocks
    /// that they hold.
    Retire {
        /// Time at which the nodes were ended, on the path's clock, in nanoseconds.
        now: Time,
        /// Failure of the space; `None` if it has not failed. A space that has failed does not take
        /// part in the hot swap.
        failure: Option<String>,
    },
    /// A hot swap has installed a new graph in the space. Node indices in later events refer to the
    /// new graph.
    Changed,
    /// Final counts of a source: the input that it observed, and the blocks that it lost.
    SourceCounts {
        /// Node number of the source.
        node_number: usize,
        /// Number of blocks and number of bytes that the source observed, including blocks that
        /// were lost afterwards; `None` if unknown.
        observed: Option<(u64, u64)>,
        /// Blocks lost before they reached the path: each location of a loss, and the number of
        /// blocks lost there, which is `None` if unknown.
        dropped: Vec<(String, Option<u64>)>,
        /// Numbers of the blocks that the source lost, as ranges, by location of the loss. Contains
        /// only losses whose numbers are known.
        missing: Vec<(String, LossRanges)>,
        /// Note of the source for the user, and a flag that is true if the note is a warning;
        /// `None` without a note.
        remark: Option<(String, bool)>,
    },
    /// Final counts of the input of a program (`exec`): the blocks that it accepted and those that
    /// it did not.
    ProgramCounts {
        /// Node number of the program.
        node_number: usize,
        /// Number of blocks and number of bytes that the program accepted.
        written: (u64, u64),
        /// Number of blocks and number of bytes that the program did not accept, by reason.
        dropped: Vec<(String, u64, u64)>,
    },
}

/// The recorder of a space's events. The implementor decides how the events are stored.
pub trait Journal: fmt::Debug + Send {
    /// Records an event other than [`SpaceEvent::Pull`].
    fn record_event(&mut self, event: &SpaceEvent);

    /// Records a [`SpaceEvent::Pull`] and the source's blocks.
    fn record_pull(&mut self, event: &SpaceEvent, blocks: &mut dyn Iterator<Item = (Entry, &[u8])>);

    /// Writes buffered events to the record. Called before the space sleeps.
    fn flush(&mut self);
}

/// The reader of one space's recorded events. A replaying space repeats these events.
pub trait EventReader: fmt::Debug + Send {
    /// Removes and returns the next event. Returns `None` at the end of the record, or if the event
    /// is damaged.
    fn next_event(&mut self) -> Option<SpaceEvent>;

    /// Returns the next event without removing it. Returns `None` in the same cases as
    /// [`Self::next_event`].
    fn peek(&mut self) -> Option<SpaceEvent>;

    /// Removes and returns the next block of the event returned last by [`Self::next_event`].
    /// `follow` is the number of further blocks of this event. Returns `None` if the record is
    /// truncated or damaged.
    fn next_block(&mut self, follow: usize) -> Option<(Entry, &[u8])>;

    /// Returns the number of blocks that the sinks may accept in the current pass under the limit
    /// on delivered blocks (`-c`). `blocks` is the number of recorded blocks of the pass that have
    /// not been read yet.
    fn granted_blocks(&self, blocks: usize) -> u32;

    /// Reads the closing entries of a run or of a hot swap. They contain final counts, and the
    /// number of blocks that the sinks may still accept under the limit on delivered blocks (`-c`).
    /// Returns this number. If the recorded counts differ from those of the replay, also returns a
    /// description of the difference.
    fn read_closing_entries(&mut self) -> (u32, Option<&'static str>);

    /// Adds `amount` to the amount emitted by the source with node number `planned`.
    fn add_emitted(&self, planned: usize, amount: Amount);

    /// Reports that the event read last is invalid. `what` describes the defect.
    fn report_invalid(&mut self, what: &str);

    /// Returns a description of the first defect found in the record; `None` if no defect was
    /// found.
    fn invalid_reason(&self) -> Option<&str>;

    /// Reports that the record ends before the end of the recorded run.
    fn report_truncated_record(&self);

    /// Decides what a replaying space does at a recorded hot swap. `number` is the sequence number
    /// of the swap. `requested` is true if the thread that replays the swap has asked to borrow the
    /// space.
    fn decide_swap(&self, number: u64, requested: bool) -> SwapDecision;

    /// Returns the state that this space shares with the other spaces of the replay.
    fn replay_state(&self) -> ReplayState;
}

/// A decision how a replaying space proceeds at a recorded hot swap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SwapDecision {
    /// Wait until the thread that replays the hot swap asks to borrow the space.
    Wait,
    /// Take part in the hot swap.
    TakePart,
    /// End, because the record does not contain the hot swap with this number.
    End,
    /// Fail, because the recorded hot swap was not possible in the replay. Contains the reason.
    Failed(String),
}

/// The port of a space for recording or replaying its events.
#[derive(Debug)]
pub enum EventPort {
    /// Events are neither recorded nor replayed.
    Off,
    /// Events are recorded.
    Journal(Box<dyn Journal>),
    /// Events are replayed by this reader; `None` while the replay loop has taken the reader.
    Replay(Option<Box<dyn EventReader>>),
}

impl EventPort {
    /// Returns the policy by which the sinks of the space claim their share of the limit on
    /// delivered blocks (`-c`). `counted` is true if the path has this limit.
    pub(super) fn claim_policy(&self, counted: bool) -> ClaimPolicy {
        match self {
            Self::Journal(_) if counted => ClaimPolicy::Recorded(Vec::new()),
            Self::Replay(_) if counted => ClaimPolicy::Replayed(0),
            _ => ClaimPolicy::Free,
        }
    }

    /// Returns true if the events of the space are recorded.
    pub(super) const fn is_recording(&self) -> bool {
        matches!(self, Self::Journal(_))
    }

    /// Removes the reader of recorded events from the port. Returns `None` outside a replay.
    pub(super) fn take_event_reader(&mut self) -> Option<Box<dyn EventReader>> {
        match self {
            Self::Replay(reader) => reader.take(),
            _ => None,
        }
    }

    /// Returns the state shared by the spaces of the replay, or `None` outside a replay.
    pub(super) fn replay_state(&self) -> Option<ReplayState> {
        match self {
            Self::Replay(reader) => reader.as_ref().map(|reader| reader.replay_state()),
            _ => None,
        }
    }

    /// Records the event that the function `event` returns. Does not call the function if the run
    /// is not recorded.
    pub(super) fn record_event(&mut self, event: impl FnOnce() -> SpaceEvent) {
        if let Self::Journal(journal) = self {
            journal.record_event(&event());
        }
    }

    /// Records that the space took `count` blocks from the ring that enters the graph at `node`.
    pub(super) fn record_import(&mut self, node: NodeId, now: Time, count: usize) {
        self.record_event(|| SpaceEvent::Import { node, now, count });
    }

    /// Records that the space's run ends.
    pub(super) fn record_finish(&mut self, now: Time, failure: Option<&PathFailure>) {
        self.record_event(|| SpaceEvent::Finish { now, failure: failure.map(ToString::to_string) });
    }

    /// Records the final counts of a source.
    pub(super) fn record_source_counts(&mut self, planned: usize, source: &dyn Source) {
        self.record_event(|| {
            let counters = source.counters();
            let dropped = counters.dropped.iter().map(|(place, count)| (place.to_string(), *count));
            let (dropped, observed) =
                (dropped.collect(), counters.observed.map(|all| (all.blocks, all.bytes)));
            let missing = counters.missing.into_iter();
            let missing = missing.map(|(place, ranges)| (place.to_owned(), ranges)).collect();
            let remark = counters.remark.map(|remark| (remark, counters.warns));
            SpaceEvent::SourceCounts { node_number: planned, observed, dropped, missing, remark }
        });
    }

    /// Records the final counts of the input of a program (`exec`). Does nothing for a sink that is
    /// not a program.
    pub(super) fn record_program_counts(&mut self, planned: usize, sink: &dyn Sink) {
        if sink.process().is_none() {
            return;
        }
        self.record_event(|| {
            let written = sink.amount_written().unwrap_or_default();
            let dropped = sink.drops_by_reason().into_iter();
            let dropped = dropped.map(|(why, all)| (why.to_string(), all.blocks, all.bytes));
            let (written, dropped) = ((written.blocks, written.bytes), dropped.collect());
            SpaceEvent::ProgramCounts { node_number: planned, written, dropped }
        });
    }

    /// Writes the buffered events to the record, if the run is recorded.
    pub(super) fn flush(&mut self) {
        if let Self::Journal(journal) = self {
            journal.flush();
        }
    }
}
