//! The state of the machine: how long a cache line takes to another core and back. On shared machines it
//! changes within minutes, and figures over two cores with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The round trip of a cache line.
pub(crate) struct Sentinel;

const TRIPS: u64 = 20_000;

impl Sentinel {
    /// Takes the round trip, in ns; 0 where there is only one processor.
    pub(crate) fn take() -> f64 {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return 0.0;
        }
        let line = Arc::new(AtomicU64::new(0));
        let other = Arc::clone(&line);
        let echo = std::thread::spawn(move || {
            let mut expected = 1;
            while expected < TRIPS * 2 {
                // SYNC POINT: ping; pairs with the Release below.
                if other.load(Ordering::Acquire) == expected {
                    // SYNC POINT: pong; pairs with the Acquire below.
                    other.store(expected + 1, Ordering::Release);
                    expected += 2;
                } else {
                    std::hint::spin_loop();
                }
            }
        });
        let mut best = f64::INFINITY;
        let mut value = 0;
        for _ in 0..TRIPS / 1000 {
            let begin = sys::clock::monotonic();
            for _ in 0..1000 {
                line.store(value + 1, Ordering::Release);
                while line.load(Ordering::Acquire) != value + 2 {
                    std::hint::spin_loop();
                }
                value += 2;
            }
            best = best.min((sys::clock::monotonic() - begin) as f64 / 1000.0);
        }
        let _ = echo.join();
        best
    }
}
