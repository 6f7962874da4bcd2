//! Streams whose filter moves to another path, where they continue with a new tap.
//!
//! Before an edit moves nodes, their streams are marked ([`Streams::mark_moving_streams`]). If the
//! tap of a marked stream ends because the node has left the path, the stream waits for a new tap
//! in the other path, its continuation.

use super::taps::TapConnection;
use super::{OpenStream, StreamOrigin, Streams};
use crate::entries::StreamForm;
use crate::totals::Totals;
use crate::transfer::StreamInput;
use crate::tree::DirectoryId;
use std::collections::HashSet;
use std::sync::Arc;
use streamline::paths::NODE_CHANGED_REASON;

/// The state of a stream whose filter moves to another path.
#[derive(Debug)]
pub(super) enum StreamMove {
    /// An edit that moves the stream's node has begun, but the node is still in its old path.
    Awaited,
    /// The node has left its old path. Reads of the stream wait until a tap in the new path is
    /// open.
    Left,
    /// A tap in the new path is open. It replaces the stream's current tap when that tap ends.
    Ready(StreamContinuation),
}

/// The tap with which a stream continues after its node has moved to another path.
#[derive(Debug)]
pub struct StreamContinuation {
    /// The input of the stream from the new tap.
    pub input: StreamInput,
    /// The connection of the new tap.
    pub tap: Arc<TapConnection>,
    /// New directory of the node or class whose blocks the stream carries.
    pub place: DirectoryId,
    /// Byte counters of the new directory of the stream.
    pub totals: Arc<Totals>,
}

impl Streams {
    /// Marks the open streams of these nodes as moving. Captures are not marked, because a capture
    /// file has a single header and cannot continue with the frames of another source.
    pub fn mark_moving_streams(&self, nodes: &HashSet<DirectoryId>) {
        for stream in self.lock().values_mut() {
            let moves = |(place, form): &(DirectoryId, StreamForm)| {
                *form != StreamForm::Capture && nodes.contains(&place.without_class())
            };
            if stream.place.as_ref().is_some_and(moves) {
                stream.moving = Some(StreamMove::Awaited);
            }
        }
    }

    /// Returns the streams that are marked as moving and have no continuation yet: for each, its
    /// handle, its directory, the format of its blocks, and the id of its user.
    #[must_use]
    pub fn streams_awaiting_continuation(&self) -> Vec<(u64, DirectoryId, StreamForm, u32)> {
        let open = self.lock();
        let marked = open.iter().filter(|(_, stream)| {
            matches!(stream.moving, Some(StreamMove::Awaited | StreamMove::Left))
                && stream.failed.is_none()
        });
        let facts = |(handle, stream): (&u64, &OpenStream)| {
            let (place, form) = stream.place.clone()?;
            Some((*handle, place, form, stream.uid))
        };
        marked.filter_map(facts).collect()
    }

    /// Makes a stream that is marked as moving continue with another tap, as soon as its current
    /// tap has ended.
    pub fn set_continuation(&self, handle: u64, next: StreamContinuation) {
        let mut open = self.lock();
        let Some(stream) = open.get_mut(&handle) else { return };
        match stream.moving.take() {
            Some(StreamMove::Left) => self.start_continuation(handle, stream, next),
            Some(StreamMove::Awaited) => stream.moving = Some(StreamMove::Ready(next)),
            other => stream.moving = other,
        }
    }

    /// Cancels the pending moves of the streams of these nodes. A stream that already has a
    /// continuation keeps it. A stream whose node has already left the path ends.
    pub fn unmark_moving_streams(&self, nodes: &HashSet<DirectoryId>) {
        for stream in self.lock().values_mut() {
            if !stream
                .place
                .as_ref()
                .is_some_and(|(place, _)| nodes.contains(&place.without_class()))
            {
                continue;
            }
            match stream.moving.take() {
                Some(StreamMove::Left) => {
                    self.failures.set_failure(stream.uid, NODE_CHANGED_REASON.to_owned());
                    self.end(stream, true);
                }
                Some(StreamMove::Ready(next)) => stream.moving = Some(StreamMove::Ready(next)),
                Some(StreamMove::Awaited) | None => {}
            }
        }
    }

    /// Decides whether a stream continues after its tap has ended. Starts the continuation of the
    /// stream, if there is one. If the stream's node is being moved, lets the stream wait for a
    /// continuation. Returns false if the stream ends.
    pub(super) fn continue_after_tap(
        &self,
        handle: u64,
        stream: &mut OpenStream,
        why: Option<&str>,
    ) -> bool {
        match stream.moving.take() {
            Some(StreamMove::Ready(next)) => self.start_continuation(handle, stream, next),
            Some(StreamMove::Awaited | StreamMove::Left) if why == Some(NODE_CHANGED_REASON) => {
                stream.moving = Some(StreamMove::Left);
            }
            _ => return false,
        }
        true
    }

    fn start_continuation(&self, handle: u64, stream: &mut OpenStream, next: StreamContinuation) {
        let StreamContinuation { input, tap, place, totals } = next;
        (stream.input, stream.origin) = (input, Some(StreamOrigin::Path(tap)));
        (stream.totals, stream.failed) = (Some(totals), None);
        if let Some((known, _)) = &mut stream.place {
            *known = place;
        }
        if !stream.waiting_reads.is_empty() || stream.poll_number.is_some() {
            self.watch(handle, stream);
        }
    }
}
