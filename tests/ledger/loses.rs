//! Tests of a build that deliberately loses one block on each kind of edge: the ledger must find
//! each loss and report no other loss (CONTRACT 20). The test needs the feature `lose`: `cargo test
//! -p streamline-tests --features lose --test loses`, which is part of `cargo xtask test`.
#![forbid(unsafe_code)]

#[path = "../common/request.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod request;

use engine::build::{BuiltPath, PathOptions, RunSettings, build_with_options};
use engine::kernel::shared_attach_point::AttachPoints;
use engine::live::PathHandle;
use engine::registry::MachineRegistry;
use engine::run::{StopConditions, run};
use request::PlannedRequest;
use runtime::ledger::{EdgeKind, LedgerImbalance};
use std::process::Command;
use sys::packet::{PacketSender, QdiscMode};
use testkit::net::{
    CLIENT_DEVICE, DevicePairSettings, NamespacePair, SERVER_DEVICE, device_counters, wait_until,
};
use testkit::{Frame, need};

/// Environment variable with the kind of edge that loses a block.
const LOST_EDGE_VARIABLE: &str = "STREAMLINE_LOSE";

/// A request whose edges are calls, a back edge and a ring.
const RING_AND_CYCLE_REQUEST: &str = "generate@thread0 count=5000 seq=yes \
                    | dport@thread0 --name=X |9 (inspect@thread0 | dport --name=X) + count@thread1";

/// A request with a filter of three replicas.
const REPLICATED_REQUEST: &str =
    "--parallel=3 generate count=5000 seq=yes | match hex=07 |all discard";

/// Entry point of the child processes that lose one block on the kind of edge that
/// [`LOST_EDGE_VARIABLE`] names.
#[test]
#[ignore = "asks the environment what to lose"]
fn child_process_loses_one_block() {
    let lost = std::env::var(LOST_EDGE_VARIABLE).expect("what to lose");
    let copies = [EdgeKind::Dispatch, EdgeKind::Join];
    let (text, kinds) = match copies.iter().any(|kind| kind.name() == lost) {
        true => (REPLICATED_REQUEST, copies.to_vec()),
        false => (RING_AND_CYCLE_REQUEST, vec![EdgeKind::Call, EdgeKind::Ring, EdgeKind::Back]),
    };
    let outcome = PlannedRequest::new(text).run_threaded(RunSettings::default());
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let present = |kind| outcome.ledger.edges.iter().any(|edge| edge.kind == kind);
    assert!(kinds.into_iter().all(present), "all kinds of edges are in the line");
    assert_loss_found(&outcome.ledger.imbalances(), &lost, &lost);
}

/// Asserts that `found` contains only one missing block, on an edge of the kind `kind`. If `lost`
/// is `nothing`, asserts that `found` is empty.
fn assert_loss_found(found: &[LedgerImbalance], lost: &str, kind: &str) {
    if lost == "nothing" {
        assert_eq!(found, []);
        return;
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].place.ends_with(&format!("({kind})")), "{}", found[0]);
    assert_eq!(found[0].left - found[0].right, 1, "{}", found[0]);
}

/// Entry point of the child processes that lose blocks between the kernel and the process that
/// reads the kernel's ring.
#[test]
#[ignore = "asks the environment what to lose"]
fn child_process_loses_blocks_after_the_kernel() {
    const FRAMES: u64 = 300;
    let lost = std::env::var(LOST_EDGE_VARIABLE).expect("what to lose");
    let pair = NamespacePair::new(DevicePairSettings {
        addresses: false,
        ..DevicePairSettings::default()
    })
    .expect("a cable");
    let text = format!("rx {SERVER_DEVICE} | udp | dport |53 pcap /dev/null");
    let points = AttachPoints::default();
    let paths = pair.server.run_in_network_namespace(|| {
        let (graph, mistakes) = pipeline::read_request(&text, &MachineRegistry::Local);
        assert!(mistakes.is_empty(), "{}", pipeline::render(&text, &mistakes, false));
        let plan = pipeline::plan::plan(
            graph,
            &MachineRegistry::Local,
            &engine::machine::inspect_machine(),
        )
        .expect("a plan");
        assert!(!plan.programs.is_empty(), "{plan:?}");
        build_with_options(&plan, RunSettings::default(), &points, &PathOptions::default())
            .expect("paths")
    });
    let lives: Vec<PathHandle> = paths.iter().map(BuiltPath::live).collect();
    let thread = std::thread::spawn(|| run(paths, StopConditions::default()).expect("a run"));
    let came =
        || device_counters(&pair.server, SERVER_DEVICE).expect("the device is there").received;
    let before = came();
    let frame = Frame::ethernet().ipv4("198.18.0.1", "198.19.0.1").udp(4000, 53, &[7; 30]);
    let mut rest = vec![frame.as_slice(); usize::try_from(FRAMES).expect("few")];
    pair.client.run_in_network_namespace(|| {
        let links = sys::net::RouteSocket::open().expect("links");
        let index = links.interface_by_name(CLIENT_DEVICE).expect("the device").index;
        let mut sender = PacketSender::open(index, QdiscMode::Through).expect("root may send");
        wait_until("all frames are sent", || {
            let sent = sender.send(&rest).frames;
            rest.drain(..sent);
            rest.is_empty()
        });
    });
    wait_until("they have come", || came() >= before + FRAMES);
    lives.iter().for_each(PathHandle::stop);
    let outcome = thread.join().expect("a run");
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let put: u64 = outcome.ledger.edges.iter().map(|edge| edge.put.blocks).max().unwrap_or(0);
    assert!(put >= FRAMES, "{:?}", outcome.ledger);
    let found = outcome.ledger.imbalances();
    if lost == MISDIRECTED_EDGE {
        assert!(found.len() == 1 && found[0].place.ends_with("(ring)"), "{found:?}");
        assert_eq!((found[0].left, found[0].right), (put, 0), "nothing has come");
        return;
    }
    assert_loss_found(&found, &lost, "ring");
}

/// Value of [`LOST_EDGE_VARIABLE`] with which the kernel addresses all blocks to a node that does
/// not exist, so that all blocks are lost.
const MISDIRECTED_EDGE: &str = "kernel way";

/// Loses blocks between the kernel and a process, in a separate child process for each kind of
/// loss: one block in the kernel ring, one block in a call, all blocks on a misdirected edge, and
/// none. Each process asserts that its ledger reports exactly this loss, at the ring.
#[test]
fn ledger_finds_each_loss_between_kernel_and_process() {
    if need::require_bpf().is_none() {
        return;
    }
    for lost in ["kernel ring", "call", MISDIRECTED_EDGE, "nothing"] {
        run_in_child("child_process_loses_blocks_after_the_kernel", lost);
    }
}

#[test]
fn v2_ledger_finds_a_block_lost_on_every_kind_of_edge() {
    use EdgeKind::{Back, Call, Dispatch, Join, Ring};
    let kinds = [Call, Ring, Back, Dispatch, Join].map(EdgeKind::name);
    for lost in kinds.into_iter().chain(["nothing"]) {
        run_in_child("child_process_loses_one_block", lost);
    }
}

/// Runs the test with the name `test` in a child process with the loss `lost`.
fn run_in_child(test: &str, lost: &str) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "--ignored", test]).env(LOST_EDGE_VARIABLE, lost);
    let output = command.output().expect("this program again");
    let message = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && message.contains("1 passed"), "{lost}: {message}");
}
