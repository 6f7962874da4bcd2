//! Loom models of a writer that publishes blocks and is then busy elsewhere, in all interleavings
//! with a bounded number of preemptions. The reader is woken by the timer or by the writer after
//! T_b blocks, or it sees the blocks itself.

use super::*;
use crate::atomic::AtomicU32;
use loom::sync::Arc as Shared;
use loom::thread;

/// Models a writer that puts `blocks` blocks one by one, wakes the reader after each `every` blocks
/// (T_b), and then does nothing more. The reader waits for all of the blocks.
fn write_and_stay_busy(blocks: u64, every: u64) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(move || {
        let (doorbell, head) = (Arc::new(Doorbell::new()), Shared::new(AtomicU64::new(0)));
        let (timer, done) = (Arc::new(WakeupTimer::default()), Shared::new(AtomicU32::new(0)));
        let threshold = WakeupThreshold { blocks: every, ns: 0 };
        let mut moderator = WakeupModerator::new(&timer, threshold, doorbell.clone());
        let writer = {
            let (doorbell, head) = (doorbell.clone(), head.clone());
            thread::spawn(move || {
                for block in 1..=blocks {
                    head.store(block, Ordering::Release);
                    if moderator.count_published(1, doorbell.has_unnotified_sleeper(), || 1) {
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
                    let ticket = timer.doorbell.prepare_to_sleep();
                    if done.load(Ordering::Acquire) == 1 {
                        return;
                    }
                    // Any deadline has passed at any check, and the timer does not linger.
                    if timer
                        .fire_and_schedule(&mut LINGER_CHECKS.clone(), NO_NEXT_CHECK - 1)
                        .is_some()
                    {
                        timer.doorbell.sleep(ticket);
                    }
                }
            })
        };
        // If an event were lost, this wait would never return.
        doorbell.wait_until(0, || head.load(Ordering::Acquire) == blocks);
        done.store(1, Ordering::Release);
        timer.doorbell.notify();
        clock.join().unwrap();
        writer.join().unwrap();
    });
}

#[test]
fn k4_timer_sends_event_of_busy_writer() {
    write_and_stay_busy(1, 32);
}

#[test]
fn k4_no_event_is_lost_between_counter_and_timer() {
    write_and_stay_busy(2, 2);
}
