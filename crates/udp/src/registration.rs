//! Registrations of sockets with epoll sets.

/// A registration of a socket with an epoll set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Registration {
    pub(crate) set: i32,
    pub(crate) number: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

impl Registration {
    /// Returns true if the ring can be registered with the same events.
    pub(crate) fn can_be_mirrored(&self) -> bool {
        const EPOLLONESHOT: u32 = 1 << 30;
        const EPOLLEXCLUSIVE: u32 = 1 << 28;
        self.events & (EPOLLONESHOT | EPOLLEXCLUSIVE) == 0
    }
}
