//! Tests against Zeek's `conn.log` baselines: bytes, missed bytes, history and packets of every TCP
//! connection.
//!
//! Fields of `conn.log` and their counterparts in `tcp`:
//!
//! | Zeek | ours |
//! |---|---|
//! | `orig_bytes`, `resp_bytes` | data and holes of the client's, the server's side |
//! | `missed_bytes` | holes of both |
//! | `S` or `h`, `h` in `history` | the client's, the server's side begins (`Flags::FIRST`) |
//! | `D`, `d` | the side has data |
//! | `G`, `g` | the side has holes |
//! | `^` | Zeek swapped client and server: our client is the same side as Zeek's |
//! | `orig_pkts`, `resp_pkts` | not known to `tcp`: counted by flow behind `ip` |
//!
//! The other letters of the history give the frequency of an event (`A`, `T`, `W`, `Q`), or the
//! flag that ended a side (`F`, `R`), whereas `tcp` reports only the end. Bytes that Zeek does not
//! state (`-`) are not compared.

use crate::collect::{COLLECT_FILTERS, run_and_collect};
use crate::request::PlannedRequest;
use crate::streams::{Stream, group_into_streams};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use wire::flow::Flow;

/// Tests of Zeek that are excluded from the comparison, each with the reason.
const EXCLUDED_TESTS: &[(&str, &str)] = &[
    ("core.cisco-fabric-path", "Cisco FabricPath around the frames is not taken off"),
    ("core.mpls-in-vlan", "MPLS around the packets is not taken off"),
    ("core.pppoe-over-qinq", "PPPoE around the packets is not taken off"),
    ("core.wlanmon", "IEEE 802.11 frames are not taken apart"),
    ("core.erspanII", "ERSPAN around the frames is not taken off"),
    ("core.erspanIII", "ERSPAN around the frames is not taken off"),
];

/// A connection in Zeek's `conn.log`.
struct ZeekConnection {
    ends: [String; 2],
    bytes: [Option<u64>; 2],
    missed: u64,
    history: String,
    packets: [u64; 2],
}

/// Compares generated connections with the expected contents of Zeek's `conn.log`: the number of
/// connections, the directions whose beginning was captured, and the missing bytes of each
/// direction.
#[test]
fn connections_start_and_gaps_match_the_capture() {
    for (name, connections, begun, missing) in [
        ("reset", 1, [true, true], [0, 0]),
        ("midway", 1, [false, false], [0, 0]),
        ("one-side", 1, [true, true], [0, 0]),
        ("gap", 1, [true, true], [0, 1_440]),
        ("first-missing", 1, [true, true], [0, 1_440]),
        ("gap-unacknowledged", 1, [true, true], [0, 1_440]),
        ("same-ports-again", 2, [true, true], [0, 0]),
        ("many-small", 80, [true, true], [0, 0]),
    ] {
        let path = testkit::generated::capture_path(&format!("streams/{name}.pcap"));
        let streams = crate::streams::reassemble_streams(&path, "").expect("a capture");
        assert_eq!(streams.len(), connections, "{name}");
        for stream in streams {
            assert_eq!(stream.has_begun, begun, "{name}");
            assert_eq!(
                [stream.missing_byte_count(0), stream.missing_byte_count(1)],
                missing,
                "{name}"
            );
        }
    }
}

#[test]
fn corpus_connections_equal_those_of_zeek() {
    let Some(cases) = testkit::case_directory() else { return };
    let zeek = cases.join("zeek");
    let (mut judged, mut tunnelled, mut excluded, mut wrong) = (0, 0, Vec::new(), Vec::new());
    for test in zeek_tests(&zeek) {
        let log = std::fs::read_to_string(&test.log).expect("a baseline");
        let lines: Vec<BTreeMap<&str, &str>> = parse_log(&log);
        let outside = |line: &&BTreeMap<&str, &str>| {
            matches!(line.get("tunnel_parents"), None | Some(&"-" | &"(empty)"))
        };
        let tcp: Vec<_> = lines.iter().filter(|line| line.get("proto") == Some(&"tcp")).collect();
        let logged: Vec<ZeekConnection> =
            tcp.iter().copied().filter(outside).map(ZeekConnection::from_log_line).collect();
        tunnelled += tcp.len() - logged.len();
        if let Some((_, why)) = EXCLUDED_TESTS.iter().find(|(name, _)| *name == test.name) {
            excluded.push(format!("{}: {} connections: {why}", test.name, logged.len()));
            continue;
        }
        judged += logged.len();
        wrong.extend(
            differences_from_log(&test, &logged)
                .into_iter()
                .map(|why| format!("{}: {why}", test.name)),
        );
    }
    for line in excluded.iter().chain(&wrong) {
        println!("{line}");
    }
    println!("{judged} connections judged, {tunnelled} lie in tunnels, {} differ", wrong.len());
    assert!(judged > 0 && wrong.is_empty(), "{wrong:#?}");
}

/// A test of Zeek, with its trace and its log. `checksums` is true if Zeek verifies checksums.
struct ZeekTest {
    name: String,
    trace: std::path::PathBuf,
    log: std::path::PathBuf,
    checksums: bool,
}

fn zeek_tests(zeek: &Path) -> Vec<ZeekTest> {
    let text = std::fs::read_to_string(zeek.join("tests.json")).expect("the list of tests");
    let list: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let list = list.as_array().expect("a list").iter();
    let test = |entry: &serde_json::Value| {
        let name = entry["test"].as_str()?.to_owned();
        let log = zeek.join("Baseline").join(&name).join("conn.log");
        let trace = zeek.join("Traces").join(entry["traces"][0].as_str()?);
        let runs = entry["exec"].as_array()?.iter().filter_map(|line| line.as_str());
        let checksums = !runs.clone().any(|line| line.contains("zeek ") && line.contains(" -C "));
        let capture = trace.extension().is_some_and(|end| end != "gz");
        (log.is_file() && capture).then_some(ZeekTest { name, trace, log, checksums })
    };
    list.filter_map(test).collect()
}

/// Returns the lines of a log as maps from field name to value.
fn parse_log(log: &str) -> Vec<BTreeMap<&str, &str>> {
    let names: Vec<&str> = log
        .lines()
        .find_map(|line| line.strip_prefix("#fields\t"))
        .map(|line| line.split('\t').collect())
        .unwrap_or_default();
    let lines = log.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| names.iter().copied().zip(line.split('\t')).collect()).collect()
}

impl ZeekConnection {
    fn from_log_line(line: &BTreeMap<&str, &str>) -> Self {
        let end = |address: &str, port: &str| {
            let address: IpAddr = line[address].parse().expect("an address");
            SocketAddr::new(address, line[port].parse().expect("a port")).to_string()
        };
        let number = |name: &str| line.get(name)?.parse().ok();
        Self {
            ends: [end("id.orig_h", "id.orig_p"), end("id.resp_h", "id.resp_p")],
            bytes: [number("orig_bytes"), number("resp_bytes")],
            missed: number("missed_bytes").unwrap_or(0),
            history: line["history"].to_owned(),
            packets: ["orig_pkts", "resp_pkts"].map(|name| number(name).unwrap_or(0)),
        }
    }
}

fn differences_from_log(test: &ZeekTest, logged: &[ZeekConnection]) -> Vec<String> {
    let replay = format!("replay '{}' | ip", test.trace.display());
    let checksum = if test.checksums { "checksum=yes" } else { "" };
    let run = |rest: &str| {
        let line =
            PlannedRequest::with_filters(format!("{replay} | {rest} | discard"), COLLECT_FILTERS);
        run_and_collect(&line).unwrap_or_else(|why| panic!("{}: {why}", test.name)).0
    };
    let mut streams = group_into_streams(&run(&format!("tcp {checksum} | collect")));
    let frames: Vec<Flow> = run("collect").iter().filter_map(|block| block.flow).collect();
    let mut wrong: Vec<String> =
        logged.iter().flat_map(|line| line.differences_from(&mut streams)).collect();
    // Zeek may split a connection into several, so packets are counted by endpoints.
    let mut packets: BTreeMap<[&str; 2], u64> = BTreeMap::new();
    for line in logged {
        for side in [0, 1] {
            let ends = [line.ends[side].as_str(), line.ends[1 - side].as_str()];
            *packets.entry(ends).or_default() += line.packets[side];
        }
    }
    for (ends, number) in packets {
        let ours = frames.iter().filter(|flow| has_endpoints(flow, ends)).count() as u64;
        if ours != number {
            wrong.push(format!("{ends:?}: packets {ours}, zeek {number}"));
        }
    }
    wrong
}

fn has_endpoints(flow: &Flow, ends: [&str; 2]) -> bool {
    let Some(ports) = flow.ports.filter(|_| flow.protocol == 6) else { return false };
    SocketAddr::new(flow.source, ports.source).to_string() == ends[0]
        && SocketAddr::new(flow.target, ports.target).to_string() == ends[1]
}

impl ZeekConnection {
    /// Returns the differences between this connection of Zeek and a stream of ours: the first in
    /// `streams` with the same endpoints. Removes this stream, so that the next connection with
    /// these endpoints is compared with the next stream.
    fn differences_from(&self, streams: &mut Vec<Stream>) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut differ = |what: &str, ours: u64, theirs: u64| {
            if ours != theirs {
                let [one, other] = &self.ends;
                wrong.push(format!("{one} {other} {}: {what} {ours}, zeek {theirs}", self.history));
            }
        };
        let at = streams.iter().position(|stream| stream.ends == self.ends);
        let stream = at.map(|at| streams.remove(at)).unwrap_or_default();
        for (side, letters) in ["SDG", "hdg"].iter().enumerate() {
            let missing = stream.missing_byte_count(side);
            let data = stream.bytes(side).len() as u64;
            if let Some(bytes) = self.bytes[side] {
                differ("bytes", data + missing, bytes);
            }
            let has = |letter: usize| u64::from(self.history.contains(&letters[letter..=letter]));
            // A SYN/ACK determines where both sides begin.
            let begun =
                if side == 0 { has(0) | u64::from(self.history.contains('h')) } else { has(0) };
            if data + missing > 0 {
                differ("begun", u64::from(stream.has_begun[side]), begun);
            }
            differ("data", u64::from(data > 0), has(1));
            differ("gaps", u64::from(missing > 0), has(2));
        }
        differ(
            "missed bytes",
            stream.missing_byte_count(0) + stream.missing_byte_count(1),
            self.missed,
        );
        wrong
    }
}
