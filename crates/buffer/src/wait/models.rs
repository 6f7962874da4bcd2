//! Loom models of a wake-up, in all interleavings with a bounded number of preemptions. A sleeper
//! that announces its sleep before the other party reaches the position is either notified or sees
//! the position.

use super::*;
use crate::atomic::AtomicU64;
use loom::sync::Arc;
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// Words that both parties of a wake-up share, and the doorbell that wakes the sleeper.
struct WakeUpWords {
    /// Control page of the sleeper.
    page: Region,
    /// Position that the other party publishes.
    position: AtomicU64,
    doorbell: (Mutex<bool>, Condvar),
}

/// Checks in a model that a sleeper wakes once the position is at least `threshold`. The other
/// party advances the position to `last` in steps of one, and checks for a sleeper after each step:
/// with `last_urgency` after the last step, and with `step_urgency` after every other step.
fn check_wake_up(last: u64, threshold: u64, step_urgency: Urgency, last_urgency: Urgency) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let words = Arc::new(WakeUpWords {
            page: Region::heap(2),
            position: AtomicU64::new(0),
            doorbell: (Mutex::new(false), Condvar::new()),
        });
        let other = {
            let words = words.clone();
            thread::spawn(move || {
                let mut notifier = Notifier::default();
                for position in 1..=last {
                    words.position.store(position, Ordering::Release);
                    let urgency = if position == last { last_urgency } else { step_urgency };
                    if notifier.is_due(&words.page, 0, position, urgency) {
                        *words.doorbell.0.lock().unwrap() = true;
                        words.doorbell.1.notify_one();
                    }
                }
            })
        };
        let mut sleeper = Sleeper::default();
        while words.position.load(Ordering::Acquire) < threshold {
            sleeper.announce_sleep(&words.page, 0, threshold);
            let mut notified = words.doorbell.0.lock().unwrap();
            // Checked again, as a sleeper must. If a wake-up were lost, this loop would never end.
            while words.position.load(Ordering::Acquire) < threshold && !*notified {
                notified = words.doorbell.1.wait(notified).unwrap();
            }
            *notified = false;
            drop(notified);
            sleeper.announce_wake(&words.page, 0);
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
