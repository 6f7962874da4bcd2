//! The changes of a recorded run, made again: one after the other in the order of the record, while
//! the spaces stand still at the same places.

use super::change_again;
use super::switched::Unchanged;
use crate::live::Live;
use crate::record::{Replay, Tape};
use runtime::commands::NotTaken;
use std::sync::Arc;
use std::thread::JoinHandle;

/// The thread that repeats the changes of a record. Dropping it joins the thread: all spaces must
/// have ended.
#[derive(Debug)]
pub(crate) struct Changer(Option<JoinHandle<()>>);

impl Changer {
    /// Begins, if these paths play a record with changes.
    pub(crate) fn of(lives: &[Live]) -> Option<Self> {
        let live = lives.first()?.clone();
        let Tape::Play(replay) = &live.whole()?.extras.tape else { return None };
        if replay.record().changes.is_empty() {
            return None;
        }
        let (replay, its) = (Arc::clone(replay), Arc::clone(replay));
        let body = move || make_all(&live, &its);
        let thread = std::thread::Builder::new().name("changes".to_owned()).spawn(body);
        if let Err(error) = &thread {
            replay.changes_no_more(Some(error.to_string()));
        }
        Some(Self(thread.ok()))
    }
}

impl Drop for Changer {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // If it has panicked, the spaces have heard that nothing more is changed.
            let _ended = thread.join();
        }
    }
}

/// Makes the changes one after the other.
fn make_all(live: &Live, replay: &Replay) {
    let over = Over(replay);
    for change in &replay.record().changes {
        replay.makes(change.number);
        match change_again(live, change) {
            Ok(()) => {}
            // The record ends before it, the run was stopped, or a failure has told itself.
            Err(Unchanged::NotTaken(NotTaken::Ended)) => return,
            Err(why) => {
                replay.changes_no_more(Some(format!("{}: {why}", change.edit)));
                return;
            }
        }
    }
    drop(over);
}

/// A guard that tells the spaces, when dropped, that no more changes follow.
struct Over<'r>(&'r Replay);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.changes_no_more(None);
    }
}
