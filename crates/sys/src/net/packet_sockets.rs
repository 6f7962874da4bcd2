//! Packet sockets of a network namespace, from `/proc/net/packet`. For reports only.

use crate::error::{ErrorContext as _, Result};
use std::fs;

/// A packet socket (packet(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketSocketInfo {
    /// Inode of the socket, with which [`crate::holders`] finds the processes that hold the socket.
    pub inode: u64,
    /// Index of the bound interface; 0 for all interfaces.
    pub interface: u32,
    /// Socket type: 3 for frames with the link-layer header, 2 for frames without.
    pub kind: u32,
    /// Protocol of the frames that the socket receives (ETH_P_*). 3 means all protocols; with
    /// protocol 0 the socket receives nothing.
    pub protocol: u16,
    /// User id of the socket's creator.
    pub uid: u32,
}

/// Lists the packet sockets of this thread's network namespace.
pub fn packet_sockets() -> Result<Vec<PacketSocketInfo>> {
    const PACKET_SOCKETS_FILE: &str = "/proc/thread-self/net/packet";
    let text = fs::read_to_string(PACKET_SOCKETS_FILE);
    let text = text
        .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO))
        .context("read", PACKET_SOCKETS_FILE)?;
    Ok(text.lines().skip(1).filter_map(parse_socket).collect())
}

/// Parses a line of `/proc/net/packet`, with the fields address, references, type, protocol
/// (hexadecimal), interface, running, memory, user and inode. Returns `None` for any other line.
fn parse_socket(line: &str) -> Option<PacketSocketInfo> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, _, kind, protocol, interface, _, _, uid, inode, ..] = words[..] else { return None };
    Some(PacketSocketInfo {
        inode: inode.parse().ok()?,
        interface: interface.parse().ok()?,
        kind: kind.parse().ok()?,
        protocol: u16::from_str_radix(protocol, 16).ok()?,
        uid: uid.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_line_is_parsed_and_other_lines_are_skipped() {
        let line = "ffff8881055c8800 3      3    0003   2     1 0      1000   25733";
        let found = parse_socket(line).unwrap();
        let expected =
            PacketSocketInfo { inode: 25733, interface: 2, kind: 3, protocol: 3, uid: 1000 };
        assert_eq!(found, expected);
        for other in ["", "sk RefCnt", "a 3 3 zz 2 1 0 0 5", "a 3 3 0003 2 1 0 0"] {
            assert_eq!(parse_socket(other), None, "{other}");
        }
    }
}
