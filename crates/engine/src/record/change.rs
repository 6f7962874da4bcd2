//! Changes of a path while it was recorded.
//!
//! A recorded change consists of the user's edit, the resulting request and the resulting layout.
//! It contains no filter state: a replay repeats the state transfer, from the same input. Each
//! space that was stopped for the change records the stop among its events. [`crate::change`]
//! repeats them.

use super::form::{LocalKind, ValueReader, WriteValues, local, word};
use pipeline::edit::Edit;

/// A recorded change of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// Number of earlier changes of the path.
    pub number: u64,
    /// The requested edit.
    pub edit: Edit,
    /// The text of the request after the change.
    pub text: String,
    /// The layout after the change, in the form of [`super::layout`].
    pub layout: String,
}

/// Tag of an edit that is encoded as the words of a command line.
const WORDS: u32 = 0;
/// Tag of an edit that is encoded as a whole request.
const WHOLE: u32 = 1;

/// Appends a change.
pub(super) fn encode_change(out: &mut Vec<u8>, change: &Change) {
    let Change { number, edit, text, layout } = change;
    local(out, LocalKind::Change, |out| {
        out.longs(&[*number]);
        match edit {
            Edit::Whole(line) => {
                out.words(&[WHOLE]);
                out.text(line);
            }
            edit => {
                let words = edit.words();
                out.words(&[WORDS, word(words.len())]);
                words.iter().for_each(|word| out.text(word));
            }
        }
        out.text(text);
        out.text(layout);
    });
}

/// Decodes a change; `None` if it is malformed.
pub(super) fn decode_change(mut take: ValueReader<'_>) -> Option<Change> {
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
