//! Costs of moving blocks: copies, rings between threads, and wake-ups of threads.

use super::calibration::{Calibration, Result, min_call_ns};
use super::user_filters::measure_node_cost;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Total length of the copied blocks in bytes, chosen between the sizes of an L1 and an L2 cache.
const COPY_BYTES: usize = 256 << 10;
const KILOBYTE: usize = 1 << 10;
/// Number of blocks that cross a ring in one measurement.
const RING_BLOCKS: u32 = 200_000;

pub(super) fn measure(calibration: &mut Calibration) {
    let (mut from, mut to) = (vec![1_u8; COPY_BYTES], vec![0_u8; COPY_BYTES]);
    let copies = u32::try_from(COPY_BYTES / KILOBYTE).unwrap_or(1);
    let copy = min_call_ns(20, copies, |_| {
        for (from, to) in from.chunks(KILOBYTE).zip(to.chunks_mut(KILOBYTE)) {
            to.copy_from_slice(black_box(from));
        }
        black_box(&mut to);
    });
    calibration.record_cost("copy", Ok(copy));
    let look = min_call_ns(20, copies, |_| {
        let sums = from
            .chunks(KILOBYTE)
            .map(|kilobyte| kilobyte.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        black_box(sums.sum::<u64>());
        black_box(&mut from);
    });
    calibration.record_cost("kilobyte", Ok(look));
    calibration.record_cost("ring", measure_ring_transfer());
    calibration.record_cost("wake", measure_wakeup());
    let call = measure_node_cost(&format!("generate count={RING_BLOCKS} | discard"), "discard", 3);
    calibration.record_cost("call", call.map(|call| call.ns));
}

/// Measures the time, in ns, to pass one entry through a ring: the difference between a request
/// with its sink in another space and the same request in a single space. Both spaces run in the
/// calling thread, which never sleeps.
fn measure_ring_transfer() -> Result<f64> {
    let near = super::user_filters::measure_request(
        &format!("generate count={RING_BLOCKS} | discard"),
        3,
    )?;
    let far = super::user_filters::measure_request(
        &format!("generate count={RING_BLOCKS} | discard@thread1"),
        3,
    )?;
    Ok((far - near).max(1.0))
}

/// Measures the time, in ns, of the call that wakes a sleeping thread. Returns the median over all
/// wake-ups.
fn measure_wakeup() -> Result<f64> {
    const WAKEUP_COUNT: u32 = 200;
    /// Minimum sleep before a wake-up in ns, long enough for the processor to halt.
    const SLEEP_NS_MIN: u64 = 100_000;
    let woken = Arc::new(AtomicU32::new(0));
    let wake_count = Arc::clone(&woken);
    let sleeper = std::thread::Builder::new().spawn(move || {
        while wake_count.load(Ordering::Acquire) < WAKEUP_COUNT {
            std::thread::park();
            wake_count.fetch_add(1, Ordering::Release);
        }
    });
    let sleeper = sleeper?;
    let mut costs = Vec::new();
    while woken.load(Ordering::Acquire) < WAKEUP_COUNT && !sleeper.is_finished() {
        let begin = sys::clock::monotonic_ns();
        while sys::clock::monotonic_ns() - begin < SLEEP_NS_MIN {
            std::hint::spin_loop();
        }
        let begin = sys::clock::monotonic_ns();
        sleeper.thread().unpark();
        costs.push(sys::clock::monotonic_ns() - begin);
    }
    sleeper.thread().unpark();
    sleeper.join().map_err(|_| "the sleeper failed")?;
    costs.sort_unstable();
    costs.get(costs.len() / 2).map(|ns| *ns as f64).ok_or_else(|| "nobody slept".into())
}
