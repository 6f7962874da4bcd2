//! Ranges of dbuf ids from the daemon, so that ids are unique on this machine. [SL §5.3.1],
//! FEATURES D3

use crate::client::Client;
use engine::ids::{IdRange, set_source};
use std::time::Duration;

/// Timeout of the call. Without an answer the ids are unique in the process tree only.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Takes the dbuf ids of this process from the daemon, if one listens when they are needed. To be
/// called before the first dbuf is created; repeated calls have no effect.
pub fn use_daemon_ids() {
    set_source(ask);
}

/// Asks the daemon for a range. Blocks for at most [`TIMEOUT`].
fn ask() -> Option<IdRange> {
    let caller = Client::find(None).ok()?.into_caller(TIMEOUT).ok()?;
    let reply: crate::protocol::DbufIds =
        caller.call("io.streamline.DbufIds", &crate::protocol::NoParameters {}).ok()?;
    Some(IdRange { first: reply.first, count: reply.count })
}
