//! The source `buffer`, to which other programs write by name.
//!
//! Each writer creates a ring. The source emits the blocks unchanged. It copies each block once,
//! because writers are untrusted. Writers may connect and leave at any time. Each call to `produce`
//! drains the writers in turn until the batch is full. The next call continues with the writer at
//! which the batch became full.

use super::ring::RingState;
use super::writers::Writers;
use super::{access_list, open_failure};
use crate::permitted_readers::ALL_USERS;
use crate::{
    DropReason, Failure, Intake, OpenArguments, Source, SourceCounters, SourceEntry, SourceStatus,
};
use abi::{BLOCK_LENGTH_MAX, BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};
use buffer::name::{Address, NameHost};
use buffer::wait::BlockReadResult;
use filter::{
    Amount, Arguments, Description, Effect, Form, OutputForm, Parameter, ParameterType, StateFacts,
    WorkerRule,
};
use std::os::fd::BorrowedFd;
use wire::link::LinkType;

/// Description of `buffer`, the source that receives blocks written by other programs.
pub const BUFFER: Description = Description {
    name: "buffer",
    summary: "read blocks that other programs write to a name",
    details: "\
Reads the blocks that other programs write to `name`: `streamline cat --write NAME` in a shell,
`streamline_open(\"NAME\", STREAMLINE_WRITE)` in C, `NamedWriter` in Rust; `UID/NAME` for another
user; in PipesFS its `all`, or `all.pcap` for frames. Each write is one block. Any number of
programs may write, as far as `mode` permits: 600 this user alone, 620 the group, 622 everybody.
Each has a ring of its own, and waits while it is full.

A block is an Ethernet frame, for `tx` and filters that read headers; `link=raw` makes it an IP
packet, `link=none` plain bytes, and with `link=stream` all blocks of a writer are one stream, for
`http` and other filters that read connections. The path runs until it is stopped, or with
`last=yes` until the last writer has closed.

Reasons for a drop: `too long` (a block of more than 1 MB, and everything after it from the same
writer).

The name belongs to this process and its network namespace, and is removed with it.",
    example: "buffer txport_53 |all tx lo",
    effect: Some(effect),
    frames_hint: Some("write `link=ethernet` or `link=raw` if its blocks are frames or packets"),
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs(
            "a name belongs to one process, which reads it",
            WorkerRule::DEFAULT_HINT,
        )
    }),
    parameters: &[
        Parameter::required("name", ParameterType::Name, "the name to which programs write"),
        Parameter::with_default(
            "link",
            ParameterType::OneOf(&["ethernet", "raw", "none", "stream"]),
            "ethernet",
            "form of a block: a frame, a packet, plain bytes, a part of a stream",
        ),
        Parameter::with_default(
            "mode",
            ParameterType::OneOf(&["600", "620", "622"]),
            "600",
            "who may write: you alone, your group, everybody",
        ),
        Parameter::with_default(
            "last",
            ParameterType::Flag,
            "no",
            "end when the last writer has closed",
        ),
    ],
    ..Description::SOURCE_DEFAULTS
};

const TOO_LONG_REASON: DropReason = DropReason::Named("too long");

fn effect(arguments: &Arguments) -> Effect {
    let form = match arguments.text("link") {
        Some("stream") => Form::Stream,
        Some("none") => Form::Bytes,
        _ => Form::Frame,
    };
    Effect { output_form: OutputForm::Form(form), kind: BUFFER.kind, reads: BUFFER.reads }
}

fn link_type(arguments: &Arguments) -> Option<LinkType> {
    match arguments.text("link") {
        Some("none" | "stream") => None,
        Some("raw") => Some(LinkType::RAW),
        _ => Some(LinkType::ETHERNET),
    }
}

/// Returns the link types of the frames that a `buffer` with these arguments emits. The list is
/// empty if its blocks are not frames. Never returns `None`.
#[expect(clippy::unnecessary_wraps, reason = "the signature of the catalog")]
fn link_types(arguments: &Arguments) -> Option<Vec<LinkType>> {
    Some(link_type(arguments).into_iter().collect())
}

/// A source of the kind `buffer`, which emits the blocks from the rings of all of its writers.
struct BufferSource {
    /// Thread that accepts the programs that open the buffer by name.
    host: NameHost,
    address: Address,
    writers: Writers,
    link: Option<LinkType>,
    origin: u16,
    /// True if the blocks of each writer are parts of one byte stream, to which the source assigns
    /// a session; false if each block is an independent unit.
    is_byte_stream: bool,
    /// Ended sessions whose last block has not been emitted yet, with the flags of that block.
    ended_sessions: Vec<(u32, BlockFlags)>,
    /// True if the input ends as soon as the last writer has left.
    until_last: bool,
    /// Memory for a block that has been read from a ring but not yet copied to the pool.
    pending_copy: Vec<u8>,
    /// Length in bytes, session number and flags of the block in `pending_copy`, or `None` if there
    /// is no such block.
    pending: Option<(usize, u32, BlockFlags)>,
    /// Index of the writer whose ring is read next.
    next_writer: usize,
    given: Amount,
    too_long: u64,
    unread: u64,
    /// Numbers of times that the writers' rings have grown and shrunk so far, over all writers.
    rings: RingState,
}

/// Result of reading blocks from one writer.
enum DrainOutcome {
    /// The writer's ring is empty.
    Nothing,
    /// The batch is full, or the pool of the space has no free memory.
    Full,
    /// The writer has closed its ring, has exited, or is no longer served because of a fault.
    /// Contains the flags for the last block of the writer's session.
    Ended(BlockFlags),
}

/// Catalog entry of `buffer`.
pub const ENTRY: SourceEntry =
    SourceEntry::new(&BUFFER, open).with_link_type_prediction(link_types);

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let name = opening.arguments.text("name").unwrap_or_default();
    let wrong = |error| open_failure("create", name, &error);
    let refused = |error| Failure::new("create", name, error);
    let address = Address::for_current_user(name).map_err(wrong)?;
    let host = NameHost::open().map_err(refused)?;
    let inbox =
        host.create_inbox(name, access_list(opening.arguments, &ALL_USERS)).map_err(wrong)?;
    Ok(Box::new(BufferSource {
        host,
        address,
        writers: Writers::new(inbox).map_err(refused)?,
        link: link_type(opening.arguments),
        origin: opening.origin,
        is_byte_stream: opening.arguments.text("link") == Some("stream"),
        ended_sessions: Vec::new(),
        until_last: opening.arguments.flag("last"),
        pending_copy: vec![0; BLOCK_LENGTH_MAX],
        pending: None,
        next_writer: 0,
        given: Amount::default(),
        too_long: 0,
        unread: 0,
        rings: RingState::default(),
    }))
}

impl Source for BufferSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        self.writers.announce_awake().map_err(|error| self.failure(&error))?;
        let before = self.given.blocks;
        let again = SourceStatus::retry_at(intake.now);
        if self.pending.is_some() && !self.append_pending_block(intake) {
            return Ok(again);
        }
        self.emit_session_ends(intake);
        let mut idle = 0;
        while idle < self.writers.list.len() {
            let at = self.next_writer % self.writers.list.len();
            match self.drain_writer(at, intake) {
                DrainOutcome::Full => {
                    let status = SourceStatus::Blocks;
                    return Ok(if self.given.blocks > before { status } else { again });
                }
                DrainOutcome::Nothing => {
                    idle += 1;
                    self.next_writer = at + 1;
                }
                DrainOutcome::Ended(end) => {
                    let session = self.writers.list.swap_remove(at).session;
                    if self.is_byte_stream {
                        let both = [end, end.with(BlockFlags::BACKWARD)];
                        self.ended_sessions.extend(both.map(|flags| (session, flags)));
                        self.emit_session_ends(intake);
                    }
                }
            }
        }
        if self.given.blocks > before || !self.ended_sessions.is_empty() {
            return Ok(SourceStatus::Blocks);
        }
        if self.until_last && self.writers.has_no_writers_left() {
            return Ok(SourceStatus::End);
        }
        let has_more = self.writers.announce_sleep();
        Ok(if has_more { again } else { SourceStatus::AWAITS_INPUT })
    }

    fn counters(&self) -> SourceCounters {
        let unread = self.unread + u64::from(self.pending.is_some());
        let dropped = [(TOO_LONG_REASON, self.too_long), (DropReason::Unread, unread)];
        let dropped = dropped.into_iter().filter(|(_, count)| *count > 0);
        let dropped: Vec<_> = dropped.map(|(reason, count)| (reason, Some(count))).collect();
        let lost = dropped.iter().filter_map(|(_, count)| *count).sum::<u64>();
        let observed = Amount { blocks: self.given.blocks + lost, bytes: self.given.bytes };
        SourceCounters { dropped, observed: Some(observed), ..SourceCounters::lossless(self.given) }
    }

    /// Returns the size of the largest of the writers' rings, and the numbers of size changes of
    /// all these rings.
    fn ring_state(&self) -> Option<RingState> {
        let largest = self.writers.list.iter().map(|ring| ring.bytes).max();
        Some(RingState { bytes: largest.unwrap_or_default() as u64, ..self.rings.clone() })
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.writers.descriptor())
    }

    fn close(&mut self) {
        self.host.withdraw(&self.address);
        self.unread += self.writers.finish();
    }
}

impl BufferSource {
    /// Appends blocks of one writer until the writer's ring is empty, the intake or the pool is
    /// full, the writer has left, or a fault makes it impossible to serve the writer.
    fn drain_writer(&mut self, at: usize, intake: &mut Intake<'_>) -> DrainOutcome {
        loop {
            if intake.room() == 0 {
                return DrainOutcome::Full;
            }
            let Some(ring) = self.writers.list.get_mut(at) else { return DrainOutcome::Nothing };
            ring.record_size_change(&mut self.rings);
            match ring.input.read_block(&mut self.pending_copy) {
                Ok(BlockReadResult::Block(length)) => {
                    let begins = !std::mem::replace(&mut ring.has_begun, true);
                    let flags = if begins { BlockFlags::FIRST } else { BlockFlags::NONE };
                    self.pending = Some((length, ring.session, flags));
                    if !self.append_pending_block(intake) {
                        return DrainOutcome::Full;
                    }
                }
                Ok(BlockReadResult::Nothing) => return DrainOutcome::Nothing,
                Ok(BlockReadResult::End) => return DrainOutcome::Ended(BlockFlags::SESSION_END),
                Err(buffer::Fault::Abandoned) => {
                    return DrainOutcome::Ended(BlockFlags::SESSION_END_MASK);
                }
                Err(_) => {
                    self.too_long += 1;
                    return DrainOutcome::Ended(BlockFlags::SESSION_END_MASK);
                }
            }
        }
    }

    /// Appends the pending block to the intake, if there is one. Returns false if the pool has no
    /// free memory until the next pass.
    fn append_pending_block(&mut self, intake: &mut Intake<'_>) -> bool {
        let Some((length, session, flags)) = self.pending else { return true };
        let bytes = self.pending_copy.get(..length).unwrap_or_default();
        let copied = intake.pool.append(length, |room| {
            room.copy_from_slice(bytes);
            length
        });
        let Some((place, _)) = copied else { return false };
        let length = place.length();
        let marks = match self.link {
            Some(link) => Marks::frame(link.0, length, length),
            None => Marks::for_plain_block(length),
        };
        let mut entry = intake.entry(place, (sys::clock::realtime_ns(), self.origin), marks);
        if self.is_byte_stream {
            (entry.context.session, entry.context.flags) = (session, flags);
        }
        self.pending = None;
        self.given.add_block(length);
        intake.append_block_entry(entry)
    }

    /// Emits the last block of each ended session, as long as the intake has room.
    fn emit_session_ends(&mut self, intake: &mut Intake<'_>) {
        while let Some((session, flags)) = self.ended_sessions.first().copied() {
            let pointer = RichPointer::hole(0).with_class(Class::YES);
            let (time, origin) = (sys::clock::realtime_ns(), self.origin);
            let context = BlockMetadata { time, session, origin, flags };
            if !intake.append_block_entry(Entry::new(pointer, context, Marks::for_plain_block(0))) {
                return;
            }
            self.given.add_block(0);
            self.ended_sessions.remove(0);
        }
    }

    fn failure(&self, error: &sys::Error) -> Failure {
        Failure::new("read from", self.address.to_string(), error)
    }
}
