//! Updates for the clients that follow a path: counters at intervals, and finally the exit status.
//!
//! An update for many filters consists of several replies, called pages. The next page is sent only
//! after the socket has accepted the previous one, so each client occupies memory for at most one
//! page.

use super::counters::counters_page;
use super::service::{AdmittedClient, Service};
use crate::protocol::{Counters, FollowParameters, PathEnd, PathUpdate, UpdateForm};
use crate::varlink::Reply;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

/// Default interval between two updates to a client, in ms.
const DEFAULT_UPDATE_INTERVAL_MS: u64 = 1000;
/// Minimum interval between two updates to a client, in ms.
const UPDATE_INTERVAL_MS_MIN: u64 = 50;
/// Maximum interval between two updates to a client, in ms.
const UPDATE_INTERVAL_MS_MAX: u64 = 3_600_000;

/// The schedule of the updates that the worker sends to a client. All times are in ns of the
/// monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateSchedule {
    every: u64,
    next: u64,
    form: UpdateForm,
    /// Interval at which an update with all counters replaces an update with totals; `None` means
    /// never.
    counters_every: Option<u64>,
    /// Time at which the next update with all counters is due.
    counters_next: u64,
}

/// An update for a client that follows the path, of which some pages have not been sent yet.
#[derive(Debug)]
pub(super) struct UnsentPages {
    counters: Arc<Counters>,
    /// Index of the first filter or edge on the next page to be sent.
    next: usize,
    ended: Option<PathEnd>,
}

impl UpdateSchedule {
    /// Creates a schedule whose first update is due at `now`.
    pub(super) fn new(wanted: FollowParameters, now: u64) -> Self {
        let ns = |ms: u64| ms.clamp(UPDATE_INTERVAL_MS_MIN, UPDATE_INTERVAL_MS_MAX) * 1_000_000;
        Self {
            every: ns(wanted.every_ms.unwrap_or(DEFAULT_UPDATE_INTERVAL_MS)),
            next: now,
            form: wanted.form.unwrap_or_default(),
            counters_every: wanted.counters_every_ms.map(ns),
            counters_next: now,
        }
    }

    /// Returns the form of the update that is due at `now`, and computes the time of the next
    /// update. If several updates were missed, only one of them is due, at once.
    fn advance(&mut self, now: u64) -> UpdateForm {
        self.next = (self.next + self.every).max(now);
        match self.counters_every {
            Some(every) if self.form == UpdateForm::Totals && self.counters_next <= now => {
                self.counters_next = now + every;
                UpdateForm::Pages
            }
            _ => self.form,
        }
    }
}

impl AdmittedClient {
    /// Returns the monotonic time of the next update, in ns, or `None` without a subscription or
    /// while pages of the previous update are unsent.
    pub(super) fn next_update_time(&self) -> Option<u64> {
        let schedule = self.schedule.filter(|_| self.unsent_pages.is_none())?;
        Some(schedule.next)
    }

    /// Returns true if the client has no tap and no subscription, has received its replies, and has
    /// sent no call that has not been handled.
    pub(super) fn is_idle(&self) -> bool {
        self.tap.is_none()
            && self.schedule.is_none()
            && self.unsent_pages.is_none()
            && self.unread_counters.is_none()
            && !self.connection.has_unsent_messages()
            && sys::poll::wait_until_readable_despite_signals(
                &[self.connection.as_fd()],
                Some(Duration::ZERO),
            ) == [false]
    }

    /// Returns true if the path must measure the time spent in filters for this client: the client
    /// has asked for counters, or has subscribed to all counters. A subscription to totals does not
    /// count, even if it includes all counters at longer intervals.
    pub(super) fn wants_filter_times(&self) -> bool {
        self.has_counted
            || self.schedule.is_some_and(|schedule| schedule.form != UpdateForm::Totals)
    }
}

impl Service {
    /// Sends the updates that are due.
    pub(super) fn send_updates(&mut self) {
        let now = sys::clock::monotonic_ns();
        let due =
            |client: &AdmittedClient| client.next_update_time().is_some_and(|next| next <= now);
        let due = self.clients.iter().filter(|(_, client)| due(client)).map(|(id, _)| *id);
        self.send_update(&due.collect::<Vec<_>>(), None);
    }

    /// Sends the last update, which reports the end of the path, to the clients in `waiting`, and
    /// removes these clients from `waiting`. Leaves a client in `waiting` if it has not received
    /// all pages of its previous update.
    pub(super) fn send_last_updates(&mut self, waiting: &mut Vec<u64>, ended: &PathEnd) {
        let has_read =
            |id: &u64| self.clients.get(id).is_none_or(|client| client.unsent_pages.is_none());
        let ready: Vec<u64> = waiting.extract_if(.., |id| has_read(id)).collect();
        self.send_update(&ready, Some(ended));
    }

    /// Sends an update to each client in `ids` that has a schedule. If `ended` is given, the update
    /// is the last one and contains the end of the path.
    fn send_update(&mut self, ids: &[u64], ended: Option<&PathEnd>) {
        let now = sys::clock::monotonic_ns();
        let (mut counters, mut totals) = (None, None);
        for id in ids {
            let schedule = self.clients.get_mut(id).and_then(|client| client.schedule.as_mut());
            let Some(form) = schedule.map(|schedule| schedule.advance(now)) else { continue };
            let ended = ended.cloned();
            if form == UpdateForm::Totals {
                let totals = *totals.get_or_insert_with(|| self.current_totals());
                self.send_reply(
                    *id,
                    PathUpdate { totals: Some(totals), ended, ..PathUpdate::default() },
                );
                continue;
            }
            let counters = counters.get_or_insert_with(|| Arc::new(self.current_counters()));
            if form == UpdateForm::Whole {
                let counters = Some(Counters::clone(counters));
                self.send_reply(*id, PathUpdate { counters, ended, ..PathUpdate::default() });
            } else if let Some(client) = self.clients.get_mut(id) {
                let counters = Arc::clone(counters);
                client.unsent_pages = Some(UnsentPages { counters, next: 0, ended });
                self.send_pages(*id);
            }
        }
    }

    fn send_reply(&mut self, id: u64, update: PathUpdate) {
        let continues = update.next.is_some() || update.ended.is_none();
        self.send(id, &Reply { continues, ..Reply::new(&update) });
    }

    /// Sends pages of a client's update until the socket accepts no more data.
    pub(super) fn send_pages(&mut self, id: u64) {
        while let Some(client) = self.clients.get_mut(&id)
            && !client.connection.has_unsent_messages()
            && let Some(UnsentPages { counters, next, ended }) = client.unsent_pages.take()
        {
            let page = counters_page(&counters, next);
            let last = ended.clone().filter(|_| page.next.is_none());
            client.unsent_pages = page.next.map(|next| UnsentPages { counters, next, ended });
            let (counters, next) = (Some(page.counters), page.next);
            self.send_reply(id, PathUpdate { counters, next, totals: None, ended: last });
        }
    }
}
