//! Changes that were made to a path while it was recorded.
//!
//! A recorded change consists of the user's edit, the resulting request and the resulting layout.
//! It contains no filter state, because a replay repeats the state transfer from the same input.
//! Each space that was stopped for the change records the stop among its events. [`crate::change`]
//! repeats recorded changes.

use super::file_format::{
    LocalBlockKind, ValueReader, WriteValues, append_local_block, saturating_u32,
};
use pipeline::edit::Edit;

/// A recorded change to a path: the edit, and the resulting request and layout.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedChange {
    /// Number of changes that the path had made before this one.
    pub number: u64,
    /// The requested edit.
    pub edit: Edit,
    /// The text of the request after the change.
    pub text: String,
    /// The placement of the nodes after the change, in the text form of
    /// [`super::format_placement`].
    pub layout: String,
}

/// Tag of an edit that is encoded as command-line arguments.
const EDIT_WORDS_TAG: u32 = 0;
/// Tag of an edit that replaces the request, encoded as the text of the new request.
const EDIT_REQUEST_TAG: u32 = 1;

/// Appends the encoding of a change.
pub(super) fn encode_change(out: &mut Vec<u8>, change: &RecordedChange) {
    let RecordedChange { number, edit, text, layout } = change;
    append_local_block(out, LocalBlockKind::Change, |out| {
        out.put_u64s(&[*number]);
        match edit {
            Edit::ReplaceText(line) => {
                out.put_u32s(&[EDIT_REQUEST_TAG]);
                out.put_text(line);
            }
            edit => {
                let words = edit.to_words();
                out.put_u32s(&[EDIT_WORDS_TAG, saturating_u32(words.len())]);
                words.iter().for_each(|word| out.put_text(word));
            }
        }
        out.put_text(text);
        out.put_text(layout);
    });
}

/// Decodes a change. Returns `None` if it is malformed.
pub(super) fn decode_change(mut take: ValueReader<'_>) -> Option<RecordedChange> {
    let number = take.read_u64()?;
    let edit = match take.read_u32()? {
        EDIT_WORDS_TAG => {
            let count = take.read_u32()?;
            let words: Option<Vec<&str>> = (0..count).map(|_| take.read_text()).collect();
            Edit::parse(&words?).ok()?
        }
        EDIT_REQUEST_TAG => Edit::ReplaceText(take.read_text()?.to_owned()),
        _ => return None,
    };
    let (text, layout) = (take.read_text()?.to_owned(), take.read_text()?.to_owned());
    Some(RecordedChange { number, edit, text, layout })
}
