//! Events of a space written down, and a space that repeats the events of an earlier run.
//!
//! A space that repeats asks no source and no clock. It waits until what its next event took is
//! there again, walks that, at the time of the script, and goes on to the next event. The space
//! before it in the path puts the same blocks into the same rings, so it comes; where the script
//! ends before the run did, what is under way drains at the last known time.

mod change;

use super::events::{EventPort, Script, SpaceEvent};
use super::stall::{StallProbe, StallWait, WAIT};
use super::turn::Claims;
use super::{GENERAL, Input, NodeId, Pass, Space, Taking};
use crate::failure::PathFailure;
use abi::{BLOCK_MAX, Entry, RichPointer};
use endpoint::Failure;
use filter::{Amount, Columns, Time};

/// One turn of a source, as a record says it.
struct Pulled {
    node: NodeId,
    now: Time,
    count: usize,
    edge: Option<usize>,
    failure: Option<String>,
}

impl Space {
    /// Writes down that filters are called because their time has come.
    pub(super) fn note_tick(&mut self, now: Time) {
        self.events.event(|| SpaceEvent::Tick { now });
    }

    /// Writes down what a source gave, if anything follows from it.
    pub(super) fn note_pull(
        &mut self,
        (node, from, edge): (NodeId, usize, Option<usize>),
        columns: &Columns,
        now: Time,
        failure: Option<&PathFailure>,
    ) {
        let EventPort::Journal(journal) = &mut self.events else { return };
        let due = self.graph.nodes.iter().any(|node| node.wake.is_some_and(|wake| wake <= now));
        if columns.is_empty() && failure.is_none() && !due {
            return;
        }
        let (own, general) = (&self.graph.intakes[from], &self.graph.intakes[GENERAL]);
        let blocks = (0..columns.len()).map(|l| {
            let entry = columns.entry(l);
            let frame = entry.frame();
            let pool = if frame.dbuf() == own.id() { own } else { general };
            (entry, pool.resolve(frame).unwrap_or_default())
        });
        let (count, failure) = (columns.len(), failure.map(ToString::to_string));
        let mut blocks = blocks;
        journal.pull(&SpaceEvent::Pull { node, now, count, edge, failure }, &mut blocks);
    }

    /// Writes down how many of those that were counted were taken.
    pub(super) fn note_claims(&mut self) {
        if let Claims::Noted(noted) = &mut self.graph.turn.claims {
            for count in noted.drain(..) {
                self.events.event(|| SpaceEvent::Claim { count });
            }
        }
    }

    /// Takes the turns of a record, one after the other.
    pub(super) fn repeat(mut self, mut player: Box<dyn Script>) -> super::Remains {
        let mut last = 0;
        let mut whole = false;
        while self.graph.turn.failure.is_none() && !self.control.is_stopped() {
            self.heed();
            match player.event() {
                Some(SpaceEvent::Pull { node, now, count, edge, failure }) => {
                    last = now;
                    self.play_pull(&mut *player, &Pulled { node, now, count, edge, failure });
                }
                Some(SpaceEvent::Import { node, now, count }) => {
                    last = now;
                    self.tell_claims(&*player, 0);
                    self.play_import(node, now, count);
                }
                Some(SpaceEvent::Tick { now }) => {
                    last = now;
                    self.tell_claims(&*player, 0);
                    self.graph.tick(now, &[]);
                    self.turn_pools();
                }
                Some(SpaceEvent::Change { number }) => {
                    let Some(request) = self.borrow_for(&*player, number) else { break };
                    let before = self.grafts;
                    self.events = EventPort::Script(Some(player));
                    match request.lend(self) {
                        Ok(back) => self = back,
                        Err(remains) => return *remains,
                    }
                    let Some(back) = self.events.script() else { return self.remains() };
                    player = back;
                    if self.grafts == before {
                        // It was given back as it was: nothing that follows means anything.
                        break;
                    }
                }
                Some(SpaceEvent::Finish { now, failure }) => {
                    (last, whole) = (now, true);
                    self.fail_as_recorded(failure.as_deref());
                    break;
                }
                Some(
                    SpaceEvent::Claim { .. } | SpaceEvent::Seen { .. } | SpaceEvent::Heard { .. },
                ) => {}
                Some(SpaceEvent::Retire { .. } | SpaceEvent::Changed) => {
                    player.is_wrong("the path was not changed here");
                    break;
                }
                None => break,
            }
        }
        if whole {
            if self.drain(last) {
                self.is_wrong("the run ends here, and has not taken all blocks");
            }
            self.take_last(&mut *player);
        } else {
            player.note_short();
            self.fail_as_recorded(player.wrong());
            // Who wants to change it hears that it has ended: it waits for what others still put.
            self.post().iter().for_each(StallProbe::refuses);
            self.borrow = None;
            self.commands.0.refuse();
            self.drain(last);
        }
        if self.graph.turn.failure.is_some() {
            self.control.stop();
        }
        if self.control.asked() > 0 {
            self.answer(true);
        }
        self.finish(last);
        self.commands.leave(self.counted());
        self.remains()
    }

    /// Does what somebody outside wants done, and says what sources have seen.
    fn heed(&mut self) {
        if self.commands.0.has_pending() {
            self.execute_commands();
        }
        if self.control.asked() != self.answered {
            self.answer(false);
        }
    }

    /// Takes the notes that close a run or a change: they stand behind the event that ends it, and
    /// are needed in it.
    fn take_last(&mut self, player: &mut dyn Script) {
        let (claimed, contradiction) = player.closing_notes();
        if let Some(what) = contradiction {
            self.is_wrong(what);
        }
        if let Claims::Scripted(left) = &mut self.graph.turn.claims {
            *left = claimed;
        }
    }

    /// Returns the stall probe of the space among those that replay.
    pub(super) fn post(&self) -> Option<StallProbe> {
        self.stall.as_ref().map(|here| here.0.clone())
    }

    /// It has looked in vain for what it waits for. Answers whether it would do so for ever: then
    /// it has failed.
    pub(super) fn waits_in_vain(
        &mut self,
        wait: &mut Option<StallWait>,
        what: impl FnOnce() -> String,
        change: bool,
    ) -> bool {
        let why = match (&wait, &self.stall) {
            (Some(wait), _) => wait.in_vain(),
            (None, Some(here)) => {
                let name = &self.name;
                *wait = Some(here.0.waits(|| format!("{name} waits for {}", what()), change));
                None
            }
            (None, None) => None,
        };
        self.fail_as_recorded(why.as_deref());
        why.is_some()
    }

    /// The record is wrong at its last turn, in this.
    fn is_wrong(&mut self, what: &str) {
        let byte = self.stall.as_ref().map_or(0, |here| here.0.byte());
        self.fail_as_recorded(Some(&format!("the record is wrong at byte {byte}: {what}")));
    }

    /// The other side of a ring has ended, and so many blocks of a turn have not come. Where the
    /// record ends early, here or there, that is so.
    fn came_short(&mut self, count: usize, left: usize) {
        let Some(post) = self.post() else { return };
        if post.is_of_whole() && !self.control.is_stopped() && self.graph.turn.failure.is_none() {
            let came = count - left;
            self.is_wrong(&format!("{count} blocks were taken off a ring, and {came} come"));
        }
    }

    /// Fails where the recorded run did, unless this one has.
    fn fail_as_recorded(&mut self, failure: Option<&str>) {
        let Some(why) = failure else { return };
        let failed = || {
            let failure = Failure::new("go on as recorded", "the run", why);
            PathFailure::outside(self.name.clone(), failure)
        };
        self.graph.turn.failure.get_or_insert_with(failed);
    }

    /// Puts the blocks of a turn into the intake of their source again, and walks them.
    fn play_pull(&mut self, player: &mut dyn Script, pulled: &Pulled) {
        let node = pulled.node;
        let is_source =
            |input: &Input| matches!(input, Input::Source { node: n, .. } if *n == node);
        if !self.inputs.iter().any(is_source) {
            // A record of another path: nothing of it means anything here.
            return self.is_wrong("it names a source that is not there");
        }
        if pulled.edge.is_some_and(|arc| arc >= self.graph.nodes[node].arcs.len()) {
            return self.is_wrong("it names a way out of its source that is not there");
        }
        let planned = self.graph.nodes[node].planned;
        let mut left = pulled.count;
        self.tell_claims(player, left);
        loop {
            let mut room = self.spare.take().unwrap_or_default();
            room.columns.clear();
            let mut amount = Amount::default();
            let mut pins = Vec::new();
            while left > 0 && room.columns.len() < self.batch_max {
                left -= 1;
                let Some((entry, bytes)) = player.block(left) else {
                    left = 0;
                    break;
                };
                if bytes.len() > BLOCK_MAX {
                    return self.is_wrong("a block of it is longer than blocks are");
                }
                let Some(entry) = self.placed(entry, bytes, &mut pins) else { return };
                amount.add(entry.pointer.length());
                room.columns.push(entry);
            }
            for pin in pins {
                self.graph.intakes[GENERAL].unpin(pin);
            }
            player.gave(planned, amount);
            let place = (node, GENERAL, pulled.edge);
            self.spare = Some(self.walk_pulled(place, room, pulled.now, left == 0));
            if left == 0 || self.graph.turn.failure.is_some() {
                break;
            }
        }
        if let Some(why) = &pulled.failure {
            let failed = || {
                let failure = Failure::new("go on as recorded", "the source", why);
                PathFailure::outside(self.graph.nodes[node].name.clone(), failure)
            };
            self.graph.turn.failure.get_or_insert_with(failed);
        }
    }

    /// A block with its bytes in the intake; waits while that is full. Nothing if the path is
    /// stopped meanwhile.
    fn placed(
        &mut self,
        entry: Entry,
        bytes: &[u8],
        pins: &mut Vec<buffer::pool::Pin>,
    ) -> Option<Entry> {
        if entry.pointer.is_hole() {
            return Some(entry);
        }
        let mut wait: Option<StallWait> = None;
        loop {
            wait.iter_mut().for_each(StallWait::looks);
            let pool = &self.graph.intakes[GENERAL];
            let put = pool.append(bytes.len(), |room| {
                room.copy_from_slice(bytes);
                bytes.len()
            });
            if let Some((place, _)) = put {
                pins.extend(pool.pin(place));
                let Entry { pointer, context, marks } = entry;
                let view = place.within(marks.view, pointer.length());
                let pointer = RichPointer::new(pool.id(), view, pointer.class);
                return Some(Entry::new(pointer, context, marks));
            }
            let ticket = self.bell.listen();
            self.settle();
            if self.control.is_stopped()
                || self.graph.turn.failure.is_some()
                || self.waits_in_vain(&mut wait, || "memory".to_owned(), false)
            {
                return None;
            }
            self.bell.sleep_for(ticket, WAIT);
        }
    }

    /// Takes as many blocks off a ring as a turn took, once they are there.
    fn play_import(&mut self, node: NodeId, now: Time, count: usize) {
        let at = |input: &Input| matches!(input, Input::Ring { node: n, .. } if *n == node);
        let Some(i) = self.inputs.iter().position(at) else {
            return self.is_wrong("it names a ring that is not there");
        };
        let mut left = count;
        while left > 0 && self.graph.turn.failure.is_none() {
            let step = left.min(self.batch_max);
            if !self.has_come(i, step, false) {
                return self.came_short(count, left);
            }
            left -= step;
            let taking = Taking { most: step, now: Some(now), last: left == 0 };
            self.walk_imported(i, &mut Pass::default(), taking);
        }
    }

    /// Waits until so many blocks lie in a ring; answers whether any do: a space that ends early
    /// puts no more. Nor is it waited for in a path that is stopped, unless this side has ended.
    fn has_come(&mut self, i: usize, count: usize, ends: bool) -> bool {
        let mut wait: Option<StallWait> = None;
        loop {
            let ticket = self.bell.listen();
            wait.iter_mut().for_each(StallWait::looks);
            let Input::Ring { import, .. } = &mut self.inputs[i] else { return false };
            let over = import.is_closed() || (self.control.is_stopped() && !ends);
            match import.waiting() {
                Ok(waiting) if waiting >= count => return true,
                Ok(waiting) if over => return waiting > 0,
                Ok(_) => {}
                Err(fault) => {
                    let name = self.graph.nodes[0].name.clone();
                    self.graph.turn.failure = Some(PathFailure::ring(name, fault));
                    return false;
                }
            }
            self.settle();
            // Who waits for room is woken when half of a ring is free, and this space may go on
            // with less than that only when another ring is filled.
            self.control.ring();
            let Input::Ring { node, .. } = &self.inputs[i] else { return false };
            let name = self.graph.nodes[*node].name.clone();
            if self.waits_in_vain(&mut wait, || format!("{count} blocks to `{name}`"), false) {
                return false;
            }
            self.bell.sleep_for(ticket, WAIT);
        }
    }

    /// Reports the claims made in the pass that is walked next, after this many blocks.
    fn tell_claims(&mut self, player: &dyn Script, blocks: usize) {
        if let Claims::Scripted(told) = &mut self.graph.turn.claims {
            *told = player.claims(blocks);
        }
    }

    /// Takes what the spaces before still put, at the last time that is known; answers whether
    /// there was anything.
    fn drain(&mut self, now: Time) -> bool {
        let mut drained = false;
        for i in 0..self.inputs.len() {
            if !matches!(self.inputs[i], Input::Ring { .. }) {
                continue;
            }
            while self.graph.turn.failure.is_none() && self.has_come(i, 1, true) {
                drained = true;
                let taking = Taking { most: self.batch_max, now: Some(now), last: true };
                self.walk_imported(i, &mut Pass::default(), taking);
            }
        }
        drained
    }
}
