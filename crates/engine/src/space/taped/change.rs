//! Changes among the turns of a space: where it stood still, what the old graph still took, and
//! what ended with it.
//!
//! A change is several spaces at once between two turns ([`crate::change`]). Each writes down, when
//! nothing can refuse it any more, that it stands still; then what it took off rings that go; then
//! when what goes was ended. So a change that came to nothing leaves nothing behind. A space that
//! plays lends itself where it stood still then, and takes the same.

use super::super::Space;
use super::{Event, Player, Taped, WAIT, Wait};
use crate::live::Loan;
use crate::record::play::Next;
use crate::record::still::Post;
use crate::space::graft::Key;
use filter::Time;

impl Space {
    /// Writes down that it stands still for this change.
    pub(crate) fn note_change(&mut self, number: u64) {
        self.taped.event(|| Event::Change { number });
    }

    /// The time at which what goes is ended: now, which is written down, or when it was then.
    pub(in crate::space) fn retires_at(&mut self) -> Time {
        let now = self.now();
        let Some(mut player) = self.taped.player() else {
            let failure = self.turn.failure.as_ref();
            self.taped.event(|| Event::Retire { now, failure: failure.map(ToString::to_string) });
            return now;
        };
        let mut then = now;
        if let Some(Event::Retire { now, failure }) = player.peek() {
            player.event();
            then = now;
            self.take_last(&mut player);
            self.fail_as_recorded(failure.as_deref());
        }
        self.taped = Taped::Play(Some(player));
        then
    }

    /// What goes has ended, and what follows is told of another graph.
    pub(in crate::space) fn note_retired(&mut self) {
        self.note_claims();
        self.taped.event(|| Event::Changed);
        // Whoever reads of the change can read all that was before it.
        self.taped.flush();
        if let Some(mut player) = self.taped.player() {
            if player.peek() == Some(Event::Changed) {
                player.event();
            }
            self.taped = Taped::Play(Some(player));
        }
    }

    /// Takes what was taken off rings that go, if it plays a record.
    pub(crate) fn take_as_recorded(&mut self) {
        let Some(mut player) = self.taped.player() else { return };
        loop {
            match player.peek() {
                Some(Event::Import { node, now, count }) => {
                    player.event();
                    self.tell_claims(&player, 0);
                    self.play_import(node, now, count);
                }
                Some(Event::Claim { .. }) => drop(player.event()),
                _ => break,
            }
        }
        self.taped = Taped::Play(Some(player));
    }

    /// Whoever changes the path has it.
    pub(crate) fn is_lent(&self) {
        self.post().iter().for_each(Post::is_lent);
    }

    /// It has not begun, and does when the path is another.
    pub(crate) fn comes_later(&self) {
        self.post().iter().for_each(Post::comes_later);
    }

    /// It goes on by itself, settles its accounts, or has done something that others see.
    pub(crate) fn moves(&self) {
        self.post().iter().for_each(Post::moves);
    }

    /// It has settled its accounts.
    pub(crate) fn has_settled(&self) {
        self.post().iter().for_each(Post::has_settled);
    }

    /// Takes what lies in rings that go until nothing more can come. `sleep` waits until something
    /// may have.
    pub(crate) fn empty_all_rings(&mut self, goes: &dyn Fn(Key) -> bool, sleep: &dyn Fn()) {
        let mut wait: Option<Wait> = None;
        loop {
            wait.iter_mut().for_each(Wait::looks);
            let what = || "the end of a ring that goes".to_owned();
            if self.empty_rings(goes) || self.waits_in_vain(&mut wait, what, false) {
                return;
            }
            sleep();
        }
    }

    /// Waits until somebody takes the space for this change; nothing if nobody will.
    pub(super) fn loan_for(&mut self, player: &Player, number: u64) -> Option<Loan> {
        let mut wait: Option<Wait> = None;
        loop {
            // What lies here and was put into rings then is waited for on their other sides.
            self.settle();
            let ticket = self.bell.listen();
            wait.iter_mut().for_each(Wait::looks);
            self.heed();
            match player.replay.next(number, self.wanted.is_some()) {
                Next::Go => return self.wanted.take(),
                Next::Wait => {}
                Next::End => return None,
                Next::Failed(why) => {
                    self.fail_as_recorded(Some(&why));
                    return None;
                }
            }
            if self.control.is_stopped() || self.turn.failure.is_some() {
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
