//! Events of the sockets in an epoll set whose rings have datagrams.

use super::epoll::EpollEvent;
use crate::registration::{EPOLL_READABLE, Registration};
use crate::ring::RingPosition;
use crate::socket::Socket;
use std::ffi::c_int;
use std::sync::Arc;

/// An event that the program receives because a socket's ring has datagrams.
pub(super) struct RingEvent<'s> {
    socket: &'s Socket,
    registration: Registration,
    /// Position of the ring when the event arose, for an edge-triggered registration; otherwise
    /// `None`.
    position: Option<RingPosition>,
}

impl RingEvent<'_> {
    /// Returns the event in the form in which the program receives it.
    pub(super) fn event(&self) -> EpollEvent {
        let Registration { events, data, .. } = self.registration;
        EpollEvent { events: events & EPOLL_READABLE, data }
    }

    /// Records that the program has received the event, so that an edge-triggered registration does
    /// not report the same datagrams again.
    pub(super) fn note_reported(&self) {
        if self.position.is_some() {
            self.socket.note_reported(&self.registration, self.position);
        }
    }
}

/// Returns events for those sockets of an epoll set whose rings have datagrams. Puts the rings of
/// the other sockets to sleep, unless `spins` is true because the caller polls the rings instead of
/// sleeping. Also returns true if the caller must check the rings again after a while, because a
/// ring stays awake although there is no event of its socket.
pub(super) fn ready_events(
    set: c_int,
    sockets: &[Arc<Socket>],
    spins: bool,
) -> (Vec<RingEvent<'_>>, bool) {
    let (mut ready, mut looks_again) = (Vec::new(), false);
    for socket in sockets {
        let has_datagram = if spins { socket.has_datagram() } else { !socket.fall_asleep() };
        if !has_datagram {
            continue;
        }
        let mut events = unreported_events(set, socket);
        if events.is_empty() && !spins {
            looks_again |= !socket.leave_datagrams_unread(set);
            // A datagram may have entered the ring before it fell asleep.
            events = unreported_events(set, socket);
        }
        ready.extend(events);
    }
    (ready, looks_again)
}

/// Returns the events that a wait on the epoll set `set` reports for a socket whose ring has a
/// datagram.
pub(super) fn unreported_events(set: c_int, socket: &Socket) -> Vec<RingEvent<'_>> {
    let unreported = socket.unreported_registrations(set).into_iter();
    let event = |(registration, position)| RingEvent { socket, registration, position };
    unreported.map(event).collect()
}
