//! Tests of several users and one daemon: Alice logs the requests to a web server, Bob taps its
//! DNS, Carol observes her own sockets, Dave is hostile. (CONTRACT 21, 25; RELIABILITY T1, T10,
//! T12, T17, T18)
//!
//! One program observes the interface, with as many rings as there are users. Each user's mapped
//! memory is searched for other users' data.

use crate::daemon_fixture::{
    ALICE_UID, BOB_UID, CAROL_UID, DAEMON_POLICY, DAVE_UID, DaemonFixture, WATCHERS_GID,
};
use crate::delegated::plan_kernel_part;
use crate::frame_sending::parse_capture;
use crate::nginx::Nginx;
use crate::observer::Observer;
use crate::shared_program::attached_program_ids;
use member::protocol::{AttachParameters, CarriedStep, Replacement};
use member::varlink::{Call, Fault, Reply};
use rustix::process::{Gid, Uid};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use sys::local_socket::{self, Framing};
use testkit::need;
use testkit::net::{NamespacePair, SERVER, SERVER_DEVICE, WAIT_TIMEOUT, wait_until};
use testkit::resources::KernelObjects;

/// Returns the contents of the kernel rings that a process has mapped.
fn mapped_rings(process: u32) -> Vec<u8> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("its maps");
    let memory = File::open(format!("/proc/{process}/mem")).expect("its memory");
    let mut all = Vec::new();
    for line in maps.lines().filter(|line| line.contains("bpf-map")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let address = |text: &str| u64::from_str_radix(text, 16).expect("an address");
        let (from, to) = range.map(|(from, to)| (address(from), address(to))).expect("a range");
        // Except for one page: its own drain position of the doorbell.
        assert!(!line.contains("rw") || to - from == 4096, "for reading alone: {line}");
        let mut bytes = vec![0; usize::try_from(to - from).expect("it fits")];
        memory.read_exact_at(&mut bytes, from).expect("all of it can be read");
        all.extend(bytes);
    }
    all
}

fn contains_mark(memory: &[u8], mark: &str) -> bool {
    memory.windows(mark.len()).any(|part| part == mark.as_bytes())
}

const ALICES_REQUEST: &str = "| ip @kernel | ipproto @kernel |tcp tcp | http |request json";
const BOBS_REQUEST: &str = "| ip @kernel | udp @kernel | dport @kernel |53 pcap dns.pcap";
const REQUESTS: usize = 200;
/// Number of datagrams, enough to lap Bob's ring.
const DATAGRAMS: usize = 3000;

/// Sends Alice's HTTP requests, Bob's datagrams to port 53, and datagrams that no user selects,
/// each with a mark that names its user.
fn send_traffic_of_all_users(pair: &NamespacePair) {
    pair.client.run_in_network_namespace(|| {
        for number in 0..REQUESTS {
            let mut server = TcpStream::connect((SERVER, 80)).expect("a server");
            server.set_read_timeout(Some(WAIT_TIMEOUT)).expect("a limit");
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
            // A port without a listener causes an error, which the next call reports.
            let _ = socket.send_to(&mark.repeat(1000 / mark.len()).into_bytes(), (SERVER, port));
        }
    });
}

#[test]
fn o6_p3_p7_users_share_one_program_and_no_bytes() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    let Some(nginx) = Nginx::start(&fixture.pair.server) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let before = fixture.resources_without_clients();
    let rx = format!("rx {SERVER_DEVICE} ring=1MB");
    let alice = fixture.run_request(ALICE_UID, &format!("{rx} {ALICES_REQUEST}"));
    let bob = fixture.run_request(BOB_UID, &format!("{rx} {BOBS_REQUEST}"));
    // Carol may not observe the interface; the error names who, what, why and the remedy.
    let refused = Observer::spawn(fixture.command(CAROL_UID), &format!("{rx} | count")).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let message = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    let carol = testkit::user::describe_user(CAROL_UID);
    for part in [carol.as_str(), "may not watch", SERVER_DEVICE, "[[open]]", "policy.toml"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    // The traffic of her own sockets is hers.
    let carol = fixture.run_request(CAROL_UID, "rx own=yes ring=1MB | pcap own.pcap");
    // Dave holds everything he can get and reads nothing.
    let held =
        fixture.pair.server.run_in_network_namespace(|| send_all_request_kinds_as_dave(&fixture));

    let now = fixture.shared_program();
    assert_eq!((now.lines.len(), attached_program_ids(&fixture.pair)), (5, vec![now.program]));
    assert_eq!(now.rings.len(), 3, "a ring for each of three users: {:?}", now.rings);
    let step = |name: &str| now.steps.iter().find(|step| step.name == name).map(|s| s.lines);
    assert_eq!((step("ip"), step("udp")), (Some(5), Some(4)), "{:?}", now.steps);
    send_traffic_of_all_users(&fixture.pair);
    fixture.send_request_as(CAROL_UID, "<carol's>");
    fixture.send_request_as(ALICE_UID, "<alice's>");

    let sent = (DATAGRAMS * 2 / 3) as u64;
    let given = |uid: u32| {
        let lines = fixture.shared_program().lines;
        let ours = lines.into_iter().filter(|line| line.uid == uid);
        ours.filter_map(|line| Some(line.given?.blocks + line.lost?)).sum::<u64>()
    };
    wait_until("bob was given all", || given(BOB_UID) >= sent);
    for (user, own) in [(&alice, "<alice's>"), (&bob, "<bob's>"), (&carol, "<carol's>")] {
        let memory = mapped_rings(user.process_id());
        assert!(memory.len() > 1 << 20, "{own}: {} bytes are mapped", memory.len());
        for mark in ["<alice's>", "<bob's>", "<carol's>", "<nobody's>"] {
            assert_eq!(contains_mark(&memory, mark), mark == own, "{own}: {mark}");
        }
    }
    let now = fixture.shared_program();
    let bytes: u64 =
        now.lines.iter().filter(|l| l.uid == BOB_UID).map(|l| l.given.unwrap().bytes).sum();
    let ring = now.rings.iter().find(|ring| ring.uid == Some(BOB_UID)).expect("a ring").bytes;
    assert!(bytes > ring, "places were used again: {bytes} in {ring}");
    for line in &now.lines {
        assert!(line.taken.is_some_and(|taken| taken <= now.frames), "{line:?}: {}", now.frames);
    }

    // The daemon holds the same objects as Dave.
    let users = [&alice, &bob, &carol].map(|user| KernelObjects::of_process(user.process_id()));
    let numbered = users.into_iter().fold(fixture.kernel_objects(), KernelObjects::union);
    assert!(numbered.programs.len() > 1 && numbered.links.len() > 1, "{numbered:?}");
    drop(held);
    wait_until("dave is gone", || fixture.running_request_count(DAVE_UID) == 0);
    let ran = alice.stop();
    ran.assert_lossless();
    let log = String::from_utf8_lossy(&ran.out).into_owned();
    assert_eq!(log.lines().filter(|line| line.contains("/small?")).count(), REQUESTS, "{log}");
    let ran = bob.stop();
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
    let capture = fs::read(ran.path("dns.pcap")).expect("a capture");
    let frames = parse_capture(&capture);
    assert!(!frames.is_empty() && frames.iter().all(|frame| contains_mark(frame, "<bob's>")));
    let ran = carol.stop();
    ran.assert_lossless();
    let capture = fs::read(ran.path("own.pcap")).expect("a capture");
    assert!(
        contains_mark(&capture, "X-Mark: <carol's>") && contains_mark(&capture, "Server: nginx")
    );
    assert_eq!(fixture.shared_programs().programs, [], "nothing runs any more");
    fixture.assert_resources_restored(&before, &numbered);
    drop(nginx.stop());
    fixture.stop();
}

/// Sends every kind of request as Dave. Returns all descriptors that Dave receives.
fn send_all_request_kinds_as_dave(fixture: &DaemonFixture) -> Vec<OwnedFd> {
    let line = format!("rx {SERVER_DEVICE} ring=1MB | ip | udp | dport |53 pcap /dev/null");
    let other = "rx lo ring=1MB | ip | udp | dport |53 pcap /dev/null";
    let machine = engine::machine::inspect_machine();
    let part = plan_kernel_part(&line, &machine).to_text();
    rustix::thread::set_thread_res_gid(
        Gid::from_raw(DAVE_UID),
        Gid::from_raw(DAVE_UID),
        Gid::from_raw(DAVE_UID),
    )
    .expect("root may");
    rustix::thread::set_thread_res_uid(
        Uid::from_raw(DAVE_UID),
        Uid::from_raw(DAVE_UID),
        Uid::from_raw(DAVE_UID),
    )
    .expect("root may");
    let ours = network_namespace_id();
    let asks = |line: &str, part: &str, network: &str, version: &str| AttachParameters {
        line: line.to_owned(),
        part: part.to_owned(),
        network: network.to_owned(),
        version: version.to_owned(),
        instead: None,
    };
    let own = env!("CARGO_PKG_VERSION");
    let mut held = Vec::new();
    for _ in 0..3 {
        let socket = fixture.connect_to_daemon();
        let (reply, descriptors) = send_and_receive(&socket, &asks(&line, &part, &ours, own));
        assert!(reply.continues && descriptors.len() == 3, "{reply:?}");
        // A second request on the same connection, and the end of another's request.
        let again = send_and_receive(&socket, &asks(&line, &part, &ours, own)).0;
        assert_eq!(again.error.as_deref(), Some("io.streamline.Refused"), "{again:?}");
        held.push(socket);
        held.extend(descriptors);
    }
    let [ring, nodes]: [Value; 2] = serde_json::from_str(&part).expect("its text is JSON");
    let largest = json!([[u32::MAX, u32::MAX, u32::MAX, u32::MAX, 0, 0], nodes]).to_string();
    let (unknown, none) = (json!([ring, [0, 999]]).to_string(), json!([ring, []]).to_string());
    for (attach, by) in [
        (asks(&line, &part, &ours, own), "quota"),
        (asks(&line, &largest, &ours, own), "quota"),
        (asks(other, &part, &ours, own), "policy"),
        (asks(&line, &part, "4:1", own), "place"),
        (asks(&line, &part, &ours, "0"), "version"),
        (asks("rx server0 | nonsense", &part, &ours, own), "line"),
        (asks(&line, &unknown, &ours, own), "kernel"),
        (asks(&line, &none, &ours, own), "kernel"),
        (asks(&format!("rx {SERVER_DEVICE} take | drop"), &part, &ours, own), "kernel"),
    ] {
        let (refused, _) = send_and_receive(&fixture.connect_to_daemon(), &attach);
        let context = || format!("{by}: {attach:?}: {refused:?}");
        assert_eq!(refused.error.as_deref(), Some("io.streamline.NotInKernel"), "{}", context());
        let fault = Fault::from_reply(&refused).expect("it is refused");
        assert_eq!(fault.text_parameter("by"), by, "{}", context());
        let why = fault.text_parameter("why");
        assert!(why.len() > 10 && !why.ends_with('.'), "{}", context());
    }
    // On behalf of other users, beyond his own share, and for no request.
    for line_of in 0..64 {
        let stays = vec![CarriedStep { was: 0, is: u64::MAX }];
        let instead = Some(Replacement { line: line_of, stays, taps: None });
        let attach = AttachParameters { instead, ..asks(&line, &part, &ours, own) };
        let (refused, _) = send_and_receive(&fixture.connect_to_daemon(), &attach);
        let fault = Fault::from_reply(&refused).expect("it is refused");
        assert!(matches!(fault.text_parameter("by"), "line" | "quota"), "{line_of}: {refused:?}");
    }
    let switch = Call::new("io.streamline.Switch", &json!({})).to_bytes();
    for socket in [&fixture.connect_to_daemon(), &find_request_connection(&held)] {
        sys::descriptor::send(socket, &switch, &[]).expect("sent");
        let refused = receive_message(socket).0;
        assert_eq!(refused.error.as_deref(), Some("io.streamline.Refused"), "{refused:?}");
    }
    for part in ["", "x", &"9 ".repeat(30_000)] {
        let (refused, _) =
            send_and_receive(&fixture.connect_to_daemon(), &asks(&line, part, &ours, own));
        assert!(refused.error.is_some(), "{refused:?}");
    }
    // Requests more than it reads, and disconnects within a message.
    let greedy = fixture.connect_to_daemon();
    let call = Call::new("io.streamline.Sharing", &json!({})).to_bytes();
    let sent = (0..100_000).find(|_| local_socket::send_nonblocking(&greedy, &call, &[]).is_err());
    assert!(sent.is_some(), "nobody is served for ever");
    for _ in 0..20 {
        let attach = asks(&line, &part, &ours, own);
        let call = Call::new("io.streamline.Attach", &attach);
        let call = Call { more: true, ..call }.to_bytes();
        sys::descriptor::send(fixture.connect_to_daemon(), &call, &[]).expect("sent");
    }
    held
}

impl DaemonFixture {
    fn connect_to_daemon(&self) -> OwnedFd {
        let packets = self.daemon_directory().join(member::daemon_directories::PACKET_SOCKET);
        local_socket::connect_to(&packets, Framing::Packets, WAIT_TIMEOUT)
            .expect("the daemon is there")
    }
}

/// Returns a duplicate of the descriptor of a request's connection, which is the first descriptor
/// in `held`.
fn find_request_connection(held: &[OwnedFd]) -> OwnedFd {
    held[0].try_clone().expect("a descriptor")
}

/// Sends the call `attach` to the daemon. Returns the reply and the descriptors in it.
fn send_and_receive(socket: &OwnedFd, attach: &AttachParameters) -> (Reply, Vec<OwnedFd>) {
    let call = Call { more: true, ..Call::new("io.streamline.Attach", attach) };
    sys::descriptor::send(socket, &call.to_bytes(), &[]).expect("sent");
    receive_message(socket)
}

fn receive_message(socket: &OwnedFd) -> (Reply, Vec<OwnedFd>) {
    let mut bytes = vec![0; 200_000];
    let (length, descriptors) = sys::descriptor::receive(socket, &mut bytes).expect("an answer");
    (Reply::read(&bytes[..length]).expect("a reply"), descriptors)
}

fn network_namespace_id() -> String {
    let about = fs::metadata("/proc/thread-self/ns/net").expect("a namespace");
    format!("{}:{}", about.dev(), about.ino())
}

#[test]
fn t10_killed_user_is_removed_and_daemon_exit_is_reported() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let line = format!("rx {SERVER_DEVICE} {BOBS_REQUEST}");
    let alice = fixture.run_request(ALICE_UID, &line);
    let dave = fixture.run_request(DAVE_UID, &line);
    assert_eq!(
        (fixture.shared_program().lines.len(), fixture.shared_program().rings.len()),
        (2, 2)
    );
    dave.signal("KILL");
    wait_until("his line is gone", || fixture.running_request_count(DAVE_UID) == 0);
    assert_eq!(fixture.shared_program().rings.len(), 1);
    drop(dave.wait());
    fixture.pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..20 {
            let _ = socket.send_to(b"before", (SERVER, 53));
        }
    });
    wait_until("all have come", || fixture.shared_program().lines[0].given.unwrap().blocks == 20);
    fixture.kill();
    wait_until("the program is gone with the daemon", || {
        attached_program_ids(&fixture.pair).is_empty()
    });
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("the daemon has ended"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
    let frames = parse_capture(&fs::read(ran.path("dns.pcap")).expect("a capture"));
    assert_eq!(frames.len(), 20, "what had come was handed on");
}

#[test]
fn stopped_daemon_reports_its_counts() {
    let Some(mut fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let alice = fixture.run_request(ALICE_UID, &format!("rx {SERVER_DEVICE} {BOBS_REQUEST}"));
    fixture.pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..20 {
            let _ = socket.send_to(b"before", (SERVER, 53));
        }
    });
    wait_until("all have come", || fixture.shared_program().lines[0].given.unwrap().blocks == 20);
    fixture.stop();
    let ran = alice.wait();
    assert_eq!(ran.status, Some(1), "{}", ran.err);
    assert!(ran.err.contains("has been stopped"), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}\n{}", ran.err, ran.ledger);
}

/// Returns a request for frames to a port, with an option of `rx`.
fn request_with_option(option: &str, port: u16) -> String {
    format!("{option}rx {SERVER_DEVICE} ring=1MB | udp | dport |{port} pcap all.pcap")
}

/// Returns the rings at the interface, each with its user, its group, and the number of requests
/// that use it.
fn rings_at_interface(fixture: &DaemonFixture) -> Vec<(Option<u32>, Option<String>, usize)> {
    let program = fixture.shared_program();
    let mut rings: Vec<_> =
        program.rings.into_iter().map(|ring| (ring.uid, ring.group, ring.lines)).collect();
    rings.sort_unstable();
    rings
}

#[test]
fn p8_world_rings_are_read_by_their_members_only() {
    let Some(fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let alice = fixture.run_request(ALICE_UID, &request_with_option("--share=world ", 53));
    let bob = fixture.run_request(BOB_UID, &request_with_option("--share=world ", 9));
    let dave = fixture.run_request(DAVE_UID, &request_with_option("", 9));
    assert_eq!(rings_at_interface(&fixture), [(None, None, 2), (Some(DAVE_UID), None, 1)]);
    // Carol's own traffic is shared with no user.
    let own = format!("--share=world rx own=yes | pcap {}", "own.pcap");
    let refused = Observer::spawn(fixture.command(CAROL_UID), &own).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    let message = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(message.contains("visible to you alone"), "{}", refused.err);
    assert_members_share_a_ring(fixture, [alice, bob, dave]);
}

#[test]
fn p3_group_rings_are_shared_by_members_only() {
    let Some(fixture) = DaemonFixture::new(DAEMON_POLICY) else { return };
    if need::require_command("setpriv").is_none() {
        return;
    }
    let option = format!("--share=group:{WATCHERS_GID} ");
    let line = request_with_option(&option, 53);
    let alice =
        fixture.run_command(fixture.command_with_group(ALICE_UID, WATCHERS_GID), ALICE_UID, &line);
    let bob = fixture.run_request(BOB_UID, &request_with_option(&option, 9));
    // A non-member gets an error, and runs nothing.
    let refused = Observer::spawn(fixture.command(DAVE_UID), &line).wait();
    assert_eq!(refused.status, Some(1), "{}", refused.err);
    assert!(refused.err.contains(&format!("is not in group {WATCHERS_GID}")), "{}", refused.err);
    let unknown = request_with_option("--share=group:no-such-group-here ", 53);
    let refused = Observer::spawn(fixture.command(DAVE_UID), &unknown).wait();
    assert!(refused.err.contains("no group is called"), "{}", refused.err);
    let dave = fixture.run_request(DAVE_UID, &request_with_option("--share=world ", 9));
    let group = Some(WATCHERS_GID.to_string());
    assert_eq!(rings_at_interface(&fixture), [(None, None, 1), (None, group, 2)]);
    assert_members_share_a_ring(fixture, [alice, bob, dave]);
}

/// Asserts that two users share a ring only if both have chosen to share. Alice selects frames to
/// port 53, Bob and Dave select frames to port 9. The frames of Alice and Bob must be in one ring,
/// and Dave's frames in a ring of his own.
fn assert_members_share_a_ring(mut fixture: DaemonFixture, [alice, bob, dave]: [Observer; 3]) {
    const FRAMES_PER_USER: usize = 30;
    fixture.pair.client.run_in_network_namespace(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        for _ in 0..FRAMES_PER_USER {
            let _ = socket.send_to(&b"<alice's>".repeat(50), (SERVER, 53));
            let _ = socket.send_to(&b"<bob's>".repeat(50), (SERVER, 9));
        }
    });
    let given = |uid: u32| {
        let lines = fixture.shared_program().lines;
        let ours = lines.iter().find(|line| line.uid == uid).expect("a line");
        ours.given.expect("root is told").blocks
    };
    for uid in [ALICE_UID, BOB_UID, DAVE_UID] {
        wait_until(&format!("{uid} was given all"), || given(uid) == FRAMES_PER_USER as u64);
    }
    for (user, marks) in [(&alice, [true, true]), (&bob, [true, true]), (&dave, [false, true])] {
        let memory = mapped_rings(user.process_id());
        assert_eq!(["<alice's>", "<bob's>"].map(|mark| contains_mark(&memory, mark)), marks);
    }
    // Each receives what it selected, whoever leaves first.
    for (user, mark) in [(alice, "<alice's>"), (bob, "<bob's>"), (dave, "<bob's>")] {
        let ran = user.stop();
        ran.assert_lossless();
        let frames = parse_capture(&fs::read(ran.path("all.pcap")).expect("a capture"));
        assert_eq!(frames.len(), FRAMES_PER_USER);
        assert!(frames.iter().all(|frame| contains_mark(frame, mark)), "{mark}");
    }
    fixture.stop();
}
