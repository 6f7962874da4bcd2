//! A table of child processes to which a signal handler sends signals.
//!
//! The kernel does not reuse the id of a child before the child has been reaped. The owner of a
//! child therefore waits for the child's exit without reaping the child, removes the child from the
//! table, and reaps it last. [`SignalTable::remove`] returns only after no handler holds the
//! removed id any more, so no signal reaches another process.

use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Content of a slot that holds no process id.
const FREE_SLOT: i32 = 0;
/// Content of a slot that is reserved for the id of a process that has not started yet.
const RESERVED_SLOT: i32 = -1;

/// A table of at most `SLOTS` process ids. Handlers on any thread may read it at any time.
#[derive(Debug)]
pub(crate) struct SignalTable<const SLOTS: usize> {
    slots: [AtomicI32; SLOTS],
    /// Number of handlers that are sending signals to processes in the table.
    senders: AtomicUsize,
}

impl<const SLOTS: usize> SignalTable<SLOTS> {
    pub(crate) const fn new() -> Self {
        Self { slots: [const { AtomicI32::new(FREE_SLOT) }; SLOTS], senders: AtomicUsize::new(0) }
    }

    /// Reserves a slot for a process to be started; `None` if the table is full.
    pub(crate) fn reserve(&self) -> Option<usize> {
        self.slots.iter().position(|slot| {
            slot.compare_exchange(FREE_SLOT, RESERVED_SLOT, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        })
    }

    /// Enters the id of a process into a reserved slot, or releases the slot if `id` is `None`.
    pub(crate) fn set_process(&self, slot: usize, id: Option<i32>) {
        self.slots[slot].store(id.unwrap_or(FREE_SLOT), Ordering::SeqCst);
    }

    /// Returns the slot of the process with this id, which the caller has not reaped; `None` if it
    /// is not in the table.
    pub(crate) fn find(&self, id: i32) -> Option<usize> {
        self.slots.iter().position(|slot| slot.load(Ordering::Acquire) == id)
    }

    /// Removes the process in a slot, and waits until no handler on another thread may still send
    /// it a signal. The caller may then reap the process.
    pub(crate) fn remove(&self, slot: usize) {
        // SYNC POINT: removal; pairs with `for_each`. SeqCst on both sides: either the handler
        // finds the slot free, or this thread sees the handler.
        self.slots[slot].store(FREE_SLOT, Ordering::SeqCst);
        while self.senders.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }

    /// Calls `send` with the id of each process in the table. Uses only atomics itself, so a
    /// signal handler may call it.
    pub(crate) fn for_each(&self, mut send: impl FnMut(i32)) {
        // SYNC POINT: removal; pairs with `remove`.
        self.senders.fetch_add(1, Ordering::SeqCst);
        for slot in &self.slots {
            let id = slot.load(Ordering::SeqCst);
            if id > 0 {
                send(id);
            }
        }
        self.senders.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn reserved_and_removed_processes_get_no_signal() {
        let table = SignalTable::<2>::new();
        let sent = || {
            let mut ids = Vec::new();
            table.for_each(|id| ids.push(id));
            ids
        };
        let (first, second) = (table.reserve().unwrap(), table.reserve().unwrap());
        assert_eq!((table.reserve(), sent()), (None, vec![]));
        table.set_process(second, Some(7));
        table.set_process(first, None);
        assert_eq!((table.find(7), sent()), (Some(second), vec![7]));
        table.remove(second);
        assert_eq!((table.find(7), sent()), (None, vec![]));
    }

    #[test]
    fn removal_waits_for_handlers_that_hold_the_id() {
        static TABLE: SignalTable<1> = SignalTable::new();
        static IS_REMOVED: AtomicBool = AtomicBool::new(false);
        let slot = TABLE.reserve().unwrap();
        TABLE.set_process(slot, Some(7));
        std::thread::scope(|scope| {
            TABLE.for_each(|_| {
                scope.spawn(move || {
                    TABLE.remove(slot);
                    IS_REMOVED.store(true, Ordering::SeqCst);
                });
                testkit::wait_until("it is being removed", || TABLE.find(7).is_none());
                // A removal that does not wait ends within this number of yields.
                (0..200).for_each(|_| std::thread::yield_now());
                assert!(!IS_REMOVED.load(Ordering::SeqCst));
            });
        });
        assert!(IS_REMOVED.load(Ordering::SeqCst));
    }
}
