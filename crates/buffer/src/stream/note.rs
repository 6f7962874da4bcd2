//! Notes of a writer, sent with a notification.

/// A note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// The ring will go on in the segment of this number, whose geometry and ring come with it.
    Segment(u64),
    /// The segments to come are for others.
    Revoked,
}

const SEGMENT: u8 = 2;
const REVOKED: u8 = 3;

/// As it is told.
pub(super) fn write(note: Note) -> Vec<u8> {
    match note {
        Note::Segment(number) => [&[SEGMENT][..], &number.to_le_bytes()].concat(),
        Note::Revoked => vec![REVOKED],
    }
}

/// Reads a note; `None`: a mere notification, or an unknown note.
pub(super) fn read(told: &[u8]) -> Option<Note> {
    match told.split_first()? {
        (&SEGMENT, number) => Some(Note::Segment(u64::from_le_bytes(number.try_into().ok()?))),
        (&REVOKED, []) => Some(Note::Revoked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        for note in [Note::Segment(0), Note::Segment(u64::MAX), Note::Revoked] {
            assert_eq!(read(&write(note)), Some(note));
        }
        for other in [&[][..], &[1], &[2], &[2, 0, 0], &[3, 3], &[9; 16]] {
            assert_eq!(read(other), None);
        }
    }
}
