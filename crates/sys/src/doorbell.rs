//! Bells among strangers: how one process wakes another that it does not trust. (CONTRACT 24,
//! RELIABILITY T8, T10)
//!
//! A pair of connected sockets that carry nothing but bytes without meaning. Neither end can make
//! the other one wait: each call says for itself that it does not block, which a shared eventfd
//! could not (its owner may fill the counter and clear O_NONBLOCK). When a process ends, however it
//! ends, the other side sees it.

use crate::descriptor;
use crate::error::Result;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recv, recvmsg, send, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One end. Readable when the other one has rung, or is gone.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

/// The most bytes and descriptors that are told with a ring.
const NOTE_MAX: (usize, usize) = (16, 4);

/// What was heard at a bell.
#[derive(Debug)]
pub enum Heard {
    /// Nothing more.
    Nothing,
    /// A ring, with what was told: a few bytes and descriptors. All of it is alleged.
    Ring(Vec<u8>, Vec<OwnedFd>),
    /// Nobody has the other end any more.
    Gone,
}

/// Whether a note was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It lies at the other end.
    Yes,
    /// The other end is full of what it has not heard.
    Full,
    /// Nobody has the other end any more.
    Gone,
}

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

    /// Rings, and tells a few bytes and descriptors by it. The first byte should not be 1.
    pub fn tell(&self, note: &[u8], descriptors: &[BorrowedFd<'_>]) -> Told {
        use rustix::io::Errno;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(NOTE_MAX.1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Told::Full;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&self.0, &[IoSlice::new(note)], &mut control, flags) {
            Ok(_) => Told::Yes,
            Err(Errno::AGAIN | Errno::INTR | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => {
                Told::Full
            }
            Err(_) => Told::Gone,
        }
    }

    /// Takes one ring back, with what was told by it.
    pub fn hear(&self) -> Heard {
        match self.receive() {
            // Said once, before what lies here, by an other end that was closed without having
            // heard us (unix(7)).
            Err(rustix::io::Errno::CONNRESET) => self.receive(),
            heard => heard,
        }
        .unwrap_or(Heard::Gone)
    }

    fn receive(&self) -> rustix::io::Result<Heard> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(NOTE_MAX.1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut note = vec![0; NOTE_MAX.0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let heard = recvmsg(&self.0, &mut [IoSliceMut::new(&mut note)], &mut control, flags);
        let mut descriptors = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                descriptors.extend(rights);
            }
        }
        match heard {
            Ok(got) if got.bytes == 0 => Ok(Heard::Gone),
            Ok(got) => {
                note.truncate(got.bytes);
                Ok(Heard::Ring(note, descriptors))
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(Heard::Nothing),
            Err(error) => Err(error),
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

impl From<Doorbell> for OwnedFd {
    fn from(bell: Doorbell) -> Self {
        bell.0
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
        testkit::closed(&there);
        assert!(ready(None), "who is gone is heard");
        assert_eq!((there.clear(), there.ring()), (Other::Gone, Other::Gone));
    }

    #[test]
    fn what_is_told_by_a_ring_is_heard_with_it() {
        let (here, there) = Doorbell::pair().unwrap();
        let file = crate::memory::Memfd::create("sys-test", 4096).unwrap();
        assert_eq!(here.ring(), Other::Here);
        assert_eq!(here.tell(b"\x02note", &[file.as_fd(), file.as_fd()]), Told::Yes);
        assert!(
            matches!(there.hear(), Heard::Ring(note, files) if note == [1] && files.is_empty())
        );
        let Heard::Ring(note, files) = there.hear() else { panic!("a note") };
        assert_eq!((note.as_slice(), files.len()), (&b"\x02note"[..], 2));
        assert!(matches!(there.hear(), Heard::Nothing));
        let told = (0..100_000).map(|_| here.tell(&[2], &[file.as_fd()])).find(|t| *t != Told::Yes);
        assert_eq!(told, Some(Told::Full), "nobody is waited for");
        drop(there);
        testkit::closed(&here);
        assert_eq!(here.tell(&[2], &[]), Told::Gone);
        let (here, there) = Doorbell::pair().unwrap();
        there.ring();
        here.tell(&[7], &[]);
        drop(here);
        testkit::closed(&there);
        assert!(matches!(there.hear(), Heard::Ring(note, _) if note == [7]), "and is not lost");
        assert!(matches!(there.hear(), Heard::Gone));
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
