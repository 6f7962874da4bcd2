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
    /// Returns true if this library can emulate the registration for datagrams that arrive in a
    /// ring. One-shot and exclusive registrations cannot be emulated.
    pub(crate) fn can_have_ring(&self) -> bool {
        const EPOLLONESHOT: u32 = 1 << 30;
        const EPOLLEXCLUSIVE: u32 = 1 << 28;
        self.events & (EPOLLONESHOT | EPOLLEXCLUSIVE) == 0
    }

    /// Returns true if the registration is level-triggered.
    pub(crate) fn is_level(&self) -> bool {
        const EPOLLET: u32 = 1 << 31;
        self.events & EPOLLET == 0
    }
}
