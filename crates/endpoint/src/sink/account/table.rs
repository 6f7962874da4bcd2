//! A table of flows with a maximum size and an idle time, by the times of the blocks.
//!
//! Each flow is in one queue once, with the time of its block when it was put there. Whoever takes
//! from the front puts flows back that had a block since. So a block costs a lookup, and the flow
//! that is taken is the one that was idle the longest, up to the idle time.

use filter::Time;
use std::collections::{HashMap, VecDeque};
use wire::Flow;

/// Maximum number of flows that are put back before one is taken from a full table.
const ATTEMPTS_MAX: usize = 64;

/// The identity of a flow, by the source of its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum FlowKey {
    /// A session number of a filter upstream.
    Session(u16, u32),
    /// Addresses, ports and protocol in either direction.
    Pair(u16, Flow),
}

#[derive(Debug)]
struct Known<F> {
    flow: F,
    last: Time,
    /// Number of the flow's place in the queue.
    place: u64,
}

/// The flows with the times of their last blocks.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    known: HashMap<FlowKey, Known<F>>,
    /// Flows in the order of the times at which they were put here. Removed flows are skipped.
    queue: VecDeque<(FlowKey, u64, Time)>,
    most: usize,
    idle: Time,
    places: u64,
}

impl<F> FlowTable<F> {
    pub(super) fn new(most: usize, idle: Time) -> Self {
        Self { known: HashMap::new(), queue: VecDeque::new(), most, idle, places: 0 }
    }

    pub(super) fn has(&self, key: &FlowKey) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn add(&mut self, key: FlowKey, now: Time, flow: F) {
        self.places += 1;
        let place = self.places;
        self.known.insert(key, Known { flow, last: now, place });
        self.queue.push_back((key, place, now));
        // Flows that ended by themselves leave their places in the queue.
        if self.queue.len() > 2 * self.known.len() + ATTEMPTS_MAX {
            let known = &self.known;
            self.queue.retain(|(key, place, _)| {
                known.get(key).is_some_and(|known| known.place == *place)
            });
        }
    }

    /// Returns the flow, which has a block at this time.
    pub(super) fn touch(&mut self, key: &FlowKey, now: Time) -> Option<&mut F> {
        let known = self.known.get_mut(key)?;
        known.last = known.last.max(now);
        Some(&mut known.flow)
    }

    pub(super) fn remove(&mut self, key: &FlowKey) -> Option<F> {
        self.known.remove(key).map(|known| known.flow)
    }

    /// Removes and returns a flow that has been idle for the idle time.
    pub(super) fn take_idle(&mut self, now: Time) -> Option<F> {
        let idle = self.idle;
        let is_idle = |last: Time| now.saturating_sub(last) >= idle;
        loop {
            let (_, _, then) = self.queue.front()?;
            if !is_idle(*then) {
                return None;
            }
            if let Some(flow) = self.take_front(is_idle) {
                return Some(flow);
            }
        }
    }

    /// Removes and returns the flow that was idle the longest, if there is no place for another.
    pub(super) fn take_if_full(&mut self) -> Option<F> {
        if self.known.len() < self.most {
            return None;
        }
        let mut attempts = 0;
        while !self.queue.is_empty() {
            let (_, _, then) = *self.queue.front()?;
            attempts += 1;
            let may_go = attempts >= ATTEMPTS_MAX;
            if let Some(flow) = self.take_front(|last| may_go || last == then) {
                return Some(flow);
            }
        }
        None
    }

    /// Removes and returns the flow at the front of the queue; `None` if there is none.
    pub(super) fn take_oldest(&mut self) -> Option<F> {
        while !self.queue.is_empty() {
            if let Some(flow) = self.take_front(|_| true) {
                return Some(flow);
            }
        }
        None
    }

    /// Takes the front of the queue. Returns the flow if the time of its last block permits;
    /// otherwise puts it back.
    fn take_front(&mut self, may_go: impl Fn(Time) -> bool) -> Option<F> {
        let (key, place, _) = self.queue.pop_front()?;
        let known = self.known.get(&key).filter(|known| known.place == place)?;
        if may_go(known.last) {
            return self.remove(&key);
        }
        self.queue.push_back((key, place, known.last));
        None
    }
}
