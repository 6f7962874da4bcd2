//! The epoll sets of a socket.

use super::{PromotionStage, Socket, SocketState};
use crate::registration::Registration;
use crate::ring::RingPosition;
use std::sync::atomic::Ordering;

impl Socket {
    /// Records a change of the socket's registration with an epoll set. `key` is the descriptors of
    /// the set and of the socket. `wanted` is the registration that the program has made, or `None`
    /// if the program has removed the registration. Returns a promoted socket to the kernel until
    /// the next promotion if a ring cannot serve `wanted` ([`Registration::can_have_ring`]).
    pub(crate) fn record_registration(&self, wanted: Option<Registration>, key: (i32, i32)) {
        let Some(mut locked) = self.lock() else { return };
        let state = &mut *locked.state;
        state.registrations.retain(|known| (known.set, known.number) != key);
        state.registrations.extend(wanted);
        state.note_descriptor(key.1);
        self.update_epoll_set_flags(state);
        drop(locked);
        // A socket that is not promoted yet is refused a ring at its promotion, with a message.
        if wanted.is_some_and(|wanted| !wanted.can_have_ring()) && self.is_promoted() {
            self.return_to_kernel_temporarily();
        }
    }

    /// Forgets the registrations with an epoll set that is about to be closed.
    pub(crate) fn forget_epoll_set(&self, set: i32) {
        if let Some(mut locked) = self.lock() {
            locked.state.registrations.retain(|known| known.set != set);
            self.update_epoll_set_flags(&locked.state);
        }
    }

    fn update_epoll_set_flags(&self, state: &SocketState) {
        let is_in_edge_set = state.registrations.iter().any(|known| !known.is_level_triggered());
        self.is_in_sets.store(!state.registrations.is_empty(), Ordering::Relaxed);
        self.is_in_edge_set.store(is_in_edge_set, Ordering::Relaxed);
    }

    /// Returns true if a reader that has found the ring and the placeholder (kernel socket) empty
    /// need not ask for a notification. This is so if the program uses an epoll set, because its
    /// next wait on the set checks the ring.
    pub(crate) fn may_stay_awake(&self) -> bool {
        self.is_in_sets.load(Ordering::Relaxed) && self.may_have_datagrams.load(Ordering::Relaxed)
    }

    /// Returns true if a receive call may return with datagrams from the ring alone, although it
    /// has room for datagrams in the placeholder (kernel socket). This is impossible for a socket
    /// in an edge-triggered epoll set, which would not report the datagrams that remain in the
    /// placeholder.
    pub(crate) fn may_leave_datagrams(&self) -> bool {
        !self.is_in_edge_set.load(Ordering::Relaxed)
            && self.may_have_datagrams.load(Ordering::Relaxed)
    }

    /// Returns true if the socket is registered with the epoll set `set`.
    pub(crate) fn is_in_epoll_set(&self, set: i32) -> bool {
        let Some(locked) = self.lock() else { return false };
        locked.state.registrations.iter().any(|known| known.set == set)
    }

    /// Returns the registrations of the socket with the epoll set `set` whose next event must
    /// report the datagrams in the ring. A level-triggered registration is always returned. An
    /// edge-triggered registration is returned, with the position of the ring, if a datagram has
    /// arrived since the last report, or if the ring has been found empty since then. A one-shot
    /// registration is never returned, because only the kernel can tell whether it has already
    /// reported an event.
    pub(crate) fn unreported_registrations(
        &self,
        set: i32,
    ) -> Vec<(Registration, Option<RingPosition>)> {
        let Some(mut locked) = self.lock() else { return Vec::new() };
        let SocketState { stage, registrations, .. } = &mut *locked.state;
        let PromotionStage::Promoted(ring) = stage else { return Vec::new() };
        let all = registrations.iter().filter(|known| known.set == set && known.is_for_input());
        let mut unreported = Vec::new();
        for known in all.filter(|known| !known.is_one_shot()) {
            if known.is_level_triggered() {
                unreported.push((*known, None));
            } else if ring.read_until_datagram_pending() {
                let position = Some(ring.position());
                if known.reported != position {
                    unreported.push((*known, position));
                }
            }
        }
        unreported
    }

    /// Records that an event of the registration `reported` has reported the ring's datagrams to
    /// the program. `position` is the position of the ring at that time.
    pub(crate) fn note_reported(&self, reported: &Registration, position: Option<RingPosition>) {
        let Some(mut locked) = self.lock() else { return };
        let key = (reported.set, reported.number);
        let mut all = locked.state.registrations.iter_mut();
        if let Some(known) = all.find(|known| (known.set, known.number) == key) {
            known.reported = position;
        }
    }

    /// Puts the ring to sleep before a wait on an epoll set, even if the ring has datagrams,
    /// provided that an event has already reported them to the program. Later datagrams then wake
    /// the program through the placeholder (kernel socket), and are read after those in the ring.
    /// Returns false if the ring must stay awake, because the placeholder has datagrams that must
    /// be read first.
    pub(crate) fn leave_datagrams_unread(&self, set: i32) -> bool {
        let Some(mut locked) = self.lock() else { return true };
        let state = &mut *locked.state;
        let PromotionStage::Promoted(ring) = &mut state.stage else { return true };
        let mut known = state.registrations.iter().filter(|known| known.set == set);
        if !state.is_awake || !known.any(Registration::is_for_input) {
            return true;
        }
        let has_older = self.has_older_datagrams() && self.is_placeholder_readable(&state.numbers);
        if has_older && ring.read_until_datagram_pending() {
            return false;
        }
        if !ring.fall_asleep() && has_older {
            ring.wake_up();
            return false;
        }
        state.is_awake = false;
        self.has_older.store(false, Ordering::Relaxed);
        true
    }
}
