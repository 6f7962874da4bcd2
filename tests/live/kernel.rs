//! Tests of requests that begin in the kernel. Their output equals the output in threads even if
//! the kernel refuses some filters, the ledger balances across the boundary, existing programs stay
//! attached, and the requests leave nothing behind.
//!
//! Requests whose outputs are compared run on the same frames with `rx` as the plan places it and
//! with `rx@thread0`.

use crate::frame_sending::{capture_length, parse_capture, send_all, write_capture};
use crate::frames::tagged_frames;
use crate::numbered_frames::{
    FRAME_LENGTH, assert_missing_is_reported, frame_number, frame_numbers, numbered_frames,
};
use crate::observer::{Observer, ObserverResult};
use crate::scratch::Scratch;
use crate::shared_program::attached_program_ids as programs;
use engine::build::{RunSettings, build};
use engine::registry::MachineRegistry;
use pipeline::plan::{PlannedEdge, plan};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read as _};
use std::net::UdpSocket;
use std::process::Command;
use sys::bpf::{
    ChainPosition, Link, Program, ProgramChain, ProgramKind, TrafficDirection, XdpMode, tcx_chain,
};
use sys::net::RouteSocket;
use testkit::net::{
    CLIENT, CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER, SERVER_DEVICE, WAIT_TIMEOUT,
    wait_until,
};
use testkit::{Frame, need};

/// Returns a veth pair that carries only the test's traffic, or `None` if programs cannot be
/// loaded.
fn quiet_pair() -> Option<NamespacePair> {
    need::require_bpf()?;
    NamespacePair::new(DevicePairSettings { addresses: false, ..DevicePairSettings::default() })
}

/// Returns frames of many kinds: with and without tags, of several protocols, ports and lengths.
fn frames_of_many_kinds() -> Vec<Vec<u8>> {
    let datagram = |port: u16, length: usize| {
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
        frame.udp(4000, port, &vec![7; length])
    };
    let mut frames = tagged_frames();
    frames.extend((0..300).map(|number| datagram([53, 80, 443][number % 3], number)));
    frames.extend(testkit::web_capture().frames.into_iter().map(|(_, frame)| frame));
    frames
}

/// Sends the same frames to two requests with the same filters `behind` the source. The plan places
/// the source of one request in the kernel; the source of the other is in a thread. Returns both
/// results.
fn run_in_kernel_and_thread(
    pair: &NamespacePair,
    behind: &str,
    frames: &[Vec<u8>],
) -> [ObserverResult; 2] {
    let lines = ["rx", "rx@thread0"].map(|rx| format!("{rx} {SERVER_DEVICE} {behind}"));
    let observers = lines.map(|line| Observer::start(&pair.server, &line));
    send_all(pair, frames);
    let ran = observers.map(Observer::stop);
    ran.iter().for_each(ObserverResult::assert_lossless);
    assert_eq!(space_of_filter(&ran[0], "rx"), "kernel", "{behind}: {}", ran[0].err);
    assert_eq!(space_of_filter(&ran[1], "rx"), "thread0", "{behind}");
    ran
}

fn filter_entry<'r>(ran: &'r ObserverResult, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn space_of_filter<'r>(ran: &'r ObserverResult, name: &str) -> &'r str {
    filter_entry(ran, name)["space"].as_str().expect("a space")
}

/// Returns the counters in the report of a filter.
fn report_counters(ran: &ObserverResult, name: &str) -> BTreeMap<String, u64> {
    let rows = filter_entry(ran, name)["report"].as_array().cloned().unwrap_or_default();
    let row = |row: &Value| {
        (row["what"].as_str().expect("a name").to_owned(), row["value"].as_u64().expect("a number"))
    };
    rows.iter().map(row).collect()
}

/// Returns the block counts of each filter: received, passed, of a class that no arc selected, and
/// without a class.
fn block_counts(ran: &ObserverResult, names: &[&str]) -> Vec<Value> {
    let one = |name: &&str| {
        let filter = filter_entry(ran, name);
        ["taken", "passed", "unselected", "unanswered"].map(|what| filter[what].clone()).to_vec()
    };
    names.iter().flat_map(one).collect()
}

#[test]
fn k1_kernel_neighbors_form_one_program_with_equal_counts() {
    let Some(pair) = quiet_pair() else { return };
    let lines: [(&str, &[&str]); 6] = [
        ("| count", &["rx", "count"]),
        ("| ip | udp | dport |53 count", &["rx", "ip", "udp", "dport", "count"]),
        ("| ip | tcp | count", &["rx"]),
        ("| bpf \"udp port 443\" | count", &["count"]),
        ("| sample 3 | hist length", &["rx", "sample", "hist"]),
        ("| eth | ip |all hist length", &["rx", "eth", "ip", "hist"]),
    ];
    let frames = frames_of_many_kinds();
    for (line, names) in lines {
        let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
        assert_eq!(block_counts(&inside, names), block_counts(&outside, names), "{line}");
        for last in ["count", "hist"].iter().filter(|last| line.contains(**last)) {
            let counters = report_counters(&inside, last);
            assert!(counters["blocks"] > 0, "{line}: {counters:?}");
            assert_eq!(counters, report_counters(&outside, last), "{line}");
        }
        assert_eq!(inside.source().given, frames.len() as u64, "{line}");
    }
}

#[test]
fn j1_program_and_packet_socket_deliver_the_same_frames() {
    let Some(pair) = quiet_pair() else { return };
    let Some(_) = need::require_command("tcpdump") else { return };
    let frames = frames_of_many_kinds();
    for line in ["udp port 53", "tcp", "vlan", "len > 100"] {
        let [inside, outside] =
            run_in_kernel_and_thread(&pair, &format!("| bpf \"{line}\" | pcap seen.pcap"), &frames);
        let received = inside.frames("seen.pcap");
        assert!(received == outside.frames("seen.pcap"), "{line}");
        let scratch = Scratch::new();
        let (all, some) = (write_capture(&scratch, "all.pcap", &frames), scratch.path("some.pcap"));
        let mut judge = Command::new("tcpdump");
        judge.arg("-r").arg(all).arg("-w").arg(&some).arg(line);
        assert!(judge.status().expect("tcpdump").success(), "{line}");
        let judged = parse_capture(&fs::read(&some).expect("a capture"));
        assert!(
            !received.is_empty() && received == judged,
            "{line}: {} of {}",
            received.len(),
            judged.len()
        );
    }
}

/// Runs a chain with more filters than one program holds. Asserts that the chain is compiled to
/// several programs connected by tail calls, and that its results equal those in a thread.
#[test]
fn k1_chain_of_any_length_runs_in_the_kernel() {
    let Some(pair) = quiet_pair() else { return };
    let frames = frames_of_many_kinds();
    let ports = |from: usize| (from..from + 12).map(|port| format!("port {port}"));
    let no = |from| format!("bpf \"not ({})\"", Vec::from_iter(ports(from)).join(" or "));
    let chain: Vec<String> = (0..24).map(|number| no(2000 + 12 * number)).collect();
    let line = format!("| {} | bpf \"udp port 53\" | pcap seen.pcap", chain.join(" | "));
    // Only programs with tail calls have a map of programs.
    let observer = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} {line}"));
    assert!(observer.has_map(3), "it is several programs");
    observer.stop().assert_lossless();
    let [inside, outside] = run_in_kernel_and_thread(&pair, &line, &frames);
    let received = inside.frames("seen.pcap");
    assert!(received.len() >= 100 && received == outside.frames("seen.pcap"), "{}", received.len());
    let filters = inside.ledger["filters"].as_array().expect("filters");
    let named = |filter: &&Value| filter["name"].as_str().is_some_and(|it| it.starts_with("bpf"));
    let spaces = filters.iter().filter(named).map(|filter| &filter["space"]);
    assert_eq!(spaces.filter(|space| *space == "kernel").count(), 25, "{}", inside.err);
}

#[test]
fn j1_branches_share_one_program() {
    let Some(pair) = quiet_pair() else { return };
    let frames = frames_of_many_kinds();
    let line = "| ip | ( |udp pcap udp.pcap + |tcp pcap tcp.pcap + |all pcap all.pcap )";
    let [inside, outside] = run_in_kernel_and_thread(&pair, line, &frames);
    for name in ["udp.pcap", "tcp.pcap", "all.pcap"] {
        let received = inside.frames(name);
        assert!(!received.is_empty() && received == outside.frames(name), "{name}");
    }
}

#[test]
fn v5_refused_filter_runs_in_a_thread_with_a_note() {
    let Some(pair) = quiet_pair() else { return };
    let frames = frames_of_many_kinds();
    let mut counters = Vec::new();
    for (refuses, node, first) in [
        ("nothing", "rx", "kernel"),
        ("loading", "rx", "thread0"),
        ("attaching", "rx", "thread0"),
        ("udp", "udp", "kernel"),
        ("ip", "ip", "kernel"),
    ] {
        let option = format!("--kernel-refuses={refuses}");
        let line = format!("rx {SERVER_DEVICE} | ip | udp | dport |53 count");
        let observer = Observer::start_with_options(&pair.server, &[&option], &line);
        send_all(&pair, &frames);
        let ran = observer.stop();
        ran.assert_lossless();
        assert_eq!(space_of_filter(&ran, "rx"), first, "{refuses}: {}", ran.err);
        let is_reported = ran.err.contains(&format!("`{node}` runs in thread0"));
        assert_eq!(is_reported, refuses != "nothing", "{refuses}: {}", ran.err);
        let refused = ran.ledger["refused"].as_array().expect("an array");
        let named: Vec<_> = refused.iter().map(|one| (&one["filter"], &one["space"])).collect();
        let wanted = (&Value::from(node), &Value::from("thread0"));
        assert_eq!(
            named,
            Vec::from_iter(is_reported.then_some(wanted)),
            "{refuses}: {}",
            ran.ledger
        );
        counters.push(report_counters(&ran, "count"));
    }
    assert!(
        counters[0]["blocks"] > 0 && counters.iter().all(|one| *one == counters[0]),
        "{counters:?}"
    );
}

/// Sends fragments, for which the twin of `ip` returns unsure. Asserts that they are reassembled in
/// the process, and that each is counted once.
#[test]
fn v5_fragments_are_reassembled_after_the_kernel() {
    let Some(()) = need::require_bpf() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let lines = ["rx", "rx@thread0"].map(|rx| format!("{rx} {SERVER_DEVICE} | ip |udp count"));
    let near =
        pair.client.run_in_network_namespace(|| UdpSocket::bind((CLIENT, 9)).expect("a socket"));
    let far =
        pair.server.run_in_network_namespace(|| UdpSocket::bind((SERVER, 9)).expect("a socket"));
    far.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a time");
    let observers = lines.map(|line| Observer::start(&pair.server, &line));
    let mut bytes = [0; 5000];
    for length in [10, 4000, 100, 2000] {
        near.send_to(&bytes[..length], (SERVER, 9)).expect("it goes");
        assert_eq!(far.recv(&mut bytes).expect("it comes"), length);
    }
    let [inside, outside] = observers.map(Observer::stop);
    for ran in [&inside, &outside] {
        ran.assert_lossless();
        assert_eq!(report_counters(ran, "count")["blocks"], 4, "{}", ran.ledger);
    }
    assert_eq!(report_counters(&inside, "count"), report_counters(&outside, "count"));
    let edges = inside.ledger["edges"].as_array().expect("edges");
    let unsure_frames = edges.iter().find(|edge| edge["kind"] == "ring" && edge["to"] == "ip");
    // The two datagrams have three and two fragments.
    assert_eq!(unsure_frames.expect("an edge")["taken"]["blocks"], 5, "{}", inside.ledger);
}

/// Sends more frames than the reader of a small ring can process. Asserts that the numbers that
/// arrive, and the numbers that the ledger reports as lapped, are together exactly the numbers
/// sent.
#[test]
fn frames_lost_in_a_lapped_ring_are_counted() {
    const FRAMES: u64 = 20_000;
    const FRAME_SIZE: usize = 400;
    let Some(pair) = quiet_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} ring=512KB | pcap -");
    let (observer, out) = Observer::start_piped(&pair.server, &line);
    send_all(&pair, &numbered_frames(0..FRAMES, FRAME_SIZE));
    observer.signal("INT");
    let mut capture = BufReader::new(out);
    capture.read_exact(&mut [0; 24]).expect("a capture begins");
    let (mut record, mut numbers) = (vec![0; 16 + FRAME_SIZE], Vec::new());
    while capture.read_exact(&mut record).is_ok() {
        numbers.push(frame_number(&record[16..]));
    }
    let ran = observer.wait();
    ran.assert_balanced();
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert!(lost > 0, "{}", ran.ledger);
    assert_eq!(numbers.len() as u64 + lost, FRAMES, "{}", ran.ledger);
    let edges = ran.ledger["edges"].as_array().expect("edges");
    let lapped = edges.iter().filter_map(|edge| edge["dropped"]["lapped"]["blocks"].as_u64());
    assert_eq!(lapped.sum::<u64>(), lost, "{}", ran.ledger);
}

/// Stops a reader while its ring is lapped many times. Asserts that frames are then only counted,
/// that the reader receives new frames afterwards, and that the ledger accounts for all frames.
#[test]
fn frames_of_a_stopped_reader_are_counted() {
    const FRAMES: u64 = 12_000;
    const FRAME_SIZE: usize = 1_400;
    let Some(pair) = quiet_pair() else { return };
    // The sender's processor writes the frame: one ring fills.
    let one = sys::process::pin_to_processor(0).is_ok();
    let observer =
        Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} ring=512KB | pcap seen.pcap"));
    observer.signal("STOP");
    observer.wait_until_stopped();
    send_all(&pair, &numbered_frames(0..FRAMES, FRAME_SIZE));
    observer.signal("CONT");
    let (path, mut sent) = (observer.path("seen.pcap"), FRAMES);
    wait_until("it has come back", || {
        send_all(&pair, &numbered_frames(sent..sent + 1, FRAME_SIZE));
        sent += 1;
        fs::metadata(&path).is_ok_and(|file| file.len() >= (16 + FRAME_SIZE) as u64)
    });
    send_all(&pair, &numbered_frames(sent..sent + 100, FRAME_SIZE));
    let ran = observer.stop();
    ran.assert_balanced();
    let numbers = frame_numbers(&ran.frames("seen.pcap"));
    assert!(numbers.is_sorted_by(|one, next| one < next), "each once, in order");
    assert!(numbers.ends_with(&Vec::from_iter(sent..sent + 100)), "all behind its return");
    if one {
        let edges = ran.ledger["edges"].as_array().expect("edges").iter();
        let mut missing = edges.map(|edge| &edge["missing"]["lapped"]);
        let missing = missing.find(|missing| !missing.is_null()).expect("positions");
        assert_eq!(
            assert_missing_is_reported(&numbers, missing, sent + 100).len(),
            1,
            "of one processor"
        );
        assert!(
            numbers.iter().all(|number| *number >= FRAMES),
            "nothing was kept for it: {numbers:?}"
        );
    }
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert_eq!(numbers.len() as u64 + lost, sent + 100, "{}", ran.ledger);
    let edges = ran.ledger["edges"].as_array().expect("edges");
    let lapped = edges.iter().filter_map(|edge| edge["dropped"]["lapped"]["blocks"].as_u64());
    assert_eq!(lapped.sum::<u64>(), lost, "{}", ran.ledger);
}

#[test]
fn program_survives_its_device_going_down_and_up() {
    let Some(pair) = quiet_pair() else { return };
    let line = format!("rx {SERVER_DEVICE} | pcap seen.pcap");
    let mut observer = Observer::start(&pair.server, &line);
    let all = numbered_frames(0..20, FRAME_LENGTH);
    send_all(&pair, &all[..10]);
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} down"));
    pair.server.run_ip(&format!("link set dev {SERVER_DEVICE} up"));
    pair.client.wait_until_up(CLIENT_DEVICE);
    pair.server.wait_until_up(SERVER_DEVICE);
    send_all(&pair, &all[10..]);
    observer.wait_until_file_has_length("seen.pcap", capture_length(&all));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(frame_numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..20));
}

/// Returns the kernel programs attached to the server's device.
fn attached_programs(pair: &NamespacePair, side: TrafficDirection) -> ProgramChain {
    pair.server.run_in_network_namespace(|| tcx_chain(device_index(), side).expect("a chain"))
}

/// Returns the interface index of the server's device in its namespace.
fn device_index() -> u32 {
    RouteSocket::open().expect("links").interface_by_name(SERVER_DEVICE).expect("the device").index
}

#[test]
fn v17_existing_programs_receive_the_same_packets() {
    let Some(pair) = quiet_pair() else { return };
    // TCX_PASS: programs after it do not run. XDP_PASS.
    let program = |kind, answer| {
        let code = [ebpf::insn::Insn::mov(ebpf::insn::R0, answer), ebpf::insn::Insn::exit()];
        Program::load(kind, "foreign", &ebpf::insn::encode(&code)).expect("two instructions")
    };
    let (theirs, express) = (program(ProgramKind::Tc, 0), program(ProgramKind::Xdp, 2));
    let links = pair.server.run_in_network_namespace(|| {
        let tcx = Link::attach_tcx(
            &theirs,
            device_index(),
            TrafficDirection::Ingress,
            ChainPosition::Head,
            None,
        )
        .expect("tcx");
        (tcx, Link::attach_xdp(&express, device_index(), XdpMode::Generic).expect("xdp"))
    });
    let before = attached_programs(&pair, TrafficDirection::Ingress);
    let observer = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | count"));
    let during = attached_programs(&pair, TrafficDirection::Ingress);
    assert_eq!(during.members.len(), 2, "ours stands before theirs");
    assert_eq!(during.members[1..], before.members[..]);
    send_all(&pair, &numbered_frames(0..100, FRAME_LENGTH));
    let ran = observer.stop();
    ran.assert_lossless();
    assert_eq!(report_counters(&ran, "count")["blocks"], 100);
    assert_eq!(attached_programs(&pair, TrafficDirection::Ingress).members, before.members);
    drop(links);
}

#[test]
fn killed_request_leaves_no_program_attached() {
    let Some(pair) = quiet_pair() else { return };
    for end in ["KILL", "INT"] {
        let line = format!("rx {SERVER_DEVICE} | bpf \"udp port 9\" | pcap seen.pcap");
        let observer = Observer::start(&pair.server, &line);
        assert_eq!(attached_programs(&pair, TrafficDirection::Ingress).members.len(), 1);
        send_all(&pair, &numbered_frames(0..10, FRAME_LENGTH));
        observer.signal(end);
        observer.wait();
        wait_until("nothing is attached", || {
            attached_programs(&pair, TrafficDirection::Ingress).members.is_empty()
        });
    }
}

#[test]
fn exit_without_a_ring_is_refused_not_dropped() {
    let Some(pair) = quiet_pair() else { return };
    let text = format!("rx@kernel {SERVER_DEVICE} | udp@kernel | (count@thread0 + drop@thread1)");
    let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    pair.server.run_in_network_namespace(|| {
        let mut plan = plan(graph, &MachineRegistry::Local, &engine::machine::inspect_machine())
            .expect("a plan");
        drop(build(&plan, RunSettings::default()).expect("it can be built"));
        // As if the planner had placed both in one thread.
        let rings = plan.edges.iter_mut().filter_map(|edge| match edge {
            PlannedEdge::Ring(ring) => Some((ring.clone(), edge)),
            _ => None,
        });
        let forgotten = rings.map(|(ring, edge)| *edge = PlannedEdge::Kernel(ring)).count();
        assert_eq!(forgotten, 1, "{:?}", plan.edges);
        let refused = build(&plan, RunSettings::default()).expect_err("a way leads nowhere");
        let message = refused.to_string();
        for part in ["`udp`", "`drop`", "thread0", "no ring leads", "pin both"] {
            assert!(message.contains(part), "{part}: {message}");
        }
    });
    assert!(programs(&pair).is_empty(), "nothing stays");
}
