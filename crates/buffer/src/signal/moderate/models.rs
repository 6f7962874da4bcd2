//! Model, in all interleavings, of a writer that publishes and is then busy elsewhere for ever: its
//! reader is woken by the timer, or by T_b, or has observed the blocks.

use super::*;
use crate::atomic::AtomicU32;
use loom::sync::Arc as Shared;
use loom::thread;

/// A writer puts `blocks`, one by one, and never comes back; the reader waits for all of them.
fn comes(blocks: u64, every: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let (doorbell, head) = (Arc::new(Doorbell::new()), Shared::new(AtomicU64::new(0)));
        let (timer, done) = (Arc::new(Timer::default()), Shared::new(AtomicU32::new(0)));
        let threshold = Threshold { blocks: every, ns: 0 };
        let mut moderator = Moderator::new(&timer, threshold, doorbell.clone());
        let writer = {
            let (doorbell, head) = (doorbell.clone(), head.clone());
            thread::spawn(move || {
                for block in 1..=blocks {
                    head.store(block, Ordering::Release);
                    if moderator.published(1, doorbell.is_awaited(), || 1) {
                        doorbell.notify();
                    }
                }
                moderator
            })
        };
        let clock = {
            let (timer, done) = (timer.clone(), done.clone());
            thread::spawn(move || {
                loop {
                    let ticket = timer.doorbell.listen();
                    if done.load(Ordering::Acquire) == 1 {
                        return;
                    }
                    // Any deadline has passed, whenever it is looked at, and nothing lingers.
                    if timer.plan(&mut LINGER.clone(), DORMANT - 1).is_some() {
                        timer.doorbell.sleep(ticket);
                    }
                }
            })
        };
        // A lost event would be a model that never ends.
        doorbell.wait_until(0, || head.load(Ordering::Acquire) == blocks);
        done.store(1, Ordering::Release);
        timer.doorbell.notify();
        clock.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn k4_the_timer_sends_the_event_of_a_writer_that_is_busy_elsewhere() {
    comes(1, 32);
}

#[test]
fn k4_no_event_is_lost_between_the_counter_and_the_timer() {
    comes(2, 2);
}
