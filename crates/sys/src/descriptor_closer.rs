//! Closing of descriptors that other users have sent, and of sockets to other users, without
//! blocking.
//!
//! close(2) can block for as long as another party wants: on a TCP socket with SO_LINGER it waits
//! for the peer, on a FUSE file for the server. Closing a Unix socket also closes every descriptor
//! in its receive queue. One user could thus stall a thread that serves several users. Such
//! descriptors are therefore closed by other threads, at most one per user at a time, so that a
//! user can delay only the closing of descriptors from the same user.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of threads that close descriptors.
const THREADS_MAX: usize = 64;
/// Number of descriptors of one user waiting to be closed at which [`is_user_overloaded`] returns
/// true.
const WAITING_DESCRIPTORS_MAX: usize = 256;
/// Time without work after which a closing thread exits.
const IDLE_THREAD_TIMEOUT: Duration = Duration::from_secs(10);

/// A descriptor that a user has sent, or a socket to a user. Dropping the value never blocks:
/// another thread closes the descriptor.
#[derive(Debug)]
pub struct ForeignDescriptor {
    /// The descriptor; `None` only while the value is being dropped.
    descriptor: Option<OwnedFd>,
    uid: u32,
}

impl ForeignDescriptor {
    /// Wraps a descriptor that user `uid` has sent.
    #[must_use]
    pub const fn new(descriptor: OwnedFd, uid: u32) -> Self {
        Self { descriptor: Some(descriptor), uid }
    }

    /// Wraps several descriptors that user `uid` has sent.
    #[must_use]
    pub fn wrap_all(descriptors: Vec<OwnedFd>, uid: u32) -> Vec<Self> {
        descriptors.into_iter().map(|descriptor| Self::new(descriptor, uid)).collect()
    }

    /// Wraps a connected Unix socket. The user id is the peer's at the time it connected, or
    /// `u32::MAX` if the kernel reports no credentials.
    #[must_use]
    pub fn from_peer_socket(socket: OwnedFd) -> Self {
        let uid = crate::descriptor::peer_uid_and_gid(&socket).map_or(u32::MAX, |(uid, _)| uid);
        Self::new(socket, uid)
    }

    /// Returns the id of the user who has sent the descriptor or is the peer of the socket.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }
}

impl AsFd for ForeignDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_ref().unwrap_or_else(|| unreachable!("taken by `drop` alone")).as_fd()
    }
}

impl Drop for ForeignDescriptor {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.take() {
            lock_closer().add(self.uid, descriptor);
            DESCRIPTOR_QUEUED.notify_one();
        }
    }
}

/// Returns true if 256 or more descriptors of this user are waiting to be closed. The caller should
/// then accept no further descriptors from the user.
#[must_use]
pub fn is_user_overloaded(uid: u32) -> bool {
    lock_closer().users.get(&uid).is_some_and(|user| user.waiting.len() >= WAITING_DESCRIPTORS_MAX)
}

/// The state that the threads that close descriptors share with the threads that drop them.
struct DescriptorCloser {
    users: BTreeMap<u32, UserQueue>,
    threads: usize,
    /// Number of closing threads that have no work and wait for a descriptor to close.
    idle: usize,
}

#[derive(Default)]
struct UserQueue {
    waiting: VecDeque<OwnedFd>,
    /// True while a thread is closing a descriptor that belongs to the user.
    is_closing: bool,
}

static DESCRIPTOR_CLOSER: Mutex<DescriptorCloser> =
    Mutex::new(DescriptorCloser { users: BTreeMap::new(), threads: 0, idle: 0 });
static DESCRIPTOR_QUEUED: Condvar = Condvar::new();

fn lock_closer() -> MutexGuard<'static, DescriptorCloser> {
    DESCRIPTOR_CLOSER.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DescriptorCloser {
    fn add(&mut self, uid: u32, descriptor: OwnedFd) {
        self.users.entry(uid).or_default().waiting.push_back(descriptor);
        let due = self.users.values().filter(|user| user.is_due()).count();
        if due > self.idle && self.threads < THREADS_MAX {
            let thread = std::thread::Builder::new().name("closer".to_owned());
            // If no thread can be started, the descriptor stays queued until the next one arrives.
            self.threads += usize::from(thread.spawn(run_closing_thread).is_ok());
        }
    }

    /// Removes and returns a descriptor that waits to be closed, with the id of its user. Skips
    /// users for whom another thread is closing a descriptor. Returns `None` if no descriptor is
    /// left.
    fn take_due_descriptor(&mut self) -> Option<(u32, OwnedFd)> {
        let (uid, user) = self.users.iter_mut().find(|(_, user)| user.is_due())?;
        user.is_closing = true;
        user.waiting.pop_front().map(|descriptor| (*uid, descriptor))
    }

    /// Records that a thread has finished closing a descriptor that belongs to the user `uid`.
    fn finish_closing(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.is_closing = false;
            if user.waiting.is_empty() {
                self.users.remove(&uid);
            }
        }
    }
}

impl UserQueue {
    fn is_due(&self) -> bool {
        !self.is_closing && !self.waiting.is_empty()
    }
}

/// Runs a closing thread: closes descriptors until none has arrived for [`IDLE_THREAD_TIMEOUT`].
fn run_closing_thread() {
    let mut closer = lock_closer();
    loop {
        if let Some((uid, descriptor)) = closer.take_due_descriptor() {
            drop(closer);
            drop(descriptor);
            closer = lock_closer();
            closer.finish_closing(uid);
            continue;
        }
        closer.idle += 1;
        let waited = DESCRIPTOR_QUEUED.wait_timeout(closer, IDLE_THREAD_TIMEOUT);
        let (back, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        closer = back;
        closer.idle -= 1;
        if timeout.timed_out() && !closer.users.values().any(UserQueue::is_due) {
            closer.threads -= 1;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time for which close(2) blocks on the descriptor of [`testkit::lingering_socket`].
    const LINGER: Duration = Duration::from_secs(600);

    #[test]
    fn lingering_descriptor_delays_only_its_own_user() {
        let (slow, peer) = testkit::lingering_socket(LINGER);
        let (own, own_peer) = crate::descriptor::socket_pair().unwrap();
        let (other, other_peer) = crate::descriptor::socket_pair().unwrap();
        let (uid, other_uid) = (4_000_000_001, 4_000_000_002);
        drop(ForeignDescriptor::new(slow, uid));
        drop(ForeignDescriptor::new(own, uid));
        drop(ForeignDescriptor::new(other, other_uid));
        testkit::wait_until_closed(&other_peer);
        assert!(!crate::local_socket::is_peer_gone(&own_peer), "it waits for the first");
        assert!(!is_user_overloaded(uid));
        let many: Vec<_> = (0..WAITING_DESCRIPTORS_MAX)
            .map(|_| crate::descriptor::socket_pair().unwrap().0)
            .collect();
        drop(ForeignDescriptor::wrap_all(many, uid));
        assert!(is_user_overloaded(uid) && !is_user_overloaded(other_uid));
        drop(peer);
        testkit::wait_until_closed(&own_peer);
        testkit::wait_until("all are closed", || !lock_closer().users.contains_key(&uid));
    }
}
