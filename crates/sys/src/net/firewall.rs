//! Detection of firewall rules. The rules do not apply to packets that a program takes before they
//! reach the network stack.

use super::RouteSocket;
use super::links::encode_message;
use crate::{Error, Result};
use std::fs;

mod nftables {
    /// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETCHAIN`: message type of a query for chains.
    pub(super) const GET_CHAIN: u16 = 10 << 8 | 4;
    /// `NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWCHAIN`: message type of a reply that describes a
    /// chain.
    pub(super) const NEW_CHAIN: u16 = 10 << 8 | 3;
    /// `NLM_F_REQUEST | NLM_F_DUMP`: flags of a query for all chains.
    pub(super) const REQUEST_DUMP: u16 = 0x301;
    /// `NFTA_CHAIN_HOOK`: attribute of a chain through which the network stack passes packets.
    pub(super) const CHAIN_HOOK: u16 = 4;
    /// Mask of the type of an attribute, without the flag bits.
    pub(super) const TYPE_MASK: u16 = 0x3fff;
}

/// Size of `struct nfgenmsg` in bytes.
const NETFILTER_MESSAGE_SIZE: usize = 4;
/// File that lists the iptables tables; missing if the iptables module is not loaded.
const LEGACY_TABLES_FILE: &str = "/proc/self/net/ip_tables_names";

/// Returns true if the calling thread's network namespace has an nftables chain with a hook or any
/// iptables table. Does not read the rules. Needs CAP_NET_ADMIN.
pub fn has_packet_rules() -> Result<bool> {
    if fs::read_to_string(LEGACY_TABLES_FILE).is_ok_and(|tables| !tables.trim().is_empty()) {
        return Ok(true);
    }
    let socket = match RouteSocket::open_netfilter() {
        Ok(socket) => socket,
        // The kernel has no nfnetlink.
        Err(error) if error.errno == libc::EPROTONOSUPPORT => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut found = false;
    let request = |sequence| {
        encode_message(
            nftables::GET_CHAIN,
            nftables::REQUEST_DUMP,
            sequence,
            &[0; NETFILTER_MESSAGE_SIZE],
        )
    };
    let listed = socket.request_dump("the list of nftables chains", request, |kind, body| {
        found |= kind == nftables::NEW_CHAIN && has_hook(body);
    });
    match listed {
        // Without the nftables module, no subsystem answers the request.
        Err(Error { errno: libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT, .. }) => Ok(false),
        listed => listed.map(|()| found),
    }
}

/// Returns true if the chain that this netlink message describes has a hook, through which the
/// network stack passes packets to it.
fn has_hook(body: &[u8]) -> bool {
    let mut rest = body.get(NETFILTER_MESSAGE_SIZE..).unwrap_or_default();
    while let Some((&[a, b, c, d], _)) = rest.split_first_chunk::<4>() {
        let (length, kind) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        if kind & nftables::TYPE_MASK == nftables::CHAIN_HOOK {
            return true;
        }
        let step = usize::from(length).max(4).next_multiple_of(4);
        rest = rest.get(step..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_with_hook_are_recognized() {
        let attribute = |kind: u16, value: &[u8]| {
            let length = (4 + value.len()) as u16;
            let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
            bytes.extend(value);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes
        };
        let plain = [vec![0; 4], attribute(1, b"filter\0"), attribute(3, b"input\0")].concat();
        assert!(!has_hook(&plain));
        let based = [plain, attribute(4 | 0x8000, &[0; 16])].concat();
        assert!(has_hook(&based));
        assert!(!has_hook(&[]));
    }
}
