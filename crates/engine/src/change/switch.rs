//! The switch from the old graph to the new one. Spaces whose content differs are borrowed between
//! two passes, finish the old graph, receive the new graph, and resume.

use super::handover::Handover;
use super::migration::FilterMigration;
use super::outcome::{ChangeError, SwitchReport};
use crate::build::ProgramSuccession;
use crate::path::running_path::{RunningSpace, SharedKernelSpaces};
use crate::path::starter::SpaceThread;
use crate::record::Replay;
use buffer::signal::Doorbell;
use runtime::commands::{CommandError, CommandQueue, ExclusiveBorrow};
use runtime::counters::SpaceCounters;
use runtime::ledger::{DropReason, EdgeKind, Ledger};
use runtime::report::{self};
use runtime::space::Space;
use runtime::space::node::Node;
use runtime::space::node_key::NodeKey;
use runtime::space::stall::StallDetector;
use runtime::space::swap::HotSwap;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A space that a switch gives new content: nodes, rings and inputs.
pub(super) struct SpaceSwitch {
    commands: Arc<CommandQueue>,
    doorbell: Arc<Doorbell>,
    fresh: Option<Box<Space>>,
    hot_swap: HotSwap,
    /// Keys of the existing nodes that remain in the space.
    stays: HashSet<NodeKey>,
    /// Index of the space in the old plan, by which the switch orders the stops of spaces;
    /// `usize::MAX` for a new space.
    rank: usize,
}

impl SpaceSwitch {
    pub(super) fn new(
        running: &RunningSpace,
        fresh: Option<Space>,
        hot_swap: HotSwap,
        rank: usize,
    ) -> Self {
        let fresh = fresh.map(Box::new);
        let stays = hot_swap.kept.iter().map(|(_, key)| *key).collect();
        let (commands, doorbell) = (Arc::clone(&running.commands), Arc::clone(&running.doorbell));
        Self { commands, doorbell, fresh, hot_swap, stays, rank }
    }

    /// Returns the new nodes that the switch places in the space.
    pub(super) fn new_nodes(&mut self) -> &mut [Node] {
        self.hot_swap.assembly.nodes_mut()
    }

    /// Returns one half of the process with node number `number`, if the half is among the new
    /// nodes of the space. The input half writes the input of the process, and the output half
    /// reads its output. `of` selects the half.
    pub(super) fn process_half<H>(
        &mut self,
        number: usize,
        of: fn(&mut Node) -> Option<&mut H>,
    ) -> Option<&mut H> {
        self.new_nodes().iter_mut().filter(|node| node.number == number).find_map(of)
    }

    /// Waits until the space has drained the input rings that the switch removes. The writers of
    /// these rings are already stopped.
    fn drain_removed_rings(&self, left: &dyn Fn() -> Duration) -> Result<(), CommandError> {
        loop {
            let stays = self.stays.clone();
            let caught_up = move |space: &mut Space| {
                space.are_removed_rings_empty(&|key| !stays.contains(&key))
            };
            if self.commands.execute(left(), caught_up)? {
                return Ok(());
            }
            std::thread::park_timeout(Duration::from_micros(200));
        }
    }
}

/// A space that loses all its nodes in a switch. It drains its rings and then ends.
pub(super) struct EmptiedSpace {
    commands: Arc<CommandQueue>,
}

impl EmptiedSpace {
    pub(super) fn new(running: &RunningSpace) -> Self {
        Self { commands: Arc::clone(&running.commands) }
    }
}

/// A space that does not run during a switch. It is either a running space that the switch has
/// borrowed from its thread, or a new space.
pub(super) enum StoppedSpace {
    Lent(ExclusiveBorrow),
    Unstarted(Box<Space>),
}

impl StoppedSpace {
    pub(super) fn space(&mut self) -> &mut Space {
        match self {
            Self::Lent(lent) => &mut lent.space,
            Self::Unstarted(space) => space,
        }
    }
}

/// The parameters of a switch to a new graph, apart from the spaces that get new content.
pub(super) struct SwitchContext<'l, 'a> {
    /// Spaces that have no nodes in the new graph. Each drains its rings and then ends.
    pub(super) leaving: &'l [EmptiedSpace],
    /// New kernel programs, each paired with the list of running programs in which it replaces one.
    pub(super) kernels: Vec<(SharedKernelSpaces, ProgramSuccession)>,
    /// Filters that move to another process.
    pub(super) crossings: Vec<FilterMigration>,
    /// Number of changes made to the path before this one.
    pub(super) number: u64,
    /// The replay of a recording, if this change repeats a recorded change; otherwise `None`.
    pub(super) replay: Option<&'l Replay>,
    /// The handover of filter state to or from another path, if any. It takes place while the
    /// spaces are paused.
    pub(super) handover: Option<Handover<'a>>,
    /// Called when the old graph has processed its last block. From then on, the switch cannot fail
    /// any more.
    pub(super) settled: &'l dyn Fn(),
}

/// Switches the spaces in `targets` to the new graph. Waits at most `limit` until all of them have
/// stopped. Then drains the old graph, which may take longer. Fails without effect if a space
/// cannot be borrowed in time, or if a new filter or program refuses the old state or cannot be
/// installed.
pub(super) fn switch_spaces(
    mut targets: Vec<(SpaceSwitch, Option<SpaceThread>)>,
    context: SwitchContext<'_, '_>,
    limit: Duration,
) -> Result<SwitchReport, ChangeError> {
    let SwitchContext { leaving, mut kernels, mut crossings, number, replay, .. } = context;
    let (settled, mut handover) = (context.settled, context.handover);
    // The state of a filter that moves to another process or path is complete only when no block is
    // in flight to the filter.
    let drains_first = !crossings.is_empty() || handover.is_some();
    let stalls = replay.map(|replay| &*replay.stalls);
    targets
        .iter()
        .filter_map(|(target, _)| target.fresh.as_deref())
        .for_each(Space::report_space_unstarted);
    if drains_first {
        // Spaces stop in the order of the plan, because a space downstream of a process must run to
        // receive the output that precedes the process's saved state.
        targets.sort_by_key(|(target, _)| target.rank);
    }
    let (targets, threads): (Vec<SpaceSwitch>, Vec<Option<SpaceThread>>) =
        targets.into_iter().unzip();
    let deadline = sys::clock::monotonic_ns().saturating_add(saturating_ns(limit));
    let left = || Duration::from_nanos(deadline.saturating_sub(sys::clock::monotonic_ns()));
    let mut begin = None;
    let mut taken: Vec<(SpaceSwitch, StoppedSpace)> = Vec::new();
    let undone =
        |mut taken: Vec<(SpaceSwitch, StoppedSpace)>, crossings: &[FilterMigration], why| {
            crossings.iter().for_each(|crossing| crossing.undo(&mut taken));
            Err(resume_spaces(taken, why))
        };
    for mut target in targets {
        let lent = |target: &SpaceSwitch| {
            if drains_first {
                target.drain_removed_rings(&left)?;
            }
            stalls
                .iter()
                .for_each(|stalls| stalls.report_swap_awaits_command(&target.commands.status));
            let lent = target.commands.borrow_space(left());
            stalls.iter().for_each(|stalls| stalls.report_swap_resumed());
            lent
        };
        let stopped = match target.fresh.take() {
            Some(space) => StoppedSpace::Unstarted(space),
            None => match lent(&target) {
                Ok(lent) => StoppedSpace::Lent(lent),
                Err(why) => return undone(taken, &crossings, why.into()),
            },
        };
        begin.get_or_insert_with(sys::clock::monotonic_ns);
        taken.push((target, stopped));
        if drains_first && let Some((_, stopped)) = taken.last_mut() {
            stopped.space().flush_outputs();
        }
        if let Err(why) = crossings.iter_mut().try_for_each(|one| one.save(&mut taken)) {
            return undone(taken, &crossings, why);
        }
    }
    if let Err(why) = crossings.iter().try_for_each(|one| one.restore(&mut taken)) {
        return undone(taken, &crossings, why);
    }
    if let Err(why) = transfer_filter_state(&mut taken) {
        return undone(taken, &crossings, why);
    }
    if let Some(handover) = &mut handover
        && let Err(why) = handover.exchange_states(&mut taken)
    {
        let _ = transfer_filter_state(&mut taken);
        return undone(taken, &crossings, why);
    }
    let mut switched = SwitchReport::default();
    let returning: u64 = crossings.iter().map(|one| one.returning_block_count(&mut taken)).sum();
    let drops = source_losses(&mut taken);
    let start = old_graph_counters(&mut taken);
    let rings: HashSet<usize> = taken.iter_mut().flat_map(removed_rings).collect();
    if let Err(why) = kernels.iter_mut().try_for_each(|(_, one)| one.next.switch.switch()) {
        // At most one program changes, so none has to be switched back.
        let _ = transfer_filter_state(&mut taken);
        return undone(taken, &crossings, why.into());
    }
    crossings.iter().for_each(|one| one.commit(&mut taken, &mut switched));
    handover.iter_mut().for_each(|handover| handover.commit(&mut taken));
    let firsts: Vec<usize> = kernels.iter().map(|(_, one)| one.source_number).collect();
    for (_, stopped) in &mut taken {
        if let StoppedSpace::Lent(lent) = stopped {
            lent.space.record_stop_for_swap(number);
        }
    }
    drain_old_graph(&mut taken, &firsts, stalls);
    settled();
    let before = old_graph_counters(&mut taken);
    let first = taken.iter().position(|(_, stopped)| matches!(stopped, StoppedSpace::Lent(_)));
    switched.position =
        first.and_then(|first| before.get(first)).map_or(0, SpaceCounters::input_blocks);
    let now = source_losses(&mut taken);
    record_successors(&mut taken, kernels, &mut switched);
    let left_behind = swap_graphs(&mut taken);
    let after = read_space_counters(&mut taken);
    for (key, blocks) in &now {
        let more = blocks - drops.get(key).copied().unwrap_or(0).min(*blocks);
        if more > 0 {
            switched.source_drops.push((key.0.clone(), key.1, more));
        }
    }
    // Spaces resume in reverse order, so that readers of rings resume before the writers.
    for ((_, stopped), thread) in taken.into_iter().zip(threads).rev() {
        match (stopped, thread) {
            (StoppedSpace::Lent(lent), _) => lent.give_back(),
            (StoppedSpace::Unstarted(space), Some(thread)) => thread.run_space(*space),
            (StoppedSpace::Unstarted(_), None) => {}
        }
    }
    switched.paused_ns = begin.map_or(0, |begin| sys::clock::monotonic_ns().saturating_sub(begin));
    let last = |one: &EmptiedSpace| {
        stalls.iter().for_each(|stalls| stalls.report_swap_awaits_end(&one.commands.status));
        one.commands.wait_for_end(left())
    };
    let last: Vec<SpaceCounters> = leaving.iter().filter_map(last).collect();
    stalls.iter().for_each(|stalls| stalls.report_swap_resumed());
    let drains = last.len() < leaving.len();
    compute_losses(
        &mut switched,
        SwitchCounts { begin: start, before, after, last, left_behind, returning, rings, drains },
    );
    Ok(switched)
}

/// Records the new kernel programs as the running ones, and transfers filter state from the
/// programs that they replace. A block that an old program emitted but this process did not receive
/// counts as lost; a block that this process received too often counts as duplicated.
fn record_successors(
    taken: &mut [(SpaceSwitch, StoppedSpace)],
    kernels: Vec<(SharedKernelSpaces, ProgramSuccession)>,
    switched: &mut SwitchReport,
) {
    for (all, ProgramSuccession { program_index: kernel, source_number: first, next }) in kernels {
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kernel) = all.get_mut(kernel) else { continue };
        let spaces = taken.iter_mut().map(|(_, stopped)| stopped.space());
        let came =
            spaces.filter_map(|space| space.kernel_output_counts(first)).next().unwrap_or_default();
        let (lost, duplicated) = kernel.generation.count_missing_blocks(&came);
        switched.lost += lost;
        switched.duplicated += duplicated;
        for (node, bytes) in kernel.generation.final_states() {
            for (_, stopped) in taken.iter_mut() {
                stopped.space().load_twin_state(node, &bytes);
            }
        }
        kernel.begin_generation(next, came);
    }
}

/// Returns the numbers of the rings that the space writes and that the switch removes.
fn removed_rings((target, stopped): &mut (SpaceSwitch, StoppedSpace)) -> Vec<usize> {
    let keys = stopped.space().node_keys().into_iter().filter(|key| !target.stays.contains(key));
    let number = |key| match key {
        NodeKey::Export(number) => Some(number),
        NodeKey::Node(_) | NodeKey::ProgramOutput(_) | NodeKey::Import(_) => None,
    };
    keys.filter_map(number).collect()
}

fn saturating_ns(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

/// Resumes the borrowed spaces without a change, after a failed switch. Returns the failure `why`.
fn resume_spaces(taken: Vec<(SpaceSwitch, StoppedSpace)>, why: ChangeError) -> ChangeError {
    for (_, stopped) in taken.into_iter().rev() {
        if let StoppedSpace::Lent(lent) = stopped {
            lent.give_back();
        }
    }
    why
}

/// Transfers the state of filters to the new filters that replace them. On failure, all state
/// returns to the old filters.
fn transfer_filter_state(taken: &mut [(SpaceSwitch, StoppedSpace)]) -> Result<(), ChangeError> {
    for done in 0..taken.len() {
        let (target, stopped) = &mut taken[done];
        if let Err(mistake) = stopped.space().replace_filters(&mut target.hot_swap.renewed) {
            for (target, stopped) in &mut taken[..done] {
                // A filter accepts the state that was taken from it.
                let _ = stopped.space().replace_filters(&mut target.hot_swap.renewed);
            }
            return Err(ChangeError::Refused(format!(
                "the new filter refuses the state of the old one: {mistake}"
            )));
        }
    }
    Ok(())
}

/// Drains the old graph. Removed nodes release the blocks that they hold, and removed rings are
/// emptied. The output of replaced kernel programs is processed too. It enters at the source nodes
/// whose numbers are in `firsts`. Blocks.
fn drain_old_graph(
    taken: &mut [(SpaceSwitch, StoppedSpace)],
    firsts: &[usize],
    stalls: Option<&StallDetector>,
) {
    let stays: HashSet<NodeKey> =
        taken.iter().flat_map(|(target, _)| &target.stays).copied().collect();
    let goes = |target: &SpaceSwitch, key: NodeKey| match key {
        NodeKey::Node(_) | NodeKey::ProgramOutput(_) => !stays.contains(&key),
        NodeKey::Export(_) | NodeKey::Import(_) => !target.stays.contains(&key),
    };
    let old = |stopped: &StoppedSpace| matches!(stopped, StoppedSpace::Lent(_));
    // These spaces drain kernel output, which may exceed the capacity of a surviving ring.
    let draining = taken.iter_mut().filter(|(_, stopped)| old(stopped));
    let draining = draining.filter_map(|(_, stopped)| {
        let space = stopped.space();
        firsts.iter().any(|first| space.kernel_output_counts(*first).is_some()).then_some(())
    });
    let spaces_draining = AtomicUsize::new(draining.count());
    let one = |target: &SpaceSwitch, space: &mut Space| {
        let doorbell = Arc::clone(&target.doorbell);
        let wait = || doorbell.sleep_for(doorbell.prepare_to_sleep(), Duration::from_micros(200));
        for first in firsts {
            if space.kernel_output_counts(*first).is_some() {
                while !space.drain_kernel_output(*first) {
                    wait();
                }
                spaces_draining.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // Draining also fills surviving rings, so their readers must keep reading.
        while spaces_draining.load(Ordering::Relaxed) > 0 {
            space.walk_ring_entries();
            wait();
        }
        space.drain_rings_as_recorded();
        space.drain_all_rings(&|key| goes(target, key), &wait);
        space.retire_nodes(&|key| !goes(target, key));
        space.report_rings_drained();
    };
    for (_, stopped) in taken.iter_mut().filter(|(_, stopped)| old(stopped)) {
        stopped.space().report_progress();
    }
    let many = taken.iter().filter(|(_, stopped)| old(stopped)).count();
    stalls.iter().for_each(|stalls| stalls.report_swap_awaits_draining(many));
    let stopped = taken.iter_mut().filter(|(_, stopped)| old(stopped));
    if many < 2 {
        stopped.for_each(|(target, stopped)| one(target, stopped.space()));
        return;
    }
    // Each space gets a thread, because one space may emit more than a ring holds while another one
    // reads that ring.
    std::thread::scope(|scope| {
        for (target, stopped) in stopped {
            let one = &one;
            scope.spawn(move || one(target, stopped.space()));
        }
    });
}

/// Replaces the old graphs of the stopped spaces with the new ones. Returns the number of held
/// blocks that were lost because they could not move with their filters.
fn swap_graphs(taken: &mut [(SpaceSwitch, StoppedSpace)]) -> u64 {
    let mut homes: HashMap<NodeKey, usize> = HashMap::new();
    for (at, (target, _)) in taken.iter().enumerate() {
        homes.extend(target.stays.iter().map(|key| (*key, at)));
    }
    let mut lost = 0;
    let mut arrived: Vec<HashMap<NodeKey, Node>> = taken.iter().map(|_| HashMap::new()).collect();
    for at in 0..taken.len() {
        for key in taken[at].1.space().node_keys() {
            let Some(home) = homes.get(&key).copied().filter(|home| *home != at) else { continue };
            let Some(mut node) = taken[at].1.space().remove_moved_node(key) else { continue };
            let (low, high) = taken.split_at_mut(at.max(home));
            let (from, to) = match at < home {
                true => (&mut low[at], &mut high[0]),
                false => (&mut high[0], &mut low[home]),
            };
            lost += to.1.space().copy_held_blocks(&mut node, from.1.space());
            arrived[home].insert(key, node);
        }
    }
    for ((target, stopped), mut arrived) in taken.iter_mut().zip(arrived) {
        stopped.space().swap(std::mem::take(&mut target.hot_swap), &mut arrived);
    }
    lost
}

/// Returns the counters of the old graph, without reports.
fn old_graph_counters(taken: &mut [(SpaceSwitch, StoppedSpace)]) -> Vec<SpaceCounters> {
    taken.iter_mut().map(|(_, stopped)| stopped.space().counters_without_reports()).collect()
}

fn read_space_counters(taken: &mut [(SpaceSwitch, StoppedSpace)]) -> Vec<SpaceCounters> {
    taken.iter_mut().map(|(_, stopped)| stopped.space().counters()).collect()
}

/// Returns the number of blocks that the sources of the stopped spaces have lost so far, by source
/// name and location of the loss.
fn source_losses(taken: &mut [(SpaceSwitch, StoppedSpace)]) -> HashMap<(String, DropReason), u64> {
    let mut all = HashMap::new();
    let lost = taken.iter_mut().flat_map(|(_, stopped)| stopped.space().source_loss_counts());
    for (name, place, blocks) in lost.filter(|(_, place, _)| place.is_loss()) {
        *all.entry((name, place)).or_default() += blocks;
    }
    all
}

/// Counters that a switch reads at its various steps. The losses of the switch are computed from
/// them.
struct SwitchCounts {
    /// Counters of the old graph when all spaces had stopped, before the old graph was drained.
    begin: Vec<SpaceCounters>,
    /// Counters of the old graph after it was drained.
    before: Vec<SpaceCounters>,
    /// Counters of the new graph, read just before the spaces resumed.
    after: Vec<SpaceCounters>,
    /// Final counters of the removed spaces that have ended since the switch stopped the other
    /// spaces.
    last: Vec<SpaceCounters>,
    /// Number of held blocks that were lost because they could not move with their filter.
    left_behind: u64,
    /// Number of blocks held by filters that move to this process from another one. These blocks
    /// come back with the state of the filters.
    returning: u64,
    /// Numbers of the rings that exist only in the old graph.
    rings: HashSet<usize>,
    /// True if a space that the new graph lacks still has blocks in its rings.
    drains: bool,
}

/// Computes the numbers of blocks that a switch lost, duplicated or reordered. Stores them in the
/// report `switched`.
fn compute_losses(switched: &mut SwitchReport, counts: SwitchCounts) {
    let SwitchCounts { begin, before, after, last, left_behind, returning, rings, drains } = counts;
    let with_last = |mut spaces: Vec<SpaceCounters>| {
        spaces.extend_from_slice(&last);
        spaces
    };
    let after = with_last(after);
    switched.reports = report::merge_reports(&after);
    let ledger = |spaces| report::merge_ledger(spaces, true);
    let (begin, old, new) = (ledger(begin), ledger(with_last(before)), ledger(after));
    switched.lost += left_behind + lost_blocks(&old).saturating_sub(lost_blocks(&begin));
    for node in &old.filters {
        let (came, became) = node.balance_sides();
        switched.lost += came.saturating_sub(became);
        switched.duplicated += became.saturating_sub(came);
    }
    for edge in &old.edges {
        let dropped: u64 = edge.dropped.iter().map(|(_, amount)| amount.blocks).sum();
        let ended = edge.taken.blocks + dropped;
        let missing = edge.put.blocks.saturating_sub(ended);
        match edge.kind {
            // The reader of a ring that an earlier change removed may have ended in the meantime,
            // so its blocks are not counted as missing.
            EdgeKind::Ring | EdgeKind::Dispatch | EdgeKind::Join
                if !rings.contains(&edge.planned) => {}
            EdgeKind::Ring if drains => switched.draining += missing,
            _ => switched.lost += missing,
        }
        switched.duplicated += ended.saturating_sub(edge.put.blocks);
    }
    // Surviving nodes and edges continue their counters. Any difference is a lost or a duplicated
    // block.
    let mut was = BlockTotals::from_ledger(&old);
    was.add_returning_blocks(returning);
    for (was, is) in was.0.into_iter().zip(BlockTotals::from_ledger(&new).0) {
        switched.lost += was.saturating_sub(is);
        switched.duplicated += is.saturating_sub(was);
    }
    let nodes: HashSet<usize> = old.filters.iter().map(|node| node.planned).collect();
    let edges: HashSet<usize> = old.edges.iter().map(|edge| edge.planned).collect();
    let early = new.filters.iter().filter(|node| !nodes.contains(&node.planned));
    switched.reordered = early.map(|node| node.taken.blocks + node.made.blocks).sum::<u64>();
    let early = new.edges.iter().filter(|edge| !edges.contains(&edge.planned));
    switched.reordered += early.map(|edge| edge.put.blocks).sum::<u64>();
}

/// Returns the number of blocks that were lost for lack of memory, at a limit, or after a failure.
/// Blocks that a filter dropped on purpose do not count. At edges, all dropped blocks count.
fn lost_blocks(ledger: &Ledger) -> u64 {
    let ours = [DropReason::Evicted, DropReason::NoRoom, DropReason::Failed];
    let filters = ledger.filters.iter().flat_map(|node| &node.dropped);
    let filters = filters.filter(|(why, _)| ours.contains(why)).map(|(_, a)| a.blocks);
    let edges = ledger.edges.iter().flat_map(|edge| &edge.dropped).map(|(_, a)| a.blocks);
    filters.sum::<u64>() + edges.sum::<u64>()
}

/// The numbers of blocks in a graph: taken, made, passed, unselected, consumed and held, summed
/// over the nodes; then put and taken, summed over the edges.
struct BlockTotals([u64; 8]);

impl BlockTotals {
    /// Adds blocks that come back from a process with the state of its filter. They count as made
    /// and as held.
    const fn add_returning_blocks(&mut self, blocks: u64) {
        self.0[1] += blocks;
        self.0[5] += blocks;
    }

    fn from_ledger(ledger: &Ledger) -> Self {
        let mut sums = [0; 8];
        for node in &ledger.filters {
            let amounts = [node.taken, node.made, node.passed, node.unselected, node.consumed];
            for (sum, amount) in sums.iter_mut().zip(amounts) {
                *sum += amount.blocks;
            }
            sums[5] += node.held.blocks;
        }
        for edge in &ledger.edges {
            sums[6] += edge.put.blocks;
            sums[7] += edge.taken.blocks;
        }
        Self(sums)
    }
}
