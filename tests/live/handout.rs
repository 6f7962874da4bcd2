//! Lines of several users in one program: each user's frames are in rings of its own, and a process
//! of that user, which may load nothing, reads them there and cannot write. (CONTRACT 21, 25;
//! RELIABILITY T2, T17, T19)

use crate::judge::without_perfmon;
use crate::send::{frames_of, send_all};
use crate::shared::{chain, shown, silent};
use endpoint::source::kernel::Standing;
use engine::build::{BuildError, Path, Settings, build_at};
use engine::catalogue::House;
use engine::kernel::handout::{Ended, Handout, Layout, Part, Running};
use engine::kernel::point::Points;
use engine::kernel::{Asked, Held, Host, Lent};
use engine::run::{Until, run};
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{Kernel, Machine, complete, plan};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Stdio};
use std::sync::{Arc, OnceLock};
use sys::bpf::{Map, Rings};
use sys::descriptor;
use sys::process::{self, NOBODY};
use testkit::net::{LIMIT, Pair, SERVER_DEVICE};
use testkit::{Frame, need};

const ALICE: u32 = NOBODY;
const BOB: u32 = NOBODY - 1;

/// A request as who runs lines for others reads it.
fn read(text: &str) -> Graph {
    let (graph, mistakes) = pipeline::read(text, &House);
    assert!(mistakes.is_empty(), "{}", pipeline::render(text, &mistakes, false));
    complete(graph, &House).0
}

/// The part of a line that its plan places in the kernel.
pub(crate) fn part_of(text: &str, machine: &Machine) -> Part {
    let (graph, _) = pipeline::read(text, &House);
    let planned = plan(graph, &House, machine).expect("a plan");
    let program = planned.programs.first().expect("a program");
    let steps = program.steps.iter().flat_map(|step| &step.nodes);
    let mut nodes: Vec<NodeId> = program.sources.iter().chain(steps).copied().collect();
    nodes.sort_unstable_by_key(|id| id.0);
    Part { nodes, ring: program.ring.clone() }
}

/// Runs a line for a user.
fn attach(pair: &Pair, points: &Points, text: &str, owner: u32) -> (Handout, Running) {
    pair.server.enter(|| attach_here(points, text, owner))
}

/// The same in the name space of this thread.
fn attach_here(points: &Points, text: &str, owner: u32) -> (Handout, Running) {
    let machine = engine::machine::look();
    let part = part_of(text, &machine);
    let attached = points.attach((&read(text), &part), &machine, owner);
    attached.unwrap_or_else(|why| panic!("{text}: {why}"))
}

/// Frames to a port that carry a mark from their first byte to their last.
fn marked(port: u16, mark: &[u8], count: usize) -> Vec<Vec<u8>> {
    let payload = mark.repeat(1000 / mark.len());
    let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, port, &payload);
    vec![frame; count]
}

/// Returns true if a mark is anywhere in a map.
fn holds(rings: &Rings, mark: &[u8]) -> bool {
    let mut bytes = vec![0; rings.memory().len()];
    assert!(rings.memory().copy(0, &mut bytes));
    bytes.windows(mark.len()).any(|part| part == mark)
}

#[test]
fn p3_frames_stay_in_rings_of_their_user_when_memory_is_reused() {
    const MARKS: [(u16, &[u8]); 3] = [(53, b"<alice's>"), (80, b"<bob's>"), (443, b"<carol's>")];
    let Some(pair) = silent() else { return };
    let points = Points::default();
    let line = |port: u16| {
        format!("rx {SERVER_DEVICE} ring=1MB | ip | udp | dport |{port} pcap /dev/null")
    };
    let open = |port: u16, owner: u32| {
        let (handout, running) = attach(&pair, &points, &line(port), owner);
        (handout.open().expect("what it says").0, running)
    };
    let (alice, hers) = open(53, ALICE);
    let (bob, his) = open(80, BOB);
    let (again, hers_too) = open(53, ALICE);
    let now = shown(&points);
    assert_eq!((now.lines, now.owners, chain(&pair).len()), (3, 2, 1));
    let number = |rings: &Rings| rings.records().map().info().expect("a map").id;
    assert_eq!(number(&alice), number(&again), "lines of one owner share its frames");
    assert_ne!(number(&alice), number(&bob));
    // So many that the ring of a processor is written more than once, on a machine with any number.
    let shape = alice.shape();
    let count = 3 * shape.bytes as usize * shape.cpus as usize / 1000;
    let frames: Vec<Vec<u8>> =
        MARKS.iter().flat_map(|(port, mark)| marked(*port, mark, count)).collect();
    send_all(&pair, &frames);
    for (rings, own) in [(&alice, 0), (&bob, 1)] {
        let written: u64 = (0..rings.shape().cpus)
            .map(|cpu| rings.region(cpu).expect("a region").committed())
            .sum();
        assert!(written > 2 * u64::from(rings.shape().bytes * rings.shape().cpus), "{written}");
        for (place, (_, mark)) in MARKS.iter().enumerate() {
            assert_eq!(holds(rings.records(), mark), place == own, "{own}: {mark:?}");
            assert!(!holds(rings, mark), "pointers hold no bytes of frames");
        }
    }
    // Bob's memory goes back to the kernel, and carol's comes from there.
    drop((bob, his));
    let (carol, hers_as_well) = open(443, BOB - 1);
    for (_, mark) in MARKS {
        assert!(!holds(carol.records(), mark) && !holds(&carol, mark), "{mark:?}");
    }
    send_all(&pair, &frames);
    for (place, (_, mark)) in MARKS.iter().enumerate() {
        assert_eq!(holds(carol.records(), mark), place == 2, "{mark:?}");
    }
    drop((hers, hers_too, hers_as_well));
    assert!(chain(&pair).is_empty());
}

/// As a daemon without CAP_PERFMON loads them; what each line finds is its own.
#[test]
fn o7_ten_lines_of_five_users_are_one_program_without_perfmon() {
    const LINES: u16 = 10;
    let Some(pair) = silent() else { return };
    let points = Points::default();
    let mut lines = Vec::new();
    for port in 1..=LINES {
        let owner = ALICE - u32::from(port % 5);
        let text =
            format!("rx {SERVER_DEVICE} ring=512KB | ip | udp | dport |{port} pcap /dev/null");
        let here = || without_perfmon(|| attach_here(&points, &text, owner));
        lines.push(pair.server.enter(here));
    }
    let now = shown(&points);
    assert_eq!((now.lines, now.owners, chain(&pair).len()), (10, 5, 1));
    let mut frames: Vec<Vec<u8>> = (1..=LINES).flat_map(|p| marked(p, b"x", p.into())).collect();
    frames.extend(marked(LINES + 1, b"nobody's", 20));
    send_all(&pair, &frames);
    let now = shown(&points);
    let all = frames.len() as u64;
    let steps: Vec<_> =
        now.steps.iter().map(|(name, lines, n)| (name.as_str(), *lines, *n)).collect();
    assert_eq!(steps, [("ip", 10, all), ("udp", 10, all), ("dport", 10, all)]);
    for (port, (handout, line)) in (1..=LINES).zip(lines) {
        let (rings, _) = handout.open().expect("what it says");
        let cpus = 0..rings.shape().cpus;
        let handed: u64 = cpus.map(|cpu| rings.region(cpu).expect("a region").head(0)).sum();
        assert_eq!(handed, u64::from(port), "{port}");
        drop(without_perfmon(|| line.detach()));
    }
    assert!(chain(&pair).is_empty());
}

/// The receiver checks a request itself, whatever the sender claims.
#[test]
fn t17_a_part_that_was_not_planned_so_is_refused() {
    let Some(pair) = silent() else { return };
    let points = Points::default();
    let text = format!("rx {SERVER_DEVICE} | ip | tcp | pcap /dev/null");
    let machine = engine::machine::look();
    let graph = read(&text);
    let good = part_of(&text, &machine);
    for nodes in [vec![], vec![NodeId(99)], (0..graph.nodes.len()).map(NodeId).collect()] {
        let part = Part { nodes, ..good.clone() };
        let asked = pair.server.enter(|| points.attach((&graph, &part), &machine, ALICE));
        assert!(matches!(asked, Err(BuildError::Refused(_))), "{part:?}: {asked:?}");
    }
    assert!(chain(&pair).is_empty());
}

const CHILD: &str = "STREAMLINE_LIVE_HANDOUT";
const LINE: &str = "| ip | udp | dport |53 ( count + pcap - )";
/// As many as a pipe holds while nobody reads it.
const FRAMES: usize = 40;

/// Returns the next message of the peer, within the time that tests have.
fn hear(socket: impl AsFd, whom: &str) -> (String, Vec<OwnedFd>) {
    let heard = sys::poll::readable(&[socket.as_fd()], Some(LIMIT));
    assert_eq!(heard, [true], "waited for {whom}");
    let mut message = vec![0; 1 << 16];
    let (length, descriptors) = descriptor::receive(&socket, &mut message).expect("a message");
    (String::from_utf8_lossy(&message[..length]).into_owned(), descriptors)
}

/// Runs lines for the process at the other end of a socket, until that ends.
fn serve(pair: &Pair, points: &Points, text: &str, socket: &OwnedFd, running: &dyn Fn()) {
    let mut held = None;
    loop {
        let (told, _) = hear(socket, "the other user's process");
        let (what, rest) = told.split_once(':').unwrap_or((&told, ""));
        match what {
            "part" => {
                let part = Part::from_text(rest).expect("a part");
                let machine = engine::machine::look();
                let graph = read(text);
                let attached =
                    pair.server.enter(|| points.attach((&graph, &part), &machine, ALICE));
                let (handout, line) = attached.unwrap_or_else(|why| panic!("{why}"));
                let Handout { layout, records, pointers, bell } = &handout;
                let descriptors = [records.as_fd(), pointers.as_fd(), bell.as_fd()];
                descriptor::send(socket, layout.text().as_bytes(), &descriptors).expect("sent");
                held = Some(line);
            }
            "runs" => {
                running();
                descriptor::send(socket, b"stop", &[]).expect("sent");
            }
            "leave" => {
                let ended = held.take().expect("a line").detach();
                descriptor::send(socket, ended.text().as_bytes(), &[]).expect("sent");
            }
            _ => return,
        }
    }
}

#[test]
fn p4_t19_another_user_reads_delegated_rings_and_cannot_write() {
    let Some(pair) = silent() else { return };
    let points = Points::default();
    let text = format!("rx {SERVER_DEVICE} {LINE}");
    let (here, there) = descriptor::pair().expect("a pair of sockets");
    let Some(child) = pair.server.enter(|| start(there, &text)) else { return };
    let mut frames = marked(53, b"hers", FRAMES);
    frames.extend(marked(80, b"others'", FRAMES));
    serve(&pair, &points, &text, &here, &|| {
        assert_eq!(shown(&points).lines, 1);
        send_all(&pair, &frames);
    });
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let begin = output.stdout.windows(4).position(|at| at == [0xd4, 0xc3, 0xb2, 0xa1]);
    let begin =
        begin.or_else(|| output.stdout.windows(4).position(|at| at == [0x4d, 0x3c, 0xb2, 0xa1]));
    let captured = frames_of(&output.stdout[begin.unwrap_or_else(|| panic!("{said}"))..]);
    assert!(captured.len() >= FRAMES && captured[..FRAMES] == frames[..FRAMES], "{said}");
    for word in ["balanced", &format!("counted {FRAMES}"), "refused 4"] {
        assert!(said.contains(word), "{word}: {said}");
    }
    assert!(chain(&pair).is_empty());
}

/// Starts this executable again as another user, in this name space.
fn start(socket: OwnedFd, text: &str) -> Option<Child> {
    let mut command = process::reexec_as(ALICE, socket).expect("this executable");
    command.args(["handout::child", "--exact", "--nocapture", "--quiet"]).env(CHILD, text);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let why = "needs to become another user, who may enter the build folder";
    process::spawn(&mut command).ok().or_else(|| need::skip(why))
}

/// A client whose lines run in the process at the other end of standard input.
#[derive(Debug)]
struct Elsewhere;

/// A line that runs there.
#[derive(Debug, Default)]
struct There(OnceLock<Ended>);

/// Says something, and hears the answer.
fn ask(message: &str) -> (String, Vec<OwnedFd>) {
    let socket = io::stdin();
    descriptor::send(&socket, message.as_bytes(), &[]).expect("somebody listens");
    hear(socket, "who runs the line")
}

impl Host for Elsewhere {
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError> {
        let (layout, descriptors) = ask(&format!("part:{}", Part::of(asked).text()));
        let [records, pointers, bell] = descriptors.try_into().expect("three descriptors");
        let layout = Layout::from_text(&layout).expect("a layout");
        try_to_write(&layout, [&records, &pointers, &bell]);
        let handout = Handout { layout, records, pointers, bell };
        Ok(handout.lend(Arc::new(There::default()))?)
    }
}

impl Standing for There {
    fn leave(&self) {
        let _ = self.ended();
    }
}

impl Held for There {
    fn ended(&self) -> &Ended {
        self.0.get_or_init(|| Ended::from_text(&ask("leave").0).expect("what it leaves behind"))
    }
}

/// All that must be refused; and a map that is another one.
fn try_to_write(layout: &Layout, [records, pointers, bell]: [&OwnedFd; 3]) {
    let copy = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let mut refused = 0;
    for fd in [records, pointers] {
        let map = Map::received(copy(fd.as_fd())).expect("a map");
        map.map().expect_err("mapped for writing");
        let info = map.info().expect("what it is");
        map.set(0, &vec![0; info.value_size as usize]).expect_err("set by key");
        refused += 2;
    }
    let other = Rings::received(copy(bell.as_fd()), layout.shape.of_line());
    other.expect_err("a bell is no ring");
    let other = Rings::received(copy(records.as_fd()), layout.shape.of_line());
    other.expect_err("frames are no pointers");
    eprintln!("refused {refused}");
}

/// The other process: the request is in its environment.
#[test]
fn child() {
    let Ok(text) = std::env::var(CHILD) else { return };
    assert_eq!(process::identity(), (ALICE, ALICE));
    let (graph, _) = pipeline::read(&text, &House);
    // The kernel is that of the one who runs the lines.
    let kernel = Kernel::Open { release: "6.18".to_owned(), hardened: true };
    let machine = Machine { kernel, ..engine::machine::look() };
    let plan = plan(graph, &House, &machine).expect("a plan");
    let paths = build_at(&plan, Settings::default(), &Elsewhere).expect("paths");
    let lives: Vec<_> = paths.iter().map(Path::live).collect();
    let outcome = std::thread::scope(|scope| {
        let runs = scope.spawn(|| run(paths, Until::default()).expect("a run"));
        assert_eq!(ask("runs").0, "stop");
        lives.iter().for_each(engine::live::Live::stop);
        runs.join().expect("a run")
    });
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    assert_eq!(outcome.ledger.imbalances(), [], "{:#?}", outcome.ledger);
    let count = outcome.reports.iter().find(|report| report.name == "count").expect("a count");
    eprintln!("balanced\ncounted {}", count.report.rows[0].1);
    descriptor::send(io::stdin(), b"end", &[]).expect("somebody listens");
}
