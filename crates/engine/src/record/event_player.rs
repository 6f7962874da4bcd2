//! The reader of a space's events in a recording.
//!
//! Input: an untrusted recording, which may be truncated at any position. Output: the events of a
//! space in order, each with its blocks. Each space reads its own chunks.

use super::event::SourceDetails;
use super::file_format;
use super::read::{Completeness, Record};
use abi::Entry;
use endpoint::process::Process;
use endpoint::{
    DropReason, Failure, Intake, Sink, Source, SourceCounters, SourceProperties, SourceStatus,
};
use filter::{Amount, Batch, Report, Time};
use runtime::space::events::{EventReader, SpaceEvent, SwapDecision};
use runtime::space::stall::{ReplayState, StallDetector};
use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The state of one replay of a recording, shared by the replaying spaces.
#[derive(Debug)]
pub struct Replay {
    record: Record,
    /// Counters of the sources, by node number. The output is the amount replayed so far; the input
    /// and the losses come from the recording.
    source_counts: Mutex<HashMap<usize, SourceCounters>>,
    /// Amounts that programs (`exec`) accepted and did not accept in the recorded run, by node
    /// number of the program.
    inputs: Mutex<HashMap<usize, RecordedCounts>>,
    /// True once a space has reached the end of its recorded events although the recorded run
    /// continued.
    short: AtomicBool,
    changes: Mutex<ChangeProgress>,
    /// Detector that finds out when all spaces of the replay wait for one another.
    pub(crate) stalls: Arc<StallDetector>,
}

/// Progress of a replay in repeating the recorded changes.
#[derive(Debug, Default)]
struct ChangeProgress {
    /// Sequence number of the change in progress, or of the last completed change.
    number: u64,
    /// The end of the recorded changes. `None` while further changes may follow, `Some(None)` after
    /// the last change, and `Some(Some(why))` after a change that failed because of `why`.
    ended: Option<Option<String>>,
}

impl Replay {
    /// Creates a replay of a recording.
    #[must_use]
    pub fn new(record: Record) -> Arc<Self> {
        let (source_counts, inputs) = (Mutex::default(), Mutex::default());
        let (short, changes) = (AtomicBool::new(false), Mutex::default());
        let stalls = Arc::<StallDetector>::default();
        if !record.changes.is_empty() {
            stalls.register_swap_thread();
        }
        Arc::new(Self { record, source_counts, inputs, short, changes, stalls })
    }

    /// Returns the recording that is replayed.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Returns true if the recording is damaged or shorter than the recorded run.
    #[must_use]
    pub fn is_truncated(&self) -> bool {
        !matches!(self.record.completeness, Completeness::Complete { .. })
            || self.short.load(Ordering::Relaxed)
    }

    /// Announces to the replaying spaces that the change with this number has begun.
    pub(crate) fn begin_change(&self, number: u64) {
        self.lock_changes().number = number;
    }

    /// Announces to the replaying spaces that no more changes follow. `why` is the failure of a
    /// change, if that is the reason.
    pub(crate) fn end_changes(&self, why: Option<String>) {
        self.lock_changes().ended.get_or_insert(why);
        self.stalls.unregister_swap_thread();
    }

    /// Decides how a space proceeds at the recorded change with this number. `wanted` is true if
    /// the change already waits for the space.
    fn swap_decision(&self, number: u64, wanted: bool) -> SwapDecision {
        let changes = self.lock_changes();
        match &changes.ended {
            _ if number >= self.record.changes.len() as u64 => SwapDecision::End,
            Some(Some(why)) => SwapDecision::Failed(why.clone()),
            Some(None) => SwapDecision::End,
            None if wanted && changes.number == number => SwapDecision::TakePart,
            // The change was made without this space, or another change needs the space.
            None if wanted || changes.number > number => {
                SwapDecision::Failed("the record and the replay disagree about a change".to_owned())
            }
            None => SwapDecision::Wait,
        }
    }

    fn lock_changes(&self) -> MutexGuard<'_, ChangeProgress> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_source_counts(&self) -> MutexGuard<'_, HashMap<usize, SourceCounters>> {
        self.source_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an amount to the output of the source with the node number `planned`.
    fn add_emitted(&self, planned: usize, amount: Amount) {
        let mut all = self.lock_source_counts();
        all.entry(planned).or_default().given += amount;
    }

    /// Stores the recorded final input, losses and note of a source. If input and losses are known,
    /// checks that the input is the sum of the output and the losses. Stores nothing and returns
    /// false if it is not.
    fn set_source_input(
        &self,
        planned: usize,
        observed: Option<(u64, u64)>,
        dropped: &[(String, Option<u64>)],
        (missing, remark): SourceDetails,
    ) -> bool {
        let mut all = self.lock_source_counts();
        let known = all.entry(planned).or_default();
        let lost: Option<u64> =
            dropped.iter().try_fold(0, |sum: u64, (_, count)| Some(sum.saturating_add((*count)?)));
        let adds_up = observed.zip(lost).is_none_or(|((blocks, _), lost)| {
            blocks.checked_sub(lost).is_some_and(|given| given == known.given.blocks)
        });
        if !adds_up {
            return false;
        }
        known.observed = observed.map(|(blocks, bytes)| Amount { blocks, bytes });
        known.dropped.clear();
        for (place, count) in dropped {
            let place = DropReason::from_file_text(place);
            match known.dropped.iter_mut().find(|(reason, _)| *reason == place) {
                // Only in a forged recording, whose locations are unknown or repeated.
                Some((_, sum)) => {
                    *sum = sum.zip(*count).map(|(sum, more)| sum.saturating_add(more));
                }
                None => known.dropped.push((place, *count)),
            }
        }
        let missing = missing.into_iter();
        known.missing = missing
            .map(|(place, ranges)| (DropReason::from_file_text(&place).text(), ranges))
            .collect();
        known.warns = remark.as_ref().is_some_and(|(_, warns)| *warns);
        known.remark = remark.map(|(text, _)| text.replace(char::is_control, " "));
        true
    }

    /// Stores the final input counters of the program with node number `planned`: the blocks and
    /// bytes that it accepted, and those that were dropped for each reason.
    fn set_program_input(
        &self,
        planned: usize,
        (blocks, bytes): (u64, u64),
        dropped: &[(String, u64, u64)],
    ) {
        let written = Amount { blocks, bytes };
        let dropped = dropped.iter().map(|(reason, blocks, bytes)| {
            (DropReason::from_file_text(reason), Amount { blocks: *blocks, bytes: *bytes })
        });
        let inputs = RecordedCounts { written, dropped: dropped.collect() };
        self.inputs.lock().unwrap_or_else(PoisonError::into_inner).insert(planned, inputs);
    }

    /// Records that a space has reached the end of its recorded events although the recorded run
    /// continued.
    fn note_truncated(&self) {
        self.short.store(true, Ordering::Relaxed);
    }
}

/// The source that takes the place of a recorded source in a replay. Its blocks come from the
/// recording, so it is never polled.
#[derive(Debug)]
pub(crate) struct RecordedSource {
    pub(crate) replay: Arc<Replay>,
    pub(crate) planned: usize,
    /// The program whose output this source replaces, if it replaces a program.
    pub(crate) process: Option<Arc<Process>>,
}

impl Source for RecordedSource {
    fn produce(&mut self, _: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        Ok(SourceStatus::End)
    }

    fn counters(&self) -> SourceCounters {
        self.replay.lock_source_counts().get(&self.planned).cloned().unwrap_or_default()
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { process: self.process.clone(), ..SourceProperties::default() }
    }
}

/// The amount that a program accepted in the recorded run, and the amounts that it did not accept,
/// by reason.
#[derive(Clone, Debug, Default)]
struct RecordedCounts {
    written: Amount,
    dropped: Vec<(DropReason, Amount)>,
}

/// The sink that takes the place of a program's input in a replay. The program itself does not run,
/// so the sink only reports the recorded amounts.
#[derive(Debug)]
pub(crate) struct RecordedInput {
    pub(crate) replay: Arc<Replay>,
    pub(crate) planned: usize,
    pub(crate) process: Arc<Process>,
}

impl RecordedInput {
    fn recorded_counts(&self) -> Option<RecordedCounts> {
        let all = self.replay.inputs.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.planned).cloned()
    }
}

impl Sink for RecordedInput {
    fn consume(&mut self, _: &Batch<'_>, _: Time) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn amount_written(&self) -> Option<Amount> {
        self.recorded_counts().map(|inputs| inputs.written)
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        self.recorded_counts().unwrap_or_default().dropped
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }
}

/// Reader of one space's events.
#[derive(Debug)]
pub(crate) struct EventPlayer {
    replay: Arc<Replay>,
    space: u32,
    /// Index, among the chunks of the recording, of the next chunk to load.
    next: usize,
    chunk: Vec<u8>,
    at: usize,
    /// File offset of the current chunk in bytes.
    offset: u64,
    /// File offset of the latest event in bytes, for messages.
    byte: Arc<AtomicU64>,
    /// The first defect found in the recording, if any.
    defect: Option<String>,
}

impl EventPlayer {
    pub(crate) fn new(replay: Arc<Replay>, space: usize) -> Self {
        let space = u32::try_from(space).unwrap_or(u32::MAX);
        let (chunk, byte) = (Vec::new(), Arc::default());
        Self { replay, space, next: 0, chunk, at: 0, offset: 0, byte, defect: None }
    }

    /// Returns the block at the current position, or `None` if it is truncated or malformed.
    fn current_block(&self) -> Option<file_format::FileBlock<'_>> {
        file_format::parse_block(self.chunk.get(self.at..)?)
    }

    /// Returns true if the recording is truncated and the current position is its end.
    fn is_truncated_here(&self) -> bool {
        let end = self.offset + self.chunk.len() as u64;
        self.at >= self.chunk.len()
            && self.replay.record.completeness == Completeness::Truncated { at: end }
    }

    /// Loads the space's next chunk once the current one has been read. Returns `None` if there is
    /// no further chunk, or if it cannot be read.
    fn load_next_chunk(&mut self) -> Option<()> {
        while self.at >= self.chunk.len() {
            let (space, offset, length) = *self.replay.record.chunks.get(self.next)?;
            self.next += 1;
            if space != self.space {
                continue;
            }
            self.chunk.resize(length, 0);
            (self.at, self.offset) = (0, offset);
            if let Err(error) = self.replay.record.file.read_exact_at(&mut self.chunk, offset) {
                return self.record_defect(&format!("it can no longer be read: {error}"));
            }
        }
        Some(())
    }

    /// Records that the recording is invalid at the current position, and ends the sequence of
    /// events. `what` describes the defect. Returns `None`.
    fn record_defect<T>(&mut self, what: &str) -> Option<T> {
        let byte = self.offset + self.at as u64;
        self.defect.get_or_insert_with(|| format!("the record is invalid at byte {byte}: {what}"));
        self.next = usize::MAX;
        self.chunk.clear();
        self.at = 0;
        None
    }
}

impl EventReader for EventPlayer {
    fn next_event(&mut self) -> Option<SpaceEvent> {
        self.load_next_chunk()?;
        let block_at = self.current_block()?;
        let (event, length) = (block_at.decode_event(), block_at.length);
        match event {
            Some(event) => {
                // Relaxed suffices: this position appears only in messages.
                self.byte.store(self.offset + self.at as u64, Ordering::Relaxed);
                self.at += length;
                Some(event)
            }
            None => self.record_defect("no pass of a space begins here"),
        }
    }

    fn peek(&mut self) -> Option<SpaceEvent> {
        self.load_next_chunk()?;
        self.current_block()?.decode_event()
    }

    fn next_block(&mut self, follow: usize) -> Option<(Entry, &[u8])> {
        let Some(length) = self
            .current_block()
            .filter(|block_at| block_at.decode_entry().is_some())
            .map(|f| f.length)
        else {
            if !self.is_truncated_here() {
                let more = follow + 1;
                return self
                    .record_defect(&format!("{more} more blocks of this pass are missing here"));
            }
            return None;
        };
        let at = self.at;
        self.at += length;
        file_format::parse_block(self.chunk.get(at..)?)?.decode_entry()
    }

    fn granted_blocks(&self, blocks: usize) -> u32 {
        let mut rest = self.chunk.get(self.at..).unwrap_or_default();
        let mut next = || {
            let block_at = file_format::parse_block(rest)?;
            rest = rest.get(block_at.length..)?;
            Some(block_at)
        };
        for _ in 0..blocks {
            if next().is_none() {
                return 0;
            }
        }
        let mut claimed: u32 = 0;
        while let Some(SpaceEvent::Claim { count }) =
            next().and_then(|block_at| block_at.decode_event())
        {
            claimed = claimed.saturating_add(count);
        }
        claimed
    }

    fn read_closing_entries(&mut self) -> (u32, Option<&'static str>) {
        let (mut claimed, mut contradiction) = (0_u32, None);
        loop {
            match self.peek() {
                Some(SpaceEvent::SourceCounts {
                    node_number: planned,
                    observed,
                    dropped,
                    missing,
                    remark,
                }) => {
                    let details = (missing, remark);
                    if !self.replay.set_source_input(planned, observed, &dropped, details) {
                        contradiction = Some("the counts of a source do not match its blocks");
                    }
                }
                Some(SpaceEvent::ProgramCounts { node_number: planned, written, dropped }) => {
                    self.replay.set_program_input(planned, written, &dropped);
                }
                Some(SpaceEvent::Claim { count }) => claimed = claimed.saturating_add(count),
                _ => return (claimed, contradiction),
            }
            self.next_event();
        }
    }

    fn add_emitted(&self, planned: usize, amount: Amount) {
        self.replay.add_emitted(planned, amount);
    }

    fn report_truncated_record(&self) {
        self.replay.note_truncated();
    }

    fn decide_swap(&self, number: u64, requested: bool) -> SwapDecision {
        self.replay.swap_decision(number, requested)
    }

    fn replay_state(&self) -> ReplayState {
        let whole = matches!(self.replay.record.completeness, Completeness::Complete { .. });
        let (stalls, byte) = (Arc::clone(&self.replay.stalls), Arc::clone(&self.byte));
        ReplayState { stalls, byte, is_complete: whole }
    }

    fn report_invalid(&mut self, what: &str) {
        let byte = self.byte.load(Ordering::Relaxed);
        self.defect.get_or_insert_with(|| format!("the record is invalid at byte {byte}: {what}"));
    }

    fn invalid_reason(&self) -> Option<&str> {
        self.defect.as_deref()
    }
}
