//! Tests of a user's tap on the user's own sockets: the tap receives all packets of these sockets
//! and no other packets. (FEATURES P7, V7; CONTRACT 22)
//!
//! The users are threads with their own user ids, in namespaces of the test. All rings of a user
//! are searched for other users' data.

use crate::frame_sending::parse_capture;
use crate::observer::Observer;
use crate::privilege::copy_program_for_every_user;
use crate::scratch::Scratch;
use endpoint::source::kernel::reader::KernelRingReader;
use engine::kernel::delegation::{DelegatedProgram, DelegatedRequest, KernelPart, RequestOwner};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::registry::MachineRegistry;
use pipeline::plan::{complete_with_sinks, plan};
use rustix::fs::fchown;
use rustix::net::{AddressFamily, SocketType, ipproto, socket};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::bpf::{ProgramRings, TrafficDirection, cgroup_chain, root_cgroup};
use testkit::need;
use testkit::net::{
    CLIENT, CLIENT_DEVICE, DevicePairSettings, Namespace, NamespacePair, SERVER, is_capturing,
    wait_until,
};

const CAROL_UID: u32 = 51_001;
const DAVE_UID: u32 = 51_002;

/// Returns `None`, and reports a skip, if the process is not root or cannot load programs.
fn require_program_loading() -> Option<()> {
    need::require_root()?;
    need::require_bpf()
}

/// Runs `work` in a namespace as a user.
fn run_in_namespace_as_user<T: Send>(
    space: &Namespace,
    user: u32,
    work: impl FnOnce() -> T + Send,
) -> T {
    space.run_in_network_namespace(|| {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        set_thread_groups(&[]).expect("root gives its groups up");
        set_thread_res_gid(gid, gid, gid).expect("root becomes anybody");
        set_thread_res_uid(uid, uid, uid).expect("root becomes anybody");
        work()
    })
}

/// A user's tap, attached until it is dropped.
struct Tap {
    rings: Arc<ProgramRings>,
    _running: DelegatedRequest,
}

/// A packet in the ring of a user's tap. `sent` is true if the user sent the packet, and false if
/// the user received it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct UserPacket {
    sent: bool,
    bytes: Vec<u8>,
}

impl Tap {
    /// Attaches the kernel part of a user's request `text` in a namespace. The returned tap reads
    /// the packets from its ring.
    fn attach(space: &Namespace, points: &AttachPoints, user: u32, text: &str) -> Self {
        let (delegated, running): (DelegatedProgram, DelegatedRequest) = space
            .run_in_network_namespace(|| {
                let machine = engine::machine::inspect_machine();
                let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
                assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
                let planned =
                    plan(graph.clone(), &MachineRegistry::Local, &machine).expect("a plan");
                let program = planned.programs.first().expect("a program");
                let steps = program.steps.iter().flat_map(|step| &step.nodes);
                let mut nodes: Vec<_> = program.sources.iter().chain(steps).copied().collect();
                nodes.sort_unstable_by_key(|id| id.0);
                let part = KernelPart { nodes, ring: program.ring.clone() };
                let attached = points.attach_delegated(
                    (&complete_with_sinks(graph, &MachineRegistry::Local).0, &part),
                    &machine,
                    RequestOwner { uid: user, about: "" },
                    &|_| Ok(()),
                );
                attached.unwrap_or_else(|why| panic!("{text}: {why}"))
            });
        let (rings, _) = delegated.open().expect("what it says");
        Self { rings, _running: running }
    }

    /// Returns all packets that the tap has recorded, ordered by time.
    fn packets(&self) -> Vec<UserPacket> {
        let mut reader = KernelRingReader::new(Arc::clone(&self.rings), vec![0]);
        reader.load_writer_positions();
        let mut all = Vec::new();
        while let Some(handed) = reader.front_frame() {
            let mut bytes = vec![0; handed.header.captured as usize];
            assert!(reader.copy_bytes(&handed, 0, &mut bytes));
            assert!(reader.is_intact(&handed, reader.reserved_position(handed.cpu)));
            all.push(UserPacket { sent: handed.header.sent, bytes });
            reader.advance_past_frame(&handed);
        }
        assert_eq!(reader.exit_losses()[0].lost, 0, "nothing was overtaken");
        all
    }

    /// Returns true if one of the rings that the user has mapped contains the bytes `mark`.
    fn contains_mark(&self, mark: &[u8]) -> bool {
        [self.rings.record_rings(), &*self.rings].into_iter().any(|rings| {
            let mut bytes = vec![0; rings.memory().len()];
            assert!(rings.memory().copy(0, &mut bytes));
            bytes.windows(mark.len()).any(|part| part == mark)
        })
    }
}

/// Number of bytes that each side of a conversation sends.
const CONVERSATION_BYTES: usize = 600_000;

/// Exchanges data over TCP between a user and the server at `listener`. The server closes its
/// connection first, because a socket in TIME_WAIT no longer belongs to a user.
fn exchange_data(listener: &TcpListener, space: &Namespace, user: u32, mark: &[u8]) {
    let address = listener.local_addr().expect("an address");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut received = vec![0; CONVERSATION_BYTES];
            stream.read_exact(&mut received).expect("all of it");
            stream.write_all(&received).expect("it listens");
            stream.shutdown(Shutdown::Write).expect("the end");
            let _ = stream.read(&mut [0]).expect("the other end");
        });
        let sent = conversation_text(mark);
        run_in_namespace_as_user(space, user, || {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.write_all(&sent).expect("it listens");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("all of it");
            assert_eq!(received, sent);
        });
    });
}

/// Returns the bytes that each side of a conversation sends: repetitions of `mark`.
fn conversation_text(mark: &[u8]) -> Vec<u8> {
    mark.iter().copied().cycle().take(CONVERSATION_BYTES).collect()
}

/// Returns the bytes that one side sent, reassembled by sequence number; missing bytes are 0.
fn reassemble_stream(packets: &[Vec<u8>]) -> Vec<u8> {
    let number = |packet: &[u8]| u32::from_be_bytes(*packet[24..].first_chunk().expect("of TCP"));
    let begins = |packet: &&Vec<u8>| packet[33] & 2 != 0;
    let first = number(packets.iter().find(begins).expect("a beginning")).wrapping_add(1);
    let mut stream = vec![0; CONVERSATION_BYTES];
    for packet in packets.iter().filter(|packet| !begins(packet)) {
        let payload = &packet[20 + usize::from(packet[32] >> 4) * 4..];
        let at = number(packet).wrapping_sub(first) as usize;
        if let Some(room) = stream.get_mut(at..at + payload.len()) {
            room.copy_from_slice(payload);
        }
    }
    stream
}

/// Returns the port in the address of a socket.
fn socket_port(address: std::io::Result<SocketAddr>) -> u16 {
    address.expect("an address").port()
}

/// Returns the TCP packets from or to a port in an Ethernet capture, without link headers. The
/// first list contains the packets that `from` sent, the second list all others.
fn tcp_packets_of_port(capture: &[u8], port: u16, from: [u8; 4]) -> [Vec<Vec<u8>>; 2] {
    let packets = parse_capture(capture).into_iter().filter_map(|frame| {
        let length = usize::from(u16::from_be_bytes(*frame.get(16..)?.first_chunk()?));
        let packet = frame.get(14..14 + length)?.to_vec();
        let ports = packet.get(20..)?.first_chunk::<4>()?;
        let ours = [&ports[..2], &ports[2..]].contains(&&port.to_be_bytes()[..]);
        (packet[9] == 6 && ours).then_some(packet)
    });
    let (sent, received) = packets.partition(|packet: &Vec<u8>| packet[12..16] == from);
    [sent, received]
}

/// Runs tcpdump at the client's device until `work` has returned and a packet that contains `last`
/// has been captured. Returns the capture, or `None` if tcpdump is not installed.
fn capture_with_tcpdump(
    pair: &NamespacePair,
    scratch: &Scratch,
    last: &[u8],
    work: impl FnOnce(),
) -> Option<Vec<u8>> {
    let tcpdump = need::require_command("tcpdump")?;
    let path = scratch.path("tcpdump");
    let mut command = pair.client.command(tcpdump);
    command.args(["-i", CLIENT_DEVICE, "-U", "-Z", "root", "-B", "65536", "-s", "0", "-w"]);
    let mut child = command.arg(&path).stderr(Stdio::null()).spawn().expect("tcpdump");
    wait_until("tcpdump watches", || is_capturing(&pair.client, child.id()));
    work();
    let written = || fs::read(&path).unwrap_or_default();
    wait_until("tcpdump has written all", || {
        written().windows(last.len()).any(|part| part == last)
    });
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    Some(written())
}

/// Sends a datagram from a new socket of a user.
fn send_datagram(space: &Namespace, user: u32, to: impl Into<SocketAddr>, bytes: &[u8]) {
    let to = to.into();
    run_in_namespace_as_user(space, user, || {
        let from = UdpSocket::bind("0.0.0.0:0").expect("a socket");
        from.send_to(bytes, to).expect("sent");
    });
}

fn parse_socket_address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().expect("an address"), port)
}

#[test]
fn p7_user_observes_all_its_sockets_and_no_other() {
    const MARKS: [&[u8]; 2] = [b"<carol's own>", b"<dave's own>"];
    let Some(()) = require_program_loading() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let (points, scratch) = (AttachPoints::default(), Scratch::new());
    let line = "rx own=yes ring=16MB | pcap /dev/null";
    let small = "rx own=yes ring=512KB | pcap /dev/null";
    let taps = [CAROL_UID, DAVE_UID].map(|user| Tap::attach(&pair.client, &points, user, line));
    let small = Tap::attach(&pair.client, &points, CAROL_UID, small);
    let listeners = MARKS.map(|_| {
        pair.server.run_in_network_namespace(|| TcpListener::bind((SERVER, 0)).expect("a listener"))
    });
    let client = &pair.client;
    let written = capture_with_tcpdump(&pair, &scratch, b"the last", || {
        std::thread::scope(|scope| {
            for ((listener, user), mark) in listeners.iter().zip([CAROL_UID, DAVE_UID]).zip(MARKS) {
                scope.spawn(move || exchange_data(listener, client, user, mark));
            }
        });
        // This datagram is sent after both ends of the others were closed.
        send_datagram(&pair.client, 0, parse_socket_address(SERVER, 9), b"the last");
    });
    let Some(written) = written else { return };
    for (at, tap) in taps.iter().enumerate() {
        let all = tap.packets();
        let port = socket_port(listeners[at].local_addr());
        let (sent, received) = all.iter().partition::<Vec<&UserPacket>, _>(|packet| packet.sent);
        let bytes =
            |packets: Vec<&UserPacket>| packets.iter().map(|packet| packet.bytes.clone()).collect();
        let ours: [Vec<Vec<u8>>; 2] = [bytes(sent), bytes(received)];
        let theirs = tcp_packets_of_port(&written, port, [10, 77, 0, 1]);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            // Two processors may send for one socket in different order at the program and at
            // tcpdump, and tcpdump may lose packets that we do not.
            assert!(theirs.len() > 3, "{}", theirs.len());
            let missed = theirs.iter().filter(|packet| !ours.contains(packet)).count();
            assert_eq!(missed, 0, "of {} that tcpdump saw, {} here", theirs.len(), ours.len());
            assert!(
                reassemble_stream(ours) == conversation_text(MARKS[at]),
                "what was said, byte for byte"
            );
        }
        assert!(tap.contains_mark(MARKS[at]) && !tap.contains_mark(MARKS[1 - at]), "user {at}");
        assert!(!tap.contains_mark(b"the last"), "root's");
    }
    // Some memory of the small rings has been reused.
    let written = |cpu| small.rings.cpu_ring(cpu).expect("a region").committed_position();
    let most = (0..small.rings.layout().cpus).map(written).max().expect("a processor");
    assert!(most > 2 * u64::from(small.rings.layout().bytes), "{most}");
    assert!(
        small.contains_mark(MARKS[0])
            && !small.contains_mark(MARKS[1])
            && !small.contains_mark(b"the last")
    );
    drop((taps, small));
    assert!(points.status().is_empty());
}

/// Asserts that a user's memory contains neither packets that might be attributed to the wrong
/// user, nor packets without a socket.
#[test]
fn p7_v7_user_memory_contains_no_foreign_bytes() {
    let Some(()) = require_program_loading() else { return };
    let Some(pair) = NamespacePair::new(DevicePairSettings::default()) else { return };
    let points = AttachPoints::default();
    let carol = Tap::attach(&pair.client, &points, CAROL_UID, "rx own=yes | pcap /dev/null");
    let here = &pair.client;
    // Dave sends to himself on loopback, and to root.
    let daves = run_in_namespace_as_user(here, DAVE_UID, || {
        UdpSocket::bind("127.0.0.1:0").expect("a socket")
    });
    let daves_address = parse_socket_address("127.0.0.1", socket_port(daves.local_addr()));
    send_datagram(here, DAVE_UID, daves_address, b"dave to dave");
    let roots = here.run_in_network_namespace(|| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
    let roots_address = parse_socket_address("127.0.0.1", socket_port(roots.local_addr()));
    send_datagram(here, DAVE_UID, roots_address, b"dave to root");
    // Packets for no socket, and the kernel's replies.
    send_datagram(&pair.server, DAVE_UID, parse_socket_address(CLIENT, 9), b"for no socket");
    send_datagram(here, DAVE_UID, parse_socket_address(SERVER, 9), b"dave to no listener");
    pair.server
        .run_in_network_namespace(|| TcpStream::connect((CLIENT, 9)).expect_err("nobody listens"));
    // A raw socket receives others' packets, whoever owns it; a plain one that Carol was given is
    // hers.
    let raw = here.run_in_network_namespace(|| {
        socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)).expect("a raw socket")
    });
    let her = (Some(Uid::from_raw(CAROL_UID)), Some(Gid::from_raw(CAROL_UID)));
    fchown(&raw, her.0, her.1).expect("root gives it away");
    send_datagram(
        &pair.server,
        DAVE_UID,
        parse_socket_address(CLIENT, 7),
        b"what raw sockets hear",
    );
    let given = here.run_in_network_namespace(|| UdpSocket::bind((CLIENT, 0)).expect("a socket"));
    let given_address = parse_socket_address(CLIENT, socket_port(given.local_addr()));
    send_datagram(&pair.server, DAVE_UID, given_address, b"before it was hers");
    fchown(&given, her.0, her.1).expect("root gives it away");
    send_datagram(&pair.server, DAVE_UID, given_address, b"dave to carol");
    // A process with her uid in another user namespace.
    let foreign_user = Command::new("unshare")
        .args(["--user", "--net", &format!("--map-user={CAROL_UID}"), "--keep-caps", "bash", "-c"])
        .arg("ip link set lo up && echo -n a stranger > /dev/udp/127.0.0.1/9 && id -u")
        .output();
    // Her packet is sent after all others.
    send_datagram(here, CAROL_UID, parse_socket_address(SERVER, 9), b"the last of hers");
    wait_until("hers has come", || carol.contains_mark(b"the last of hers"));
    let has_mark = |mark: &[u8]| carol.contains_mark(mark);
    assert!(has_mark(b"dave to carol"), "what her socket receives is hers, whoever sent it");
    for mark in [
        &b"dave to dave"[..],
        b"dave to root",
        b"for no socket",
        b"dave to no listener",
        b"what raw sockets hear",
        b"before it was hers",
        b"a stranger",
    ] {
        assert!(!has_mark(mark), "{}", String::from_utf8_lossy(mark));
    }
    match foreign_user {
        Ok(output) if output.stdout == format!("{CAROL_UID}\n").as_bytes() => {}
        other => println!("skipped: another user namespace: {other:?}"),
    }
    let packets = carol.packets();
    assert!(packets.iter().all(|packet| packet.bytes[9] == 17), "no RST, no ICMP: {packets:?}");
    assert_eq!(packets.iter().filter(|packet| packet.sent).count(), 1, "{packets:?}");
}

/// Returns a datagram with `number` and bytes derived from it, so that its receiver can check it.
fn numbered_datagram(number: u64) -> Vec<u8> {
    let length = usize::try_from(number % 1200).expect("small");
    let fill = u8::try_from(number % 251).expect("small");
    [&number.to_le_bytes()[..], &vec![fill; length]].concat()
}

/// Sends from several threads, so that packets interrupt a sender on the same processor. Asserts
/// that every packet is recorded completely and once.
#[test]
fn p7_packets_that_interrupt_a_sender_are_complete() {
    const SENDER_COUNT: u64 = 4;
    const DATAGRAMS_PER_SENDER: u64 = 1_000;
    let Some(()) = require_program_loading() else { return };
    let Some(space) = Namespace::new() else { return };
    let points = AttachPoints::default();
    let carol = Tap::attach(&space, &points, CAROL_UID, "rx own=yes ring=64MB | pcap /dev/null");
    let sink = run_in_namespace_as_user(&space, CAROL_UID, || {
        UdpSocket::bind("127.0.0.1:0").expect("a socket")
    });
    let to = sink.local_addr().expect("an address");
    let sent = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for sender in 0..SENDER_COUNT {
            let (space, sent) = (&space, &sent);
            scope.spawn(move || {
                run_in_namespace_as_user(space, CAROL_UID, || {
                    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
                    for number in sender * DATAGRAMS_PER_SENDER..(sender + 1) * DATAGRAMS_PER_SENDER
                    {
                        socket.send_to(&numbered_datagram(number), to).expect("sent");
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
    });
    let all = carol.packets();
    let mut came = [vec![], vec![]];
    for packet in &all {
        let payload = &packet.bytes[28..];
        let number = u64::from_le_bytes(*payload.first_chunk().expect("a number"));
        assert!(payload == numbered_datagram(number), "packet {number} is whole");
        came[usize::from(packet.sent)].push(number);
    }
    drop(carol);
    for numbers in &mut came {
        numbers.sort_unstable();
        assert!(numbers.windows(2).all(|two| two[0] < two[1]), "each once");
    }
    let [received, sent_ones] = came;
    assert_eq!(sent.into_inner(), SENDER_COUNT * DATAGRAMS_PER_SENDER);
    // A full socket drops a packet before or after our program, as the kernel chooses.
    assert!(received.len() <= sent_ones.len());
    assert_eq!(
        sent_ones.len() as u64,
        SENDER_COUNT * DATAGRAMS_PER_SENDER,
        "all that was sent was seen"
    );
}

/// Kills a process, and asserts that it leaves no program attached.
#[test]
fn p7_killed_process_leaves_no_program_attached() {
    let Some(()) = require_program_loading() else { return };
    let Some(space) = Namespace::new() else { return };
    let group = root_cgroup().expect("control groups");
    let ours = || {
        let sides = [TrafficDirection::Ingress, TrafficDirection::Egress]
            .map(|side| cgroup_chain(&group, side));
        let members = sides.into_iter().flat_map(|chain| chain.expect("a chain").members);
        members.map(|member| member.program).collect::<Vec<u32>>()
    };
    let programs = |process: u32| {
        let folder = fs::read_dir(format!("/proc/{process}/fdinfo"));
        let entries = folder.into_iter().flatten().flatten();
        let texts = entries.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let number = |text: String| {
            let cgroup = text.contains("link_type:\tcgroup");
            let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"))?;
            line.trim().parse::<u32>().ok().filter(|_| cgroup)
        };
        texts.filter_map(number).collect::<Vec<u32>>()
    };
    let mut command = space.command(testkit::streamline_program());
    command.args(["run", "rx own=yes | count"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it starts");
    wait_until("its programs are attached", || {
        assert!(child.try_wait().expect("a child").is_none(), "it ended");
        let theirs = programs(child.id());
        theirs.len() == 2 && theirs.iter().all(|program| ours().contains(program))
    });
    let theirs = programs(child.id());
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    wait_until("its programs are gone", || theirs.iter().all(|program| !ours().contains(program)));
}

/// A daemon run by root delivers to an unprivileged user the traffic of the user's own sockets, but
/// of no interface.
#[test]
fn p7_v7_unprivileged_user_receives_its_own_traffic() {
    let (Some(()), Some(setpriv)) = (require_program_loading(), need::require_command("setpriv"))
    else {
        return;
    };
    let Some(space) = Namespace::new() else { return };
    let folder = Scratch::new();
    fs::set_permissions(folder.path(""), Permissions::from_mode(0o755)).expect("our folder");
    let (program, place) = (copy_program_for_every_user(&folder), folder.path("daemon"));
    let policy = folder.path("policy.toml");
    fs::write(&policy, "").expect("a file");
    let mut command = space.command(&program);
    command.arg("daemon").arg("--socket").arg(&place).arg("--policy").arg(&policy);
    let daemon = command.stderr(Stdio::null()).spawn().expect("a daemon");
    let daemon = KillOnDrop(daemon);
    let carols = |program: &std::path::Path| {
        let mut command = space.command(&setpriv);
        command.args([format!("--reuid={CAROL_UID}"), format!("--regid={CAROL_UID}")]);
        command.args(["--clear-groups", "--inh-caps=-all"]).arg(program);
        command.env("STREAMLINE_DAEMON", &place);
        command
    };
    wait_until("the daemon answers", || {
        let answers =
            carols(&program).arg("ps").stdout(Stdio::null()).stderr(Stdio::null()).status();
        answers.expect("setpriv").success()
    });
    let refused = carols(&program).args(["run", "rx lo | count"]).output().expect("setpriv");
    assert_eq!(refused.status.code(), Some(1));
    let explained = carols(&program).args(["explain", "rx lo | count"]).output().expect("setpriv");
    assert_eq!(explained.status.code(), Some(1), "the policy is known beforehand");
    let stderr = String::from_utf8_lossy(&explained.stderr);
    let stderr = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["may not watch lo", "you may not open a packet socket"] {
        assert!(stderr.contains(part) && !stderr.contains("pinned"), "{part}: {stderr}");
    }
    let wrong = carols(&program).args(["run", "rx lo own=yes | count"]).output().expect("setpriv");
    let stderr = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        stderr.contains("leave the interface out") && !stderr.contains("CAP_NET_RAW"),
        "{stderr}"
    );
    let mut observer = Observer::spawn(carols(&program), "rx own=yes | pcap out.pcap");
    wait_until("her line has begun", || {
        observer.assert_running();
        send_datagram(&space, CAROL_UID, parse_socket_address("127.0.0.1", 9), b"carol's own");
        fs::metadata(observer.path("out.pcap")).is_ok_and(|file| file.len() > 24)
    });
    send_datagram(&space, DAVE_UID, parse_socket_address("127.0.0.1", 9), b"dave's own");
    send_datagram(&space, CAROL_UID, parse_socket_address("127.0.0.1", 9), b"the last of hers");
    let capture = || fs::read(observer.path("out.pcap")).unwrap_or_default();
    let contains_mark =
        |bytes: &[u8], mark: &[u8]| bytes.windows(mark.len()).any(|part| part == mark);
    wait_until("the last has come", || contains_mark(&capture(), b"the last of hers"));
    let written = capture();
    assert!(contains_mark(&written, b"carol's own") && !contains_mark(&written, b"dave's own"));
    let ran = observer.stop();
    assert_eq!(ran.status, Some(0), "{}", ran.err);
    assert_eq!(ran.ledger["balanced"], true, "{}", ran.ledger);
    drop(daemon);
}

/// A process that is killed on drop.
struct KillOnDrop(std::process::Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
