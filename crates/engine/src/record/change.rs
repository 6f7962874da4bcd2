//! Changes that a path was put through while it was recorded, and the same made again.
//!
//! In the record a change is what was asked for, in the words of the user, with the line that came
//! of it and what ran where then. Nothing of what filters knew is in it: an upgrade is computed
//! again, from what the old filter was given by the same turns. Each space that stood still for the
//! change says so among its turns; a repeated run stands still at the same places, and who makes
//! the change there is [`Changer`], one after the other in the order of the record.

use super::Tape;
use super::form::{Local, Put, Take, local};
use super::play::Replay;
use crate::change::{Unchanged, change_again};
use crate::live::Live;
use pipeline::edit::Edit;
use runtime::commands::NotTaken;
use std::sync::Arc;
use std::thread::JoinHandle;

/// A change of a path that was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// How many there were before.
    pub number: u64,
    /// What was asked for.
    pub edit: Edit,
    /// The line behind it.
    pub text: String,
    /// What runs where behind it, as [`super::layout`] says it.
    pub layout: String,
}

/// What an edit is written as: words of a command line, or a whole line.
const WORDS: u32 = 0;
const WHOLE: u32 = 1;

/// Appends a change.
pub(super) fn put(out: &mut Vec<u8>, change: &Change) {
    let Change { number, edit, text, layout } = change;
    local(out, Local::Change, |out| {
        out.long(*number);
        match edit {
            Edit::Whole(line) => {
                out.word(WHOLE);
                out.text(line);
            }
            edit => {
                let words = edit.words();
                out.word(WORDS);
                out.word(u32::try_from(words.len()).unwrap_or(0));
                words.iter().for_each(|word| out.text(word));
            }
        }
        out.text(text);
        out.text(layout);
    });
}

/// The change that this is.
pub(super) fn take(mut take: Take<'_>) -> Option<Change> {
    let number = take.long()?;
    let edit = match take.word()? {
        WORDS => {
            let count = take.word()?;
            let words: Option<Vec<&str>> = (0..count).map(|_| take.text()).collect();
            Edit::parse(&words?).ok()?
        }
        WHOLE => Edit::Whole(take.text()?.to_owned()),
        _ => return None,
    };
    let (text, layout) = (take.text()?.to_owned(), take.text()?.to_owned());
    Some(Change { number, edit, text, layout })
}

/// Who makes the changes of a record again. Dropping it waits for it: all spaces must have ended.
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

/// Tells the spaces that nothing more is changed, however that came.
struct Over<'r>(&'r Replay);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.changes_no_more(None);
    }
}
