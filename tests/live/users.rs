//! Several users and one daemon, as the issue of it is lived: alice logs the requests to a web
//! server, bob taps its DNS, carol what her own sockets exchange, dave is hostile. (CONTRACT 21,
//! 25; RELIABILITY T1, T10, T12, T17, T18)
//!
//! What watches the interface is one program of the kernel, in as many rings of frames as there are
//! users. What a user's process has mapped is searched as a whole, through its memory, for what
//! others' traffic carries.

use crate::handout::part_of;
use crate::house::{ALICE, BOB, CAROL, DAVE, House, POLICY, WATCHERS};
use crate::nginx::Nginx;
use crate::observer::Observer;
use crate::send::frames_of;
use crate::shared::chain;
use member::protocol::{Attach, Instead, Stay};
use member::varlink::{Call, Reply};
use rustix::process::{Gid, Uid};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use sys::local_socket::{self, Framing};
use testkit::need;
use testkit::net::{LIMIT, Pair, SERVER, SERVER_DEVICE, until};
use testkit::resources::KernelObjects;

/// Returns the kernel rings that a process has mapped.
fn mapped(process: u32) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("its maps");
    let memory = File::open(format!("/proc/{process}/mem")).expect("its memory");
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains("bpf-map")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let (from, to) = range.map(|(from, to)| (address(from), address(to))).expect("a range");
        // But for one page: how far it has taken the bell, which is its own.
        assert!(!line.contains("rw") || to - from == 4096, "for reading alone: {line}");
        let mut bytes = vec![0; usize::try_from(to - from).expect("it fits")];
        memory.read_exact_at(&mut bytes, from).expect("all of it can be read");
        all.extend(bytes);
    }
    all
}

fn holds(memory: &[u8], mark: &str) -> bool {
    memory.windows(mark.len()).any(|part| part == mark.as_bytes())
}

const LOGS: &str = "| ip @kernel | ipproto @kernel |tcp tcp | http |request json";
const TAPS: &str = "| ip @kernel | udp @kernel | dport @kernel |53 pcap dns.pcap";
const REQUESTS: usize = 200;
/// So many that each ring of frames is written more than once.
const DATAGRAMS: usize = 3000;

/// Everybody's traffic: each carries a mark.
fn send(pair: &Pair) {
    pair.client.enter(|| {
        for number in 0..REQUESTS {
            let mut server = TcpStream::connect((SERVER, 80)).expect("a server");
            server.set_read_timeout(Some(LIMIT)).expect("a limit");
            let head = format!(
                "GET /small?{number} HTTP/1.1\r\nHost: x\r\nX-Mark: <alice's>\r\n\
                 Connection: close\r\n\r\n"
            );
            server.write_all(head.as_bytes()).expect("it takes it");
            server.read_to_end(&mut Vec::new()).expect("it answers");
        }
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for number in 0..DATAGRAMS {
            let dns = number % 3 < 2;
            let mark = if dns { "<bob's>" } else { "<nobody's>" };
            let port = if dns { 53 } else { 9 };
            // Who is not there answers that it is not, and the next call says so.
            let _ = socket.send_to(&mark.repeat(1000 / mark.len()).into_bytes(), (SERVER, port));
        }
    });
}

#[test]
fn o6_p3_p7_users_share_one_program_and_no_bytes() {
    let Some(mut house) = House::new(POLICY) else { return };
    let Some(nginx) = Nginx::start(&house.pair.server) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let before = house.state();
    let rx = format!("rx {SERVER_DEVICE} ring=1MB");
    let alice = house.run(ALICE, &format!("{rx} {LOGS}"));
    let bob = house.run(BOB, &format!("{rx} {TAPS}"));
    // Carol may watch no interface, and hears who, what, why and what to do.
    let refused = Observer::spawn(house.command(CAROL), &format!("{rx} | count")).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let said = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let carol = testkit::user::describe(CAROL);
    for part in [carol.as_str(), "may not watch", SERVER_DEVICE, "[[open]]", "policy.toml"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // What her own sockets exchange is hers.
    let carol = house.run(CAROL, "rx own=yes ring=1MB | pcap own.pcap");
    // Dave holds what he can get and reads nothing.
    let held = house.pair.server.enter(|| as_dave(&house));

    let now = house.shared();
    assert_eq!((now.lines.len(), chain(&house.pair)), (5, vec![now.program]));
    assert_eq!(now.rings.len(), 3, "a ring for each of three users: {:?}", now.rings);
    let step = |name: &str| now.steps.iter().find(|step| step.name == name).map(|s| s.lines);
    assert_eq!((step("ip"), step("udp")), (Some(5), Some(4)), "{:?}", now.steps);
    send(&house.pair);
    house.request_of(CAROL, "<carol's>");
    house.request_of(ALICE, "<alice's>");

    let sent = (DATAGRAMS * 2 / 3) as u64;
    let given = |uid: u32| {
        let lines = house.shared().lines;
        let ours = lines.into_iter().filter(|line| line.uid == uid);
        ours.filter_map(|line| Some(line.given?.blocks + line.lost?)).sum::<u64>()
    };
    until("bob was given all", || given(BOB) >= sent);
    for (user, own) in [(&alice, "<alice's>"), (&bob, "<bob's>"), (&carol, "<carol's>")] {
        let memory = mapped(user.process());
        assert!(memory.len() > 1 << 20, "{own}: {} bytes are mapped", memory.len());
        for mark in ["<alice's>", "<bob's>", "<carol's>", "<nobody's>"] {
            assert_eq!(holds(&memory, mark), mark == own, "{own}: {mark}");
        }
    }
    let now = house.shared();
    let bytes: u64 =
        now.lines.iter().filter(|l| l.uid == BOB).map(|l| l.given.unwrap().bytes).sum();
    let ring = now.rings.iter().find(|ring| ring.uid == Some(BOB)).expect("a ring").bytes;
    assert!(bytes > ring, "places were used again: {bytes} in {ring}");
    for line in &now.lines {
        assert!(line.taken.is_some_and(|taken| taken <= now.frames), "{line:?}: {}", now.frames);
    }

    // What dave holds the daemon holds for him, too.
    let users = [&alice, &bob, &carol].map(|user| KernelObjects::of(user.process()));
    let numbered = users.into_iter().fold(house.numbered(), KernelObjects::and);
    assert!(numbered.programs.len() > 1 && numbered.links.len() > 1, "{numbered:?}");
    drop(held);
    until("dave is gone", || house.lines(DAVE) == 0);
    let ran = alice.stop();
    ran.assert_whole();
    let log = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(log.lines().filter(|line| line.contains("/small?")).count(), REQUESTS, "{log}");
    let ran = bob.stop();
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
    let capture = fs::read(ran.path("dns.pcap")).expect("a capture");
    let frames = frames_of(&capture);
    assert!(!frames.is_empty() && frames.iter().all(|frame| holds(frame, "<bob's>")));
    let ran = carol.stop();
    ran.assert_whole();
    let capture = fs::read(ran.path("own.pcap")).expect("a capture");
    assert!(holds(&capture, "X-Mark: <carol's>") && holds(&capture, "Server: nginx"));
    assert_eq!(house.sharing().programs, [], "nothing runs any more");
    house.is_as_before(&before, &numbered);
    drop(nginx.stop());
    house.end();
}

/// Returns all that this user gets by asking for everything.
fn as_dave(house: &House) -> Vec<OwnedFd> {
    let line = format!("rx {SERVER_DEVICE} ring=1MB | ip | udp | dport |53 pcap /dev/null");
    let other = "rx lo ring=1MB | ip | udp | dport |53 pcap /dev/null";
    let machine = engine::machine::look();
    let part = part_of(&line, &machine).text();
    rustix::thread::set_thread_res_gid(
        Gid::from_raw(DAVE),
        Gid::from_raw(DAVE),
        Gid::from_raw(DAVE),
    )
    .expect("root may");
    rustix::thread::set_thread_res_uid(
        Uid::from_raw(DAVE),
        Uid::from_raw(DAVE),
        Uid::from_raw(DAVE),
    )
    .expect("root may");
    let ours = network();
    let asks = |line: &str, part: &str, network: &str, version: &str| Attach {
        line: line.to_owned(),
        part: part.to_owned(),
        network: network.to_owned(),
        version: version.to_owned(),
        instead: None,
    };
    let own = env!("CARGO_PKG_VERSION");
    let mut held = Vec::new();
    for _ in 0..3 {
        let socket = house.socket();
        let (reply, descriptors) = ask(&socket, &asks(&line, &part, &ours, own));
        assert!(reply.continues && descriptors.len() == 3, "{reply:?}");
        // A second one on the same connection, and the end of a line that another has.
        let again = ask(&socket, &asks(&line, &part, &ours, own)).0;
        assert_eq!(again.error.as_deref(), Some("io.streamline.Refused"), "{again:?}");
        held.push(socket);
        held.extend(descriptors);
    }
    let nodes = part.split(' ').skip(6).collect::<Vec<_>>().join(" ");
    let ring = part.split(' ').take(6).collect::<Vec<_>>().join(" ");
    let largest = format!("4294967295 4294967295 4294967295 4294967295 0 0 {nodes}");
    for (attach, by) in [
        (asks(&line, &part, &ours, own), "quota"),
        (asks(&line, &largest, &ours, own), "quota"),
        (asks(other, &part, &ours, own), "policy"),
        (asks(&line, &part, "4:1", own), "place"),
        (asks(&line, &part, &ours, "0"), "version"),
        (asks("rx server0 | nonsense", &part, &ours, own), "line"),
        (asks(&line, &format!("{ring} 0 999"), &ours, own), "kernel"),
        (asks(&line, &ring, &ours, own), "kernel"),
        (asks(&format!("rx {SERVER_DEVICE} take | drop"), &part, &ours, own), "kernel"),
    ] {
        let (refused, _) = ask(&house.socket(), &attach);
        let told = || format!("{by}: {attach:?}: {refused:?}");
        assert_eq!(refused.error.as_deref(), Some("io.streamline.NotInKernel"), "{}", told());
        assert_eq!(refused.parameters["by"], Value::from(by), "{}", told());
        let why = refused.parameters["why"].as_str().unwrap_or_default();
        assert!(why.len() > 10 && !why.ends_with('.'), "{}", told());
    }
    // In the place of others' lines, of his own beyond his share, and of none.
    for line_of in 0..64 {
        let instead = Some(Instead { line: line_of, stays: vec![Stay { was: 0, is: u64::MAX }] });
        let attach = Attach { instead, ..asks(&line, &part, &ours, own) };
        let (refused, _) = ask(&house.socket(), &attach);
        let by = refused.parameters["by"].as_str();
        assert!(matches!(by, Some("line" | "quota")), "{line_of}: {refused:?}");
    }
    let switch = Call::new("io.streamline.Switch", &json!({})).text();
    for socket in [&house.socket(), &held_line(&held)] {
        sys::descriptor::send(socket, &switch, &[]).expect("sent");
        let refused = hear(socket).0;
        assert_eq!(refused.error.as_deref(), Some("io.streamline.Refused"), "{refused:?}");
    }
    for part in ["", "x", &"9 ".repeat(30_000)] {
        let (refused, _) = ask(&house.socket(), &asks(&line, part, &ours, own));
        assert!(refused.error.is_some(), "{refused:?}");
    }
    // Asks for more than it takes, and hangs up in the middle of an order.
    let greedy = house.socket();
    let call = Call::new("io.streamline.Sharing", &json!({})).text();
    let sent = (0..100_000).find(|_| local_socket::send_now(&greedy, &call, &[]).is_err());
    assert!(sent.is_some(), "nobody is served for ever");
    for _ in 0..20 {
        let attach = asks(&line, &part, &ours, own);
        let call = Call::new("io.streamline.Attach", &attach);
        let call = Call { more: true, ..call }.text();
        sys::descriptor::send(house.socket(), &call, &[]).expect("sent");
    }
    held
}

impl House {
    fn socket(&self) -> OwnedFd {
        let packets = self.place().join(member::place::PACKETS);
        local_socket::connect_to(&packets, Framing::Packets, LIMIT).expect("the daemon is there")
    }
}

/// The connection of a line among what is held.
fn held_line(held: &[OwnedFd]) -> OwnedFd {
    held[0].try_clone().expect("a descriptor")
}

/// Says something, and hears the answer.
fn ask(socket: &OwnedFd, attach: &Attach) -> (Reply, Vec<OwnedFd>) {
    let call = Call { more: true, ..Call::new("io.streamline.Attach", attach) };
    sys::descriptor::send(socket, &call.text(), &[]).expect("sent");
    hear(socket)
}

fn hear(socket: &OwnedFd) -> (Reply, Vec<OwnedFd>) {
    let mut bytes = vec![0; 200_000];
    let (length, descriptors) = sys::descriptor::receive(socket, &mut bytes).expect("an answer");
    (Reply::read(&bytes[..length]).expect("a reply"), descriptors)
}

fn network() -> String {
    let about = fs::metadata("/proc/thread-self/ns/net").expect("a name space");
    format!("{}:{}", about.dev(), about.ino())
}

#[test]
fn t10_killed_users_leave_and_a_lost_daemon_is_reported() {
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} {TAPS}");
    let alice = house.run(ALICE, &line);
    let dave = house.run(DAVE, &line);
    assert_eq!((house.shared().lines.len(), house.shared().rings.len()), (2, 2));
    dave.signal("KILL");
    until("his line is gone", || house.lines(DAVE) == 0);
    assert_eq!(house.shared().rings.len(), 1);
    drop(dave.wait());
    house.pair.client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..20 {
            let _ = socket.send_to(b"before", (SERVER, 53));
        }
    });
    until("all have come", || house.shared().lines[0].given.unwrap().blocks == 20);
    house.kill();
    until("the program is gone with the daemon", || chain(&house.pair).is_empty());
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the daemon has ended"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
    let frames = frames_of(&fs::read(ran.path("dns.pcap")).expect("a capture"));
    assert_eq!(frames.len(), 20, "what had come was handed on");
}

#[test]
fn a_daemon_asked_to_end_reports_its_counts() {
    let Some(mut house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let alice = house.run(ALICE, &format!("rx {SERVER_DEVICE} {TAPS}"));
    house.pair.client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..20 {
            let _ = socket.send_to(b"before", (SERVER, 53));
        }
    });
    until("all have come", || house.shared().lines[0].given.unwrap().blocks == 20);
    house.end();
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("was asked to end"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
}

/// A line that chooses what goes to a port, with an option.
fn chooses(option: &str, port: u16) -> String {
    format!("{option}rx {SERVER_DEVICE} ring=1MB | udp | dport |{port} pcap all.pcap")
}

/// The rings at the interface: of which user or group, and how many lines lead there.
fn rings(house: &House) -> Vec<(Option<u32>, Option<String>, usize)> {
    let program = house.shared();
    let mut rings: Vec<_> =
        program.rings.into_iter().map(|ring| (ring.uid, ring.group, ring.lines)).collect();
    rings.sort_unstable();
    rings
}

#[test]
fn p8_world_rings_are_read_by_their_members_only() {
    let Some(house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let alice = house.run(ALICE, &chooses("--share=world ", 53));
    let bob = house.run(BOB, &chooses("--share=world ", 9));
    let dave = house.run(DAVE, &chooses("", 9));
    assert_eq!(rings(&house), [(None, None, 2), (Some(DAVE), None, 1)]);
    // What is nobody's but carol's is shared with nobody.
    let own = format!("--share=world rx own=yes | pcap {}", "own.pcap");
    let refused = Observer::spawn(house.command(CAROL), &own).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    assert!(refused.err.contains("for you alone"), "{}", refused.err);
    two_read_what_both_chose(house, [alice, bob, dave]);
}

#[test]
fn p3_group_rings_are_shared_by_members_only() {
    let Some(house) = House::new(POLICY) else { return };
    if need::command("setpriv").is_none() {
        return;
    }
    let option = format!("--share=group:{WATCHERS} ");
    let line = chooses(&option, 53);
    let alice = house.run_by(house.command_in(ALICE, WATCHERS), ALICE, &line);
    let bob = house.run(BOB, &chooses(&option, 9));
    // Whoever is no member is told so, and runs nothing.
    let refused = Observer::spawn(house.command(DAVE), &line).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    assert!(refused.err.contains(&format!("is not in group {WATCHERS}")), "{}", refused.err);
    let unknown = chooses("--share=group:no-such-group-here ", 53);
    let refused = Observer::spawn(house.command(DAVE), &unknown).wait();
    assert!(refused.err.contains("no group is called"), "{}", refused.err);
    let dave = house.run(DAVE, &chooses("--share=world ", 9));
    let group = Some(WATCHERS.to_string());
    assert_eq!(rings(&house), [(None, None, 1), (None, group, 2)]);
    two_read_what_both_chose(house, [alice, bob, dave]);
}

/// Alice chose what goes to port 53, bob and dave what goes to 9; the frames of the first two lie
/// in one ring, those of the third in one of its own.
fn two_read_what_both_chose(mut house: House, [alice, bob, dave]: [Observer; 3]) {
    const EACH: usize = 30;
    house.pair.client.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..EACH {
            let _ = socket.send_to(&b"<alice's>".repeat(50), (SERVER, 53));
            let _ = socket.send_to(&b"<bob's>".repeat(50), (SERVER, 9));
        }
    });
    let given = |uid: u32| {
        let lines = house.shared().lines;
        let ours = lines.iter().find(|line| line.uid == uid).expect("a line");
        ours.given.expect("root is told").blocks
    };
    for uid in [ALICE, BOB, DAVE] {
        until(&format!("{uid} was given all"), || given(uid) == EACH as u64);
    }
    for (user, marks) in [(&alice, [true, true]), (&bob, [true, true]), (&dave, [false, true])] {
        let memory = mapped(user.process());
        assert_eq!(["<alice's>", "<bob's>"].map(|mark| holds(&memory, mark)), marks);
    }
    // What each is given is what it chose, whoever leaves first.
    for (user, mark) in [(alice, "<alice's>"), (bob, "<bob's>"), (dave, "<bob's>")] {
        let ran = user.stop();
        ran.assert_whole();
        let frames = frames_of(&fs::read(ran.path("all.pcap")).expect("a capture"));
        assert_eq!(frames.len(), EACH);
        assert!(frames.iter().all(|frame| holds(frame, mark)), "{mark}");
    }
    house.end();
}
