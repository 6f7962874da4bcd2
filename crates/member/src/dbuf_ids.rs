//! Ranges of dbuf ids. The daemon assigns them, so that ids are unique on this machine. [SL
//! §5.3.1], FEATURES D3

use crate::client::Client;
use engine::ids::{IdRange, set_id_source};
use std::time::Duration;

/// Timeout of the call that requests ids from the daemon. If the daemon does not reply in time, ids
/// are unique only within this process and its descendants.
const ID_REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Makes this process request its dbuf ids from the daemon, if a daemon is running when ids are
/// needed. Must be called before the first dbuf is created. Repeated calls have no effect.
pub fn use_daemon_dbuf_ids() {
    set_id_source(request_id_range);
}

/// Requests a range of ids from the daemon. Returns `None` if there is no daemon, or if it refuses
/// or does not reply within [`ID_REQUEST_TIMEOUT`].
fn request_id_range() -> Option<IdRange> {
    let caller = Client::find(None).ok()?.into_caller(ID_REQUEST_TIMEOUT).ok()?;
    let reply: crate::protocol::DbufIds =
        caller.call("io.streamline.DbufIds", &crate::protocol::NoParameters {}).ok()?;
    Some(IdRange { first: reply.first, count: reply.count })
}
