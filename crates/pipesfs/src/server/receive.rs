//! The threads that receive requests, and the choice of the thread that executes and answers each
//! request.

use super::{ENODEV, Executor, REQUEST_BUFFER_BYTES, Server, lock};
use crate::protocol::{Operation, Reply, Request, errno};
use crate::snapshot::SNAPSHOT_LIFETIME;
use crate::threads::RequestThreadPool;
use std::collections::HashSet;
use std::io::Read as _;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Server {
    /// Receives requests until the file system is unmounted. `asks` is the thread pool for requests
    /// that must query paths first; `edits` is the thread pool for changes to the tree.
    pub(super) fn receive(
        &self,
        (asks, edits): &(Mutex<RequestThreadPool>, Mutex<RequestThreadPool>),
    ) {
        let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
        loop {
            let mut device = &*self.device;
            let length = match device.read(&mut buffer) {
                Ok(length) => length,
                // ENODEV means that the file system is unmounted. Other errors, such as ENOENT,
                // concern a single request, for example one that was aborted.
                Err(error) if error.raw_os_error() == Some(ENODEV) => break,
                Err(_) => continue,
            };
            let Some(request) = Request::read(buffer.get(..length).unwrap_or_default()) else {
                continue;
            };
            if request.operation == Operation::Destroy {
                break;
            }
            if matches!(request.operation, Operation::Edit(_)) || self.is_argument_write(&request) {
                self.execute_change(request, edits);
                continue;
            }
            match self.snapshot_age_max(&request) {
                Some(age) if !self.snapshots.is_current(age) => {
                    self.queue_request(request, asks, &self.query_requests);
                }
                _ if self.needs_update(&request) || self.needs_query(&request) => {
                    self.queue_request(request, asks, &self.query_requests);
                }
                _ => self.execute(&request, Executor::Receiver),
            }
        }
        // Pairs with the Acquire in `has_ended`.
        self.over.store(true, Ordering::Release);
        self.ended.notify();
    }

    /// Executes a change in this thread if another thread receives requests in the meantime.
    /// Otherwise, passes the change to the threads `edits`.
    fn execute_change(&self, request: Request, edits: &Mutex<RequestThreadPool>) {
        let leave = |receiving: usize| receiving.checked_sub(1).filter(|rest| *rest > 0);
        // Relaxed suffices, because the counter guards no other memory.
        if self.receiving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave).is_err() {
            return self.queue_request(request, edits, &self.change_requests);
        }
        lock(&self.change_requests).insert(request.header.unique);
        self.execute(&request, Executor::EditingReceiver);
    }

    /// Passes a request to threads that may block, and adds its number to `executing`. Replies
    /// EAGAIN if no thread can be started.
    fn queue_request(
        &self,
        request: Request,
        to: &Mutex<RequestThreadPool>,
        executing: &Mutex<HashSet<u64>>,
    ) {
        let unique = request.header.unique;
        lock(executing).insert(unique);
        let passed = lock(to).submit(request);
        if passed.is_err() {
            lock(executing).remove(&unique);
            Reply::new(&self.device, unique).error(errno::EAGAIN);
        }
    }

    /// Executes a request. If the request needs a newer snapshot than the latest one, queries the
    /// paths first. Runs in a thread that may block.
    pub(super) fn query_and_execute(&self, request: &Request) {
        if let Some(age) = self.snapshot_age_max(request) {
            self.snapshots.refresh(age);
        } else if self.needs_update(request) {
            self.snapshots.refresh(Duration::MAX);
        }
        self.execute(request, Executor::QueryThread);
    }

    /// Returns the maximum age of a snapshot from which a request can be answered, or `None` if the
    /// request needs no snapshot.
    fn snapshot_age_max(&self, request: &Request) -> Option<Duration> {
        match request.operation {
            Operation::Lookup(_) | Operation::OpenDirectory | Operation::Open(_) => {
                Some(SNAPSHOT_LIFETIME)
            }
            _ => None,
        }
    }

    /// Returns the reply object for a request, or `None` if the request was interrupted and has
    /// already been answered.
    pub(super) fn reply(&self, request: &Request, executor: Executor) -> Option<Reply<'_>> {
        let unique = request.header.unique;
        match executor {
            Executor::Receiver => {}
            Executor::QueryThread if lock(&self.query_requests).remove(&unique) => {}
            Executor::QueryThread => return None,
            Executor::EditThread => drop(lock(&self.change_requests).remove(&unique)),
            Executor::EditingReceiver => {
                lock(&self.change_requests).remove(&unique);
                // The thread counts as receiving before it replies, because the caller may send the
                // next change at once.
                self.receiving.fetch_add(1, Ordering::Relaxed);
            }
        }
        Some(Reply::new(&self.device, unique))
    }
}
