//! The switch: spaces that differ are taken at block boundaries, settle their accounts in the old
//! graph, get the new one, and go on.

use super::crossing::Crossing;
use super::switched::{Switched, Unchanged};
use crate::build::Succession;
use crate::path::crew::Thread;
use crate::path::running::{Kernels, RunningSpace};
use crate::record::Replay;
use buffer::signal::Doorbell;
use runtime::commands::{CommandQueue, ExclusiveBorrow, NotTaken};
use runtime::ledger::{DropReason, EdgeKind, Ledger};
use runtime::report::{self, Counted};
use runtime::space::Space;
use runtime::space::graft::{Graft, Key};
use runtime::space::node::Node;
use runtime::space::stall::StallDetector;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// A space that is to be switched.
pub(super) struct Desk {
    orders: Arc<CommandQueue>,
    bell: Arc<Doorbell>,
    fresh: Option<Space>,
    graft: Graft,
    /// The keys of the nodes in it after the switch.
    stays: HashSet<Key>,
    /// Index among the spaces of the old plan.
    rank: usize,
}

impl Desk {
    pub(super) fn new(
        running: &RunningSpace,
        fresh: Option<Space>,
        graft: Graft,
        rank: usize,
    ) -> Self {
        let stays = graft.kept.iter().map(|(_, key)| *key).collect();
        let (orders, bell) = (Arc::clone(&running.orders), Arc::clone(&running.bell));
        Self { orders, bell, fresh, graft, stays, rank }
    }

    /// Returns the nodes that are to be put into it.
    pub(super) fn new_nodes(&mut self) -> &mut [Node] {
        self.graft.assembly.nodes_mut()
    }

    /// A half of a process that is to be put into it.
    pub(super) fn half<H>(
        &mut self,
        number: usize,
        of: fn(&mut Node) -> Option<&mut H>,
    ) -> Option<&mut H> {
        self.new_nodes().iter_mut().filter(|node| node.planned == number).find_map(of)
    }

    /// Waits until the space has taken what lies in rings to it that go: who fills them stands
    /// still already.
    fn catch_up(&self, left: &dyn Fn() -> Duration) -> Result<(), NotTaken> {
        loop {
            let stays = self.stays.clone();
            let caught_up = move |space: &mut Space| space.has_taken(&|key| !stays.contains(&key));
            if self.orders.ask(left(), caught_up)? {
                return Ok(());
            }
            std::thread::park_timeout(Duration::from_micros(200));
        }
    }
}

/// A space in which nothing is left: it ends by itself when it has taken what lies in its rings.
pub(super) struct Leaving {
    orders: Arc<CommandQueue>,
}

impl Leaving {
    pub(super) fn new(running: &RunningSpace) -> Self {
        Self { orders: Arc::clone(&running.orders) }
    }
}

/// A space that stands still: it was lent, or has not begun.
pub(super) enum Standing {
    Lent(ExclusiveBorrow),
    Fresh(Space),
}

impl Standing {
    pub(super) fn space(&mut self) -> &mut Space {
        match self {
            Self::Lent(lent) => &mut lent.space,
            Self::Fresh(space) => space,
        }
    }
}

/// Everything that is switched apart from the spaces that differ.
pub(super) struct Beside<'l> {
    /// Spaces that end.
    pub(super) leaving: &'l [Leaving],
    /// New kernel programs, each with the list that tracks the running ones.
    pub(super) kernels: Vec<(Kernels, Succession)>,
    /// Filters that go on in another process.
    pub(super) crossings: Vec<Crossing>,
    /// Number of earlier changes.
    pub(super) number: u64,
    /// The record that it is made again from, if it is.
    pub(super) replay: Option<&'l Replay>,
    /// Callback for the moment when the old graph has settled its accounts and nothing can fail any
    /// more.
    pub(super) settled: &'l dyn Fn(),
}

/// Switches these spaces.
pub(super) fn switch(
    mut desks: Vec<(Desk, Option<Thread>)>,
    beside: Beside<'_>,
    limit: Duration,
) -> Result<Switched, Unchanged> {
    let Beside { leaving, mut kernels, mut crossings, number, replay, settled } = beside;
    let still = replay.map(|replay| &*replay.stalls);
    desks.iter().filter_map(|(desk, _)| desk.fresh.as_ref()).for_each(Space::comes_later);
    if !crossings.is_empty() {
        // In the order in which blocks go through them: what follows takes up what comes out of a
        // process until that has told what it knows.
        desks.sort_by_key(|(desk, _)| desk.rank);
    }
    let (desks, threads): (Vec<Desk>, Vec<Option<Thread>>) = desks.into_iter().unzip();
    let deadline = sys::clock::monotonic().saturating_add(nanos(limit));
    let left = || Duration::from_nanos(deadline.saturating_sub(sys::clock::monotonic()));
    let mut begin = None;
    let mut taken: Vec<(Desk, Standing)> = Vec::new();
    let undone = |mut taken: Vec<(Desk, Standing)>, crossings: &[Crossing], why| {
        crossings.iter().for_each(|crossing| crossing.undo(&mut taken));
        Err(give_back(taken, why))
    };
    for mut desk in desks {
        let lent = |desk: &Desk| {
            if !crossings.is_empty() {
                desk.catch_up(&left)?;
            }
            still.iter().for_each(|still| still.takes(&desk.orders));
            let lent = desk.orders.borrow(left());
            still.iter().for_each(|still| still.goes_on());
            lent
        };
        let standing = match desk.fresh.take() {
            Some(space) => Standing::Fresh(space),
            None => match lent(&desk) {
                Ok(lent) => Standing::Lent(lent),
                Err(why) => return undone(taken, &crossings, why.into()),
            },
        };
        begin.get_or_insert_with(sys::clock::monotonic);
        taken.push((desk, standing));
        if !crossings.is_empty()
            && let Some((_, standing)) = taken.last_mut()
        {
            standing.space().settle();
        }
        if let Err(why) = crossings.iter_mut().try_for_each(|one| one.save(&mut taken)) {
            return undone(taken, &crossings, why);
        }
    }
    if let Err(why) = crossings.iter().try_for_each(|one| one.teach(&mut taken)) {
        return undone(taken, &crossings, why);
    }
    if let Err(why) = renew(&mut taken) {
        return undone(taken, &crossings, why);
    }
    let mut switched = Switched::default();
    let home: u64 = crossings.iter().map(|one| one.brings_home(&mut taken)).sum();
    let drops = dropped(&mut taken);
    let start: Vec<Counted> = counted(&mut taken);
    let rings: HashSet<usize> = taken.iter_mut().flat_map(rings_that_go).collect();
    if let Err(why) = kernels.iter_mut().try_for_each(|(_, one)| one.next.switch.switch()) {
        // Of one program at most: nothing has happened.
        let _ = renew(&mut taken);
        return undone(taken, &crossings, why.into());
    }
    crossings.iter().for_each(|one| one.commit(&mut taken, &mut switched));
    let firsts: Vec<usize> = kernels.iter().map(|(_, one)| one.first).collect();
    for (_, standing) in &mut taken {
        if let Standing::Lent(lent) = standing {
            lent.space.note_change(number);
        }
    }
    settle(&mut taken, &firsts, still);
    settled();
    let first = taken.iter_mut().find(|(_, standing)| matches!(standing, Standing::Lent(_)));
    switched.position = first.map_or(0, |(_, standing)| standing.space().counted().position());
    let before: Vec<Counted> = counted(&mut taken);
    let now = dropped(&mut taken);
    goes_on(&mut taken, kernels, &mut switched);
    let left_behind = graft(&mut taken);
    let after: Vec<Counted> = counted(&mut taken);
    for (key, blocks) in &now {
        let more = blocks - drops.get(key).copied().unwrap_or(0).min(*blocks);
        if more > 0 {
            switched.source_drops.push((key.0.clone(), key.1, more));
        }
    }
    // Sinks first.
    for ((_, standing), thread) in taken.into_iter().zip(threads).rev() {
        match (standing, thread) {
            (Standing::Lent(lent), _) => lent.back(),
            (Standing::Fresh(space), Some(thread)) => thread.go(space),
            (Standing::Fresh(_), None) => {}
        }
    }
    switched.paused_ns = begin.map_or(0, |begin| sys::clock::monotonic().saturating_sub(begin));
    let last = |one: &Leaving| {
        still.iter().for_each(|still| still.ends(&one.orders));
        one.orders.last(left())
    };
    let last: Vec<Counted> = leaving.iter().filter_map(last).collect();
    still.iter().for_each(|still| still.goes_on());
    let drains = last.len() < leaving.len();
    judge(
        &mut switched,
        Counts { begin: start, before, after, last, left_behind, home, rings, drains },
    );
    Ok(switched)
}

/// Records the new kernel programs as the running ones. Takes the decision state of filters out of
/// the kernel with them, and reports blocks that were handed over and not taken.
fn goes_on(
    taken: &mut [(Desk, Standing)],
    kernels: Vec<(Kernels, Succession)>,
    switched: &mut Switched,
) {
    for (all, Succession { kernel, first, next }) in kernels {
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kernel) = all.get_mut(kernel) else { continue };
        let spaces = taken.iter_mut().map(|(_, standing)| standing.space());
        let came = spaces.filter_map(|space| space.taken_of(first)).next().unwrap_or_default();
        let (lost, duplicated) = kernel.era.missing(&came);
        switched.lost += lost;
        switched.duplicated += duplicated;
        for (node, bytes) in kernel.era.kept() {
            for (_, standing) in taken.iter_mut() {
                standing.space().learn(node, &bytes);
            }
        }
        kernel.goes_on(next.era, came);
    }
}

/// The rings out of a space that go.
fn rings_that_go((desk, standing): &mut (Desk, Standing)) -> Vec<usize> {
    let keys = standing.space().keys().into_iter().filter(|key| !desk.stays.contains(key));
    let number = |key| match key {
        Key::Export(number) => Some(number),
        Key::Node(_) | Key::Given(_) | Key::Import(_) => None,
    };
    keys.filter_map(number).collect()
}

fn nanos(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

/// Nothing has happened.
fn give_back(taken: Vec<(Desk, Standing)>, why: Unchanged) -> Unchanged {
    for (_, standing) in taken.into_iter().rev() {
        if let Standing::Lent(lent) = standing {
            lent.back();
        }
    }
    why
}

/// Filters that are made anew get what the old ones know.
fn renew(taken: &mut [(Desk, Standing)]) -> Result<(), Unchanged> {
    for done in 0..taken.len() {
        let (desk, standing) = &mut taken[done];
        if let Err(mistake) = standing.space().renew(&mut desk.graft.renewed) {
            for (desk, standing) in &mut taken[..done] {
                // What was taken from it fits it.
                let _ = standing.space().renew(&mut desk.graft.renewed);
            }
            return Err(Unchanged::Refused(format!("the new filter is not given it: {mistake}")));
        }
    }
    Ok(())
}

/// Drains the old graph: removed nodes release what they hold, and removed rings are emptied. So is
/// the output of ended kernel programs, for the sources of these numbers.
fn settle(taken: &mut [(Desk, Standing)], firsts: &[usize], still: Option<&StallDetector>) {
    let stays: HashSet<Key> = taken.iter().flat_map(|(desk, _)| &desk.stays).copied().collect();
    let goes = |desk: &Desk, key: Key| match key {
        Key::Node(_) | Key::Given(_) => !stays.contains(&key),
        Key::Export(_) | Key::Import(_) => !desk.stays.contains(&key),
    };
    let old = |standing: &Standing| matches!(standing, Standing::Lent(_));
    // How many may still let out more than a ring holds that stays.
    let pours = taken.iter_mut().filter(|(_, standing)| old(standing));
    let pours = pours.filter_map(|(_, standing)| {
        let space = standing.space();
        firsts.iter().any(|first| space.taken_of(*first).is_some()).then_some(())
    });
    let pouring = AtomicUsize::new(pours.count());
    let one = |desk: &Desk, space: &mut Space| {
        let bell = Arc::clone(&desk.bell);
        let wait = || bell.sleep_for(bell.listen(), Duration::from_micros(200));
        for first in firsts {
            if space.taken_of(*first).is_some() {
                while !space.pour_out(*first) {
                    wait();
                }
                pouring.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // Whoever pours out fills rings that stay, too.
        while pouring.load(Ordering::Relaxed) > 0 {
            space.take_rings();
            wait();
        }
        space.take_as_recorded();
        space.empty_all_rings(&|key| goes(desk, key), &wait);
        space.retire(&|key| !goes(desk, key));
        space.has_settled();
    };
    for (_, standing) in taken.iter_mut().filter(|(_, standing)| old(standing)) {
        standing.space().moves();
    }
    let many = taken.iter().filter(|(_, standing)| old(standing)).count();
    still.iter().for_each(|still| still.settles(many));
    let standing = taken.iter_mut().filter(|(_, standing)| old(standing));
    if many < 2 {
        standing.for_each(|(desk, standing)| one(desk, standing.space()));
        return;
    }
    // Each in a thread: one may let out more than a ring holds, and another one takes it.
    std::thread::scope(|scope| {
        for (desk, standing) in standing {
            let one = &one;
            scope.spawn(move || one(desk, standing.space()));
        }
    });
}

/// The new graphs; answers how many blocks that are held did not arrive with their filters.
fn graft(taken: &mut [(Desk, Standing)]) -> u64 {
    let mut homes: HashMap<Key, usize> = HashMap::new();
    for (at, (desk, _)) in taken.iter().enumerate() {
        homes.extend(desk.stays.iter().map(|key| (*key, at)));
    }
    let mut lost = 0;
    let mut arrived: Vec<HashMap<Key, Node>> = taken.iter().map(|_| HashMap::new()).collect();
    for at in 0..taken.len() {
        for key in taken[at].1.space().keys() {
            let Some(home) = homes.get(&key).copied().filter(|home| *home != at) else { continue };
            let Some(mut node) = taken[at].1.space().take_out(key) else { continue };
            let (low, high) = taken.split_at_mut(at.max(home));
            let (from, to) = match at < home {
                true => (&mut low[at], &mut high[0]),
                false => (&mut high[0], &mut low[home]),
            };
            lost += to.1.space().take_in(&mut node, from.1.space());
            arrived[home].insert(key, node);
        }
    }
    for ((desk, standing), mut arrived) in taken.iter_mut().zip(arrived) {
        standing.space().graft(std::mem::take(&mut desk.graft), &mut arrived);
    }
    lost
}

fn counted(taken: &mut [(Desk, Standing)]) -> Vec<Counted> {
    taken.iter_mut().map(|(_, standing)| standing.space().counted()).collect()
}

/// Returns the blocks lost by sources so far, by name and place.
fn dropped(taken: &mut [(Desk, Standing)]) -> HashMap<(String, DropReason), u64> {
    let mut all = HashMap::new();
    let lost = taken.iter_mut().flat_map(|(_, standing)| standing.space().lost_by_sources());
    for (name, place, blocks) in lost.filter(|(_, place, _)| place.is_lost()) {
        *all.entry((name, place)).or_default() += blocks;
    }
    all
}

/// Counters taken during a switch.
struct Counts {
    /// At the moment when the spaces were taken.
    begin: Vec<Counted>,
    /// At the moment when the old graph had settled its accounts.
    before: Vec<Counted>,
    /// In the new graph, before it went on.
    after: Vec<Counted>,
    /// Counters of spaces that have ended since.
    last: Vec<Counted>,
    /// Held blocks that did not come along with their filter.
    left_behind: u64,
    /// Held blocks that were in another process before.
    home: u64,
    /// The rings that go.
    rings: HashSet<usize>,
    /// True if a space that leaves has not ended yet.
    drains: bool,
}

/// Computes lost, duplicated and reordered blocks from the counters.
fn judge(switched: &mut Switched, counts: Counts) {
    let Counts { begin, before, after, last, left_behind, home, rings, drains } = counts;
    switched.reports = report::joined_reports(&[after.clone(), last.clone()].concat());
    let with = |spaces: Vec<Counted>| report::joined([spaces, last.clone()].concat(), true);
    let (begin, old, new) = (report::joined(begin, true), with(before), with(after));
    switched.lost += left_behind + thrown_away(&old).saturating_sub(thrown_away(&begin));
    for node in &old.filters {
        let (came, became) = node.balance();
        switched.lost += came.saturating_sub(became);
        switched.duplicated += became.saturating_sub(came);
    }
    for edge in &old.edges {
        let dropped: u64 = edge.dropped.iter().map(|(_, amount)| amount.blocks).sum();
        let ended = edge.taken.blocks + dropped;
        let missing = edge.put.blocks.saturating_sub(ended);
        match edge.kind {
            // Of what went in an earlier change, the far side may have ended since.
            EdgeKind::Ring | EdgeKind::Deal | EdgeKind::Join if !rings.contains(&edge.planned) => {}
            EdgeKind::Ring if drains => switched.draining += missing,
            _ => switched.lost += missing,
        }
        switched.duplicated += ended.saturating_sub(edge.put.blocks);
    }
    // What stays goes on counting where it was: a difference is a block that was forgotten, or was
    // counted twice.
    let mut was = Sums::of(&old);
    was.comes_home(home);
    for (was, is) in was.0.into_iter().zip(Sums::of(&new).0) {
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

/// Blocks that were thrown away for want of room or because something failed: not what filters drop
/// because it is their task.
fn thrown_away(ledger: &Ledger) -> u64 {
    let ours = [DropReason::Evicted, DropReason::NoRoom, DropReason::Failed];
    let filters = ledger.filters.iter().flat_map(|node| &node.dropped);
    let filters = filters.filter(|(why, _)| ours.contains(why)).map(|(_, a)| a.blocks);
    let edges = ledger.edges.iter().flat_map(|edge| &edge.dropped).map(|(_, a)| a.blocks);
    filters.sum::<u64>() + edges.sum::<u64>()
}

/// Totals of a graph.
struct Sums([u64; 8]);

impl Sums {
    /// Accounts for blocks held by a process that are now held here: adds them as made and as held.
    const fn comes_home(&mut self, blocks: u64) {
        self.0[1] += blocks;
        self.0[5] += blocks;
    }

    fn of(ledger: &Ledger) -> Self {
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
