//! Tests of the lock with threads of the operating system.

use super::*;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;

#[test]
fn lock_is_busy_while_this_thread_or_another_holds_it() {
    let lock = BiasedLock::new(1);
    let mut guard = lock.try_lock().unwrap();
    *guard += 1;
    assert!(lock.try_lock().is_none(), "a signal handler of this thread");
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(lock.try_lock().is_none()));
    });
    drop(guard);
    assert_eq!(lock.try_lock().map(|guard| *guard), Some(2));
}

#[test]
fn other_thread_becomes_the_owner_and_keeps_the_value() {
    let lock = BiasedLock::new(0);
    // More changes of the owner than a lock makes before it becomes shared.
    for round in 0..3 * HANDOVERS_MAX {
        let add = || {
            let mut guard = lock.try_lock().unwrap();
            assert_eq!(*guard, 2 * round + u32::from(*guard % 2 == 1));
            *guard += 1;
        };
        add();
        std::thread::scope(|scope| _ = scope.spawn(add));
    }
    assert_eq!(lock.owner.load(Ordering::Relaxed), SHARED);
    lock.try_lock().unwrap().release_ownership();
    assert_eq!(lock.owner.load(Ordering::Relaxed), UNOWNED);
    assert_eq!(lock.try_lock().map(|guard| *guard), Some(6 * HANDOVERS_MAX));
    assert!(!is_heavy_fence_supported() || lock.owner.load(Ordering::Relaxed) >= FIRST_OWNER);
}

#[test]
fn thread_holds_several_locks_up_to_the_limit() {
    let locks: Vec<BiasedLock<()>> = (0..=HELD_LOCKS_MAX).map(|_| BiasedLock::new(())).collect();
    let mut guards: Vec<_> =
        locks.iter().take(HELD_LOCKS_MAX).map(|lock| lock.try_lock()).collect();
    assert!(guards.iter().all(Option::is_some));
    assert!(!is_heavy_fence_supported() || locks[HELD_LOCKS_MAX].try_lock().is_none());
    drop(guards.remove(1));
    assert!(locks[HELD_LOCKS_MAX].try_lock().is_some());
    assert!(locks[0].try_lock().is_none() && locks[1].try_lock().is_some());
}

/// The lock protects a counter that several threads increment. No increment is lost, although
/// threads start and end in the meantime.
#[test]
fn additions_of_many_threads_are_all_counted() {
    let lock = BiasedLock::new(0_u64);
    let stop = AtomicBool::new(false);
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let (report, reports) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (report, lock, stop) = (report.clone(), &lock, &stop);
            scope.spawn(move || {
                let mut added = 0;
                while !stop.load(Ordering::Relaxed) {
                    let Some(mut guard) = lock.try_lock() else { continue };
                    *guard += 1;
                    added += 1;
                    if added % 100 == 0 {
                        guard.release_ownership();
                    }
                }
                report.send(added).unwrap();
            });
        }
        let mut added = 0;
        while added < rounds {
            // Each thread ends after one call, and the next thread reuses its record.
            let add_one = || {
                lock.try_lock().map_or(0, |mut guard| {
                    *guard += 1;
                    1
                })
            };
            let on_new_thread = || scope.spawn(add_one).join().unwrap();
            added += add_one() + if added % 16 == 0 { on_new_thread() } else { 0 };
        }
        stop.store(true, Ordering::Relaxed);
        report.send(added).unwrap();
    });
    drop(report);
    assert_eq!(lock.try_lock().map(|guard| *guard), Some(reports.iter().sum()));
}
