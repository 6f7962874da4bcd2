//! A thread pool for requests that may block. The pool grows up to a maximum number of threads.
//!
//! A request wakes exactly one thread: the thread that became idle last, whose memory the processor
//! is most likely to have in its cache.

use crate::protocol::Request;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of concurrent edits; further edits are queued. Each edit ends within the time
/// limit of the mount.
pub(crate) const CONCURRENT_EDITS_MAX: usize = 64;
/// Name of the threads that execute edits.
pub(crate) const EDIT_THREAD_NAME: &str = "pipesfs edits";

/// A thread pool. Its threads exit, after the queued requests, when the pool is dropped.
pub(crate) struct RequestThreadPool<R = Request> {
    name: &'static str,
    threads_max: usize,
    started: usize,
    shared: Arc<SharedPoolState<R>>,
}

struct SharedPoolState<R> {
    queue: Mutex<RequestQueue<R>>,
    execute: Box<dyn Fn(&R) + Send + Sync>,
}

struct RequestQueue<R> {
    requests: VecDeque<R>,
    /// Idle threads, in the order in which they became idle.
    idle: Vec<Arc<Condvar>>,
    /// True once the pool has been dropped. No requests are added to the queue after that.
    is_closed: bool,
}

impl<R: Send + 'static> RequestThreadPool<R> {
    /// Creates a pool of up to `threads_max` threads that pass requests to `execute`. No thread is
    /// started before the first request.
    pub(crate) fn new(
        (name, threads_max): (&'static str, usize),
        execute: impl Fn(&R) + Send + Sync + 'static,
    ) -> Self {
        let queue = RequestQueue { requests: VecDeque::new(), idle: Vec::new(), is_closed: false };
        let shared = SharedPoolState { queue: Mutex::new(queue), execute: Box::new(execute) };
        Self { name, threads_max, started: 0, shared: Arc::new(shared) }
    }

    /// Passes a request to an idle thread, or to a new one. If the maximum number of threads is
    /// running, queues the request. Does not block. Fails if no thread is running and none can be
    /// started.
    pub(crate) fn submit(&mut self, request: R) -> std::io::Result<()> {
        let mut queue = self.shared.lock();
        queue.requests.push_back(request);
        if let Some(thread) = queue.idle.pop() {
            drop(queue);
            thread.notify_one();
            return Ok(());
        }
        drop(queue);
        if self.started < self.threads_max
            && let Err(error) = self.start()
            && self.started == 0
        {
            self.shared.lock().requests.clear();
            return Err(error);
        }
        Ok(())
    }

    fn start(&mut self) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let body = move || {
            let wake = Arc::new(Condvar::new());
            while let Some(request) = shared.next_request(&wake) {
                (shared.execute)(&request);
            }
        };
        std::thread::Builder::new().name(self.name.to_owned()).spawn(body)?;
        self.started += 1;
        Ok(())
    }
}

impl<R> Drop for RequestThreadPool<R> {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.is_closed = true;
        queue.idle.drain(..).for_each(|thread| thread.notify_one());
    }
}

impl<R> SharedPoolState<R> {
    /// Removes and returns the next request. Blocks while the queue is empty. Returns `None` if the
    /// queue is empty and closed.
    fn next_request(&self, wake: &Arc<Condvar>) -> Option<R> {
        let mut queue = self.lock();
        loop {
            if let Some(request) = queue.requests.pop_front() {
                return Some(request);
            }
            if queue.is_closed {
                return None;
            }
            queue.idle.push(Arc::clone(wake));
            // The sender removes a thread from the list before it wakes the thread.
            let is_idle =
                |queue: &mut RequestQueue<R>| queue.idle.iter().any(|idle| Arc::ptr_eq(idle, wake));
            queue = wake.wait_while(queue, is_idle).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RequestQueue<R>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn b4_each_request_is_executed_once_by_a_limited_number_of_threads() {
        let (done, executed) = mpsc::channel();
        let executing = move |request: &u64| done.send(*request).unwrap();
        let mut threads = RequestThreadPool::new(("test", 3), executing);
        for round in 0..100 {
            (0..8).for_each(|at| threads.submit(round * 8 + at).unwrap());
            let mut got: Vec<u64> = executed.iter().take(8).collect();
            got.sort_unstable();
            assert_eq!(got, Vec::from_iter(round * 8..round * 8 + 8));
        }
        assert!(threads.started <= 3);
        drop(threads);
        assert_eq!(executed.iter().count(), 0, "the threads end");
    }

    #[test]
    fn b4_blocked_threads_delay_no_request_below_the_maximum() {
        let (done, executed) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let executing = move |request: &u64| {
            if *request == 0 {
                let _ = released.lock().unwrap().recv();
            }
            done.send(*request).unwrap();
        };
        let mut threads = RequestThreadPool::new(("test", 2), executing);
        (0..20).for_each(|request| threads.submit(request).unwrap());
        assert_eq!(executed.iter().take(19).collect::<Vec<_>>(), Vec::from_iter(1..20));
        release.send(()).unwrap();
        assert_eq!(executed.recv(), Ok(0));
    }
}
