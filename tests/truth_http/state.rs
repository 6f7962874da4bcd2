//! State of `ip`, `tcp` and `http` is plain data (CONTRACT 15): saved, dropped and restored in the
//! middle of every capture, what comes out is the same, block by block.

use crate::captures;
use crate::collect::Seen;
use filter::prelude::*;
use filter::testing::{Arena, Frame, Node, Space, capture};
use filter::{LANES, catalog};
use std::path::Path;
use testkit::Captures;

/// The chains that are cut, each filter with its arguments.
const CHAINS: [&[Link]; 2] =
    [&[("ip", &[]), ("tcp", &[])], &[("ip", &[]), ("tcp", &[]), ("http", &["decode=yes"])]];
type Link = (&'static str, &'static [&'static str]);
/// Blocks that arrive in one turn.
const TURN: usize = 5;
/// At how many places a capture is cut.
const CUTS: usize = 5;
/// Frames of a capture that are looked at: cutting it takes as often as long.
const FRAMES_MAX: usize = 4_000;

#[test]
fn state_moves_in_the_middle_of_every_capture() {
    move_state(&testkit::made(), (200, 20));
}

#[test]
fn corpus_state_moves_in_the_middle_of_every_capture() {
    testkit::corpus().iter().for_each(|corpus| move_state(corpus, (1_000, 100)));
}

/// Moves the state of every chain; asserts that at least this many sessions move, with this many
/// held blocks.
#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn move_state(captures: &Captures, (sessions, held): (usize, usize)) {
    for chain in CHAINS {
        let told = captures::each(captures, |path| examine(path, chain, Move::All));
        let different = told.iter().filter_map(|(name, told)| Some((name, told.as_ref().err()?)));
        let different: Vec<_> = different.collect();
        assert!(different.is_empty(), "{different:#?}");
        let same = told.iter().filter_map(|(_, told)| told.as_ref().ok());
        let sum = same.fold(Same::default(), |sum, one| Same {
            blocks: sum.blocks + one.blocks,
            sessions: sum.sessions + one.sessions,
            held: sum.held + one.held,
        });
        println!("{} captures, {CUTS} cuts each, {chain:?}: {sum:?}", told.len());
        let all = std::env::var_os("CASES").is_none();
        assert!(!all || sum.sessions > sessions && sum.held > held, "too little to move: {sum:?}");
    }
}

/// A filter that keeps state elsewhere fails the test above.
#[test]
fn state_that_stays_behind_is_found_out() {
    leave_state(&testkit::made());
}

#[test]
fn corpus_state_that_stays_behind_is_found_out() {
    testkit::corpus().iter().for_each(leave_state);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn leave_state(captures: &Captures) {
    for chain in CHAINS {
        let told = captures::each(captures, |path| examine(path, chain, Move::Nothing));
        let different = told.iter().filter(|(_, told)| told.is_err()).count();
        println!("{different} of {} captures are different without it, {chain:?}", told.len());
        assert!(std::env::var_os("CASES").is_some() || different > told.len() / 10);
    }
}

/// The restoration of state in new instances.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Move {
    All,
    Nothing,
}

/// The parts of the output that agree.
#[derive(Clone, Copy, Debug, Default)]
struct Same {
    blocks: usize,
    /// Sessions that moved, and blocks that they held.
    sessions: usize,
    held: usize,
}

/// Compares the output after a cut; `Err` names a difference, `None` means that there is no output.
fn examine(path: &Path, chain: &[Link], moves: Move) -> Option<Result<Same, String>> {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let mut frames = capture(&bytes);
    frames.truncate(FRAMES_MAX);
    let (whole, _) = run(chain, &frames, None);
    if whole.is_empty() {
        return None;
    }
    let mut same = Same { blocks: whole.len(), ..Same::default() };
    let turns = frames.len().div_ceil(TURN);
    for part in 1..=CUTS {
        let cut = turns * part / (CUTS + 1);
        let (moved, what) = run(chain, &frames, Some((cut, moves)));
        (same.sessions, same.held) = (same.sessions + what.0, same.held + what.1);
        if moved != whole {
            let at = moved.iter().zip(&whole).position(|(one, other)| one != other);
            let at = at.unwrap_or_else(|| moved.len().min(whole.len()));
            return Some(Err(format!(
                "cut before frame {}: block {at} of {}:\n{:?}\nwas of {}\n{:?}",
                cut * TURN + 1,
                moved.len(),
                moved.get(at),
                whole.len(),
                whole.get(at)
            )));
        }
    }
    Some(Ok(same))
}

/// Runs a chain whose state moves to new instances before a batch; returns the output, and the
/// sessions and held blocks moved.
fn run(
    chain: &[Link],
    frames: &[Frame],
    cut: Option<(usize, Move)>,
) -> (Vec<Seen>, (usize, usize)) {
    let arena = Arena::new(8 * frames.len() + 4_096);
    let mut space = Space::new(&arena);
    let mut nodes: Vec<Node> = chain.iter().map(|filter| made(*filter)).collect();
    let (mut seen, mut now, mut moved) = (Vec::new(), 0, (0, 0));
    for (turn, frames) in frames.chunks(TURN).enumerate() {
        if let Some((cut, moves)) = cut
            && cut == turn
        {
            for (node, filter) in nodes.iter_mut().zip(chain) {
                let (saved, wake) = (node.save(), node.wake);
                moved.0 += saved.len();
                moved.1 += saved.iter().flat_map(|session| &session.held).flatten().count();
                *node = made(*filter);
                node.wake = wake;
                if moves == Move::All {
                    node.restore(saved).expect("the same filter");
                }
            }
        }
        now = frames.iter().map(|frame| frame.time).fold(now, u64::max);
        tick(&mut nodes, &mut space, now, &mut seen);
        through(&mut nodes, vec![space.batch(frames)], &mut space, now, &mut seen);
    }
    while !nodes.is_empty() {
        let left = nodes[0].finish(&mut space, now);
        through(&mut nodes[1..], left, &mut space, now, &mut seen);
        nodes.remove(0);
    }
    (seen, moved)
}

fn made((name, words): Link) -> Node {
    let description = catalog::find(name).expect("a filter of the house");
    Node::new(description, words).expect("good arguments")
}

/// Wakes who asked for it.
fn tick<'a>(nodes: &mut [Node], space: &mut Space<'a>, now: u64, seen: &mut Vec<Seen>) {
    for index in 0..nodes.len() {
        let node = &mut nodes[index];
        if node.wake.is_some_and(|wake| wake <= now) {
            node.wake = None;
            let woken = node.tick(space, now);
            through(&mut nodes[index + 1..], woken, space, now, seen);
        }
    }
}

/// Sends batches through the rest of the chain by plain pipes.
fn through<'a>(
    nodes: &mut [Node],
    batches: Vec<Batch<'a>>,
    space: &mut Space<'a>,
    now: u64,
    seen: &mut Vec<Seen>,
) {
    let mut batches = batches;
    for node in nodes {
        let turns = std::mem::take(&mut batches).into_iter();
        batches = turns.flat_map(|batch| node.turn(answered(batch), space, now)).collect();
    }
    for batch in batches {
        seen.extend(answered(batch).blocks().map(|(_, block)| Seen::of(&block)));
    }
}

/// Keeps the blocks that a plain pipe passes.
fn answered(mut batch: Batch<'_>) -> Batch<'_> {
    let answered = |l: &usize| batch.class(*l) != Class::NONE;
    let mask = (0..batch.len().min(LANES)).filter(answered).fold(0, |mask, l| mask | 1 << l);
    batch.keep(mask);
    batch
}
