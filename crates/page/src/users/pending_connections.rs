//! A bounded set of places, one for each connection that has not yet been handed to a user's
//! process. A peer may open connections without sending a request, or may not read the reply. Such
//! a peer cannot lock out others: if all places are taken, the oldest of these connections is
//! closed to make room for a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

use super::process::lock;

/// The stage of a connection that occupies a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The head of the request has not arrived.
    Head,
    /// The connection receives a file of the page.
    File,
    /// The connection is being handed to the process of a user.
    Handover,
}

/// The connections that have not yet been handed to a user's process. Each occupies one of a
/// limited number of places.
#[derive(Debug)]
pub(super) struct PendingConnections {
    max: usize,
    taken: Mutex<PendingConnectionState>,
}

#[derive(Debug, Default)]
struct PendingConnectionState {
    /// The connections, from the oldest to the newest.
    all: BTreeMap<u64, ConnectedClient>,
    next: u64,
}

#[derive(Debug)]
struct ConnectedClient {
    stage: Stage,
    /// Sender that signals the owner of the connection to close it; dropping the sender is the
    /// signal.
    _end: oneshot::Sender<()>,
}

/// A place in [`PendingConnections`] that one connection occupies. Dropping this value frees the
/// place.
#[derive(Debug)]
pub(super) struct PendingConnection {
    places: Arc<PendingConnections>,
    number: u64,
}

impl PendingConnections {
    /// Creates places for at most `max` connections.
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, taken: Mutex::default() })
    }

    /// Takes a place for a new connection. The caller must close the connection when the returned
    /// receiver completes. If all places are taken, frees the place of the oldest connection in
    /// [`Stage::Head`], whose owner then closes it. If no connection is in this stage, frees the
    /// place of the oldest one in [`Stage::File`]. Returns `None` if all places are taken by
    /// connections in [`Stage::Handover`].
    pub(super) fn take(self: &Arc<Self>) -> Option<(PendingConnection, oneshot::Receiver<()>)> {
        let mut taken = lock(&self.taken);
        if taken.all.len() >= self.max {
            let oldest = |stage: Stage| {
                let mut all = taken.all.iter();
                all.find(|(_, connected)| connected.stage == stage).map(|(number, _)| *number)
            };
            let oldest = oldest(Stage::Head).or_else(|| oldest(Stage::File))?;
            taken.all.remove(&oldest);
        }
        let number = taken.next;
        taken.next += 1;
        let (end, ended) = oneshot::channel();
        taken.all.insert(number, ConnectedClient { stage: Stage::Head, _end: end });
        drop(taken);
        Some((PendingConnection { places: Arc::clone(self), number }, ended))
    }
}

impl PendingConnection {
    /// Records the stage that the connection has reached.
    pub(super) fn set_stage(&self, stage: Stage) {
        if let Some(connected) = lock(&self.places.taken).all.get_mut(&self.number) {
            connected.stage = stage;
        }
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        lock(&self.places.taken).all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_connection_ends_the_oldest_without_a_head() {
        let places = PendingConnections::new(3);
        let take = || places.take().unwrap();
        let is_over = |end: &mut oneshot::Receiver<()>| {
            end.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let (mut first, mut second, mut third) = (take(), take(), take());
        first.0.set_stage(Stage::File);
        let mut fourth = take();
        assert_eq!(
            [&mut first, &mut second, &mut third].map(|it| is_over(&mut it.1)),
            [false, true, false]
        );
        for place in [&third.0, &fourth.0] {
            place.set_stage(Stage::Handover);
        }
        let fifth = take();
        assert!(is_over(&mut first.1), "then the oldest with a file");
        fifth.0.set_stage(Stage::Handover);
        assert!(places.take().is_none());
        assert!(!is_over(&mut third.1) && !is_over(&mut fourth.1));
        drop((first, second));
        assert!(places.take().is_none(), "their places were taken already");
        drop(third);
        assert!(places.take().is_some());
    }
}
