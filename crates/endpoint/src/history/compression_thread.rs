//! The thread that compresses the chunks of a history, so that the thread that stores frames never
//! waits for compression.
//!
//! The thread has the lowest priority among the threads of its process and is bound to no
//! processor. On a machine without idle processors, the thread compresses little and the history is
//! shorter, but the rate of the path does not decrease.

use buffer::compression;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;

/// The compression thread of a history. The thread starts with the first job, and exits when this
/// value is dropped.
#[derive(Debug, Default)]
pub(super) struct CompressionThread {
    worker: Option<Worker>,
    /// True if the kernel has refused to create the compression thread.
    failed: bool,
}

#[derive(Debug)]
struct Worker {
    jobs: SyncSender<QueuedJob>,
    /// Reference counter of the unfinished jobs. Every job has a clone, which is dropped when the
    /// thread has finished the job, even if the chunk of the job was evicted. The number of
    /// unfinished jobs is the reference count minus 1.
    unfinished: Arc<()>,
    thread: JoinHandle<()>,
}

/// A job in the queue of the compression thread. The job is canceled if the history evicts the
/// chunk of the job.
#[derive(Debug)]
struct QueuedJob {
    job: Weak<CompressionJob>,
    /// Clone of [`Worker::unfinished`], which is dropped when the thread has finished the job.
    _unfinished: Arc<()>,
}

/// Bytes to be compressed, and the result.
#[derive(Debug)]
pub(super) struct CompressionJob {
    plain: Vec<u8>,
    /// The compressed bytes, which the compression thread sets when it finishes the job. The inner
    /// value is `None` if the bytes did not shrink.
    packed: OnceLock<Option<Box<[u8]>>>,
}

impl CompressionJob {
    /// Returns true if the thread has finished the job.
    pub(super) fn is_done(&self) -> bool {
        self.packed.get().is_some()
    }

    /// Returns the bytes of the job before compression.
    pub(super) fn uncompressed_bytes(&self) -> &[u8] {
        &self.plain
    }

    /// Takes the uncompressed and the compressed bytes out of the job. The compressed bytes are
    /// `None` if the bytes did not shrink, or if the thread has not finished the job.
    pub(super) fn take_bytes(&mut self) -> (Vec<u8>, Option<Box<[u8]>>) {
        (std::mem::take(&mut self.plain), self.packed.take().flatten())
    }
}

impl CompressionThread {
    /// Maximum number of unfinished jobs of the compression thread, queued or running.
    pub(super) const JOBS_MAX: usize = 4;

    /// Returns true if the thread has no room for another job, because it has
    /// [`CompressionThread::JOBS_MAX`] unfinished ones.
    pub(super) fn is_full(&self) -> bool {
        let unfinished = |worker: &Worker| Arc::strong_count(&worker.unfinished) - 1;
        self.worker.as_ref().is_some_and(|worker| unfinished(worker) >= Self::JOBS_MAX)
    }

    /// Hands bytes to the compression thread as a job, and returns the job. Starts the thread if
    /// necessary. The queue of the thread must not be full. If there is no thread, returns the
    /// bytes as the error. Never waits.
    pub(super) fn send(&mut self, bytes: Vec<u8>) -> Result<Arc<CompressionJob>, Vec<u8>> {
        if self.worker.is_none() && !self.failed {
            self.worker = Worker::start();
            self.failed = self.worker.is_none();
        }
        let Some(worker) = &self.worker else { return Err(bytes) };
        let job = Arc::new(CompressionJob { plain: bytes, packed: OnceLock::new() });
        let _unfinished = Arc::clone(&worker.unfinished);
        match worker.jobs.try_send(QueuedJob { job: Arc::downgrade(&job), _unfinished }) {
            Ok(()) => Ok(job),
            // There is no other reference to the job.
            Err(_) => Err(Arc::into_inner(job).map_or_else(Vec::new, |job| job.plain)),
        }
    }
}

#[cfg(test)]
impl CompressionThread {
    /// Returns a compression thread that begins its first job when the returned sender is dropped.
    pub(super) fn new_paused() -> (Self, std::sync::mpsc::Sender<()>) {
        let (jobs, queue) = sync_channel(Self::JOBS_MAX);
        let (begin, begins) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let _ = begins.recv();
            run(&queue);
        });
        let worker = Some(Worker { jobs, unfinished: Arc::default(), thread });
        (Self { worker, failed: false }, begin)
    }
}

impl Worker {
    fn start() -> Option<Self> {
        let (jobs, queue) = sync_channel(CompressionThread::JOBS_MAX);
        let thread = std::thread::Builder::new().name("history".to_owned());
        let thread = thread.spawn(move || run(&queue)).ok()?;
        Some(Self { jobs, unfinished: Arc::default(), thread })
    }
}

impl Drop for CompressionThread {
    fn drop(&mut self) {
        let Some(Worker { jobs, thread, .. }) = self.worker.take() else { return };
        // The thread ends after the job that it has begun. The remaining jobs have been dropped
        // with their chunks.
        drop(jobs);
        // A panic in the thread has already been printed.
        let _ = thread.join();
    }
}

fn run(queue: &Receiver<QueuedJob>) {
    sys::task::set_background_priority();
    while let Ok(queued) = queue.recv() {
        if let Some(job) = queued.job.upgrade() {
            let _ = job.packed.set(compression::compress(&job.plain));
        }
    }
}
