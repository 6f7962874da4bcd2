//! Test that moves a filter with open connections into a separate process and back while frames
//! arrive over a virtual cable. No connection loses its state.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::{ChildGuard, CommandResult, Folder};
use serde_json::Value;
use std::process::{Command, Stdio};
use testkit::net::{CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE};
use testkit::traffic::Capture;
use testkit::{Frame, TcpHeader, wait_until};

/// Number of connections that are open when the filter moves.
const CONNECTIONS: u32 = 1000;

/// Returns the frames of one half of every connection: the handshake and the first half of a
/// message, or the second half of the message.
fn connection_half(first: bool) -> Capture {
    let frame = |connection: u32, sequence: u32, flags: u8, payload: &str| {
        let source = format!("10.0.{}.{}", connection >> 8, connection & 0xff);
        let ports = TcpHeader { source: 4000, target: 80, window: 8192, ..TcpHeader::default() };
        let segment = TcpHeader { sequence, flags, ..ports };
        Frame::ethernet().ipv4(&source, "192.0.2.1").tcp(&segment, payload.as_bytes())
    };
    let of = |connection: u32| {
        let message = format!("GET /{connection} HTTP/1.1\r\nHost: somewhere\r\n\r\n");
        let (first_part, second_part) = message.split_at(20);
        match first {
            true => vec![frame(connection, 6, 0x02, ""), frame(connection, 7, 0x10, first_part)],
            false => vec![frame(connection, 27, 0x10, second_part)],
        }
    };
    Capture::from_frames((0..CONNECTIONS).flat_map(of))
}

#[test]
fn v18_connections_survive_a_move_of_their_filter() {
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let folder = Folder::new();
    let place = folder.path().join("daemon");
    let inside = |words: &[&str]| {
        let mut command = pair.server.command(env!("CARGO_BIN_EXE_streamline"));
        command.args(words).current_dir(folder.path()).env("STREAMLINE_DAEMON", &place);
        command
    };
    let ran = |words: &[&str]| CommandResult::from(inside(words).output().unwrap());
    let begin = |mut command: Command| {
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ChildGuard(silent.spawn().unwrap())
    };
    let _daemon = begin(inside(&["daemon", "--socket", place.to_str().unwrap()]));
    wait_until("a daemon answers", || ran(&["ps"]).status == Some(0));
    let line = format!("rx {SERVER_DEVICE} ring=16MB | tcp gap=10m | http | json");
    let mut run = inside(&["run", "--json", "--report=report", "--as=web", &line]);
    let out = std::fs::File::create(folder.path().join("out")).unwrap();
    let run = run.stdout(out).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("it is listed", || ran(&["ps"]).out.contains("web"));
    let send = |line: String| {
        let mut command = pair.client.command(env!("CARGO_BIN_EXE_streamline"));
        command.args(["run", "-q", "--embedded", &line]).current_dir(folder.path());
        command
    };
    for (name, first) in [("begin.pcap", true), ("rest.pcap", false)] {
        std::fs::write(folder.path().join(name), connection_half(first).to_pcap()).unwrap();
    }
    // Returns the number of blocks that the filters with this name have received.
    let taken = |name: &str| -> u64 {
        let picture = ran(&["top", "--once", "--json", "web"]).out;
        let picture: Value = serde_json::from_str(&picture).unwrap_or_default();
        let nodes = picture["nodes"].as_array().cloned().unwrap_or_default();
        let named = nodes.iter().filter(|node| node["name"] == name);
        named.filter_map(|node| node["taken"]["blocks"].as_u64()).sum()
    };
    assert!(send(format!("replay begin.pcap | tx {CLIENT_DEVICE}")).status().unwrap().success());
    wait_until("all connections are open", || taken("tcp") >= u64::from(2 * CONNECTIONS));
    let others = begin(send(format!("generate rate=2000 | tx {CLIENT_DEVICE}")));
    let edits = ["move tcp sandbox", "insert eth before tcp", "upgrade tcp", "move tcp process"];
    for words in edits {
        let before = taken("tcp");
        wait_until("frames come", || taken("tcp") > before);
        let words: Vec<&str> = ["set", "web"].into_iter().chain(words.split(' ')).collect();
        let set = ran(&words);
        assert_eq!(set.status, Some(0), "{words:?}: {}", set.err);
        assert!(set.out.contains("lost 0, duplicated 0, reordered 0"), "{words:?}: {}", set.out);
    }
    drop(others);
    assert!(send(format!("replay rest.pcap | tx {CLIENT_DEVICE}")).status().unwrap().success());
    wait_until("all messages are whole", || taken("json") >= u64::from(CONNECTIONS));
    assert_eq!(ran(&["stop", "web"]).status, Some(0));
    let ended = CommandResult::from(run.wait_with_output().unwrap());
    assert_eq!(ended.status, Some(0), "{}", ended.err);
    let report: Value = serde_json::from_str(&folder.read("report")).unwrap();
    assert_eq!((&report["balanced"], &report["lost"]), (&true.into(), &0.into()), "{report}");
    let out = folder.read("out");
    let targets = out.lines().filter_map(|line| {
        let message: Value = serde_json::from_str(line).unwrap();
        Some(message["url"].as_str()?.trim_start_matches('/').parse::<u32>().unwrap())
    });
    let mut targets: Vec<u32> = targets.collect();
    targets.sort_unstable();
    assert!(targets.into_iter().eq(0..CONNECTIONS), "each message once, and whole");
}
