//! The build that loses one block per kind of edge on purpose: the ledger must find each, and
//! nothing else (CONTRACT 20). It needs the feature `lose`: `cargo test -p streamline-tests
//! --features lose --test loses`, which is part of `cargo xtask test`.
#![forbid(unsafe_code)]

#[path = "../common/line.rs"]
#[expect(dead_code, reason = "hostile input uses the rest")]
mod line;

use engine::build::Settings;
use engine::ledger::EdgeKind;
use line::Line;
use std::process::Command;

/// What the engine reads: the kind of edge that loses a block.
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
    let found = outcome.ledger.imbalances();
    if lost == "nothing" {
        assert_eq!(found, []);
        return;
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].place.ends_with(&format!("({lost})")), "{}", found[0]);
    assert_eq!(found[0].left - found[0].right, 1, "{}", found[0]);
}

#[test]
fn the_ledger_finds_a_block_lost_on_every_kind_of_edge() {
    use EdgeKind::{Back, Call, Deal, Join, Ring};
    let kinds = [Call, Ring, Back, Deal, Join].map(EdgeKind::name);
    for lost in kinds.into_iter().chain(["nothing"]) {
        let mut test = Command::new(std::env::current_exe().expect("this program"));
        test.args(["--exact", "--ignored", "the_ledger_finds_what_was_lost"]).env(LOSE, lost);
        let output = test.output().expect("this program again");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{lost}: {told}");
    }
}
