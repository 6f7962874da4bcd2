//! Registrations of sockets with epoll sets.

use crate::ring::RingPosition;

/// Epoll events that report a readable socket (`EPOLLIN | EPOLLRDNORM`).
pub(crate) const EPOLL_READABLE: u32 = 0x41;
/// Epoll events that report a writable socket (`EPOLLOUT | EPOLLWRNORM`).
pub(crate) const EPOLL_WRITABLE: u32 = 0x104;
const EPOLLEXCLUSIVE: u32 = 1 << 28;
const EPOLLONESHOT: u32 = 1 << 30;
const EPOLLET: u32 = 1 << 31;

/// A registration of a socket with an epoll set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    pub(crate) set: i32,
    pub(crate) number: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// Position of the ring when an event of this registration last reported the ring's datagrams;
    /// `None` if no event has.
    pub(crate) reported: Option<RingPosition>,
}

impl Registration {
    /// Returns true if this library can emulate the registration for datagrams that arrive in a
    /// ring. One-shot and exclusive registrations cannot be emulated.
    pub(crate) fn can_have_ring(&self) -> bool {
        !self.is_one_shot() && !self.is_exclusive()
    }

    /// Returns true if the registration reports a single event, and then none until the program
    /// changes it.
    pub(crate) fn is_one_shot(&self) -> bool {
        self.events & EPOLLONESHOT != 0
    }

    /// Returns true if the registration cannot be changed, only removed.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.events & EPOLLEXCLUSIVE != 0
    }

    /// Returns true if the registration is level-triggered.
    pub(crate) fn is_level_triggered(&self) -> bool {
        self.events & EPOLLET == 0
    }

    /// Returns true if the program waits for the socket to become readable.
    pub(crate) fn is_for_input(&self) -> bool {
        self.events & EPOLL_READABLE != 0
    }

    /// Returns true if the program waits for the socket to become writable.
    pub(crate) fn is_for_output(&self) -> bool {
        self.events & EPOLL_WRITABLE != 0
    }
}
