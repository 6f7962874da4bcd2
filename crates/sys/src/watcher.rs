//! An epoll(7) instance, which waits for a changing set of descriptors, each identified by a number
//! that the caller chooses.
//!
//! The instance is level-triggered: an unhandled event is reported again. A descriptor leaves the
//! set when it is closed, unless a duplicate is open; the caller then removes it with
//! [`EpollWatcher::unwatch`].

use crate::error::{ErrorContext as _, Result};
use crate::poll::timespec;
use rustix::event::epoll;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// An epoll instance, which waits for events on a changing set of descriptors.
#[derive(Debug)]
pub struct EpollWatcher(OwnedFd);

/// The events to wait for. Hang-up and error are always included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EventInterest {
    /// Wait until the descriptor is readable.
    Read,
    /// Wait until the descriptor is readable or writable.
    ReadWrite,
}

/// An event on a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchEvent {
    /// The number that the caller chose for the descriptor.
    pub number: u64,
    /// True if the descriptor is readable or at end of file.
    pub readable: bool,
    /// True if the descriptor is writable.
    pub writable: bool,
    /// True if the peer has closed its end, or if the descriptor has an error.
    pub gone: bool,
}

/// Maximum number of events that one wait returns.
const EVENTS_PER_WAIT_MAX: usize = 256;

impl EpollWatcher {
    /// Creates an epoll instance that watches no descriptors.
    pub fn new() -> Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll_create1", "").map(Self)
    }

    /// Adds a descriptor, identified by `number` in its events, and the events to wait for.
    pub fn watch(&self, descriptor: impl AsFd, number: u64, interest: EventInterest) -> Result<()> {
        let data = epoll::EventData::new_u64(number);
        epoll::add(&self.0, descriptor, data, epoll_flags(interest)).context("epoll_ctl", "add")
    }

    /// Changes the number that identifies a watched descriptor, and the events to wait for.
    pub fn change_interest(
        &self,
        descriptor: impl AsFd,
        number: u64,
        interest: EventInterest,
    ) -> Result<()> {
        let data = epoll::EventData::new_u64(number);
        epoll::modify(&self.0, descriptor, data, epoll_flags(interest))
            .context("epoll_ctl", "modify")
    }

    /// Removes a descriptor from the set of watched descriptors.
    pub fn unwatch(&self, descriptor: impl AsFd) -> Result<()> {
        epoll::delete(&self.0, descriptor).context("epoll_ctl", "delete")
    }

    /// Blocks until an event or a signal arrives, or `limit` passes (`None` means no limit).
    /// Returns the events, at most 256.
    pub fn wait(&self, limit: Option<Duration>) -> Vec<WatchEvent> {
        let limit = limit.map(timespec);
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_PER_WAIT_MAX];
        let Ok((events, _)) = epoll::wait(&self.0, &mut space, limit.as_ref()) else {
            return Vec::new();
        };
        let decoded = |event: &mut epoll::Event| {
            let (flags, data) = (event.flags, event.data);
            let has = |wanted| flags.intersects(wanted);
            let gone = has(epoll::EventFlags::HUP | epoll::EventFlags::ERR);
            WatchEvent {
                number: data.u64(),
                readable: gone || has(epoll::EventFlags::IN | epoll::EventFlags::RDHUP),
                writable: has(epoll::EventFlags::OUT),
                gone,
            }
        };
        events.iter_mut().map(decoded).collect()
    }
}

impl AsFd for EpollWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const fn epoll_flags(interest: EventInterest) -> epoll::EventFlags {
    match interest {
        EventInterest::Read => epoll::EventFlags::IN,
        EventInterest::ReadWrite => epoll::EventFlags::IN.union(epoll::EventFlags::OUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor;

    #[test]
    fn watcher_reports_events_by_number() {
        let watcher = EpollWatcher::new().unwrap();
        let (one, other) = descriptor::socket_pair().unwrap();
        let (quiet, _kept) = descriptor::socket_pair().unwrap();
        watcher.watch(&one, 7, EventInterest::Read).unwrap();
        watcher.watch(&quiet, 8, EventInterest::Read).unwrap();
        assert_eq!(watcher.wait(Some(Duration::ZERO)), []);
        descriptor::send(&other, b"x", &[]).unwrap();
        let read = WatchEvent { number: 7, readable: true, writable: false, gone: false };
        assert_eq!(watcher.wait(None), [read]);
        watcher.change_interest(&one, 7, EventInterest::ReadWrite).unwrap();
        assert_eq!(watcher.wait(None), [WatchEvent { writable: true, ..read }]);
        drop(other);
        testkit::wait_until_closed(&one);
        assert!(matches!(watcher.wait(None)[..], [WatchEvent { number: 7, gone: true, .. }]));
        watcher.unwatch(&one).unwrap();
        assert_eq!(watcher.wait(Some(Duration::ZERO)), []);
    }
}
