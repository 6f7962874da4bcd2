//! `rx` and `tx` at the head of a request: frames that this host receives and sends, as observed by
//! its network stack. [SL §4.2, §5.5; CONTRACT 1 to 3]
//!
//! The source emits one block per frame, without a copy: the mapped ring of the packet socket is
//! the memory of the blocks ([`buffer::pool`]). A segment returns to the kernel when its last
//! holder releases it. Bytes are moved only in order to reinsert a VLAN tag.
//!
//! - [`device`]: the socket, configured so that no unfiltered frame enters the ring;
//! - [`unpack`]: the frames of a segment;
//! - [`losses`]: losses before the ring, by location;
//! - [`take`]: frames withheld from the host.
//!
//! Deviation: in the papers, `rx` is the driver's own ring. On a stock kernel, the packet socket is
//! the closest equivalent that every interface has.

mod device;
mod losses;
pub mod take;
mod unpack;

pub(crate) use losses::FrameLossCounters;

use crate::interface::{self, FrameCount, interface_removed_failure};
use crate::{
    DropReason, Failure, Intake, LossRanges, OpenArguments, Source, SourceCounters, SourceEntry,
    SourceProperties, SourceStatus,
};
use abi::Entry;
use buffer::pool::SegmentPin;
use device::{LinkState, RxDevice, RxParameters};
use filter::general::bpf::{Direction, flow_selection};
use filter::{
    Amount, ArgumentAnalysis, Arguments, AttachTarget, Description, EndpointFacts, FilterRight,
    Mistake, ObservedSource, Parameter, ParameterType, Time, TrafficDirection,
};
use std::os::fd::{AsFd, BorrowedFd};
use wire::LinkType;

/// Description of `rx`, the source of frames that this host receives.
pub const RX: Description = Description {
    name: "rx",
    summary: "observe or take the frames that an interface receives",
    details: "\
Observes the frames that an interface receives, or without a name those of all interfaces of the
network namespace; the host receives them as always. Frames are as the network stack sees them:
after generic receive offload, with the VLAN tag in place, and with the kernel's time of arrival.
`both=yes` adds the frames that the host sends, in order; each packet on loopback appears once.

`take` withholds the frames from the host: `rx eth0 take`. It needs CAP_NET_ADMIN and CAP_BPF as
well. It is refused on the interface of the default route or of the caller's own connection unless
`--force` precedes the request, and on an interface with another XDP program. Frames are as the
driver delivers them (XDP), before generic receive offload.

`take \"udp port 53\"` takes the frames that match a pcap-filter(7) expression: they are copied into
the ring at traffic control and dropped there, and all others keep their path. If several requests
take from one interface, a frame goes to the one attached first, and later ones count it. Frames
that the expression cannot decide, and fragments if it tests ports, stay with the host and are
counted. An expression that matches the caller's own connection is refused without `--force`.

A `bpf` directly after `rx` also runs in the kernel, so frames that fail it never enter the ring.
`ring` is the memory for unread frames; by default it lasts for 50 ms at the rate of the interface.
Out of the kernel the default is 8 MB for each processor, at most 128 MB. Frames without room are
counted by place: driver, backlog, socket, ring. `netns` selects another network namespace, by name
as `ip netns` does, by path or by process id.

`own=yes` observes the packets of your own sockets on all interfaces, from layer 3 on, in both
directions; it needs no right where a daemon runs. Packets for no socket and those of raw sockets
are not among them, and packets between two of your sockets appear twice, as sent and as received.

Everything else needs CAP_NET_RAW; `streamline doctor` shows missing rights. On ^C, `rx` stops and
the frames already in the ring are processed.",
    example: "rx eth0 both=yes | bpf \"tcp port 80\" | tcp | http |exchange weblog",
    parameters: &[
        INTERFACE_PARAMETER,
        HOW_PARAMETER,
        EXPRESSION_PARAMETER,
        BOTH_PARAMETER,
        OWN_PARAMETER,
        NETNS_PARAMETER,
        RING_PARAMETER,
        PROMISCUOUS_PARAMETER,
        Parameter::optional(
            "names",
            ParameterType::Text,
            "values of names in the expression, as for `bpf`",
        ),
    ],
    twin_right: None,
    analysis: ArgumentAnalysis {
        fix_parameter: Some(flow_selection::names_to_record),
        argument_error: Some(check_expression),
        warning: Some(flow_selection::match_warning),
        remark: Some(flow_selection::selection_remark),
        ..ArgumentAnalysis::NONE
    },
    ..TX
};

/// Description of `tx` at the head of a request, the source of frames that this host sends.
pub const TX: Description = Description {
    name: "tx",
    summary: "observe the frames that an interface sends",
    details: "\
Observes, at the start of a request, the frames that the host sends on an interface, or without a
name on all of the network namespace, just before the driver gets them. Checksums and segmentation
that are left to the device are not done yet, so frames may be longer than the link permits.
`loopback=no` omits the loopback interface, where `rx` shows each packet as it is received; `rx ++
tx` does so by itself. All else is as for `rx`.",
    example: "tx eth0 | bpf \"udp port 53\" | print",
    parameters: &[
        INTERFACE_PARAMETER,
        LOOPBACK_PARAMETER,
        NETNS_PARAMETER,
        RING_PARAMETER,
        PROMISCUOUS_PARAMETER,
    ],
    twin_right: Some(FilterRight::ObserveSent),
    ..Description::SOURCE_DEFAULTS
};

const INTERFACE_PARAMETER: Parameter = Parameter::optional(
    "interface",
    ParameterType::Text,
    "the interface; by default all of the namespace",
)
.positional();
const HOW_PARAMETER: Parameter = Parameter::with_default(
    "how",
    ParameterType::OneOf(&["watch", "take"]),
    "watch",
    "observe the frames, or take them from the host",
)
.positional();
const EXPRESSION_PARAMETER: Parameter =
    Parameter::optional("expression", ParameterType::Text, "the frames to take; default: all")
        .positional();
const BOTH_PARAMETER: Parameter = Parameter::with_default(
    "both",
    ParameterType::Flag,
    "no",
    "also observe the frames that the host sends",
);
const LOOPBACK_PARAMETER: Parameter = Parameter::with_default(
    "loopback",
    ParameterType::Flag,
    "yes",
    "also observe the loopback interface",
);
const OWN_PARAMETER: Parameter = Parameter::with_default(
    "own",
    ParameterType::Flag,
    "no",
    "observe only the packets of your own sockets, from layer 3 on",
);
const NETNS_PARAMETER: Parameter = Parameter::optional(
    "netns",
    ParameterType::Text,
    "network namespace, by name, path or process id",
);
const RING_PARAMETER: Parameter = Parameter::optional(
    "ring",
    ParameterType::Size { low: 512 << 10, high: 1 << 32 },
    "memory for unread frames, rounded to a power of two",
);
const PROMISCUOUS_PARAMETER: Parameter = Parameter::with_default(
    "promisc",
    ParameterType::Flag,
    "no",
    "also observe frames for other hosts",
);

/// The catalog entry of `rx`.
pub const ENTRY: SourceEntry = SourceEntry::new(&RX, |opening| match opening.arguments {
    given if given.flag("own") => Err(own_unsupported_failure(given)),
    given if flow_selection::selects_flows(given) => Err(expression_unsupported_failure(given)),
    given if given.text("how") == Some("take") => take::open(opening),
    given if given.flag("both") => open(opening, Direction::Both),
    _ => open(opening, Direction::Received),
})
.with_link_type_prediction(link_types)
.with_facts(EndpointFacts {
    attach_point: Some(|arguments| attach_target(arguments, TrafficDirection::Received)),
    observed_source: Some(|arguments| observed_source(arguments, TrafficDirection::Received)),
    ..TX_SOURCE_FACTS
});

/// The catalog entry of `tx` as a source.
pub const TX_SOURCE_ENTRY: SourceEntry =
    SourceEntry::new(&TX, |opening| open(opening, tx_direction(opening.arguments)))
        .with_link_type_prediction(link_types)
        .with_facts(TX_SOURCE_FACTS);

/// Facts for the planner about `tx` as a source at the head of a request.
const TX_SOURCE_FACTS: EndpointFacts = EndpointFacts {
    attach_point: Some(|arguments| attach_target(arguments, TrafficDirection::Sent)),
    observed_source: Some(|arguments| observed_source(arguments, TrafficDirection::Sent)),
    accepts_pushdown: true,
    ..EndpointFacts::NONE
};

/// Returns the link types of the frames that a source with these arguments observes. For all
/// interfaces, these are both link types that a packet socket can deliver; for the user's own
/// sockets, [`LinkType::RAW`]. Returns `None` for an unknown interface or an unsupported device
/// type.
fn link_types(arguments: &Arguments) -> Option<Vec<LinkType>> {
    if arguments.flag("own") {
        return Some(vec![LinkType::RAW]);
    }
    let Some(name) = arguments.text("interface") else {
        return Some(vec![LinkType::ETHERNET, LinkType::RAW]);
    };
    let found = interface::run_in_namespace(arguments.text("netns"), || {
        interface::find_interface_by_name(WATCH_VERB, name)
    });
    found.ok().map(|(_, link)| vec![link])
}

/// Verb for a failure to observe an interface, as in "cannot watch eth0".
const WATCH_VERB: &str = "watch";

/// Returns the direction of the frames that `tx` observes with these arguments.
fn tx_direction(arguments: &Arguments) -> Direction {
    if arguments.flag("loopback") { Direction::Sent } else { Direction::SentToOthers }
}

/// Failure text for `own=yes` in combination with an interface.
const OWN_WITH_INTERFACE_MESSAGE: &str =
    "`own=yes` observes sockets, whichever interface their packets use: leave the interface out";
/// Failure text for `own=yes` in combination with `take`.
const OWN_WITH_TAKE_MESSAGE: &str = "packets of your own sockets can be observed, not taken";
/// Failure text for `own=yes` in combination with `promisc`.
const OWN_WITH_PROMISC_MESSAGE: &str =
    "`promisc` selects frames for other hosts, and `own=yes` those of your own sockets";

/// Creates the failure for a source with `own=yes` that cannot run in the kernel. Only a kernel
/// program can observe the sockets of one user; a packet socket cannot.
fn own_unsupported_failure(arguments: &Arguments) -> Failure {
    let why = attach_target(arguments, TrafficDirection::Received).err();
    let why = why.unwrap_or_else(|| "only a program in the kernel sees them".into());
    Failure::new("observe", "packets of your own sockets", why)
}

/// Returns the attach point at which a kernel program can replace this source, because it receives
/// the same frames there: tc instead of a packet socket, or XDP instead of AF_XDP sockets. Fails
/// with the reason if there is no such attach point.
fn attach_target(arguments: &Arguments, side: TrafficDirection) -> Result<AttachTarget, String> {
    let netns = arguments.text("netns").map(str::to_owned);
    if arguments.flag("own") {
        return match arguments {
            given if given.text("interface").is_some() => {
                Err(OWN_WITH_INTERFACE_MESSAGE.to_owned())
            }
            given if given.text("how") == Some("take") => Err(OWN_WITH_TAKE_MESSAGE.to_owned()),
            given if given.flag("promisc") => Err(OWN_WITH_PROMISC_MESSAGE.to_owned()),
            _ => Ok(AttachTarget { netns, own_sockets: true, ..AttachTarget::observing("") }),
        };
    }
    let interface =
        arguments.text("interface").ok_or("a program is attached to a single interface")?;
    if side == TrafficDirection::Sent && !arguments.flag("loopback") {
        return Err("only a packet socket can leave the loopback interface out".to_owned());
    }
    if arguments.flag("both") {
        return Err("only a packet socket receives both directions in order".to_owned());
    }
    let takes = arguments.text("how") == Some("take");
    if arguments.flag("promisc") && !takes {
        return Err("only a packet socket can request frames for other hosts".to_owned());
    }
    let flows = flow_selection::selects_flows(arguments);
    let takes = takes && !flows;
    Ok(AttachTarget {
        interface: interface.to_owned(),
        netns,
        side,
        redirects: takes,
        only_matching_flows: flows,
        own_sockets: false,
    })
}

/// Checks the expression that selects the frames to take, and the arguments with which it is
/// combined. Returns the mistake, or `None` if there is none.
fn check_expression(arguments: &Arguments) -> Option<Mistake> {
    if !flow_selection::selects_flows(arguments) {
        return None;
    }
    let with = |parameter, what: &str| Some(Mistake::new(parameter, what.to_owned()));
    if arguments.text("how") != Some("take") {
        let hint =
            "to watch some frames write `rx IF | bpf \"…\"`; to take them, `rx IF take \"…\"`";
        return with("expression", "only `take` has an expression")
            .map(|found| found.with_hint(hint));
    }
    if arguments.flag("promisc") {
        return with("promisc", "frames for other hosts are not the host's, and need no `take`");
    }
    flow_selection::expression_error(arguments)
}

/// Creates the failure for a source with an expression that cannot run in the kernel. Only a kernel
/// program can withhold selected frames from the host; a packet socket cannot.
fn expression_unsupported_failure(arguments: &Arguments) -> Failure {
    let why = attach_target(arguments, TrafficDirection::Received).err();
    let why = why.unwrap_or_else(|| "only a program in the kernel can take selected frames".into());
    let interface = arguments.text("interface").unwrap_or("all interfaces");
    Failure::new("take from", interface, why)
}

/// Returns a description of the traffic that a source with these arguments observes. The checks of
/// a `++` section use it to find sources that may emit the same block.
fn observed_source(arguments: &Arguments, side: TrafficDirection) -> ObservedSource {
    let text = |name| arguments.text(name).map(str::to_owned);
    let all = arguments.flag("both") || arguments.flag("own");
    ObservedSource::Frames {
        interface: text("interface"),
        netns: text("netns"),
        received: all || side == TrafficDirection::Received,
        sent: all || side == TrafficDirection::Sent,
        own_sockets: arguments.flag("own"),
    }
}

/// Interval, in nanoseconds, at which the source checks whether a filter or reader has released a
/// segment of the ring.
const HELD_SEGMENT_CHECK_INTERVAL_NS: Time = 1_000_000;
/// Interval, in nanoseconds, at which the source checks whether an interface that is down has come
/// up again.
const LINK_DOWN_CHECK_INTERVAL_NS: Time = 100_000_000;

struct PacketSource {
    device: RxDevice,
    origin: u16,
    /// Frames of the ring segment from which the source emits, in order of arrival.
    entries: Vec<Entry>,
    emitted_entries: usize,
    /// Pin that prevents the reuse of the ring segment from which the source emits frames, or
    /// `None` if there is no such segment.
    pin: Option<SegmentPin>,
    emitted: Amount,
    /// True if the kernel applies the filter that follows this source in the path.
    is_filtered: bool,
    unknown_link: u64,
    /// Number of segments received from the packet ring.
    segments_received: u64,
    /// Position of the next frame in the stream of all frames that passed the kernel's filter,
    /// including dropped ones.
    position: u64,
    missing: LossRanges,
    end: Option<RxEndReason>,
    /// True if the interface was down at the last check.
    is_down: bool,
    closed: bool,
}

/// Reason why the input of a packet source ends.
enum RxEndReason {
    /// The path is stopped.
    Stopped,
    /// The interface has been removed.
    InterfaceRemoved,
}

fn open(opening: &OpenArguments<'_>, direction: Direction) -> Result<Box<dyn Source>, Failure> {
    let arguments = opening.arguments;
    let device = RxDevice::open(&RxParameters {
        interface: arguments.text("interface"),
        direction,
        netns: arguments.text("netns"),
        ring: arguments.number("ring"),
        promiscuous: arguments.flag("promisc"),
        pushed_filter: opening.pushed_filter,
        latency: opening.latency,
        steps: opening.rollback_log,
    })?;
    Ok(Box::new(PacketSource {
        device,
        origin: opening.origin,
        entries: Vec::new(),
        emitted_entries: 0,
        pin: None,
        emitted: Amount::default(),
        is_filtered: opening.pushed_filter.is_some(),
        unknown_link: 0,
        segments_received: 0,
        position: 0,
        missing: LossRanges::default(),
        end: None,
        is_down: false,
        closed: false,
    }))
}

impl Source for PacketSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        loop {
            let rest = self.entries.get(self.emitted_entries..).unwrap_or_default();
            if !rest.is_empty() {
                let put = intake.append_block_entries(rest.iter().copied());
                self.count_emitted_blocks(put);
                return Ok(SourceStatus::Blocks);
            }
            if let Some(pin) = self.pin.take() {
                intake.pool.unpin(pin);
            }
            if !self.receive_segment(intake) {
                return self.status_without_frames(intake);
            }
        }
    }

    fn counters(&self) -> SourceCounters {
        let unread = if self.closed { self.unread_frame_count().unwrap_or(0) } else { 0 };
        let not_emitted = [("link type".into(), self.unknown_link), (DropReason::Unread, unread)];
        let counters =
            self.device.losses.source_counters(&self.device.ring, self.emitted, &not_emitted);
        let missing = self.lost_positions();
        let missing = (!missing.is_empty()).then_some((losses::RING_LOSS_LOCATION, missing));
        SourceCounters {
            remark: self.device.remark(),
            missing: missing.into_iter().collect(),
            ..counters
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.ring.as_fd())
    }

    fn properties(&self) -> SourceProperties {
        SourceProperties { lender: Some(self.device.ring.clone()), ..SourceProperties::default() }
    }

    fn stop(&mut self) -> bool {
        if self.end.is_none() {
            // If reception cannot be stopped, frames never cease to arrive, so no more frames are
            // read.
            let closed = self.device.ring.stop_reception().is_ok();
            self.end = closed.then_some(RxEndReason::Stopped);
        }
        self.end.is_some()
    }

    fn close(&mut self) {
        // Frames still in the ring stay there and are counted as unread.
        self.closed = self.device.ring.stop_reception().is_ok();
    }
}

impl PacketSource {
    fn count_emitted_blocks(&mut self, put: usize) {
        let rest = self.entries.get(self.emitted_entries..).unwrap_or_default();
        for entry in rest.iter().take(put) {
            self.emitted.add_block(entry.pointer.length());
        }
        self.emitted_entries += put;
    }

    /// Takes the next filled segment from the ring, and converts its frames to entries. Returns
    /// false if no segment is filled.
    fn receive_segment(&mut self, intake: &Intake<'_>) -> bool {
        let pool = intake.pool;
        let Some(mut draft) = pool.draft_arrived_segment() else { return false };
        self.entries.clear();
        self.emitted_entries = 0;
        let at = (pool.id(), draft.position());
        let unpacked = unpack::unpack(&mut draft, at, self.origin, &mut self.entries);
        self.unknown_link += unpacked.unknown_link;
        while let Some(gap) = self.device.ring.take_gap(self.segments_received) {
            self.missing.add(self.position, gap.drops, None);
            self.position += gap.drops;
        }
        self.segments_received += 1;
        self.position += self.entries.len() as u64 + unpacked.unknown_link;
        let whole = draft.len();
        let place = draft.commit(whole);
        self.pin = pool.pin(place);
        true
    }

    /// Returns the positions of the frames that were lost because the ring was full. While the ring
    /// contains unread frames, the positions of new gaps are unknown; such gaps are only counted.
    fn lost_positions(&self) -> LossRanges {
        let (mut missing, mut position) = (self.missing.clone(), self.position);
        let unread = self.unread_frame_count().unwrap_or(u64::MAX);
        for gap in self.device.ring.gaps().unwrap_or_default() {
            if unread > 0 {
                missing.add_discarded_ranges(1);
                continue;
            }
            missing.add(position, gap.drops, None);
            position += gap.drops;
        }
        missing
    }

    /// Returns the status for a call to `produce` that has emitted no frames.
    fn status_without_frames(&mut self, intake: &Intake<'_>) -> Result<SourceStatus, Failure> {
        if let Some(end) = &self.end {
            if self.unread_frame_count().is_some_and(|unread| unread > 0) {
                // The kernel retires a partly filled segment after its own timeout.
                return Ok(SourceStatus::AWAITS_INPUT);
            }
            return match end {
                RxEndReason::Stopped => Ok(SourceStatus::End),
                RxEndReason::InterfaceRemoved => Err(self.failure_for_removed_interface()),
            };
        }
        // The kernel reports the error only once, when the interface goes down, possibly as the
        // first step of its removal. From then on, the state of the interface is polled until the
        // interface is up again.
        self.is_down |= self.device.ring.take_error().is_some();
        if self.is_down {
            match self.device.link_state() {
                LinkState::Up => self.is_down = false,
                LinkState::Down => {
                    let until = Some(intake.now + LINK_DOWN_CHECK_INTERVAL_NS);
                    return Ok(SourceStatus::Wait { until, readable: true });
                }
                LinkState::Removed => {
                    self.end = Some(RxEndReason::InterfaceRemoved);
                    return self.status_without_frames(intake);
                }
            }
        }
        Ok(match intake.pool.is_stalled() {
            // Polling would return at once because of the segment that is still held.
            true => SourceStatus::retry_at(intake.now + HELD_SEGMENT_CHECK_INTERVAL_NS),
            false => SourceStatus::AWAITS_INPUT,
        })
    }

    /// Returns the number of frames in the ring that have not been emitted, or `None` if the
    /// kernel's counters cannot be read.
    fn unread_frame_count(&self) -> Option<u64> {
        let all = self.device.ring.statistics().ok()?;
        Some(all.packets.saturating_sub(all.drops + self.emitted.blocks + self.unknown_link))
    }

    fn failure_for_removed_interface(&self) -> Failure {
        let frames = self.emitted.blocks;
        let counts =
            if self.is_filtered { FrameCount::Passed(frames) } else { FrameCount::All(frames) };
        interface_removed_failure("watch", &self.device.name, counts)
    }
}

#[cfg(test)]
mod tests;
