//! Lines that begin in the kernel: the same comes out of them as where everything runs in threads,
//! whatever the kernel refuses; the ledger holds across the border; nobody who is there is thrown
//! out, and nothing stays.
//!
//! Every line is given `rx` as the plan places it and `rx@thread0` beside it, on the same frames.

use crate::frames::tagged;
use crate::numbers::{SHORT, assert_told, number, numbered, numbers};
use crate::observer::{Observer, Ran};
use crate::scratch::Scratch;
use crate::send::{capture, capture_length, frames_of, send_all};
use crate::shared::chain as programs;
use engine::build::{Settings, build};
use engine::catalogue::House;
use pipeline::plan::{PlannedEdge, plan};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufReader, Read as _};
use std::net::UdpSocket;
use std::process::Command;
use sys::bpf::{Anchor, Chain, Link, Program, ProgramKind, Side, XdpMode, tcx_chain};
use sys::net::RouteSocket;
use testkit::net::{CLIENT, CLIENT_DEVICE, Cable, LIMIT, Pair, SERVER, SERVER_DEVICE, until};
use testkit::{Frame, need};

/// A cable over which nobody but the test sends, where programs can be loaded.
fn silent() -> Option<Pair> {
    need::bpf()?;
    Pair::new(Cable { addresses: false, ..Cable::default() })
}

/// Frames of many kinds.
fn frames() -> Vec<Vec<u8>> {
    let datagram = |port: u16, length: usize| {
        let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1");
        frame.udp(4000, port, &vec![7; length])
    };
    let mut frames = tagged();
    frames.extend((0..300).map(|number| datagram([53, 80, 443][number % 3], number)));
    frames.extend(testkit::web().frames.into_iter().map(|(_, frame)| frame));
    frames
}

/// Runs a line over frames with `rx` wherever it is placed, and in a thread.
fn both(pair: &Pair, behind: &str, frames: &[Vec<u8>]) -> [Ran; 2] {
    let lines = ["rx", "rx@thread0"].map(|rx| format!("{rx} {SERVER_DEVICE} {behind}"));
    let observers = lines.map(|line| Observer::start(&pair.server, &line));
    send_all(pair, frames);
    let ran = observers.map(Observer::stop);
    ran.iter().for_each(Ran::assert_whole);
    assert_eq!(space(&ran[0], "rx"), "kernel", "{behind}: {}", ran[0].err);
    assert_eq!(space(&ran[1], "rx"), "thread0", "{behind}");
    ran
}

fn filter<'r>(ran: &'r Ran, name: &str) -> &'r Value {
    let filters = ran.ledger["filters"].as_array().expect("filters");
    filters.iter().find(|filter| filter["name"] == name).unwrap_or_else(|| panic!("no {name}"))
}

fn space<'r>(ran: &'r Ran, name: &str) -> &'r str {
    filter(ran, name)["space"].as_str().expect("a space")
}

/// Returns the report of a filter.
fn report(ran: &Ran, name: &str) -> BTreeMap<String, u64> {
    let rows = filter(ran, name)["report"].as_array().cloned().unwrap_or_default();
    let row = |row: &Value| {
        (row["what"].as_str().expect("a name").to_owned(), row["value"].as_u64().expect("a number"))
    };
    rows.iter().map(row).collect()
}

/// Returns the blocks that filters took, passed and did not answer.
fn flow(ran: &Ran, names: &[&str]) -> Vec<Value> {
    let one = |name: &&str| {
        let filter = filter(ran, name);
        ["taken", "passed", "unselected", "unanswered"].map(|what| filter[what].clone()).to_vec()
    };
    names.iter().flat_map(one).collect()
}

#[test]
fn k1_kernel_neighbors_are_one_program_and_count_as_in_a_thread() {
    let Some(pair) = silent() else { return };
    let lines: [(&str, &[&str]); 6] = [
        ("| count", &["rx", "count"]),
        ("| ip | udp | dport |53 count", &["rx", "ip", "udp", "dport", "count"]),
        ("| ip | tcp | count", &["rx"]),
        ("| bpf \"udp port 443\" | count", &["count"]),
        ("| sample 3 | hist length", &["rx", "sample", "hist"]),
        ("| eth | ip |all hist length", &["rx", "eth", "ip", "hist"]),
    ];
    let frames = frames();
    for (line, names) in lines {
        let [inside, outside] = both(&pair, line, &frames);
        assert_eq!(flow(&inside, names), flow(&outside, names), "{line}");
        for last in ["count", "hist"].iter().filter(|last| line.contains(**last)) {
            let told = report(&inside, last);
            assert!(told["blocks"] > 0, "{line}: {told:?}");
            assert_eq!(told, report(&outside, last), "{line}");
        }
        assert_eq!(inside.source().given, frames.len() as u64, "{line}");
    }
}

#[test]
fn j1_a_program_gives_the_frames_that_a_packet_socket_gives() {
    let Some(pair) = silent() else { return };
    let Some(_) = need::command("tcpdump") else { return };
    let frames = frames();
    for line in ["udp port 53", "tcp", "vlan", "len > 100"] {
        let [inside, outside] = both(&pair, &format!("| bpf \"{line}\" | pcap seen.pcap"), &frames);
        let seen = inside.frames("seen.pcap");
        assert!(seen == outside.frames("seen.pcap"), "{line}");
        let scratch = Scratch::new();
        let (all, some) = (capture(&scratch, "all.pcap", &frames), scratch.path("some.pcap"));
        let mut judge = Command::new("tcpdump");
        judge.arg("-r").arg(all).arg("-w").arg(&some).arg(line);
        assert!(judge.status().expect("tcpdump").success(), "{line}");
        let judged = frames_of(&fs::read(&some).expect("a capture"));
        assert!(!seen.is_empty() && seen == judged, "{line}: {} of {}", seen.len(), judged.len());
    }
}

/// More filters than one program has room for: they are several, one called by the other.
#[test]
fn k1_a_chain_of_any_length_is_in_the_kernel() {
    let Some(pair) = silent() else { return };
    let frames = frames();
    let ports = |from: usize| (from..from + 12).map(|port| format!("port {port}"));
    let no = |from| format!("bpf \"not ({})\"", Vec::from_iter(ports(from)).join(" or "));
    let chain: Vec<String> = (0..24).map(|number| no(2000 + 12 * number)).collect();
    let line = format!("| {} | bpf \"udp port 53\" | pcap seen.pcap", chain.join(" | "));
    // Only programs that call others have a map of programs.
    let observer = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} {line}"));
    assert!(observer.has_map(3), "it is several programs");
    observer.stop().assert_whole();
    let [inside, outside] = both(&pair, &line, &frames);
    let seen = inside.frames("seen.pcap");
    assert!(seen.len() >= 100 && seen == outside.frames("seen.pcap"), "{}", seen.len());
    let filters = inside.ledger["filters"].as_array().expect("filters");
    let named = |filter: &&Value| filter["name"].as_str().is_some_and(|it| it.starts_with("bpf"));
    let spaces = filters.iter().filter(named).map(|filter| &filter["space"]);
    assert_eq!(spaces.filter(|space| *space == "kernel").count(), 25, "{}", inside.err);
}

#[test]
fn j1_several_branches_leave_one_program() {
    let Some(pair) = silent() else { return };
    let frames = frames();
    let line = "| ip | ( |udp pcap udp.pcap + |tcp pcap tcp.pcap + |all pcap all.pcap )";
    let [inside, outside] = both(&pair, line, &frames);
    for name in ["udp.pcap", "tcp.pcap", "all.pcap"] {
        let seen = inside.frames(name);
        assert!(!seen.is_empty() && seen == outside.frames(name), "{name}");
    }
}

#[test]
fn v5_a_refused_filter_runs_in_a_thread_with_a_note() {
    let Some(pair) = silent() else { return };
    let frames = frames();
    let mut told = Vec::new();
    for (refuses, node, first) in [
        ("nothing", "rx", "kernel"),
        ("loading", "rx", "thread0"),
        ("attaching", "rx", "thread0"),
        ("udp", "udp", "kernel"),
        ("ip", "ip", "kernel"),
    ] {
        let option = format!("--kernel-refuses={refuses}");
        let line = format!("rx {SERVER_DEVICE} | ip | udp | dport |53 count");
        let observer = Observer::given(&pair.server, &[&option], &line);
        send_all(&pair, &frames);
        let ran = observer.stop();
        ran.assert_whole();
        assert_eq!(space(&ran, "rx"), first, "{refuses}: {}", ran.err);
        let says = ran.err.contains(&format!("`{node}` runs in thread0"));
        assert_eq!(says, refuses != "nothing", "{refuses}: {}", ran.err);
        let refused = ran.ledger["refused"].as_array().expect("an array");
        let named: Vec<_> = refused.iter().map(|one| (&one["filter"], &one["space"])).collect();
        let wanted = (&Value::from(node), &Value::from("thread0"));
        assert_eq!(named, Vec::from_iter(says.then_some(wanted)), "{refuses}: {}", ran.ledger);
        told.push(report(&ran, "count"));
    }
    assert!(told[0]["blocks"] > 0 && told.iter().all(|one| *one == told[0]), "{told:?}");
}

/// A frame on which the twin is unsure is decided in the process, and counted once.
#[test]
fn v5_fragments_are_put_together_behind_the_kernel() {
    let Some(()) = need::bpf() else { return };
    let Some(pair) = Pair::new(Cable::default()) else { return };
    let lines = ["rx", "rx@thread0"].map(|rx| format!("{rx} {SERVER_DEVICE} | ip |udp count"));
    let near = pair.client.enter(|| UdpSocket::bind((CLIENT, 9)).expect("a socket"));
    let far = pair.server.enter(|| UdpSocket::bind((SERVER, 9)).expect("a socket"));
    far.set_read_timeout(Some(LIMIT)).expect("a time");
    let observers = lines.map(|line| Observer::start(&pair.server, &line));
    let mut bytes = [0; 5000];
    for length in [10, 4000, 100, 2000] {
        near.send_to(&bytes[..length], (SERVER, 9)).expect("it goes");
        assert_eq!(far.recv(&mut bytes).expect("it comes"), length);
    }
    let [inside, outside] = observers.map(Observer::stop);
    for ran in [&inside, &outside] {
        ran.assert_whole();
        assert_eq!(report(ran, "count")["blocks"], 4, "{}", ran.ledger);
    }
    assert_eq!(report(&inside, "count"), report(&outside, "count"));
    let edges = inside.ledger["edges"].as_array().expect("edges");
    let unsure = edges.iter().find(|edge| edge["kind"] == "ring" && edge["to"] == "ip");
    // Three and two fragments.
    assert_eq!(unsure.expect("an edge")["taken"]["blocks"], 5, "{}", inside.ledger);
}

/// A reader that does not keep up: what arrived and what the ledger says was lapped is what was
/// sent, number by number.
#[test]
fn a_program_that_comes_round_is_accounted_for() {
    const FRAMES: u64 = 20_000;
    const SIZE: usize = 400;
    let Some(pair) = silent() else { return };
    let line = format!("rx {SERVER_DEVICE} ring=512KB | pcap -");
    let (observer, out) = Observer::piped(&pair.server, &line);
    send_all(&pair, &numbered(0..FRAMES, SIZE));
    observer.signal("INT");
    let mut capture = BufReader::new(out);
    capture.read_exact(&mut [0; 24]).expect("a capture begins");
    let (mut record, mut seen) = (vec![0; 16 + SIZE], Vec::new());
    while capture.read_exact(&mut record).is_ok() {
        seen.push(number(&record[16..]));
    }
    let ran = observer.wait();
    ran.assert_well();
    assert!(seen.is_sorted_by(|one, next| one < next), "each once, in order");
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert!(lost > 0, "{}", ran.ledger);
    assert_eq!(seen.len() as u64 + lost, FRAMES, "{}", ran.ledger);
    let edges = ran.ledger["edges"].as_array().expect("edges");
    let lapped = edges.iter().filter_map(|edge| edge["dropped"]["lapped"]["blocks"].as_u64());
    assert_eq!(lapped.sum::<u64>(), lost, "{}", ran.ledger);
}

/// While a reader is stopped and as much as fills the ring many times over goes by, frames are only
/// counted. It comes back to what is sent then, and the ledger knows of all.
#[test]
fn frames_of_a_stopped_reader_are_counted() {
    const FRAMES: u64 = 12_000;
    const SIZE: usize = 1_400;
    let Some(pair) = silent() else { return };
    // Who sends a frame is who writes it down: one ring fills.
    let one = sys::process::pin_to(0).is_ok();
    let observer =
        Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} ring=512KB | pcap seen.pcap"));
    observer.signal("STOP");
    observer.until_stopped();
    send_all(&pair, &numbered(0..FRAMES, SIZE));
    observer.signal("CONT");
    let (path, mut sent) = (observer.path("seen.pcap"), FRAMES);
    until("it has come back", || {
        send_all(&pair, &numbered(sent..sent + 1, SIZE));
        sent += 1;
        fs::metadata(&path).is_ok_and(|file| file.len() >= (16 + SIZE) as u64)
    });
    send_all(&pair, &numbered(sent..sent + 100, SIZE));
    let ran = observer.stop();
    ran.assert_well();
    let seen = numbers(&ran.frames("seen.pcap"));
    assert!(seen.is_sorted_by(|one, next| one < next), "each once, in order");
    assert!(seen.ends_with(&Vec::from_iter(sent..sent + 100)), "all behind its return");
    if one {
        let edges = ran.ledger["edges"].as_array().expect("edges").iter();
        let mut missing = edges.map(|edge| &edge["missing"]["lapped"]);
        let missing = missing.find(|missing| !missing.is_null()).expect("positions");
        assert_eq!(assert_told(&seen, missing, sent + 100).len(), 1, "of one processor");
        assert!(seen.iter().all(|number| *number >= FRAMES), "nothing was kept for it: {seen:?}");
    }
    let lost = ran.ledger["lost"].as_u64().expect("a number");
    assert_eq!(seen.len() as u64 + lost, sent + 100, "{}", ran.ledger);
    let edges = ran.ledger["edges"].as_array().expect("edges");
    let lapped = edges.iter().filter_map(|edge| edge["dropped"]["lapped"]["blocks"].as_u64());
    assert_eq!(lapped.sum::<u64>(), lost, "{}", ran.ledger);
}

#[test]
fn a_device_goes_down_and_comes_back_under_a_program() {
    let Some(pair) = silent() else { return };
    let line = format!("rx {SERVER_DEVICE} | pcap seen.pcap");
    let mut observer = Observer::start(&pair.server, &line);
    let all = numbered(0..20, SHORT);
    send_all(&pair, &all[..10]);
    pair.server.ip(&format!("link set dev {SERVER_DEVICE} down"));
    pair.server.ip(&format!("link set dev {SERVER_DEVICE} up"));
    pair.client.until_up(CLIENT_DEVICE);
    pair.server.until_up(SERVER_DEVICE);
    send_all(&pair, &all[10..]);
    observer.until_written("seen.pcap", capture_length(&all));
    let ran = observer.stop();
    ran.assert_whole();
    assert_eq!(numbers(&ran.frames("seen.pcap")), Vec::from_iter(0..20));
}

/// Returns the programs at the server's device.
fn chain(pair: &Pair, side: Side) -> Chain {
    pair.server.enter(|| tcx_chain(index(), side).expect("a chain"))
}

/// The number of the server's device, asked in its name space.
fn index() -> u32 {
    RouteSocket::open().expect("links").named(SERVER_DEVICE).expect("the device").index
}

#[test]
fn v17_programs_of_others_stay_and_see_what_they_saw() {
    let Some(pair) = silent() else { return };
    // TCX_PASS: nobody behind it sees anything. XDP_PASS.
    let program = |kind, answer| {
        let code = [ebpf::insn::Insn::mov(ebpf::insn::R0, answer), ebpf::insn::Insn::exit()];
        Program::load(kind, "foreign", &ebpf::insn::encode(&code)).expect("two instructions")
    };
    let (theirs, express) = (program(ProgramKind::Tc, 0), program(ProgramKind::Xdp, 2));
    let links = pair.server.enter(|| {
        let tcx = Link::tcx(&theirs, index(), Side::Ingress, Anchor::Head, None).expect("tcx");
        (tcx, Link::xdp(&express, index(), XdpMode::Generic).expect("xdp"))
    });
    let before = chain(&pair, Side::Ingress);
    let observer = Observer::start(&pair.server, &format!("rx {SERVER_DEVICE} | count"));
    let during = chain(&pair, Side::Ingress);
    assert_eq!(during.members.len(), 2, "ours stands before theirs");
    assert_eq!(during.members[1..], before.members[..]);
    send_all(&pair, &numbered(0..100, SHORT));
    let ran = observer.stop();
    ran.assert_whole();
    assert_eq!(report(&ran, "count")["blocks"], 100);
    assert_eq!(chain(&pair, Side::Ingress).members, before.members);
    drop(links);
}

#[test]
fn nothing_stays_of_a_line_that_is_killed() {
    let Some(pair) = silent() else { return };
    for end in ["KILL", "INT"] {
        let line = format!("rx {SERVER_DEVICE} | bpf \"udp port 9\" | pcap seen.pcap");
        let observer = Observer::start(&pair.server, &line);
        assert_eq!(chain(&pair, Side::Ingress).members.len(), 1);
        send_all(&pair, &numbered(0..10, SHORT));
        observer.signal(end);
        observer.wait();
        until("nothing is attached", || chain(&pair, Side::Ingress).members.is_empty());
    }
}

#[test]
fn an_exit_without_a_ring_is_refused_not_dropped() {
    let Some(pair) = silent() else { return };
    let text = format!("rx@kernel {SERVER_DEVICE} | udp@kernel | (count@thread0 + drop@thread1)");
    let (graph, mistakes) = pipeline::read(&text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
    pair.server.enter(|| {
        let mut plan = plan(graph, &House, &engine::machine::look()).expect("a plan");
        drop(build(&plan, Settings::default()).expect("it can be built"));
        // As if the planner had thought that both are in one thread.
        let rings = plan.edges.iter_mut().filter_map(|edge| match edge {
            PlannedEdge::Ring(ring) => Some((ring.clone(), edge)),
            _ => None,
        });
        let forgotten = rings.map(|(ring, edge)| *edge = PlannedEdge::Kernel(ring)).count();
        assert_eq!(forgotten, 1, "{:?}", plan.edges);
        let refused = build(&plan, Settings::default()).expect_err("a way leads nowhere");
        let told = refused.to_string();
        for part in ["`udp`", "`drop`", "thread0", "no ring leads", "place both"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    });
    assert!(programs(&pair).is_empty(), "nothing stays");
}
