//! Taps at a path, for those who were let in: frames that leave a node, through a pipe.

use crate::faults;
use crate::protocol::{Tap as Asked, Tapped, Tapping};
use crate::varlink::Fault;
use engine::live::Live;
use engine::tap::{self, Wanted};
use runtime::space::taps::{Began, Policy, Tap, TapStats};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// The default and the longest time that a tap stays unread, in ms.
const PATIENCE_MS: (u64, u64) = (10_000, 600_000);

/// Begins one; answers where, and the reading end of its pipe.
pub(super) fn begin(
    lives: &[Live],
    asked: &Asked,
    limit: Duration,
) -> Result<(Tap, Tapping, OwnedFd), Fault> {
    let refused = |why: &dyn std::fmt::Display| faults::untapped(&why.to_string());
    let live = match lives {
        [live] => live,
        [] => return Err(refused(&"several processes run it (`--engines`), each a part of it")),
        _ => return Err(refused(&"it has several parts that nothing joins")),
    };
    let since =
        asked.from.as_deref().map(tap::parse_since).transpose().map_err(|why| refused(&why))?;
    let (near, pipe) = sys::descriptor::pipe().map_err(|error| refused(&error))?;
    let wanted = Wanted {
        node: asked.node.clone(),
        since,
        policy: if asked.all == Some(true) { Policy::End } else { Policy::Skip },
        patience: Duration::from_millis(
            asked.patience_ms.unwrap_or(PATIENCE_MS.0).min(PATIENCE_MS.1),
        ),
        pipe,
    };
    let (tap, began) = live.tap(wanted, limit).map_err(|why| refused(&why))?;
    let Began { block, past, ago_ns, remembers } = began;
    Ok((tap, Tapping { block, past, ago_ns, remembers }, near))
}

/// Returns the state of a tap.
pub(super) fn told(tap: Option<&Tap>) -> Result<Tapped, Fault> {
    let none = || faults::untapped("this connection has no tap");
    let TapStats { frames, skipped, missing, no_frame, over } = tap.ok_or_else(none)?.stats();
    let missing = (!missing.is_empty()).then(|| missing.to_string());
    Ok(Tapped { frames, skipped, missing, no_frame, over: over.map(|why| why.to_string()) })
}
