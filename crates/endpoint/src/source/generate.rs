//! `generate`: emits UDP datagrams for experiments, benchmarks and loss tests.
//!
//! The source emits Ethernet frames with IPv4 and UDP and valid checksums, from 198.18.0.1 to
//! 198.19.0.1 (addresses that RFC 2544 reserves for benchmarks). The payload starts at
//! [`SEQUENCE_OFFSET`] with a 64-bit big-endian sequence number, followed by a pattern. With
//! `seq=yes` every frame is written to the pool, and frames are numbered from 0. Otherwise the pool
//! stores one frame per flow, which is emitted repeatedly, so each block costs the source only an
//! entry (as in the benchmark of [Th fig. 5.1]).

use crate::{
    Failure, Intake, OpenArguments, Source, SourceCounters, SourceEntry, SourceProperties,
    SourceStatus,
};
use abi::{Entry, Extent, Marks};
use buffer::pool::Pool;
use filter::{Amount, Description, LANES, Parameter, ParameterType, Time};
use std::net::{Ipv4Addr, SocketAddrV4};
use wire::address::Mac;
use wire::build::udp_frame;
use wire::checksum::OnesComplementSum;
use wire::link::LinkType;
use wire::{ethernet, ipv4, udp};

/// Offset of the sequence number in a frame, in bytes.
pub const SEQUENCE_OFFSET: usize = UDP_OFFSET + udp::HEADER_LENGTH;

/// Description of `generate`, the source of artificial UDP datagrams.
pub const GENERATE: Description = Description {
    name: "generate",
    summary: "generate numbered or identical UDP frames",
    details: "\
Generates Ethernet frames of `size` bytes (without the checksum of Ethernet) with a UDP datagram
over IPv4 from 198.18.0.1 to 198.19.0.1, destination port `port`, and source ports from 10000, one
per flow in rotation. All checksums are valid. The first 8 bytes of the payload, at offset 42, are a
sequence number in network byte order.

`seq=yes` counts it from 0 in the order of frames. Otherwise it is 0, and the frames of a flow are
identical and written only once, for benchmarks of filters. `count=N` ends after N frames (without
it, stop the path), and `rate=N` limits the rate to N frames per second, and catches up after a
delay.",
    example: "generate count=1000 seq=yes | dport |9 count",
    parameters: &[
        Parameter::optional(
            "count",
            ParameterType::Number { low: 1, high: u64::MAX },
            "number of frames",
        ),
        Parameter::with_default(
            "size",
            ParameterType::Number { low: FRAME_SIZE_MIN, high: FRAME_SIZE_MAX },
            "64",
            "size of a frame in bytes",
        ),
        Parameter::optional(
            "rate",
            ParameterType::Number { low: 1, high: SECOND_NS },
            "maximum number of frames per second",
        ),
        Parameter::with_default("seq", ParameterType::Flag, "no", "number the frames"),
        Parameter::with_default(
            "flows",
            ParameterType::Number { low: 1, high: 50_000 },
            "1",
            "number of source ports, used in rotation",
        ),
        Parameter::with_default(
            "port",
            ParameterType::Number { low: 0, high: 65_535 },
            "9",
            "the destination port",
        ),
    ],
    ..Description::SOURCE_DEFAULTS
};

/// The catalog entry of `generate`.
pub const ENTRY: SourceEntry =
    SourceEntry::new(&GENERATE, open).with_link_type_prediction(|_| Some(vec![LinkType::ETHERNET]));

const SOURCE_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const DATAGRAM_DESTINATION: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// Hardware addresses of the sender and the receiver of generated frames. Both are locally
/// administered.
const HARDWARE_ADDRESSES: (Mac, Mac) = (Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]));
const FIRST_SOURCE_PORT: u16 = 10_000;
const IP_OFFSET: usize = ethernet::HEADER_LENGTH;
const UDP_OFFSET: usize = IP_OFFSET + ipv4::HEADER_LENGTH_MIN;
const UDP_CHECKSUM_OFFSET: usize = UDP_OFFSET + udp::CHECKSUM_OFFSET;
/// Minimum size in bytes of an Ethernet frame without the frame check sequence.
const FRAME_SIZE_MIN: u64 = 60;
/// Size in bytes of a frame with the longest possible IPv4 packet.
const FRAME_SIZE_MAX: u64 = 65_549;
const SECOND_NS: u64 = 1_000_000_000;

#[derive(Debug)]
struct GenerateSource {
    template: FrameTemplate,
    flows: u16,
    count: Option<u64>,
    rate: Option<u64>,
    numbered: bool,
    origin: u16,
    /// Time at which the first frame was due; `None` before the first call of `produce`.
    first_due: Option<Time>,
    /// Prepared frames, one per flow, contiguous in the pool, which the source emits repeatedly;
    /// `None` until they have been written.
    flow_frames: Option<Extent>,
    emitted: Amount,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let number = |name| opening.arguments.number(name);
    let small = |name, otherwise| {
        number(name).and_then(|value| u16::try_from(value).ok()).unwrap_or(otherwise)
    };
    let size = number("size").unwrap_or(FRAME_SIZE_MIN).clamp(FRAME_SIZE_MIN, FRAME_SIZE_MAX);
    let size = usize::try_from(size).unwrap_or_default();
    Ok(Box::new(GenerateSource {
        template: FrameTemplate::new(size, small("port", 9)),
        flows: small("flows", 1).max(1),
        count: number("count"),
        rate: number("rate"),
        numbered: opening.arguments.flag("seq"),
        origin: opening.origin,
        first_due: None,
        flow_frames: None,
        emitted: Amount::default(),
    }))
}

impl Source for GenerateSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let sent = self.emitted.blocks;
        let left = self.count.map_or(u64::MAX, |count| count.saturating_sub(sent));
        if left == 0 {
            return Ok(SourceStatus::End);
        }
        let due = self.frames_due(intake.now);
        if due == 0 {
            return Ok(SourceStatus::retry_at(self.due_time(sent)));
        }
        let room = u64::try_from(intake.room().min(LANES)).unwrap_or(0);
        let number = usize::try_from(due.min(left).min(room)).unwrap_or(0);
        let has_memory = if self.repeats_frames(intake.pool) {
            self.emit_repeated_frames(intake, number)
        } else {
            self.emit_numbered_frames(intake, number)?
        };
        if !has_memory {
            return Ok(SourceStatus::retry_at(intake.now));
        }
        Ok(if self.count == Some(self.emitted.blocks) {
            SourceStatus::End
        } else {
            SourceStatus::Blocks
        })
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { block_max: self.template.stride(), ..SourceProperties::default() }
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters::lossless(self.emitted)
    }
}

impl GenerateSource {
    /// Returns the number of frames that are due at `now` but have not been emitted, or `u64::MAX`
    /// if there is no rate.
    fn frames_due(&mut self, now: Time) -> u64 {
        let started = *self.first_due.get_or_insert(now);
        let Some(rate) = self.rate else { return u64::MAX };
        let passed = u128::from(now.saturating_sub(started)) * u128::from(rate);
        let due = passed / u128::from(SECOND_NS) + 1;
        u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(self.emitted.blocks)
    }

    /// Returns the time at which the frame with this number is due.
    fn due_time(&self, number: u64) -> Time {
        let rate = u128::from(self.rate.unwrap_or(SECOND_NS));
        let distance = (u128::from(number) * u128::from(SECOND_NS)).div_ceil(rate);
        self.first_due.unwrap_or(0).saturating_add(u64::try_from(distance).unwrap_or(u64::MAX))
    }

    /// Returns true if the source emits prepared frames repeatedly. This requires that frames have
    /// no sequence numbers, and that one frame of each flow fits into a single block of the pool.
    fn repeats_frames(&self, pool: &Pool) -> bool {
        !self.numbered
            && usize::from(self.flows) * self.template.stride() <= pool.block_length_max()
    }

    /// Emits `number` blocks of the prepared frames. Writes these frames to the pool on the first
    /// call. Returns false if the pool has no memory for them.
    fn emit_repeated_frames(&mut self, intake: &mut Intake<'_>, number: usize) -> bool {
        let Some(ready) = self.flow_frames.or_else(|| self.write_flow_frames(intake.pool)) else {
            return false;
        };
        self.flow_frames = Some(ready);
        let first = frame_flow_index(self.emitted.blocks, self.flows);
        self.emit_frame_array(intake, ready, (first, self.flows), number);
        true
    }

    /// Writes one frame of each flow to the pool; returns `None` if the pool has no memory.
    fn write_flow_frames(&self, pool: &Pool) -> Option<Extent> {
        let stride = self.template.stride();
        let length = usize::from(self.flows) * stride;
        let mut draft = pool.draft(length, length)?;
        for (flow, room) in (0..self.flows).zip(draft.chunks_exact_mut(stride)) {
            self.template.write(room, flow, 0);
        }
        let place = draft.commit(length);
        // The pin is never released: these frames are emitted until the path ends.
        pool.pin(place).map(|_| place)
    }

    /// Writes and emits the next frames: at most `number`, and as many as fit into the free memory.
    /// Returns false if there is no memory for a frame. Fails if a frame is longer than a block of
    /// the pool.
    fn emit_numbered_frames(
        &mut self,
        intake: &mut Intake<'_>,
        number: usize,
    ) -> Result<bool, Failure> {
        let (pool, stride) = (intake.pool, self.template.stride());
        if stride > pool.block_length_max() {
            let why =
                format!("the buffers of this path hold {} bytes at most", pool.block_length_max());
            return Err(
                Failure::new("make", "frames", why).with_hint("give the path larger buffers")
            );
        }
        let Some(mut draft) = pool.draft(stride, number * stride) else { return Ok(false) };
        let mut written: u16 = 0;
        for room in draft.chunks_exact_mut(stride).take(number) {
            let at = self.emitted.blocks + u64::from(written);
            let sequence = if self.numbered { at } else { 0 };
            self.template.write(room, frame_flow_index(at, self.flows), sequence);
            written += 1;
        }
        let place = draft.commit(usize::from(written) * stride);
        self.emit_frame_array(intake, place, (0, written), written.into());
        Ok(true)
    }

    /// Emits `number` blocks from the array of `count` prepared frames at `place`, from index
    /// `first` on, wrapping around at the end of the array.
    fn emit_frame_array(
        &mut self,
        intake: &mut Intake<'_>,
        place: Extent,
        (first, count): (u16, u16),
        number: usize,
    ) {
        let stride = u32::try_from(self.template.stride()).unwrap_or(u32::MAX);
        let size = u32::try_from(self.template.frame.len()).unwrap_or(u32::MAX);
        let marks = Marks::frame(LinkType::ETHERNET.0, size, size);
        let mut index = first;
        let whole = intake.entry(place, (intake.now, self.origin), marks);
        let put = intake.append_block_entries((0..number).map(|_| {
            let at = u32::from(index) * stride;
            index = if index + 1 == count { 0 } else { index + 1 };
            Entry { pointer: whole.pointer.subrange(at, size), ..whole }
        }));
        self.emitted.blocks += put as u64;
        self.emitted.bytes += put as u64 * u64::from(size);
    }
}

/// Returns the index of the flow to which the frame with this number belongs.
fn frame_flow_index(number: u64, flows: u16) -> u16 {
    u16::try_from(number % u64::from(flows)).unwrap_or(0)
}

/// A template for generated frames. The source port and the sequence number are still missing, and
/// the checksum covers only the other bytes.
#[derive(Debug)]
struct FrameTemplate {
    frame: Vec<u8>,
    /// Partial checksum of the frame's constant bytes and its pseudo header.
    constant_sum: OnesComplementSum,
}

impl FrameTemplate {
    fn new(size: usize, port: u16) -> Self {
        let pattern = (SEQUENCE_OFFSET..size).map(|at| u8::try_from(at % 251).unwrap_or(0));
        let mut payload: Vec<u8> = pattern.collect();
        copy_to_offset(&mut payload, 0, &[0; 8]);
        let addresses =
            (SocketAddrV4::new(SOURCE_ADDRESS, 0), SocketAddrV4::new(DATAGRAM_DESTINATION, port));
        let frame = udp_frame(HARDWARE_ADDRESSES, addresses, &payload).unwrap_or_default();
        let checksum = frame.get(UDP_CHECKSUM_OFFSET..).and_then(<[u8]>::first_chunk).copied();
        let sum = OnesComplementSum::new()
            .with_bytes(&(!u16::from_be_bytes(checksum.unwrap_or_default())).to_be_bytes());
        Self { frame, constant_sum: sum }
    }

    /// Returns the distance between the starts of adjacent frames in bytes.
    fn stride(&self) -> usize {
        self.frame.len().next_multiple_of(16)
    }

    /// Writes the frame with this flow and sequence number to the start of `room`.
    fn write(&self, room: &mut [u8], flow: u16, sequence: u64) {
        let port = (FIRST_SOURCE_PORT + flow).to_be_bytes();
        let sequence = sequence.to_be_bytes();
        let sum = match self.constant_sum.with_bytes(&port).with_bytes(&sequence).checksum() {
            // Zero would mean that there is no checksum (RFC 768).
            0 => u16::MAX,
            sum => sum,
        };
        copy_to_offset(room, 0, &self.frame);
        copy_to_offset(room, UDP_OFFSET, &port);
        copy_to_offset(room, UDP_CHECKSUM_OFFSET, &sum.to_be_bytes());
        copy_to_offset(room, SEQUENCE_OFFSET, &sequence);
    }
}

fn copy_to_offset(room: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(room) = room.get_mut(at..at + bytes.len()) {
        room.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests;
