//! Taps of a path, which copy the frames that leave a node to a client's pipe, and writers, whose
//! blocks are added to a node's output.

use super::service::Service;
use crate::faults;
use crate::protocol::{
    FreezeHistoryParameters, TapParameters as Asked, TapReport, TapStart, WriteParameters,
};
use crate::varlink::{Fault, Reply};
use engine::live::PathHandle;
use engine::tap::{self as taps, StreamForm, TapNode, TapRequest, TapRingWriter};
use engine::writers::WriterRequest;
use runtime::space::tap::{self, OverrunPolicy, TapStats};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Time without a read of a tap's pipe after which the tap ends, in ms: the default, and the
/// maximum that a client may request.
const IDLE_READER_LIMITS_MS: (u64, u64) = (10_000, 24 * 3600 * 1000);

/// Maximum time that an ending path waits for the readers of its taps to read everything. The path
/// does not wait for readers that have requested a last report.
const FINAL_TAP_TIMEOUT: Duration = Duration::from_secs(2);

/// Capacity of a tap's pipe, in bytes.
const PIPE_SIZE: usize = 512 << 10;

/// Starts a tap for a client. Returns the tap, the start of the tap, and the descriptors to send to
/// the client: the reading end of the tap's pipe or, if the client has asked for a ring, the socket
/// and the memory of the ring. Blocks for at most `limit` for each reply from a space.
pub(super) fn start_tap(
    lives: &[PathHandle],
    asked: &Asked,
    limit: Duration,
) -> Result<(tap::Tap, TapStart, Vec<OwnedFd>), Fault> {
    let refused = |why: &dyn std::fmt::Display| faults::untapped(&why.to_string());
    let live = only_component(lives)?;
    let since = asked
        .from
        .as_deref()
        .map(taps::parse_tap_origin)
        .transpose()
        .map_err(|why| refused(&why))?;
    let form = match asked.form.as_deref() {
        None | Some("capture") => StreamForm::Capture,
        Some("bytes") => StreamForm::Bytes,
        Some("json") => StreamForm::Json,
        Some(other) => return Err(refused(&format!("it has no form `{other}`"))),
    };
    // Without memory for a ring, the pipe carries the blocks.
    let ring = if asked.share == Some(true) { TapRingWriter::new().ok() } else { None };
    let shared = ring.as_ref().map(TapRingWriter::duplicate_descriptor).transpose();
    let shared = shared.map_err(|error| refused(&error))?;
    let pair = match ring {
        Some(_) => sys::descriptor::socket_pair(),
        None => sys::descriptor::pipe(),
    };
    let (near, pipe) = pair.map_err(|error| refused(&error))?;
    if ring.is_none() {
        // A small pipe would wake the reader more often.
        let _ = sys::pipe::set_capacity(&pipe, PIPE_SIZE);
    }
    let wanted = TapRequest {
        node: requested_node(asked.id, asked.node.as_ref()),
        classes: asked.classes.clone(),
        form,
        since,
        policy: if asked.all == Some(true) { OverrunPolicy::End } else { OverrunPolicy::Skip },
        patience: Duration::from_millis(
            asked.patience_ms.unwrap_or(IDLE_READER_LIMITS_MS.0).min(IDLE_READER_LIMITS_MS.1),
        ),
        pipe,
        ring,
    };
    let (tap, began) = live.tap(wanted, limit).map_err(|why| refused(&why))?;
    let began = TapStart {
        block: began.block,
        past: began.history_blocks,
        ago_ns: began.first_age_ns,
        remembers: began.has_history,
    };
    Ok((tap, began, std::iter::once(near).chain(shared).collect()))
}

/// Attaches a writer. Returns the client's end of the writer's socket. Blocks for at most `limit`
/// for each reply from a space.
pub(super) fn attach_writer(
    lives: &[PathHandle],
    asked: &WriteParameters,
    limit: Duration,
) -> Result<OwnedFd, Fault> {
    let refused = |why: &dyn std::fmt::Display| faults::untapped(&why.to_string());
    let capture = match asked.form.as_deref() {
        None | Some("bytes") => false,
        Some("capture") => true,
        Some(other) => return Err(refused(&format!("`{other}` cannot be written"))),
    };
    let wanted = WriterRequest {
        node: requested_node(asked.id, asked.node.as_ref()),
        class: asked.class.clone().unwrap_or_default(),
        capture,
    };
    let attached = only_component(lives)?.attach_writer(&wanted, limit);
    Ok(attached.map_err(|why| refused(&why))?.into_socket())
}

/// Freezes the retained output of a source for some time, during which no stored frame is evicted.
/// Blocks for at most `limit` until the spaces reply.
pub(super) fn freeze_history(
    lives: &[PathHandle],
    asked: &FreezeHistoryParameters,
    limit: Duration,
) -> Result<(), Fault> {
    let node = requested_node(asked.id, asked.node.as_ref());
    let ns = asked.ms.saturating_mul(1_000_000);
    let frozen = only_component(lives)?.freeze_history(node.as_ref(), ns, limit);
    frozen.map_err(|why| faults::untapped(&why.to_string()))
}

/// Returns the only connected component of a path. Fails if there are several.
fn only_component(lives: &[PathHandle]) -> Result<&PathHandle, Fault> {
    match lives {
        [live] => Ok(live),
        [] => Err(faults::untapped("several processes run it (`--engines`), each for its share")),
        _ => Err(faults::untapped("it has several unconnected parts")),
    }
}

/// Returns the node that a client identifies by number or, without a number, by name. Returns
/// `None` if the client specifies neither.
fn requested_node(id: Option<u64>, name: Option<&String>) -> Option<TapNode> {
    let number = id.map(|id| TapNode::Number(usize::try_from(id).unwrap_or(usize::MAX)));
    number.or_else(|| name.cloned().map(TapNode::Name))
}

/// Returns the state of a tap. Fails if `tap` is `None`.
pub(super) fn tap_report(tap: Option<&tap::Tap>) -> Result<TapReport, Fault> {
    let none = || faults::untapped("this connection has no tap");
    Ok(stats_report(&tap.ok_or_else(none)?.stats()))
}

fn stats_report(stats: &TapStats) -> TapReport {
    let TapStats { frames, skipped, missing, no_frame, cut, end_reason } = stats;
    let (frames, skipped, no_frame, cut) = (*frames, *skipped, *no_frame, *cut);
    let missing = (!missing.is_empty()).then(|| missing.to_string());
    TapReport {
        frames,
        skipped,
        missing,
        no_frame,
        cut,
        over: end_reason.map(|why| why.to_string()),
    }
}

impl Service {
    /// Ends the taps of a path that has ended. First sends a last report to each client that awaits
    /// one, with a file of the bytes that did not fit into the pipe. Then waits until the readers
    /// of the other taps have read everything. Blocks for at most [`FINAL_TAP_TIMEOUT`].
    pub(super) fn finish_taps(&mut self) {
        let deadline = Instant::now() + FINAL_TAP_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        let awaiting = self.clients.iter_mut().filter(|(_, client)| client.awaits_tap_end);
        let taps: Vec<_> =
            awaiting.filter_map(|(id, client)| Some((*id, client.tap.take()?))).collect();
        taps.iter().for_each(|(_, tap)| tap.finish_without_waiting());
        for (id, tap) in taps {
            let (stats, rest) = tap.finish(left());
            let rest = rest.into_iter().map(OwnedFd::from).collect();
            self.send_with_descriptors(id, &Reply::new(&stats_report(&stats)), rest);
        }
        for tap in self.clients.values().filter_map(|client| client.tap.as_ref()) {
            tap.wait_for_end(left());
        }
    }
}
