//! Models, in all interleavings, of a wake-up: a sleeper that falls asleep before the position was
//! reached is notified, or observes it.

use super::*;
use crate::atomic::AtomicU64;
use loom::sync::Arc;
use loom::sync::{Condvar, Mutex};
use loom::thread;

/// The words of both parties and the doorbell between them.
struct Pages {
    /// The page of the sleeper.
    page: Region,
    /// The position that the other party publishes.
    position: AtomicU64,
    doorbell: (Mutex<bool>, Condvar),
}

/// The other party comes to `last` in steps of one, and asks after each with this urgency, at last
/// with `end`; the sleeper waits until it is at `until`.
fn woken(last: u64, until: u64, each: Urgency, end: Urgency) {
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
                let mut ringer = Ringer::default();
                for position in 1..=last {
                    pages.position.store(position, Ordering::Release);
                    let urgency = if position == last { end } else { each };
                    if ringer.is_due(&pages.page, 0, position, urgency) {
                        *pages.doorbell.0.lock().unwrap() = true;
                        pages.doorbell.1.notify_one();
                    }
                }
            })
        };
        let mut sleeper = Sleeper::default();
        while pages.position.load(Ordering::Acquire) < until {
            sleeper.falls_asleep(&pages.page, 0, until);
            let mut rung = pages.doorbell.0.lock().unwrap();
            // Looked at again, as who sleeps must; a lost wake would be a model that never ends.
            while pages.position.load(Ordering::Acquire) < until && !*rung {
                rung = pages.doorbell.1.wait(rung).unwrap();
            }
            *rung = false;
            drop(rung);
            sleeper.wakes(&pages.page, 0);
        }
        other.join().unwrap();
    });
}

#[test]
fn who_waits_for_the_only_step_is_woken() {
    woken(1, 1, Urgency::More, Urgency::More);
}

#[test]
fn who_waits_for_the_second_step_is_not_lost_between() {
    woken(2, 2, Urgency::More, Urgency::More);
}

#[test]
fn who_waits_for_less_than_comes_is_woken_in_time() {
    woken(2, 1, Urgency::More, Urgency::More);
}

#[test]
fn who_falls_asleep_while_blocks_flow_is_woken_when_they_end() {
    woken(2, 1, Urgency::Flow, Urgency::Last);
    woken(2, 2, Urgency::Flow, Urgency::Last);
}
