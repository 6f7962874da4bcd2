//! Tests of event moderation with simulated time, and one test with threads and real time.

use super::*;

/// A counter of the wake-ups that a timer sends.
#[derive(Default)]
struct EventCounter(AtomicU64);

impl WakeReaders for EventCounter {
    fn wake_readers(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Creates a moderator whose timer is advanced by the test alone.
fn manual_moderator(
    blocks: u64,
    ns: u64,
) -> (Arc<WakeupTimer>, Arc<EventCounter>, WakeupModerator) {
    let (timer, sent) = (Arc::<WakeupTimer>::default(), Arc::<EventCounter>::default());
    timer.started.call_once(|| {});
    let moderator = WakeupModerator::new(&timer, WakeupThreshold { blocks, ns }, sent.clone());
    (timer, sent, moderator)
}

#[test]
fn k4_counter_sends_one_event_per_batch_and_resets() {
    let (timer, sent, mut moderator) = manual_moderator(32, 1000);
    let due: Vec<bool> = (0..96).map(|_| moderator.count_published(1, true, || 5)).collect();
    let events: Vec<usize> = (1..=96).filter(|n| due[n - 1]).collect();
    assert_eq!(events, [32, 64, 96]);
    assert_eq!(timer.fire_due_alarms(u64::MAX), None, "the batch event cancels the alarm");
    assert_eq!(moderator.wakeup_counts(), WakeupCounts { batch: 3, ..WakeupCounts::default() });
    assert_eq!(sent.0.load(Ordering::Relaxed), 0);
}

#[test]
fn k4_first_block_arms_timer_that_sends_the_event() {
    let (timer, sent, mut moderator) = manual_moderator(32, 1000);
    assert!(!moderator.count_published(3, true, || 100));
    assert!(!moderator.count_published(4, true, || unreachable!("armed by the first block only")));
    assert_eq!(timer.fire_due_alarms(1099), Some(1100), "not before T_t");
    assert_eq!(sent.0.load(Ordering::Relaxed), 0);
    assert_eq!(timer.fire_due_alarms(1100), None);
    assert_eq!(timer.fire_due_alarms(9999), None, "one event");
    assert_eq!(sent.0.load(Ordering::Relaxed), 1);
    // The counter restarts with the next block, and so does the alarm.
    assert!(!moderator.count_published(31, true, || 5000));
    assert_eq!(timer.fire_due_alarms(5000), Some(6000));
    assert!(moderator.count_published(1, true, || unreachable!()));
    assert_eq!(moderator.wakeup_counts(), WakeupCounts { batch: 1, timer: 1, idle: 0 });
}

#[test]
fn k4_idle_writer_sends_its_event_without_an_alarm() {
    let (timer, _, mut moderator) = manual_moderator(32, 1000);
    assert!(!moderator.count_last_published(3, false), "its reader is awake");
    assert!(moderator.count_last_published(3, true));
    assert_eq!(timer.fire_due_alarms(0), None, "no alarm");
    assert!(!moderator.count_last_published(0, true), "no event without blocks");
    assert!(!moderator.count_published(5, true, || 100));
    assert!(moderator.count_last_published(1, true));
    assert_eq!(timer.fire_due_alarms(0), None, "the alarm is cancelled");
    assert!(!moderator.must_notify_before_wait());
    assert_eq!(moderator.wakeup_counts(), WakeupCounts { idle: 2, ..WakeupCounts::default() });
}

#[test]
fn k4_threshold_is_a_power_of_two_up_to_half_a_ring() {
    let within =
        |blocks, entries| WakeupThreshold { blocks, ns: 1 }.limited_to_ring(entries).blocks;
    assert_eq!(WakeupThreshold::default(), WakeupThreshold { blocks: 32, ns: 1_000_000 });
    assert_eq!([within(32, 4096), within(33, 4096), within(5000, 4096)], [32, 32, 2048]);
    assert_eq!([within(0, 4096), within(32, 16), within(9, 1)], [1, 8, 1]);
}

#[test]
fn k6_smaller_downstream_buffer_lowers_the_threshold() {
    let (_, _, mut moderator) = manual_moderator(32, 1);
    moderator.limit_blocks(100);
    assert_eq!(moderator.wakeup_threshold().blocks, 32);
    moderator.limit_blocks(9);
    assert_eq!(moderator.wakeup_threshold().blocks, 8);
    assert!(!moderator.count_published(7, true, || 1) && moderator.count_published(1, true, || 1));
    moderator.limit_blocks(32);
    assert_eq!(moderator.wakeup_threshold().blocks, 8, "the smallest of all");
}

#[test]
fn k5_threshold_follows_the_rate_within_its_range() {
    let (timer, _, mut moderator) = manual_moderator(32, 1_000_000);
    moderator.set_adaptation_max(1000);
    moderator.limit_to_ring(4096);
    let mut now = 0;
    // Sends 16 blocks at a time, `ns` apart, until an event; returns T_b after it.
    let mut until_event = |moderator: &mut WakeupModerator, ns| {
        loop {
            now += ns;
            if moderator.count_published(16, true, || now) {
                return moderator.wakeup_threshold().blocks;
            }
        }
    };
    let fast: Vec<u64> = (0..6).map(|_| until_event(&mut moderator, 160)).collect();
    assert_eq!(fast, [64, 128, 256, 512, 512, 512], "512 blocks in 5 us, at most 512 of 1000");
    assert_eq!(until_event(&mut moderator, 700), 512, "22 us");
    let slow: Vec<u64> = (0..6).map(|_| until_event(&mut moderator, 100_000)).collect();
    assert_eq!(slow, [256, 128, 64, 32, 32, 32]);
    // A smaller ring or pool limits T_b.
    moderator.limit_to_ring(128);
    let fast: Vec<u64> = (0..3).map(|_| until_event(&mut moderator, 160)).collect();
    assert_eq!(fast, [64; 3], "half of the ring");
    moderator.limit_to_ring(4096);
    moderator.limit_blocks(40);
    assert_eq!(until_event(&mut moderator, 160), 32, "a pool holds few blocks");
    // If the timer must send the event, blocks arrive slowly.
    let (timer_moderator, deadline) = (&mut moderator, now + 2_000_000);
    assert!(!timer_moderator.count_published(1, true, || 1_000_000_000));
    assert_eq!(timer.fire_due_alarms(deadline.max(2_000_000_000)), None);
    assert!(!timer_moderator.count_published(1, true, || 1_000_000_000));
    assert_eq!(timer_moderator.wakeup_threshold().blocks, 32);
}

#[test]
fn awake_reader_gets_no_event() {
    let (timer, sent, mut moderator) = manual_moderator(4, 1000);
    for _ in 0..100 {
        assert!(!moderator.count_published(3, false, || unreachable!("no alarm")));
    }
    assert!(!moderator.must_notify_before_wait());
    assert!(
        !moderator.count_published(3, true, || 1) && moderator.must_notify_before_wait(),
        "before the writer sleeps"
    );
    assert!(!moderator.must_notify_before_wait(), "once");
    assert_eq!(timer.fire_due_alarms(u64::MAX), None);
    assert_eq!((moderator.wakeup_counts().total(), sent.0.load(Ordering::Relaxed)), (1, 0));
}

#[test]
fn dropped_writer_has_no_alarm() {
    let (timer, _, mut moderator) = manual_moderator(4, 1000);
    moderator.count_published(1, true, || 1);
    assert_eq!(timer.fire_due_alarms(1), Some(1001));
    drop(moderator);
    assert_eq!((timer.fire_due_alarms(1), timer.alarms().len()), (None, 0));
}

#[test]
#[cfg_attr(miri, ignore = "takes real time")]
fn k4_sleeper_is_woken_within_bound_by_timer() {
    let doorbell = Arc::new(Doorbell::new());
    let threshold = WakeupThreshold { blocks: 32, ns: 2_000_000 };
    let mut moderator =
        WakeupModerator::new(WakeupTimer::for_process(), threshold, doorbell.clone());
    let (head, arrivals) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let mut slept = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                doorbell.wait_until(0, || head.load(Ordering::Acquire) >= n);
                arrivals.lock().unwrap().push(sys::clock::monotonic_ns());
                if head.load(Ordering::Acquire) == u64::MAX {
                    break;
                }
            }
        });
        // A reader about to sleep checks once more and may then not need an event. Repeats until
        // enough waits were long, and some were ended soon after T_t, however busy the machine is.
        let soon = |slept: &[u64]| slept.iter().filter(|wait| **wait < 2 * threshold.ns).count();
        for n in 1..=2000 {
            while !doorbell.has_unnotified_sleeper() {
                std::thread::yield_now();
            }
            let put = sys::clock::monotonic_ns();
            head.store(n, Ordering::Release);
            assert!(!moderator.count_published(
                1,
                doorbell.has_unnotified_sleeper(),
                sys::clock::monotonic_ns
            ));
            // Busy elsewhere: nothing but the timer wakes the reader.
            while moderator.alarm.deadline.load(Ordering::Relaxed) != NO_DEADLINE {
                std::hint::spin_loop();
            }
            let found = || arrivals.lock().unwrap().get(n as usize - 1).copied();
            let at = std::iter::repeat_with(found).inspect(|_| std::thread::yield_now());
            let wait = at.flatten().next().unwrap() - put;
            slept.extend(Some(wait).filter(|wait| *wait >= threshold.ns));
            if slept.len() >= 10 && soon(&slept) >= 2 {
                break;
            }
        }
        head.store(u64::MAX, Ordering::Release);
        doorbell.notify();
    });
    let WakeupCounts { batch, timer, idle } = moderator.wakeup_counts();
    assert!((batch, idle) == (0, 0) && timer >= 10, "{timer}");
    slept.sort_unstable();
    assert!(slept.len() >= 10, "woken at T_t, not before: {slept:?}");
    assert!(slept[1] < 2 * threshold.ns, "and soon: {slept:?}");
}
