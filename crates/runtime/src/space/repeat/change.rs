//! Changes among the turns of a space: where it stood still, what the old graph still took, and
//! what ended with it.
//!
//! A change is several spaces at once between two turns ([`crate::change`]). Each writes down, when
//! nothing can refuse it any more, that it stands still; then what it took off rings that go; then
//! when what goes was ended. So a change that came to nothing leaves nothing behind. A space that
//! plays lends itself where it stood still then, and takes the same.

use super::super::Space;
use super::{EventPort, Script, SpaceEvent, StallProbe, StallWait, WAIT};
use crate::commands::BorrowRequest;
use crate::space::events::ScriptedChange;
use crate::space::graft::Key;
use filter::Time;

impl Space {
    /// Writes down that it stands still for this change.
    pub fn note_change(&mut self, number: u64) {
        self.events.event(|| SpaceEvent::Change { number });
    }

    /// The time at which what goes is ended: now, which is written down, or when it was then.
    pub(in crate::space) fn retires_at(&mut self) -> Time {
        let now = self.now();
        let Some(mut player) = self.events.script() else {
            let failure = self.graph.turn.failure.as_ref();
            self.events
                .event(|| SpaceEvent::Retire { now, failure: failure.map(ToString::to_string) });
            return now;
        };
        let mut then = now;
        if let Some(SpaceEvent::Retire { now, failure }) = player.peek() {
            player.event();
            then = now;
            self.take_last(&mut *player);
            self.fail_as_recorded(failure.as_deref());
        }
        self.events = EventPort::Script(Some(player));
        then
    }

    /// Notes that the removed nodes have ended, and that later events belong to another graph.
    pub(in crate::space) fn note_retired(&mut self) {
        self.note_claims();
        self.events.event(|| SpaceEvent::Changed);
        // Whoever reads of the change can read all that was before it.
        self.events.flush();
        if let Some(mut player) = self.events.script() {
            if player.peek() == Some(SpaceEvent::Changed) {
                player.event();
            }
            self.events = EventPort::Script(Some(player));
        }
    }

    /// Takes what was taken off rings that go, if it plays a record.
    pub fn take_as_recorded(&mut self) {
        let Some(mut player) = self.events.script() else { return };
        loop {
            match player.peek() {
                Some(SpaceEvent::Import { node, now, count }) => {
                    player.event();
                    self.tell_claims(&*player, 0);
                    self.play_import(node, now, count);
                }
                Some(SpaceEvent::Claim { .. }) => drop(player.event()),
                _ => break,
            }
        }
        self.events = EventPort::Script(Some(player));
    }

    /// Marks the space as exclusively borrowed by the thread that changes the path.
    pub fn is_lent(&self) {
        self.post().iter().for_each(StallProbe::is_lent);
    }

    /// It has not begun, and does when the path is another.
    pub fn comes_later(&self) {
        self.post().iter().for_each(StallProbe::comes_later);
    }

    /// It goes on by itself, settles its accounts, or has done something that others see.
    pub fn moves(&self) {
        self.post().iter().for_each(StallProbe::moves);
    }

    /// It has settled its accounts.
    pub fn has_settled(&self) {
        self.post().iter().for_each(StallProbe::has_settled);
    }

    /// Takes what lies in rings that go until nothing more can come. `sleep` waits until something
    /// may have.
    pub fn empty_all_rings(&mut self, goes: &dyn Fn(Key) -> bool, sleep: &dyn Fn()) {
        let mut wait: Option<StallWait> = None;
        loop {
            wait.iter_mut().for_each(StallWait::looks);
            let what = || "the end of a ring that goes".to_owned();
            if self.empty_rings(goes) || self.waits_in_vain(&mut wait, what, false) {
                return;
            }
            sleep();
        }
    }

    /// Waits until the space is asked for, for this change; `None`: it will not be.
    pub(super) fn borrow_for(&mut self, player: &dyn Script, number: u64) -> Option<BorrowRequest> {
        let mut wait: Option<StallWait> = None;
        loop {
            // What lies here and was put into rings then is waited for on their other sides.
            self.settle();
            let ticket = self.bell.listen();
            wait.iter_mut().for_each(StallWait::looks);
            self.heed();
            match player.change(number, self.borrow.is_some()) {
                ScriptedChange::Go => return self.borrow.take(),
                ScriptedChange::Wait => {}
                ScriptedChange::End => return None,
                ScriptedChange::Failed(why) => {
                    self.fail_as_recorded(Some(&why));
                    return None;
                }
            }
            if self.control.is_stopped() || self.graph.turn.failure.is_some() {
                return None;
            }
            self.control.ring();
            if self.waits_in_vain(&mut wait, || format!("change {number}"), true) {
                return None;
            }
            self.bell.sleep_for(ticket, WAIT);
        }
    }
}
