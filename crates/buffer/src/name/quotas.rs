//! The readers of a named stream or region, and the limits on their number.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Limits on the simultaneous readers of one stream or region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Readers in all.
    pub readers: usize,
    /// Readers of any one user but the owner, so that one untrusted peer never takes all places.
    pub per_untrusted_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { readers: 32, per_untrusted_user: 8 }
    }
}

/// The readers of one stream or region, each with what gives its place back.
#[derive(Debug)]
pub(super) struct Clients<T>(Vec<Client<T>>);

impl<T> Default for Clients<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

#[derive(Debug)]
struct Client<T> {
    ticket: T,
    uid: u32,
    /// Our end of its socket, or a copy of it: it hangs up when the reader is gone, however that
    /// happened.
    doorbell: Arc<OwnedFd>,
}

/// The refusal of one more reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    pub(super) limit: usize,
    pub(super) of_user: bool,
}

impl<T> Clients<T> {
    /// Checks that there is a place for one more reader of this user.
    pub(super) fn room(&self, uid: u32, owner: u32, limits: Limits) -> Result<(), Full> {
        let of_user = self.0.iter().filter(|client| client.uid == uid).count();
        if self.0.len() >= limits.readers {
            Err(Full { limit: limits.readers, of_user: false })
        } else if uid != owner && uid != ROOT && of_user >= limits.per_untrusted_user {
            Err(Full { limit: limits.per_untrusted_user, of_user: true })
        } else {
            Ok(())
        }
    }

    pub(super) fn add(&mut self, ticket: T, uid: u32, doorbell: OwnedFd) {
        self.0.push(Client { ticket, uid, doorbell: Arc::new(doorbell) });
    }

    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Their doorbells.
    pub(super) fn doorbells(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        self.0.iter().map(|client| client.doorbell.clone())
    }

    /// Frees the places of those who are gone, and answers what was theirs.
    pub(super) fn show_out(&mut self, gone: &[&Arc<OwnedFd>]) -> Vec<T> {
        let left = |client: &mut Client<T>| {
            gone.iter().any(|doorbell| Arc::ptr_eq(doorbell, &client.doorbell))
        };
        self.0.extract_if(.., left).map(|client| client.ticket).collect()
    }
}

const ROOT: u32 = 0;
