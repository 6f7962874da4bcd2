//! Tests of stamps and sessions in a shared ring.

use super::sessions::{Admission, ReaderSessions, WriterSessions};
use abi::{BlockFlags, BlockMetadata, Class, Entry, Marks, RichPointer};

/// Returns a block of a session, before the writer stamps it.
fn session_block(session: u32, length: u32, flags: BlockFlags) -> Entry {
    let context = BlockMetadata { time: 5, session, origin: 0, flags };
    Entry::new(
        RichPointer::hole(length).with_class(Class(80)),
        context,
        Marks::for_plain_block(length),
    )
}

/// Writes blocks to a shared ring and reads them, except those whose index satisfies `is_missed`.
/// Returns the session, the length and the flags of each emitted block, and the state of the
/// reader.
fn read_with_missed_blocks(
    written: &[Entry],
    is_missed: impl Fn(usize) -> bool,
) -> (Vec<(u32, u32, BlockFlags)>, ReaderSessions) {
    write_and_read_entries(WriterSessions::default(), written, is_missed)
}

fn write_and_read_entries(
    mut writer: WriterSessions,
    written: &[Entry],
    is_missed: impl Fn(usize) -> bool,
) -> (Vec<(u32, u32, BlockFlags)>, ReaderSessions) {
    let (mut reader, mut all) = (ReaderSessions::default(), Vec::new());
    let mut next = None;
    for (number, entry) in written.iter().enumerate() {
        let stamp = writer.next_stamp(entry, number as u64);
        if is_missed(number) {
            continue;
        }
        if next.is_none() {
            reader.messages.record_join(number as u64);
        }
        let is_gap = next.replace(number + 1).is_some_and(|next| next != number);
        if reader.admit(stamp, entry, is_gap, &mut all) == Admission::Admitted {
            all.push(*entry);
        }
    }
    let entry_fields = |entry: &Entry| {
        assert_eq!((entry.pointer.class, entry.context.time), (Class(80), 5));
        (entry.context.session, entry.pointer.length(), entry.context.flags)
    };
    (all.iter().map(entry_fields).collect(), reader)
}

const BACKWARD: BlockFlags = BlockFlags::BACKWARD;
const NO_FLAGS: BlockFlags = BlockFlags::NONE;

/// Returns the blocks of two interleaved sessions. Only the first session is complete.
fn interleaved_sessions() -> [Entry; 7] {
    [
        session_block(1, 10, NO_FLAGS),
        session_block(2, 20, NO_FLAGS),
        session_block(1, 30, BACKWARD),
        session_block(1, 11, BlockFlags::SESSION_END),
        session_block(2, 21, NO_FLAGS),
        session_block(1, 0, BACKWARD.with(BlockFlags::SESSION_END)),
        session_block(2, 22, BACKWARD),
    ]
}

#[test]
fn o6_reader_gets_sessions_from_their_beginning_only() {
    let all = interleaved_sessions();
    let (whole, sessions) = read_with_missed_blocks(&all, |_| false);
    assert_eq!((whole.len(), sessions.begun, sessions.torn), (7, 2, 0));
    // The reader joins after the first block, so the first session is unknown to it.
    let (late, sessions) = read_with_missed_blocks(&all, |number| number == 0);
    assert_eq!(late, [(2, 20, NO_FLAGS), (2, 21, NO_FLAGS), (2, 22, BACKWARD)]);
    assert_eq!((sessions.begun, sessions.torn), (1, 0));
}

#[test]
fn o6_lost_blocks_become_a_hole_of_equal_length() {
    let all = interleaved_sessions();
    for missed in 1..all.len() {
        let (got, _) = read_with_missed_blocks(&all, |number| number == missed);
        let bytes = |session, back: bool| -> u32 {
            let of = |(s, _, flags): &&(u32, u32, BlockFlags)| {
                *s == session && flags.contains(BACKWARD) == back
            };
            got.iter().filter(of).map(|block| block.1).sum()
        };
        // The loss of the last block of a direction is noticed only at the next block.
        let shows = |number: usize| missed != number;
        assert_eq!(bytes(1, false), if shows(3) { 21 } else { 10 }, "{missed}");
        assert_eq!(bytes(1, true), 30, "{missed}");
        assert_eq!(
            bytes(2, false),
            match missed {
                1 => 0,
                4 => 20,
                _ => 41,
            },
            "{missed}"
        );
    }
}

#[test]
fn o6_sessions_end_with_ring_or_reuse_of_their_number() {
    let all = interleaved_sessions();
    let (_, mut sessions) = read_with_missed_blocks(&all, |_| false);
    let mut ends = Vec::new();
    sessions.end_sessions_and_messages(&mut ends);
    let flags: Vec<_> = ends.iter().map(|end| (end.context.session, end.context.flags)).collect();
    assert_eq!(
        flags,
        [(2, BlockFlags::SESSION_END_MASK), (2, BlockFlags::SESSION_END_MASK.with(BACKWARD))]
    );
    sessions.end_sessions_and_messages(&mut ends);
    assert_eq!(ends.len(), 2);
    // Both ends of session 1 are lost, and another session uses its number.
    let again: Vec<Entry> =
        all.into_iter().take(6).chain([session_block(1, 5, NO_FLAGS)]).collect();
    let (got, _) = read_with_missed_blocks(&again, |number| number == 3 || number == 5);
    let last: Vec<_> = got.iter().rev().take(3).rev().copied().collect();
    let ended = [
        (1, 0, BlockFlags::SESSION_END_MASK),
        (1, 0, BlockFlags::SESSION_END_MASK.with(BACKWARD)),
        (1, 5, NO_FLAGS),
    ];
    assert_eq!(last, ended);
    // Too many bytes are missing, so the session ends, and later blocks belong to no session.
    let huge: Vec<Entry> = (0..50)
        .map(|_| session_block(3, 1 << 20 >> 1, NO_FLAGS))
        .chain([session_block(3, 0, NO_FLAGS)])
        .collect();
    let huge: Vec<Entry> = huge.iter().chain(&huge).copied().collect();
    let (got, sessions) = read_with_missed_blocks(&huge, |number| number > 0 && number < 101);
    assert_eq!((got.len(), got[1].2, sessions.torn), (3, BlockFlags::SESSION_END_MASK, 1));
}

/// Returns the fragments of three messages in two sessions.
fn fragments_of_three_messages() -> [Entry; 7] {
    [
        session_block(1, 0, BlockFlags::FIRST),
        session_block(2, 0, BlockFlags::FIRST.with(BACKWARD)),
        session_block(1, 10, NO_FLAGS),
        session_block(2, 20, BlockFlags::LAST.with(BACKWARD)),
        session_block(1, 11, BlockFlags::LAST),
        session_block(1, 0, BlockFlags::FIRST),
        session_block(1, 12, BlockFlags::LAST),
    ]
}

fn read_messages(
    is_missed: impl Fn(usize) -> bool,
) -> (Vec<(u32, u32, BlockFlags)>, ReaderSessions) {
    write_and_read_entries(WriterSessions::new(true), &fragments_of_three_messages(), is_missed)
}

#[test]
fn o6_reader_gets_messages_from_their_beginning_only() {
    let (all, reader) = read_messages(|_| false);
    assert_eq!((all.len(), reader.messages.begun, reader.torn), (7, 3, 0));
    // The reader joins within the first message. It receives all other messages, including the
    // later messages of the same session.
    let (late, reader) = read_messages(|number| number == 0);
    let wanted = [1, 3, 5, 6].map(|number| fragments_of_three_messages()[number]);
    let wanted = wanted.map(|e| (e.context.session, e.pointer.length(), e.context.flags));
    assert_eq!((late, reader.messages.begun, reader.torn), (wanted.to_vec(), 2, 0));
}

#[test]
fn o6_lost_fragment_ends_open_messages_but_not_later_ones() {
    let ended = BlockFlags::SESSION_END_MASK;
    let (got, reader) = read_messages(|number| number == 2);
    let begun = [(1, 0, BlockFlags::FIRST), (2, 0, BlockFlags::FIRST.with(BACKWARD))];
    let ends = [(1, 0, ended), (2, 0, ended.with(BACKWARD))];
    let last = [(1, 0, BlockFlags::FIRST), (1, 12, BlockFlags::LAST)];
    assert_eq!(got, [&begun[..], &ends, &last].concat());
    assert_eq!((reader.messages.begun, reader.torn), (3, 2));
    // Between two messages no message is open, so the loss of an entire message ends no other
    // message.
    let (got, reader) = read_messages(|number| number >= 5);
    assert_eq!((got.len(), reader.torn), (5, 0));
    // All open messages end with the ring.
    let (_, mut reader) = read_messages(|number| number == 6);
    let mut ends = Vec::new();
    reader.end_sessions_and_messages(&mut ends);
    let flags: Vec<_> = ends.iter().map(|end| (end.context.session, end.context.flags)).collect();
    assert_eq!(flags, [(1, ended)]);
}
