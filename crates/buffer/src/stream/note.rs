//! Notes: messages that a writer sends to a reader together with a notification.

/// A message from the writer of a stream to one reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// The ring will continue in the segment with this number. The descriptors of the segment are
    /// sent with the note.
    Segment(u64),
    /// The reader will receive no further segments.
    Revoked,
}

const SEGMENT: u8 = 2;
const REVOKED: u8 = 3;

/// Encodes a note as a message.
pub(super) fn encode(note: Note) -> Vec<u8> {
    match note {
        Note::Segment(number) => [&[SEGMENT][..], &number.to_le_bytes()].concat(),
        Note::Revoked => vec![REVOKED],
    }
}

/// Decodes a message. Returns `None` for a plain notification or an unknown note.
pub(super) fn decode(message: &[u8]) -> Option<Note> {
    match message.split_first()? {
        (&SEGMENT, number) => Some(Note::Segment(u64::from_le_bytes(number.try_into().ok()?))),
        (&REVOKED, []) => Some(Note::Revoked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_round_trip_and_unknown_ones_are_ignored() {
        for note in [Note::Segment(0), Note::Segment(u64::MAX), Note::Revoked] {
            assert_eq!(decode(&encode(note)), Some(note));
        }
        for other in [&[][..], &[1], &[2], &[2, 0, 0], &[3, 3], &[9; 16]] {
            assert_eq!(decode(other), None);
        }
    }
}
