//! Changes that a path was put through while it was recorded.
//!
//! In the record a change is what was asked for, in the words of the user, with the line that came
//! of it and what ran where then. Nothing of what filters knew is in it: an upgrade is computed
//! again, from what the old filter was given by the same turns. Each space that stood still for the
//! change says so among its turns. [`crate::change`] makes them again.

use super::form::{Local, Put, Take, local};
use pipeline::edit::Edit;

/// A change of a path that was recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Number of changes before it.
    pub number: u64,
    /// The requested edit.
    pub edit: Edit,
    /// The line behind it.
    pub text: String,
    /// The layout after the change, in the form of [`super::layout`].
    pub layout: String,
}

/// Tag of an edit's encoding: words of a command line, or a whole request.
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
