//! XDP features of an interface, from the generic netlink family `netdev` (Linux 6.3).
//!
//! The features may change at any time: a virtual Ethernet device accepts redirected frames only
//! while its peer device can receive them. A program that redirects to a device without this
//! feature gets no error, and the frames are lost.

use super::links::{
    NETLINK_CALL, array_at, encode_attribute, encode_message, exchange_request, parse_attributes,
    split_message,
};
use crate::error::{Error, ErrorContext as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::OwnedFd;

/// NLMSG_ERROR: netlink message type of a reply with an error code.
const NLMSG_ERROR: u16 = 2;
/// NLM_F_REQUEST: netlink flag that marks a message as a request.
const NLM_F_REQUEST: u16 = 1;
/// GENL_ID_CTRL: message type of the generic netlink controller.
const GENL_ID_CTRL: u16 = 16;
/// CTRL_CMD_GETFAMILY: command that looks up a family.
const CTRL_CMD_GETFAMILY: u8 = 3;
/// CTRL_ATTR_FAMILY_ID: attribute with the message type of a family.
const CTRL_ATTR_FAMILY_ID: u16 = 1;
/// CTRL_ATTR_FAMILY_NAME: attribute with the name of a family.
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// NETDEV_CMD_DEV_GET: command that queries a device.
const NETDEV_CMD_DEV_GET: u8 = 1;
/// NETDEV_A_DEV_IFINDEX: attribute with the interface index.
const NETDEV_A_DEV_IFINDEX: u16 = 1;
/// NETDEV_A_DEV_XDP_FEATURES: attribute with the XDP features.
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
/// NETDEV_XDP_ACT_NDO_XMIT: feature bit of a device that accepts redirected frames.
const NETDEV_XDP_ACT_NDO_XMIT: u64 = 4;
/// Size of `struct genlmsghdr` in bytes.
const GENL_HEADER_SIZE: usize = 4;

/// Returns true if an interface of this thread's namespace accepts frames redirected by XDP
/// programs.
///
/// Fails with ENOENT if the kernel does not report features.
pub fn accepts_xdp_frames(index: u32) -> Result<bool> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(rustix::net::netlink::GENERIC),
    );
    let socket = socket.context("socket", "generic netlink")?;
    let answer = query_attributes(
        &socket,
        GENL_ID_CTRL,
        CTRL_CMD_GETFAMILY,
        (CTRL_ATTR_FAMILY_NAME, b"netdev\0"),
        "family netdev",
    )?;
    let family = find_attribute(&answer, CTRL_ATTR_FAMILY_ID).and_then(|value| array_at(value, 0));
    let family =
        family.map(u16::from_ne_bytes).ok_or_else(|| no_features_error("family netdev"))?;
    let target = format!("interface number {index}");
    let answer = query_attributes(
        &socket,
        family,
        NETDEV_CMD_DEV_GET,
        (NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes()),
        &target,
    )?;
    let features =
        find_attribute(&answer, NETDEV_A_DEV_XDP_FEATURES).and_then(|value| array_at(value, 0));
    let features = features.map(u64::from_ne_bytes).ok_or_else(|| no_features_error(&target))?;
    Ok(features & NETDEV_XDP_ACT_NDO_XMIT != 0)
}

fn no_features_error(target: &str) -> Error {
    Error::new(NETLINK_CALL, target.to_owned(), libc::ENOENT)
}

fn find_attribute(attributes_of: &[u8], wanted: u16) -> Option<&[u8]> {
    parse_attributes(attributes_of).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Sends one generic netlink request to `family` and returns the attributes of the reply.
fn query_attributes(
    socket: &OwnedFd,
    family: u16,
    command: u8,
    (kind, value): (u16, &[u8]),
    target: &str,
) -> Result<Vec<u8>> {
    let body = [&[command, 1, 0, 0], &encode_attribute(kind, value)[..]].concat();
    let mut answer = Vec::new();
    exchange_request(socket, &encode_message(family, NLM_F_REQUEST, 0, &body), target, |bytes| {
        answer = bytes.to_vec();
        true
    })?;
    let (kind, _, _, body, _) = split_message(&answer).ok_or_else(|| no_features_error(target))?;
    if kind == NLMSG_ERROR {
        let code = array_at(body, 0).map_or(0, i32::from_ne_bytes);
        return Err(Error::new(NETLINK_CALL, target.to_owned(), code.wrapping_neg()));
    }
    Ok(body.get(GENL_HEADER_SIZE..).unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::RouteSocket;

    #[test]
    fn loopback_accepts_no_redirected_frames() {
        let links = RouteSocket::open().unwrap();
        let lo = links
            .list_interfaces()
            .unwrap()
            .into_iter()
            .find(|one| one.flags.is_loopback())
            .unwrap();
        match accepts_xdp_frames(lo.index) {
            Ok(takes) => assert!(!takes),
            // Linux before 6.3.
            Err(error) => assert_eq!(error.errno, libc::ENOENT, "{error}"),
        }
        assert!(accepts_xdp_frames(u32::MAX >> 1).is_err());
    }
}
