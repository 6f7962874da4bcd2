//! Connections of clients to the process of a path, and the calls over such a connection.

use super::caller::{CALL_TIMEOUT, Caller, EXPENSIVE_CALL_TIMEOUT};
use super::error::ClientError;
use crate::protocol::{
    ChangeParameters, ChangeReply, CommitSubtreeParameters, CountReply, Counters, FollowParameters,
    FreezeHistoryParameters, NoParameters, PathCountParameters, PathDescription, PathUpdate,
    TakeSubtreeParameters, TapParameters, TapReport, TapStart, UpdateForm, WriteParameters,
};
use crate::varlink::{Call, MESSAGE_BYTES_MAX, MessageError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use sys::memory::{Memfd, Seals};

/// Name of the method that describes a path.
pub const DESCRIBE_METHOD: &str = "io.streamline.path.Describe";
/// Name of the method that returns the counters of a path.
pub const COUNT_METHOD: &str = "io.streamline.path.Count";
/// Name of the method that returns all details of a path's nodes.
pub const NODES_METHOD: &str = "io.streamline.path.Nodes";
/// Name of the method that ends the sources of a path.
pub const STOP_METHOD: &str = "io.streamline.path.Stop";

/// Name of the method that returns the state of a tap.
const TAP_REPORT_METHOD: &str = "io.streamline.path.Tapped";

/// Name of the error for an unknown parameter.
const INVALID_PARAMETER: &str = "org.varlink.service.InvalidParameter";
/// Maximum time to wait until another path is ready to receive a subtree from this path. If two
/// paths give a subtree to each other at the same time, both moves fail after this time.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time to wait for a path's reply to a commit. The limit of more than 11 days is in
/// practice no limit, so that the path may be stopped and resumed in the meantime.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(1_000_000);
/// Error number that means that the process does not exist.
const ESRCH: i32 = 3;

/// A connection to the process of a path.
#[derive(Debug)]
pub struct PathClient {
    pub(super) caller: Caller,
    /// Name, number or `UID/NAME` with which the client requested the path.
    pub(super) path: String,
    pub(super) process: OwnedFd,
    pub(super) number: u32,
    pub(super) uid: u32,
    /// Interval in ms between the updates to which this client has subscribed. `None` if the client
    /// has no subscription, or one with the default interval.
    pub(super) subscription_ms: Cell<Option<u64>>,
}

impl PathClient {
    /// Returns the path's number.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the user id of the path's owner.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Returns a descriptor of the path's process, which becomes readable when the process exits.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// Returns the path's description.
    pub fn describe(&self) -> Result<PathDescription, ClientError> {
        self.call(DESCRIBE_METHOD, &NoParameters {})
    }

    /// Returns the path's counters.
    pub fn counters(&self) -> Result<Counters, ClientError> {
        match self.call(COUNT_METHOD, &PathCountParameters { first: Some(0), timed: None }) {
            // A path of an older version returns all counters at once.
            Err(ClientError::Refused(_)) => self.request_remaining_counters(
                self.call(COUNT_METHOD, &PathCountParameters::default())?,
            ),
            first => self.request_remaining_counters(first?),
        }
    }

    /// Returns all counters of the path. `first` is the first page, already received; the function
    /// requests the other pages.
    pub fn request_remaining_counters(&self, first: CountReply) -> Result<Counters, ClientError> {
        let CountReply { mut counters, mut next } = first;
        while let Some(at) = next.filter(|at| *at == counters.filters.len() + counters.edges.len())
        {
            let page: CountReply =
                self.call(COUNT_METHOD, &PathCountParameters { first: Some(at), timed: None })?;
            counters.append(page.counters);
            next = page.next;
        }
        Ok(counters)
    }

    /// Ends the sources of the path. The path still processes the blocks that it has already read.
    pub fn stop(&self) -> Result<(), ClientError> {
        let _: serde_json::Value = self.call(STOP_METHOD, &NoParameters {})?;
        Ok(())
    }

    /// Edits the running request. `words` are the arguments of `streamline set`. Blocks for at most
    /// [`EXPENSIVE_CALL_TIMEOUT`].
    pub fn change(&self, words: &[String]) -> Result<ChangeReply, ClientError> {
        let change = ChangeParameters { words: words.to_vec(), ..ChangeParameters::default() };
        let changed = self.caller.call_with_long_timeout("io.streamline.path.Change", &change);
        changed.map_err(|error| self.convert_hangup(error))
    }

    /// Edits the running request as [`change`](Self::change) does, if the path still runs the
    /// request in `change.running`. Blocks for at most `limit`. If this client is dropped before
    /// the path begins to apply the edit, the path discards the edit.
    pub fn change_within(
        &self,
        change: &ChangeParameters,
        limit: Duration,
    ) -> Result<ChangeReply, ClientError> {
        self.caller.set_timeout(limit);
        let call = |change: &ChangeParameters| self.call("io.streamline.path.Change", change);
        let changed = match call(change) {
            // A path of an older version does not know the parameter `nodes`.
            Err(ClientError::Refused(fault))
                if change.nodes.is_some() && fault.name == INVALID_PARAMETER =>
            {
                call(&ChangeParameters {
                    nodes: None,
                    known: None,
                    patches: None,
                    ..change.clone()
                })
            }
            changed => changed,
        };
        self.caller.set_timeout(CALL_TIMEOUT);
        changed
    }

    /// Asks this path to prepare to receive a subtree of another path, and then to pause until
    /// [`commit_subtree_take`](Self::commit_subtree_take). Blocks for at most [`PREPARE_TIMEOUT`].
    /// If the connection closes before the commit, this path discards its preparations.
    pub(crate) fn prepare_subtree_take(
        &self,
        take: &TakeSubtreeParameters,
    ) -> Result<(), ClientError> {
        let call = Call { more: true, ..Call::new("io.streamline.path.Take", take) };
        self.caller.set_timeout(PREPARE_TIMEOUT);
        self.caller.send(&call, &[])?;
        self.caller.receive_reply().map(drop).map_err(|error| self.convert_hangup(error))
    }

    /// Completes a move that [`prepare_subtree_take`](Self::prepare_subtree_take) has prepared:
    /// sends the states of the subtree's filters to this path. Blocks until the path has replied or
    /// ended, because only the reply tells whether the move took place. Fails if the states exceed
    /// the maximum length of a message.
    pub(crate) fn commit_subtree_take(
        &self,
        commit: &CommitSubtreeParameters,
    ) -> Result<ChangeReply, ClientError> {
        let call = Call::new("io.streamline.path.Commit", commit);
        if call.to_bytes().len() > MESSAGE_BYTES_MAX {
            return Err(ClientError::Malformed(MessageError::TooLong));
        }
        self.caller.set_timeout(COMMIT_TIMEOUT);
        self.caller.send(&Call { oneway: true, ..call }, &[])?;
        let reply = self.caller.receive_reply().map_err(|error| self.convert_hangup(error));
        Ok(reply?.0.deserialize_result()?)
    }

    /// Taps a node's output. Returns the start of the tap, and a pipe that carries the blocks in
    /// the requested form. Blocks for at most [`EXPENSIVE_CALL_TIMEOUT`].
    pub fn tap(&self, wanted: &TapParameters) -> Result<(TapStart, OwnedFd), ClientError> {
        let (began, pipe, _) = self.try_tap(wanted)?;
        Ok((began, pipe))
    }

    /// Taps a node's output as [`tap`](Self::tap) does, but asks for a ring in shared memory that
    /// carries the blocks. Returns `None` in place of the ring if the path offers no ring or is of
    /// an older version. The pipe then carries the blocks.
    pub fn tap_with_shared_ring(
        &self,
        wanted: &TapParameters,
    ) -> Result<(TapStart, OwnedFd, Option<Memfd>), ClientError> {
        match self.try_tap(&TapParameters { share: Some(true), ..wanted.clone() }) {
            // A path of an older version does not know the parameter `share`.
            Err(ClientError::Refused(fault)) if fault.name == INVALID_PARAMETER => {
                self.try_tap(wanted)
            }
            result => result,
        }
    }

    fn try_tap(
        &self,
        wanted: &TapParameters,
    ) -> Result<(TapStart, OwnedFd, Option<Memfd>), ClientError> {
        self.caller.set_timeout(EXPENSIVE_CALL_TIMEOUT);
        self.caller.send(&Call::new("io.streamline.path.Tap", wanted), &[])?;
        let answer = self.caller.receive_reply().map_err(|error| self.convert_hangup(error));
        self.caller.set_timeout(CALL_TIMEOUT);
        let (reply, descriptors) = answer?;
        let began = reply.deserialize_result()?;
        let mut descriptors = descriptors.into_iter();
        let none = || {
            ClientError::Malformed(MessageError::Invalid("the reply contains no pipe".to_owned()))
        };
        let pipe = descriptors.next().ok_or_else(none)?;
        Ok((began, pipe, descriptors.next().map(Memfd::from_fd).transpose()?))
    }

    /// Attaches a writer, which adds blocks of this client to a node's output. Returns the writer's
    /// socket, which stays open after this connection is closed. Blocks for at most
    /// [`EXPENSIVE_CALL_TIMEOUT`].
    pub fn attach_writer(&self, wanted: &WriteParameters) -> Result<OwnedFd, ClientError> {
        self.caller.set_timeout(EXPENSIVE_CALL_TIMEOUT);
        self.caller.send(&Call::new("io.streamline.path.Write", wanted), &[])?;
        let answer = self.caller.receive_reply().map_err(|error| self.convert_hangup(error));
        self.caller.set_timeout(CALL_TIMEOUT);
        let (reply, descriptors) = answer?;
        let _: serde_json::Value = reply.deserialize_result()?;
        let socket = descriptors.into_iter().next();
        let none = || {
            ClientError::Malformed(MessageError::Invalid("the reply contains no socket".to_owned()))
        };
        socket.ok_or_else(none)
    }

    /// Makes a source keep all of its retained output for the time in `wanted`, during which the
    /// path evicts no stored frame. Fails if the path retains no output of the source.
    pub fn freeze_history(&self, wanted: &FreezeHistoryParameters) -> Result<(), ClientError> {
        self.call::<serde_json::Value>("io.streamline.path.Freeze", wanted).map(drop)
    }

    /// Returns the state of this connection's tap. Fails if the connection has none.
    pub fn tap_report(&self) -> Result<TapReport, ClientError> {
        self.call(TAP_REPORT_METHOD, &NoParameters {})
    }

    /// Asks the path to send a last report of this connection's tap when the path ends.
    /// [`tap_state`](Self::tap_state) returns the report. After this call, the path no longer waits
    /// for the tap's reader when it ends. Does not wait for a reply.
    pub fn request_final_tap_report(&self) -> Result<(), ClientError> {
        let call = Call::new(TAP_REPORT_METHOD, &NoParameters {});
        self.caller.send(&Call { more: true, ..call }, &[])
    }

    /// Returns the state of this connection's tap after
    /// [`request_final_tap_report`](Self::request_final_tap_report). If the path has ended, the
    /// state is the tap's last report. The file then contains the bytes that did not fit into the
    /// pipe; it is `None` if all bytes fit. Blocks for at most `limit`. Fails if the path's process
    /// has exited without a last report.
    pub fn tap_state(&self, limit: Duration) -> Result<(TapReport, Option<Memfd>), ClientError> {
        self.caller.set_timeout(limit);
        self.caller.send(&Call::new(TAP_REPORT_METHOD, &NoParameters {}), &[])?;
        let reply = self.caller.receive_reply();
        self.caller.set_timeout(CALL_TIMEOUT);
        let (reply, descriptors) = reply.map_err(|error| self.convert_hangup(error))?;
        let report = reply.deserialize_result()?;
        let rest = descriptors.into_iter().next().map(adopt_sealed_file).transpose()?;
        Ok((report, rest))
    }

    /// Kills the path's process and its programs. Succeeds if the process has already exited.
    pub fn kill(&self) -> Result<(), ClientError> {
        match sys::process_group::kill_process_with_programs(&self.process) {
            Err(error) if error.errno == ESRCH => Ok(()),
            killed => Ok(killed?),
        }
    }

    /// Subscribes to the updates that [`next_update`](Self::next_update) returns: counters at
    /// intervals of `every`, and finally the exit status. Does not wait for a reply.
    pub fn subscribe_to_counters(&self, every: Duration) -> Result<(), ClientError> {
        let form = Some(UpdateForm::Pages);
        self.follow(&FollowParameters { every_ms: to_ms(every), form, counters_every_ms: None })
    }

    /// Subscribes as [`subscribe_to_counters`](Self::subscribe_to_counters) does, but to the totals
    /// of the path: running time, output and losses. Totals cost the path less than all counters.
    /// At each interval of `counters_every`, an update contains all counters instead. A path of an
    /// older version always sends all counters.
    pub fn subscribe_to_totals(
        &self,
        every: Duration,
        counters_every: Option<Duration>,
    ) -> Result<(), ClientError> {
        let form = Some(UpdateForm::Totals);
        let counters_every_ms = counters_every.and_then(to_ms);
        self.follow(&FollowParameters { every_ms: to_ms(every), form, counters_every_ms })
    }

    fn follow(&self, wanted: &FollowParameters) -> Result<(), ClientError> {
        self.subscription_ms.set(wanted.every_ms);
        let call = Call::new("io.streamline.path.Follow", wanted);
        self.caller.send(&Call { more: true, ..call }, &[])
    }

    /// Returns the next update, assembled from its pages. Blocks for up to [`CALL_TIMEOUT`] for
    /// each page unless the socket is readable. Fails if the path has closed the connection.
    pub fn next_update(&self) -> Result<PathUpdate, ClientError> {
        let mut update = self.receive_update()?;
        while update.next.is_some() {
            let page = self.receive_update()?;
            if let (Some(counters), Some(more)) = (&mut update.counters, page.counters) {
                counters.append(more);
            }
            (update.next, update.ended) = (page.next, page.ended);
        }
        Ok(update)
    }

    fn receive_update(&self) -> Result<PathUpdate, ClientError> {
        match self.caller.receive_subscription_update() {
            // A path of an older version knows no forms of updates, or not the requested form.
            Err(ClientError::Refused(fault)) if fault.name == INVALID_PARAMETER => {
                self.follow(&FollowParameters {
                    every_ms: self.subscription_ms.get(),
                    ..FollowParameters::default()
                })?;
                Ok(self.caller.receive_subscription_update()?.0.deserialize_result()?)
            }
            received => Ok(received?.0.deserialize_result()?),
        }
    }

    /// Calls a method of the path, and returns its result. Blocks for at most the connection's
    /// timeout, which is initially [`CALL_TIMEOUT`]. Fails if the path has ended or replies with an
    /// error.
    pub fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.caller.call(method, parameters).map_err(|error| self.convert_hangup(error))
    }

    /// Converts the error of a closed connection to [`ClientError::PathEnded`], because the path
    /// existed when the connection was opened.
    pub(super) fn convert_hangup(&self, error: ClientError) -> ClientError {
        match error {
            ClientError::Disconnected => ClientError::PathEnded(self.path.clone()),
            other => other,
        }
    }
}

impl AsFd for PathClient {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caller.as_fd()
    }
}

/// Converts a received descriptor to a memory file. Fails unless the file is sealed, because a file
/// that its sender can change, or another kind of descriptor, could block a read.
fn adopt_sealed_file(descriptor: OwnedFd) -> Result<Memfd, ClientError> {
    let file = Memfd::from_fd(descriptor)?;
    match file.seals()?.contains(Seals::FROZEN) {
        true => Ok(file),
        false => {
            let why = "the received file can be changed by its sender".to_owned();
            Err(ClientError::Malformed(MessageError::Invalid(why)))
        }
    }
}

/// Converts a duration to ms; returns `None` if it is too long.
fn to_ms(duration: Duration) -> Option<u64> {
    u64::try_from(duration.as_millis()).ok()
}
