//! `replay`: reads the packets of a capture file, at full speed or with the timing of the capture.
//!
//! The source reads pcap or pcapng from a file or standard input in pieces directly into the pool.
//! It emits one block per packet, without a copy, with the timestamp, link type and length on the
//! wire from the capture. If a capture has a fault, all preceding packets are emitted first. The
//! fault is then reported with its record number and byte offset. [Th §5.3.2 "Source"]

mod links;

use super::buffered_input::{BufferedInput, FillOutcome};
use super::input::Input;
use crate::{
    Failure, Intake, NextBlockTime, OpenArguments, Source, SourceCounters, SourceEntry,
    SourceProperties, SourceStatus,
};
use abi::{BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};
use filter::{Amount, Description, Parameter, ParameterType, Time};
use std::iter;
use std::os::fd::BorrowedFd;
use wire::capture::{CaptureFault, FaultKind, Packet, ReadOutcome, Reader};

/// Description of `replay`, the source that reads a capture file.
pub const REPLAY: Description = Description {
    name: "replay",
    summary: "read the packets of a capture file",
    details: "\
Reads pcap and pcapng files of either byte order, with micro- or nanoseconds, of any link type; `-`
is standard input. Each packet is a frame with the time at which it was captured.

`speed=max` reads packets as fast as the path accepts them; the path's clock follows the packet
times. `speed=1` keeps the intervals of the capture, `speed=10` is ten times as fast, `speed=0.5`
half as fast.

Several files that meet (`replay a.pcap ++ replay b.pcap`) are merged by time at `speed=max`. Pipes
and standard input are read as they arrive.

A truncated or damaged capture yields every packet before the damage, then the
error. A compressed capture must be unpacked first: `zcat x.pcap.gz | streamline 'replay - |
count'`.",
    example: "replay web.pcap speed=1 | print",
    parameters: &[
        Parameter::required(
            "file",
            ParameterType::Path,
            "the capture to read; - is standard input",
        ),
        Parameter::with_default(
            "speed",
            SPEED_TYPE,
            "max",
            "max, or a factor of the capture's own speed",
        ),
    ],
    ..Description::SOURCE_DEFAULTS
};

const SPEED_TYPE: ParameterType = ParameterType::Factor { or: "max" };

/// The catalog entry of `replay`.
pub const ENTRY: SourceEntry = SourceEntry::new(&REPLAY, open)
    .with_link_type_prediction(links::declared_link_types)
    .with_facts(super::input::READ_SOURCE_FACTS);

#[derive(Debug)]
struct ReplaySource {
    feed: BufferedInput,
    reader: Reader,
    schedule: ReplaySchedule,
    origin: u16,
    emitted: Amount,
    /// The next packet, if the source has parsed it but must not emit it yet, because it is not due
    /// or because another source has an earlier packet; otherwise `None`.
    pending: Option<Packet>,
    /// An error in the capture, which the next call to `produce` reports; `None` if there is none.
    fault: Option<Failure>,
    /// Number of bytes that the reader needs in order to parse the next record of the capture;
    /// `None` unless the current input piece ends within this record.
    wanted_bytes: Option<usize>,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let path = opening.arguments.text("file").unwrap_or("-");
    let schedule = ReplaySchedule::new(opening.arguments.number("speed"));
    let input = Input::open(path)?;
    check_capture_format(&input)?;
    Ok(Box::new(ReplaySource::new(input, schedule, opening.origin)))
}

impl Source for ReplaySource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        if let Some(failure) = self.fault.take() {
            return Err(failure);
        }
        let before = self.emitted.blocks;
        let outcome = self.emit_packets(intake);
        let has_emitted = self.emitted.blocks > before;
        match outcome {
            Err(failure) if has_emitted => {
                self.fault = Some(failure);
                Ok(SourceStatus::Blocks)
            }
            Ok(SourceStatus::Wait { .. }) if has_emitted => Ok(SourceStatus::Blocks),
            outcome => outcome,
        }
    }

    fn counters(&self) -> SourceCounters {
        // A paced file is read long before its packets are due, so the position does not show the
        // progress.
        let is_paced = self.schedule.factor.is_some();
        SourceCounters {
            position: (!is_paced).then(|| self.feed.input().position()).flatten(),
            ..SourceCounters::lossless(self.emitted)
        }
    }

    fn next_block_time(&self) -> NextBlockTime {
        match &self.pending {
            // The time of the next packet from a pipe is unknown.
            _ if self.schedule.factor.is_some() || self.feed.input().may_block() => {
                NextBlockTime::Unordered
            }
            Some(packet) => NextBlockTime::At(packet.time_ns),
            None => NextBlockTime::Unknown,
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.feed.descriptor()
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties {
            drives_clock: self.schedule.factor.is_none(),
            ..SourceProperties::default()
        }
    }
}

impl ReplaySource {
    const fn new(input: Input, schedule: ReplaySchedule, origin: u16) -> Self {
        Self {
            feed: BufferedInput::new(input),
            reader: Reader::new(),
            schedule,
            origin,
            emitted: Amount { blocks: 0, bytes: 0 },
            pending: None,
            fault: None,
            wanted_bytes: None,
        }
    }

    fn emit_packets(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        loop {
            if let Some(wanted) = self.wanted_bytes
                && let Some(status) = self.refill(intake, wanted)?
            {
                return Ok(status);
            }
            let before = self.emitted.blocks;
            self.wanted_bytes = self.emit_from_piece(intake)?;
            if self.wanted_bytes.is_some() && self.emitted.blocks == before {
                continue;
            }
            if self.wanted_bytes.is_some() {
                // The next piece may reuse this memory once the pass has ended.
                self.feed.release_piece(intake.pool);
            }
            return Ok(match &self.pending {
                Some(packet) if self.wanted_bytes.is_none() && intake.room() > 0 => {
                    let until = Some(self.schedule.due_time(packet.time_ns, intake.now));
                    SourceStatus::Wait { until, readable: false }
                }
                _ => SourceStatus::Blocks,
            });
        }
    }

    /// Emits packets from the current input piece until the batch is full or reaches its limit in
    /// time, or until the next packet must not be emitted yet: it is not due, or it is later than
    /// the intake's `until`. If the
    /// piece ends within a record of the capture, returns the number of bytes needed for this
    /// record, otherwise `None`.
    fn emit_from_piece(&mut self, intake: &mut Intake<'_>) -> Result<Option<usize>, Failure> {
        let (pool, until, now) = (intake.pool, intake.until, intake.now);
        let (mut limit, mut is_batch_complete) = (intake.batch_limit, false);
        let bytes = self.feed.unconsumed_bytes(pool);
        let (mut consumed, mut outcome) = (0, Ok(None));
        let Self { feed, reader, schedule, origin, emitted, pending, .. } = self;
        intake.append_block_entries(iter::from_fn(|| {
            if is_batch_complete {
                return None;
            }
            let packet = match pending.take() {
                Some(packet) => packet,
                None => match reader.next(bytes.get(consumed..).unwrap_or_default()) {
                    ReadOutcome::Packet(packet) => packet,
                    ReadOutcome::NeedMore { consumed: skipped, wanted } => {
                        consumed += skipped;
                        outcome = Ok(Some(wanted));
                        return None;
                    }
                    ReadOutcome::Error(fault) => {
                        outcome = Err(capture_failure(feed.input().name_for_messages(), &fault));
                        return None;
                    }
                },
            };
            let is_later = until.is_some_and(|until| packet.time_ns > until);
            if is_later || !schedule.is_due(packet.time_ns, now) {
                *pending = Some(packet);
                return None;
            }
            is_batch_complete = limit.as_mut().is_some_and(|limit| limit.ends_with(packet.time_ns));
            // A piece is at most `BLOCK_MAX` bytes long, so these offsets fit.
            let from = u32::try_from(consumed + packet.data.start).unwrap_or(u32::MAX);
            let length = u32::try_from(packet.data.len()).unwrap_or(u32::MAX);
            emitted.add_block(length);
            consumed += packet.consumed;
            let marks = Marks::frame(packet.link.0, length, packet.wire_length);
            let place = feed.unconsumed_extent(from, length);
            let (time, origin) = (packet.time_ns, *origin);
            let context = BlockMetadata { time, session: 0, origin, flags: BlockFlags::NONE };
            Some(Entry::new(RichPointer::new(pool.id(), place, Class::YES), context, marks))
        }));
        self.feed.consume(consumed);
        self.feed.report_consumed(pool);
        outcome
    }

    /// Reads input until the current piece has at least `wanted` bytes. Returns `None` if it has.
    /// Otherwise, returns the status that `produce` must return.
    fn refill(
        &mut self,
        intake: &Intake<'_>,
        wanted: usize,
    ) -> Result<Option<SourceStatus>, Failure> {
        Ok(match self.feed.fill_piece(intake.pool, wanted)? {
            FillOutcome::Ready => None,
            FillOutcome::Nothing => Some(SourceStatus::AWAITS_INPUT),
            FillOutcome::Full => Some(SourceStatus::retry_at(intake.now)),
            FillOutcome::End(rest) => match self.reader.finish(rest) {
                Ok(()) => Some(SourceStatus::End),
                Err(fault) => {
                    return Err(capture_failure(self.feed.input().name_for_messages(), &fault));
                }
            },
        })
    }
}

/// A schedule that determines when each packet of a capture is due, relative to the first packet.
#[derive(Clone, Copy, Debug)]
struct ReplaySchedule {
    /// Speed of the replay in millionths of the capture's original speed; `None` if packets are not
    /// delayed.
    factor: Option<u64>,
    /// Timestamp of the first packet, and the time on the path's clock at which this packet was
    /// emitted; `None` before the first packet.
    started: Option<(Time, Time)>,
}

const SPEED_DENOMINATOR: u64 = 1_000_000;

impl ReplaySchedule {
    const fn new(factor: Option<u64>) -> Self {
        Self { factor, started: None }
    }

    fn is_due(&mut self, time: Time, now: Time) -> bool {
        if self.factor.is_none() {
            return true;
        }
        self.started.get_or_insert((time, now));
        self.due_time(time, now) <= now
    }

    /// Returns the time on the path's clock at which the packet with the capture timestamp `time`
    /// must be emitted. The result is `now` for the first packet, and if the replay runs at full
    /// speed.
    fn due_time(&self, time: Time, now: Time) -> Time {
        let (Some(factor), Some((first, started))) = (self.factor, self.started) else {
            return now;
        };
        let distance = u128::from(time.saturating_sub(first)) * u128::from(SPEED_DENOMINATOR);
        started.saturating_add(u64::try_from(distance / u128::from(factor)).unwrap_or(u64::MAX))
    }
}

/// Checks the beginning of a file, so that a file that is not a capture is rejected before the
/// source is created.
fn check_capture_format(input: &Input) -> Result<(), Failure> {
    let mut first = [0; 4096];
    let count = input.peek(&mut first)?;
    let first = first.get(..count).unwrap_or_default();
    if first.is_empty() && !input.may_block() {
        let why = "it is empty; a capture has at least a header";
        return Err(Failure::new("read", input.name_for_messages(), why));
    }
    match Reader::new().next(first) {
        ReadOutcome::Error(fault) => {
            let failure = capture_failure(input.name_for_messages(), &fault);
            Err(match (&failure.hint, guess_file_format(first)) {
                (None, Some(kind)) => failure.with_hint(format!("it looks like {kind}")),
                _ => failure,
            })
        }
        ReadOutcome::Packet(_) | ReadOutcome::NeedMore { .. } => Ok(()),
    }
}

fn capture_failure(target: &str, fault: &CaptureFault) -> Failure {
    let failure = Failure::new("read", target, fault);
    let FaultKind::NotACapture { magic } = fault.kind else { return failure };
    let program = match magic {
        [0x1f, 0x8b, ..] => "zcat",
        [0x28, 0xb5, 0x2f, 0xfd] => "zstdcat",
        [0xfd, b'7', b'z', b'X'] => "xzcat",
        [0x04, 0x22, 0x4d, 0x18] => "lz4cat",
        _ => return failure,
    };
    failure.with_hint(format!("`{program} FILE | streamline 'replay - | …'`"))
}

/// Guesses the format of a file that is not a capture from the file's first bytes. Returns `None`
/// if the format is unknown.
fn guess_file_format(first: &[u8]) -> Option<&'static str> {
    const KNOWN_FILE_FORMATS: &[(&[u8], &str)] = &[
        (b"\x7fELF", "a program"),
        (b"PK\x03\x04", "a zip archive: unpack it first"),
        (b"BZh", "a file compressed with bzip2: unpack it first"),
        (b"%PDF", "a PDF document"),
        (b"snoop\0\0\0", "a snoop capture: `editcap` of Wireshark converts it"),
        (b"GMBU", "a Network Monitor capture: `editcap` of Wireshark converts it"),
        (b"XCP\0", "a NetXray capture: `editcap` of Wireshark converts it"),
    ];
    if let Some((_, kind)) = KNOWN_FILE_FORMATS.iter().find(|(magic, _)| first.starts_with(magic)) {
        return Some(kind);
    }
    let is_text = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | b' '..=b'~' | 0x80..);
    first.iter().all(is_text).then_some("text: `read` reads the bytes or lines of any file")
}

#[cfg(test)]
mod tests;
