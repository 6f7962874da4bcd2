//! The build that loses one block per kind of edge on purpose: the ledger must find each, and
//! nothing else (CONTRACT 20). It needs the feature `lose`: `cargo test -p streamline-tests
//! --features lose --test loses`, which is part of `cargo xtask test`.
#![forbid(unsafe_code)]

#[path = "../common/line.rs"]
#[expect(dead_code, reason = "hostile input uses the rest")]
mod line;

use engine::build::{Path, Settings, build_at};
use engine::catalogue::House;
use engine::kernel::point::Points;
use engine::live::Live;
use engine::run::{Until, run};
use line::Line;
use runtime::ledger::{EdgeKind, Imbalance};
use std::process::Command;
use sys::packet::{PacketSender, Qdisc};
use testkit::net::{CLIENT_DEVICE, Cable, Pair, SERVER_DEVICE, counters, until};
use testkit::{Frame, need};

/// The variable in which the engine finds the kind of edge that is to lose a block.
const LOSE: &str = "STREAMLINE_LOSE";

/// Calls, a back edge and a ring.
const TEXT: &str = "generate@thread0 count=5000 seq=yes \
                    | dport@thread0 --name=X |9 (inspect@thread0 | dport --name=X) + count@thread1";

/// A filter with three copies.
const COPIES: &str = "--parallel=3 generate count=5000 seq=yes | match hex=07 |all discard";

/// Runs in processes of its own, which the next test starts: a process loses one block.
#[test]
#[ignore = "asks the environment what to lose"]
fn the_ledger_finds_what_was_lost() {
    let lost = std::env::var(LOSE).expect("what to lose");
    let copies = [EdgeKind::Deal, EdgeKind::Join];
    let (text, kinds) = match copies.iter().any(|kind| kind.name() == lost) {
        true => (COPIES, copies.to_vec()),
        false => (TEXT, vec![EdgeKind::Call, EdgeKind::Ring, EdgeKind::Back]),
    };
    let outcome = Line::new(text).threads(Settings::default());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let present = |kind| outcome.ledger.edges.iter().any(|edge| edge.kind == kind);
    assert!(kinds.into_iter().all(present), "all kinds of edges are in the line");
    assert_found(&outcome.ledger.imbalances(), &lost, &lost);
}

/// One block is missing on this kind of edge, if any was lost.
fn assert_found(found: &[Imbalance], lost: &str, kind: &str) {
    if lost == "nothing" {
        assert_eq!(found, []);
        return;
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].place.ends_with(&format!("({kind})")), "{}", found[0]);
    assert_eq!(found[0].left - found[0].right, 1, "{}", found[0]);
}

/// Runs in processes of its own, as above; the line begins in the kernel.
#[test]
#[ignore = "asks the environment what to lose"]
fn the_ledger_finds_what_was_lost_on_the_way_out_of_the_kernel() {
    const FRAMES: u64 = 300;
    let lost = std::env::var(LOSE).expect("what to lose");
    let pair = Pair::new(Cable { addresses: false, ..Cable::default() }).expect("a cable");
    let text = format!("rx {SERVER_DEVICE} | udp | dport |53 pcap /dev/null");
    let points = Points::default();
    let paths = pair.server.enter(|| {
        let (graph, mistakes) = pipeline::read(&text, &House);
        assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
        let plan = pipeline::plan::plan(graph, &House, &engine::machine::look()).expect("a plan");
        assert!(!plan.programs.is_empty(), "{plan:?}");
        build_at(&plan, Settings::default(), &points).expect("paths")
    });
    let lives: Vec<Live> = paths.iter().map(Path::live).collect();
    let thread = std::thread::spawn(|| run(paths, Until::default()).expect("a run"));
    let came = || counters(&pair.server, SERVER_DEVICE).expect("the device is there").received;
    let before = came();
    let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, 53, &[7; 30]);
    let mut rest = vec![frame.as_slice(); usize::try_from(FRAMES).expect("few")];
    pair.client.enter(|| {
        let links = sys::net::RouteSocket::open().expect("links");
        let index = links.named(CLIENT_DEVICE).expect("the device").index;
        let mut sender = PacketSender::open(index, Qdisc::Through).expect("root may send");
        until("all frames are sent", || {
            let sent = sender.send(&rest).frames;
            rest.drain(..sent);
            rest.is_empty()
        });
    });
    until("they have come", || came() >= before + FRAMES);
    lives.iter().for_each(Live::stop);
    let outcome = thread.join().expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let put: u64 = outcome.ledger.edges.iter().map(|edge| edge.put.blocks).max().unwrap_or(0);
    assert!(put >= FRAMES, "{:?}", outcome.ledger);
    let found = outcome.ledger.imbalances();
    if lost == WAY {
        assert!(found.len() == 1 && found[0].place.ends_with("(ring)"), "{found:?}");
        assert_eq!((found[0].left, found[0].right), (put, 0), "nothing has come");
        return;
    }
    assert_found(&found, &lost, "ring");
}

/// A kernel edge that loses its way: all its blocks go to a node that does not exist.
const WAY: &str = "kernel way";

/// In the ring, between the source and whoever takes what it gives, and all of it.
#[test]
fn the_ledger_finds_a_block_lost_on_the_way_out_of_the_kernel() {
    if need::bpf().is_none() {
        return;
    }
    for lost in ["kernel ring", "call", WAY, "nothing"] {
        again("the_ledger_finds_what_was_lost_on_the_way_out_of_the_kernel", lost);
    }
}

#[test]
fn v2_the_ledger_finds_a_block_lost_on_every_kind_of_edge() {
    use EdgeKind::{Back, Call, Deal, Join, Ring};
    let kinds = [Call, Ring, Back, Deal, Join].map(EdgeKind::name);
    for lost in kinds.into_iter().chain(["nothing"]) {
        again("the_ledger_finds_what_was_lost", lost);
    }
}

/// Runs one of the tests above in a process that loses this.
fn again(test: &str, lost: &str) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "--ignored", test]).env(LOSE, lost);
    let output = command.output().expect("this program again");
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{lost}: {told}");
}
