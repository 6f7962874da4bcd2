//! Repetition of the changes made during a recorded run. The changes are made in recorded order,
//! each while the spaces are stopped at the recorded positions.

use super::outcome::ChangeError;
use super::repeat_change;
use crate::live::PathHandle;
use crate::record::{RecordMode, Replay};
use runtime::commands::CommandError;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Handle of the thread that repeats the changes in a recording. Dropping the handle waits for the
/// thread, which ends after all spaces have ended.
#[derive(Debug)]
pub(crate) struct ChangeRepeater(Option<JoinHandle<()>>);

impl ChangeRepeater {
    /// Starts a thread that repeats the changes of a recording. Returns `None` unless the paths in
    /// `lives` replay a recording with changes.
    pub(crate) fn start_for(lives: &[PathHandle]) -> Option<Self> {
        let live = lives.first()?.clone();
        let RecordMode::Replay(replay) = &live.running_path()?.extras.record_mode else {
            return None;
        };
        if replay.record().changes.is_empty() {
            return None;
        }
        let (replay, its) = (Arc::clone(replay), Arc::clone(replay));
        let body = move || repeat_changes(&live, &its);
        let thread = std::thread::Builder::new().name("changes".to_owned()).spawn(body);
        if let Err(error) = &thread {
            replay.end_changes(Some(error.to_string()));
        }
        Some(Self(thread.ok()))
    }
}

impl Drop for ChangeRepeater {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // If the thread panicked, its guard has already told the spaces that no further change
            // follows.
            let _ended = thread.join();
        }
    }
}

/// Makes the recorded changes one after the other, until one fails. Then notifies the spaces that
/// there are no more changes.
fn repeat_changes(live: &PathHandle, replay: &Replay) {
    let over = EndOfChangesGuard(replay);
    for change in &replay.record().changes {
        replay.begin_change(change.number);
        match repeat_change(live, change) {
            Ok(()) => {}
            // The recording ends here, the run was stopped, or a failure has already been reported.
            Err(ChangeError::SpaceUnavailable(CommandError::Ended)) => return,
            Err(why) => {
                replay.end_changes(Some(format!("{}: {why}", change.edit)));
                return;
            }
        }
    }
    drop(over);
}

/// A guard that, when dropped, notifies the spaces that there are no more changes.
struct EndOfChangesGuard<'r>(&'r Replay);

impl Drop for EndOfChangesGuard<'_> {
    fn drop(&mut self) {
        self.0.end_changes(None);
    }
}
