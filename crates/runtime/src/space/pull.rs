//! The input of a space: reading of batches from sources and rings.

use super::arc::NodeId;
use super::memory::Frames;
use super::node::Operator;
use super::pass::PassResult;
use super::pass::earlier_time;
use super::{GENERAL_INTAKE, Input, Space};
use crate::control::ControlEvent;
use crate::failure::PathFailure;
use endpoint::{ClassSelection, Intake, SourceStatus};
use filter::{Batch, BatchMemory, Time};

/// The parameters of one read of blocks from a ring.
#[derive(Clone, Copy)]
pub(super) struct RingReadLimits {
    /// Maximum number of blocks that the read takes from the ring.
    pub(super) blocks_max: usize,
    /// Time of the read in a replay: the recorded time on the path's clock. `None` outside a
    /// replay; the clock is then read.
    pub(super) now: Option<Time>,
    /// True if this is the last read of the pass. Expired timers are then served after it.
    pub(super) ends_pass: bool,
}

impl Space {
    /// Takes a batch from the source at node `at`, which uses the intake with index `from`, and
    /// passes the batch through the graph. If `until` is given, takes only blocks up to that time,
    /// because the source is merged with others by time.
    pub(super) fn pull_source(
        &mut self,
        (at, from): (NodeId, usize),
        until: Option<Time>,
        pass: &mut PassResult,
    ) {
        let stopped = self.ports.control.is_stopped();
        // After the limit of `-c` is reached, blocks in flight are not drained.
        let drains = !self.is_limit_reached();
        let now = self.graph.wall_clock_time();
        let batch_limit = self.graph.batch_limit();
        let node = &mut self.graph.nodes[at];
        let (Operator::Source(part), arcs) = (&mut node.operator, &node.arcs) else { return };
        part.ended = part.ended || stopped && !(drains && part.source.stop());
        if part.ended {
            return;
        }
        let mut room = self.inputs.spare.take().unwrap_or_default();
        let pool = &self.graph.intakes[from];
        let takes = |class| arcs.iter().any(|arc| arc.wanted.contains(class));
        let mut intake = Intake::new(pool, &mut room.columns, self.inputs.batch_max, now)
            .with_class_selection(ClassSelection::new(&takes))
            .with_general_pool(&self.graph.intakes[GENERAL_INTAKE]);
        let observed = self.graph.pass.observers.reads_bytes() || self.ports.events.is_recording();
        intake.without_bytes = !observed && !self.graph.shape.needs_bytes;
        if !observed {
            intake.arcs_in_place = self.graph.shape.arcs_in_place.get(at).copied().unwrap_or(0);
        }
        intake.until = until;
        intake.batch_limit = batch_limit;
        let given = part.source.produce(&mut intake);
        let tap = intake.arc.and_then(|arc| arc.checked_sub(arcs.len()));
        let tap = tap.filter(|tap| *tap < part.taps.len());
        self.graph.pass.in_place = intake.in_place;
        let (edge, drained) = (intake.arc, intake.is_drained);
        let came = room.columns.len();
        if let Some(age) = part.age.as_ref().filter(|_| came > 0 && tap.is_none()) {
            age.measure_emitted_blocks(&room.columns, now);
        }
        match given {
            Ok(SourceStatus::Blocks) => pass.expects_input = true,
            Ok(SourceStatus::Wait { until, readable }) => {
                pass.expects_input = true;
                pass.next_event_time = earlier_time(pass.next_event_time, until);
                pass.has_descriptor |= readable;
            }
            Ok(SourceStatus::End) => part.ended = true,
            Err(failure) => {
                part.ended = true;
                let name = self.graph.nodes[at].name.clone();
                self.graph.pass.failure = Some(PathFailure::from_endpoint(name, failure));
            }
        }
        if self.graph.pass.stall.is_some()
            && let Some(stall) = self.graph.pass.check_stall(came, drained)
        {
            self.ports.control.report(ControlEvent::Stalled(stall));
        }
        if came > 0 {
            self.ports.control.report_blocks_arrived();
            pass.moved = true;
        }
        if let Some(tap) = tap.filter(|_| came > 0) {
            self.inputs.spare = Some(self.feed_taps((at, from, tap), room));
            return;
        }
        self.graph.pass.sleeps_next = drained && self.inputs.list.len() == 1;
        self.inputs.spare = Some(self.complete_source_pass((at, from, edge), room, now));
        self.graph.pass.sleeps_next = false;
    }

    /// Completes a pass over a source whose batch has been read. The source at node `at` has put
    /// the blocks in `room` into the intake `from`. Passes the blocks through the graph, over the
    /// arc `edge` if the source chose one. Then calls the filters whose timers have expired, and
    /// ends the pass. Returns the blocks' memory for reuse.
    pub(super) fn complete_source_pass(
        &mut self,
        (at, from, edge): (NodeId, usize, Option<usize>),
        room: BatchMemory,
        now: Time,
    ) -> BatchMemory {
        // A failing source may have emitted blocks first: they are walked before the path ends. The
        // failure is taken only if present, because an unconditional take copies some hundred bytes
        // in each pass.
        let failure =
            if self.graph.pass.failure.is_some() { self.graph.pass.failure.take() } else { None };
        let now = self.graph.clock.advance(&room.columns, now);
        self.record_pull((at, from, edge), &room.columns, now, failure.as_ref());
        let room = self.walk_pulled_blocks((at, from, edge), room, now, true);
        if let Some(failure) = failure {
            self.graph.pass.failure.get_or_insert(failure);
        }
        self.record_claims();
        room
    }

    /// Passes the blocks of a source through the graph. The source at node `at` has put the blocks
    /// in `room` into the intake `from`. The blocks take the arc `edge` if the source chose one. If
    /// `last` is true, no further blocks follow in this pass; the filters whose timers have expired
    /// are then called. Returns the blocks' memory for reuse.
    pub(super) fn walk_pulled_blocks(
        &mut self,
        (at, from, edge): (NodeId, usize, Option<usize>),
        room: BatchMemory,
        now: Time,
        last: bool,
    ) -> BatchMemory {
        let look = self.graph.shape.reads_bytes || self.graph.pass.observers.reads_bytes();
        let look = look && !self.graph.pass.in_place;
        let mut spare = None;
        // Deferred edits run before timers.
        self.graph.walk(now, &[], |walk| {
            let intakes = walk.memory.intakes;
            let (general, pool) = (&intakes[GENERAL_INTAKE], &intakes[from]);
            let segment = |_, frame| pool.segment(frame).or_else(|| general.segment(frame));
            let mut batch = if look {
                Frames::new(segment).into_batch(room)
            } else {
                Batch::without_bytes(room)
            };
            if !batch.is_empty() {
                match edge {
                    None => walk.walk_source(at, &mut batch),
                    Some(arc) => walk.walk_chosen_arc(at, arc, &mut batch),
                }
            }
            spare = Some(batch.into_memory());
        });
        if last {
            self.graph.run_expired_timers(now, &[]);
        }
        self.end_pass();
        spare.unwrap_or_default()
    }

    /// Takes a batch from the ring at input `i` of the space, and passes it through the graph.
    pub(super) fn import_ring(&mut self, i: usize, pass: &mut PassResult) {
        self.walk_imported_blocks(
            i,
            pass,
            RingReadLimits { blocks_max: self.inputs.batch_max, now: None, ends_pass: true },
        );
        self.record_claims();
    }

    pub(super) fn walk_imported_blocks(
        &mut self,
        i: usize,
        pass: &mut PassResult,
        limits: RingReadLimits,
    ) {
        let Input::Ring { node, import, ended } = &mut self.inputs.list[i] else { return };
        if *ended {
            return;
        }
        let at = *node;
        let mut limit = if limits.now.is_none() { self.graph.batch_limit() } else { None };
        let walked = match import.peek(limits.blocks_max) {
            Ok(None) => import.is_finished().map(|finished| {
                *ended = finished;
                pass.expects_input |= !finished;
            }),
            Ok(Some(taken)) => {
                let mut room = self.inputs.spare.take().unwrap_or_default();
                room.columns.clear();
                room.columns.fill(|pointers, context, marks| {
                    let count = taken.copy_columns(pointers, context, marks);
                    let mut times = context.iter().take(count).map(|context| context.time);
                    let end = limit
                        .as_mut()
                        .and_then(|limit| times.position(|time| limit.ends_with(time)));
                    end.map_or(count, |last| last + 1)
                });
                let count = room.columns.len();
                let now = limits.now.unwrap_or_else(|| self.graph.advance_clock(&room.columns));
                let (all, spare) = ([taken], &mut self.inputs.spare);
                self.ports.events.record_import(at, now, count);
                self.graph.walk(now, &all, |walk| {
                    let Some(taken) = walk.memory.imported.first() else { return };
                    let mut batch = Frames::new(|number, _| taken.segment(number)).into_batch(room);
                    walk.walk_source(at, &mut batch);
                    *spare = Some(batch.into_memory());
                });
                if limits.ends_pass {
                    self.graph.run_expired_timers(now, &all);
                }
                pass.expects_input = true;
                pass.moved = true;
                import.release(count)
            }
            Err(fault) => Err(fault),
        };
        if let Err(fault) = walked {
            let name = self.graph.nodes[at].name.clone();
            self.graph.pass.failure = Some(PathFailure::from_ring(name, fault));
        }
        self.end_pass();
    }
}
