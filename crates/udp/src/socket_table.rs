//! The descriptors of the program that are UDP sockets.
//!
//! A descriptor is classified at its first use, and again at its first use after it was closed.
//! Descriptors numbered [`DESCRIPTORS_MAX`] or higher are never promoted.

use crate::descriptor_waits;
use crate::epoll_sets;
use crate::socket::Socket;
use crate::socket_origin;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use sys::preload::{self, udp};

/// Number of descriptors in this table, 0 to 1023.
const DESCRIPTORS_MAX: usize = udp::DESCRIPTORS_MAX.cast_unsigned() as usize;
/// The value in [`DESCRIPTOR_CLASSIFICATIONS`] of a descriptor that has not been classified.
const UNCLASSIFIED: u8 = 0;
/// The value in [`DESCRIPTOR_CLASSIFICATIONS`] of a descriptor that is not a UDP socket.
const NOT_A_UDP_SOCKET: u8 = 1;
/// The value in [`DESCRIPTOR_CLASSIFICATIONS`] of a descriptor that is a UDP socket.
const UDP_SOCKET: u8 = 2;

static DESCRIPTOR_CLASSIFICATIONS: [AtomicU8; DESCRIPTORS_MAX] =
    [const { AtomicU8::new(UNCLASSIFIED) }; DESCRIPTORS_MAX];
static SOCKETS: [Mutex<Option<Arc<Socket>>>; DESCRIPTORS_MAX] =
    [const { Mutex::new(None) }; DESCRIPTORS_MAX];
/// Number of promoted sockets, which are those with a ring.
static PROMOTED_SOCKET_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The sockets that have been promoted to the use of a ring, including some that have returned to
/// the kernel or have been closed.
static PROMOTED_SOCKETS: Mutex<Vec<Weak<Socket>>> = Mutex::new(Vec::new());

/// Returns the socket of a descriptor; `None` if the descriptor is not a UDP socket.
pub(crate) fn find_socket(number: i32) -> Option<Arc<Socket>> {
    let index = usize::try_from(number).ok()?;
    let kind = DESCRIPTOR_CLASSIFICATIONS.get(index)?;
    match kind.load(Ordering::Acquire) {
        NOT_A_UDP_SOCKET => None,
        UDP_SOCKET => lock(SOCKETS.get(index)?).clone(),
        _ => {
            let errno = preload::errno();
            let is_socket = udp::is_udp_socket(number);
            preload::set_errno(errno);
            if !is_socket {
                // A closed descriptor may become a socket without a call of this library.
                if preload::inode(number).is_some() {
                    kind.store(NOT_A_UDP_SOCKET, Ordering::Release);
                }
                return None;
            }
            let mut place = lock(SOCKETS.get(index)?);
            let socket = place.get_or_insert_with(|| Arc::new(Socket::new())).clone();
            kind.store(UDP_SOCKET, Ordering::Release);
            Some(socket)
        }
    }
}

/// Returns the socket of a descriptor if the socket is promoted, that is, has a ring; otherwise
/// `None`.
pub(crate) fn find_promoted_socket(number: i32) -> Option<Arc<Socket>> {
    if has_no_promoted_socket() {
        return None;
    }
    find_socket(number).filter(|socket| socket.is_promoted())
}

/// Increments the number of promoted sockets if `is_new` is true, and decrements it otherwise.
pub(crate) fn update_promoted_count(is_new: bool) {
    if is_new {
        PROMOTED_SOCKET_COUNT.fetch_add(1, Ordering::SeqCst);
    } else {
        PROMOTED_SOCKET_COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns true if no socket is promoted, that is, has a ring.
pub(crate) fn has_no_promoted_socket() -> bool {
    // Sync point: waiting.
    PROMOTED_SOCKET_COUNT.load(Ordering::SeqCst) == 0
}

/// Records a socket that has been promoted, that is, has got a ring.
pub(crate) fn record_promoted_socket(socket: &Arc<Socket>) {
    let mut all = lock(&PROMOTED_SOCKETS);
    all.retain(|known| known.upgrade().is_some_and(|known| known.is_promoted()));
    all.push(Arc::downgrade(socket));
}

/// Returns the sockets that are promoted at present, that is, have a ring.
pub(crate) fn promoted_sockets() -> Vec<Arc<Socket>> {
    if has_no_promoted_socket() {
        return Vec::new();
    }
    let all = lock(&PROMOTED_SOCKETS);
    let all = all.iter().filter_map(Weak::upgrade);
    all.filter(|socket| socket.is_promoted()).collect()
}

/// Returns true if a descriptor is known not to be a UDP socket.
pub(crate) fn is_not_udp_socket(number: i32) -> bool {
    let kind = usize::try_from(number).ok().and_then(|index| DESCRIPTOR_CLASSIFICATIONS.get(index));
    kind.is_some_and(|kind| kind.load(Ordering::Relaxed) == NOT_A_UDP_SOCKET)
}

/// Forgets a descriptor that is about to be closed or replaced. If it is the last descriptor of a
/// socket, the socket's ring ends.
pub(crate) fn forget_descriptor(number: i32) {
    let Some(index) = usize::try_from(number).ok().filter(|index| *index < DESCRIPTORS_MAX) else {
        return;
    };
    descriptor_waits::forget_waits(number);
    socket_origin::forget_origin(number);
    if epoll_sets::forget_epoll_set(number) {
        for_each_classified_socket(|socket| socket.forget_epoll_set(number));
    }
    if let (Some(kind), Some(place)) = (DESCRIPTOR_CLASSIFICATIONS.get(index), SOCKETS.get(index))
        && kind.swap(UNCLASSIFIED, Ordering::AcqRel) == UDP_SOCKET
    {
        let socket = lock(place).take();
        drop(socket);
    }
}

/// Records that descriptor `to` is a duplicate of descriptor `from`.
pub(crate) fn record_duplicate(from: i32, to: i32) {
    let to_number = to;
    let index = |number: i32| usize::try_from(number).ok().filter(|at| *at < DESCRIPTORS_MAX);
    forget_descriptor(to);
    socket_origin::record_duplicate(from, to);
    if epoll_sets::is_epoll_set(from) {
        epoll_sets::record_unsupported_wait(from);
    }
    let socket = index(from).and_then(|at| lock(SOCKETS.get(at)?).clone());
    match (socket, index(to)) {
        (Some(socket), Some(to)) => {
            if let (Some(kind), Some(place)) = (DESCRIPTOR_CLASSIFICATIONS.get(to), SOCKETS.get(to))
            {
                socket.note_descriptor(to_number);
                *lock(place) = Some(socket);
                kind.store(UDP_SOCKET, Ordering::Release);
            }
        }
        // A duplicate outside this table would bypass the ring.
        (Some(socket), None) => socket.return_to_kernel_permanently(),
        (None, _) => {}
    }
}

/// Calls `body` with each UDP socket that has been found among the descriptors of the program.
pub(crate) fn for_each_classified_socket(body: impl Fn(&Socket)) {
    for (kind, place) in DESCRIPTOR_CLASSIFICATIONS.iter().zip(&SOCKETS) {
        if kind.load(Ordering::Acquire) == UDP_SOCKET
            && let Some(socket) = lock(place).clone()
        {
            body(&socket);
        }
    }
}

/// Forgets all sockets in a forked child, without ending the rings, which the parent still reads.
pub(crate) fn forget_in_child() {
    for (kind, place) in DESCRIPTOR_CLASSIFICATIONS.iter().zip(&SOCKETS) {
        if kind.swap(UNCLASSIFIED, Ordering::AcqRel) == UDP_SOCKET {
            // A lock that another thread held at the fork stays locked.
            let socket = place.try_lock().ok().and_then(|mut place| place.take());
            std::mem::forget(socket);
        }
    }
    PROMOTED_SOCKET_COUNT.store(0, Ordering::SeqCst);
    descriptor_waits::forget_in_child();
    socket_origin::forget_in_child();
    if let Ok(mut all) = PROMOTED_SOCKETS.try_lock() {
        std::mem::take(&mut *all).into_iter().for_each(std::mem::forget);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
