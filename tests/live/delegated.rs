//! Tests of requests of several users in one program: each user's frames are in the user's own
//! rings. A process of that user can read the rings but not write them, and needs no right to load
//! programs. (CONTRACT 21, 25; RELIABILITY T2, T17, T19)

use crate::frame_sending::{parse_capture, send_all};
use crate::judge::run_without_perfmon;
use crate::shared_program::{attached_program_ids, program_status, quiet_pair};
use endpoint::source::kernel::Attachment;
use engine::build::{BuildError, BuiltPath, PathOptions, RunSettings, build_with_options};
use engine::kernel::delegation::{
    DelegatedLayout, DelegatedProgram, DelegatedRequest, FinalCounters, KernelPart, RequestOwner,
};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::kernel::{AttachmentHandle, KernelAttachment, KernelHost, KernelRequest};
use engine::registry::MachineRegistry;
use engine::run::{StopConditions, run};
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{Kernel, Machine, complete_with_sinks, plan};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, OnceLock};
use sys::bpf::{Map, ProgramRings};
use sys::descriptor;
use sys::process::{self, OVERFLOW_ID};
use testkit::net::{NamespacePair, SERVER_DEVICE, WAIT_TIMEOUT};
use testkit::{Frame, need};

const ALICE_UID: u32 = OVERFLOW_ID;
const BOB_UID: u32 = OVERFLOW_ID - 1;

/// Parses a request as the daemon does.
pub(crate) fn parse_as_daemon(text: &str) -> Graph {
    let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    complete_with_sinks(graph, &MachineRegistry::Local).0
}

/// Returns the part of a request that its plan places in the kernel.
pub(crate) fn plan_kernel_part(text: &str, machine: &Machine) -> KernelPart {
    let (graph, _) = pipeline::read_request(text, &MachineRegistry::Local);
    let planned = plan(graph, &MachineRegistry::Local, machine).expect("a plan");
    let program = planned.programs.first().expect("a program");
    let steps = program.steps.iter().flat_map(|step| &step.nodes);
    let mut nodes: Vec<NodeId> = program.sources.iter().chain(steps).copied().collect();
    nodes.sort_unstable_by_key(|id| id.0);
    KernelPart { nodes, ring: program.ring.clone() }
}

/// Attaches the kernel part of a user's request at the server's end of the veth pair.
pub(crate) fn attach_delegated_request(
    pair: &NamespacePair,
    points: &AttachPoints,
    text: &str,
    owner: u32,
) -> (DelegatedProgram, DelegatedRequest) {
    pair.server.run_in_network_namespace(|| attach_request_in_this_namespace(points, text, owner))
}

/// Attaches the kernel part of a user's request in this thread's namespace.
fn attach_request_in_this_namespace(
    points: &AttachPoints,
    text: &str,
    owner: u32,
) -> (DelegatedProgram, DelegatedRequest) {
    let machine = engine::machine::inspect_machine();
    let part = plan_kernel_part(text, &machine);
    let attached = points.attach_delegated(
        (&parse_as_daemon(text), &part),
        &machine,
        RequestOwner { uid: owner, about: "" },
        &|_| Ok(()),
    );
    attached.unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// Returns `count` frames to a port. The payload of each consists of a repeated mark.
fn marked_frames(port: u16, mark: &[u8], count: usize) -> Vec<Vec<u8>> {
    let payload = mark.repeat(1000 / mark.len());
    let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, port, &payload);
    vec![frame; count]
}

/// Returns true if the memory of a user's rings contains the bytes `mark`.
fn contains_mark(rings: &ProgramRings, mark: &[u8]) -> bool {
    let mut bytes = vec![0; rings.memory().len()];
    assert!(rings.memory().copy(0, &mut bytes));
    bytes.windows(mark.len()).any(|part| part == mark)
}

#[test]
fn p3_frames_stay_in_rings_of_their_user_when_memory_is_reused() {
    const MARKS: [(u16, &[u8]); 3] = [(53, b"<alice's>"), (80, b"<bob's>"), (443, b"<carol's>")];
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let line = |port: u16| {
        format!("rx {SERVER_DEVICE} ring=1MB | ip | udp | dport |{port} pcap /dev/null")
    };
    let open = |port: u16, owner: u32| {
        let (delegated, running) = attach_delegated_request(&pair, &points, &line(port), owner);
        (delegated.open().expect("what it says").0, running)
    };
    let (alice, hers) = open(53, ALICE_UID);
    let (bob, his) = open(80, BOB_UID);
    let (again, hers_too) = open(53, ALICE_UID);
    let now = program_status(&points);
    assert_eq!((now.request_count, now.frame_rings, attached_program_ids(&pair).len()), (3, 2, 1));
    let number = |rings: &ProgramRings| rings.record_rings().map().info().expect("a map").id;
    assert_eq!(number(&alice), number(&again), "lines of one owner share its frames");
    assert_ne!(number(&alice), number(&bob));
    // Enough to lap the ring of a processor, whatever their number.
    let shape = alice.layout();
    let count = 3 * shape.bytes as usize * shape.cpus as usize / 1000;
    let frames: Vec<Vec<u8>> =
        MARKS.iter().flat_map(|(port, mark)| marked_frames(*port, mark, count)).collect();
    send_all(&pair, &frames);
    for (rings, own) in [(&alice, 0), (&bob, 1)] {
        let written: u64 = (0..rings.layout().cpus)
            .map(|cpu| rings.cpu_ring(cpu).expect("a region").committed_position())
            .sum();
        assert!(written > 2 * u64::from(rings.layout().bytes * rings.layout().cpus), "{written}");
        for (place, (_, mark)) in MARKS.iter().enumerate() {
            assert_eq!(contains_mark(rings.record_rings(), mark), place == own, "{own}: {mark:?}");
            assert!(!contains_mark(rings, mark), "pointers hold no bytes of frames");
        }
    }
    // Bob's memory returns to the kernel, and Carol's comes from there.
    drop((bob, his));
    let (carol, hers_as_well) = open(443, BOB_UID - 1);
    for (_, mark) in MARKS {
        assert!(
            !contains_mark(carol.record_rings(), mark) && !contains_mark(&carol, mark),
            "{mark:?}"
        );
    }
    send_all(&pair, &frames);
    for (place, (_, mark)) in MARKS.iter().enumerate() {
        assert_eq!(contains_mark(carol.record_rings(), mark), place == 2, "{mark:?}");
    }
    drop((hers, hers_too, hers_as_well));
    assert!(attached_program_ids(&pair).is_empty());
}

/// The program is loaded without CAP_PERFMON, as a daemon loads it, and each request receives its
/// own frames.
#[test]
fn o7_ten_requests_of_five_users_share_one_hardened_program() {
    const REQUESTS: u16 = 10;
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let mut lines = Vec::new();
    for port in 1..=REQUESTS {
        let owner = ALICE_UID - u32::from(port % 5);
        let text =
            format!("rx {SERVER_DEVICE} ring=512KB | ip | udp | dport |{port} pcap /dev/null");
        let here =
            || run_without_perfmon(|| attach_request_in_this_namespace(&points, &text, owner));
        lines.push(pair.server.run_in_network_namespace(here));
    }
    let now = program_status(&points);
    assert_eq!((now.request_count, now.frame_rings, attached_program_ids(&pair).len()), (10, 5, 1));
    let mut frames: Vec<Vec<u8>> =
        (1..=REQUESTS).flat_map(|p| marked_frames(p, b"x", p.into())).collect();
    frames.extend(marked_frames(REQUESTS + 1, b"nobody's", 20));
    send_all(&pair, &frames);
    let now = program_status(&points);
    let all = frames.len() as u64;
    let steps: Vec<_> =
        now.steps.iter().map(|(name, lines, n)| (name.as_str(), *lines, *n)).collect();
    assert_eq!(steps, [("ip", 10, all), ("udp", 10, all), ("dport", 10, all)]);
    for (port, (delegated, line)) in (1..=REQUESTS).zip(lines) {
        let (rings, _) = delegated.open().expect("what it says");
        let cpus = 0..rings.layout().cpus;
        let handed: u64 =
            cpus.map(|cpu| rings.cpu_ring(cpu).expect("a cpu_ring").sink_pointer_count(0)).sum();
        assert_eq!(handed, u64::from(port), "{port}");
        drop(run_without_perfmon(|| line.detach()));
    }
    assert!(attached_program_ids(&pair).is_empty());
}

/// Asks for kernel parts that no plan would place in the kernel, as a malicious process may.
/// Asserts that each of them is refused, and that no program is attached.
#[test]
fn t17_delegated_layout_that_was_not_planned_is_refused() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} | ip | tcp | pcap /dev/null");
    let machine = engine::machine::inspect_machine();
    let graph = parse_as_daemon(&text);
    let good = plan_kernel_part(&text, &machine);
    for nodes in [vec![], vec![NodeId(99)], (0..graph.nodes.len()).map(NodeId).collect()] {
        let part = KernelPart { nodes, ..good.clone() };
        let asked = pair.server.run_in_network_namespace(|| {
            points.attach_delegated(
                (&graph, &part),
                &machine,
                RequestOwner { uid: ALICE_UID, about: "" },
                &|_| Ok(()),
            )
        });
        assert!(matches!(asked, Err(BuildError::Refused(_))), "{part:?}: {asked:?}");
    }
    assert!(attached_program_ids(&pair).is_empty());
}

const CHILD_REQUEST_VARIABLE: &str = "STREAMLINE_LIVE_HANDOUT";
const CHILD_REQUEST: &str = "| ip | udp | dport |53 ( count + pcap - )";
/// Number of frames that the test sends. They fit into a pipe that is not read.
const CHILD_FRAME_COUNT: usize = 40;

/// Returns the next message from the peer at `socket`, with its descriptors. `whom` names the peer
/// in the failure message. Panics if no message arrives within the timeout of tests.
fn receive_message(socket: impl AsFd, whom: &str) -> (String, Vec<OwnedFd>) {
    let is_readable = sys::poll::wait_until_readable(&[socket.as_fd()], Some(WAIT_TIMEOUT));
    assert_eq!(is_readable, [true], "waited for {whom}");
    let mut message = vec![0; 1 << 16];
    let (length, descriptors) = descriptor::receive(&socket, &mut message).expect("a message");
    (String::from_utf8_lossy(&message[..length]).into_owned(), descriptors)
}

/// Serves the requests of the process at the other end of a socket until that process exits.
fn serve_peer(
    pair: &NamespacePair,
    points: &AttachPoints,
    text: &str,
    socket: &OwnedFd,
    running: &dyn Fn(),
) {
    let mut held = None;
    loop {
        let (message, _) = receive_message(socket, "the other user's process");
        let (what, rest) = message.split_once(':').unwrap_or((&message, ""));
        match what {
            "part" => {
                let part = KernelPart::from_text(rest).expect("a part");
                let machine = engine::machine::inspect_machine();
                let graph = parse_as_daemon(text);
                let attached = pair.server.run_in_network_namespace(|| {
                    points.attach_delegated(
                        (&graph, &part),
                        &machine,
                        RequestOwner { uid: ALICE_UID, about: "" },
                        &|_| Ok(()),
                    )
                });
                let (delegated, line) = attached.unwrap_or_else(|why| panic!("{why}"));
                let DelegatedProgram { layout, records, pointers, doorbell } = &delegated;
                let descriptors = [records.as_fd(), pointers.as_fd(), doorbell.as_fd()];
                descriptor::send(socket, layout.to_text().as_bytes(), &descriptors).expect("sent");
                held = Some(line);
            }
            "runs" => {
                running();
                descriptor::send(socket, b"stop", &[]).expect("sent");
            }
            "leave" => {
                let ended = held.take().expect("a line").detach();
                descriptor::send(socket, ended.to_text().as_bytes(), &[]).expect("sent");
            }
            _ => return,
        }
    }
}

#[test]
fn p4_t19_other_user_reads_delegated_rings_but_cannot_write() {
    let Some(pair) = quiet_pair() else { return };
    let points = AttachPoints::default();
    let text = format!("rx {SERVER_DEVICE} {CHILD_REQUEST}");
    let (here, there) = descriptor::socket_pair().expect("a pair of sockets");
    let Some(child) =
        pair.server.run_in_network_namespace(|| start_request_as_other_user(there, &text))
    else {
        return;
    };
    let mut frames = marked_frames(53, b"hers", CHILD_FRAME_COUNT);
    frames.extend(marked_frames(80, b"others'", CHILD_FRAME_COUNT));
    serve_peer(&pair, &points, &text, &here, &|| {
        assert_eq!(program_status(&points).request_count, 1);
        send_all(&pair, &frames);
    });
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let begin = output.stdout.windows(4).position(|at| at == [0xd4, 0xc3, 0xb2, 0xa1]);
    let begin =
        begin.or_else(|| output.stdout.windows(4).position(|at| at == [0x4d, 0x3c, 0xb2, 0xa1]));
    let captured = parse_capture(&output.stdout[begin.unwrap_or_else(|| panic!("{stderr}"))..]);
    assert!(
        captured.len() >= CHILD_FRAME_COUNT
            && captured[..CHILD_FRAME_COUNT] == frames[..CHILD_FRAME_COUNT],
        "{stderr}"
    );
    for word in ["balanced", &format!("counted {CHILD_FRAME_COUNT}"), "refused 4"] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
    assert!(attached_program_ids(&pair).is_empty());
}

/// Starts this executable again as another user in this namespace, with the socket as standard
/// input. Returns `None` if that user cannot execute it.
fn start_request_as_other_user(socket: OwnedFd, text: &str) -> Option<Child> {
    let mut command = process::reexec_command(ALICE_UID, socket).expect("this executable");
    command
        .args(["delegated::child_process_runs_request", "--exact", "--nocapture", "--quiet"])
        .env(CHILD_REQUEST_VARIABLE, text);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let why = "needs to become another user, who may enter the build folder";
    process::spawn(&mut command).ok().or_else(|| need::report_skip(why))
}

/// A [`Host`] without rights of its own. It passes each request for kernel filters to the process
/// at the other end of standard input.
#[derive(Debug)]
struct RemoteKernel;

/// A request for kernel filters that the process at the other end of standard input serves for this
/// process.
#[derive(Debug, Default)]
struct RemoteRequest(OnceLock<FinalCounters>);

/// Sends a message to the process at the other end of standard input. Returns the reply and the
/// descriptors that it contains.
fn send_and_receive_reply(message: &str) -> (String, Vec<OwnedFd>) {
    let socket = io::stdin();
    descriptor::send(&socket, message.as_bytes(), &[]).expect("somebody listens");
    receive_message(socket, "who runs the line")
}

impl KernelHost for RemoteKernel {
    fn attach(&self, asked: &KernelRequest<'_>) -> Result<KernelAttachment, BuildError> {
        let (layout, descriptors) =
            send_and_receive_reply(&format!("part:{}", KernelPart::extract(asked).to_text()));
        let [records, pointers, doorbell] = descriptors.try_into().expect("three descriptors");
        let layout = DelegatedLayout::from_text(&layout).expect("a layout");
        assert_writes_are_refused(&layout, [&records, &pointers, &doorbell]);
        let delegated = DelegatedProgram { layout, records, pointers, doorbell };
        Ok(delegated.into_attachment(Arc::new(RemoteRequest::default()))?)
    }
}

impl Attachment for RemoteRequest {
    fn detach(&self) {
        let _ = self.final_counters();
    }
}

impl AttachmentHandle for RemoteRequest {
    fn final_counters(&self) -> &FinalCounters {
        self.0.get_or_init(|| {
            FinalCounters::from_text(&send_and_receive_reply("leave").0)
                .expect("what it leaves behind")
        })
    }
}

/// Asserts that a user cannot change the rings. Every attempt to map the rings for writing, or to
/// set their contents, must be refused. A map of another kind in place of a ring must be refused
/// too.
fn assert_writes_are_refused(
    layout: &DelegatedLayout,
    [records, pointers, doorbell]: [&OwnedFd; 3],
) {
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let mut refused = 0;
    for fd in [records, pointers] {
        let map = Map::from_received(copy(fd.as_fd())).expect("a map");
        map.map().expect_err("mapped for writing");
        let info = map.info().expect("what it is");
        map.set(0, &vec![0; info.value_size as usize]).expect_err("set by key");
        refused += 2;
    }
    let other = ProgramRings::from_received(copy(doorbell.as_fd()), layout.shape.pointers_only());
    other.expect_err("a doorbell is no ring");
    let other = ProgramRings::from_received(copy(records.as_fd()), layout.shape.pointers_only());
    other.expect_err("frames are no pointers");
    eprintln!("refused {refused}");
}

/// Entry point of the client process, which runs the request in the environment variable
/// [`CHILD_REQUEST_VARIABLE`].
#[test]
fn child_process_runs_request() {
    let Ok(text) = std::env::var(CHILD_REQUEST_VARIABLE) else { return };
    assert_eq!(process::effective_ids(), (ALICE_UID, ALICE_UID));
    let (graph, _) = pipeline::read_request(&text, &MachineRegistry::Local);
    // The plan is for the kernel of the serving process.
    let kernel = Kernel::Open { release: "6.18".to_owned(), hardened: true };
    let machine = Machine { kernel, ..engine::machine::inspect_machine() };
    let plan = plan(graph, &MachineRegistry::Local, &machine).expect("a plan");
    let paths =
        build_with_options(&plan, RunSettings::default(), &RemoteKernel, &PathOptions::default())
            .expect("paths");
    let lives: Vec<_> = paths.iter().map(BuiltPath::live).collect();
    let outcome = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run(paths, StopConditions::default()).expect("a run"));
        assert_eq!(send_and_receive_reply("runs").0, "stop");
        lives.iter().for_each(engine::live::PathHandle::stop);
        runs.join().expect("a run")
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    let count = outcome.reports.iter().find(|report| report.name == "count").expect("a count");
    eprintln!("balanced\ncounted {}", count.report.rows[0].1);
    descriptor::send(io::stdin(), b"end", &[]).expect("somebody listens");
}
