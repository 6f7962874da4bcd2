//! Turns written into a record, and turns taken from one ([`crate::record`]).
//!
//! A space that plays asks no source and no clock. It waits until what its next turn took is there
//! again, walks that, at the time of the record, and goes to the next turn. The space before it in
//! the path puts the same blocks into the same rings, so it comes; where the record ends before the
//! run did, what is under way drains at the last time that is known.

mod change;

use super::turn::Claims;
use super::{GENERAL, Input, NodeId, Pass, Space, Taking};
use crate::failure::PathFailure;
use crate::live::Orders;
use crate::record::Tape;
use crate::record::event::Event;
use crate::record::play::Player;
use crate::record::still::{Here, Post, WAIT, Wait};
use crate::record::write::Recorder;
use abi::{BLOCK_MAX, Entry, RichPointer};
use endpoint::{Failure, Sink, Source};
use filter::{Amount, Columns, Time};
use std::sync::Arc;

/// Whether the turns of a space are written down, or come from a record.
#[derive(Debug)]
pub(super) enum Taped {
    Off,
    Record(Box<Recorder>),
    Play(Option<Box<Player>>),
}

/// One turn of a source, as a record says it.
struct Pulled {
    node: NodeId,
    now: Time,
    count: usize,
    edge: Option<usize>,
    failure: Option<String>,
}

impl Taped {
    /// What a space does about this tape, and who decides there how many blocks are taken.
    pub(super) fn new((tape, space): (Tape, usize), counted: bool) -> (Self, Claims) {
        match tape {
            Tape::Off => (Self::Off, Claims::Free),
            Tape::Record(recording) => {
                let claims = if counted { Claims::Noted(Vec::new()) } else { Claims::Free };
                (Self::Record(Box::new(Recorder::new(recording, space))), claims)
            }
            Tape::Play(replay) => {
                let claims = if counted { Claims::Told(0) } else { Claims::Free };
                (Self::Play(Some(Box::new(Player::new(replay, space)))), claims)
            }
        }
    }

    /// The place of the space that takes these orders, if it plays a record.
    pub(super) fn here(&self, orders: &Arc<Orders>) -> Option<Here> {
        let Self::Play(Some(player)) = self else { return None };
        let (replay, byte) = (Arc::clone(&player.replay), Arc::clone(&player.byte));
        Some(Here(Post::new(replay, Arc::clone(orders), byte)))
    }

    pub(super) fn player(&mut self) -> Option<Box<Player>> {
        match self {
            Self::Play(player) => player.take(),
            _ => None,
        }
    }

    pub(super) fn event(&mut self, event: impl FnOnce() -> Event) {
        if let Self::Record(recorder) = self {
            recorder.event(&event());
        }
    }

    pub(super) fn import(&mut self, node: NodeId, now: Time, count: usize) {
        self.event(|| Event::Import { node, now, count });
    }

    pub(super) fn finish(&mut self, now: Time, failure: Option<&PathFailure>) {
        self.event(|| Event::Finish { now, failure: failure.map(ToString::to_string) });
    }

    pub(super) fn seen(&mut self, planned: usize, source: &dyn Source) {
        if let Self::Record(recorder) = self {
            recorder.seen(planned, &source.seen());
        }
    }

    pub(super) fn heard(&mut self, planned: usize, sink: &dyn Sink) {
        if let (Self::Record(recorder), true) = (self, sink.process().is_some()) {
            recorder.heard(planned, sink);
        }
    }

    pub(super) fn flush(&mut self) {
        if let Self::Record(recorder) = self {
            recorder.flush();
        }
    }
}

impl Space {
    /// Writes down that filters are called because their time has come.
    pub(super) fn note_tick(&mut self, now: Time) {
        self.taped.event(|| Event::Tick { now });
    }

    /// Writes down what a source gave, if anything follows from it.
    pub(super) fn note_pull(
        &mut self,
        (node, from, edge): (NodeId, usize, Option<usize>),
        columns: &Columns,
        now: Time,
        failure: Option<&PathFailure>,
    ) {
        let Taped::Record(recorder) = &mut self.taped else { return };
        let due = self.nodes.iter().any(|node| node.wake.is_some_and(|wake| wake <= now));
        if columns.is_empty() && failure.is_none() && !due {
            return;
        }
        let (own, general) = (&self.intakes[from], &self.intakes[GENERAL]);
        let blocks = (0..columns.len()).map(|l| {
            let entry = columns.entry(l);
            let frame = entry.frame();
            let pool = if frame.dbuf() == own.id() { own } else { general };
            (entry, pool.resolve(frame).unwrap_or_default())
        });
        let (count, failure) = (columns.len(), failure.map(ToString::to_string));
        recorder.pull(&Event::Pull { node, now, count, edge, failure }, blocks);
    }

    /// Writes down how many of those that were counted were taken.
    pub(super) fn note_claims(&mut self) {
        if let Claims::Noted(noted) = &mut self.turn.claims {
            for count in noted.drain(..) {
                self.taped.event(|| Event::Claim { count });
            }
        }
    }

    /// Takes the turns of a record, one after the other.
    pub(super) fn play(mut self, mut player: Box<Player>) -> super::Remains {
        let mut last = 0;
        let mut whole = false;
        while self.turn.failure.is_none() && !self.control.is_stopped() {
            self.heed();
            match player.event() {
                Some(Event::Pull { node, now, count, edge, failure }) => {
                    last = now;
                    self.play_pull(&mut player, &Pulled { node, now, count, edge, failure });
                }
                Some(Event::Import { node, now, count }) => {
                    last = now;
                    self.tell_claims(&player, 0);
                    self.play_import(node, now, count);
                }
                Some(Event::Tick { now }) => {
                    last = now;
                    self.tell_claims(&player, 0);
                    self.stage(now).tick(&[]);
                    self.turn_pools();
                }
                Some(Event::Change { number }) => {
                    let Some(loan) = self.loan_for(&player, number) else { break };
                    let before = self.grafts;
                    self.taped = Taped::Play(Some(player));
                    match loan.out(self) {
                        Ok(back) => self = back,
                        Err(remains) => return *remains,
                    }
                    let Some(back) = self.taped.player() else { return self.remains() };
                    player = back;
                    if self.grafts == before {
                        // It was given back as it was: nothing that follows means anything.
                        break;
                    }
                }
                Some(Event::Finish { now, failure }) => {
                    (last, whole) = (now, true);
                    self.fail_as_recorded(failure.as_deref());
                    break;
                }
                Some(Event::Claim { .. } | Event::Seen { .. } | Event::Heard { .. }) => {}
                Some(Event::Retire { .. } | Event::Changed) => {
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
            self.take_last(&mut player);
        } else {
            player.replay.note_short();
            self.fail_as_recorded(player.wrong());
            // Who wants to change it hears that it has ended: it waits for what others still put.
            self.post().iter().for_each(Post::refuses);
            self.wanted = None;
            self.duty.0.refuse();
            self.drain(last);
        }
        if self.turn.failure.is_some() {
            self.control.stop();
        }
        if self.control.asked() > 0 {
            self.answer(true);
        }
        self.finish(last);
        self.duty.leave(self.counted());
        self.remains()
    }

    /// Does what somebody outside wants done, and says what sources have seen.
    fn heed(&mut self) {
        if self.duty.0.waits() {
            self.obey();
        }
        if self.control.asked() != self.answered {
            self.answer(false);
        }
    }

    /// Takes what is told of sources, programs and counted blocks when something ends: it stands
    /// behind the turn that ends it, and is asked for in it.
    fn take_last(&mut self, player: &mut Player) {
        let mut claimed = 0_u32;
        loop {
            match player.peek() {
                Some(Event::Seen { planned, seen, dropped }) => {
                    if !player.replay.had_seen(planned, seen, &dropped) {
                        self.is_wrong("a source saw another number of blocks than came of it");
                    }
                }
                Some(Event::Heard { planned, written, dropped }) => {
                    player.replay.had_heard(planned, written, &dropped);
                }
                Some(Event::Claim { count }) => claimed = claimed.saturating_add(count),
                _ => break,
            }
            player.event();
        }
        if let Claims::Told(told) = &mut self.turn.claims {
            *told = claimed;
        }
    }

    /// Where it stands among those that play.
    pub(super) fn post(&self) -> Option<Post> {
        self.here.as_ref().map(|here| here.0.clone())
    }

    /// It has looked in vain for what it waits for. Answers whether it would do so for ever: then
    /// it has failed.
    pub(super) fn waits_in_vain(
        &mut self,
        wait: &mut Option<Wait>,
        what: impl FnOnce() -> String,
        change: bool,
    ) -> bool {
        let why = match (&wait, &self.here) {
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
        let byte = self.here.as_ref().map_or(0, |here| here.0.byte());
        self.fail_as_recorded(Some(&format!("the record is wrong at byte {byte}: {what}")));
    }

    /// The other side of a ring has ended, and so many blocks of a turn have not come. Where the
    /// record ends early, here or there, that is so.
    fn came_short(&mut self, count: usize, left: usize) {
        let Some(post) = self.post() else { return };
        if post.is_of_whole() && !self.control.is_stopped() && self.turn.failure.is_none() {
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
        self.turn.failure.get_or_insert_with(failed);
    }

    /// Puts the blocks of a turn into the intake of their source again, and walks them.
    fn play_pull(&mut self, player: &mut Player, pulled: &Pulled) {
        let node = pulled.node;
        let is_source =
            |input: &Input| matches!(input, Input::Source { node: n, .. } if *n == node);
        if !self.inputs.iter().any(is_source) {
            // A record of another path: nothing of it means anything here.
            return self.is_wrong("it names a source that is not there");
        }
        if pulled.edge.is_some_and(|arc| arc >= self.nodes[node].arcs.len()) {
            return self.is_wrong("it names a way out of its source that is not there");
        }
        let planned = self.nodes[node].planned;
        let mut left = pulled.count;
        self.tell_claims(player, left);
        loop {
            let mut room = self.spare.take().unwrap_or_default();
            room.columns.clear();
            let mut amount = Amount::default();
            let mut pins = Vec::new();
            while left > 0 && room.columns.len() < self.at_once.most {
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
                self.intakes[GENERAL].unpin(pin);
            }
            player.replay.gave(planned, amount);
            let place = (node, GENERAL, pulled.edge);
            self.spare = Some(self.walk_pulled(place, room, pulled.now, left == 0));
            if left == 0 || self.turn.failure.is_some() {
                break;
            }
        }
        if let Some(why) = &pulled.failure {
            let failed = || {
                let failure = Failure::new("go on as recorded", "the source", why);
                PathFailure::outside(self.nodes[node].name.clone(), failure)
            };
            self.turn.failure.get_or_insert_with(failed);
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
        let mut wait: Option<Wait> = None;
        loop {
            wait.iter_mut().for_each(Wait::looks);
            let pool = &self.intakes[GENERAL];
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
                || self.turn.failure.is_some()
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
        while left > 0 && self.turn.failure.is_none() {
            let step = left.min(self.at_once.most);
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
        let mut wait: Option<Wait> = None;
        loop {
            let ticket = self.bell.listen();
            wait.iter_mut().for_each(Wait::looks);
            let Input::Ring { import, .. } = &mut self.inputs[i] else { return false };
            let over = import.is_closed() || (self.control.is_stopped() && !ends);
            match import.waiting() {
                Ok(waiting) if waiting >= count => return true,
                Ok(waiting) if over => return waiting > 0,
                Ok(_) => {}
                Err(fault) => {
                    let name = self.nodes[0].name.clone();
                    self.turn.failure = Some(PathFailure::ring(name, fault));
                    return false;
                }
            }
            self.settle();
            // Who waits for room is woken when half of a ring is free, and this space may go on
            // with less than that only when another ring is filled.
            self.control.ring();
            let Input::Ring { node, .. } = &self.inputs[i] else { return false };
            let name = self.nodes[*node].name.clone();
            if self.waits_in_vain(&mut wait, || format!("{count} blocks to `{name}`"), false) {
                return false;
            }
            self.bell.sleep_for(ticket, WAIT);
        }
    }

    /// What was claimed in the turn that is walked next, behind so many blocks.
    fn tell_claims(&mut self, player: &Player, blocks: usize) {
        if let Claims::Told(told) = &mut self.turn.claims {
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
            while self.turn.failure.is_none() && self.has_come(i, 1, true) {
                drained = true;
                let taking = Taking { most: self.at_once.most, now: Some(now), last: true };
                self.walk_imported(i, &mut Pass::default(), taking);
            }
        }
        drained
    }
}
