//! Taps of a path: copies of the frames that leave a node, written to a client's pipe.

use crate::faults;
use crate::protocol::{Tap as Asked, TapReport, TapStart};
use crate::varlink::Fault;
use engine::live::Live;
use engine::tap::{self as taps, StreamForm, TapRequest, TappedNode};
use runtime::space::tap::{self, OverrunPolicy, TapStats};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Default and maximum time without progress of the reader, in ms.
const PATIENCE_MS: (u64, u64) = (10_000, 24 * 3600 * 1000);

/// Starts a tap. Returns the tap, its start, and the reading end of its pipe. Blocks for at most
/// `limit` until the spaces reply.
pub(super) fn start_tap(
    lives: &[Live],
    asked: &Asked,
    limit: Duration,
) -> Result<(tap::Tap, TapStart, OwnedFd), Fault> {
    let refused = |why: &dyn std::fmt::Display| faults::untapped(&why.to_string());
    let live = match lives {
        [live] => live,
        [] => return Err(refused(&"several processes run it (`--engines`), each for its share")),
        _ => return Err(refused(&"it has several unconnected parts")),
    };
    let since =
        asked.from.as_deref().map(taps::parse_since).transpose().map_err(|why| refused(&why))?;
    let form = match asked.form.as_deref() {
        None | Some("capture") => StreamForm::Capture,
        Some("bytes") => StreamForm::Bytes,
        Some("json") => StreamForm::Json,
        Some(other) => return Err(refused(&format!("it has no form `{other}`"))),
    };
    let node = asked.id.map(|id| TappedNode::Number(usize::try_from(id).unwrap_or(usize::MAX)));
    let (near, pipe) = sys::descriptor::pipe().map_err(|error| refused(&error))?;
    let wanted = TapRequest {
        node: node.or_else(|| asked.node.clone().map(TappedNode::Name)),
        classes: asked.classes.clone(),
        form,
        since,
        policy: if asked.all == Some(true) { OverrunPolicy::End } else { OverrunPolicy::Skip },
        patience: Duration::from_millis(
            asked.patience_ms.unwrap_or(PATIENCE_MS.0).min(PATIENCE_MS.1),
        ),
        pipe,
    };
    let (tap, began) = live.tap(wanted, limit).map_err(|why| refused(&why))?;
    let tap::TapStart { block, past, ago_ns, remembers } = began;
    Ok((tap, TapStart { block, past, ago_ns, remembers }, near))
}

/// Returns the state of a tap. Fails if there is none.
pub(super) fn tap_report(tap: Option<&tap::Tap>) -> Result<TapReport, Fault> {
    let none = || faults::untapped("this connection has no tap");
    let TapStats { frames, skipped, missing, no_frame, cut, over } = tap.ok_or_else(none)?.stats();
    let missing = (!missing.is_empty()).then(|| missing.to_string());
    Ok(TapReport { frames, skipped, missing, no_frame, cut, over: over.map(|why| why.to_string()) })
}
