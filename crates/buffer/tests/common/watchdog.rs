//! Limits on the time that tests wait.
//!
//! A call without its own time limit, such as a write to a full ring, is wrapped in
//! [`with_watchdog`], whose watchdog thread observes all waits in progress. When one takes too
//! long, it reports the condition and source location of every wait in progress, and ends the test
//! program.

use std::panic::Location;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, Once, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Returns the limit for any wait: `STREAMLINE_TEST_LIMIT` seconds, or 100 seconds, which is enough
/// on a busy machine.
pub(crate) fn wait_limit() -> Duration {
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    let configured = || std::env::var("STREAMLINE_TEST_LIMIT").ok()?.parse().ok();
    *LIMIT.get_or_init(|| Duration::from_secs(configured().unwrap_or(100)))
}

/// A wait of a test that is in progress.
struct Wait {
    number: u64,
    what: String,
    thread: String,
    at: &'static Location<'static>,
    since: Instant,
}

static REGISTERED_WAITS: Mutex<(u64, Vec<Wait>)> = Mutex::new((0, Vec::new()));

/// A registration of a wait in progress, removed when dropped.
struct WaitGuard(u64);

impl Drop for WaitGuard {
    fn drop(&mut self) {
        let mut waits = REGISTERED_WAITS.lock().unwrap_or_else(PoisonError::into_inner);
        waits.1.retain(|wait| wait.number != self.0);
    }
}

/// Runs a closure that may block. A watchdog ends the test program if the closure takes too long.
#[track_caller]
pub(crate) fn with_watchdog<T>(what: &str, wait: impl FnOnce() -> T) -> T {
    let _over = register_wait(what, Location::caller());
    wait()
}

fn register_wait(what: &str, at: &'static Location<'static>) -> WaitGuard {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| drop(std::thread::spawn(watch_waits)));
    let mut waits = REGISTERED_WAITS.lock().unwrap_or_else(PoisonError::into_inner);
    waits.0 += 1;
    let number = waits.0;
    let thread = std::thread::current().name().unwrap_or("a thread of a test").to_owned();
    waits.1.push(Wait { number, what: what.to_owned(), thread, at, since: Instant::now() });
    WaitGuard(number)
}

fn watch_waits() {
    loop {
        std::thread::park_timeout(Duration::from_secs(1));
        let waits = REGISTERED_WAITS.lock().unwrap_or_else(PoisonError::into_inner);
        if waits.1.iter().all(|wait| wait.since.elapsed() < wait_limit()) {
            continue;
        }
        for Wait { what, thread, at, since, .. } in &waits.1 {
            let since = since.elapsed();
            eprintln!("{thread}: waits at {at} for {since:?}: {what}");
        }
        eprintln!("longer than {:?}: the test hangs", wait_limit());
        std::process::exit(101);
    }
}

/// Waits until another process or thread makes a condition true.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < wait_limit(), "in vain: {what}");
        std::thread::yield_now();
    }
}

/// A thread that runs concurrently with the test.
pub(crate) struct TestThread<T> {
    thread: JoinHandle<()>,
    result: Receiver<T>,
}

/// Runs a closure in a thread concurrently with the test.
pub(crate) fn spawn_test_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> TestThread<T> {
    let (done, result) = mpsc::sync_channel(1);
    let name = std::thread::current().name().map(str::to_owned);
    let builder = std::thread::Builder::new().name(name.unwrap_or_default());
    let thread = builder.spawn(move || drop(done.send(work()))).unwrap();
    TestThread { thread, result }
}

impl<T> TestThread<T> {
    /// Waits for the result of the thread.
    #[track_caller]
    pub(crate) fn join(self) -> T {
        match self.result.recv_timeout(wait_limit()) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("the thread beside the test hangs"),
            Err(mpsc::RecvTimeoutError::Disconnected) => match self.thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => unreachable!("it sends before it ends"),
            },
        }
    }
}
