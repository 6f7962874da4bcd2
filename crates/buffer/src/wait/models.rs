//! Loom models, in all interleavings, of a wake-up. A sleeper that falls asleep before the position
//! is reached is notified or sees the position.

use super::*;
use crate::atomic::AtomicU64;
use loom::sync::Arc;
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// Words of both parties and the doorbell between them.
struct Pages {
    /// Page of the sleeper.
    page: Region,
    /// Position that the other party publishes.
    position: AtomicU64,
    doorbell: (Mutex<bool>, Condvar),
}

/// Models a wake-up. The other party advances to `last` in steps of one, and checks for a sleeper
/// after each step: with urgency `end` after the last step, with urgency `each` after the others.
/// The sleeper waits until the position is `until`.
fn check_wake_up(last: u64, until: u64, each: Urgency, end: Urgency) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let pages = Arc::new(Pages {
            page: Region::heap(2),
            position: AtomicU64::new(0),
            doorbell: (Mutex::new(false), Condvar::new()),
        });
        let other = {
            let pages = pages.clone();
            thread::spawn(move || {
                let mut notifier = Notifier::default();
                for position in 1..=last {
                    pages.position.store(position, Ordering::Release);
                    let urgency = if position == last { end } else { each };
                    if notifier.is_due(&pages.page, 0, position, urgency) {
                        *pages.doorbell.0.lock().unwrap() = true;
                        pages.doorbell.1.notify_one();
                    }
                }
            })
        };
        let mut sleeper = Sleeper::default();
        while pages.position.load(Ordering::Acquire) < until {
            sleeper.announce_sleep(&pages.page, 0, until);
            let mut notified = pages.doorbell.0.lock().unwrap();
            // Checked again, as a sleeper must. A lost wake-up would never end the model.
            while pages.position.load(Ordering::Acquire) < until && !*notified {
                notified = pages.doorbell.1.wait(notified).unwrap();
            }
            *notified = false;
            drop(notified);
            sleeper.announce_wake(&pages.page, 0);
        }
        other.join().unwrap();
    });
}

#[test]
fn sleeper_is_woken_by_the_only_step() {
    check_wake_up(1, 1, Urgency::More, Urgency::More);
}

#[test]
fn sleeper_is_woken_by_the_second_of_two_steps() {
    check_wake_up(2, 2, Urgency::More, Urgency::More);
}

#[test]
fn sleeper_is_woken_when_its_threshold_is_passed() {
    check_wake_up(2, 1, Urgency::More, Urgency::More);
}

#[test]
fn sleeper_during_flow_is_woken_by_the_last_step() {
    check_wake_up(2, 1, Urgency::Flow, Urgency::Last);
    check_wake_up(2, 2, Urgency::Flow, Urgency::Last);
}
