//! A table of flows with a maximum size and an idle time. The idle time is measured in the
//! timestamps of blocks.
//!
//! A queue contains one current entry for each flow, with the time of the flow's last block when
//! the entry was appended. If the flow at the front has received a block since then, the flow is
//! appended again instead of being removed. Each block therefore costs only a lookup, and the
//! removed flow is approximately the flow that has been idle for the longest time.

use filter::Time;
use std::collections::{BTreeMap, HashMap, VecDeque};
use wire::Flow;

/// Maximum number of queue entries examined in a full table before a flow is removed even though it
/// has had a block since it was queued.
const EXAMINED_ENTRIES_MAX: usize = 64;

/// A queue of flows in the order of insertion. Each entry is the key of the flow, the number of the
/// entry, and the time of the flow's last block.
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
    /// Number of the flow's current queue entry. Other entries with the key of the flow are
    /// outdated.
    entry: u64,
}

/// A table of flows, each with the time of its last block.
#[derive(Debug)]
pub(super) struct FlowTable<F> {
    known: HashMap<FlowKey, TrackedFlow<F>>,
    /// Queues of flows by source, because times are comparable only within a source; a single queue
    /// with index 0 if all sources share a clock. Outdated entries are skipped.
    queues: BTreeMap<u16, FlowQueue>,
    /// True if all sources have the same clock, and so share one queue.
    is_live: bool,
    flows_max: usize,
    idle: Time,
    entries_created: u64,
}

impl<F> FlowTable<F> {
    /// Creates a table. If `is_live` is false, each source has its own clock, as with captures from
    /// different days.
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

    /// Removes and returns a flow that has been idle for at least the idle time, by the clock of
    /// this source; `None` if there is none.
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

    /// If the table is full, removes and returns a flow of the source with the most flows:
    /// approximately the flow that has been idle for the longest time. Otherwise returns `None`.
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

    /// Removes and returns the flow at the front of the first queue that has one; `None` if there
    /// is none.
    pub(super) fn take_oldest_flow(&mut self) -> Option<F> {
        while let Some((queue, _)) = self.queues.iter().find(|(_, queue)| !queue.is_empty()) {
            if let Some(flow) = self.take_front_flow(*queue, |_| true) {
                return Some(flow);
            }
        }
        None
    }

    /// Removes the front of a queue. Returns `None` if the flow of this entry has already ended.
    /// Otherwise, calls `may_remove` with the time of the flow's last block: if the result is true,
    /// removes and returns the flow; if it is false, appends the flow to the queue again and
    /// returns `None`.
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
