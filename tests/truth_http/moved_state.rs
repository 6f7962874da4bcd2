//! Tests that the state of `ip`, `tcp` and `http` is plain data (CONTRACT 15): if the state is
//! saved, dropped and restored in the middle of any capture, the output is the same, block by
//! block.

use crate::captures;
use crate::collect::CollectedBlock;
use filter::prelude::*;
use filter::testing::{Arena, Frame, Node, Space, read_capture};
use filter::{LANES, catalog};
use std::path::Path;
use testkit::Captures;

/// The chains whose state is moved, each filter with its arguments.
const FILTER_CHAINS: [&[FilterWords]; 2] =
    [&[("ip", &[]), ("tcp", &[])], &[("ip", &[]), ("tcp", &[]), ("http", &["decode=yes"])]];
/// The name of a filter, and its arguments as in a request.
type FilterWords = (&'static str, &'static [&'static str]);
/// Number of frames that are sent through the chain in one batch.
const BATCH_BLOCKS: usize = 5;
/// Number of positions of a capture at which the state is moved, each in a separate run.
const MOVES_PER_CAPTURE: usize = 5;
/// Maximum number of frames of a capture.
const FRAMES_MAX: usize = 4_000;

#[test]
fn moved_state_gives_the_same_output() {
    assert_state_moves(&testkit::generated_captures(), (200, 20));
}

#[test]
fn corpus_moved_state_gives_the_same_output() {
    testkit::corpus_captures().iter().for_each(|corpus| assert_state_moves(corpus, (1_000, 100)));
}

/// Moves the state of every chain to new instances of its filters. Asserts that the output does not
/// change, and that at least the given numbers of sessions and held blocks move.
#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_state_moves(captures: &Captures, (sessions, held): (usize, usize)) {
    for chain in FILTER_CHAINS {
        let outcomes = captures::examine_captures(captures, |path| {
            compare_with_state_moves(path, chain, RestoredState::All)
        });
        let different =
            outcomes.iter().filter_map(|(name, outcomes)| Some((name, outcomes.as_ref().err()?)));
        let different: Vec<_> = different.collect();
        assert!(different.is_empty(), "{different:#?}");
        let same = outcomes.iter().filter_map(|(_, outcomes)| outcomes.as_ref().ok());
        let sum = same.fold(StateMoveResult::default(), |sum, one| StateMoveResult {
            blocks: sum.blocks + one.blocks,
            sessions: sum.sessions + one.sessions,
            held: sum.held + one.held,
        });
        println!("{} captures, {MOVES_PER_CAPTURE} cuts each, {chain:?}: {sum:?}", outcomes.len());
        let all = std::env::var_os("CASES").is_none();
        assert!(!all || sum.sessions > sessions && sum.held > held, "too little to move: {sum:?}");
    }
}

/// Runs each chain without restoring any state. Asserts that more than a tenth of the captures then
/// have another output. Otherwise, the comparison would not detect lost state.
#[test]
fn lost_state_changes_the_output() {
    assert_lost_state_changes_output(&testkit::generated_captures());
}

#[test]
fn corpus_lost_state_changes_the_output() {
    testkit::corpus_captures().iter().for_each(assert_lost_state_changes_output);
}

#[expect(clippy::print_stdout, reason = "figures, which the harness shows when asked")]
fn assert_lost_state_changes_output(captures: &Captures) {
    for chain in FILTER_CHAINS {
        let outcomes = captures::examine_captures(captures, |path| {
            compare_with_state_moves(path, chain, RestoredState::Nothing)
        });
        let different = outcomes.iter().filter(|(_, outcomes)| outcomes.is_err()).count();
        println!("{different} of {} captures are different without it, {chain:?}", outcomes.len());
        assert!(std::env::var_os("CASES").is_some() || different > outcomes.len() / 10);
    }
}

/// The part of the saved state that the new instances of the filters receive: all of it, or
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RestoredState {
    All,
    Nothing,
}

/// The result of moving state during runs: the number of blocks that agree with a run without a
/// move, and the numbers of sessions and held blocks that moved.
#[derive(Clone, Copy, Debug, Default)]
struct StateMoveResult {
    blocks: usize,
    /// Number of sessions whose state moved.
    sessions: usize,
    held: usize,
}

/// Runs a chain over a capture several times, and moves its state at a different position each
/// time. Compares each output with that of a run without a move. An `Err` describes a difference.
/// Returns `None` if the capture has no output.
fn compare_with_state_moves(
    path: &Path,
    chain: &[FilterWords],
    moves: RestoredState,
) -> Option<Result<StateMoveResult, String>> {
    let bytes = std::fs::read(path).expect("a capture that can be read");
    let mut frames = read_capture(&bytes);
    frames.truncate(FRAMES_MAX);
    let (whole, _) = run_with_state_move(chain, &frames, None);
    if whole.is_empty() {
        return None;
    }
    let mut same = StateMoveResult { blocks: whole.len(), ..StateMoveResult::default() };
    let rounds = frames.len().div_ceil(BATCH_BLOCKS);
    for part in 1..=MOVES_PER_CAPTURE {
        let cut = rounds * part / (MOVES_PER_CAPTURE + 1);
        let (moved, what) = run_with_state_move(chain, &frames, Some((cut, moves)));
        (same.sessions, same.held) = (same.sessions + what.0, same.held + what.1);
        if moved != whole {
            let at = moved.iter().zip(&whole).position(|(one, other)| one != other);
            let at = at.unwrap_or_else(|| moved.len().min(whole.len()));
            return Some(Err(format!(
                "cut before frame {}: block {at} of {}:\n{:?}\nwas of {}\n{:?}",
                cut * BATCH_BLOCKS + 1,
                moved.len(),
                moved.get(at),
                whole.len(),
                whole.get(at)
            )));
        }
    }
    Some(Ok(same))
}

/// Runs a chain over frames. If `cut` is given, moves the state of the chain to new instances of
/// its filters before the batch with this index. Returns the output, and the numbers of sessions
/// and held blocks that moved.
fn run_with_state_move(
    chain: &[FilterWords],
    frames: &[Frame],
    cut: Option<(usize, RestoredState)>,
) -> (Vec<CollectedBlock>, (usize, usize)) {
    let arena = Arena::new(8 * frames.len() + 4_096);
    let mut space = Space::new(&arena);
    let mut nodes: Vec<Node> = chain.iter().map(|filter| make_node(*filter)).collect();
    let (mut collected, mut now, mut moved) = (Vec::new(), 0, (0, 0));
    for (round, frames) in frames.chunks(BATCH_BLOCKS).enumerate() {
        if let Some((cut, moves)) = cut
            && cut == round
        {
            for (node, filter) in nodes.iter_mut().zip(chain) {
                let (saved, wake) = (node.take_sessions(), node.wake);
                moved.0 += saved.len();
                moved.1 += saved.iter().flat_map(|session| &session.held).flatten().count();
                *node = make_node(*filter);
                node.wake = wake;
                if moves == RestoredState::All {
                    node.restore_sessions(saved).expect("the same filter");
                }
            }
        }
        now = frames.iter().map(|frame| frame.time).fold(now, u64::max);
        tick_due_filters(&mut nodes, &mut space, now, &mut collected);
        run_remaining_filters(
            &mut nodes,
            vec![space.batch(frames)],
            &mut space,
            now,
            &mut collected,
        );
    }
    while !nodes.is_empty() {
        let left = nodes[0].finish(&mut space, now);
        run_remaining_filters(&mut nodes[1..], left, &mut space, now, &mut collected);
        nodes.remove(0);
    }
    (collected, moved)
}

fn make_node((name, words): FilterWords) -> Node {
    let description = catalog::find(name).expect("a filter of the house");
    Node::new(description, words).expect("good arguments")
}

/// Calls the filters that requested a call at `now` or before. The blocks that they emit pass
/// through the following filters.
fn tick_due_filters<'a>(
    nodes: &mut [Node],
    space: &mut Space<'a>,
    now: u64,
    collected: &mut Vec<CollectedBlock>,
) {
    for index in 0..nodes.len() {
        let node = &mut nodes[index];
        if node.wake.is_some_and(|wake| wake <= now) {
            node.wake = None;
            let woken = node.tick(space, now);
            run_remaining_filters(&mut nodes[index + 1..], woken, space, now, collected);
        }
    }
}

/// Sends batches through the filters `nodes`, connected by plain pipes, and collects the blocks
/// that leave the last filter.
fn run_remaining_filters<'a>(
    nodes: &mut [Node],
    batches: Vec<Batch<'a>>,
    space: &mut Space<'a>,
    now: u64,
    collected: &mut Vec<CollectedBlock>,
) {
    let mut batches = batches;
    for node in nodes {
        let rounds = std::mem::take(&mut batches).into_iter();
        batches =
            rounds.flat_map(|batch| node.process_batch(passed_blocks(batch), space, now)).collect();
    }
    for batch in batches {
        collected.extend(
            passed_blocks(batch).blocks().map(|(_, block)| CollectedBlock::from_block(&block)),
        );
    }
}

/// Returns the batch with only the blocks that a plain pipe passes: those with a class.
fn passed_blocks(mut batch: Batch<'_>) -> Batch<'_> {
    let answered = |l: &usize| batch.class(*l) != Class::NONE;
    let mask = (0..batch.len().min(LANES)).filter(answered).fold(0, |mask, l| mask | 1 << l);
    batch.retain_lanes(mask);
    batch
}
