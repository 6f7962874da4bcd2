//! The turns of a space, taken from a record.
//!
//! In: a record, which may be cut anywhere or lie. Out: one event after the other with its blocks;
//! nothing where the record ends. Each space reads its own chunks and nothing else.

use super::form;
use super::read::{Record, Whole};
use abi::Entry;
use endpoint::process::Process;
use endpoint::{DropReason, Failure, Given, Intake, Seen, Sink, Source, SourceProperties};
use filter::{Amount, Batch, Report, Time};
use runtime::space::events::{Script, ScriptedChange, SharedScript, SpaceEvent};
use runtime::space::stall::StallDetector;
use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A record that is being played, once.
#[derive(Debug)]
pub struct Replay {
    record: Record,
    /// Totals of sources, by node of the plan.
    seen: Mutex<HashMap<usize, Seen>>,
    /// Recorded input of programs, by node of the plan.
    heard: Mutex<HashMap<usize, Heard>>,
    /// True if a space reached an end of the record that is not the end of the run.
    short: AtomicBool,
    /// Progress of the recorded changes.
    changes: Mutex<Changes>,
    /// The detector of spaces that wait for one another.
    pub(crate) stalls: Arc<StallDetector>,
}

/// Progress in repeating the changes of a record.
#[derive(Debug, Default)]
struct Changes {
    /// Number of the change in progress, or of the last one.
    number: u64,
    /// Set once no more changes are made; the reason, if that is a failure.
    over: Option<Option<String>>,
}

impl Replay {
    /// Plays this record.
    #[must_use]
    pub fn new(record: Record) -> Arc<Self> {
        let (seen, heard) = (Mutex::default(), Mutex::default());
        let (short, changes) = (AtomicBool::new(false), Mutex::default());
        let stalls = Arc::<StallDetector>::default();
        if !record.changes.is_empty() {
            stalls.changes_come();
        }
        Arc::new(Self { record, seen, heard, short, changes, stalls })
    }

    /// Returns the record being replayed.
    #[must_use]
    pub const fn record(&self) -> &Record {
        &self.record
    }

    /// Returns true if the record ended before the run that it records.
    #[must_use]
    pub fn ended_short(&self) -> bool {
        !matches!(self.record.whole, Whole::Whole { .. }) || self.short.load(Ordering::Relaxed)
    }

    /// This change is made now.
    pub(crate) fn makes(&self, number: u64) {
        self.changes().number = number;
    }

    /// No change is made from now on, for this reason if it is a failure.
    pub(crate) fn changes_no_more(&self, why: Option<String>) {
        self.changes().over.get_or_insert(why);
        self.stalls.changes_are_over();
    }

    /// Returns what becomes of a space that stands where this change was made, and is `wanted` for
    /// one or not.
    fn next(&self, number: u64, wanted: bool) -> ScriptedChange {
        let changes = self.changes();
        match &changes.over {
            _ if number >= self.record.changes.len() as u64 => ScriptedChange::End,
            Some(Some(why)) => ScriptedChange::Failed(why.clone()),
            Some(None) => ScriptedChange::End,
            None if wanted && changes.number == number => ScriptedChange::Go,
            // It was made without this space, or another one needs it.
            None if wanted || changes.number > number => {
                ScriptedChange::Failed("the record names another change here".to_owned())
            }
            None => ScriptedChange::Wait,
        }
    }

    fn changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<usize, Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A source has given so much more.
    fn gave(&self, planned: usize, amount: Amount) {
        let mut all = self.seen();
        let given = &mut all.entry(planned).or_default().given;
        given.blocks += amount.blocks;
        given.bytes += amount.bytes;
    }

    /// A source had seen this when it ended. Answers whether that is what came of it and what it
    /// lost; what is not is not believed.
    fn had_seen(
        &self,
        planned: usize,
        seen: Option<(u64, u64)>,
        dropped: &[(String, Option<u64>)],
    ) -> bool {
        let mut all = self.seen();
        let known = all.entry(planned).or_default();
        let lost: Option<u64> =
            dropped.iter().try_fold(0, |sum: u64, (_, count)| Some(sum.saturating_add((*count)?)));
        let adds_up = seen.zip(lost).is_none_or(|((blocks, _), lost)| {
            blocks.checked_sub(lost).is_some_and(|given| given == known.given.blocks)
        });
        if !adds_up {
            return false;
        }
        known.seen = seen.map(|(blocks, bytes)| Amount { blocks, bytes });
        known.dropped = dropped.iter().map(|(place, count)| (named(place), *count)).collect();
        true
    }

    /// A program had been given this when it ended.
    fn had_heard(
        &self,
        planned: usize,
        (blocks, bytes): (u64, u64),
        dropped: &[(String, u64, u64)],
    ) {
        let written = Amount { blocks, bytes };
        let dropped = dropped.iter().map(|(reason, blocks, bytes)| {
            (named(reason), Amount { blocks: *blocks, bytes: *bytes })
        });
        let heard = Heard { written, dropped: dropped.collect() };
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).insert(planned, heard);
    }

    /// A space has no more turns although it has not finished.
    fn note_short(&self) {
        self.short.store(true, Ordering::Relaxed);
    }
}

/// The places in which sources lose blocks, besides those that all parties know.
const PLACES: &[&str] = &["socket", "queue", "lapped", "not copied"];

fn named(place: &str) -> DropReason {
    let known = || PLACES.iter().find(|known| **known == place).copied();
    DropReason::read(place).unwrap_or_else(|| known().unwrap_or("elsewhere").into())
}

/// Replaces a source during replay; never polled for input.
#[derive(Debug)]
pub(crate) struct Played {
    pub(crate) replay: Arc<Replay>,
    pub(crate) planned: usize,
    /// The program whose output it was.
    pub(crate) process: Option<Arc<Process>>,
}

impl Source for Played {
    fn give(&mut self, _: &mut Intake<'_>) -> Result<Given, Failure> {
        Ok(Given::End)
    }

    fn seen(&self) -> Seen {
        self.replay.seen().get(&self.planned).cloned().unwrap_or_default()
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { process: self.process.clone(), ..SourceProperties::default() }
    }
}

/// Recorded input of a program, and the blocks it did not take, by reason.
#[derive(Clone, Debug, Default)]
struct Heard {
    written: Amount,
    dropped: Vec<(DropReason, Amount)>,
}

/// Replaces the sink of a program that replay does not run again.
#[derive(Debug)]
pub(crate) struct Deaf {
    pub(crate) replay: Arc<Replay>,
    pub(crate) planned: usize,
    pub(crate) process: Arc<Process>,
}

impl Deaf {
    fn heard(&self) -> Option<Heard> {
        let all = self.replay.heard.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&self.planned).cloned()
    }
}

impl Sink for Deaf {
    fn take(&mut self, _: &Batch<'_>, _: Time) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        self.heard().map(|heard| heard.written)
    }

    fn dropped(&self) -> Vec<(DropReason, Amount)> {
        self.heard().unwrap_or_default().dropped
    }

    fn process(&self) -> Option<&Arc<Process>> {
        Some(&self.process)
    }
}

/// The turns of one space.
#[derive(Debug)]
pub(crate) struct Player {
    replay: Arc<Replay>,
    space: u32,
    /// Index of the next chunk.
    next: usize,
    chunk: Vec<u8>,
    at: usize,
    /// File offset of the chunk, in bytes.
    offset: u64,
    /// File offset of the latest event, in bytes.
    byte: Arc<AtomicU64>,
    /// Description of the first defect found in the record.
    wrong: Option<String>,
}

impl Player {
    pub(crate) fn new(replay: Arc<Replay>, space: usize) -> Self {
        let space = u32::try_from(space).unwrap_or(u32::MAX);
        let (chunk, byte) = (Vec::new(), Arc::default());
        Self { replay, space, next: 0, chunk, at: 0, offset: 0, byte, wrong: None }
    }

    /// Returns the block at the current position.
    fn found(&self) -> Option<form::Found<'_>> {
        form::found(self.chunk.get(self.at..)?)
    }

    /// Returns true if the record is truncated here.
    fn is_cut_here(&self) -> bool {
        let end = self.offset + self.chunk.len() as u64;
        self.at >= self.chunk.len() && self.replay.record.whole == Whole::Cut { at: end }
    }

    /// Reads the next chunk of this space when the last is used up.
    fn fill(&mut self) -> Option<()> {
        while self.at >= self.chunk.len() {
            let (space, offset, length) = *self.replay.record.chunks.get(self.next)?;
            self.next += 1;
            if space != self.space {
                continue;
            }
            self.chunk.resize(length, 0);
            (self.at, self.offset) = (0, offset);
            if let Err(error) = self.replay.record.file.read_exact_at(&mut self.chunk, offset) {
                return self.broken(&format!("it cannot be read any more: {error}"));
            }
        }
        Some(())
    }

    /// Nothing that follows means anything.
    fn broken<T>(&mut self, what: &str) -> Option<T> {
        let byte = self.offset + self.at as u64;
        self.wrong.get_or_insert_with(|| format!("the record is wrong at byte {byte}: {what}"));
        self.next = usize::MAX;
        self.chunk.clear();
        self.at = 0;
        None
    }
}

impl Script for Player {
    fn event(&mut self) -> Option<SpaceEvent> {
        self.fill()?;
        let found = self.found()?;
        let (event, length) = (found.event(), found.length);
        match event {
            Some(event) => {
                // It only says where; nothing else travels with it.
                self.byte.store(self.offset + self.at as u64, Ordering::Relaxed);
                self.at += length;
                Some(event)
            }
            None => self.broken("no turn of a space begins here"),
        }
    }

    fn peek(&mut self) -> Option<SpaceEvent> {
        self.fill()?;
        self.found()?.event()
    }

    fn block(&mut self, follow: usize) -> Option<(Entry, &[u8])> {
        let Some(length) = self.found().filter(|found| found.entry().is_some()).map(|f| f.length)
        else {
            if !self.is_cut_here() {
                let more = follow + 1;
                return self.broken(&format!("{more} more blocks of this turn are to be here"));
            }
            return None;
        };
        let at = self.at;
        self.at += length;
        form::found(self.chunk.get(at..)?)?.entry()
    }

    fn claims(&self, blocks: usize) -> u32 {
        let mut rest = self.chunk.get(self.at..).unwrap_or_default();
        let mut next = || {
            let found = form::found(rest)?;
            rest = rest.get(found.length..)?;
            Some(found)
        };
        for _ in 0..blocks {
            if next().is_none() {
                return 0;
            }
        }
        let mut claimed: u32 = 0;
        while let Some(SpaceEvent::Claim { count }) = next().and_then(|found| found.event()) {
            claimed = claimed.saturating_add(count);
        }
        claimed
    }

    fn closing_notes(&mut self) -> (u32, Option<&'static str>) {
        let (mut claimed, mut contradiction) = (0_u32, None);
        loop {
            match self.peek() {
                Some(SpaceEvent::Seen { planned, seen, dropped }) => {
                    if !self.replay.had_seen(planned, seen, &dropped) {
                        contradiction =
                            Some("a source saw another number of blocks than came of it");
                    }
                }
                Some(SpaceEvent::Heard { planned, written, dropped }) => {
                    self.replay.had_heard(planned, written, &dropped);
                }
                Some(SpaceEvent::Claim { count }) => claimed = claimed.saturating_add(count),
                _ => return (claimed, contradiction),
            }
            self.event();
        }
    }

    fn gave(&self, planned: usize, amount: Amount) {
        self.replay.gave(planned, amount);
    }

    fn note_short(&self) {
        self.replay.note_short();
    }

    fn change(&self, number: u64, requested: bool) -> ScriptedChange {
        self.replay.next(number, requested)
    }

    fn shared(&self) -> SharedScript {
        let whole = matches!(self.replay.record.whole, Whole::Whole { .. });
        let (stalls, byte) = (Arc::clone(&self.replay.stalls), Arc::clone(&self.byte));
        SharedScript { stalls, byte, whole }
    }

    fn is_wrong(&mut self, what: &str) {
        let byte = self.byte.load(Ordering::Relaxed);
        self.wrong.get_or_insert_with(|| format!("the record is wrong at byte {byte}: {what}"));
    }

    fn wrong(&self) -> Option<&str> {
        self.wrong.as_deref()
    }
}
