//! Tests of requests that redirect frames and filter them in the kernel: dropped frames end in the
//! driver, all other frames arrive through AF_XDP, and the host receives no frame. The results
//! equal the results of the same request in a thread. [FEATURES G1, I6, J1, K1, V5; CONTRACT 2, 3,
//! 18]

use crate::frame_sending::{capture_length, send_all, send_frames};
use crate::frames::tagged_frames;
use crate::long_requests;
use crate::numbered_frames::{frame_number, frame_numbers, numbered_frames};
use crate::observer::{Observer, ObserverResult, has_xdp_program};
use serde_json::Value;
use sys::bpf::{ChainPosition, Link, Program, ProgramKind, TrafficDirection};
use sys::net::RouteSocket;
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE, device_counters, wait_until,
};
use testkit::{Frame, need};

/// Returns a veth pair that carries only the test's traffic, or `None` if XDP programs cannot be
/// attached.
fn quiet_pair(mtu: u32) -> Option<NamespacePair> {
    need::require_bpf()?;
    let pair = NamespacePair::new(DevicePairSettings { mtu, addresses: false, queues: 1 })?;
    let probe = pair.server.run_in_network_namespace(sys::probe::probe_xdp_socket);
    probe.or_else(|why| need::report_skip(&why.to_string()).ok_or(why)).ok()?;
    Some(pair)
}

/// Returns the number of frames that the server's device received or dropped.
fn frames_received(pair: &NamespacePair) -> u64 {
    let counters = device_counters(&pair.server, SERVER_DEVICE).expect("the device is there");
    counters.received + counters.receive_dropped
}

/// Sends frames in groups that fit into the AF_XDP buffers even if nothing is read.
fn send_in_groups(pair: &NamespacePair, frames: &[Vec<u8>]) {
    frames.chunks(250).for_each(|bunch| send_all(pair, bunch));
}

/// Runs a redirecting request with these options over frames. Asserts that its XDP program is
/// detached at the end.
fn run_redirecting(
    pair: &NamespacePair,
    options: &[&str],
    line: &str,
    frames: &[Vec<u8>],
) -> ObserverResult {
    let observer =
        Observer::start_redirecting_with_options(&pair.server, SERVER_DEVICE, options, line);
    send_in_groups(pair, frames);
    let ran = observer.stop();
    assert!(!has_xdp_program(&pair.server, SERVER_DEVICE), "nothing is left there");
    ran
}

/// Runs a redirecting request over the same frames twice: as the plan places it, and in a thread.
fn run_in_kernel_and_thread(
    pair: &NamespacePair,
    behind: &str,
    frames: &[Vec<u8>],
) -> [ObserverResult; 2] {
    [("rx", "kernel"), ("rx@thread0", "thread0")].map(|(rx, place)| {
        let ran =
            run_redirecting(pair, &[], &format!("{rx} {SERVER_DEVICE} take {behind}"), frames);
        ran.assert_balanced();
        assert_eq!(filter_entry(&ran, "rx")["space"], place, "{behind}: {}", ran.err);
        let source = ran.source();
        assert_eq!(source.observed, Some(frames.len() as u64), "{behind}: {source:?}");
        ran
    })
}

fn filter_entry<'r>(ran: &'r ObserverResult, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Returns the block counts of each filter: received, passed, of a class that no arc selected,
/// without a class, and dropped.
fn block_counts(ran: &ObserverResult, names: &[&str]) -> Vec<Value> {
    let what = ["taken", "passed", "unselected", "unanswered", "dropped"];
    let one = |name: &&str| what.map(|what| filter_entry(ran, name)[what].clone());
    names.iter().flat_map(one).collect()
}

/// Returns `count` numbered datagrams, to three ports in rotation.
fn numbered_datagrams(count: u64) -> Vec<Vec<u8>> {
    let one = |number: u64| {
        let port = [53, 80, 443][number as usize % 3];
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
        frame.udp(4000, port, &number.to_be_bytes())
    };
    (0..count).map(one).collect()
}

#[test]
fn i6_frames_dropped_in_the_kernel_do_not_reach_the_process() {
    const FRAMES: u64 = 6_000;
    let Some(pair) = quiet_pair(1500) else { return };
    let frames = numbered_datagrams(FRAMES);
    let host = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap -"));
    let line = "| ip | udp | dport | ( |53 drop + |80 pcap seen.pcap )";
    let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
    for ran in [&inside, &outside] {
        let received = ran.frames("seen.pcap");
        let expected: Vec<u64> = (0..FRAMES).filter(|number| number % 3 == 1).collect();
        assert_eq!(frame_numbers(&received), expected, "each once, in order");
        assert!(
            received.iter().all(|frame| *frame == frames[frame_number(frame) as usize]),
            "as it came"
        );
        let dropped = &filter_entry(ran, "drop")["dropped"]["by request"]["blocks"];
        assert_eq!(*dropped, FRAMES / 3, "{}", ran.ledger);
        // Redirected and not selected: the host does not receive it either.
        assert_eq!(
            filter_entry(ran, "dport")["unselected"]["blocks"],
            FRAMES / 3,
            "{}",
            ran.ledger
        );
    }
    let names = ["rx", "ip", "udp", "dport", "drop"];
    assert_eq!(block_counts(&inside, &names), block_counts(&outside, &names));
    assert_eq!(filter_entry(&inside, "drop")["space"], "kernel");
    let host = host.stop();
    host.assert_lossless();
    assert_eq!(host.source().given, 0, "the host got nothing");
}

#[test]
fn v5_refused_redirect_request_runs_in_a_thread() {
    let Some(pair) = quiet_pair(1500) else { return };
    let frames = numbered_datagrams(300);
    let line = format!("rx {SERVER_DEVICE} take | ip | udp | dport | ( |53 drop + |80 count )");
    let mut counts = Vec::new();
    for (refuses, first) in [
        ("nothing", "kernel"),
        ("loading", "thread0"),
        ("attaching", "thread0"),
        ("udp", "kernel"),
        ("ip", "thread0"),
    ] {
        let ran = run_redirecting(&pair, &[&format!("--kernel-refuses={refuses}")], &line, &frames);
        ran.assert_balanced();
        assert_eq!(filter_entry(&ran, "rx")["space"], first, "{refuses}: {}", ran.err);
        assert_eq!(ran.err.contains("the kernel refuses it"), refuses != "nothing", "{}", ran.err);
        counts.push(block_counts(&ran, &["ip", "udp", "dport", "drop", "count"]));
    }
    assert!(counts.iter().all(|one| *one == counts[0]), "{counts:?}");
}

#[test]
fn j1_frame_with_several_exits_reaches_each() {
    let Some(pair) = quiet_pair(1500) else { return };
    let mut frames = tagged_frames();
    frames.extend(numbered_datagrams(600));
    let line =
        "| ip | ( |udp pcap udp.pcap + |tcp pcap tcp.pcap + |all pcap all.pcap + |udp count )";
    let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
    for name in ["udp.pcap", "tcp.pcap", "all.pcap"] {
        let received = inside.frames(name);
        assert!(received == outside.frames(name), "{name}: {}", received.len());
    }
    assert!(inside.frames("all.pcap") == frames);
    assert_eq!(block_counts(&inside, &["ip", "count"]), block_counts(&outside, &["ip", "count"]));
}

#[test]
fn k1_editing_twins_match_their_filters() {
    let Some(pair) = quiet_pair(1500) else { return };
    let mut frames = tagged_frames();
    frames.extend(numbered_datagrams(100));
    frames.extend(testkit::web_capture().frames.into_iter().map(|(_, frame)| frame));
    for line in [
        "rewrite ttl=9",
        "rewrite src=192.0.2.1 dport=99",
        "strip vlan",
        "bpf ip | strip eth",
        "ip | udp | rewrite ttl=3 | dport",
    ] {
        let [inside, outside] =
            run_in_kernel_and_thread(&pair, &format!("| {line} | pcap seen.pcap"), &frames);
        let received = inside.file("seen.pcap");
        assert!(inside.frames("seen.pcap") == outside.frames("seen.pcap"), "{line}");
        assert!(!inside.frames("seen.pcap").is_empty(), "{line}");
        // The link types are also equal.
        assert_eq!(received[20..24], outside.file("seen.pcap")[20..24], "{line}");
        let changes = line.split([' ', '|']).find(|word| ["rewrite", "strip"].contains(word));
        let space = &filter_entry(&inside, changes.expect("one of them"))["space"];
        assert_eq!(*space, "kernel", "{line}: {}", inside.err);
    }
}

/// Runs a request with `strip eth |all`, so that frames with and without a link header share one
/// edge to a thread. Asserts that each frame is interpreted with its own link type.
#[test]
fn k1_frames_on_one_edge_keep_their_link_type() {
    let Some(pair) = quiet_pair(1500) else { return };
    let mut frames = numbered_datagrams(100);
    let mut arp = vec![0xff; 12];
    arp.extend([8, 6]);
    arp.resize(60, 0);
    frames.extend(std::iter::repeat_n(arp, 50));
    frames.extend(numbered_datagrams(100));
    let line = "| eth |all strip eth |all ip@thread0 | udp | count";
    let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
    let names = ["strip", "ip", "udp", "count"];
    assert_eq!(block_counts(&inside, &names), block_counts(&outside, &names));
}

#[test]
fn g1_frames_without_ring_space_are_counted_per_edge() {
    const FRAMES: u64 = 20_000;
    let Some(pair) = quiet_pair(1500) else { return };
    let line = format!("rx {SERVER_DEVICE} take ring=512K | ip |udp pcap seen.pcap");
    let observer = Observer::start_redirecting(&pair.server, SERVER_DEVICE, &line);
    observer.signal("STOP");
    send_frames(&pair.client, CLIENT_DEVICE, &numbered_frames(0..FRAMES, 100));
    wait_until("all have come", || frames_received(&pair) >= FRAMES);
    observer.signal("CONT");
    let ran = observer.stop();
    ran.assert_balanced();
    assert_eq!(filter_entry(&ran, "ip")["space"], "kernel", "{}", ran.err);
    let source = ran.source();
    assert_eq!((source.observed, source.given), (Some(FRAMES), FRAMES), "the program saw all");
    let received = frame_numbers(&ran.frames("seen.pcap"));
    assert_eq!(received, (0..received.len() as u64).collect::<Vec<_>>(), "those that came first");
    let edges = ran.ledger["edges"].as_array().expect("edges");
    let lost = edges.iter().filter_map(|edge| edge["dropped"]["ring"]["blocks"].as_u64());
    assert_eq!(lost.sum::<u64>(), FRAMES - received.len() as u64, "{}", ran.ledger);
    assert!((1..FRAMES).contains(&(received.len() as u64)), "{}", ran.ledger);
}

#[test]
fn g1_multi_buffer_frames_are_matched_and_arrive_whole() {
    let Some(pair) = quiet_pair(9000) else { return };
    let payload = |length: usize| (0..length).map(|at| (at * 7) as u8).collect::<Vec<u8>>();
    let lengths = [46, 3_700, 3_780, 3_800, 4_040, 7_700, 8_900, 1_400];
    let datagram = |(at, length): (usize, &usize)| {
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
        frame.udp(4000, [53, 80][at % 2], &payload(*length))
    };
    let frames: Vec<Vec<u8>> = lengths.iter().cycle().take(404).enumerate().map(datagram).collect();
    let line = "| udp | dport | ( |53 pcap seen.pcap + |80 count )";
    let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
    assert!(inside.frames("seen.pcap") == outside.frames("seen.pcap"));
    assert_eq!(inside.frames("seen.pcap").len(), 202);
    assert_eq!(block_counts(&inside, &["udp", "dport"]), block_counts(&outside, &["udp", "dport"]));
}

/// Code of a program that pushes a VLAN tag: `bpf_skb_vlan_push(skb, htons(ETH_P_8021Q), 7); return
/// TCX_NEXT`.
const PUSH_TAG_CODE: [[u8; 8]; 5] = [
    [0xb7, 2, 0, 0, 0x81, 0, 0, 0],
    [0xb7, 3, 0, 0, 7, 0, 0, 0],
    [0x85, 0, 0, 0, 18, 0, 0, 0],
    [0xb7, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    [0x95, 0, 0, 0, 0, 0, 0, 0],
];

#[test]
fn g2_frame_with_removed_tag_is_matched_with_its_tag() {
    if sys::bpf::find_kernel_function("bpf_xdp_metadata_rx_vlan_tag").is_none() {
        need::report_skip::<()>("needs drivers that tell of tags (Linux 6.8)");
        return;
    }
    let Some(pair) = quiet_pair(1500) else { return };
    let _push = pair.client.run_in_network_namespace(|| {
        let index = RouteSocket::open().expect("root may ask").interface_by_name(CLIENT_DEVICE);
        let index = index.expect("it is there").index;
        let program =
            Program::load(ProgramKind::Tc, "push", &PUSH_TAG_CODE.concat()).expect("it is right");
        Link::attach_tcx(&program, index, TrafficDirection::Egress, ChainPosition::Head, None)
            .expect("it is there")
    });
    let frames = numbered_datagrams(90);
    let line = "| vlan | ip | udp | dport |53 pcap seen.pcap";
    let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
    let tagged = |frame: &Vec<u8>| [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
    let expected: Vec<Vec<u8>> = frames.iter().step_by(3).map(tagged).collect();
    assert!(inside.frames("seen.pcap") == expected && outside.frames("seen.pcap") == expected);
    let names = ["vlan", "ip", "udp", "dport"];
    assert_eq!(block_counts(&inside, &names), block_counts(&outside, &names));
}

#[test]
fn g7_killed_redirect_leaves_no_program_attached() {
    let Some(pair) = quiet_pair(1500) else { return };
    let line = format!("rx {SERVER_DEVICE} take | udp | count");
    let mut observer = Observer::start_redirecting(&pair.server, SERVER_DEVICE, &line);
    observer.signal("KILL");
    wait_until("it is gone", || !observer.is_running());
    wait_until("nothing is attached", || !has_xdp_program(&pair.server, SERVER_DEVICE));
    let mut host = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | pcap -"));
    let frames = numbered_datagrams(10);
    send_frames(&pair.client, CLIENT_DEVICE, &frames);
    host.wait_until_file_has_length("out", capture_length(&frames));
    assert!(host.stop().frames("out") == frames, "the host gets them again");
}

#[test]
fn kernel_redirect_on_the_default_route_needs_force() {
    let Some(pair) =
        need::require_bpf().and_then(|()| NamespacePair::new(DevicePairSettings::default()))
    else {
        return;
    };
    pair.server.run_ip(&format!("route add default dev {SERVER_DEVICE}"));
    let line = format!("rx {SERVER_DEVICE} take | udp | drop");
    let program = testkit::streamline_program();
    let output = pair.server.command(program).args(["run", &line]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("default route") && stderr.contains("--force"), "{stderr}");
    assert!(!has_xdp_program(&pair.server, SERVER_DEVICE));
    let ran =
        Observer::start_redirecting(&pair.server, SERVER_DEVICE, &format!("--force {line}")).stop();
    ran.assert_balanced();
    assert_eq!(filter_entry(&ran, "rx")["space"], "kernel", "{}", ran.err);
}

/// Runs a redirecting request with 64 filters in the kernel. Each filter may return unsure for a
/// frame. The number of that filter then travels to the process in the frame's headroom.
#[test]
fn v5_redirect_of_64_filters_runs_in_the_kernel() {
    let Some(pair) = quiet_pair(1500) else { return };
    let frames = long_requests::mixed_frames();
    let [inside, outside] = ["rx", "rx@thread0"].map(|rx| {
        let line =
            long_requests::request_with_filters(&format!("{rx} {SERVER_DEVICE} take"), "ip", 64);
        let ran = run_redirecting(&pair, &["--policy=deepest"], &line, &frames);
        ran.assert_balanced();
        ran
    });
    assert_eq!(filter_entry(&inside, "dport")["space"], "kernel", "{}", inside.err);
    long_requests::assert_unsure_exits(&inside, "ip");
    assert_eq!(long_requests::block_counts(&inside), long_requests::block_counts(&outside));
}
