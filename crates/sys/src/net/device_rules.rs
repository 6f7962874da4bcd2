//! Number of classification rules (ntuple filters) of a network device, queried with the ioctl that
//! ethtool(8) uses. For reports only.

use crate::error::{Error, ErrorContext as _, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::AsRawFd as _;

/// ETHTOOL_GRXCLSRLCNT: command that queries the number of installed rules.
const ETHTOOL_GRXCLSRLCNT: u32 = 0x2e;
/// Size in bytes of `struct ethtool_rxnfc`.
const RXNFC_COMMAND_SIZE: usize = 192;
/// Byte offset of `rule_cnt` in `struct ethtool_rxnfc`.
const RULE_COUNT_OFFSET: usize = 184;

/// `struct ethtool_rxnfc`, as bytes. A query for the number of rules uses only its command and rule
/// count.
#[repr(C, align(8))]
struct RxnfcCommand([u8; RXNFC_COMMAND_SIZE]);

/// `struct ifreq` whose value is a pointer (`ifr_data`).
#[repr(C)]
struct InterfaceRequest {
    name: [u8; libc::IFNAMSIZ],
    data: *mut RxnfcCommand,
    rest: [u8; 16],
}

/// Returns the number of classification rules installed on an interface of this thread's network
/// namespace.
///
/// Fails with EOPNOTSUPP if the driver does not support rules.
pub fn classification_rule_count(interface: &str) -> Result<u32> {
    let socket = rustix::net::socket_with(
        AddressFamily::INET,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = socket.context("socket", "ethtool")?;
    let mut command = RxnfcCommand([0; RXNFC_COMMAND_SIZE]);
    command.0[..4].copy_from_slice(&ETHTOOL_GRXCLSRLCNT.to_ne_bytes());
    let mut request =
        InterfaceRequest { name: [0; libc::IFNAMSIZ], data: &raw mut command, rest: [0; 16] };
    let name = interface.bytes().take(libc::IFNAMSIZ - 1);
    request.name.iter_mut().zip(name).for_each(|(to, from)| *to = from);
    let request: *mut InterfaceRequest = &raw mut request;
    // SAFETY: SIOCETHTOOL (netdevice(7)) reads a `struct ifreq` of at most 40 bytes, which is live,
    // and reads and writes a `struct ethtool_rxnfc` of 192 bytes at its address, which is live and
    // of that size.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, request) };
    if result < 0 {
        return Err(Error::last_os_error("ethtool", format!("rules of {interface}")));
    }
    let rules = command.0[RULE_COUNT_OFFSET..].first_chunk().copied();
    Ok(rules.map_or(0, u32::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_no_rules_and_unknown_devices_are_named() {
        let refused = classification_rule_count("lo").expect_err("lo classifies nothing");
        assert_eq!(refused.errno, libc::EOPNOTSUPP, "{refused}");
        let refused = classification_rule_count("no-such-device").expect_err("it is not there");
        assert_eq!(refused.errno, libc::ENODEV, "{refused}");
        assert_eq!((size_of::<RxnfcCommand>(), size_of::<InterfaceRequest>()), (192, 40));
    }
}
