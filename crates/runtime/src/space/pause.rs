//! A walk at rest: where something is to be edited, it ends with all its views, and is taken up
//! again behind the edit (`space::edit`).

use super::memory::{Frames, Memory};
use super::node::NodeId;
use super::walk::{Ran, Waiting, Walk};
use filter::{Batch, Room};

/// A batch that came to an editing filter, without its bytes.
pub(crate) struct Cut {
    pub(crate) at: NodeId,
    pub(crate) room: Room,
    pub(crate) hops: u8,
}

/// A walk at rest: all blocks that are under way, and no view of any of them.
pub(crate) struct Paused {
    /// Before an editing filter.
    pub(crate) cuts: Vec<Cut>,
    /// Behind one.
    pub(crate) edited: Vec<(NodeId, Room, u8)>,
    /// At a join: where from, on which arc.
    waiting: Vec<(NodeId, usize, Room)>,
    /// On a back edge.
    around: Vec<(NodeId, usize, Room, u8)>,
    next: u32,
}

impl Paused {
    /// Returns true if no block is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.rooms().next().is_none()
    }

    /// All blocks that are under way.
    pub(crate) fn rooms(&self) -> impl Iterator<Item = &Room> {
        let cuts = self.cuts.iter().map(|cut| &cut.room);
        let edited = self.edited.iter().map(|(_, room, _)| room);
        let waiting = self.waiting.iter().map(|(_, _, room)| room);
        let around = self.around.iter().map(|(_, _, room, _)| room);
        cuts.chain(edited).chain(waiting).chain(around)
    }
}

impl<'a> Walk<'_, 'a> {
    /// Ends the walk where something is to be edited, and with it all views; `None`: it is done.
    pub(crate) fn pause(self) -> Option<Paused> {
        if self.cuts.is_empty() {
            return None;
        }
        let waiting = self.waiting.into_iter().map(|w| (w.from, w.arc, w.batch.at_rest()));
        let around =
            self.around.into_iter().map(|(w, hops)| (w.from, w.arc, w.batch.at_rest(), hops));
        Some(Paused {
            cuts: self.cuts,
            edited: Vec::new(),
            waiting: waiting.collect(),
            around: around.collect(),
            next: self.next,
        })
    }

    /// Goes on where a walk paused.
    pub(crate) fn resume(&mut self, paused: Paused) {
        let Memory { intakes, work, imported } = *self.memory;
        let memory = Memory { intakes, work, imported };
        let batch = |room| Frames::new(|_, frame| memory.segment(frame)).batch(room);
        self.next = paused.next;
        self.cuts = paused.cuts;
        let waiting = paused.waiting.into_iter();
        self.waiting =
            waiting.map(|(from, arc, room)| Waiting { from, arc, batch: batch(room) }).collect();
        let around = paused.around.into_iter();
        let back = |(from, arc, room, hops)| (Waiting { from, arc, batch: batch(room) }, hops);
        self.around = around.map(back).collect();
        for (at, room, hops) in paused.edited {
            let mut edited = batch(room);
            self.route(at, &mut edited, hops);
            self.turn.keep(edited.into_room());
        }
        self.settle();
    }

    /// Keeps a batch for the editing filter that it came to.
    pub(super) fn put_aside(&mut self, at: NodeId, batch: &mut Batch<'a>, hops: u8) -> Ran<'a> {
        let mut room = self.turn.rooms.pop().unwrap_or_default();
        room.columns.clear();
        let taken = std::mem::replace(batch, Batch::unseen(room));
        self.cuts.push(Cut { at, room: taken.at_rest(), hops });
        Ran::Ended
    }
}
