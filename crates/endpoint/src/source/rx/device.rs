//! The packet socket of an interface, configured so that no unfiltered frame ever enters its ring.
//!
//! The order of the steps matters. A socket with protocol 0 receives nothing. The filter is
//! attached first and the ring is created next. The socket is bound last, so that even the first
//! frame in the ring has passed the filter. (libpcap binds first, and drains unfiltered frames
//! afterwards.)

use super::WATCH_VERB;
use super::losses::FrameLossCounters;
use crate::{Failure, interface};
use filter::general::bpf::{self, Direction};
use filter::{Arguments, Time};
use std::path::Path;
use std::sync::Arc;
use sys::net::{Interface, RouteSocket};
use sys::packet::{ClassicBpfInstruction, PacketRing, PacketRingParameters, PacketSocket};
use sys::rollback::{RollbackLog, StepResource};

/// Size in bytes of a segment of the packet ring. A segment has room for the largest frame that
/// generic receive offload produces, and the two or three segments in use at a time fit in a
/// second-level cache.
const SEGMENT_SIZE: usize = 128 << 10;
/// Minimum number of segments in a packet ring: one being read, one being filled, and two in
/// between.
const SEGMENTS_MIN: usize = 4;
/// Default capacity of a ring: the time, in milliseconds, for which it can hold the interface's
/// traffic at full rate while no frames are read.
const RING_CAPACITY_MS_DEFAULT: u64 = 50;
/// Assumed rate of an interface that does not report its rate, in Mbit/s.
const RATE_MBITS_DEFAULT: u64 = 10_000;
/// Minimum size, in bytes, of a ring whose size the request does not set.
const RING_BYTES_MIN: u64 = 4 << 20;
/// Maximum size, in bytes, of a ring whose size the request does not set. The size is also limited
/// to 1/64 of the machine's memory.
const RING_BYTES_MAX: u64 = 128 << 20;
/// Default timeout of a partly filled segment in milliseconds (T_t), which equals the resolution of
/// the kernel's timer.
const SEGMENT_TIMEOUT_MS_DEFAULT: u64 = 10;
/// Maximum timeout of a partly filled segment, in milliseconds. Longer requested times are reduced
/// to it.
const SEGMENT_TIMEOUT_MS_MAX: u64 = 1000;

/// Parameters for opening an [`RxDevice`].
#[derive(Debug)]
pub(super) struct RxParameters<'a> {
    /// Name of the interface to observe, or `None` for all interfaces.
    pub(super) interface: Option<&'a str>,
    pub(super) direction: Direction,
    /// Network namespace of the interface, or `None` for the namespace of the calling thread.
    pub(super) netns: Option<&'a str>,
    /// Size of the ring in bytes. If `None`, the size is derived from the rate of the interface.
    pub(super) ring: Option<u64>,
    pub(super) promiscuous: bool,
    /// Arguments of the filter that the kernel applies, or `None` if it applies none.
    pub(super) pushed_filter: Option<&'a Arguments>,
    /// Maximum time that a frame may wait in a partly filled segment, in nanoseconds. `None`
    /// selects [`SEGMENT_TIMEOUT_MS_DEFAULT`].
    pub(super) latency: Option<Time>,
    pub(super) steps: &'a RollbackLog,
}

/// An observed interface with its packet ring.
#[derive(Debug)]
pub(super) struct RxDevice {
    pub(super) ring: Arc<PacketRing>,
    pub(super) losses: FrameLossCounters,
    /// Name of the interface as in the request.
    pub(super) name: String,
    /// Index of the observed interface, or [`ALL_INTERFACES`] for all interfaces.
    index: u32,
    /// Socket for looking up the interface by its index, because the interface may be renamed.
    links: RouteSocket,
    /// True if the kernel applies the filter that follows this source in the path.
    is_filtered: bool,
}

impl RxDevice {
    /// Opens a packet socket in the requested namespace.
    pub(super) fn open(parameters: &RxParameters<'_>) -> Result<Self, Failure> {
        let name = parameters.interface.unwrap_or("all interfaces");
        interface::run_in_namespace(parameters.netns, || {
            Self::open_in_current_namespace(parameters, name)
        })
    }

    /// Opens a packet socket in the network namespace of the calling thread.
    fn open_in_current_namespace(
        parameters: &RxParameters<'_>,
        name: &str,
    ) -> Result<Self, Failure> {
        let cannot = |error| interface::socket_failure(WATCH_VERB, name, &error);
        let step =
            |makes, target| parameters.steps.announce_creation(makes, target).map_err(cannot);
        step(StepResource::Descriptor, "a netlink socket")?;
        let interface = parameters
            .interface
            .map(|name| interface::find_interface_by_name(WATCH_VERB, name))
            .transpose()?;
        let interface = interface.map(|(interface, _)| interface);
        let index = interface.as_ref().map(|interface| interface.index);
        let (ring, filtered) = open_socket(parameters, interface.as_ref()).map_err(cannot)?;
        let links = || {
            step(StepResource::Descriptor, "a netlink socket")?;
            RouteSocket::open().map_err(cannot)
        };
        let losses = FrameLossCounters::begin_counting(
            links()?,
            index,
            matches!(parameters.direction, Direction::Received | Direction::Both),
        );
        let index = index.unwrap_or(ALL_INTERFACES);
        step(StepResource::Entry, "an interface")?;
        ring.bind(index).map_err(cannot)?;
        let (ring, name, links) = (Arc::new(ring), name.to_owned(), links()?);
        Ok(Self { ring, losses, name, index, links, is_filtered: filtered })
    }
}

/// Remark that the kernel lacked the memory to attach the filter, so that unfiltered frames entered
/// the ring.
const UNFILTERED_REMARK: &str = "the next filter is too long for the kernel here \
                                 (net.core.optmem_max): every frame entered the ring";

/// Current state of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// The interface is up.
    Up,
    /// The interface is down; it may come up again.
    Down,
    /// The interface was removed or moved to another namespace.
    Removed,
}

impl RxDevice {
    /// Returns the current state of the interface; [`ALL_INTERFACES`] is always up.
    pub(super) fn link_state(&self) -> LinkState {
        if self.index == ALL_INTERFACES {
            return LinkState::Up;
        }
        match self.links.interface_by_index(self.index) {
            Ok(interface) if interface.flags.is_up() => LinkState::Up,
            Err(error) if error.errno == ENODEV => LinkState::Removed,
            Ok(_) | Err(_) => LinkState::Down,
        }
    }

    /// Returns a note for the user if the interface has been renamed, or if the kernel applies only
    /// the part of the filter that tests the direction. Returns `None` otherwise.
    pub(super) fn remark(&self) -> Option<String> {
        let renamed = (self.index != ALL_INTERFACES)
            .then(|| interface::renaming_note(&self.links, self.index, &self.name))
            .flatten();
        let unfiltered = (!self.is_filtered).then(|| UNFILTERED_REMARK.to_owned());
        let remarks: Vec<String> = renamed.into_iter().chain(unfiltered).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }
}

/// Opens a packet socket without binding it to an interface. Returns the socket, with its filter
/// and its ring, and true if the kernel applies the entire filter. If the kernel has too little
/// memory, the ring is smaller.
fn open_socket(
    parameters: &RxParameters<'_>,
    interface: Option<&Interface>,
) -> sys::Result<(PacketRing, bool)> {
    let mut segments = segment_count(parameters, interface);
    let wait = parameters
        .latency
        .map_or(SEGMENT_TIMEOUT_MS_DEFAULT, |ns| (ns / 1_000_000).clamp(1, SEGMENT_TIMEOUT_MS_MAX));
    let retire_ms = u32::try_from(wait).unwrap_or(1);
    loop {
        parameters.steps.announce_creation(StepResource::Descriptor, "a packet socket")?;
        let socket = PacketSocket::open()?;
        let filtered = attach_socket_filter(&socket, parameters)?;
        if parameters.direction == Direction::Received {
            // The filter rejects outgoing frames as well. With this option, the kernel does not
            // even run the filter on them.
            socket.ignore_outgoing()?;
        }
        if let (true, Some(interface)) = (parameters.promiscuous, interface) {
            socket.make_promiscuous(interface.index)?;
        }
        let shape = PacketRingParameters { segment: SEGMENT_SIZE, segments, retire_ms, reserve: 0 };
        let room =
            parameters.steps.announce_creation(StepResource::Memory, "a ring of the kernel's");
        match room.and_then(|()| socket.into_ring(shape)) {
            Err(error) if error.errno == ENOMEM && segments > SEGMENTS_MIN => segments /= 2,
            outcome => return outcome.map(|ring| (ring, filtered)),
        }
    }
}

/// Attaches the path's next filter to the socket, so that the kernel applies it. If the kernel has
/// no memory for the entire filter, attaches only a filter for the direction of frames. In either
/// case, the next node filters again. Returns true if the entire filter is attached.
fn attach_socket_filter(socket: &PacketSocket, parameters: &RxParameters<'_>) -> sys::Result<bool> {
    let program = |pushed_filter| {
        let (program, _) = bpf::socket_filter(parameters.direction, pushed_filter);
        let all = program.instructions().iter();
        all.map(|i| (i.code, i.jt, i.jf, i.k)).collect::<Vec<ClassicBpfInstruction>>()
    };
    match socket.attach_filter(&program(parameters.pushed_filter)) {
        Err(error) if error.errno == ENOMEM => socket.attach_filter(&program(None)).map(|()| false),
        outcome => outcome.map(|()| true),
    }
}

/// Returns the number of segments of the packet ring, which is a power of two of at least
/// [`SEGMENTS_MIN`]. If the request sets a size, the segments have at most this size in total.
///
/// Otherwise, the segments hold [`RING_CAPACITY_MS_DEFAULT`] of traffic at the rate of the
/// interface, rounded up to a power of two. This default is at most 1/64 of the machine's memory
/// and [`RING_BYTES_MAX`], but at least [`RING_BYTES_MIN`], before rounding.
fn segment_count(parameters: &RxParameters<'_>, interface: Option<&Interface>) -> usize {
    let of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / SEGMENT_SIZE;
    if let Some(bytes) = parameters.ring {
        return 1 << of(bytes).max(SEGMENTS_MIN).ilog2();
    }
    // `/sys` shows only the interfaces of the namespace of this process.
    let reported = interface.filter(|_| parameters.netns.is_none()).and_then(reported_rate_mbits);
    let memory = sys::machine::Machine::detect().memory_bytes;
    let bytes_max = memory.map_or(RING_BYTES_MAX, |all| (all / 64).min(RING_BYTES_MAX));
    // Mbit/s times milliseconds is kbit, 125 bytes each.
    let bytes = (reported.unwrap_or(RATE_MBITS_DEFAULT) * RING_CAPACITY_MS_DEFAULT * 125)
        .clamp(RING_BYTES_MIN, bytes_max.max(RING_BYTES_MIN));
    of(bytes).next_power_of_two()
}

/// Returns the rate in Mbit/s that the interface reports, or `None` if it reports no rate.
fn reported_rate_mbits(interface: &Interface) -> Option<u64> {
    let path = Path::new("/sys/class/net").join(&interface.name).join("speed");
    std::fs::read_to_string(path).ok()?.trim().parse().ok().filter(|rate| *rate > 0)
}

/// Interface index that stands for all interfaces.
const ALL_INTERFACES: u32 = 0;
const ENOMEM: i32 = 12;
const ENODEV: i32 = 19;
