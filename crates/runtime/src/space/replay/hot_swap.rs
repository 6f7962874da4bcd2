//! Recording and replay of hot swaps: stopping a space, draining its old graph, and ending removed
//! nodes.
//!
//! A hot swap stops several spaces, each between two passes. Once the swap can no longer fail, each
//! space records its stop, then the blocks drained from removed rings, then the end of the removed
//! nodes. Therefore a failed swap leaves no trace in the record. A replaying space lends itself at
//! the recorded stop, and drains the same blocks.

use super::super::Space;
use super::{EventPort, EventReader, POLL_WAIT_MAX, SpaceEvent, StallProbe, StallWait};
use crate::commands::BorrowRequest;
use crate::space::events::SwapDecision;
use crate::space::node_key::NodeKey;
use filter::Time;

impl Space {
    /// Records that the space has stopped for the hot swap with this number among all hot swaps of
    /// the path.
    pub fn record_stop_for_swap(&mut self, number: u64) {
        self.ports.events.record_event(|| SpaceEvent::Change { number });
    }

    /// Returns the time at which a hot swap ends the nodes that it removes: in a replay, the
    /// recorded time; otherwise, the current time, which is then recorded.
    pub(in crate::space) fn record_retire_time(&mut self) -> Time {
        let now = self.now();
        let Some(mut player) = self.ports.events.take_event_reader() else {
            let failure = self.graph.pass.failure.as_ref();
            self.ports.events.record_event(|| SpaceEvent::Retire {
                now,
                failure: failure.map(ToString::to_string),
            });
            return now;
        };
        let mut then = now;
        if let Some(SpaceEvent::Retire { now, failure }) = player.peek() {
            player.next_event();
            then = now;
            self.apply_closing_entries(&mut *player);
            self.fail_as_recorded(failure.as_deref());
        }
        self.ports.events = EventPort::Replay(Some(player));
        then
    }

    /// Records that a hot swap has ended the nodes that it removes, so that later events belong to
    /// the new graph. In a replay, skips the recorded event instead.
    pub(in crate::space) fn record_retired_nodes(&mut self) {
        self.record_claims();
        self.ports.events.record_event(|| SpaceEvent::Changed);
        // A reader of the record that sees the swap can read all events before it.
        self.ports.events.flush();
        if let Some(mut player) = self.ports.events.take_event_reader() {
            if player.peek() == Some(SpaceEvent::Changed) {
                player.next_event();
            }
            self.ports.events = EventPort::Replay(Some(player));
        }
    }

    /// Drains the rings that a hot swap removes, with the recorded number of blocks at each step.
    /// Does nothing outside a replay.
    pub fn drain_rings_as_recorded(&mut self) {
        let Some(mut player) = self.ports.events.take_event_reader() else { return };
        loop {
            match player.peek() {
                Some(SpaceEvent::Import { node, now, count }) => {
                    player.next_event();
                    self.set_claims(&*player, 0);
                    self.replay_import(node, now, count);
                }
                Some(SpaceEvent::Claim { .. }) => drop(player.next_event()),
                _ => break,
            }
        }
        self.ports.events = EventPort::Replay(Some(player));
    }

    /// Reports to the stall detector that a hot swap has borrowed the space from its thread.
    pub fn report_space_lent(&self) {
        self.ports.stall_probe().iter().for_each(StallProbe::report_space_lent);
    }

    /// Reports to the stall detector that the space has not started because a pending hot swap is
    /// still creating it.
    pub fn report_space_unstarted(&self) {
        self.ports.stall_probe().iter().for_each(StallProbe::report_space_unstarted);
    }

    /// Reports progress of the space to the stall detector.
    pub fn report_progress(&self) {
        self.ports.stall_probe().iter().for_each(StallProbe::report_progress);
    }

    /// Reports to the stall detector that the space has drained the rings that a hot swap removes.
    pub fn report_rings_drained(&self) {
        self.ports.stall_probe().iter().for_each(StallProbe::report_rings_drained);
    }

    /// Drains the rings for which `is_removed` returns true, until no more blocks can arrive over
    /// them or until the path fails. Calls `sleep` between polls.
    pub fn drain_all_rings(&mut self, is_removed: &dyn Fn(NodeKey) -> bool, sleep: &dyn Fn()) {
        let mut wait: Option<StallWait> = None;
        loop {
            wait.iter_mut().for_each(StallWait::begin_poll);
            let what = || "the end of a removed ring".to_owned();
            if self.drain_rings(is_removed) || self.is_stalled(&mut wait, what, false) {
                return;
            }
            sleep();
        }
    }

    /// Blocks until the thread that replays the hot swap `number` asks to borrow the space, and
    /// returns this request. Returns `None` if the space must not take part in the swap.
    pub(super) fn await_borrow_for_swap(
        &mut self,
        player: &dyn EventReader,
        number: u64,
    ) -> Option<BorrowRequest> {
        let mut wait: Option<StallWait> = None;
        loop {
            // Other spaces may wait for blocks that this space has put into its rings.
            self.flush_outputs();
            let ticket = self.ports.doorbell.prepare_to_sleep();
            wait.iter_mut().for_each(StallWait::begin_poll);
            self.serve_requests();
            match player.decide_swap(number, self.ports.borrow.is_some()) {
                SwapDecision::TakePart => return self.ports.borrow.take(),
                SwapDecision::Wait => {}
                SwapDecision::End => return None,
                SwapDecision::Failed(why) => {
                    self.fail_as_recorded(Some(&why));
                    return None;
                }
            }
            if self.ports.control.is_stopped() || self.graph.pass.failure.is_some() {
                return None;
            }
            self.ports.control.notify_spaces();
            if self.is_stalled(&mut wait, || format!("change {number}"), true) {
                return None;
            }
            self.ports.doorbell.sleep_for(ticket, POLL_WAIT_MAX);
        }
    }
}
