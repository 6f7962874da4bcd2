//! Idle connections to paths, which a program keeps between its queries.

use super::{Client, ClientError, PathClient};
use member::client::COUNT_METHOD;
use member::protocol::{CountReply, Counters, PathCountParameters};
use member::varlink::Call;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of idle connections, each of which has two descriptors.
const CONNECTIONS_MAX: usize = 256;

/// Idle connections of this process, by the number of the path.
#[derive(Debug, Default)]
pub struct IdleConnections(Mutex<HashMap<u32, PathClient>>);

impl IdleConnections {
    /// Takes the connection to the path with this number. Returns `None` if there is none.
    pub fn take(&self, number: u32) -> Option<PathClient> {
        self.lock().remove(&number)
    }

    /// Stores a connection of this process for later queries. No reply may be outstanding on the
    /// connection. Closes the connection instead if too many are stored.
    pub fn store(&self, to: PathClient) {
        let mut idle = self.lock();
        if idle.len() < CONNECTIONS_MAX {
            idle.insert(to.number(), to);
        }
    }

    /// Closes the stored connections to paths for whose number `is_wanted` returns false.
    pub fn retain(&self, is_wanted: impl Fn(u32) -> bool) {
        self.lock().retain(|number, _| is_wanted(*number));
    }

    /// Takes the connection to the path with this number, given in decimal. Returns `None` if there
    /// is no connection.
    pub(super) fn take_by_path_number(&self, number: &str) -> Option<PathClient> {
        self.take(number.parse().ok()?)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, PathClient>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the counters of the paths with these owners and numbers, in the same order. The query
/// does not make the paths measure the time spent in filters. Blocks for at most `limit` in total,
/// plus `limit` for each path of an older version, which is queried again.
pub fn query_counters(
    client: &Client,
    numbers: &[(u32, u32)],
    idle: &IdleConnections,
    limit: Duration,
) -> Vec<Result<Counters, ClientError>> {
    let call = Call::new(COUNT_METHOD, &PathCountParameters { first: Some(0), timed: Some(false) });
    let calls =
        numbers.iter().map(|(uid, number)| (*uid, (number.to_string(), vec![call.clone()])));
    let calls: Vec<_> = calls.collect();
    let take = |number: &str| idle.take_by_path_number(number);
    let mut counted = client.call_all_reusing_idle(&calls, take, limit, |to, replies| {
        let first: CountReply =
            replies.into_iter().next().unwrap_or_default().deserialize_result()?;
        let counters = to.request_remaining_counters(first)?;
        idle.store(to);
        Ok(counters)
    });
    for (result, (uid, number)) in counted.iter_mut().zip(numbers) {
        if matches!(result, Err(ClientError::Refused(_))) {
            // A path of an older version does not know the parameter `timed`.
            let path = [(*uid, number.to_string())];
            let again =
                client.query_all_counters(&path, &[], limit, |_, counters, _| Ok(counters)).pop();
            *result = again.unwrap_or(Err(ClientError::Timeout));
        }
    }
    counted
}
