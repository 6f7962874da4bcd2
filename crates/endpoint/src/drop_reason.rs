//! Reasons why blocks do not reach a sink, as counted in the ledger.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A reason for a drop, or the location of a loss.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum DropReason {
    /// The request drops these blocks on purpose, for example with `drop`.
    ByRequest,
    /// The block arrived after the limit (`-c`) had been reached.
    BeyondCount,
    /// The program of `exec` that was to read the block had exited, or had closed its standard
    /// input.
    ProgramEnded,
    /// The block is a hole, which represents stream data that was never captured, so it has no
    /// bytes to write.
    Hole,
    /// A source had read the block, but the path ended before the block was processed.
    Unread,
    /// The network interface or its driver had no free buffer for the frame.
    Driver,
    /// The kernel's input queue (backlog) of a processor was full.
    Backlog,
    /// The ring between the kernel and the source was full.
    Ring,
    /// The block was evicted from the state of a filter, to bound the memory of this state.
    Evicted,
    /// The space had no memory for the output of a filter.
    NoRoom,
    /// A filter or sink failed while it processed the blocks.
    Failed,
    /// A reason named by a filter, source, sink or edge.
    Named(&'static str),
}

impl DropReason {
    const REASON_TEXTS: [(Self, &'static str); 11] = [
        (Self::ByRequest, "by request"),
        (Self::BeyondCount, "beyond count"),
        (Self::ProgramEnded, "program ended"),
        (Self::Hole, "never seen"),
        (Self::Unread, "unread"),
        (Self::Driver, "driver"),
        (Self::Backlog, "backlog"),
        (Self::Ring, "ring"),
        (Self::Evicted, "evicted"),
        (Self::NoRoom, "no room"),
        (Self::Failed, "failed"),
    ];

    /// Returns the text that names the reason in reports and in the ledger.
    #[must_use]
    pub fn text(self) -> &'static str {
        if let Self::Named(text) = self {
            return text;
        }
        let known = Self::REASON_TEXTS.iter().find(|(reason, _)| *reason == self);
        known.map_or("", |(_, text)| text)
    }

    /// Parses the text of a reason from a file or another process. Returns `None` for an unknown
    /// text, and for the text of a [`Self::Named`], which is defined only in the code that drops
    /// the block.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let known = Self::REASON_TEXTS.iter().find(|(_, known)| *known == text);
        known.map(|(reason, _)| *reason)
    }

    /// Returns the reason with this text from a file that may have been forged. If the text is too
    /// long or not printable, or if files have named [`FILE_TEXTS_MAX`] other reasons before,
    /// returns the reason `elsewhere`.
    #[must_use]
    pub fn from_file_text(text: &str) -> Self {
        let is_plain = text.len() <= FILE_TEXT_BYTES_MAX && !text.contains(char::is_control);
        let known = || is_plain.then(|| intern_within(text, FILE_TEXTS_MAX)).flatten();
        Self::from_text(text).unwrap_or_else(|| known().unwrap_or("elsewhere").into())
    }

    /// Returns true if the drop is a loss: the request needed the blocks. Returns false for
    /// intended drops, for blocks beyond the limit or after the end of the program or path, and for
    /// holes, whose data was lost earlier.
    #[must_use]
    pub const fn is_loss(self) -> bool {
        match self {
            Self::ByRequest
            | Self::BeyondCount
            | Self::ProgramEnded
            | Self::Hole
            | Self::Unread => false,
            Self::Driver
            | Self::Backlog
            | Self::Ring
            | Self::Evicted
            | Self::NoRoom
            | Self::Failed
            | Self::Named(_) => true,
        }
    }
}

/// Maximum number of reason texts that a process stores. Once this many are stored,
/// [`DropReason::from_file_text`] accepts no new text.
const FILE_TEXTS_MAX: usize = 256;
/// Maximum length of a text that [`DropReason::from_file_text`] accepts, in bytes.
const FILE_TEXT_BYTES_MAX: usize = 64;

impl From<&'static str> for DropReason {
    fn from(text: &'static str) -> Self {
        Self::from_text(text).unwrap_or(Self::Named(text))
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Serialize for DropReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

/// Deserializes a reason that another process of Streamline has serialized. Unknown texts are
/// leaked ([`deserialize_interned_keys`]).
impl<'de> Deserialize<'de> for DropReason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| intern_text(&text).into())
    }
}

/// Deserializes a list of pairs whose keys become `&'static str`. Leaks each distinct key once, so
/// the input must have been written by a process of Streamline.
pub fn deserialize_interned_keys<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<(&'static str, T)>, D::Error> {
    let pairs = Vec::<(String, T)>::deserialize(deserializer)?;
    Ok(pairs.into_iter().map(|(text, value)| (intern_text(&text), value)).collect())
}

/// Returns a static copy of a text. Leaks each distinct text once, so the texts must come from a
/// bounded set, such as the set of texts that this program defines.
fn intern_text(text: &str) -> &'static str {
    intern_within(text, usize::MAX).unwrap_or_default()
}

/// Returns a static copy of a text. Returns `None` if there is no copy yet and `texts_max` other
/// texts have copies.
fn intern_within(text: &str, texts_max: usize) -> Option<&'static str> {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return Some(known);
    }
    if texts.len() >= texts_max {
        return None;
    }
    let copy: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.insert(copy);
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_in_files_keep_their_text_within_bounds() {
        assert_eq!(DropReason::from_file_text("ring"), DropReason::Ring);
        assert_eq!(DropReason::from_file_text("overwritten").text(), "overwritten");
        for forged in ["a\u{1b}[2J", &"x".repeat(FILE_TEXT_BYTES_MAX + 1)] {
            assert_eq!(DropReason::from_file_text(forged).text(), "elsewhere");
        }
        let texts: Vec<String> = (0..2 * FILE_TEXTS_MAX).map(|n| format!("forged {n}")).collect();
        let kept = texts.iter().filter(|text| DropReason::from_file_text(text).text() == **text);
        assert!(kept.count() < FILE_TEXTS_MAX);
    }
}
