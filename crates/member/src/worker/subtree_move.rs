//! Moves of subtrees from one path to another.
//!
//! The path that gives up the subtree is the coordinator. It asks the other path to prepare and to
//! pause (`Take`), then pauses its own spaces, and sends the state of the filters (`Commit`). The
//! reply to `Commit` decides: if it is an error, or if the other process has exited, the
//! coordinator's path is not changed. If the coordinator hangs up before the commit, the other path
//! releases what it has prepared and continues unchanged. A path that does not reply thus never
//! delays the coordinator's blocks.

use super::calls::CHANGE_TIMEOUT;
use super::service::{AdmittedClient, Service};
use crate::client::{Client, ClientError, mask_hidden_characters};
use crate::connection::{Connection, Received};
use crate::faults;
use crate::protocol::{ChangeReply, CommitSubtreeParameters, NoParameters, TakeSubtreeParameters};
use crate::varlink::{Call, Fault, Reply};
use engine::change::{
    SwitchReport, TransferredState, check_subtree_can_leave, receive_subtree, send_subtree,
};
use engine::live::PathHandle;
use pipeline::edit::{NodeOutput, PathMove, extract_subtree};
use std::fmt::Display;
use std::time::{Duration, Instant};
use sys::watcher::{EpollWatcher, EventInterest};

/// Maximum time that a path waits for the coordinator's `Commit`, after it has prepared to receive
/// a subtree.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
/// Name of the method that the coordinator calls to commit the move.
const COMMIT_METHOD: &str = "io.streamline.path.Commit";

impl Service {
    /// Moves a subtree of this path to another path of the same user. Blocks until both paths have
    /// changed or the move has failed.
    ///
    /// If `running` is given, the other path must run the request with this text.
    pub(super) fn move_subtree_to_path(
        &mut self,
        asked: &PathMove,
        running: Option<&str>,
    ) -> Result<ChangeReply, Fault> {
        let refused = |why: &dyn Display| faults::unchanged(&why.to_string());
        let live = self.only_live_path()?.clone();
        let subtree = extract_subtree(&self.path.line, &asked.node).map_err(|why| refused(&why))?;
        check_subtree_can_leave(&live, &subtree).map_err(|why| refused(&why))?;
        // A new connection is used, because the event loop reads the connection of the
        // registration.
        let client = Client::connect_at(self.directory()).map_err(|why| refused(&why))?;
        let other = client.connect(&asked.path).map_err(|why| refused(&why))?;
        if other.number() == self.about.number {
            return Err(refused(&"it is the same path: `move NODE below NODE` moves within it"));
        }
        let (own, _) = sys::process::effective_ids();
        if other.uid() != own {
            return Err(refused(&"the other path belongs to another user"));
        }
        let take = TakeSubtreeParameters {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            filter: subtree.text.clone(),
            below: asked.below.to_string(),
            running: running.map(str::to_owned),
        };
        other.prepare_subtree_take(&take).map_err(|why| match why {
            ClientError::Refused(fault) if fault.name == faults::OUTDATED_ERROR => fault,
            why => refused(&describe_call_error(&why)),
        })?;
        let mut message = None;
        let mut agree = |states: &[TransferredState]| {
            let states = states.iter().map(encode_state).collect();
            let taken = other.commit_subtree_take(&CommitSubtreeParameters { states });
            let ChangeReply { message: other, .. } =
                taken.map_err(|why| describe_call_error(&why))?;
            message = Some(other);
            Ok(())
        };
        let machine = self.machine();
        let given =
            send_subtree(&live, (&asked.node, &subtree), &machine, CHANGE_TIMEOUT, &mut agree);
        let switched = given.map_err(|why| refused(&why))?;
        let other = message.unwrap_or_default();
        Ok(self.record_switch(
            &switched,
            &format!("; {}: {}", asked.path, mask_hidden_characters(&other)),
        ))
    }

    /// Adds a subtree of another path to this path. The other path is the coordinator of the move,
    /// and the client with the number `id`. Blocks for at most [`DECISION_TIMEOUT`] until it has
    /// decided.
    pub(super) fn take_subtree_from_path(
        &mut self,
        id: u64,
        call: &Call,
    ) -> Result<ChangeReply, Fault> {
        let refused = |why: &dyn Display| faults::unchanged(&why.to_string());
        if !call.more {
            return Err(Fault::expected_more());
        }
        let take: TakeSubtreeParameters = call.deserialize_parameters()?;
        if take.version != env!("CARGO_PKG_VERSION") {
            return Err(refused(&"the paths run different versions of streamline"));
        }
        self.check_running_request(take.running.as_deref())?;
        let live = self.only_live_path()?.clone();
        let machine = self.machine();
        let below = NodeOutput::parse(&take.below);
        let Some(client) = self.clients.get_mut(&id) else {
            return Err(refused(&"the caller has disconnected"));
        };
        let mut agree = || await_decision(client);
        let subtree = (take.filter.as_str(), &below);
        let taken = receive_subtree(&live, subtree, &machine, CHANGE_TIMEOUT, &mut agree);
        let switched = taken.map_err(|why| refused(&why))?;
        Ok(self.record_switch(&switched, ""))
    }

    fn only_live_path(&self) -> Result<&PathHandle, Fault> {
        match self.lives.as_slice() {
            [live] if self.path.group.is_none() => Ok(live),
            [_, ..] if self.path.group.is_none() => {
                Err(faults::unchanged("it has several unconnected parts"))
            }
            _ => Err(faults::unchanged("several processes run it (`--engines`)")),
        }
    }

    fn record_switch(&mut self, switched: &SwitchReport, more: &str) -> ChangeReply {
        self.refresh_plan();
        self.record_change(format!("{switched}{more}"), switched.text.clone())
    }
}

/// Describes an error of a call to the other path of a move. If the other path has refused the call
/// and has given a reason, the description contains that reason.
fn describe_call_error(error: &ClientError) -> String {
    match error {
        ClientError::Refused(fault) if !fault.text_parameter("why").is_empty() => {
            format!(
                "the other path refuses it: {}",
                mask_hidden_characters(fault.text_parameter("why"))
            )
        }
        _ => error.to_string(),
    }
}

/// Reports to the coordinator that this path is prepared, and waits for the coordinator's decision.
/// Returns the state of each filter in the subtree. Fails if the coordinator hangs up, or does not
/// decide within [`DECISION_TIMEOUT`].
fn await_decision(client: &mut AdmittedClient) -> Result<Vec<TransferredState>, String> {
    let connection = &mut client.connection;
    let prepared = Reply { continues: true, ..Reply::new(&NoParameters {}) };
    let gone = || "the other path has withdrawn".to_owned();
    connection.send(prepared.to_bytes(), Vec::new()).map_err(|_| gone())?;
    let watcher = EpollWatcher::new().map_err(|error| error.to_string())?;
    watcher.watch(&*connection, 0, EventInterest::Read).map_err(|error| error.to_string())?;
    let deadline = Instant::now() + DECISION_TIMEOUT;
    loop {
        match next_call(connection) {
            Ok(Some(call)) if call.method == COMMIT_METHOD => {
                let states = call.deserialize_parameters::<CommitSubtreeParameters>().ok();
                let states = states.as_ref().map(|commit| commit.states.iter());
                let states = states.and_then(|all| all.map(|text| decode_state(text)).collect());
                return states.ok_or_else(|| "the states are malformed".to_owned());
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(()) => return Err(gone()),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("the other path did not decide in time".to_owned());
        }
        watcher.wait(Some(left));
    }
}

/// Returns the next call, or `None` if no call has arrived. Fails if the peer has hung up or its
/// message is malformed.
fn next_call(connection: &mut Connection) -> Result<Option<Call>, ()> {
    match connection.next_message() {
        Received::Pending => Ok(None),
        Received::Message(bytes, _) => Call::read(&bytes).map(Some).map_err(|_| ()),
        Received::TooLong | Received::Closed => Err(()),
    }
}

/// Encodes the state of a filter as words, for `Commit`. The first word is the time of the filter's
/// timer, or `-` without a timer. Each further word contains the key and the bytes of a session.
fn encode_state(state: &TransferredState) -> String {
    let mut text = state.wake.map_or_else(|| "-".to_owned(), |wake| wake.to_string());
    for (key, bytes) in &state.sessions {
        text.push_str(&format!(" {key}:"));
        bytes.iter().for_each(|byte| text.push_str(&format!("{byte:02x}")));
    }
    text
}

/// Decodes a state. Returns `None` if it is malformed.
fn decode_state(text: &str) -> Option<TransferredState> {
    let mut words = text.split(' ');
    let wake = match words.next()? {
        "-" => None,
        wake => Some(wake.parse().ok()?),
    };
    let session = |word: &str| {
        let (key, hex) = word.split_once(':')?;
        let byte = |at: usize| u8::from_str_radix(hex.get(at..at + 2)?, 16).ok();
        let bytes = (0..hex.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        Some((key.parse().ok()?, bytes))
    };
    let sessions = words.map(session).collect::<Option<Vec<(u64, Vec<u8>)>>>()?;
    Some(TransferredState { sessions, wake })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v3_transferred_state_decodes_to_the_encoded_state() {
        let sessions = vec![(0, vec![0, 255, 16]), (u64::MAX, Vec::new())];
        for state in [TransferredState::default(), TransferredState { sessions, wake: Some(7) }] {
            assert_eq!(decode_state(&encode_state(&state)), Some(state));
        }
        for wrong in ["", "x", "- 1", "- 1:0", "- 1:0g", "- x:00", "- 1:é"] {
            assert_eq!(decode_state(wrong), None, "{wrong}");
        }
    }
}
