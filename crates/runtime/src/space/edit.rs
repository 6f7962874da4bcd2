//! Write isolation: blocks are changed when nobody has a view of them, and nobody but those behind
//! the change sees it. [SL §6.1], [Th §5.3]
//!
//! A batch that comes to an editing filter is put aside as rich pointers, and the walk goes on with
//! everything else that can be done without it: so what reads a block in parallel has read it
//! before the change [Th §5.3.1, rule 2], wherever it stands in the request. Then the walk ends,
//! and with it every view of the turn (`Walk::pause`); only rich pointers are left ([`Paused`]).
//! Now the space has its pools for itself (`&mut`), the filter edits block by block, and a new walk
//! takes up where the old one stopped. That no slice is alive the compiler has proved, and
//! `Pool::edit` says why the bytes may be written (M9).
//!
//! That nobody *expects* the old bytes is argued here. A frame is changed where it lies only if
//! - E1 it lies in a pool of this space that is our own: imported and lent blocks are copied into
//!   the local pool (`work`), which is always writable;
//! - E2 nobody else in any space holds it: its segment has no lease (rings) and no pin (holds),
//!   which `Pool::edit` checks;
//! - E3 no block that is under way in this space shares a byte of the frame: all of those are in
//!   [`Paused`], since the walk is at rest and puts nothing elsewhere, and the frames of all are
//!   compared, those of the same batch among them (a filter may make several blocks of one);
//! - E4 nobody asked for copies (`Settings::copies`).
//!
//! A filter that remembers a rich pointer without holding the block is entitled to nothing (M5). A
//! frame is compared whole, since `pcap` writes all of it whatever the view. Otherwise the change
//! is made in a copy: of the whole frame, or, if that is long and those behind take fragments, of
//! the part that is written ([`FRAGMENT_MIN`]).

mod bench;

use self::bench::Bench;
use super::graph::LocalGraph;
use super::node::{NodeId, Part};
use super::pause::Paused;
use crate::failure::PathFailure;
use crate::ledger::Edits;
use abi::{DbufId, Entry};
use buffer::crossing::Batch as Taken;
use filter::{Amount, Block, Columns, Filter, Room, Tell, Time};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A shorter frame is copied whole: three blocks cost more than the copy (about 60 ns for 4 KB).
pub(crate) const FRAGMENT_MIN: usize = 8 << 10;

impl LocalGraph {
    /// Has the filter that comes first in the graph edit all batches that wait for it.
    pub(super) fn edit(&mut self, paused: &mut Paused, imported: &[Taken<'_>], now: Time) {
        let first = paused.cuts.iter().map(|cut| cut.at).min_by_key(|at| self.shape.rank[*at]);
        let Some(at) = first else { return };
        while let Some(next) = paused.cuts.iter().position(|cut| cut.at == at) {
            let cut = paused.cuts.remove(next);
            let shared = shared(&cut.room.columns, paused);
            let mut out = Out { spare: std::mem::take(&mut self.turn.rooms), ..Out::default() };
            self.batch((at, now), &cut.room.columns, (shared, imported), &mut out);
            self.turn.rooms = out.spare;
            paused.edited.extend(out.rooms.into_iter().map(|room| (at, room, cut.hops)));
            self.turn.keep(cut.room);
        }
    }

    /// Edits the blocks of a batch.
    fn batch(
        &mut self,
        (at, now): (NodeId, Time),
        columns: &Columns,
        (shared, imported): (u64, &[Taken<'_>]),
        out: &mut Out,
    ) {
        let node = &mut self.nodes[at];
        let came = amount(columns);
        if self.turn.failure.is_some() {
            add(&mut node.flow.failed, came);
            return;
        }
        let Part::Filter(Filter::Edit(filter)) = &mut node.part else { return };
        node.flow.calls += 1;
        let begin = if self.turn.observers.measure_time() { sys::clock::monotonic() } else { 0 };
        let mut bench = Bench {
            intakes: &mut self.intakes,
            work: &mut self.work,
            imported,
            fragments: node.fragments,
        };
        let mut tell = Tell::new(now, &mut node.counts);
        let mut last = 0;
        let ran = catch_unwind(AssertUnwindSafe(|| {
            for l in 0..columns.len() {
                last = l;
                let copies = self.turn.copies || shared & (1 << l) != 0;
                bench.block(
                    (columns.entry(l), columns.order(l)),
                    copies,
                    (&mut **filter, &mut tell),
                    out,
                );
            }
        }));
        node.counts.made.blocks += out.made;
        for bytes in out.lost.drain(..) {
            node.counts.no_room.add(bytes);
        }
        let edits = &mut node.flow.edits;
        edits.direct += out.edits.direct;
        edits.copied += out.edits.copied;
        edits.appended += out.edits.appended;
        edits.fragmented += out.edits.fragmented;
        if self.turn.observers.measure_time() {
            node.flow.busy_ns += sys::clock::monotonic().saturating_sub(begin);
        }
        if let Err(panic) = ran {
            add(&mut node.flow.failed, came);
            node.counts.made.blocks -= out.made;
            out.rooms.clear();
            let entry = columns.entry(last);
            let frame = bench.find(entry.frame());
            let Entry { pointer, marks, context } = entry;
            let block = Block { pointer, frame, marks, context };
            let name = node.name.clone();
            self.turn.failure = Some(PathFailure::panicked(name, &*panic, Some(&block)));
        }
    }
}

/// Output of an editing filter.
#[derive(Default)]
struct Out {
    rooms: Vec<Room>,
    /// Memory for more of them.
    spare: Vec<Room>,
    /// Blocks that came out beyond those that came in.
    made: u64,
    /// The lengths of those for which there was no memory.
    lost: Vec<u32>,
    edits: Edits,
}

impl Out {
    fn push(&mut self, entry: Entry, order: u32) {
        let added =
            self.rooms.last_mut().is_some_and(|room| room.columns.push_caused(entry, order));
        if !added {
            let mut room = self.spare.pop().unwrap_or_default();
            room.columns.clear();
            room.columns.push_caused(entry, order);
            self.rooms.push(room);
        }
    }
}

/// The lanes whose frames share a byte with another block that is under way (E3).
fn shared(columns: &Columns, paused: &Paused) -> u64 {
    let frame = |columns: &Columns, l: usize| {
        let frame = columns.frame(l);
        let from = frame.place.position();
        (frame.dbuf(), from, from + u64::from(frame.length()))
    };
    if paused.is_empty() {
        // Mostly a batch is alone, and its frames follow each other.
        let mut end = (DbufId::HOLE, 0);
        let mut apart = true;
        for l in 0..columns.len() {
            let (dbuf, from, to) = frame(columns, l);
            apart &= dbuf != end.0 || from >= end.1;
            apart &= l == 0 || dbuf == end.0;
            end = (dbuf, to);
        }
        if apart {
            return 0;
        }
    }
    let mut all: Vec<((DbufId, u64, u64), Option<usize>)> =
        (0..columns.len()).map(|l| (frame(columns, l), Some(l))).collect();
    for other in paused.rooms() {
        all.extend((0..other.columns.len()).map(|l| (frame(&other.columns, l), None)));
    }
    all.retain(|((_, from, to), _)| from < to);
    all.sort_unstable_by_key(|((dbuf, from, _), _)| (dbuf.number(), *from));
    let mut shared = 0;
    // The one that reaches farthest of those before.
    let mut far: Option<((DbufId, u64, u64), Option<usize>)> = None;
    for (range, lane) in all {
        let mark = |lane: Option<usize>| lane.map_or(0, |l| 1 << l);
        match far {
            Some((before, other)) if before.0 == range.0 && range.1 < before.2 => {
                shared |= mark(lane) | mark(other);
                if range.2 > before.2 {
                    far = Some((range, lane));
                }
            }
            _ => far = Some((range, lane)),
        }
    }
    shared
}

fn amount(columns: &Columns) -> Amount {
    let mut amount = Amount::default();
    (0..columns.len()).for_each(|l| amount.add(columns.pointer(l).length()));
    amount
}

fn add(to: &mut Amount, more: Amount) {
    to.blocks += more.blocks;
    to.bytes += more.bytes;
}
