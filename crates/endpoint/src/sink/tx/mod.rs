//! `tx` at the end of a request: sends frames through an interface. [SL §4.2; CONTRACT 1]
//!
//! The sink accepts frames, or packets if the device has no link layer header. It sends up to 64
//! frames per call. It copies a frame only if the frame needs its checksum computed (offload,
//! CONTRACT 3), or if AF_XDP sends the frame and the frame is not in the memory of the [`ring`].
//! The sink waits while the queue is full. Frames that cannot be sent are counted by reason and
//! skipped.
//!
//! - [`device`]: the interface and its socket;
//! - [`ring`]: transmission by AF_XDP.
//!
//! Deviation: in the papers, `tx` is the driver's own ring. On a stock kernel, the closest
//! equivalent that every interface has is the packet socket; an AF_XDP ring is closer to the
//! driver's ring, because it bypasses the queueing discipline.

mod checksum;
mod device;
mod ring;

use crate::{DropReason, Failure, OpenArguments, Sink, SinkEntry};
use abi::BlockFlags;
use device::{Transmitter, TxDevice};
use filter::{
    Amount, Batch, Block, Description, Form, Forms, LANES, Parameter, ParameterType, Report, Time,
};
use std::ops::Range;
use std::time::Duration;
use sys::packet::{SendReport, SendStopReason};
use wire::link::LinkType;

/// Description of `tx` at the end of a request, the sink that sends frames.
pub const TX: Description = Description {
    name: "tx",
    summary: "send the frames through an interface",
    details: "\
Sends each frame at the end of a request, unchanged and whole, whatever its view. The default
interface is the only one that is up, loopback apart; the report names it. An interface without a
link layer (a tunnel) accepts packets. Frames pass the queueing discipline of the interface, among
the other frames of the host. `qdisc=no` gives them straight to the driver, through a ring of AF_XDP
if possible and a packet socket if not, and `by` selects one of the two. After `rx … take`, frames
that no filter changed stay in place and only their descriptors move; the report counts them. `tx`
waits while the queue is full, and computes checksums that were left to the device of the source.

Reasons for a drop: `longer than the interface takes`, `cut short when captured`, `another link
type`, `checksum unknown`, `interface down`, `refused by the kernel`, and `queue full` (no room for
a second). `netns` selects another network namespace, by name as `ip netns` does, by path or by
process id. `tx` answers nothing and changes no address, so use it with care on a shared network.

It needs CAP_NET_RAW; `streamline doctor` shows missing rights.",
    example: "replay requests.pcap | tx eth0",
    input_forms: Forms::of(&[Form::Frame, Form::Packet]),
    parameters: &[
        Parameter::optional(
            "interface",
            ParameterType::Text,
            "the interface to send through; by default the only one",
        )
        .positional(),
        Parameter::with_default(
            "qdisc",
            ParameterType::Flag,
            "yes",
            "pass the queueing discipline of the interface",
        ),
        Parameter::with_default(
            "by",
            ParameterType::OneOf(&["any", "packet", "xdp"]),
            "any",
            "the socket for `qdisc=no`",
        ),
        Parameter::optional(
            "netns",
            ParameterType::Text,
            "network namespace, by name, path or process id",
        ),
    ],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `tx`.
pub const ENTRY: SinkEntry = SinkEntry::new(&TX, open);

/// Maximum time for which one frame waits for room in the transmit queue of the device.
const QUEUE_ROOM_TIMEOUT: Duration = Duration::from_secs(1);
/// Shortest pause between two attempts to send when the queue is full. Pauses are needed because
/// the kernel does not notify a sender that a full queue has room again. At 1 Gbit/s, two frames of
/// 1,500 bytes take 25 µs.
const SEND_RETRY_PAUSE_MIN: Duration = Duration::from_micros(25);
/// Longest pause between two attempts to send when the queue is full.
const SEND_RETRY_PAUSE_MAX: Duration = Duration::from_millis(1);

const EMSGSIZE: i32 = rustix::io::Errno::MSGSIZE.raw_os_error();
const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();
const ENETDOWN: i32 = rustix::io::Errno::NETDOWN.raw_os_error();
const ENXIO: i32 = rustix::io::Errno::NXIO.raw_os_error();
const ENODEV: i32 = rustix::io::Errno::NODEV.raw_os_error();

/// Reason why `tx` did not send a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UnsentReason {
    LinkType,
    CutShort,
    Checksum,
    TooLong,
    Down,
    Refused,
    QueueFull,
}

/// Texts with which the ledger reports the reasons, in the order of the variants of
/// [`UnsentReason`].
const UNSENT_REASON_TEXTS: [&str; 7] = [
    "another link type",
    "cut short when captured",
    "checksum unknown",
    "longer than the interface takes",
    "interface down",
    "refused by the kernel",
    "queue full",
];

#[derive(Debug)]
struct TxSink {
    device: TxDevice,
    /// True if the blocks are frames, and false if they are packets without a link layer header.
    sends_frames: bool,
    sent: Amount,
    sent_bytes: u64,
    completed: u64,
    dropped: [Amount; UNSENT_REASON_TEXTS.len()],
    /// Reusable memory for copies of frames whose checksums the sink completes. The sink sends
    /// these copies instead of the original frames.
    copies: Vec<u8>,
    /// True if the last frame was dropped because the queue stayed full. Later frames then do not
    /// wait for room until one of them has been sent.
    has_timed_out: bool,
    /// Maximum time for which one frame waits for room in the transmit queue of the device.
    room_wait_max: Duration,
    /// Number of frames that waited for room in the queue until the time limit.
    timeouts: u64,
}

/// The frames of a batch to be sent.
struct TxBatch<'a> {
    bytes: [&'a [u8]; LANES],
    /// Number of viewed bytes of each frame, which the ledger counts.
    views: [u32; LANES],
    count: usize,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let arguments = opening.arguments;
    let transmission = (arguments.flag("qdisc"), arguments.text("by").unwrap_or_default());
    open_on_device(opening, transmission, opening.form != Form::Packet)
}

/// Opens the sink on the interface in the arguments. `transmission` tells whether frames pass
/// through the queueing discipline, and which transmitter sends them. `frames` is true if the input
/// is frames, and false if it is packets.
pub(super) fn open_on_device(
    opening: &OpenArguments<'_>,
    transmission: (bool, &str),
    frames: bool,
) -> Result<Box<dyn Sink>, Failure> {
    let name = opening.arguments.text("interface").unwrap_or_default();
    let device = TxDevice::open(opening, transmission)?;
    if !frames && device.link != LinkType::RAW {
        let why = "it sends frames, but its input is packets without a link layer";
        let hint = "remove the filter that leaves packets, or send into a tunnel";
        return Err(Failure::new("send through", name, why).with_hint(hint));
    }
    Ok(Box::new(TxSink::new(device, frames)))
}

impl Sink for TxSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        // The buffer is moved out, so that its frames can be borrowed while `self` is borrowed
        // mutably.
        let mut copies = std::mem::take(&mut self.copies);
        copies.clear();
        let mut copy_ranges: [Range<usize>; LANES] = std::array::from_fn(|_| 0..0);
        let mut outgoing = TxBatch { bytes: [&[]; LANES], views: [0; LANES], count: 0 };
        for (_, block) in batch.blocks() {
            let copied = copies.len();
            match self.sendable_bytes(&block, &mut copies) {
                Ok(bytes) => {
                    copy_ranges[outgoing.count] = copied..copies.len();
                    outgoing.add_frame(bytes, block.length());
                }
                Err(why) => self.count_dropped(why, block.length()),
            }
        }
        for (bytes, place) in outgoing.bytes.iter_mut().zip(&copy_ranges) {
            if !place.is_empty() {
                *bytes = copies.get(place.clone()).unwrap_or_default();
            }
        }
        let outcome = self.send_batch(&outgoing);
        self.copies = copies;
        outcome
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        let always = [("frames", self.sent.blocks), ("bytes", self.sent_bytes)];
        let mut rows =
            Report::from_rows(always).with_nonzero_rows([("checksums computed", self.completed)]);
        if let Transmitter::Ring(ring) = &mut self.device.transmitter {
            let left = ring.finish() as u64;
            let moved = ("moved by AF_XDP", ring.sent_in_place);
            let others = [moved, ("copied to AF_XDP", ring.copied), ("sent again", ring.retries)];
            rows.rows
                .extend(Report::from_rows(others).with_nonzero_rows([("on their way", left)]).rows);
        }
        let sent = format!("sent through {}", self.device.name);
        Ok(rows.with_delivered_items(self.sent.blocks, "frame", sent))
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.sent)
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        let all = UNSENT_REASON_TEXTS.map(DropReason::from).into_iter().zip(self.dropped);
        all.filter(|(_, amount)| amount.blocks > 0).collect()
    }
}

impl<'a> TxBatch<'a> {
    fn add_frame(&mut self, bytes: &'a [u8], view: u32) {
        if let (Some(place), Some(length)) =
            (self.bytes.get_mut(self.count), self.views.get_mut(self.count))
        {
            (*place, *length) = (bytes, view);
            self.count += 1;
        }
    }
}

impl TxSink {
    fn new(device: TxDevice, frames: bool) -> Self {
        Self {
            device,
            sends_frames: frames,
            sent: Amount::default(),
            sent_bytes: 0,
            completed: 0,
            dropped: [Amount::default(); UNSENT_REASON_TEXTS.len()],
            copies: Vec::new(),
            has_timed_out: false,
            room_wait_max: QUEUE_ROOM_TIMEOUT,
            timeouts: 0,
        }
    }

    /// Returns the bytes of a block to be sent, without a copy if possible. If the checksum must be
    /// completed, appends a modified copy of the bytes to `copies`, which the caller must then send
    /// instead.
    fn sendable_bytes<'a>(
        &mut self,
        block: &Block<'a>,
        copies: &mut Vec<u8>,
    ) -> Result<&'a [u8], UnsentReason> {
        let bytes =
            if self.sends_frames { self.entire_frame(block)? } else { viewed_packet(block)? };
        if !block.context.flags.contains(BlockFlags::CHECKSUM_UNSET) {
            return Ok(bytes);
        }
        let begin = copies.len();
        copies.extend_from_slice(bytes);
        let copy = copies.get_mut(begin..).unwrap_or_default();
        if checksum::complete_checksum(self.device.link, copy).is_none() {
            copies.truncate(begin);
            return Err(UnsentReason::Checksum);
        }
        self.completed += 1;
        Ok(bytes)
    }

    fn entire_frame<'a>(&self, block: &Block<'a>) -> Result<&'a [u8], UnsentReason> {
        let marks = &block.marks;
        if !marks.is_frame() || !self.device.can_send_link_type(LinkType(marks.link)) {
            return Err(UnsentReason::LinkType);
        }
        let whole = marks.captured >= marks.wire_length
            && block.frame.len() == usize::try_from(marks.captured).unwrap_or(usize::MAX);
        if whole { Ok(block.frame) } else { Err(UnsentReason::CutShort) }
    }

    /// Sends the frames of a batch in order. Counts and skips frames that cannot be sent. While the
    /// queue is full, blocks for at most `room_wait_max`, and then skips the frame. After such a
    /// timeout, does not wait again until a frame can be sent. Fails if the interface has been
    /// removed.
    fn send_batch(&mut self, outgoing: &TxBatch<'_>) -> Result<(), Failure> {
        let frames = outgoing.bytes.get(..outgoing.count).unwrap_or_default();
        let mut next = 0;
        let mut wait = Backoff::default();
        while let Some(rest) = frames.get(next..).filter(|rest| !rest.is_empty()) {
            let SendReport { frames: sent_now, stopped } = self.device.send(rest);
            for (bytes, view) in rest.iter().zip(outgoing.views.iter().skip(next)).take(sent_now) {
                self.sent.add_block(*view);
                self.sent_bytes += bytes.len() as u64;
            }
            if sent_now > 0 {
                self.has_timed_out = false;
                wait = Backoff::default();
            }
            next += sent_now;
            let why = match stopped {
                None => break,
                Some(SendStopReason::NoRoom(_))
                    if !self.has_timed_out && wait.pause(&self.device, self.room_wait_max) =>
                {
                    continue;
                }
                Some(SendStopReason::NoRoom(_)) => {
                    self.timeouts += u64::from(!self.has_timed_out);
                    self.has_timed_out = true;
                    UnsentReason::QueueFull
                }
                Some(SendStopReason::Refused(ENXIO | ENODEV)) => {
                    return Err(self.failure_for_removed_interface());
                }
                Some(SendStopReason::Refused(EMSGSIZE)) => UnsentReason::TooLong,
                Some(SendStopReason::Refused(ENETDOWN)) => UnsentReason::Down,
                Some(SendStopReason::Refused(ENOBUFS)) => UnsentReason::QueueFull,
                Some(SendStopReason::Refused(_)) => UnsentReason::Refused,
            };
            self.device.drop_rejected_frame();
            self.count_dropped(why, outgoing.views.get(next).copied().unwrap_or(0));
            next += 1;
        }
        Ok(())
    }

    fn count_dropped(&mut self, why: UnsentReason, view: u32) {
        if let Some(amount) = self.dropped.get_mut(why as usize) {
            amount.add_block(view);
        }
    }

    fn failure_for_removed_interface(&self) -> Failure {
        let why = format!("the interface was removed after {} frames", self.sent.blocks);
        Failure::new("send through", &self.device.name, why)
    }
}

/// Returns the block's view as a packet. Fails if part of the view is missing.
fn viewed_packet<'a>(block: &Block<'a>) -> Result<&'a [u8], UnsentReason> {
    if block.has_all_bytes() && !block.pointer.is_hole() {
        Ok(block.bytes())
    } else {
        Err(UnsentReason::CutShort)
    }
}

/// State of a wait for room in a full queue. The pauses between the attempts to send increase.
#[derive(Default)]
struct Backoff {
    waited: Duration,
    pause: Duration,
}

impl Backoff {
    /// Sleeps for the next pause, or until a socket that has no room becomes writable. Returns
    /// false without sleeping if the pauses so far add up to `wait_max`.
    fn pause(&mut self, device: &TxDevice, wait_max: Duration) -> bool {
        if self.waited >= wait_max {
            return false;
        }
        self.pause = (self.pause * 2).clamp(SEND_RETRY_PAUSE_MIN, SEND_RETRY_PAUSE_MAX);
        self.waited += self.pause;
        // If the socket is already writable, only the device has no room. The kernel does not
        // signal when the device has room again.
        if device.wait_until_writable(self.pause) {
            std::thread::sleep(self.pause);
        }
        true
    }
}

#[cfg(test)]
mod tests;
