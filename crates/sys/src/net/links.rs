//! Interfaces, queried with RTM_GETLINK of rtnetlink(7).
//!
//! Each query sends one request and reads replies until the kernel marks the last one. The parser
//! is safe code that checks every length.

use super::{Interface, InterfaceCounters, InterfaceFlags, XdpProgram};
use crate::bpf::XdpMode;
use crate::error::{Error, ErrorContext as _, Result};
use crate::poll;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name of the system call in errors.
pub(super) const NETLINK_CALL: &str = "netlink";
/// Maximum time to wait for a reply of the kernel. The kernel replies at once, so the timeout
/// matters only in case of a bug.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Size of the receive buffer in bytes; a dump arrives in datagrams of at most this size, with
/// about 2 KB per interface.
const RECEIVE_BUFFER_SIZE: usize = 64 << 10;
/// Maximum number of attempts to obtain a dump that is not interrupted by a change.
const DUMP_ATTEMPTS_MAX: u32 = 8;
/// Size in bytes of an interface name (IFNAMSIZ), including the final zero.
const INTERFACE_NAME_SIZE: usize = 16;
/// Size in bytes of an alternative interface name (ALTIFNAMSIZ), including the final zero.
const ALTERNATIVE_NAME_SIZE: usize = 128;

/// Size in bytes of `struct nlmsghdr`.
const NETLINK_HEADER_SIZE: usize = 16;
/// Size in bytes of `struct ifinfomsg`.
const LINK_MESSAGE_SIZE: usize = 16;

/// Constants of `linux/netlink.h` and `linux/rtnetlink.h`.
mod rtnetlink {
    pub(super) const ERROR: u16 = 2;
    pub(super) const DONE: u16 = 3;
    pub(super) const NEW_LINK: u16 = 16;
    pub(super) const GET_LINK: u16 = 18;
    pub(super) const REQUEST: u16 = 0x1;
    pub(super) const INTERRUPTED: u16 = 0x10;
    pub(super) const DUMP: u16 = 0x300;
}

/// Types of the attributes that describe an interface (`IFLA_*` of `linux/if_link.h`).
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const LINK: u16 = 5;
    pub(super) const OPERSTATE: u16 = 16;
    pub(super) const LINK_INFO: u16 = 18;
    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const STATISTICS: u16 = 23;
    pub(super) const XDP: u16 = 43;
    pub(super) const XDP_ATTACHED: u16 = 2;
    pub(super) const XDP_PROGRAM: u16 = 4;
    pub(super) const PROPERTIES: u16 = 52;
    pub(super) const ALTERNATIVE_NAME: u16 = 53;
}

/// A socket for interface queries, bound to the namespace in which it was opened.
#[derive(Debug)]
pub struct RouteSocket {
    socket: OwnedFd,
    /// Sequence number of the last request. Locked from the time the request is sent until its last
    /// reply arrives.
    sequence: Mutex<u32>,
}

impl RouteSocket {
    /// Opens a socket in the network namespace of the calling thread. Needs no privilege.
    pub fn open() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // Protocol 0 is NETLINK_ROUTE.
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None);
        Ok(Self { socket: socket.context("socket", "rtnetlink")?, sequence: Mutex::new(0) })
    }

    /// Opens a socket for queries about nftables instead of interfaces.
    pub(super) fn open_netfilter() -> Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(rustix::net::netlink::NETFILTER);
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol);
        Ok(Self { socket: socket.context("socket", "nfnetlink")?, sequence: Mutex::new(0) })
    }

    /// Lists all interfaces. Fails with EINTR if interfaces keep changing during the queries.
    pub fn list_interfaces(&self) -> Result<Vec<Interface>> {
        for _ in 0..DUMP_ATTEMPTS_MAX {
            let (found, whole) = self.query_interfaces(0, &[], true, "the list of interfaces")?;
            if whole {
                return Ok(found);
            }
        }
        Err(Error::new(NETLINK_CALL, "the list of interfaces, which keeps changing", libc::EINTR))
    }

    /// Returns the interface with this name or alternative name. Fails with ENODEV if there is
    /// none.
    pub fn interface_by_name(&self, name: &str) -> Result<Interface> {
        let kind = if name.len() < INTERFACE_NAME_SIZE {
            attribute::NAME
        } else {
            attribute::ALTERNATIVE_NAME
        };
        if name.is_empty() || name.len() >= ALTERNATIVE_NAME_SIZE || name.contains('\0') {
            return Err(no_device_error(format!("interface {name:?}")));
        }
        let wanted = encode_attribute(kind, &[name.as_bytes(), &[0]].concat());
        self.query_one_interface(0, &wanted, format!("interface {name}"))
    }

    /// Returns the interface with this index. Fails with ENODEV if there is none.
    pub fn interface_by_index(&self, index: u32) -> Result<Interface> {
        let target = format!("interface number {index}");
        if index == 0 {
            Err(no_device_error(target))
        } else {
            self.query_one_interface(index, &[], target)
        }
    }

    fn query_one_interface(&self, index: u32, wanted: &[u8], target: String) -> Result<Interface> {
        let (found, _) = self.query_interfaces(index, wanted, false, &target)?;
        found.into_iter().next().ok_or_else(|| no_device_error(target))
    }

    /// Locks the socket for one request and returns the next sequence number. The caller must keep
    /// the guard until the last reply has arrived.
    pub(super) fn lock_sequence(&self) -> MutexGuard<'_, u32> {
        let mut sequence = self.sequence.lock().unwrap_or_else(PoisonError::into_inner);
        *sequence = sequence.wrapping_add(1);
        sequence
    }

    pub(super) const fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends a request and collects the interfaces in the replies. Also returns true if no
    /// concurrent change interrupted the dump.
    fn query_interfaces(
        &self,
        index: u32,
        wanted: &[u8],
        list: bool,
        target: &str,
    ) -> Result<(Vec<Interface>, bool)> {
        let sequence = self.lock_sequence();
        let request = encode_link_request(*sequence, index, wanted, list);
        let mut answers =
            InterfaceReplies { sequence: *sequence, list, ..InterfaceReplies::default() };
        exchange_request(&self.socket, &request, target, |answer| {
            answers.parse_datagram(answer);
            answers.done
        })?;
        match answers.refused {
            Some(errno) => Err(Error::new(NETLINK_CALL, target.to_owned(), errno)),
            None => Ok((answers.found, !answers.interrupted)),
        }
    }
}

fn no_device_error(target: String) -> Error {
    Error::new(NETLINK_CALL, target, libc::ENODEV)
}

/// Encodes `struct nlmsghdr`, `struct ifinfomsg` and attributes.
fn encode_link_request(sequence: u32, index: u32, wanted: &[u8], list: bool) -> Vec<u8> {
    let flags = rtnetlink::REQUEST | if list { rtnetlink::DUMP } else { 0 };
    let body = [[0, index, 0, 0].map(u32::to_ne_bytes).as_flattened(), wanted].concat();
    encode_message(rtnetlink::GET_LINK, flags, sequence, &body)
}

/// Encodes `struct nlmsghdr` and the body of a message.
pub(super) fn encode_message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(NETLINK_HEADER_SIZE + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(NETLINK_HEADER_SIZE + body.len());
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// Encodes an attribute, padded to four bytes.
pub(super) fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Sends a request, and passes each datagram that arrives to `read` until `read` returns true.
/// Fails with ETIMEDOUT if no datagram arrives in time, and with EMSGSIZE if a datagram is too
/// long.
pub(super) fn exchange_request(
    socket: &OwnedFd,
    request: &[u8],
    target: &str,
    mut read: impl FnMut(&[u8]) -> bool,
) -> Result<()> {
    let refused = |errno| Error::new(NETLINK_CALL, target.to_owned(), errno);
    rustix::net::send(socket, request, SendFlags::empty())
        .context(NETLINK_CALL, target.to_owned())?;
    let mut bytes = vec![0; RECEIVE_BUFFER_SIZE];
    loop {
        if !poll::wait_until_readable_despite_signals(&[socket.as_fd()], Some(REPLY_TIMEOUT))[0] {
            return Err(refused(libc::ETIMEDOUT));
        }
        let (_, whole) = rustix::net::recv(socket, &mut bytes[..], RecvFlags::TRUNC)
            .context(NETLINK_CALL, target.to_owned())?;
        if read(bytes.get(..whole).ok_or_else(|| refused(libc::EMSGSIZE))?) {
            return Ok(());
        }
    }
}

/// The replies received so far to one request for interfaces.
#[derive(Debug, Default)]
struct InterfaceReplies {
    sequence: u32,
    list: bool,
    found: Vec<Interface>,
    interrupted: bool,
    refused: Option<i32>,
    done: bool,
}

impl InterfaceReplies {
    /// Parses the messages of one datagram, skipping replies to other requests.
    fn parse_datagram(&mut self, mut bytes: &[u8]) {
        while let Some((kind, flags, sequence, body, rest)) = split_message(bytes) {
            bytes = rest;
            if sequence != self.sequence {
                continue;
            }
            self.interrupted |= flags & rtnetlink::INTERRUPTED != 0;
            match kind {
                rtnetlink::NEW_LINK => {
                    self.found.extend(parse_interface(body));
                    self.done |= !self.list;
                }
                rtnetlink::ERROR | rtnetlink::DONE => {
                    let code = array_at(body, 0).map_or(0, i32::from_ne_bytes);
                    self.refused = (code < 0).then(|| code.wrapping_neg());
                    self.done = true;
                }
                _ => {}
            }
        }
    }
}

pub(super) type NetlinkMessage<'a> = (u16, u16, u32, &'a [u8], &'a [u8]);

/// Splits the first netlink message off `bytes`. Returns its type, flags, sequence number and body,
/// then the remaining bytes; `None` if there is no complete message.
pub(super) fn split_message(bytes: &[u8]) -> Option<NetlinkMessage<'_>> {
    let length = usize::try_from(u32::from_ne_bytes(array_at(bytes, 0)?)).ok()?;
    let body = bytes.get(NETLINK_HEADER_SIZE..length)?;
    let kind = u16::from_ne_bytes(array_at(bytes, 4)?);
    let flags = u16::from_ne_bytes(array_at(bytes, 6)?);
    let sequence = u32::from_ne_bytes(array_at(bytes, 8)?);
    Some((kind, flags, sequence, body, bytes.get(length.next_multiple_of(4)..).unwrap_or(&[])))
}

/// Parses `struct ifinfomsg` and its attributes. Returns `None` if the message is malformed.
fn parse_interface(body: &[u8]) -> Option<Interface> {
    let mut found = Interface {
        hatype: u16::from_ne_bytes(array_at(body, 2)?),
        index: u32::from_ne_bytes(array_at(body, 4)?),
        flags: InterfaceFlags(u32::from_ne_bytes(array_at(body, 8)?)),
        ..Interface::default()
    };
    for (kind, value) in parse_attributes(body.get(LINK_MESSAGE_SIZE..)?) {
        match kind {
            attribute::ADDRESS => found.mac = value.to_vec(),
            attribute::NAME => found.name = text_until_nul(value),
            attribute::MTU => found.mtu = parse_u32(value)?,
            attribute::LINK => found.lower_index = parse_u32(value),
            attribute::OPERSTATE => found.operstate = *value.first()?,
            attribute::LINK_INFO => {
                let kind = parse_attributes(value).find(|(kind, _)| *kind == attribute::INFO_KIND);
                found.kind = kind.map(|(_, value)| text_until_nul(value));
            }
            attribute::STATISTICS => found.counters = parse_counters(value),
            attribute::XDP => found.xdp = parse_xdp(value),
            attribute::PROPERTIES => {
                let names = parse_attributes(value)
                    .filter(|(kind, _)| *kind == attribute::ALTERNATIVE_NAME);
                found.alternative = names.map(|(_, value)| text_until_nul(value)).collect();
            }
            _ => {}
        }
    }
    Some(found)
}

/// Parses the XDP program attached to an interface and its mode; `None` if no program is attached.
fn parse_xdp(value: &[u8]) -> Option<XdpProgram> {
    let value_of =
        |wanted| parse_attributes(value).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    let mode = match value_of(attribute::XDP_ATTACHED)?.first()? {
        0 => return None,
        1 => Some(XdpMode::Native),
        2 => Some(XdpMode::Generic),
        3 => Some(XdpMode::Device),
        _ => None,
    };
    Some(XdpProgram {
        program: value_of(attribute::XDP_PROGRAM).and_then(parse_u32).unwrap_or(0),
        mode,
    })
}

/// Iterates over the types and values of attributes, until the first invalid length.
pub(super) fn parse_attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    /// Mask of an attribute's type, whose two high bits are flags.
    const KIND_MASK: u16 = 0x3fff;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(array_at(bytes, 0)?));
        let kind = u16::from_ne_bytes(array_at(bytes, 2)?) & KIND_MASK;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// Parses `struct rtnl_link_stats64`. Counters that this kernel does not report are 0.
fn parse_counters(value: &[u8]) -> InterfaceCounters {
    let at = |place: usize| array_at(value, place * 8).map_or(0, u64::from_ne_bytes);
    InterfaceCounters {
        rx_packets: at(0),
        tx_packets: at(1),
        rx_bytes: at(2),
        tx_bytes: at(3),
        rx_errors: at(4),
        tx_errors: at(5),
        rx_dropped: at(6),
        tx_dropped: at(7),
        multicast: at(8),
        rx_length_errors: at(10),
        rx_over_errors: at(11),
        rx_crc_errors: at(12),
        rx_frame_errors: at(13),
        rx_fifo_errors: at(14),
        rx_missed_errors: at(15),
        tx_carrier_errors: at(17),
        tx_fifo_errors: at(18),
        rx_nohandler: at(23),
    }
}

pub(super) fn text_until_nul(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn parse_u32(value: &[u8]) -> Option<u32> {
    array_at(value, 0).map(u32::from_ne_bytes)
}

pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::random::Random;

    #[test]
    fn loopback_is_found_by_name_index_and_in_the_list() {
        let links = RouteSocket::open().unwrap();
        let all = links.list_interfaces().unwrap();
        let lo = all.iter().find(|interface| interface.flags.is_loopback()).unwrap();
        assert_eq!((lo.name.as_str(), lo.hatype), ("lo", 772));
        let same = |other: Interface| {
            let counters = lo.counters;
            assert_eq!(Interface { counters, ..other }, *lo);
        };
        same(links.interface_by_name("lo").unwrap());
        same(links.interface_by_index(lo.index).unwrap());
        assert_eq!(crate::net::interface_name(lo.index).unwrap(), "lo");
    }

    #[test]
    fn missing_interface_is_named_in_the_error() {
        let links = RouteSocket::open().unwrap();
        for name in ["nosuch0", "", "a-name-that-is-longer-than-fifteen", &"x".repeat(200)] {
            let error = links.interface_by_name(name).unwrap_err();
            assert_eq!(error.errno, libc::ENODEV, "{error}");
            assert!(error.target.contains(name), "{error}");
        }
        assert_eq!(links.interface_by_index(0).unwrap_err().errno, libc::ENODEV);
        assert_eq!(links.interface_by_index(0x7fff_fff0).unwrap_err().errno, libc::ENODEV);
        assert!(
            links.interface_by_name("lo").is_ok(),
            "a refusal does not disturb what comes after"
        );
    }

    /// Builds a netlink message with the given flags and sequence number.
    fn netlink_message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = encode_link_request(sequence, 0, &[], false);
        bytes.truncate(NETLINK_HEADER_SIZE);
        bytes.extend(body);
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes
    }

    #[test]
    fn replies_to_earlier_requests_are_ignored() {
        let link = |index: u8| [&[0, 0, 1, 0, index, 0, 0, 0][..], &[0; 8]].concat();
        let mut answers =
            InterfaceReplies { sequence: 2, list: true, ..InterfaceReplies::default() };
        answers.parse_datagram(
            &[
                netlink_message(rtnetlink::NEW_LINK, rtnetlink::INTERRUPTED, 1, &link(1)),
                netlink_message(rtnetlink::ERROR, 0, 1, &(-5_i32).to_ne_bytes()),
                netlink_message(rtnetlink::NEW_LINK, 0, 2, &link(2)),
            ]
            .concat(),
        );
        let indices: Vec<u32> = answers.found.iter().map(|found| found.index).collect();
        assert_eq!((indices, answers.refused), (vec![2], None));
        assert!(!answers.done && !answers.interrupted);
        answers.parse_datagram(&netlink_message(
            rtnetlink::NEW_LINK,
            rtnetlink::INTERRUPTED,
            2,
            &link(3),
        ));
        answers.parse_datagram(&netlink_message(rtnetlink::DONE, 0, 2, &0_i32.to_ne_bytes()));
        assert!(answers.done && answers.interrupted && answers.found.len() == 2);
        let mut answers = InterfaceReplies { sequence: 2, ..InterfaceReplies::default() };
        answers.parse_datagram(&netlink_message(rtnetlink::ERROR, 0, 2, &(-19_i32).to_ne_bytes()));
        assert!(answers.done);
        assert_eq!(answers.refused, Some(libc::ENODEV));
    }

    #[test]
    fn malformed_link_messages_parse_without_panic() {
        let mut random = Random::with_replayable_seed();
        for _ in 0..20_000 {
            let mut bytes = encode_link_request(1, 7, &[8, 0, 3, 0, b'e', b'0', 0, 0], false);
            bytes.extend((0..random.below(80)).map(|_| random.below(12) as u8));
            for _ in 0..random.below(4) {
                let at = random.within(0..bytes.len());
                bytes[at] = random.below(64) as u8;
            }
            let kinds = [rtnetlink::NEW_LINK, rtnetlink::ERROR, rtnetlink::DONE];
            bytes[4..6].copy_from_slice(&random.pick(&kinds).to_ne_bytes());
            let mut answers =
                InterfaceReplies { sequence: 1, list: true, ..InterfaceReplies::default() };
            answers.parse_datagram(&bytes);
            assert!(answers.found.len() <= bytes.len() / NETLINK_HEADER_SIZE);
        }
    }
}
