//! Device counters and packet sockets of a network namespace, read from `/proc`.
//!
//! The files in `/proc/thread-self/net` describe the network namespace of the calling thread.

use super::{Namespace, wait_until};
use std::fs;

/// The counters of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceCounters {
    /// Number of frames that the device has received.
    pub received: u64,
    /// Frames dropped by the device on reception.
    pub receive_dropped: u64,
    /// Frames sent.
    pub sent: u64,
    /// Number of frames that the device has dropped on transmission.
    pub send_dropped: u64,
}

/// Returns the counters of a device, or `None` if no device has this name.
pub fn device_counters(space: &Namespace, device: &str) -> Option<DeviceCounters> {
    parse_counters(&space.run_in_network_namespace(|| read_net_file("dev")), device)
}

/// Waits until a device has counted at least `frames` received frames, including dropped ones, and
/// the receive backlogs of all processors are empty. A frame is counted before it passes the
/// backlog.
///
/// # Panics
/// After `WAIT_TIMEOUT`, or if there is no such device.
#[track_caller]
pub fn wait_until_received(space: &Namespace, device: &str, frames: u64) {
    wait_until(&format!("{device} has received {frames} frames"), || {
        let now = device_counters(space, device).expect("the device is there");
        now.received + now.receive_dropped >= frames
            && parse_backlog(&read_net_file("softnet_stat")) == 0
    });
}

/// Returns the inode numbers of the packet sockets that receive frames in the namespace: the
/// sockets that are active and bound to a protocol.
pub fn packet_socket_inodes(space: &Namespace) -> Vec<u64> {
    parse_packet_socket_inodes(&space.run_in_network_namespace(|| read_net_file("packet")))
}

/// Returns true if a process may be capturing in the namespace: it has a BPF link of any kind, or a
/// packet socket that receives frames in the namespace.
pub fn is_capturing(space: &Namespace, process: u32) -> bool {
    let sockets = packet_socket_inodes(space);
    let names: Vec<String> = sockets.iter().map(|number| format!("socket:[{number}]")).collect();
    let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let targets = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    targets
        .filter_map(|target| target.into_os_string().into_string().ok())
        .any(|target| names.contains(&target) || BPF_LINK_TARGETS.contains(&target.as_str()))
}

/// The targets of symbolic links in `/proc/PID/fd` that identify a BPF link.
const BPF_LINK_TARGETS: [&str; 2] = ["anon_inode:bpf_link", "anon_inode:bpf-link"];

fn read_net_file(name: &str) -> String {
    fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("the kernel has a network")
}

fn parse_counters(text: &str, device: &str) -> Option<DeviceCounters> {
    let line = text.lines().find_map(|line| {
        let (name, rest) = line.split_once(':')?;
        (name.trim() == device).then_some(rest)
    })?;
    // The columns are received bytes, packets, errors, drops and four other counts, followed by the
    // same counts for transmission.
    let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
    let mut number = |skip: usize| numbers.nth(skip).flatten();
    Some(DeviceCounters {
        received: number(1)?,
        receive_dropped: number(1)?,
        sent: number(5)?,
        send_dropped: number(1)?,
    })
}

/// Returns the number of frames in the receive backlogs of all processors. `text` is the content of
/// `/proc/net/softnet_stat`.
fn parse_backlog(text: &str) -> u64 {
    // Each line describes one processor. The twelfth column is the length of its backlog, in
    // hexadecimal.
    let of = |line: &str| u64::from_str_radix(line.split_whitespace().nth(11)?, 16).ok();
    text.lines().filter_map(of).sum()
}

fn parse_packet_socket_inodes(text: &str) -> Vec<u64> {
    // The columns are socket, references, type, protocol, device, running, memory, user and inode.
    let running = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, _, _, protocol, _, running, .., inode] = words[..] else { return None };
        (protocol != "0000" && running == "1").then_some(inode)?.parse().ok()
    };
    text.lines().skip(1).filter_map(running).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed_for_the_named_device() {
        let text = "Inter-|   Receive                            |  Transmit\n \
            face |bytes    packets errs drop fifo frame compressed multicast|bytes packets\n    \
            lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  \
            e0:100 20 0 3 0 0 0 0 500 60 0 7 0 0 0 0\n";
        let expected =
            DeviceCounters { received: 20, receive_dropped: 3, sent: 60, send_dropped: 7 };
        assert_eq!(parse_counters(text, "e0"), Some(expected));
        assert_eq!(parse_counters(text, "0"), None);
    }

    #[test]
    fn backlog_sums_the_queues_of_all_processors() {
        let line = |frames: &str| format!("00000001 {}{frames} 00000000\n", "00000000 ".repeat(10));
        assert_eq!(parse_backlog(&(line("0000001f") + &line("00000001"))), 32);
        assert_eq!(parse_backlog("0000001f 00000000 00000000\n"), 0);
    }

    #[test]
    fn socket_without_protocol_is_not_listed() {
        let text = "sk       RefCnt Type Proto  Iface R Rmem   User   Inode\n\
            00000000 3      3    0003   2     1 0      0      54\n\
            00000000 3      3    0000   2     1 0      0      55\n\
            00000000 3      3    0003   2     0 0      0      56\n";
        assert_eq!(parse_packet_socket_inodes(text), [54]);
    }
}
