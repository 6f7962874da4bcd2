//! A sentinel for the state of the machine: the round-trip time of a cache line between two cores.
//! On shared machines, this time changes within minutes, and the results of two-core measurements
//! change with it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// A measurement of the round-trip time of a cache line.
pub(crate) struct CacheRoundTrip;

const ROUND_TRIP_COUNT: u64 = 20_000;

impl CacheRoundTrip {
    /// Measures the round-trip time between the first two processors in ns. Returns 0 on a machine
    /// with one processor.
    pub(crate) fn measure() -> f64 {
        // Number of processors before this thread was pinned to one of them.
        static PROCESSOR_COUNT: OnceLock<usize> = OnceLock::new();
        if *PROCESSOR_COUNT.get_or_init(|| sys::machine::Machine::detect().processor_count) < 2 {
            return 0.0;
        }
        let line = Arc::new(AtomicU64::new(0));
        let other = Arc::clone(&line);
        // Separate threads leave the measuring thread's affinity unchanged.
        let answering = std::thread::spawn(move || answer_round_trips(&other));
        let measuring = std::thread::spawn(move || measure_round_trips(&line));
        let best = measuring.join().unwrap_or(0.0);
        if answering.join().is_err() { 0.0 } else { best }
    }
}

fn answer_round_trips(line: &AtomicU64) {
    // If pinning is refused, the scheduler chooses a processor, and the result is less accurate.
    let _ = sys::process::pin_to_processor(1);
    let mut expected = 1;
    while expected < ROUND_TRIP_COUNT * 2 {
        // SYNC POINT: call; pairs with the Release in `measure_round_trips`.
        if line.load(Ordering::Acquire) == expected {
            // SYNC POINT: answer; pairs with the Acquire in `measure_round_trips`.
            line.store(expected + 1, Ordering::Release);
            expected += 2;
        } else {
            std::hint::spin_loop();
        }
    }
}

/// Sends the cache line back and forth. Returns the smallest of several means over a thousand round
/// trips, in ns.
fn measure_round_trips(line: &AtomicU64) -> f64 {
    let _ = sys::process::pin_to_processor(0);
    let mut best = f64::INFINITY;
    let mut value = 0;
    for _ in 0..ROUND_TRIP_COUNT / 1000 {
        let begin = sys::clock::monotonic_ns();
        for _ in 0..1000 {
            line.store(value + 1, Ordering::Release);
            while line.load(Ordering::Acquire) != value + 2 {
                std::hint::spin_loop();
            }
            value += 2;
        }
        best = best.min((sys::clock::monotonic_ns() - begin) as f64 / 1000.0);
    }
    best
}
