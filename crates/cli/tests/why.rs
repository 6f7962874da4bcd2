//! Tests of `streamline why`, which traces a flow. (Capability V12.)

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use serde_json::Value;
use testkit::packet::{Frame, TcpHeader};
use testkit::traffic::Capture;
use testkit::wait_until;

/// Returns the nodes in the JSON output of `why`.
fn node_fates(folder: &Folder, words: &[&str]) -> Vec<Value> {
    let ran = folder.run(&[&["why", "--json"], words].concat());
    assert_eq!(ran.status, Some(0), "{ran:?}");
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["version"], 1);
    value["nodes"].as_array().unwrap().clone()
}

#[test]
fn v12_trace_does_not_change_published_state() {
    let folder = Folder::new();
    let name = format!("why-{}", std::process::id());
    let line = format!("count state={name}");
    let _path = folder.spawn_without_output(&["run", "-q", &format!("generate rate=100 | {line}")]);
    wait_until("the state is published", || folder.run(&["state", &name]).status == Some(0));
    let nodes = node_fates(&folder, &["udp", "examples/web.pcap", &line]);
    assert_eq!(nodes[1]["filter"], "count");
    assert_eq!(folder.run(&["state", &name]).status, Some(0), "the path still publishes it");
}

fn json_number(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn v12_trace_of_one_connection_ignores_others() {
    let folder = Folder::new();
    let line = "tcp | http |get files got/ per=message";
    let whole = "replay examples/web.pcap | tcp | http |get files got/ per=message";
    let made = folder.run(&["run", "--record=r.pcapng", whole]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let flow = folder.run(&["replay examples/web.pcap | bpf \"tcp port 80\" | print", "-c1"]);
    let words: Vec<&str> = flow.out.split_whitespace().collect();
    let at = words.iter().position(|word| *word == ">").unwrap();
    let ends = (words[at - 1], words[at + 1].trim_end_matches(':'));
    let flow = format!("tcp {} {}", ends.0, ends.1);
    let expression = {
        let end = |text: &str| {
            let (host, port) = text.rsplit_once(':').unwrap();
            format!("host {host} and port {port}")
        };
        format!("tcp and {} and {}", end(ends.0), end(ends.1))
    };
    // The reference is a run with the same expression as a filter.
    let text = format!("replay examples/web.pcap | bpf \"{expression}\" | print");
    let packets = folder.run(&[&*text, "-q"]).out.lines().count() as u64;
    assert!(packets > 5, "{text}");
    let before = std::fs::read_dir(folder.path().join("got")).unwrap().count();
    for words in [&[&*flow, "examples/web.pcap", line][..], &[&flow, "r.pcapng"]] {
        let nodes = node_fates(&folder, words);
        let names: Vec<_> = nodes.iter().map(|node| node["filter"].as_str().unwrap()).collect();
        assert_eq!(names, ["replay", "tcp", "http", "files"]);
        assert_eq!(json_number(&nodes[0]["answered"]["yes"]), packets);
        assert_eq!(nodes[0]["packets"].as_array().unwrap().len() as u64, packets);
        let tcp = &nodes[1];
        assert_eq!(json_number(&tcp["blocks"]), packets);
        let left: u64 = tcp["answered"].as_object().unwrap().values().map(json_number).sum();
        let back = json_number(&tcp["released"]) + json_number(&tcp["made"]);
        let stayed = json_number(&tcp["consumed"]) + json_number(&tcp["held"]);
        assert_eq!(packets + back, left + stayed, "{tcp}");
        assert!(json_number(&nodes[3]["blocks"]) > 0);
        assert!(json_number(&nodes[2]["answered"]["get"]) >= json_number(&nodes[3]["blocks"]));
    }
    let after = std::fs::read_dir(folder.path().join("got")).unwrap().count();
    assert_eq!(before, after, "nothing is written");
}

#[test]
fn v12_trace_has_reasons_for_drops_and_waits() {
    let folder = Folder::new();
    let nodes = node_fates(&folder, &["port 53", "examples/web.pcap", "tcp | discard"]);
    let (source, tcp) = (&nodes[0], &nodes[1]);
    let came = json_number(&source["answered"]["yes"]);
    assert_eq!(json_number(&tcp["unanswered"]["not tcp"]), came);
    assert_eq!((json_number(&tcp["unselected"]), nodes.len()), (came, 2));
    let limited =
        node_fates(&folder, &["ip", "examples/web.pcap", "dport | ratelimit 1 | discard"]);
    let names: Vec<_> = limited.iter().map(|node| node["filter"].as_str().unwrap()).collect();
    assert_eq!(names, ["replay", "dport", "ratelimit", "discard"]);
    let rate = &limited[2];
    assert_eq!(
        json_number(&rate["blocks"]),
        json_number(&rate["answered"]["yes"]) + {
            let reasons =
                ["dropped", "unanswered"].map(|what| rate[what].as_object().unwrap().clone());
            reasons.iter().flat_map(|all| all.values()).map(json_number).sum::<u64>()
        }
    );
    let table = folder.run(&["why", "port 53", "examples/web.pcap", "tcp | discard"]);
    assert!(table.out.contains("not answered"), "{}", table.out);
}

#[test]
fn v12_untraceable_run_is_refused_with_a_reason() {
    let folder = Folder::new();
    let none = folder.run(&["why", "tcp port 9", "examples/web.pcap", "count"]);
    assert_eq!(none.status, Some(3), "{none:?}");
    let wrong = folder.run(&["why", "tcp prt 9", "examples/web.pcap", "count"]);
    assert_eq!(wrong.status, Some(2), "{wrong:?}");
    let bare = folder.run(&["why", "tcp", "examples/web.pcap"]);
    assert!(bare.err.contains("is a capture, not a record"), "{}", bare.err);
}

/// Writes a capture with the given frames. Returns the numbers of the packets that `why` finds for
/// a flow at the source.
fn packet_numbers_of_flow(frames: Vec<Vec<u8>>, flow: &str) -> Vec<u64> {
    let folder = Folder::new();
    let file = Capture::from_frames(frames).to_pcap();
    std::fs::write(folder.path().join("c.pcap"), file).unwrap();
    let nodes = node_fates(&folder, &[flow, "c.pcap", "ip | discard"]);
    nodes[0]["packets"].as_array().unwrap().iter().map(json_number).collect()
}

#[test]
fn v12_flow_is_found_behind_tags_and_extension_headers() {
    let segment = TcpHeader { source: 4000, target: 80, ..TcpHeader::default() };
    let tcp = |frame: Frame| frame.tcp(&segment, b"GET");
    let four = || Frame::ethernet().append_vlan_tag(7).ipv4("10.0.0.1", "10.0.0.2");
    let stacked =
        || Frame::ethernet().append_vlan_tag(7).append_vlan_tag(8).ipv4("10.0.0.1", "10.0.0.2");
    let frames = vec![
        tcp(four()),
        tcp(stacked()),
        four().udp(4000, 80, b""),
        tcp(Frame::ethernet().append_vlan_tag(7).ipv4("10.0.0.1", "10.0.0.3")),
    ];
    for flow in ["tcp 10.0.0.1:4000 10.0.0.2:80", "tcp port 80 and host 10.0.0.2"] {
        assert_eq!(packet_numbers_of_flow(frames.clone(), flow), [1, 2], "{flow}");
    }
    let six =
        || Frame::ethernet().ipv6("fd00::1", "fd00::2").ipv6_extension(60, &[0, 1, 4, 0, 0, 0, 0]);
    let frames = vec![
        tcp(six()),
        six().udp(4000, 80, b""),
        tcp(Frame::ethernet().append_vlan_tag(7).ipv6("fd00::1", "fd00::2")),
    ];
    assert_eq!(packet_numbers_of_flow(frames, "tcp [fd00::1]:4000 [fd00::2]:80"), [1, 3]);
}

#[test]
fn v12_flow_contains_all_fragments_in_any_order() {
    for (source, target) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
        let frame = || {
            Frame::ethernet()
                .append_vlan_tag(7)
                .ip(source.parse().unwrap(), target.parse().unwrap())
        };
        let datagram = Frame::raw().ip(source.parse().unwrap(), target.parse().unwrap());
        let head = if source.contains(':') { 40 } else { 20 };
        let data = datagram.udp(4000, 53, &[7; 40])[head..].to_vec();
        let first = frame().fragment(0, true).ip_payload(17, &data[..24]);
        let last = frame().fragment(24, false).ip_payload(17, &data[24..]);
        let other = Frame::ethernet().ipv4("10.0.0.9", "10.0.0.2").fragment(24, false);
        let other = other.ip_payload(17, &data[24..]);
        let forward = vec![first.clone(), other.clone(), last.clone()];
        assert_eq!(packet_numbers_of_flow(forward, "udp port 53"), [1, 3], "{source}");
        let backward = vec![other, last, first];
        assert_eq!(packet_numbers_of_flow(backward, "udp port 53"), [2, 3], "{source}");
    }
}

#[test]
fn v12_incomplete_input_is_reported() {
    let folder = Folder::new();
    let whole = std::fs::read(folder.path().join("examples/web.pcap")).unwrap();
    std::fs::write(folder.path().join("c.pcap"), &whole[..3000]).unwrap();
    let ran = folder.run(&["why", "--json", "tcp", "c.pcap", "tcp | discard"]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    let reason = value["incomplete"][0].as_str().unwrap();
    assert!(reason.contains("in the middle of record"), "{reason}");

    let line = "generate size=1000 count=3000 | count | discard";
    let made = folder.run(&["run", "--record=r.pcapng", "--record-bytes=1M", line]);
    assert_eq!(made.status, Some(0), "{made:?}");
    let ran = folder.run(&["why", "--json", "len > 0", "r.pcapng"]);
    assert!(ran.err.contains("was full before the run ended"), "{ran:?}");
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(value["incomplete"][0].as_str().unwrap().contains("was full"), "{value}");
    assert_eq!(ran.status, Some(0), "it is as it was written: {ran:?}");

    let record = std::fs::read(folder.path().join("r.pcapng")).unwrap();
    std::fs::write(folder.path().join("cut.pcapng"), &record[..100_000]).unwrap();
    let ran = folder.run(&["why", "--json", "len > 0", "cut.pcapng"]);
    assert_eq!(ran.status, Some(1), "{ran:?}");
    assert!(ran.err.contains("cut.pcapng is truncated at byte"), "{ran:?}");
    let ran = folder.run(&["why", "--json", "tcp", "examples/web.pcap", "tcp | discard"]);
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value["incomplete"].as_array().map(Vec::len), Some(0));
}
