//! The writer's bells: one for each reader, rung for who sleeps and has been waited for.

use super::flight::Gone;
use crate::cursor::{Change, Producer};
use crate::wait::{Ringer, Urgency};
use abi::ring::reader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use sys::doorbell::{Peer, SocketDoorbell};

/// All readers of one writer.
#[derive(Debug)]
pub(crate) struct Bells {
    ends: Vec<End>,
    gone: Arc<Gone>,
}

#[derive(Debug)]
struct End {
    bell: SocketDoorbell,
    ringer: Ringer,
    /// How often it has rung in vain since there was room.
    false_alarms: u32,
}

/// A reader rings once for each sleep, and only when it has come far enough. One that has rung so
/// often while nothing came of it wants to keep the writer busy: nobody waits for it any more.
const FALSE_ALARMS_MAX: u32 = 64;

impl Bells {
    pub(crate) fn new(bells: Vec<SocketDoorbell>) -> Self {
        let gone = Gone::new(bells.len());
        let end = |bell| End { bell, ringer: Ringer::default(), false_alarms: 0 };
        Self { ends: bells.into_iter().map(end).collect(), gone }
    }

    /// Takes all of them; nobody is left.
    pub(super) fn take(&mut self) -> Self {
        Self { ends: std::mem::take(&mut self.ends), gone: self.gone.clone() }
    }

    /// Who is there no more.
    pub(super) const fn gone(&self) -> &Arc<Gone> {
        &self.gone
    }

    /// Rings for readers that wait for what was shown.
    #[inline]
    pub(crate) fn ring_due(&mut self, side: &mut Producer, urgency: Urgency) {
        self.settle(side);
        let head = side.head;
        for at in 0..self.ends.len() {
            let (Some(end), Some(page)) = (self.ends.get_mut(at), side.store.readers.get(at))
            else {
                continue;
            };
            let due = !self.gone.is(at) && end.ringer.is_due(page, reader::WAIT, head, urgency);
            if due && end.bell.notify() == Peer::Gone {
                self.shut_out(side, at);
            }
        }
    }

    /// Sleeps until a reader rings or is gone; `false`: there is none left.
    pub(crate) fn sleep(&mut self, side: &mut Producer, limit: Option<Duration>) -> bool {
        self.settle(side);
        let there: Vec<usize> = (0..self.ends.len()).filter(|at| !self.gone.is(*at)).collect();
        let bells: Vec<BorrowedFd<'_>> =
            there.iter().filter_map(|at| self.ends.get(*at)).map(|end| end.bell.as_fd()).collect();
        if bells.is_empty() {
            return false;
        }
        let ready = sys::poll::readable(&bells, limit);
        for (at, _) in there.into_iter().zip(ready).filter(|(_, ready)| *ready) {
            let Some(end) = self.ends.get_mut(at) else { continue };
            end.false_alarms += 1;
            if end.bell.clear() == Peer::Gone || end.false_alarms > FALSE_ALARMS_MAX {
                self.shut_out(side, at);
            }
        }
        true
    }

    /// Leaves those alone that the ring has evicted.
    fn settle(&self, side: &mut Producer) {
        for change in side.changes() {
            if let Change::Left(at) = change {
                self.gone.set(at);
            }
        }
    }

    /// Readers have made room: nobody has rung in vain.
    pub(crate) fn heard(&mut self) {
        self.ends.iter_mut().for_each(|end| end.false_alarms = 0);
    }

    /// Nobody waits for this reader any more.
    pub(crate) fn shut_out(&mut self, side: &mut Producer, at: usize) {
        self.gone.set(at);
        side.shut_out(at);
    }

    /// Notes which processes are gone, without waiting.
    pub(super) fn listen_for_the_gone(&self) {
        for (at, end) in self.ends.iter().enumerate().filter(|(at, _)| !self.gone.is(*at)) {
            if end.bell.clear() == Peer::Gone {
                self.gone.set(at);
            }
        }
    }

    /// The bell of the first reader that is there: what a writer with one reader selects on.
    pub(super) fn first(&self) -> Option<BorrowedFd<'_>> {
        self.there().next().or_else(|| self.ends.first()).map(|end| end.bell.as_fd())
    }

    /// The bells of all readers that are there.
    pub(crate) fn all(&self) -> Vec<BorrowedFd<'_>> {
        self.there().map(|end| end.bell.as_fd()).collect()
    }

    fn there(&self) -> impl Iterator<Item = &End> {
        self.ends.iter().enumerate().filter(|(at, _)| !self.gone.is(*at)).map(|(_, end)| end)
    }

    /// As a process ends that is killed.
    #[cfg(test)]
    pub(crate) fn die(&mut self) {
        self.ends.clear();
    }
}
