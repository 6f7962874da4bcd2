//! The origin of sockets: a record of the sockets that this process has created, and of its forks.
//! No other process can have inherited a socket that this process has created since its last fork.

use std::sync::atomic::{AtomicU32, Ordering};
use sys::preload::udp;

/// Number of descriptors for which the origin of the socket is recorded.
const DESCRIPTORS_MAX: usize = udp::DESCRIPTORS_MAX.cast_unsigned() as usize;

/// Number of times that this process has forked, plus 1.
static FORK_COUNT: AtomicU32 = AtomicU32::new(1);
/// For each descriptor, the value of [`FORK_COUNT`] when the program created the socket with this
/// descriptor; 0 if its creation is not recorded.
static CREATION_FORK_COUNTS: [AtomicU32; DESCRIPTORS_MAX] =
    [const { AtomicU32::new(0) }; DESCRIPTORS_MAX];

/// The origin of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Origin {
    /// This process has created the socket, and has not forked since.
    Own,
    /// This process has created the socket, and has forked since.
    BeforeFork,
    /// The creation of the socket is not recorded. The socket may have been inherited, for example
    /// from the process that started this one.
    Unknown,
}

/// Records that the program has created a socket.
pub(crate) fn record_created_socket(number: i32) {
    record_fork_count(number, FORK_COUNT.load(Ordering::SeqCst));
}

/// Records that descriptor `to` is a duplicate of descriptor `from`, and so has the same origin.
pub(crate) fn record_duplicate(from: i32, to: i32) {
    record_fork_count(to, creation_fork_count(from));
}

/// Removes the record of a socket's creation, because its descriptor is about to be closed.
pub(crate) fn forget_origin(number: i32) {
    record_fork_count(number, 0);
}

/// Records that the process is about to fork.
pub(crate) fn record_fork() {
    FORK_COUNT.fetch_add(1, Ordering::SeqCst);
}

/// Returns the origin of a socket.
pub(crate) fn find_origin(number: i32) -> Origin {
    match creation_fork_count(number) {
        0 => Origin::Unknown,
        forks if forks == FORK_COUNT.load(Ordering::SeqCst) => Origin::Own,
        _ => Origin::BeforeFork,
    }
}

/// Discards all recorded origins of sockets in a forked child, because the parent has the same
/// sockets.
pub(crate) fn forget_in_child() {
    CREATION_FORK_COUNTS.iter().for_each(|place| place.store(0, Ordering::SeqCst));
}

fn creation_fork_count(number: i32) -> u32 {
    creation_slot(number).map_or(0, |place| place.load(Ordering::SeqCst))
}

fn record_fork_count(number: i32, value: u32) {
    if let Some(place) = creation_slot(number) {
        place.store(value, Ordering::SeqCst);
    }
}

fn creation_slot(number: i32) -> Option<&'static AtomicU32> {
    CREATION_FORK_COUNTS.get(usize::try_from(number).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_may_be_inherited_after_a_fork_or_from_elsewhere() {
        assert_eq!(find_origin(700), Origin::Unknown);
        record_created_socket(700);
        record_duplicate(700, 701);
        assert_eq!((find_origin(700), find_origin(701)), (Origin::Own, Origin::Own));
        forget_origin(701);
        assert_eq!(find_origin(701), Origin::Unknown);
        record_fork();
        assert_eq!(find_origin(700), Origin::BeforeFork);
        record_created_socket(702);
        assert_eq!(
            (find_origin(702), find_origin(DESCRIPTORS_MAX as i32)),
            (Origin::Own, Origin::Unknown)
        );
    }
}
