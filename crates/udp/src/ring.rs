//! The ring of a promoted socket, into which kernel programs put the datagrams for the socket.

use crate::flow_share::FlowShare;
use crate::report::DatagramTotals;
use std::net::{IpAddr, SocketAddr};
use streamline::Options;
use streamline::capture::{Capture, CaptureSettings, CapturedFrame, FRAME_BYTES_MAX};
use sys::net::Interface;

/// Length of an Ethernet header in bytes.
const ETHERNET_HEADER_SIZE: usize = 14;
/// The layout of an IP header without options or extensions: offsets and lengths in bytes.
struct IpLayout {
    length: usize,
    source: usize,
    destination: usize,
    address: usize,
    hops: usize,
}
const IPV4_LAYOUT: IpLayout =
    IpLayout { length: 20, source: 12, destination: 16, address: 4, hops: 8 };
const IPV6_LAYOUT: IpLayout =
    IpLayout { length: 40, source: 8, destination: 24, address: 16, hops: 7 };
/// Length of a UDP header in bytes.
const UDP_HEADER_SIZE: usize = 8;
/// Minimum memory of a ring on all processors together, in bytes.
const RING_BYTES_MIN: u64 = 512 << 10;
/// Maximum memory of a ring on all processors together, in bytes.
const RING_BYTES_MAX: u64 = 128 << 20;
/// Number of reads of an empty ring between two checks that its kernel programs are still running.
const EMPTY_READS_PER_CHECK: u32 = 1024;

/// The ring of a socket: one kernel ring for each interface that receives datagrams for the socket.
/// While the ring is awake, datagrams enter it; while it is asleep, they reach the placeholder, the
/// socket in the kernel.
#[derive(Debug)]
pub(crate) struct Ring {
    sources: Vec<InterfaceRing>,
    /// Index in `sources` of the interface ring that the next read examines first.
    first_source: usize,
    frame: Box<[u8]>,
    pending: Option<PendingDatagrams>,
    empty_looks: u32,
    read: u64,
    damaged: u64,
}

/// A position in the history of a ring, for detecting new datagrams. If two positions are equal, no
/// datagram has arrived between them, and no read has found the ring empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingPosition {
    arrived: u64,
    empty_looks: u32,
}

/// The flows whose datagrams enter the ring of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingFlows {
    /// The destination port.
    pub(crate) port: u16,
    /// The only sender whose datagrams enter the ring, if the socket is connected; `None` for any
    /// sender.
    pub(crate) peer: Option<SocketAddr>,
    /// The part of the port's flows whose datagrams the socket receives.
    pub(crate) share: FlowShare,
    /// Size of the socket's receive buffer in bytes, if the program has chosen it.
    pub(crate) receive_buffer: Option<u32>,
}

/// The kernel ring of one interface, which contains the datagrams that this interface has received
/// for a socket.
#[derive(Debug)]
struct InterfaceRing {
    interface: Interface,
    capture: Capture,
    /// True once no more datagrams enter this ring.
    is_detached: bool,
}

/// The unread datagrams in the frame that was copied last: one datagram, or several of one sender
/// that the kernel has merged.
#[derive(Clone, Copy, Debug)]
struct PendingDatagrams {
    from: SocketAddr,
    to: SocketAddr,
    hops: u8,
    service_type: u8,
    time_ns: u64,
    /// Index of the interface.
    interface: u32,
    /// Offset in [`Ring::frame`] of the next datagram to be read, in bytes.
    start: usize,
    end: usize,
    /// Length of each datagram in the frame in bytes; the last one may be shorter.
    segment: usize,
}

/// A datagram that was read from a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'r> {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    /// Wall-clock time of reception, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// Index of the interface that received the datagram.
    pub(crate) interface: u32,
    /// Remaining hops (TTL or hop limit).
    pub(crate) hops: u8,
    /// Type of service (TOS), or traffic class.
    pub(crate) service_type: u8,
    /// Number of datagrams that the socket had dropped when this one was received.
    pub(crate) drops: u32,
    pub(crate) bytes: &'r [u8],
}

impl Ring {
    /// Opens a ring for the datagrams of these flows: on each interface, for the addresses given
    /// with the interface. Skips interfaces on which no ring can be opened. Fails with the reason
    /// if all are skipped.
    pub(crate) fn open(
        interfaces: Vec<(Interface, Vec<IpAddr>)>,
        flows: RingFlows,
    ) -> Result<Self, String> {
        let mut sources = Vec::new();
        let mut refusal = None;
        for (interface, hosts) in interfaces {
            match InterfaceRing::open(interface, &hosts, flows) {
                Ok(source) => sources.push(source),
                Err(why) => refusal = refusal.or(Some(why)),
            }
        }
        if let Some(why) = refusal.filter(|_| sources.is_empty()) {
            return Err(why);
        }
        Ok(Self {
            sources,
            first_source: 0,
            frame: vec![0; FRAME_BYTES_MAX].into_boxed_slice(),
            pending: None,
            empty_looks: 0,
            read: 0,
            damaged: 0,
        })
    }

    /// Returns the names of the interfaces, separated by commas.
    pub(crate) fn interface_names(&self) -> String {
        let names = self.sources.iter().map(|source| source.interface.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// Allows datagrams to enter the ring.
    pub(crate) fn wake_up(&self) {
        self.sources.iter().for_each(|source| source.capture.wake_up());
    }

    /// Stops datagrams from entering the ring; they then reach the placeholder, the socket in the
    /// kernel. Returns true if the ring is empty.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        self.sources.iter_mut().for_each(|source| source.capture.fall_asleep());
        !self.read_until_datagram_pending()
    }

    /// Returns the next datagram without removing it; `None` if the ring is empty.
    pub(crate) fn peek(&mut self) -> Option<Datagram<'_>> {
        if !self.read_until_datagram_pending() {
            return None;
        }
        let PendingDatagrams { from, to, hops, service_type, time_ns, interface, .. } =
            self.pending?;
        let PendingDatagrams { start, end, segment, .. } = self.pending?;
        let bytes = self.frame.get(start..end.min(start + segment))?;
        let drops = 0;
        Some(Datagram { from, to, time_ns, interface, hops, service_type, drops, bytes })
    }

    /// Removes the datagram that [`Self::peek`] has returned.
    pub(crate) fn remove_peeked(&mut self) {
        self.read += 1;
        if let Some(PendingDatagrams { start, end, segment, .. }) = &mut self.pending {
            *start += (*segment).max(1);
            if start >= end {
                self.pending = None;
            }
        }
    }

    /// Reads frames from the ring until one contains a datagram. Returns false if the ring is
    /// empty.
    pub(crate) fn read_until_datagram_pending(&mut self) -> bool {
        let mut has_loaded = false;
        while self.pending.is_none() {
            if self.read_frame() {
                continue;
            }
            if has_loaded {
                self.check_programs();
                return false;
            }
            self.sources.iter_mut().for_each(|source| source.capture.load_arrived_frames());
            has_loaded = true;
        }
        true
    }

    /// Copies the next frame, from the interfaces in rotation. Returns false if none has a frame.
    fn read_frame(&mut self) -> bool {
        let count = self.sources.len();
        for position in self.first_source..self.first_source + count {
            let number = position % count;
            let Some(source) = self.sources.get_mut(number) else { continue };
            let whole = |frame: &CapturedFrame, _: &[u8]| Some(frame.captured);
            if let Some((frame, copied)) = source.capture.next_frame(&mut self.frame, 0, whole) {
                self.first_source = number + 1;
                let bytes = self.frame.get(..copied).unwrap_or_default();
                self.pending = parse_datagrams(bytes, &frame, source.interface.index);
                self.damaged += u64::from(self.pending.is_none());
                return true;
            }
        }
        false
    }

    /// Returns the current position of the ring, from which new datagrams can be detected.
    pub(crate) fn position(&self) -> RingPosition {
        let counts = self.sources.iter().map(|source| source.capture.counts());
        let arrived = counts.map(|now| now.read + now.skipped + now.lost + now.unread).sum();
        RingPosition { arrived, empty_looks: self.empty_looks }
    }

    /// Checks, once in [`EMPTY_READS_PER_CHECK`] calls, that the kernel programs are still running,
    /// and marks interfaces without a running program as detached.
    fn check_programs(&mut self) {
        self.empty_looks = self.empty_looks.wrapping_add(1);
        if self.empty_looks.is_multiple_of(EMPTY_READS_PER_CHECK) {
            for source in &mut self.sources {
                source.is_detached |= source.capture.check_for_failure().is_err();
            }
        }
    }

    /// Stops the kernel programs, so that further datagrams reach the placeholder (kernel socket).
    /// The datagrams in the ring can still be read.
    pub(crate) fn detach(&mut self) {
        for source in self.sources.iter_mut().filter(|source| !source.is_detached) {
            source.capture.detach();
            source.is_detached = true;
        }
    }

    /// Returns true if no datagram can enter the ring.
    pub(crate) fn is_detached(&self) -> bool {
        self.sources.iter().all(|source| source.is_detached)
    }

    /// Returns the number of datagrams that the program has received from this ring.
    pub(crate) fn read_count(&self) -> u64 {
        self.read
    }

    /// Adds the counts of the ring to the totals of a socket.
    pub(crate) fn add_to_totals(&self, totals: &mut DatagramTotals) {
        totals.from_ring += self.read;
        totals.lost += self.lost();
        totals.damaged += self.damaged;
    }

    fn lost(&self) -> u64 {
        self.sources.iter().map(|source| source.capture.counts().lost).sum()
    }

    /// Returns the number of datagrams that the ring has dropped so far, because the ring was full
    /// or because a length or checksum was wrong. The kernel counts both cases as drops of a
    /// socket, too.
    pub(crate) fn dropped(&self) -> u64 {
        self.lost() + self.damaged
    }
}

impl InterfaceRing {
    fn open(interface: Interface, hosts: &[IpAddr], flows: RingFlows) -> Result<Self, String> {
        let RingFlows { port, peer, share, receive_buffer } = flows;
        let family = |is_v4: bool, header: &str| {
            let own = hosts.iter().filter(|host| host.is_ipv4() == is_v4);
            let own: Vec<String> = own.map(|host| format!("dst host {host}")).collect();
            let flows = share.pcap_condition(is_v4);
            (!own.is_empty()).then(|| format!("({header} and ({}){flows})", own.join(" or ")))
        };
        // Headers without options or extensions.
        let families = [family(true, "ip[0] = 0x45"), family(false, "ip6[6] = 17")];
        let families: Vec<String> = families.into_iter().flatten().collect();
        let from = peer.map_or_else(String::new, |peer| {
            format!(" and src host {} and udp src port {}", peer.ip().to_canonical(), peer.port())
        });
        let wanted = CaptureSettings {
            interface: interface.name.clone(),
            take_filter: Some(format!(
                "udp dst port {port}{from} and ether[0] & 1 = 0 and ({})",
                families.join(" or ")
            )),
            host_wakes: true,
            ring_bytes: receive_buffer.map(ring_size),
            ..CaptureSettings::default()
        };
        let capture = Capture::open(&wanted, &Options::default());
        let capture = capture.map_err(|error| error.to_string())?;
        Ok(Self { interface, capture, is_detached: false })
    }
}

/// Returns the size in bytes of a ring on all processors together, given the size of the socket's
/// receive buffer. A ring on one processor is as large as the buffer, because the datagrams of a
/// flow arrive on one processor.
fn ring_size(receive_buffer: u32) -> u64 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    (u64::from(receive_buffer) * processors).clamp(RING_BYTES_MIN, RING_BYTES_MAX)
}

/// Finds the datagrams in a frame. A frame with a segment size may have several. Returns `None` if
/// a length or the checksum is wrong.
fn parse_datagrams(
    frame: &[u8],
    captured: &CapturedFrame,
    interface: u32,
) -> Option<PendingDatagrams> {
    let segment = usize::from(captured.segment_size);
    let packet = frame.get(ETHERNET_HEADER_SIZE..)?;
    let word = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
    let is_v4 = *packet.first()? >> 4 == 4;
    let (ip, total) = match is_v4 {
        true => (&IPV4_LAYOUT, usize::from(word(2)?)),
        false => (&IPV6_LAYOUT, IPV6_LAYOUT.length + usize::from(word(4)?)),
    };
    let udp = packet.get(ip.length..total)?;
    let length = usize::from(word(ip.length + 4)?);
    let length = if segment > 0 { udp.len() } else { length };
    let datagram = udp.get(..length).filter(|datagram| datagram.len() >= UDP_HEADER_SIZE)?;
    let addresses = packet.get(ip.source..ip.destination + ip.address)?;
    let checksum = word(ip.length + 6)?;
    // The kernel has verified the datagrams that it merges. IPv4 datagrams may have no checksum.
    let has_sum = segment == 0 && (checksum != 0 || !is_v4);
    if has_sum && !is_checksum_valid(addresses, datagram, checksum) {
        return None;
    }
    let address = |at: usize, port| {
        let bytes = packet.get(at..at + ip.address)?;
        let host = match is_v4 {
            true => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
            false => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        };
        Some(SocketAddr::new(host, port))
    };
    let start = ETHERNET_HEADER_SIZE + ip.length + UDP_HEADER_SIZE;
    let end = ETHERNET_HEADER_SIZE + ip.length + length;
    Some(PendingDatagrams {
        from: address(ip.source, word(ip.length)?)?,
        to: address(ip.destination, word(ip.length + 2)?)?,
        hops: *packet.get(ip.hops)?,
        service_type: if is_v4 { *packet.get(1)? } else { (word(0)? >> 4) as u8 },
        time_ns: captured.time_ns,
        interface,
        start,
        end,
        segment: if segment > 0 { segment } else { (end - start).max(1) },
    })
}

/// Returns true if the checksum is correct, or if it is left to the device and therefore covers
/// only the pseudo header.
fn is_checksum_valid(addresses: &[u8], datagram: &[u8], checksum: u16) -> bool {
    let pseudo = sum_big_endian_words(addresses) + 17 + datagram.len() as u64;
    fold_to_16_bits(pseudo) == checksum
        || fold_to_16_bits(pseudo + sum_big_endian_words(datagram)) == 0xffff
}

fn sum_big_endian_words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut last = [0; 4];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    words + u64::from(u32::from_be_bytes(last))
}

fn fold_to_16_bits(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}
