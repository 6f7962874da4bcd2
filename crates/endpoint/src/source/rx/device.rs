//! The packet socket of an interface, opened so that nothing unfiltered ever comes in.
//!
//! In: what the request asks. Out: a bound ring and what its interface is. The order is what
//! matters: a socket with protocol 0 receives nothing; it gets its filter, then its ring, and only
//! then is it bound to the interface, so that the first frame in the ring is already one that was
//! asked for. [libpcap binds first and drains what came in between]

use super::CALL;
use super::losses::Losses;
use crate::{Failure, interface};
use filter::general::bpf::{self, Direction};
use filter::{Arguments, Time};
use std::path::Path;
use std::sync::Arc;
use sys::net::{Interface, RouteSocket};
use sys::packet::{Instruction, PacketRing, PacketSocket, RingShape};
use sys::steps::{Resource, Steps};

/// Bytes of a segment: the largest frame that generic receive offload makes by default fits in, and
/// the two or three that are in use at a time stay in a second-level cache.
const SEGMENT: usize = 128 << 10;
/// A ring has at least so many segments: one that is read, one that is filled, and two between.
const SEGMENTS_MIN: usize = 4;
/// The time for which a ring should last without a reader, at the full rate of the interface.
const LASTS_MS: u64 = 50;
/// The rate of an interface that does not tell its own, in Mbit/s.
const RATE: u64 = 10_000;
/// The default size of a ring: within these bytes, and a 64th of the memory.
const RING_MIN: u64 = 4 << 20;
const RING_MAX: u64 = 128 << 20;
/// The default wait of a frame in a segment that is not full, in ms (T_t); the kernel counts in
/// whole ms.
const RETIRE_MS: u64 = 10;
const RETIRE_MAX: u64 = 1000;

/// The request to the device.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// The interface; `None` for all.
    pub(super) interface: Option<&'a str>,
    pub(super) direction: Direction,
    /// In which name space.
    pub(super) netns: Option<&'a str>,
    /// Bytes of the ring; none: what fits the interface.
    pub(super) ring: Option<u64>,
    pub(super) promiscuous: bool,
    /// The question of the filter behind it.
    pub(super) ahead: Option<&'a Arguments>,
    /// The longest wait of a frame for others, in ns.
    pub(super) latency: Option<Time>,
    pub(super) steps: &'a Steps,
}

/// An interface that is being watched.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) ring: Arc<PacketRing>,
    pub(super) losses: Losses,
    /// The name in the request.
    pub(super) name: String,
    /// Its number, or [`ALL`].
    index: u32,
    /// Finds it, whatever it is called later.
    links: RouteSocket,
    /// True if the kernel asks the question of the filter behind it.
    filtered: bool,
}

impl Device {
    /// Opens what is asked for, in its name space.
    pub(super) fn open(asked: &Asked<'_>) -> Result<Self, Failure> {
        let name = asked.interface.unwrap_or("all interfaces");
        interface::within(asked.netns, || Self::here(asked, name))
    }

    /// Opens in the name space of this thread.
    fn here(asked: &Asked<'_>, name: &str) -> Result<Self, Failure> {
        let cannot = |error| interface::failed(CALL, name, &error);
        let step = |makes, target| asked.steps.take(makes, target).map_err(cannot);
        step(Resource::Descriptor, "a netlink socket")?;
        let interface = asked.interface.map(|name| interface::named(CALL, name)).transpose()?;
        let interface = interface.map(|(interface, _)| interface);
        let index = interface.as_ref().map(|interface| interface.index);
        let (ring, filtered) = opened(asked, interface.as_ref()).map_err(cannot)?;
        let links = || {
            step(Resource::Descriptor, "a netlink socket")?;
            RouteSocket::open().map_err(cannot)
        };
        let losses = Losses::begin(
            links()?,
            index,
            matches!(asked.direction, Direction::Received | Direction::Both),
        );
        let index = index.unwrap_or(ALL);
        step(Resource::Entry, "an interface")?;
        ring.bind(index).map_err(cannot)?;
        let (ring, name, links) = (Arc::new(ring), name.to_owned(), links()?);
        Ok(Self { ring, losses, name, index, links, filtered })
    }
}

/// The message if the kernel has no room for a filter.
const UNFILTERED: &str = "the filter behind is too long for the kernel here \
                          (net.core.optmem_max): every frame came into the ring";

/// The current state of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It carries frames.
    Up,
    /// It may come up again.
    Down,
    /// It was removed, or moved to another name space.
    Gone,
}

impl Device {
    /// Looks at the interface. All interfaces together are never gone.
    pub(super) fn state(&self) -> State {
        if self.index == ALL {
            return State::Up;
        }
        match self.links.indexed(self.index) {
            Ok(interface) if interface.flags.up() => State::Up,
            Err(error) if error.errno == NO_DEVICE => State::Gone,
            Ok(_) | Err(_) => State::Down,
        }
    }

    /// Returns a remark for the user.
    pub(super) fn remark(&self) -> Option<String> {
        let unfiltered = (!self.filtered).then(|| UNFILTERED.to_owned());
        let remarks: Vec<String> = self.renamed().into_iter().chain(unfiltered).collect();
        (!remarks.is_empty()).then(|| remarks.join("; "))
    }

    /// Returns the current name of the interface, if it differs from the request's.
    fn renamed(&self) -> Option<String> {
        let now = (self.index != ALL).then(|| self.links.indexed(self.index).ok())??;
        let same = now.name == self.name || now.alternative.contains(&self.name);
        (!same).then(|| format!("{} is called {} now", self.name, now.name))
    }
}

/// A socket with its filter and its ring, not bound yet, and whether the filter is in it. Where
/// memory is short the ring is smaller.
fn opened(asked: &Asked<'_>, interface: Option<&Interface>) -> sys::Result<(PacketRing, bool)> {
    let mut segments = segments(asked, interface);
    let wait = asked.latency.map_or(RETIRE_MS, |ns| (ns / 1_000_000).clamp(1, RETIRE_MAX));
    let retire_ms = u32::try_from(wait).unwrap_or(1);
    loop {
        asked.steps.take(Resource::Descriptor, "a packet socket")?;
        let socket = PacketSocket::open()?;
        let filtered = attach(&socket, asked)?;
        if asked.direction == Direction::Received {
            // The filter says so too; here the frame is not even looked at.
            socket.ignore_outgoing()?;
        }
        if let (true, Some(interface)) = (asked.promiscuous, interface) {
            socket.promiscuous(interface.index)?;
        }
        let shape = RingShape { segment: SEGMENT, segments, retire_ms, reserve: 0 };
        let room = asked.steps.take(Resource::Memory, "a ring of the kernel's");
        match room.and_then(|()| socket.ring(shape)) {
            Err(error) if error.errno == NO_MEMORY && segments > SEGMENTS_MIN => segments /= 2,
            outcome => return outcome.map(|ring| (ring, filtered)),
        }
    }
}

/// Attaches what the filter behind asks, or at least the direction: the filter behind decides in
/// any case. Answers whether the kernel was asked all that it could be.
fn attach(socket: &PacketSocket, asked: &Asked<'_>) -> sys::Result<bool> {
    let program = |ahead| {
        let (program, _) = bpf::socket_filter(asked.direction, ahead);
        let all = program.instructions().iter();
        all.map(|i| (i.code, i.jt, i.jf, i.k)).collect::<Vec<Instruction>>()
    };
    match socket.attach(&program(asked.ahead)) {
        Err(error) if error.errno == NO_MEMORY => socket.attach(&program(None)).map(|()| false),
        outcome => outcome.map(|()| true),
    }
}

/// Returns the number of segments of a ring: no more than were asked for, or enough to last for a
/// moment at the rate of the interface; a power of two.
fn segments(asked: &Asked<'_>, interface: Option<&Interface>) -> usize {
    let of = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX) / SEGMENT;
    if let Some(bytes) = asked.ring {
        return 1 << of(bytes).max(SEGMENTS_MIN).ilog2();
    }
    // Files tell of interfaces of our own name space alone.
    let told = interface.filter(|_| asked.netns.is_none()).and_then(rate);
    let memory = sys::machine::Machine::detect().memory;
    let most = memory.map_or(RING_MAX, |all| (all / 64).min(RING_MAX));
    // Mbit/s for so many ms: in kbit, 125 bytes each.
    let bytes = (told.unwrap_or(RATE) * LASTS_MS * 125).clamp(RING_MIN, most.max(RING_MIN));
    of(bytes).next_power_of_two()
}

/// Returns the rate that the interface reports, in Mbit/s.
fn rate(interface: &Interface) -> Option<u64> {
    let path = Path::new("/sys/class/net").join(&interface.name).join("speed");
    std::fs::read_to_string(path).ok()?.trim().parse().ok().filter(|rate| *rate > 0)
}

/// The number that stands for all interfaces.
const ALL: u32 = 0;
/// ENOMEM.
const NO_MEMORY: i32 = 12;
/// ENODEV.
const NO_DEVICE: i32 = 19;
