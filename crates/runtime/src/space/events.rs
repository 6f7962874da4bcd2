//! Events of a space: the port over which its run is written down and repeated.
//!
//! A filter sees blocks, their order and the time that it is given, and nothing else, and a space
//! is one thread. So its run is decided by the sequence of its events. A [`Journal`] writes them
//! down; a space with a [`Script`] asks no source and no clock but repeats the events that it
//! gives. Where either keeps them is not known here.

use super::node::NodeId;
use super::stall::StallDetector;
use super::turn::Claims;
use crate::failure::PathFailure;
use abi::Entry;
use endpoint::{Sink, Source};
use filter::{Amount, Time};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// One event in the run of a space. The sequence of its events decides all that a space does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpaceEvent {
    /// A source gave so many blocks, which follow.
    Pull {
        /// The node of the space.
        node: usize,
        /// The path's time.
        now: Time,
        /// Number of blocks that follow.
        count: usize,
        /// The arc that they took, if the source chose it.
        edge: Option<usize>,
        /// The failure of the source.
        failure: Option<String>,
    },
    /// So many blocks were taken off a ring.
    Import {
        /// The node behind the ring.
        node: usize,
        /// The path's time.
        now: Time,
        /// Number of blocks.
        count: usize,
    },
    /// Filters were called because their time had come.
    Tick {
        /// The path's time.
        now: Time,
    },
    /// So many of the blocks that a sink was given counted for `-c`.
    Claim {
        /// Number of blocks.
        count: u32,
    },
    /// Nothing came any more, and what was held left.
    Finish {
        /// The path's time.
        now: Time,
        /// The failure that ended the space.
        failure: Option<String>,
    },
    /// The space stood still here for a change of the path, of this number. Up to
    /// [`SpaceEvent::Changed`] the old graph settles its accounts.
    Change {
        /// The number.
        number: u64,
    },
    /// The nodes that go let out what they held, and ended.
    Retire {
        /// The path's time.
        now: Time,
        /// The failure that is about to end the space instead.
        failure: Option<String>,
    },
    /// From here on nodes are those of the new graph.
    Changed,
    /// The final counts of a source.
    Seen {
        /// The node of the plan.
        planned: usize,
        /// Blocks and bytes that there were, if known.
        seen: Option<(u64, u64)>,
        /// Losses, by place.
        dropped: Vec<(String, Option<u64>)>,
    },
    /// The final counts of a program.
    Heard {
        /// The node of the plan.
        planned: usize,
        /// Blocks and bytes that it took.
        written: (u64, u64),
        /// Blocks and bytes that it did not take, by reason.
        dropped: Vec<(String, u64, u64)>,
    },
}

/// A writer of events.
pub trait Journal: fmt::Debug + Send {
    /// Writes an event.
    fn event(&mut self, event: &SpaceEvent);

    /// Writes a [`SpaceEvent::Pull`] with the blocks that the source gave.
    fn pull(&mut self, event: &SpaceEvent, blocks: &mut dyn Iterator<Item = (Entry, &[u8])>);

    /// Hands over what it has: before the space sleeps.
    fn flush(&mut self);
}

/// The events of an earlier run, one after the other.
pub trait Script: fmt::Debug + Send {
    /// Takes the next event; `None`: there are no more, or the next is damaged.
    fn event(&mut self) -> Option<SpaceEvent>;

    /// Returns the next event, which stays the next.
    fn peek(&mut self) -> Option<SpaceEvent>;

    /// Takes the next block of the event that came last, behind which so many follow. `None`: the
    /// script is cut here, or damaged.
    fn block(&mut self, follow: usize) -> Option<(Entry, &[u8])>;

    /// Returns the number of blocks that counted for `-c` in the pass of which so many blocks are
    /// still to be taken.
    fn claims(&self, blocks: usize) -> u32;

    /// Takes the notes that close a run: final counts and claims. Returns the number of blocks that
    /// counted for `-c`, and a contradiction if there is one.
    fn closing_notes(&mut self) -> (u32, Option<&'static str>);

    /// Notes that the source of this node has given so much more.
    fn gave(&self, planned: usize, amount: Amount);

    /// Marks the event that came last as wrong, for this reason.
    fn is_wrong(&mut self, what: &str);

    /// Returns what is wrong with the script, if anything is known.
    fn wrong(&self) -> Option<&str>;

    /// Notes that the script ended before the run that it is of.
    fn note_short(&self);

    /// Returns what a space does that stands where this change was made; `requested`: it has been
    /// asked for.
    fn change(&self, number: u64, requested: bool) -> ScriptedChange;

    /// Returns what the spaces of this script share.
    fn shared(&self) -> SharedScript;
}

/// State shared by the spaces that replay one run.
#[derive(Clone, Debug)]
pub struct SharedScript {
    /// The detector of spaces that wait for one another.
    pub stalls: Arc<StallDetector>,
    /// The position in bytes of the event that came last, of this space.
    pub byte: Arc<AtomicU64>,
    /// True if the script has all that the run did.
    pub whole: bool,
}

/// Outcome for a space that has reached a recorded change of the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScriptedChange {
    /// It waits until it is asked for.
    Wait,
    /// It takes part in the change.
    Go,
    /// There is no such change: the script ends here.
    End,
    /// The change could not be made, for this reason.
    Failed(String),
}

/// The port of a space for events.
#[derive(Debug)]
pub enum EventPort {
    /// Events are not observed.
    Off,
    /// Events are written down.
    Journal(Box<dyn Journal>),
    /// Events come from an earlier run; `None` while that is being read.
    Script(Option<Box<dyn Script>>),
}

impl EventPort {
    /// Returns how claims for `-c` are decided here; `counted`: the path has such a limit.
    pub(super) fn claims(&self, counted: bool) -> Claims {
        match self {
            Self::Journal(_) if counted => Claims::Noted(Vec::new()),
            Self::Script(_) if counted => Claims::Scripted(0),
            _ => Claims::Free,
        }
    }

    /// Takes the script out, if events come from one.
    pub(super) fn script(&mut self) -> Option<Box<dyn Script>> {
        match self {
            Self::Script(script) => script.take(),
            _ => None,
        }
    }

    /// Returns what the spaces that repeat one run share, if events come from a script.
    pub(super) fn shared(&self) -> Option<SharedScript> {
        match self {
            Self::Script(script) => script.as_ref().map(|script| script.shared()),
            _ => None,
        }
    }

    /// Writes an event.
    pub(super) fn event(&mut self, event: impl FnOnce() -> SpaceEvent) {
        if let Self::Journal(journal) = self {
            journal.event(&event());
        }
    }

    /// Writes that blocks were taken off a ring.
    pub(super) fn import(&mut self, node: NodeId, now: Time, count: usize) {
        self.event(|| SpaceEvent::Import { node, now, count });
    }

    /// Writes the end of the run.
    pub(super) fn finish(&mut self, now: Time, failure: Option<&PathFailure>) {
        self.event(|| SpaceEvent::Finish { now, failure: failure.map(ToString::to_string) });
    }

    /// Writes the final counts of a source.
    pub(super) fn seen(&mut self, planned: usize, source: &dyn Source) {
        self.event(|| {
            let seen = source.seen();
            let dropped = seen.dropped.iter().map(|(place, count)| (place.to_string(), *count));
            let (dropped, seen) = (dropped.collect(), seen.seen.map(|all| (all.blocks, all.bytes)));
            SpaceEvent::Seen { planned, seen, dropped }
        });
    }

    /// Writes the final counts of a program.
    pub(super) fn heard(&mut self, planned: usize, sink: &dyn Sink) {
        if sink.process().is_none() {
            return;
        }
        self.event(|| {
            let written = sink.written().unwrap_or_default();
            let dropped = sink.dropped().into_iter();
            let dropped = dropped.map(|(why, all)| (why.to_string(), all.blocks, all.bytes));
            let (written, dropped) = ((written.blocks, written.bytes), dropped.collect());
            SpaceEvent::Heard { planned, written, dropped }
        });
    }

    /// Hands over what was written.
    pub(super) fn flush(&mut self) {
        if let Self::Journal(journal) = self {
            journal.flush();
        }
    }
}
