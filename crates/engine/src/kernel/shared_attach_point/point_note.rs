//! The note that describes the persisted descriptors of a point.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

/// Maximum size of an attach point's note in bytes.
const NOTE_BYTES_MAX: u64 = 4 << 20;

/// Persisted descriptors of an attach point, by shortened name. The full name begins with `kernel-`
/// and the number of the point's link; the key lacks this prefix.
pub(super) type PersistedDescriptors = BTreeMap<String, OwnedFd>;

/// The note that is stored with an attach point's descriptors. It lists the point's requests and
/// programs, and the final counters of removed requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PointNote {
    pub(super) numbers: u32,
    pub(super) replaced: u64,
    pub(super) frames: u64,
    /// The requests of the point. Each consists of a number, the note of the requester, and the
    /// counters from programs that no longer run, as text.
    pub(super) lines: Vec<(u32, String, String)>,
    /// The programs, oldest first, each with its program id, the fingerprint of its code, and its
    /// request numbers.
    pub(super) versions: Vec<(u32, u64, Vec<u32>)>,
    /// Removed requests: note of the requester, and final counters as text.
    pub(super) left: Vec<(String, String)>,
}

/// Removes the newest note from the persisted descriptors of a point. Returns its number and its
/// contents, or `None` if there is no note or the newest one cannot be read.
pub(super) fn take_newest_note(given: &mut PersistedDescriptors) -> Option<(u64, PointNote)> {
    let numbers = given.keys().filter_map(|name| name.strip_prefix("note")?.parse::<u64>().ok());
    let number = numbers.max()?;
    let file = File::from(given.remove(&format!("note{number}"))?);
    let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len().min(NOTE_BYTES_MAX)).ok()?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some((number, serde_json::from_slice(&bytes).ok()?))
}

impl PointNote {
    /// Formats the note as JSON. A truncated text is never a valid note.
    pub(super) fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_note_parses_to_the_same_note_and_prefixes_fail() {
        let note = PointNote {
            numbers: 7,
            replaced: 3,
            frames: u64::MAX,
            lines: vec![(0, "{\"line\":\"rx ü | count\"}".to_owned(), "ran 1 2\n".to_owned())],
            versions: vec![(12, u64::MAX, vec![0]), (13, 0, Vec::new())],
            left: vec![("{}".to_owned(), String::new())],
        };
        let text = note.to_text();
        let read = |text: &[u8]| serde_json::from_slice::<PointNote>(text).ok();
        assert_eq!(read(&text), Some(note));
        for end in 0..text.len() {
            assert_eq!(read(text.get(..end).unwrap_or_default()), None, "{end}");
        }
    }
}
