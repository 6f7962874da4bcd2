//! A table of flows with a maximum size and an idle time, after which a flow is removed. Idle times
//! are measured by the timestamps of blocks.
//!
//! Each flow has one current entry in a queue, which contains the time of the flow's last block at
//! the time of queueing. If the flow at the front has received a block since it was queued, the
//! table queues the flow again instead of removing it. A block therefore costs only a lookup, and
//! the removed flow is approximately the one with the longest idle time.

use filter::Time;
use std::collections::{BTreeMap, HashMap, VecDeque};
use wire::Flow;

/// Maximum number of queue entries that the table examines in order to find an idle flow to remove
/// when it is full. After that, the table removes the next flow even if it is active.
const EXAMINED_ENTRIES_MAX: usize = 64;

/// A queue of flows, ordered by the time at which they were queued. Each entry contains the key of
/// the flow, the number of the entry, and the time of the flow's last block.
type FlowQueue = VecDeque<(FlowKey, u64, Time)>;

/// The key of a flow. Each variant begins with the index of the flow's source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum FlowKey {
    /// The index of the source, and the session number that a filter upstream has assigned.
    Session(u16, u32),
    /// The index of the source, and the addresses, ports and protocol, regardless of direction.
    Pair(u16, Flow),
}

impl FlowKey {
    /// Returns the index of the flow's source.
    const fn origin(&self) -> u16 {
        match self {
            Self::Session(origin, _) | Self::Pair(origin, _) => *origin,
        }
    }
}

#[derive(Debug)]
struct TrackedFlow<F> {
    flow: F,
    last: Time,
    /// Number of the flow's current queue entry. Queue entries of the flow with other numbers are
    /// outdated.
    entry: u64,
}

/// A table of flows, each with the time of its last block.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    known: HashMap<FlowKey, TrackedFlow<F>>,
    /// Queues of the flows, by index of the source. Each source has its own queue, because times
    /// are comparable only within a source. If all sources share a clock, there is a single queue
    /// with index 0.
    queues: BTreeMap<u16, FlowQueue>,
    /// True if all sources have the same clock, and so share one queue.
    is_live: bool,
    flows_max: usize,
    idle: Time,
    entries_created: u64,
}

impl<F> FlowTable<F> {
    /// Creates a table for at most `flows_max` flows with the idle time `idle`. If `is_live` is
    /// false, each source has its own clock, as with captures from different days.
    pub(super) fn new(flows_max: usize, idle: Time, is_live: bool) -> Self {
        Self {
            known: HashMap::new(),
            queues: BTreeMap::new(),
            is_live,
            flows_max,
            idle,
            entries_created: 0,
        }
    }

    /// Returns the index of the queue for the flows of a source.
    const fn queue_index(&self, origin: u16) -> u16 {
        if self.is_live { 0 } else { origin }
    }

    pub(super) fn contains(&self, key: &FlowKey) -> bool {
        self.known.contains_key(key)
    }

    pub(super) fn add(&mut self, key: FlowKey, now: Time, flow: F) {
        self.entries_created += 1;
        let entry = self.entries_created;
        self.known.insert(key, TrackedFlow { flow, last: now, entry });
        let queue = self.queues.entry(self.queue_index(key.origin())).or_default();
        queue.push_back((key, entry, now));
        // The queue still contains the entries of flows that were removed when they ended. These
        // entries are discarded here.
        if queue.len() > 2 * self.known.len() + EXAMINED_ENTRIES_MAX {
            let known = &self.known;
            queue.retain(|(key, entry, _)| {
                known.get(key).is_some_and(|known| known.entry == *entry)
            });
        }
    }

    /// Returns the flow with this key, and records that it has a block at time `now`. Returns
    /// `None` if the table does not contain the flow.
    pub(super) fn record_block(&mut self, key: &FlowKey, now: Time) -> Option<&mut F> {
        let known = self.known.get_mut(key)?;
        known.last = known.last.max(now);
        Some(&mut known.flow)
    }

    pub(super) fn remove(&mut self, key: &FlowKey) -> Option<F> {
        self.known.remove(key).map(|known| known.flow)
    }

    /// Removes and returns a flow of the source `origin` that has been idle for at least the idle
    /// time. `now` is the time on the clock of this source. Returns `None` if there is no such
    /// flow.
    pub(super) fn take_idle_flow(&mut self, origin: u16, now: Time) -> Option<F> {
        let queue = self.queue_index(origin);
        let idle = self.idle;
        let is_idle = |last: Time| now.saturating_sub(last) >= idle;
        loop {
            let (_, _, queued) = self.queues.get(&queue)?.front()?;
            if !is_idle(*queued) {
                return None;
            }
            if let Some(flow) = self.take_front_flow(queue, is_idle) {
                return Some(flow);
            }
        }
    }

    /// Removes a flow to make room if the table is full, and returns it; otherwise returns `None`.
    /// The flow belongs to the source with the most flows, and is approximately the one that has
    /// been idle for the longest time.
    pub(super) fn evict_flow_if_full(&mut self) -> Option<F> {
        if self.known.len() < self.flows_max {
            return None;
        }
        for attempt in 1.. {
            // All entries of a queue may belong to flows that have ended.
            let longest = self.queues.iter().max_by_key(|(_, queue)| queue.len());
            let (queue, queued) = longest.and_then(|(at, all)| Some((*at, all.front()?.2)))?;
            let is_last_attempt = attempt >= EXAMINED_ENTRIES_MAX;
            if let Some(flow) =
                self.take_front_flow(queue, |last| is_last_attempt || last == queued)
            {
                return Some(flow);
            }
        }
        None
    }

    /// Removes and returns the flow at the front of the first queue that is not empty; `None` if
    /// the table is empty.
    pub(super) fn take_oldest_flow(&mut self) -> Option<F> {
        while let Some((queue, _)) = self.queues.iter().find(|(_, queue)| !queue.is_empty()) {
            if let Some(flow) = self.take_front_flow(*queue, |_| true) {
                return Some(flow);
            }
        }
        None
    }

    /// Removes the entry at the front of a queue. Returns `None` if the entry's flow has already
    /// ended. Otherwise, calls `may_remove` with the time of the flow's last block. If the result
    /// is true, removes and returns the flow. If it is false, queues the flow again and returns
    /// `None`.
    fn take_front_flow(&mut self, queue: u16, may_remove: impl Fn(Time) -> bool) -> Option<F> {
        let (key, entry, _) = self.queues.get_mut(&queue)?.pop_front()?;
        let known = self.known.get(&key).filter(|known| known.entry == entry)?;
        if may_remove(known.last) {
            return self.remove(&key);
        }
        let last = known.last;
        self.queues.get_mut(&queue)?.push_back((key, entry, last));
        None
    }
}
