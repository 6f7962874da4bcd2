//! `shared`: a source that reads the streams of a shared prefix from the process that runs the
//! prefix.
//!
//! The source copies the messages of `share` into the pool and then checks them. It emits the
//! blocks of sessions that begin after it has joined, with a hole in place of overwritten blocks.
//! If the process of the prefix is killed, its sessions end, and another process takes its place.

use super::description::SHARED;
use super::join_ring;
use super::sessions::{Admission, ReadSessions, STAMP_BYTES, SharedStamp};
use crate::message::{self, HEAD_BYTES, MESSAGE_MAX};
use crate::{
    DropReason, Failure, Intake, Opening, Source, SourceCounters, SourceEntry, SourceStatus,
};
use abi::{Entry, Extent};
use buffer::Fault;
use buffer::stream::{BlockRead, Input};
use filter::Amount;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread::JoinHandle;

/// The catalog entry of `shared`.
pub const ENTRY: SourceEntry = SourceEntry::new(&SHARED, open);

const OVERWRITTEN: DropReason = DropReason::Named("overwritten");
/// Number of bytes reserved for a message whose length is not known yet; most messages fit.
const RESERVED_BYTES_MIN: usize = 4096;
/// Interval between attempts to find another process, in ns.
const REJOIN_INTERVAL: u64 = 10_000_000;

/// A source over the ring of a shared prefix.
struct Shared {
    prefix: String,
    /// The reading end of the ring; `None` once the ring has ended.
    input: Option<Input>,
    /// A thread that finds or starts a process to replace one that has ended.
    rejoin: Option<JoinHandle<Result<Input, Failure>>>,
    sessions: ReadSessions,
    /// Blocks created by this source, such as holes, which are emitted before all others.
    created: Vec<Entry>,
    /// A message whose preceding created blocks did not all fit into one pass.
    deferred: Option<Vec<u8>>,
    origin: u16,
    asleep: bool,
    /// Number of the next block in the ring, counted from 0.
    next: u64,
    /// Number of blocks in the ring after which a stopped source ends; `None` while the source is
    /// not stopped.
    end_number: Option<u64>,
    is_over: bool,
    given: Amount,
    unbegun: u64,
    /// Number of blocks left in the ring because no arc takes their class.
    untaken: u64,
    /// Blocks lost in the rings of ended processes or with the beginning of their message, and
    /// blocks left in the current ring.
    lost_before: u64,
    unread: u64,
    deaths: u64,
}

/// Result of reading one message.
enum MessageOutcome {
    Given,
    Nothing,
    Full,
    End,
    /// The process that ran the prefix has ended.
    WriterEnded,
}

/// Opens `shared`.
fn open(opening: &Opening<'_>) -> Result<Box<dyn Source>, Failure> {
    let prefix = opening.arguments.text("prefix").unwrap_or_default().to_owned();
    let input = join_ring(&prefix)?;
    Ok(Box::new(Shared {
        prefix,
        // The first block that is read says it exactly.
        next: input.writer_counts().blocks,
        input: Some(input),
        rejoin: None,
        sessions: ReadSessions::default(),
        created: Vec::new(),
        deferred: None,
        origin: opening.origin,
        asleep: false,
        end_number: None,
        is_over: false,
        given: Amount::default(),
        unbegun: 0,
        untaken: 0,
        lost_before: 0,
        unread: 0,
        deaths: 0,
    }))
}

impl Source for Shared {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let before = self.given.blocks;
        if let Some(input) = self.input.as_mut().filter(|_| std::mem::take(&mut self.asleep)) {
            input.wake(true);
        }
        let again = SourceStatus::retry_at(intake.now);
        let status = loop {
            if !self.emit_created(intake) || intake.room() == 0 {
                break again;
            }
            if self.is_over {
                return Ok(SourceStatus::End);
            }
            if self.rejoin.is_some() {
                match self.try_rejoin()? {
                    true => continue,
                    false => break SourceStatus::retry_at(intake.now + REJOIN_INTERVAL),
                }
            }
            match self.read_message(intake)? {
                MessageOutcome::Given => {}
                MessageOutcome::Full => break again,
                MessageOutcome::Nothing if self.given.blocks > before => break again,
                MessageOutcome::Nothing => match self.announce_sleep() {
                    true => {}
                    false => break SourceStatus::AWAITS_INPUT,
                },
                MessageOutcome::End => {
                    self.disconnect();
                    self.is_over = true;
                }
                MessageOutcome::WriterEnded if self.end_number.is_some() => {
                    self.disconnect();
                    self.is_over = true;
                }
                MessageOutcome::WriterEnded => {
                    self.disconnect();
                    self.deaths += 1;
                    let prefix = self.prefix.clone();
                    let thread = std::thread::Builder::new().name("rejoin".to_owned());
                    let thread = thread.spawn(move || join_ring(&prefix));
                    let failed = |error| Failure::new("share", &*self.prefix, error);
                    self.rejoin = Some(thread.map_err(failed)?);
                }
            }
        };
        Ok(if self.given.blocks > before { SourceStatus::Blocks } else { status })
    }

    fn counters(&self) -> SourceCounters {
        let lost = self.lost();
        let dropped = [(OVERWRITTEN, lost), (DropReason::Unread, self.unread)];
        let dropped = dropped.into_iter().filter(|(_, count)| *count > 0);
        let dropped: Vec<_> = dropped.map(|(reason, count)| (reason, Some(count))).collect();
        let blocks = self.given.blocks + lost + self.unread;
        let observed = Amount { blocks, bytes: self.given.bytes };
        let remark = Some(self.loss_remark());
        SourceCounters {
            dropped,
            observed: Some(observed),
            remark,
            ..SourceCounters::lossless(self.given)
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
            let written = self.end_number.unwrap_or_else(|| input.writer_counts().blocks);
            self.unread = written.saturating_sub(self.next);
        }
    }
}

impl Shared {
    /// Emits the blocks created by this source. Returns false if they do not all fit in the intake.
    fn emit_created(&mut self, intake: &mut Intake<'_>) -> bool {
        let count = self.created.len().min(intake.room());
        for entry in self.created.drain(..count) {
            self.given.add(entry.pointer.length());
            intake.put_entry(entry);
        }
        self.created.is_empty()
    }

    /// Reads one message, and emits its block if the block's session is admitted.
    fn read_message(&mut self, intake: &mut Intake<'_>) -> Result<MessageOutcome, Failure> {
        if let Some(deferred) = self.deferred.take() {
            let Some((place, _)) = intake.pool.append(deferred.len(), |room| {
                room.copy_from_slice(&deferred);
                deferred.len()
            }) else {
                self.deferred = Some(deferred);
                return Ok(MessageOutcome::Full);
            };
            return self.emit_deferred(intake, place, &deferred);
        }
        let Some(input) = &mut self.input else { return Ok(MessageOutcome::WriterEnded) };
        if self.end_number.is_some_and(|last| self.next >= last) {
            return Ok(MessageOutcome::End);
        }
        let mut room = RESERVED_BYTES_MIN;
        let taken = intake.taken;
        let is_taken = |bytes: &[u8]| {
            let entry = bytes.get(STAMP_BYTES..).and_then(message::unchecked_entry);
            entry.is_none_or(|entry| taken.contains(entry.pointer.class))
        };
        loop {
            let Some(mut draft) = intake.pool.draft(room, room) else {
                return Ok(MessageOutcome::Full);
            };
            let read = input.read_wanted(&mut draft, STAMP_BYTES + HEAD_BYTES, &is_taken);
            match read {
                Ok((BlockRead::Block(length), is_copied)) => {
                    let length = if is_copied { length } else { STAMP_BYTES + HEAD_BYTES };
                    let bytes = draft.get(..length).unwrap_or_default();
                    let read = SharedStamp::read(bytes).ok_or(message::MessageDefect::Short);
                    let (stamp, block) = read.map_err(|defect| self.invalid_message(&defect))?;
                    self.next = stamp.number + 1;
                    let checked = match is_copied {
                        true => message::read(block, 1).map(|(entry, _)| entry),
                        false => {
                            message::unchecked_entry(block).ok_or(message::MessageDefect::Short)
                        }
                    };
                    let entry = checked.map_err(|defect| self.invalid_message(&defect))?;
                    if !self.admit(stamp, &entry) {
                        return Ok(MessageOutcome::Given);
                    }
                    if !is_copied {
                        self.untaken += 1;
                        return Ok(MessageOutcome::Given);
                    }
                    if self.created.len() >= intake.room() {
                        self.deferred = Some(bytes.to_vec());
                        return Ok(MessageOutcome::Given);
                    }
                    let place = draft.commit(length);
                    return self.emit_in_order(intake, place, entry);
                }
                Ok((BlockRead::Nothing, _)) if self.end_number.is_some() => {
                    return Ok(MessageOutcome::End);
                }
                Ok((BlockRead::Nothing, _)) => return Ok(MessageOutcome::Nothing),
                Ok((BlockRead::End, _)) => return Ok(MessageOutcome::End),
                Err(Fault::TooLong { length, .. }) if room < length => {
                    drop(draft);
                    room = length.min(STAMP_BYTES + MESSAGE_MAX);
                }
                Err(Fault::Abandoned) => return Ok(MessageOutcome::WriterEnded),
                Err(fault) => return Err(self.invalid_message(&fault)),
            }
        }
    }

    /// Returns true if a block belongs to a session or message that this reader has seen from its
    /// beginning; counts it otherwise.
    fn admit(&mut self, stamp: SharedStamp, entry: &Entry) -> bool {
        match self.sessions.admit(stamp, entry, &mut self.created) {
            Admission::Follows => return true,
            Admission::Unbegun => self.unbegun += 1,
            Admission::Headless => self.lost_before += 1,
        }
        false
    }

    /// Emits the block of the deferred message.
    fn emit_deferred(
        &mut self,
        intake: &mut Intake<'_>,
        place: Extent,
        deferred: &[u8],
    ) -> Result<MessageOutcome, Failure> {
        let block = deferred.get(STAMP_BYTES..).unwrap_or_default();
        let (entry, _) = message::read(block, 1).map_err(|defect| self.invalid_message(&defect))?;
        self.emit_in_order(intake, place, entry)
    }

    /// Emits a block whose message is in the pool, after the blocks created in front of it.
    fn emit_in_order(
        &mut self,
        intake: &mut Intake<'_>,
        place: Extent,
        entry: Entry,
    ) -> Result<MessageOutcome, Failure> {
        self.emit_created(intake);
        let head = u32::try_from(STAMP_BYTES + HEAD_BYTES).unwrap_or(u32::MAX);
        let mut entry = message::located_entry(
            entry,
            intake.pool.id(),
            place.within(head, place.length().saturating_sub(head)),
        );
        entry.context.origin = self.origin;
        self.given.add(entry.pointer.length());
        intake.put_entry(entry);
        Ok(MessageOutcome::Given)
    }

    /// Notifies the writer that the source is about to sleep. Returns true if there is something to
    /// read after all.
    fn announce_sleep(&mut self) -> bool {
        let Some(input) = &mut self.input else { return true };
        self.asleep = true;
        let has_more = input.announce_sleep_until_flush().unwrap_or(true);
        if has_more {
            self.asleep = false;
            input.wake(true);
        }
        has_more
    }

    /// Disconnects from the ring, and ends the sessions whose blocks were read from the ring.
    fn disconnect(&mut self) {
        self.lost_before = self.lost();
        self.input = None;
        self.sessions.end_all(&mut self.created);
    }

    /// Takes over the ring that the thread has found. Returns false while the thread still
    /// searches.
    fn try_rejoin(&mut self) -> Result<bool, Failure> {
        let Some(thread) = self.rejoin.take_if(|thread| thread.is_finished()) else {
            return Ok(false);
        };
        let ended = || Failure::new("share", &*self.prefix, "the search for it ended");
        let input = thread.join().map_err(|_| ended())??;
        self.next = input.writer_counts().blocks;
        self.input = Some(input);
        Ok(true)
    }

    fn lost(&self) -> u64 {
        self.lost_before + self.input.as_ref().map_or(0, |input| input.counts().lost)
    }

    fn invalid_message(&self, why: &dyn std::fmt::Display) -> Failure {
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
                 not given",
                self.unbegun
            );
        }
        if self.untaken > 0 {
            remark += &format!("; {} blocks were of classes that no arc takes", self.untaken);
        }
        if self.sessions.torn > 0 {
            remark += &format!("; {} times it was too slow for a {what}", self.sessions.torn);
        }
        if self.deaths > 0 {
            remark += &format!("; its process ended {} times and was replaced", self.deaths);
        }
        remark
    }
}
