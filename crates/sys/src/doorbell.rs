//! Bells among strangers: how one process wakes another that it does not trust. (CONTRACT 24,
//! RELIABILITY T8, T10)
//!
//! A pair of connected sockets that carry nothing but bytes without meaning. Neither end can make
//! the other one wait: each call says for itself that it does not block, which a shared eventfd
//! could not (its owner may fill the counter and clear O_NONBLOCK). When a process ends, however it
//! ends, the other side sees it.

use crate::descriptor;
use crate::error::Result;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One end. Readable when the other one has rung, or is gone.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// Whether there is somebody at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Other {
    /// Somebody has it.
    Here,
    /// Nobody has it any more, or what we were given is no bell.
    Gone,
}

impl Doorbell {
    /// Two ends.
    pub fn pair() -> Result<(Self, Self)> {
        descriptor::pair().map(|(one, other)| (Self(one), Self(other)))
    }

    /// Rings at the other end. That it is full of rings that nobody has heard is as good.
    pub fn ring(&self) -> Other {
        match send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Other::Here,
            Err(_) => Other::Gone,
        }
    }

    /// Takes one ring back, as there mostly is one. After more of them the bell is still readable,
    /// and is taken back the next time.
    pub fn clear(&self) -> Other {
        match recv(&self.0, &mut [0; 8], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Other::Gone,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Other::Here,
            Err(_) => Other::Gone,
        }
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Doorbell {
    /// What was received: an allegation, which the calls above do not rely on.
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn rings_are_heard_and_taken_back() {
        let (here, there) = Doorbell::pair().unwrap();
        let ready = |limit| crate::poll::readable(&[there.as_fd()], limit) == [true];
        assert!(!ready(Some(Duration::ZERO)));
        assert_eq!(here.ring(), Other::Here);
        assert!(ready(None));
        assert_eq!(there.clear(), Other::Here);
        assert!(!ready(Some(Duration::ZERO)));
        drop(here);
        assert!(ready(None), "who is gone is heard");
        assert_eq!((there.clear(), there.ring()), (Other::Gone, Other::Gone));
    }

    #[test]
    fn nobody_waits_for_who_does_not_listen() {
        let (here, there) = Doorbell::pair().unwrap();
        for _ in 0..100_000 {
            assert_eq!(here.ring(), Other::Here);
        }
        while crate::poll::readable(&[there.as_fd()], Some(Duration::ZERO)) == [true] {
            assert_eq!(there.clear(), Other::Here);
        }
    }

    #[test]
    fn what_is_no_bell_is_nobody() {
        let (read, write) = rustix::pipe::pipe().unwrap();
        assert_eq!(Doorbell::from(write).ring(), Other::Gone);
        assert_eq!(Doorbell::from(read).clear(), Other::Gone);
    }
}
