//! `shared`: a source that reads the streams of a shared prefix from the process that runs the
//! prefix.
//!
//! The source copies the messages of `share` into the pool and then checks them. It emits only the
//! blocks of sessions that begin after it has joined, and a hole in place of overwritten blocks. If
//! the process of the prefix is killed, its sessions end, and another process is started or found.

use super::sessions::{Admission, ReadSessions, STAMP_BYTES, SharedStamp};
use super::{STARTER, Started, ring_name};
use crate::message::{self, HEAD_BYTES, MESSAGE_MAX};
use crate::{
    DropReason, Failure, Intake, Opening, Source, SourceCounters, SourceEntry, SourceStatus,
};
use abi::{Entry, Extent};
use buffer::Fault;
use buffer::name::{self, Error};
use buffer::stream::{BlockRead, Input};
use filter::{
    Amount, Description, Form, OutputForm, Parameter, StateFacts, Type, WorkerRule, transport,
};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::thread::JoinHandle;

/// Description of `shared`, the source that reads the output of a shared prefix.
pub const SHARED: Description = Description {
    name: "shared",
    summary: "read the streams of a prefix that several requests share",
    details: "\
Reads the streams of `prefix`, a request that ends with `tcp`, from a process that runs it once for
all requests of this user that begin with it. The first request starts the process, and it ends
after the last; `streamline ps` lists it. The class is the server's port, as after `tcp`. With
`--prefix=shared`, Streamline puts this source in place of the start of a request.

Connections that began before this request joined are left out. Blocks that the request is too slow
to read are overwritten, counted, and become a hole in their connection. If the process of the
prefix is killed, its connections end, and another process takes over.

Reasons for a drop: `overwritten` (read too slowly), `unread` (in the ring at the end).",
    example: "shared \"rx eth0 | tcp\" | http |get count",
    output_form: OutputForm::Form(Form::Stream),
    classes: transport::tcp::TCP.classes,
    state: StateFacts::NONE.several(|_| {
        WorkerRule::Not("each of its readers is one process", WorkerRule::DEFAULT_HINT)
    }),
    parameters: &[Parameter::required(
        "prefix",
        Type::Text,
        "the start that the requests have in common",
    )],
    ..Description::SOURCE
};

/// The catalog entry of `shared`.
pub const ENTRY: SourceEntry = SourceEntry::new(&SHARED, open);

const OVERWRITTEN: DropReason = DropReason::Named("overwritten");
/// Maximum number of attempts to find or start the process of a prefix. An attempt fails if another
/// program starts or ends that process at the same time.
const JOIN_ATTEMPTS_MAX: usize = 8;
/// Number of bytes reserved for a message whose length is not known yet. Most messages fit in it.
const RESERVED_BYTES_MIN: usize = 4096;
/// Interval between two attempts to find another process, in ns.
const REJOIN_INTERVAL: u64 = 10_000_000;

/// A source over the ring of a shared prefix.
struct Shared {
    prefix: String,
    /// The reading end of the ring; `None` once the ring has ended.
    input: Option<Input>,
    /// A thread that finds or starts a process in place of one that has ended.
    rejoin: Option<JoinHandle<Result<Input, Failure>>>,
    sessions: ReadSessions,
    /// Blocks created by this source itself, such as holes. They are emitted before all others.
    created: Vec<Entry>,
    /// A message that is deferred to the next pass, because the created blocks in front of it did
    /// not all fit.
    deferred: Option<Vec<u8>>,
    origin: u16,
    asleep: bool,
    /// Number of the next block to be read from the ring, counted from 0.
    next: u64,
    /// Number of blocks in the ring after which the stopped source ends; `None` while the source is
    /// not stopped.
    last: Option<u64>,
    is_over: bool,
    given: Amount,
    unbegun: u64,
    /// Number of blocks lost in the rings of processes that have ended, and number of blocks read
    /// from the current ring.
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
    Gone,
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
        last: None,
        is_over: false,
        given: Amount::default(),
        unbegun: 0,
        lost_before: 0,
        unread: 0,
        deaths: 0,
    }))
}

/// Opens the ring of a prefix. If no process runs the prefix, starts one and blocks until the
/// prefix runs.
fn join_ring(prefix: &str) -> Result<Input, Failure> {
    let name = ring_name(prefix);
    let wrong = |why: &dyn std::fmt::Display| Failure::new("share", prefix, why);
    let mut message = String::new();
    for _ in 0..JOIN_ATTEMPTS_MAX {
        match name::open_stream(&name) {
            Ok(input) => return Ok(input),
            Err(Error::Unknown(_) | Error::Ended(_)) => {}
            Err(error) => return Err(wrong(&error)),
        }
        let Some(starter) = STARTER.get() else {
            let failure = wrong(&"no process runs it, and this program starts none");
            return Err(failure.hint("start one by `streamline run`"));
        };
        if let Started::Ended(why) = starter(prefix)? {
            message = why;
        }
    }
    Err(wrong(&if message.is_empty() { "its process ends at once" } else { message.trim() }))
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
                MessageOutcome::Gone if self.last.is_some() => {
                    self.disconnect();
                    self.is_over = true;
                }
                MessageOutcome::Gone => {
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
        self.last = self.input.as_ref().map(|input| input.writer_counts().blocks);
        self.is_over |= self.last.is_none();
        self.rejoin = None;
        true
    }

    fn close(&mut self) {
        if let Some(input) = &self.input {
            let written = self.last.unwrap_or_else(|| input.writer_counts().blocks);
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
            intake.put(entry);
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
        let Some(input) = &mut self.input else { return Ok(MessageOutcome::Gone) };
        if self.last.is_some_and(|last| self.next >= last) {
            return Ok(MessageOutcome::End);
        }
        let mut room = RESERVED_BYTES_MIN;
        loop {
            let Some(mut draft) = intake.pool.draft(room, room) else {
                return Ok(MessageOutcome::Full);
            };
            match input.read_block(&mut draft) {
                Ok(BlockRead::Block(length)) => {
                    let bytes = draft.get(..length).unwrap_or_default();
                    let read = SharedStamp::read(bytes).ok_or(message::MessageDefect::Short);
                    let (stamp, block) = read.map_err(|defect| self.invalid_message(&defect))?;
                    let (entry, _) =
                        message::read(block, 1).map_err(|defect| self.invalid_message(&defect))?;
                    self.next = stamp.number + 1;
                    if self.sessions.admit(stamp, &entry, &mut self.created) == Admission::Unbegun {
                        self.unbegun += 1;
                        return Ok(MessageOutcome::Given);
                    }
                    if self.created.len() >= intake.room() {
                        self.deferred = Some(bytes.to_vec());
                        return Ok(MessageOutcome::Given);
                    }
                    let place = draft.commit(length);
                    return self.emit_in_order(intake, place, entry);
                }
                Ok(BlockRead::Nothing) if self.last.is_some() => return Ok(MessageOutcome::End),
                Ok(BlockRead::Nothing) => return Ok(MessageOutcome::Nothing),
                Ok(BlockRead::End) => return Ok(MessageOutcome::End),
                Err(Fault::TooLong { length, .. }) if room < length => {
                    drop(draft);
                    room = length.min(STAMP_BYTES + MESSAGE_MAX);
                }
                Err(Fault::Abandoned) => return Ok(MessageOutcome::Gone),
                Err(fault) => return Err(self.invalid_message(&fault)),
            }
        }
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

    /// Emits a block whose message is in the pool, after the blocks that were created in front of
    /// it.
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
        intake.put(entry);
        Ok(MessageOutcome::Given)
    }

    /// Notifies the writer that the source is about to sleep. Returns true if there is something to
    /// read after all.
    fn announce_sleep(&mut self) -> bool {
        let Some(input) = &mut self.input else { return true };
        self.asleep = true;
        let has_more = input.announce_sleep().unwrap_or(true);
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

    /// Takes over the ring that the thread has found. Returns false if the thread is still
    /// searching.
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
        let mut remark = format!(
            "{} connections of `{}`, which runs once for all that share it",
            self.sessions.begun, self.prefix
        );
        if self.unbegun > 0 {
            remark += &format!(
                "; {} blocks were of connections that had begun before this request joined, and \
                 were not given",
                self.unbegun
            );
        }
        if self.sessions.torn > 0 {
            remark += &format!("; {} times it was too slow for a connection", self.sessions.torn);
        }
        if self.deaths > 0 {
            remark += &format!("; its process ended {} times and was replaced", self.deaths);
        }
        remark
    }
}
