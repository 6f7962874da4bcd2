//! The operations of the file system, and the threads that execute them.
//!
//! Two threads receive requests. A receiving thread answers a request itself if the latest snapshot
//! suffices. A request that must query a path first is passed to one of several other threads. If
//! the caller receives a signal in the meantime, the server replies EINTR immediately and drops the
//! later result. Reads of streams wait in [`Streams`]. A change to the tree cannot be interrupted,
//! because the caller would not learn whether the change was made; it has a time limit instead. A
//! receiving thread makes a change itself if the other receiving thread is free. Otherwise, it
//! passes the change to a separate thread, so that at least one thread always receives requests.

mod attributes;
mod edits;
mod handle;
mod objects;
mod open;
mod receive;
mod writing;

use self::handle::Handle;
use crate::edits::{EDIT_TIMEOUT_DEFAULT, MountPermissions};
use crate::entries::ObjectKey;
use crate::failures::LatestFailures;
use crate::inodes::InodeTable;
use crate::mount::{MountOptions, OtherUsersPaths};
use crate::protocol::{Operation, Reply, Request, errno, init_reply, statfs_reply};
use crate::snapshot::SnapshotCache;
use crate::streams::Streams;
use crate::threads::{CONCURRENT_EDITS_MAX, EDIT_THREAD_NAME, RequestThreadPool};
use crate::totals::TotalsByDirectory;
use crate::tree::DirectoryId;
use crate::writers::Writers;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use sys::eventfd::EventFd;

/// Maximum length in bytes of the data in one FUSE write request of the kernel.
const WRITE_BYTES_MAX: u32 = 128 << 10;
/// Length of the buffer for a request, in bytes.
const REQUEST_BUFFER_BYTES: usize = WRITE_BYTES_MAX as usize + 4096;
/// Number of threads that receive requests.
const RECEIVING_THREADS: usize = 2;
/// Maximum number of threads for requests that query paths.
const QUERY_THREADS_MAX: usize = 4;
/// Name of the threads that query paths.
const QUERY_THREAD_NAME: &str = "pipesfs queries";

/// The server of one mount.
#[derive(Debug)]
pub struct Server {
    device: Arc<File>,
    snapshots: SnapshotCache,
    inodes: Mutex<InodeTable>,
    streams: Arc<Streams>,
    writers: Arc<Writers>,
    totals: TotalsByDirectory,
    handles: Mutex<HashMap<u64, Handle>>,
    next_handle: AtomicU64,
    /// Number of threads that receive requests, not counting those that are executing a change.
    receiving: AtomicUsize,
    /// Numbers of the requests that threads for queries are executing, or that wait for such a
    /// thread.
    query_requests: Mutex<HashSet<u64>>,
    /// Numbers of the changes that are queued or being executed.
    change_requests: Mutex<HashSet<u64>>,
    failures: Arc<LatestFailures>,
    /// User id and group id of this process.
    owner: (u32, u32),
    others: OtherUsersPaths,
    /// True if all users of the machine have access.
    for_all: bool,
    permitted: MountPermissions,
    /// Time limit for a change to the tree.
    edit_limit: Duration,
    /// The time until which each frozen source keeps its past output.
    frozen_until: Mutex<HashMap<DirectoryId, Instant>>,
    /// The permissions that users have set, by object.
    permissions: Mutex<HashMap<ObjectKey, u32>>,
    over: AtomicBool,
    ended: EventFd,
}

impl Server {
    /// Starts a server for a mount whose requests arrive over `device`.
    pub fn start(
        device: File,
        (directory, options): (&Path, MountOptions),
    ) -> sys::Result<Arc<Self>> {
        let device = Arc::new(device);
        let failures = Arc::new(LatestFailures::default());
        let (streams, endings) = Streams::new(Arc::clone(&device), Arc::clone(&failures))?;
        let streams = Arc::new(streams);
        let writers = Arc::new(Writers::new(Arc::clone(&device), Arc::clone(&failures))?);
        let server = Arc::new(Self {
            snapshots: SnapshotCache::new(options.daemon),
            inodes: Mutex::default(),
            streams: Arc::clone(&streams),
            writers: Arc::clone(&writers),
            totals: TotalsByDirectory::default(),
            handles: Mutex::default(),
            next_handle: AtomicU64::new(1),
            receiving: AtomicUsize::new(RECEIVING_THREADS),
            query_requests: Mutex::default(),
            change_requests: Mutex::default(),
            failures,
            owner: sys::process::effective_ids(),
            others: options.others,
            for_all: options.for_all,
            permitted: MountPermissions { exec: options.exec, mount: directory.to_owned() },
            edit_limit: options.edit_limit.unwrap_or(EDIT_TIMEOUT_DEFAULT),
            frozen_until: Mutex::default(),
            permissions: Mutex::default(),
            over: AtomicBool::new(false),
            ended: EventFd::new()?,
            device,
        });
        let examining = Arc::clone(&streams);
        spawn("pipesfs ends", move || examining.examine_ended_taps(&endings))?;
        spawn("pipesfs reads", move || streams.serve())?;
        spawn("pipesfs writes", move || writers.serve())?;
        let (asking, editing) = (Arc::clone(&server), Arc::clone(&server));
        let edits =
            RequestThreadPool::new((EDIT_THREAD_NAME, CONCURRENT_EDITS_MAX), move |request| {
                editing.execute(request, Executor::EditThread);
            });
        let asks = RequestThreadPool::new((QUERY_THREAD_NAME, QUERY_THREADS_MAX), move |request| {
            asking.query_and_execute(request)
        });
        let threads = Arc::new((Mutex::new(asks), Mutex::new(edits)));
        for _ in 0..RECEIVING_THREADS {
            let (serving, threads) = (Arc::clone(&server), Arc::clone(&threads));
            spawn("pipesfs", move || serving.receive(&threads))?;
        }
        Ok(server)
    }

    /// Blocks the calling thread until the file system is unmounted.
    pub fn wait(&self) {
        while !self.has_ended() {
            sys::poll::wait_until_readable(&[self.ended.as_fd()], None);
        }
    }

    /// Returns true if the file system is unmounted.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Returns a descriptor that becomes readable when the file system is unmounted.
    #[must_use]
    pub fn end_descriptor(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }

    fn execute(&self, request: &Request, executor: Executor) {
        let header = &request.header;
        match &request.operation {
            Operation::Forget(objects) => {
                let mut inodes = lock(&self.inodes);
                for (inode, references) in objects {
                    let inode = if *inode == u64::MAX { header.inode } else { *inode };
                    inodes.forget(inode, *references);
                }
                return;
            }
            Operation::Interrupt(unique) => return self.interrupt(*unique, header.unique),
            Operation::Read { handle, size, flags, .. } if self.streams.contains(*handle) => {
                let waits = flags & crate::protocol::O_NONBLOCK == 0;
                return self.streams.read(*handle, (header.unique, *size), waits);
            }
            Operation::Poll { handle, wake, notify } if self.streams.contains(*handle) => {
                return self.streams.poll(*handle, header.unique, notify.then_some(*wake));
            }
            Operation::Write(write) if self.writers.contains(write.handle) => {
                let waits = write.flags & crate::protocol::O_NONBLOCK == 0;
                let bytes = write.bytes.clone();
                return self.writers.write(write.handle, (header.unique, bytes), waits);
            }
            Operation::Poll { handle, wake, notify } if self.writers.contains(*handle) => {
                return self.writers.poll(*handle, header.unique, notify.then_some(*wake));
            }
            _ => {}
        }
        let outcome = self.perform_operation(request);
        let Some(reply) = self.reply(request, executor) else {
            return self.undo_operation(&outcome);
        };
        match outcome {
            Ok(Outcome::Done) => reply.data(&[]),
            Ok(Outcome::Data(data)) => reply.data(&data),
            Ok(Outcome::Entry(attributes)) => {
                reply.entry(attributes, self.entry_timeout(&attributes));
            }
            Ok(Outcome::Attributes(attributes)) => {
                reply.attributes(attributes, objects::DEFAULT_ENTRY_TIMEOUT)
            }
            Ok(Outcome::Opened(handle, flags)) => reply.opened(handle, flags),
            Ok(Outcome::Polled(events)) => reply.polled(events),
            Ok(Outcome::Written(bytes)) => reply.written(bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn perform_operation(&self, request: &Request) -> Result<Outcome, i32> {
        let header = &request.header;
        match &request.operation {
            Operation::Init { readahead, flags, .. } => {
                Ok(Outcome::Data(init_reply(*readahead, *flags, WRITE_BYTES_MAX)))
            }
            Operation::Lookup(name) => self.lookup(header, name),
            Operation::GetAttributes => {
                let key = self.key(header.inode)?;
                Ok(Outcome::Attributes(self.attributes(&key, header.inode)?))
            }
            Operation::Access(mask) => self.check_access(header, *mask),
            Operation::ReadLink => self.read_link(header),
            Operation::Open(flags) => self.open(header, *flags),
            Operation::OpenDirectory => self.open_directory(header),
            Operation::Read { handle, offset, size, .. } => self.read_text(*handle, *offset, *size),
            Operation::ReadDirectory { handle, offset, size, plus } => {
                self.read_directory(header, *handle, *offset, (*size, *plus))
            }
            Operation::Release(handle) => {
                self.close(*handle);
                Ok(Outcome::Done)
            }
            Operation::StatFs => Ok(Outcome::Data(statfs_reply())),
            Operation::Poll { .. } => Ok(Outcome::Polled(0x145)),
            Operation::Edit(edit) => self.edit(header, edit),
            Operation::Flush | Operation::Sync => Ok(Outcome::Done),
            Operation::Write(write) => self.write_text(header, write),
            Operation::SetAttributes(change) => self.set_attributes(header, *change),
            Operation::Create(name) => Err(self.record_failure(
                header.uid,
                errno::EACCES,
                format!(
                    "`{name}` cannot be created: directories are made with mkdir, files are not"
                ),
            )),
            Operation::Change => Err(self.record_failure(
                header.uid,
                errno::EROFS,
                "a filter has no device files, extended attributes or reserved space".to_owned(),
            )),
            Operation::Forget(_) | Operation::Interrupt(_) | Operation::Destroy => {
                Ok(Outcome::Done)
            }
            Operation::Unknown => Err(errno::ENOSYS),
        }
    }

    fn close(&self, handle: u64) {
        if !self.streams.close(handle) && !self.writers.close(handle) {
            lock(&self.handles).remove(&handle);
        }
    }

    /// Undoes the effects of a completed operation whose caller no longer waits for the reply:
    /// closes an opened file, or drops a reference to an inode.
    fn undo_operation(&self, outcome: &Result<Outcome, i32>) {
        match outcome {
            Ok(Outcome::Opened(handle, _)) => self.close(*handle),
            Ok(Outcome::Entry(attributes)) => lock(&self.inodes).forget(attributes.inode, 1),
            _ => {}
        }
    }

    /// Replies EINTR to the request with the number `unique`, whose caller received a signal. A
    /// change always runs to completion and is not interrupted. If the request is unknown, replies
    /// EAGAIN to the interrupt, which is the request with the number `own`. The kernel then sends
    /// the interrupt again, unless `unique` has been answered in the meantime.
    fn interrupt(&self, unique: u64, own: u64) {
        if self.streams.interrupt(unique) || self.writers.interrupt(unique) {
            return;
        }
        if lock(&self.query_requests).remove(&unique) {
            return Reply::new(&self.device, unique).error(errno::EINTR);
        }
        // An edit has a time limit, and its reply reports the outcome.
        if !lock(&self.change_requests).contains(&unique) {
            Reply::new(&self.device, own).error(errno::EAGAIN);
        }
    }

    /// Records the reason for a user's failure, which the user can read in `.error`. Returns
    /// `errno`.
    fn record_failure(&self, uid: u32, errno: i32, why: String) -> i32 {
        self.failures.set_failure(uid, why);
        errno
    }

    fn next_handle(&self) -> u64 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn add_handle(&self, handle: Handle) -> u64 {
        let number = self.next_handle();
        lock(&self.handles).insert(number, handle);
        number
    }
}

/// The kind of thread that executes a request.
#[derive(Clone, Copy, Debug)]
enum Executor {
    /// The thread that received the request.
    Receiver,
    /// A thread that queries paths. Until the reply has been sent, [`Server::query_requests`]
    /// contains the number of the request.
    QueryThread,
    /// A thread that executes changes to the tree. Until the reply has been sent,
    /// [`Server::change_requests`] contains the number of the request.
    EditThread,
    /// The thread that received the request and executes it itself, because the request is a
    /// change. Until the thread has replied, it does not count as a receiving thread, and
    /// [`Server::change_requests`] contains the number of the request.
    EditingReceiver,
}

/// The successful outcome of an operation, with the data for the reply.
#[derive(Debug)]
enum Outcome {
    Done,
    Data(Vec<u8>),
    Entry(crate::protocol::Attributes),
    Attributes(crate::protocol::Attributes),
    Opened(u64, u32),
    Polled(u32),
    Written(usize),
}

/// Error number of a read from a device that is no longer mounted.
const ENODEV: i32 = 19;

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> sys::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    thread
        .map(drop)
        .map_err(|error| sys::Error::new("clone", "a thread", error.raw_os_error().unwrap_or(0)))
}
