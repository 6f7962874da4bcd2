//! A table of flows with a maximum size and an idle time. Its clock is the time of the blocks.
//!
//! The queue contains each flow once, with the time of its last block when it was appended. If the
//! flow at the front has had a later block, it is appended again instead of being removed. A block
//! therefore costs only a lookup, and the removed flow is approximately the one that has been idle
//! the longest.

use filter::Time;
use std::collections::{HashMap, VecDeque};
use wire::Flow;

/// Maximum number of flows examined before one is removed from a full table even if it is not idle.
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
struct TrackedFlow<F> {
    flow: F,
    last: Time,
    /// Number of the flow's current queue entry. Other entries with the key of the flow are
    /// outdated.
    entry: u64,
}

/// The flows with the times of their last blocks.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    known: HashMap<FlowKey, TrackedFlow<F>>,
    /// Key, entry number and time of the last block of each flow, in the order of insertion.
    /// Outdated entries are skipped.
    queue: VecDeque<(FlowKey, u64, Time)>,
    flows_max: usize,
    idle: Time,
    entries_created: u64,
}

impl<F> FlowTable<F> {
    pub(super) fn new(flows_max: usize, idle: Time) -> Self {
        Self { known: HashMap::new(), queue: VecDeque::new(), flows_max, idle, entries_created: 0 }
    }

    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn add(&mut self, key: FlowKey, now: Time, flow: F) {
        self.entries_created += 1;
        let entry = self.entries_created;
        self.known.insert(key, TrackedFlow { flow, last: now, entry });
        self.queue.push_back((key, entry, now));
        // The entries of flows that were removed at their end are still in the queue.
        if self.queue.len() > 2 * self.known.len() + ATTEMPTS_MAX {
            let known = &self.known;
            self.queue.retain(|(key, entry, _)| {
                known.get(key).is_some_and(|known| known.entry == *entry)
            });
        }
    }

    /// Returns the flow, and records that it has a block at time `now`. Returns `None` for an
    /// unknown flow.
    pub(super) fn record_block(&mut self, key: &FlowKey, now: Time) -> Option<&mut F> {
        let known = self.known.get_mut(key)?;
        known.last = known.last.max(now);
        Some(&mut known.flow)
    }

    pub(super) fn remove(&mut self, key: &FlowKey) -> Option<F> {
        self.known.remove(key).map(|known| known.flow)
    }

    /// Removes and returns a flow that has been idle for at least the idle time; `None` if there is
    /// none.
    pub(super) fn take_idle(&mut self, now: Time) -> Option<F> {
        let idle = self.idle;
        let is_idle = |last: Time| now.saturating_sub(last) >= idle;
        loop {
            let (_, _, queued) = self.queue.front()?;
            if !is_idle(*queued) {
                return None;
            }
            if let Some(flow) = self.take_front(is_idle) {
                return Some(flow);
            }
        }
    }

    /// Removes and returns approximately the flow that has been idle the longest if the table is
    /// full, otherwise returns `None`.
    pub(super) fn take_if_full(&mut self) -> Option<F> {
        if self.known.len() < self.flows_max {
            return None;
        }
        let mut attempts = 0;
        while !self.queue.is_empty() {
            let (_, _, queued) = *self.queue.front()?;
            attempts += 1;
            let is_last_attempt = attempts >= ATTEMPTS_MAX;
            if let Some(flow) = self.take_front(|last| is_last_attempt || last == queued) {
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

    /// Removes the front of the queue. Removes and returns its flow if `may_remove` returns true
    /// for the time of the flow's last block; otherwise appends the flow to the queue again.
    fn take_front(&mut self, may_remove: impl Fn(Time) -> bool) -> Option<F> {
        let (key, entry, _) = self.queue.pop_front()?;
        let known = self.known.get(&key).filter(|known| known.entry == entry)?;
        if may_remove(known.last) {
            return self.remove(&key);
        }
        self.queue.push_back((key, entry, known.last));
        None
    }
}
