//! The threads that execute edits of the tree. There are as many threads as concurrent edits.

use crate::protocol::Request;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Maximum number of concurrent edits; further edits wait. Each edit ends within the time limit of
/// the mount.
const THREADS_MAX: usize = 64;
/// Name of these threads.
pub(crate) const NAME: &str = "pipesfs edits";

/// A function that executes a request.
type Execute = Arc<dyn Fn(&Request) + Send + Sync>;

/// The threads of a mount. They end when this value is dropped.
pub(crate) struct EditThreads {
    execute: Execute,
    sender: mpsc::Sender<Request>,
    requests: Arc<Mutex<mpsc::Receiver<Request>>>,
    /// Number of idle threads minus the number of waiting requests.
    idle: Arc<AtomicIsize>,
    started: usize,
}

impl EditThreads {
    /// Creates a pool of threads that pass requests to `execute`. No thread is started before the
    /// first request.
    pub(crate) fn new(execute: impl Fn(&Request) + Send + Sync + 'static) -> Self {
        let (sender, requests) = mpsc::channel();
        let (requests, idle) = (Arc::new(Mutex::new(requests)), Arc::default());
        Self { execute: Arc::new(execute), sender, requests, idle, started: 0 }
    }

    /// Passes a request to an idle thread, or to a new one. Does not block. Fails if no thread can
    /// be started.
    pub(crate) fn pass(&mut self, request: Request) -> std::io::Result<()> {
        // The channel orders the requests; the number only tells if another thread is needed.
        let idle = self.idle.fetch_sub(1, Ordering::Relaxed);
        if idle <= 0
            && self.started < THREADS_MAX
            && let Err(error) = self.start()
            && self.started == 0
        {
            self.idle.fetch_add(1, Ordering::Relaxed);
            return Err(error);
        }
        // The receiver lives as long as this value.
        let _ = self.sender.send(request);
        Ok(())
    }

    fn start(&mut self) -> std::io::Result<()> {
        let (execute, requests) = (Arc::clone(&self.execute), Arc::clone(&self.requests));
        let idle = Arc::clone(&self.idle);
        let next = move || requests.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let body = move || {
            while let Ok(request) = next() {
                execute(&request);
                idle.fetch_add(1, Ordering::Relaxed);
            }
        };
        std::thread::Builder::new().name(NAME.to_owned()).spawn(body)?;
        // The new thread executes the request for which it was started.
        self.idle.fetch_add(1, Ordering::Relaxed);
        self.started += 1;
        Ok(())
    }
}
