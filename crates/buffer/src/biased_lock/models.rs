//! Loom models of the lock: in all interleavings with a bounded number of preemptions, at most one
//! thread has access to the value, and that thread sees the previous thread's writes.

use super::*;
use loom::cell;
use loom::sync::Arc;
use loom::thread;

/// The state that the threads of a model share: the lock, the records of the threads, and the
/// number of calls that acquired the lock.
struct SharedLock {
    lock: BiasedLock<cell::UnsafeCell<u64>>,
    records: Vec<OwnerRecord>,
    calls: AtomicU64,
}

impl SharedLock {
    fn new(threads: usize, handovers: u32) -> Arc<Self> {
        let record =
            |_| OwnerRecord::new(std::array::from_fn(|_| AtomicU64::new(0)), AtomicU32::new(1));
        let lock = BiasedLock {
            owner: AtomicU64::new(UNOWNED),
            locked: AtomicU32::new(0),
            handovers: AtomicU32::new(handovers),
            value: UnsafeCell::new(cell::UnsafeCell::new(0)),
        };
        Arc::new(Self {
            lock,
            records: (0..threads).map(record).collect(),
            calls: AtomicU64::new(0),
        })
    }

    /// Makes one call as thread `number`. The call adds one to the value and, if `forgets` is true,
    /// releases the ownership of the lock. Loom fails if another thread accesses the value at the
    /// same time, or if writes of earlier threads are not visible yet.
    fn call(&self, number: u64, forgets: bool) {
        let own = if number == NO_RECORD { number } else { number + FIRST_OWNER };
        let Some(guard) = self.lock.try_lock_as_owner(own, &self.records) else { return };
        // SAFETY: loom checks the access.
        guard.with_mut(|value| unsafe { *value += 1 });
        self.calls.fetch_add(1, Ordering::Relaxed);
        if forgets {
            guard.release_ownership();
        }
    }

    /// Checks that the protected value equals the number of calls that acquired the lock, each of
    /// which added one.
    fn check(&self) {
        let calls = self.calls.load(Ordering::Relaxed);
        let own = FIRST_OWNER;
        let guard = self.lock.try_lock_as_owner(own, &self.records);
        let guard = guard.expect("no thread holds the lock any more");
        // SAFETY: loom checks the access.
        assert_eq!(guard.with(|value| unsafe { *value }), calls);
    }
}

/// Runs threads in all interleavings with up to `preemptions` preemptions. Each element of
/// `threads` is a thread's number and one flag per call of the thread: true if the call releases
/// the ownership of the lock. The first thread is the main thread. The lock starts with `handovers`
/// owner changes.
fn check_interleavings(
    threads: &'static [(u64, &'static [bool])],
    handovers: u32,
    preemptions: usize,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let shared = SharedLock::new(threads.len(), handovers);
        let run = |shared: &SharedLock, (number, calls): (u64, &[bool])| {
            calls.iter().for_each(|forgets| shared.call(number, *forgets));
        };
        let others: Vec<_> = threads[1..]
            .iter()
            .map(|thread| {
                let shared = shared.clone();
                thread::spawn(move || run(&shared, *thread))
            })
            .collect();
        run(&shared, threads[0]);
        others.into_iter().for_each(|other| other.join().unwrap());
        shared.check();
    });
}

#[test]
fn two_threads_never_hold_the_lock_at_once() {
    check_interleavings(&[(0, &[false, false]), (1, &[false, false])], 0, 4);
}

#[test]
fn three_threads_never_hold_the_lock_at_once() {
    check_interleavings(&[(0, &[false]), (1, &[false]), (2, &[false])], 0, 3);
}

#[test]
fn shared_lock_is_held_by_one_thread_at_a_time() {
    check_interleavings(&[(0, &[false, false]), (1, &[false, false])], HANDOVERS_MAX, 4);
    check_interleavings(&[(0, &[false]), (1, &[false]), (2, &[false])], HANDOVERS_MAX, 3);
}

#[test]
fn thread_without_a_record_shares_the_lock() {
    check_interleavings(&[(0, &[false, false]), (NO_RECORD, &[false])], 0, 4);
}

#[test]
fn owner_is_cleared_while_other_threads_lock() {
    check_interleavings(&[(0, &[true, false]), (1, &[false, true])], 0, 4);
    check_interleavings(&[(0, &[true, false]), (1, &[false, true])], HANDOVERS_MAX, 4);
    check_interleavings(&[(0, &[true]), (1, &[false]), (2, &[false])], 0, 3);
}
