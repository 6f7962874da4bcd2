//! Notes: messages that a writer sends to a reader together with a notification.

/// A message from the writer of a stream to one reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WriterMessage {
    /// The ring will continue in the segment with this number. The descriptors of the segment are
    /// sent with the note.
    Segment(u64),
    /// The reader will receive no further segments.
    Revoked,
}

const SEGMENT_TAG: u8 = 2;
const REVOKED_TAG: u8 = 3;

/// Encodes a note as a message.
pub(super) fn encode(note: WriterMessage) -> Vec<u8> {
    match note {
        WriterMessage::Segment(number) => [&[SEGMENT_TAG][..], &number.to_le_bytes()].concat(),
        WriterMessage::Revoked => vec![REVOKED_TAG],
    }
}

/// Decodes a message. Returns `None` for a plain notification or an unknown note.
pub(super) fn decode(message: &[u8]) -> Option<WriterMessage> {
    match message.split_first()? {
        (&SEGMENT_TAG, number) => {
            Some(WriterMessage::Segment(u64::from_le_bytes(number.try_into().ok()?)))
        }
        (&REVOKED_TAG, []) => Some(WriterMessage::Revoked),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_messages_round_trip_and_unknown_ones_are_ignored() {
        for note in
            [WriterMessage::Segment(0), WriterMessage::Segment(u64::MAX), WriterMessage::Revoked]
        {
            assert_eq!(decode(&encode(note)), Some(note));
        }
        for other in [&[][..], &[1], &[2], &[2, 0, 0], &[3, 3], &[9; 16]] {
            assert_eq!(decode(other), None);
        }
    }
}
