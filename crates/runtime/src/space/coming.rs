//! Blocks that come: from a source of the space, or over a ring from another.

use super::memory::Frames;
use super::node::{NodeId, Part};
use super::sleep::earlier;
use super::{GENERAL, Input, Pass, Space};
use crate::failure::PathFailure;
use endpoint::{Given, Intake};
use filter::{Batch, Room, Time};

/// Limits on taking entries off a ring in one pass.
#[derive(Clone, Copy)]
pub(super) struct Taking {
    /// Maximum number of blocks.
    pub(super) most: usize,
    /// The path's time, where a record says it.
    pub(super) now: Option<Time>,
    /// True if the pass ends with them.
    pub(super) last: bool,
}

impl Space {
    /// Asks a source for a batch and walks it.
    pub(super) fn pull(&mut self, (at, from): (NodeId, usize), pass: &mut Pass) {
        let stopped = self.control.is_stopped();
        // Of what is under way nothing is wanted once everybody has enough.
        let drains = !self.has_enough();
        let now = self.live();
        let Part::Source(part) = &mut self.graph.nodes[at].part else { return };
        if part.ended {
            return;
        }
        if stopped && !(drains && part.source.stop()) {
            part.ended = true;
            return;
        }
        let mut room = self.spare.take().unwrap_or_default();
        let pool = &self.graph.intakes[from];
        let intake = Intake::new(pool, &mut room.columns, self.batch_max, now);
        let mut intake = intake.beside(&self.graph.intakes[GENERAL]);
        let given = part.source.give(&mut intake);
        let (edge, drained) = (intake.arc, intake.drained);
        let came = room.columns.len();
        if let Some(age) = part.age.as_ref().filter(|_| came > 0) {
            age.came(&room.columns, now);
        }
        match given {
            Ok(Given::Blocks) => pass.open = true,
            Ok(Given::Wait { until, readable }) => {
                pass.open = true;
                pass.until = earlier(pass.until, until);
                pass.readable |= readable;
            }
            Ok(Given::End) => part.ended = true,
            Err(failure) => {
                part.ended = true;
                let name = self.graph.nodes[at].name.clone();
                self.graph.turn.failure = Some(PathFailure::outside(name, failure));
            }
        }
        pass.moved |= came > 0;
        self.graph.turn.last = drained && self.inputs.len() == 1;
        self.spare = Some(self.turn_with((at, from, edge), room, now));
        self.graph.turn.last = false;
    }

    /// Walks the blocks that a source put, what asked to be woken, and ends the turn.
    pub(super) fn turn_with(
        &mut self,
        (at, from, edge): (NodeId, usize, Option<usize>),
        room: Room,
        now: Time,
    ) -> Room {
        // A failing source may have given blocks before: they are walked, then the path ends.
        let failure = self.graph.turn.failure.take();
        let now = self.graph.clock.advance(&room.columns, now);
        self.note_pull((at, from, edge), &room.columns, now, failure.as_ref());
        let room = self.walk_pulled((at, from, edge), room, now, true);
        self.graph.turn.failure = self.graph.turn.failure.take().or(failure);
        self.note_claims();
        room
    }

    /// Walks blocks that lie in an intake, and ends the turn: with what asked to be woken, unless
    /// more of the same turn follows.
    pub(super) fn walk_pulled(
        &mut self,
        (at, from, edge): (NodeId, usize, Option<usize>),
        room: Room,
        now: Time,
        last: bool,
    ) -> Room {
        let look = self.graph.shape.looks || self.graph.turn.observers.look();
        let mut spare = None;
        // What was put aside comes before what filters let go because their time has come.
        self.graph.walk(now, &[], |walk| {
            let intakes = walk.memory.intakes;
            let (general, pool) = (&intakes[GENERAL], &intakes[from]);
            let segment = |_, frame| pool.segment(frame).or_else(|| general.segment(frame));
            let mut batch =
                if look { Frames::new(segment).batch(room) } else { Batch::unseen(room) };
            if !batch.is_empty() {
                match edge {
                    None => walk.source(at, &mut batch),
                    Some(arc) => walk.source_along(at, arc, &mut batch),
                }
            }
            spare = Some(batch.into_room());
        });
        if last {
            self.graph.tick(now, &[]);
        }
        self.turn_pools();
        spare.unwrap_or_default()
    }

    /// Takes a batch off a ring and walks it.
    pub(super) fn import(&mut self, i: usize, pass: &mut Pass) {
        self.walk_imported(i, pass, Taking { most: self.batch_max, now: None, last: true });
        self.note_claims();
    }

    pub(super) fn walk_imported(&mut self, i: usize, pass: &mut Pass, turn: Taking) {
        let Input::Ring { node, import, ended } = &mut self.inputs[i] else { return };
        if *ended {
            return;
        }
        let at = *node;
        let walked = match import.peek(turn.most) {
            Ok(None) => import.is_finished().map(|finished| {
                *ended = finished;
                pass.open |= !finished;
            }),
            Ok(Some(taken)) => {
                let mut room = self.spare.take().unwrap_or_default();
                room.columns.clear();
                room.columns.fill(|pointers, context, marks| taken.copy(pointers, context, marks));
                let count = room.columns.len();
                let now = turn.now.unwrap_or_else(|| self.graph.advance(&room.columns));
                let (all, spare) = ([taken], &mut self.spare);
                self.events.import(at, now, count);
                self.graph.walk(now, &all, |walk| {
                    let Some(taken) = walk.memory.imported.first() else { return };
                    let mut batch = Frames::new(|number, _| taken.segment(number)).batch(room);
                    walk.source(at, &mut batch);
                    *spare = Some(batch.into_room());
                });
                if turn.last {
                    self.graph.tick(now, &all);
                }
                pass.open = true;
                pass.moved = true;
                import.release(count)
            }
            Err(fault) => Err(fault),
        };
        if let Err(fault) = walked {
            let name = self.graph.nodes[at].name.clone();
            self.graph.turn.failure = Some(PathFailure::ring(name, fault));
        }
        self.turn_pools();
    }
}
