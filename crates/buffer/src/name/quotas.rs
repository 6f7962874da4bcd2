//! The readers of a named stream or region, and the limits on their number.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use sys::eventfd::EventFd;

/// Limits on the simultaneous readers of one stream or region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReaderLimits {
    /// Maximum number of readers.
    pub readers: usize,
    /// Maximum number of readers per untrusted user, which is any user other than the owner and
    /// root. Prevents such a user from taking all slots.
    pub per_untrusted_user: usize,
}

impl Default for ReaderLimits {
    fn default() -> Self {
        Self { readers: 32, per_untrusted_user: 8 }
    }
}

/// The clients that read one stream or region.
#[derive(Debug)]
pub(super) struct Clients<T>(Vec<Client<T>>);

impl<T> Default for Clients<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// A reading client, which occupies a slot.
#[derive(Debug)]
struct Client<T> {
    ticket: T,
    uid: u32,
    /// The reader's socket, which hangs up when the reader exits for any reason.
    doorbell: Arc<OwnedFd>,
}

/// The refusal of a further reader: the limit that the reader would exceed, and a flag that is true
/// if the limit applies to each untrusted user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QuotaExceeded {
    pub(super) limit: usize,
    pub(super) of_user: bool,
}

impl<T> Clients<T> {
    /// Checks that user `uid` may occupy another reader slot of an object that `owner` owns.
    pub(super) fn check_quota(
        &self,
        uid: u32,
        owner: u32,
        limits: ReaderLimits,
    ) -> Result<(), QuotaExceeded> {
        let of_user = self.0.iter().filter(|client| client.uid == uid).count();
        if self.0.len() >= limits.readers {
            Err(QuotaExceeded { limit: limits.readers, of_user: false })
        } else if uid != owner && uid != ROOT_UID && of_user >= limits.per_untrusted_user {
            Err(QuotaExceeded { limit: limits.per_untrusted_user, of_user: true })
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

    /// Returns the doorbells of all readers.
    pub(super) fn doorbells(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        self.0.iter().map(|client| client.doorbell.clone())
    }

    /// Releases the slots of the readers whose doorbells are in `closed`. Returns the tickets of
    /// these readers.
    pub(super) fn release_departed_readers(&mut self, closed: &[&Arc<OwnedFd>]) -> Vec<T> {
        let has_departed = |client: &mut Client<T>| {
            closed.iter().any(|doorbell| Arc::ptr_eq(doorbell, &client.doorbell))
        };
        self.0.extract_if(.., has_departed).map(|client| client.ticket).collect()
    }
}

/// Events to notify when the number of readers of a name may have changed.
#[derive(Debug, Default)]
pub(super) struct ReaderEvents(Vec<Weak<EventFd>>);

impl ReaderEvents {
    /// Adds an event, which is notified until the caller drops it.
    pub(super) fn add(&mut self, event: &Arc<EventFd>) {
        self.0.push(Arc::downgrade(event));
    }

    pub(super) fn notify(&mut self) {
        self.0.retain(|event| {
            let event = event.upgrade();
            event.iter().for_each(|event| event.notify());
            event.is_some()
        });
    }
}

const ROOT_UID: u32 = 0;
