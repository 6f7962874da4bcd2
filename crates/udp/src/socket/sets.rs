//! The epoll sets of a socket.

use super::{Socket, SocketState};
use crate::registration::Registration;
use std::sync::atomic::Ordering;

impl Socket {
    /// Records that the program has registered the socket with an epoll set or, if `wanted` is
    /// `None`, has removed the registration `key`.
    pub(crate) fn record_registration(&self, wanted: Option<Registration>, key: (i32, i32)) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        state.registrations.retain(|known| (known.set, known.number) != key);
        state.registrations.extend(wanted);
        state.note_number(key.1);
        self.note_levels(state);
        drop(locked);
        if wanted.is_some_and(|wanted| !wanted.can_have_ring()) {
            self.demote();
        }
    }

    /// Forgets the registrations with an epoll set that is about to be closed.
    pub(crate) fn forget_set(&self, set: i32) {
        if let Some(mut locked) = self.lock() {
            locked.state.registrations.retain(|known| known.set != set);
            self.note_levels(&locked.state);
        }
    }

    fn note_levels(&self, state: &SocketState) {
        let is_in_edge_set = state.registrations.iter().any(|known| !known.is_level());
        self.is_in_sets.store(!state.registrations.is_empty(), Ordering::Relaxed);
        self.is_in_edge_set.store(is_in_edge_set, Ordering::Relaxed);
    }

    /// Returns true if the ring may stay awake although the program finds ring and placeholder
    /// empty, because the program's next wait for one of its epoll sets reports what arrives in
    /// between.
    pub(crate) fn may_stay_awake(&self) -> bool {
        self.is_in_sets.load(Ordering::Relaxed) && self.may_have_datagrams.load(Ordering::Relaxed)
    }

    /// Returns true if a call that has received datagrams from the ring may return fewer than it
    /// has room for, although the placeholder has others. (An epoll set that reports the socket
    /// only when it becomes readable would not report those.)
    pub(crate) fn may_leave_datagrams(&self) -> bool {
        !self.is_in_edge_set.load(Ordering::Relaxed)
            && self.may_have_datagrams.load(Ordering::Relaxed)
    }

    /// Returns true if the socket is registered with an epoll set.
    pub(crate) fn is_in_set(&self, set: i32) -> bool {
        let Some(locked) = self.lock() else { return false };
        locked.state.registrations.iter().any(|known| known.set == set)
    }

    /// Returns the registrations of the socket with an epoll set.
    pub(crate) fn registrations(&self, set: i32) -> Vec<Registration> {
        let Some(locked) = self.lock() else { return Vec::new() };
        let known = locked.state.registrations.iter();
        known.filter(|known| known.set == set).copied().collect()
    }
}
