//! The sleep of an idle space: the events that wake it, and its maximum duration.

use super::node::Operator;
use super::pass::{PassResult, earlier_time};
use super::{Clock, Input, Space};
use buffer::signal::SleepTicket;
use std::os::fd::AsFd;
use std::time::Duration;

/// Maximum sleep of a space that has a source waiting for memory to be released.
const MEMORY_WAIT_MAX: Duration = Duration::from_millis(1);

/// The CPU time of a space's thread, and the time that the thread has slept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeSpent {
    /// CPU time of the thread in nanoseconds.
    pub cpu_ns: u64,
    /// Time for which the thread has slept, in nanoseconds.
    pub asleep_ns: u64,
}

impl TimeSpent {
    /// Returns the time spent since the earlier reading `before`.
    pub fn since(self, before: Self) -> Self {
        let cpu = self.cpu_ns.saturating_sub(before.cpu_ns);
        Self { cpu_ns: cpu, asleep_ns: self.asleep_ns.saturating_sub(before.asleep_ns) }
    }
}

impl Space {
    /// Returns the CPU time and sleep time of the space. Must be called in the thread of the space.
    pub fn time_spent(&self) -> TimeSpent {
        TimeSpent { cpu_ns: sys::clock::thread_cpu_ns(), asleep_ns: self.accounts.asleep_ns }
    }

    /// Sleeps until the doorbell is notified, a source or writer becomes readable, or the next
    /// event of a source or timer is due. If an event is already due, sleeps for at most
    /// [`MEMORY_WAIT_MAX`]. `ticket` proves that the space has announced its sleep on the doorbell.
    pub(super) fn sleep(&mut self, pass: PassResult, ticket: SleepTicket) {
        let wake = self.graph.nodes.iter().filter_map(|node| node.wake).min();
        let until = match self.graph.clock {
            Clock::Live => earlier_time(pass.next_event_time, wake),
            Clock::BlockTime(_) => pass.next_event_time,
        };
        let limit = until.map(|until| match until.saturating_sub(self.graph.wall_clock_time()) {
            // A source that is due but emits nothing waits for memory. The space that releases the
            // memory notifies this one; the limit covers a missed notification.
            0 => MEMORY_WAIT_MAX,
            ns => Duration::from_nanos(ns),
        });
        let begin = sys::clock::monotonic_ns();
        // The setting stays in effect after the sleep, until a writer of this space waits for room,
        // so that readers that release memory while the space is awake do not notify it.
        self.ports.doorbell.set_waits_for_room(!pass.has_descriptor || self.wakes_on_memory());
        match (pass.has_descriptor, limit) {
            (true, limit) => {
                let mut descriptors = Vec::new();
                // The descriptor stays readable after a stop.
                if !self.ports.control.is_stopped() {
                    descriptors.push(self.ports.control.as_fd());
                }
                descriptors.extend(self.graph.nodes.iter().filter_map(
                    |node| match &node.operator {
                        Operator::Source(part) => part.source.descriptor(),
                        _ => None,
                    },
                ));
                descriptors.extend(self.writer_descriptors());
                self.ports.doorbell.sleep_with_descriptors(ticket, &descriptors, limit);
            }
            (false, Some(limit)) => self.ports.doorbell.sleep_for(ticket, limit),
            (false, None) => self.ports.doorbell.sleep(ticket),
        }
        self.accounts.asleep_ns += sys::clock::monotonic_ns().saturating_sub(begin);
    }

    /// Returns true if the space must wake when readers release memory, because it then has work
    /// although all of its inputs are empty. All other spaces continue to sleep. If a release woke
    /// them too, they would admit one block, whose transfer would wake the reader again, so that
    /// two nearly idle threads would never sleep.
    fn wakes_on_memory(&self) -> bool {
        self.inputs.list.iter().any(|input| match input {
            Input::Source { node, .. } => match &self.graph.nodes[*node].operator {
                Operator::Source(part) => !part.ended && part.properties.wakes_on_memory,
                _ => true,
            },
            _ => true,
        })
    }

    /// Returns the time until the next timer expires. Returns `None` if no timer is set, or if the
    /// path's clock is block time, which advances only with blocks.
    pub fn time_until_next_timer(&self) -> Option<Duration> {
        let wake = self.graph.nodes.iter().filter_map(|node| node.wake).min()?;
        match self.graph.clock {
            Clock::Live => {
                Some(Duration::from_nanos(wake.saturating_sub(self.graph.wall_clock_time())))
            }
            Clock::BlockTime(_) => None,
        }
    }
}
