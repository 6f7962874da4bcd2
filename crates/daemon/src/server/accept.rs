//! Letting guests in: as many as their user may have.

use super::guest::{self, Guest, Part};
use super::{FIRST, Server};
use abi::access::Credentials;
use member::connection::Connection;
use member::faults;
use member::varlink::Reply;
use std::os::fd::OwnedFd;
use sys::local_socket::{self, Framing};
use sys::watcher::Interest;

/// Connections accepted before other work gets its turn.
const GUESTS_A_TURN: usize = 64;
/// Connections reserved for root and the daemon's own user.
const RESERVED: usize = 64;

impl Server {
    /// Lets those in who wait at a socket. Answers whether the kernel is out of descriptors or of
    /// memory for now.
    pub(super) fn come_in(&mut self, socket: u64) -> bool {
        for _ in 0..GUESTS_A_TURN {
            let place = usize::try_from(socket).ok().and_then(|place| self.sockets.get(place));
            let Some((listener, form)) = place else { return false };
            match local_socket::accept(listener) {
                Ok(Some(visitor)) => {
                    let form = *form;
                    // Whoever cannot be known is not let in.
                    let _ = self.welcome(visitor, form);
                }
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        false
    }

    fn welcome(&mut self, visitor: OwnedFd, form: Framing) -> sys::Result<()> {
        let peer = sys::abstract_socket::peer(&visitor)?;
        let process = peer.process;
        let who = Credentials { uid: peer.uid, gid: peer.gid, groups: peer.groups };
        let mut connection = Connection::new(visitor, form);
        if self.full(who.uid).is_some() {
            self.sweep(who.uid, 0);
        }
        if let Some(limit) = self.full(who.uid) {
            let reply = Reply::from(&faults::quota("connections", limit));
            // Who has gone again need not be told.
            let _ = connection.say(reply.text(), Vec::new());
            return Ok(());
        }
        let id = self.next.max(FIRST);
        self.next = id + 1;
        self.watcher.watch(&connection, guest::number(id, Part::Connection), Interest::Read)?;
        *self.per_user.entry(who.uid).or_default() += 1;
        self.guests.insert(id, Guest::new(connection, who, process));
        Ok(())
    }

    /// The limit that keeps this user out, if one does.
    fn full(&self, uid: u32) -> Option<u64> {
        let used = self.per_user.get(&uid).copied().unwrap_or(0);
        let limit = self.policy.quota(uid).connections;
        if let Some(limit) = limit.filter(|limit| used >= *limit) {
            return Some(limit);
        }
        let own = uid == 0 || uid == sys::process::identity().0;
        let reserved = if own { 0 } else { RESERVED.min(self.guests_max / 2) };
        (self.guests.len() + reserved >= self.guests_max).then_some(used)
    }
}
