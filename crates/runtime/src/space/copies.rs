//! The ends of copies that share work ([`crate::copies`]): where one gets its part of a burst, and
//! where all are joined, burst after burst, in the order in which the blocks came.

use super::behind::Behind;
use super::graph::LocalGraph;
use super::memory::Frames;
use super::node::{NodeId, Part};
use super::{Input, Pass, Space};
use crate::copies::{Board, after, burst_of, last_of};
use crate::failure::PathFailure;
use crate::ring::Import;
use buffer::Fault;
use buffer::crossing::Batch as Taken;
use filter::{LANES, Room};
use std::sync::Arc;

/// The counter of a join: blocks that came when the place where they belong was passed.
pub const LATE: &[&str] = &["late"];

/// A copy, as the space that it runs in knows it.
#[derive(Debug)]
pub struct Own {
    /// Board shared by dispatcher, replicas and join.
    pub board: Arc<Board>,
    /// Its number.
    pub number: usize,
    /// The burst that it got last.
    pub near: u64,
}

impl Drop for Own {
    /// Marks the replica as ended, however it ended, so that nothing waits for it.
    fn drop(&mut self) {
        self.board.finish(self.number, u64::MAX);
    }
}

/// The join of a replica chain.
#[derive(Debug)]
pub struct Gather {
    pub(super) board: Arc<Board>,
    /// One for each copy, in their order.
    pub(super) ways: Vec<Way>,
    /// The node at which they meet.
    node: NodeId,
    /// True if several replicas have a part in a burst.
    mixed: bool,
    /// The first burst that is not joined.
    burst: u64,
    /// True if a part of the burst has gone on without the rest.
    broken: bool,
    /// The part of the replica in this space that is yet to end, once the input has ended.
    pub(super) behind: Option<Behind>,
    pub(super) ended: bool,
}

/// Input from one replica, or, for the replica in this space, its work.
#[derive(Debug)]
pub struct Way {
    /// The node behind the ring.
    pub node: NodeId,
    /// The reading end.
    pub import: Import,
    /// Capacity of the ring, in entries.
    pub entries: usize,
    /// The copy in this space.
    pub own: Option<Own>,
}

/// The part of a burst that lies in a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    count: usize,
    /// True if the part is complete.
    whole: bool,
    /// True if the part fills the ring.
    full: bool,
    /// Number of its entries that belong to earlier bursts.
    late: u64,
}

impl Gather {
    /// Joins replicas at `node`; `mixed`: several have a part in one batch id.
    #[must_use]
    pub const fn new(board: Arc<Board>, ways: Vec<Way>, node: NodeId, mixed: bool) -> Self {
        Self { board, ways, node, mixed, burst: 0, broken: false, behind: None, ended: false }
    }

    /// Returns the board shared by dispatcher, replicas and join.
    pub(super) fn board(&self) -> &Board {
        &self.board
    }

    /// The rings that end here, with the nodes behind them.
    pub(super) fn imports(&self) -> impl Iterator<Item = (NodeId, &Import)> {
        self.ways.iter().map(|way| (way.node, &way.import))
    }

    /// The same, to put gauges there.
    pub(super) fn imports_mut(&mut self) -> impl Iterator<Item = &mut Import> {
        self.ways.iter_mut().map(|way| &mut way.import)
    }

    /// Returns the shares to be taken now from each input; empty while one is awaited.
    fn look(&mut self) -> Result<Vec<Share>, Fault> {
        let (burst, board) = (self.burst, &self.board);
        let shares = self.ways.iter_mut().enumerate().map(|(copy, way)| {
            // Asked before looking into the ring: what is finished is in it.
            let may = board.has_part(copy, burst);
            way.share(burst, may)
        });
        let shares: Vec<Share> = shares.collect::<Result<_, _>>()?;
        let whole = shares.iter().all(|share| share.whole);
        // A ring that is full of one burst must be read, or its copy never gets on.
        let full = shares.iter().any(|share| share.full);
        if !whole {
            board.wait_for(burst);
        }
        if whole || !self.mixed || full { Ok(shares) } else { Ok(Vec::new()) }
    }

    /// Goes on behind a burst.
    fn joined(&mut self) {
        self.burst = after(self.burst);
        self.broken = false;
    }

    fn is_finished(&mut self) -> Result<bool, Fault> {
        let mut finished = self.behind.as_ref().is_none_or(Behind::has_ended);
        for way in &mut self.ways {
            finished &= way.import.is_finished()?;
        }
        Ok(finished)
    }
}

impl Way {
    /// Returns the share of this burst, in which the replica `may` have a part.
    fn share(&mut self, burst: u64, may: bool) -> Result<Share, Fault> {
        let closed = self.import.is_finished()?;
        let waits = self.import.look_again()?;
        let mut share = Share { whole: closed || !may, ..Share::default() };
        for at in 0..waits.len() {
            let (turn, last) = waits.entry(at).marks.seq();
            let of = burst_of(turn, burst);
            // What a copy lets out at its end is behind all bursts.
            let behind = self.own.is_none() && waits.entry(at).marks.end_step().0 > 0;
            if behind || of > burst {
                share.whole = true;
                break;
            }
            share.late += u64::from(of < burst);
            share.count += 1;
            if self.own.is_some() && last {
                share.whole = true;
                break;
            }
        }
        share.full = share.count >= self.entries;
        Ok(share)
    }
}

impl Space {
    /// Takes what a copy in this space is to work on, at most one burst, and walks it.
    pub(super) fn take_part(&mut self, i: usize, pass: &mut Pass) {
        let Input::Copy { node, import, ended, own } = &mut self.inputs[i] else { return };
        if *ended {
            return;
        }
        let at = *node;
        let taken = match import.look(LANES) {
            Ok(taken) if taken.is_empty() => {
                match import.is_finished() {
                    Ok(finished) => {
                        *ended = finished;
                        pass.open |= !finished;
                    }
                    Err(fault) => self.fails(at, fault),
                }
                return;
            }
            Ok(taken) => taken,
            Err(fault) => return self.fails(at, fault),
        };
        let turns = (0..taken.len()).map(|at| taken.entry(at).marks.seq());
        let (count, last) = turns
            .clone()
            .position(|(_, last)| last)
            .map_or((taken.len(), false), |at| (at + 1, true));
        let first = turns.clone().next().map_or(0, |(turn, _)| turn);
        own.near = burst_of(first, own.near);
        own.board.finish(own.number, own.near);
        let graph = &mut self.graph;
        graph.turn.order = last_of(own.near);
        let walked = match import.look(count) {
            Ok(taken) => {
                graph.walk_taken(&[taken], &[at]);
                import.release(count)
            }
            Err(fault) => Err(fault),
        };
        pass.open = true;
        pass.moved = true;
        self.turn_pools();
        match walked {
            Ok(()) => {
                let Input::Copy { own, .. } = &self.inputs[i] else { return };
                let done = if last { own.near + 1 } else { own.near };
                own.board.finish(own.number, done);
            }
            Err(fault) => self.fails(at, fault),
        }
    }

    /// Takes the next burst from all who had a part in it, and walks it.
    pub(super) fn gather(&mut self, i: usize, pass: &mut Pass) {
        let Input::Join(gather) = &mut self.inputs[i] else { return };
        if gather.ended {
            return;
        }
        let at = gather.node;
        let graph = &mut self.graph;
        let moved = graph.join(gather);
        match moved {
            Ok(true) => (pass.open, pass.moved) = (true, true),
            Ok(false) => match gather.is_finished() {
                Ok(finished) => {
                    gather.ended = finished;
                    pass.open |= !finished;
                }
                Err(fault) => self.fails(at, fault),
            },
            Err(fault) => self.fails(at, fault),
        }
        if pass.moved {
            self.turn_pools();
        }
    }

    fn fails(&mut self, at: NodeId, fault: Fault) {
        let name = self.graph.nodes[at].name.clone();
        self.graph.turn.failure = Some(PathFailure::ring(name, fault));
    }

    /// Says that the copy in this space that shares out has finished what it got.
    pub(super) fn finish_part(&mut self, ends: bool) {
        for at in &self.graph.shape.deals {
            if let Part::Deal(deal) = &self.graph.nodes[*at].part {
                match ends {
                    true => deal.end(),
                    false => deal.finish(),
                }
            }
        }
    }
}

impl LocalGraph {
    /// Joins a burst, or what comes behind all; answers whether anything moved.
    fn join(&mut self, gather: &mut Gather) -> Result<bool, Fault> {
        // Asked first: when it is closed, this is the last burst.
        let closed = gather.board.is_closed();
        if gather.board.shared() <= gather.burst {
            return if closed { self.join_behind(gather) } else { Ok(false) };
        }
        let shares = gather.look()?;
        let whole = !shares.is_empty() && shares.iter().all(|share| share.whole);
        let count: usize = shares.iter().map(|share| share.count).sum();
        if count == 0 {
            if whole {
                gather.joined();
            }
            return Ok(whole);
        }
        let (mut all, mut nodes) = (Vec::new(), Vec::new());
        let mut late: u64 = shares.iter().map(|share| share.late).sum();
        if gather.broken {
            late = count as u64;
        }
        for (way, share) in gather.ways.iter_mut().zip(&shares).filter(|(_, s)| s.count > 0) {
            all.push(way.import.look(share.count)?);
            nodes.push(way.node);
        }
        self.turn.order = last_of(gather.burst);
        self.walk_taken(&all, &nodes);
        drop(all);
        for (way, share) in gather.ways.iter_mut().zip(&shares).filter(|(_, s)| s.count > 0) {
            way.import.release(share.count)?;
            // Others may not be so far that the burst is joined: that we are is not forgotten.
            if let Some(own) = way.own.as_ref().filter(|_| share.whole) {
                own.board.finish(own.number, gather.burst + 1);
            }
        }
        if let Some(counted) = self.nodes[gather.node].counts.counters.first_mut() {
            *counted += late;
        }
        if whole {
            gather.joined();
        } else {
            gather.broken = gather.mixed;
        }
        Ok(true)
    }

    /// Walks what was taken off rings, each from the node behind it, all in one walk.
    pub(super) fn walk_taken(&mut self, all: &[Taken<'_>], nodes: &[NodeId]) {
        let mut batches: Vec<(NodeId, usize, usize, Room)> = Vec::new();
        let mut now = self.live();
        let live = now;
        for (ring, (taken, node)) in all.iter().zip(nodes).enumerate() {
            for from in (0..taken.len()).step_by(LANES) {
                let mut room = self.turn.rooms.pop().unwrap_or_default();
                room.columns.clear();
                if from == 0 {
                    room.columns
                        .fill(|pointers, context, marks| taken.copy(pointers, context, marks));
                } else {
                    (from..taken.len().min(from + LANES)).for_each(|at| {
                        room.columns.push(taken.entry(at));
                    });
                }
                room.columns.take_turns();
                now = self.clock.advance(&room.columns, live);
                batches.push((*node, ring, from, room));
            }
        }
        let mut rooms = Vec::new();
        self.walk(now, all, |walk| {
            let all = walk.memory.imported;
            for (node, ring, from, room) in batches {
                let taken = &all[ring];
                let frames = Frames::new(|number, _| taken.segment(from + number));
                let mut batch = frames.batch(room);
                walk.route(node, &mut batch, 0);
                rooms.push(batch.into_room());
            }
            walk.settle();
        });
        rooms.into_iter().for_each(|room| self.turn.keep(room));
        self.tick(now, all);
    }
}
