//! A space with nothing to do: on what it sleeps, and how long it has.

use super::node::Part;
use super::{Clock, Input, Pass, Space};
use buffer::signal::Ticket;
use filter::Time;
use std::os::fd::AsFd;
use std::time::Duration;

/// Maximum sleep of a space whose source waits for memory.
const MEMORY_WAIT: Duration = Duration::from_millis(1);

/// Time that a space has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// Processor time of its thread, in ns.
    pub cpu: u64,
    /// Time that the thread slept, in ns.
    pub asleep: u64,
}

impl TimeSpent {
    /// Returns what was used since an earlier reading.
    pub fn since(self, before: Self) -> Self {
        let cpu = self.cpu.saturating_sub(before.cpu);
        Self { cpu, asleep: self.asleep.saturating_sub(before.asleep) }
    }
}

impl Space {
    /// Returns the time that the space has used. Only meaningful in its own thread.
    pub fn spent(&self) -> TimeSpent {
        TimeSpent { cpu: sys::clock::thread(), asleep: self.asleep }
    }

    /// Sleeps until an input may have something, or a filter wants to be called.
    pub(super) fn sleep(&mut self, pass: Pass, ticket: Ticket) {
        let wake = self.graph.nodes.iter().filter_map(|node| node.wake).min();
        let until = match self.graph.clock {
            Clock::Live => earlier(pass.until, wake),
            Clock::Blocks(_) => pass.until,
        };
        let limit = until.map(|until| match until.saturating_sub(self.live()) {
            // What is due and does not move waits for memory, which another space gives back: it
            // rings, and if it does not, we look again.
            0 => MEMORY_WAIT,
            ns => Duration::from_nanos(ns),
        });
        let begin = sys::clock::monotonic();
        // It stays so until something waits for room: who lets go of a batch while this space is
        // awake need not ring either.
        self.bell.heed_room(!pass.readable || self.heeds_memory());
        match (pass.readable, limit) {
            (true, limit) => {
                let mut descriptors = Vec::new();
                // Once the path is stopped its descriptor stays readable.
                if !self.control.is_stopped() {
                    descriptors.push(self.control.as_fd());
                }
                descriptors.extend(self.graph.nodes.iter().filter_map(|node| match &node.part {
                    Part::Source(part) => part.source.descriptor(),
                    _ => None,
                }));
                self.bell.sleep_among(ticket, &descriptors, limit);
            }
            (false, Some(limit)) => self.bell.sleep_for(ticket, limit),
            (false, None) => self.bell.sleep(ticket),
        }
        self.asleep += sys::clock::monotonic().saturating_sub(begin);
    }

    /// Returns true if the space has more to do when another one gives back memory, all inputs
    /// being empty. Each such wake-up may find a new block, which wakes the other space: two
    /// threads with little to do would never sleep.
    fn heeds_memory(&self) -> bool {
        self.inputs.iter().any(|input| match input {
            Input::Source { node, .. } => match &self.graph.nodes[*node].part {
                Part::Source(part) => !part.ended && part.properties.heeds_memory,
                _ => true,
            },
            _ => true,
        })
    }
}

pub(super) fn earlier(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
