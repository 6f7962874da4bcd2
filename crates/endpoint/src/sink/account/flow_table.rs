//! A table of flows with a maximum size and an idle time. The idle time is measured in the
//! timestamps of blocks.
//!
//! A queue contains one entry for each flow, in the order of time: that of the flow's last block
//! when the entry was queued. If the first flow has received a block since then, its entry moves to
//! the place of that block instead of being removed. Each block therefore costs only a lookup, and
//! no flow that is idle waits behind one that is not.

use filter::Time;
use std::collections::{BTreeMap, HashMap};
use wire::Flow;

/// Maximum number of queue entries that the table examines in order to find an idle flow to remove
/// when it is full. After that, the table removes the next flow even if it is active.
const EXAMINED_ENTRIES_MAX: usize = 64;

/// The place of a flow in its queue: the time of its last block when it was queued, and the number
/// of its entry.
type QueuePlace = (Time, u64);

/// A queue of flows, in the order of their places.
type FlowQueue = BTreeMap<QueuePlace, FlowKey>;

/// The key of a flow. Each variant begins with the index of the flow's source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum FlowKey {
    /// A flow with a session: the index of its source, and the session number that a filter
    /// upstream has assigned.
    Session(u16, u32),
    /// A flow without a session: the index of its source, and its addresses, ports and protocol.
    /// Both directions of the flow have the same key.
    Endpoints(u16, Flow),
}

impl FlowKey {
    /// Returns the index of the source from which the flow comes.
    const fn origin(&self) -> u16 {
        match self {
            Self::Session(origin, _) | Self::Endpoints(origin, _) => *origin,
        }
    }
}

#[derive(Debug)]
struct TrackedFlow<F> {
    flow: F,
    last: Time,
    /// Place of the flow in its queue.
    place: QueuePlace,
}

/// A table of flows, each with the time of its last block.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    known: HashMap<FlowKey, TrackedFlow<F>>,
    /// Queues of flows by source, because times are comparable only within a source; a single queue
    /// with index 0 if all sources share a clock.
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
        let place = (now, self.entries_created);
        self.known.insert(key, TrackedFlow { flow, last: now, place });
        self.queues.entry(self.queue_index(key.origin())).or_default().insert(place, key);
    }

    /// Returns the flow with this key, and records that it has a block at time `now`. Returns
    /// `None` if the table does not contain the flow.
    pub(super) fn record_block(&mut self, key: &FlowKey, now: Time) -> Option<&mut F> {
        let known = self.known.get_mut(key)?;
        known.last = known.last.max(now);
        Some(&mut known.flow)
    }

    pub(super) fn remove(&mut self, key: &FlowKey) -> Option<F> {
        let known = self.known.remove(key)?;
        if let Some(queue) = self.queues.get_mut(&self.queue_index(key.origin())) {
            queue.remove(&known.place);
        }
        Some(known.flow)
    }

    /// Removes and returns a flow of the source `origin` that has been idle for at least the idle
    /// time. `now` is the time on the clock of this source. Returns `None` if there is no such
    /// flow.
    pub(super) fn take_idle_flow(&mut self, origin: u16, now: Time) -> Option<F> {
        let queue = self.queue_index(origin);
        let idle = self.idle;
        let is_idle = |last: Time| now.saturating_sub(last) >= idle;
        loop {
            let ((queued, _), _) = self.queues.get(&queue)?.first_key_value()?;
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
            let longest = self.queues.iter().max_by_key(|(_, queue)| queue.len());
            let (queue, queued) =
                longest.and_then(|(at, all)| Some((*at, all.first_key_value()?.0.0)))?;
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
        let (queue, _) = self.queues.iter().find(|(_, queue)| !queue.is_empty())?;
        self.take_front_flow(*queue, |_| true)
    }

    /// Takes the front of a queue, and calls `may_remove` with the time of the flow's last block.
    /// If the result is true, removes and returns the flow; if it is false, moves the flow to the
    /// place of its last block and returns `None`.
    fn take_front_flow(&mut self, queue: u16, may_remove: impl Fn(Time) -> bool) -> Option<F> {
        let entries = self.queues.get_mut(&queue)?;
        let ((_, entry), key) = entries.pop_first()?;
        let known = self.known.get_mut(&key)?;
        if may_remove(known.last) {
            return self.known.remove(&key).map(|known| known.flow);
        }
        known.place = (known.last, entry);
        entries.insert(known.place, key);
        None
    }
}
