//! Recording of a space's events, and replay of recorded events.
//!
//! A replaying space reads neither sources nor clocks. It waits until the input of its next
//! recorded event is available, processes that input at the recorded time, and continues with the
//! next event. The spaces upstream also replay, and put the same blocks into the same rings. If the
//! record is truncated, the blocks still in flight are drained at the last recorded time.

mod hot_swap;

use super::arc::NodeId;
use super::count_limit::ClaimPolicy;
use super::events::{EventPort, EventReader, SpaceEvent};
use super::pass::PassResult;
use super::pull::RingReadLimits;
use super::stall::{POLL_WAIT_MAX, StallProbe, StallWait};
use super::{GENERAL_INTAKE, Input, Space};
use crate::failure::PathFailure;
use abi::{Entry, RichPointer};
use endpoint::Failure;
use filter::{Amount, Columns, Time};

/// A batch that a source emitted in the recorded run.
struct RecordedPull {
    node: NodeId,
    now: Time,
    count: usize,
    edge: Option<usize>,
    failure: Option<String>,
}

impl Space {
    /// Records that the filters whose timers had expired at `now` were called.
    pub(super) fn record_timer_calls(&mut self, now: Time) {
        self.ports.events.record_event(|| SpaceEvent::Tick { now });
    }

    /// Records a batch that the source at node `node` put into its intake (index `from`), if the
    /// run is recorded. `edge` is the arc that the source chose, if any. Omits an empty batch,
    /// unless the source has failed or a timer has expired.
    pub(super) fn record_pull(
        &mut self,
        (node, from, edge): (NodeId, usize, Option<usize>),
        columns: &Columns,
        now: Time,
        failure: Option<&PathFailure>,
    ) {
        let EventPort::Journal(journal) = &mut self.ports.events else { return };
        let due = self.graph.nodes.iter().any(|node| node.wake.is_some_and(|wake| wake <= now));
        if columns.is_empty() && failure.is_none() && !due {
            return;
        }
        let (own, general) = (&self.graph.intakes[from], &self.graph.intakes[GENERAL_INTAKE]);
        let blocks = (0..columns.len()).map(|l| {
            let entry = columns.entry(l);
            let frame = entry.frame();
            let pool = if frame.dbuf() == own.id() { own } else { general };
            (entry, pool.resolve(frame).unwrap_or_default())
        });
        let (count, failure) = (columns.len(), failure.map(ToString::to_string));
        let mut blocks = blocks;
        journal.record_pull(&SpaceEvent::Pull { node, now, count, edge, failure }, &mut blocks);
    }

    /// Records the number of blocks that the sinks were permitted to accept under the limit on
    /// delivered blocks (`-c`) since the last call. Does nothing if the run is not recorded.
    pub(super) fn record_claims(&mut self) {
        if let ClaimPolicy::Recorded(noted) = &mut self.graph.pass.claims {
            for count in noted.drain(..) {
                self.ports.events.record_event(|| SpaceEvent::Claim { count });
            }
        }
    }

    /// Replays the events of a record. Returns the results of the space.
    pub(super) fn replay(mut self, mut player: Box<dyn EventReader>) -> super::SpaceResults {
        let mut last = 0;
        let mut whole = false;
        while self.graph.pass.failure.is_none() && !self.ports.control.is_stopped() {
            self.serve_requests();
            match player.next_event() {
                Some(SpaceEvent::Pull { node, now, count, edge, failure }) => {
                    last = now;
                    self.replay_pull(
                        &mut *player,
                        &RecordedPull { node, now, count, edge, failure },
                    );
                }
                Some(SpaceEvent::Import { node, now, count }) => {
                    last = now;
                    self.set_claims(&*player, 0);
                    self.replay_import(node, now, count);
                }
                Some(SpaceEvent::Tick { now }) => {
                    last = now;
                    self.set_claims(&*player, 0);
                    self.graph.run_expired_timers(now, &[]);
                    self.end_pass();
                }
                Some(SpaceEvent::Change { number }) => {
                    let Some(request) = self.await_borrow_for_swap(&*player, number) else { break };
                    let before = self.accounts.swaps;
                    self.ports.events = EventPort::Replay(Some(player));
                    match request.lend(self) {
                        Ok(back) => self = back,
                        Err(results) => return *results,
                    }
                    let Some(back) = self.ports.events.take_event_reader() else {
                        return self.into_results();
                    };
                    player = back;
                    if self.accounts.swaps == before {
                        // The borrower returned the space unchanged, so later events do not apply.
                        break;
                    }
                }
                Some(SpaceEvent::Finish { now, failure }) => {
                    (last, whole) = (now, true);
                    self.fail_as_recorded(failure.as_deref());
                    break;
                }
                Some(
                    SpaceEvent::Claim { .. }
                    | SpaceEvent::SourceCounts { .. }
                    | SpaceEvent::ProgramCounts { .. },
                ) => {}
                Some(SpaceEvent::Retire { .. } | SpaceEvent::Changed) => {
                    player.report_invalid("the path was not changed here");
                    break;
                }
                None => break,
            }
        }
        if whole {
            if self.drain_remaining_rings(last) {
                self.fail_as_invalid_record("the run ends here, and has not taken all blocks");
            }
            self.apply_closing_entries(&mut *player);
        } else {
            player.report_truncated_record();
            self.fail_as_recorded(player.invalid_reason());
            // A pending hot swap fails because this space has ended; other spaces may still put
            // blocks into its rings.
            self.ports.stall_probe().iter().for_each(StallProbe::report_rejected_commands);
            self.ports.borrow = None;
            self.ports.commands.0.reject_all();
            self.drain_remaining_rings(last);
        }
        if self.graph.pass.failure.is_some() {
            self.ports.control.stop();
        }
        if self.ports.control.position_request_count() > 0 {
            self.store_source_positions(true);
        }
        self.finish_all_nodes(last);
        self.ports.commands.store_final_counters(self.counters());
        self.into_results()
    }

    /// Executes queued commands. Then stores the positions of the space's sources, if another
    /// thread has requested them.
    fn serve_requests(&mut self) {
        if self.ports.commands.0.has_queued_command() {
            self.execute_commands();
        }
        if self.ports.control.position_request_count() != self.ports.answered_requests {
            self.store_source_positions(false);
        }
    }

    /// Reads the entries that follow the recorded end of a run or of a hot swap. Sets the number of
    /// blocks that the sinks may accept from now on. Fails the path if the recorded final counts
    /// contradict the replay.
    fn apply_closing_entries(&mut self, player: &mut dyn EventReader) {
        let (claimed, contradiction) = player.read_closing_entries();
        if let Some(what) = contradiction {
            self.fail_as_invalid_record(what);
        }
        if let ClaimPolicy::Replayed(left) = &mut self.graph.pass.claims {
            *left = claimed;
        }
    }

    /// Records that a poll of a replaying space found no input, and returns true if the path has
    /// failed for this reason. The first call registers the wait with the stall detector. `what`
    /// describes the wait, and `change` is true if the space waits for a hot swap. A later call
    /// fails the path if no space of the replay can make progress any more.
    pub(super) fn is_stalled(
        &mut self,
        wait: &mut Option<StallWait>,
        what: impl FnOnce() -> String,
        change: bool,
    ) -> bool {
        let why = match (&wait, &self.ports.stall) {
            (Some(wait), _) => wait.report_fruitless_poll(),
            (None, Some(here)) => {
                let name = &self.name;
                *wait = Some(here.0.begin_wait(|| format!("{name} waits for {}", what()), change));
                None
            }
            (None, None) => None,
        };
        self.fail_as_recorded(why.as_deref());
        why.is_some()
    }

    /// Fails the path because the event that was read last from the record is invalid. `what`
    /// describes the defect.
    fn fail_as_invalid_record(&mut self, what: &str) {
        let byte = self.ports.stall.as_ref().map_or(0, |here| here.0.last_event_offset());
        self.fail_as_recorded(Some(&format!("the record is invalid at byte {byte}: {what}")));
    }

    /// Fails the path because a ring closed before a recorded batch was complete, unless the record
    /// is truncated or the path was stopped.
    fn fail_if_batch_incomplete(&mut self, count: usize, missing: usize) {
        let Some(probe) = self.ports.stall_probe() else { return };
        if probe.is_record_complete()
            && !self.ports.control.is_stopped()
            && self.graph.pass.failure.is_none()
        {
            let arrived = count - missing;
            self.fail_as_invalid_record(&format!(
                "{count} blocks were read from a ring, and {arrived} arrive"
            ));
        }
    }

    /// Fails the replaying path for the reason `failure`, unless it has already failed. Does
    /// nothing if `failure` is `None`.
    fn fail_as_recorded(&mut self, failure: Option<&str>) {
        let Some(why) = failure else { return };
        let failed = || {
            let failure = Failure::new("go on as recorded", "the run", why);
            PathFailure::from_endpoint(self.name.clone(), failure)
        };
        self.graph.pass.failure.get_or_insert_with(failed);
    }

    /// Copies recorded blocks of a source into the general intake and passes them through the
    /// graph. Then fails the path if the source failed in the recorded run.
    fn replay_pull(&mut self, player: &mut dyn EventReader, pulled: &RecordedPull) {
        let node = pulled.node;
        let is_source =
            |input: &Input| matches!(input, Input::Source { node: n, .. } if *n == node);
        if !self.inputs.list.iter().any(is_source) {
            // The record belongs to another path.
            return self.fail_as_invalid_record("it names a source that does not exist");
        }
        if pulled.edge.is_some_and(|arc| arc >= self.graph.nodes[node].arcs.len()) {
            return self
                .fail_as_invalid_record("it names an output of its source that does not exist");
        }
        let planned = self.graph.nodes[node].number;
        let mut left = pulled.count;
        self.set_claims(player, left);
        loop {
            let mut room = self.inputs.spare.take().unwrap_or_default();
            room.columns.clear();
            let mut amount = Amount::default();
            let mut pins = Vec::new();
            while left > 0 && room.columns.len() < self.inputs.batch_max {
                left -= 1;
                let Some((entry, bytes)) = player.next_block(left) else {
                    left = 0;
                    break;
                };
                if bytes.len() > self.graph.intakes[GENERAL_INTAKE].block_length_max() {
                    let why = "a block of it is longer than blocks of its path";
                    return self.fail_as_invalid_record(why);
                }
                let Some(entry) = self.copy_recorded_block(entry, bytes, &mut pins) else { return };
                amount.add_block(entry.pointer.length());
                room.columns.push(entry);
            }
            for pin in pins {
                self.graph.intakes[GENERAL_INTAKE].unpin(pin);
            }
            player.add_emitted(planned, amount);
            let place = (node, GENERAL_INTAKE, pulled.edge);
            self.inputs.spare = Some(self.walk_pulled_blocks(place, room, pulled.now, left == 0));
            if left == 0 || self.graph.pass.failure.is_some() {
                break;
            }
        }
        if let Some(why) = &pulled.failure {
            let failed = || {
                let failure = Failure::new("go on as recorded", "the source", why);
                PathFailure::from_endpoint(self.graph.nodes[node].name.clone(), failure)
            };
            self.graph.pass.failure.get_or_insert_with(failed);
        }
    }

    /// Copies a recorded block into the general intake. Waits while the intake is full. Returns
    /// `None` if the path is stopped or fails.
    fn copy_recorded_block(
        &mut self,
        entry: Entry,
        bytes: &[u8],
        pins: &mut Vec<buffer::pool::SegmentPin>,
    ) -> Option<Entry> {
        if entry.pointer.is_hole() {
            return Some(entry);
        }
        let mut wait: Option<StallWait> = None;
        loop {
            wait.iter_mut().for_each(StallWait::begin_poll);
            let pool = &self.graph.intakes[GENERAL_INTAKE];
            let put = pool.append(bytes.len(), |room| {
                room.copy_from_slice(bytes);
                bytes.len()
            });
            if let Some((place, _)) = put {
                pins.extend(pool.pin(place));
                let Entry { pointer, context, marks } = entry;
                let view = place.subrange(marks.view, pointer.length());
                let pointer = RichPointer::new(pool.id(), view, pointer.class);
                return Some(Entry::new(pointer, context, marks));
            }
            let ticket = self.ports.doorbell.prepare_to_sleep();
            self.flush_outputs();
            if self.ports.control.is_stopped()
                || self.graph.pass.failure.is_some()
                || self.is_stalled(&mut wait, || "memory".to_owned(), false)
            {
                return None;
            }
            self.ports.doorbell.sleep_for(ticket, POLL_WAIT_MAX);
        }
    }

    /// Takes `count` blocks from a ring and passes them through the graph. Waits until they are
    /// available. Fails the path if the ring is closed before it has supplied all of them.
    fn replay_import(&mut self, node: NodeId, now: Time, count: usize) {
        let at = |input: &Input| matches!(input, Input::Ring { node: n, .. } if *n == node);
        let Some(i) = self.inputs.list.iter().position(at) else {
            return self.fail_as_invalid_record("it names a ring that does not exist");
        };
        let mut left = count;
        while left > 0 && self.graph.pass.failure.is_none() {
            let step = left.min(self.inputs.batch_max);
            if !self.wait_for_ring_entries(i, step, false) {
                return self.fail_if_batch_incomplete(count, left);
            }
            left -= step;
            let limits = RingReadLimits { blocks_max: step, now: Some(now), ends_pass: left == 0 };
            self.walk_imported_blocks(i, &mut PassResult::default(), limits);
        }
    }

    /// Waits until the ring at input `i` has `count` entries, or until its writer has closed it. If
    /// `ends` is false, the wait also ends when the path is stopped. Returns true if the ring has
    /// at least one entry. Returns false if it has none, or if the path fails.
    fn wait_for_ring_entries(&mut self, i: usize, count: usize, ends: bool) -> bool {
        let mut wait: Option<StallWait> = None;
        loop {
            let ticket = self.ports.doorbell.prepare_to_sleep();
            wait.iter_mut().for_each(StallWait::begin_poll);
            let Input::Ring { node, import, .. } = &mut self.inputs.list[i] else { return false };
            let over = import.is_closed() || (self.ports.control.is_stopped() && !ends);
            match import.untaken_entries() {
                Ok(waiting) if waiting >= count => return true,
                Ok(waiting) if over => return waiting > 0,
                Ok(_) => {}
                Err(fault) => {
                    let name = self.graph.nodes[*node].name.clone();
                    self.graph.pass.failure = Some(PathFailure::from_ring(name, fault));
                    return false;
                }
            }
            self.flush_outputs();
            // A writer at a full ring wakes only when half of the ring is free. This space may need
            // entries from another ring before it can free that much, so wake all writers.
            self.ports.control.notify_spaces();
            let Input::Ring { node, .. } = &self.inputs.list[i] else { return false };
            let name = self.graph.nodes[*node].name.clone();
            if self.is_stalled(&mut wait, || format!("{count} blocks to `{name}`"), false) {
                return false;
            }
            self.ports.doorbell.sleep_for(ticket, POLL_WAIT_MAX);
        }
    }

    /// Sets the number of blocks that the sinks may accept in the current pass under the limit on
    /// delivered blocks (`-c`). `blocks` is the number of recorded blocks of the pass that have not
    /// been read yet.
    fn set_claims(&mut self, player: &dyn EventReader, blocks: usize) {
        if let ClaimPolicy::Replayed(granted) = &mut self.graph.pass.claims {
            *granted = player.granted_blocks(blocks);
        }
    }

    /// Passes the remaining blocks of all rings through the graph at time `now`. Returns true if
    /// there were any blocks.
    fn drain_remaining_rings(&mut self, now: Time) -> bool {
        let mut drained = false;
        for i in 0..self.inputs.list.len() {
            if !matches!(self.inputs.list[i], Input::Ring { .. }) {
                continue;
            }
            while self.graph.pass.failure.is_none() && self.wait_for_ring_entries(i, 1, true) {
                drained = true;
                let limits = RingReadLimits {
                    blocks_max: self.inputs.batch_max,
                    now: Some(now),
                    ends_pass: true,
                };
                self.walk_imported_blocks(i, &mut PassResult::default(), limits);
            }
        }
        drained
    }
}
