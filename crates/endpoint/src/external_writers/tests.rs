//! Tests of both ends of a writer.

use super::{
    DEFAULT_END_REASON, PACKET_DATA_BYTES_MAX, WriterForm, WriterSocket, WriterSource,
    create_writer_pair,
};
use crate::Source as _;
use crate::testing::{EmittedBlock, produce_all, small_segment_pool};
use abi::{BlockFlags, Class};
use filter::Form;

fn writer(form: WriterForm) -> (WriterSocket, WriterSource) {
    let (outside, inside) = create_writer_pair().unwrap();
    (outside, WriterSource::new(inside, form, Class(7)))
}

/// Returns the blocks that a source emits if its writer sends these pieces. If `breaks` is true,
/// the writer then drops the socket; otherwise it ends the session.
fn emit_from_writer(form: WriterForm, pieces: &[&[u8]], breaks: bool) -> Vec<EmittedBlock> {
    let (mut outside, mut inside) = writer(form);
    for piece in pieces {
        assert_eq!(outside.write(piece).unwrap(), Some(piece.len()));
    }
    if !breaks {
        assert!(outside.end_session().unwrap());
    }
    drop(outside);
    let (emitted, end) = produce_all(&mut inside, &mut small_segment_pool(1 << 17));
    end.unwrap();
    emitted
}

fn texts(emitted: &[EmittedBlock]) -> Vec<&str> {
    emitted.iter().map(|block| std::str::from_utf8(&block.bytes).unwrap()).collect()
}

#[test]
fn b7_stream_is_one_session_that_ends_in_both_directions() {
    for (breaks, end) in [(false, BlockFlags::SESSION_END), (true, BlockFlags::SESSION_END_MASK)] {
        let blocks = emit_from_writer(WriterForm::Stream, &[b"one", b"two"], breaks);
        assert_eq!(texts(&blocks), ["one", "two", "", ""]);
        let flags: Vec<BlockFlags> = blocks.iter().map(|block| block.entry.context.flags).collect();
        assert_eq!(
            flags,
            [BlockFlags::FIRST, BlockFlags::NONE, end, end.with(BlockFlags::BACKWARD)]
        );
        let session = blocks[0].entry.context.session;
        assert!(session != 0 && blocks.iter().all(|b| b.entry.context.session == session));
        assert!(blocks.iter().all(|block| block.entry.pointer.class == Class(7)));
    }
    let other = emit_from_writer(WriterForm::Stream, &[b"one"], false);
    assert_ne!(other[0].entry.context.session, u32::MAX);
}

#[test]
fn b7_lines_are_records_regardless_of_write_boundaries() {
    let blocks = emit_from_writer(WriterForm::Lines, &[b"a\r\nlo", b"ng", b" line\n\nlast"], true);
    assert_eq!(texts(&blocks), ["a", "long line", "", "last"]);
    let long = vec![b'x'; PACKET_DATA_BYTES_MAX];
    let blocks = emit_from_writer(WriterForm::Lines, &[&long, b"yz\n"], false);
    let parts: Vec<_> = blocks.iter().map(|b| (b.bytes.len(), b.entry.context.flags)).collect();
    assert_eq!(parts, [(PACKET_DATA_BYTES_MAX, BlockFlags::FIRST), (2, BlockFlags::LAST)]);
}

#[test]
fn b7_capture_yields_frames_with_their_times() {
    let frame = [5u8; 60];
    let mut capture =
        wire::capture::write::encode_file_header(wire::link::LinkType::ETHERNET).to_vec();
    capture.extend_from_slice(&wire::capture::write::encode_record_header(1_500, 60, 900));
    capture.extend_from_slice(&frame);
    let blocks = emit_from_writer(WriterForm::Capture, &[&capture[..30], &capture[30..]], false);
    assert_eq!(blocks.len(), 1);
    let entry = &blocks[0].entry;
    assert_eq!((entry.context.time, entry.marks.wire_length), (1_500, 900));
    assert_eq!(blocks[0].bytes, frame);
}

#[test]
fn b7_too_long_frame_ends_its_writer() {
    let length = 1 << 17;
    let record = |length: u32| {
        let header = wire::capture::write::encode_record_header(1_500, length, length);
        [&header[..], &vec![5; length as usize]].concat()
    };
    let mut capture =
        wire::capture::write::encode_file_header(wire::link::LinkType::ETHERNET).to_vec();
    capture.extend([record(60), record(length), record(length + 1), record(60)].concat());
    let (mut outside, mut inside) = writer(WriterForm::Capture);
    for piece in capture.chunks(PACKET_DATA_BYTES_MAX) {
        assert_eq!(outside.write(piece).unwrap(), Some(piece.len()));
    }
    outside.end_session().unwrap();
    let (blocks, end) = produce_all(&mut inside, &mut small_segment_pool(length as usize));
    end.unwrap();
    let lengths: Vec<_> = blocks.iter().map(|block| block.bytes.len()).collect();
    assert_eq!(lengths, [60, length as usize]);
    let lost = inside.losses();
    assert!(matches!(lost, [(_, amount)] if amount.blocks == 1), "{lost:?}");
    let why = outside.write(b"more").unwrap_err().0;
    assert!(why.contains("131073 bytes") && why.contains("131072 bytes"), "{why}");
}

#[test]
fn b7_writer_receives_the_reason_for_its_end() {
    let (mut outside, mut inside) = writer(WriterForm::Capture);
    outside.write(b"this is no capture at all").unwrap();
    let mut pool = small_segment_pool(1 << 17);
    assert!(produce_all(&mut inside, &mut pool).0.is_empty());
    let why = outside.write(b"more").unwrap_err();
    assert!(why.0.contains("capture"), "{why}");
    let (mut outside, mut inside) = writer(WriterForm::Blocks);
    outside.write(b"accepted").unwrap();
    assert!(inside.stop());
    assert_eq!(outside.write(b"refused").unwrap_err().0, "the path has ended");
    // The bytes that were accepted before the end are emitted.
    assert_eq!(texts(&produce_all(&mut inside, &mut pool).0), ["accepted"]);
    let (mut outside, inside) = writer(WriterForm::Blocks);
    drop(inside);
    assert_eq!(outside.write(b"x").unwrap_err().0, DEFAULT_END_REASON);
}

#[test]
fn b7_full_writer_waits_until_blocks_are_read() {
    let (mut outside, mut inside) = writer(WriterForm::Blocks);
    let piece = [1u8; PACKET_DATA_BYTES_MAX];
    let mut written = 0;
    while let Some(length) = outside.write(&piece).unwrap() {
        written += length;
    }
    assert!(written >= 2 * PACKET_DATA_BYTES_MAX);
    inside.stop();
    let (blocks, _) = produce_all(&mut inside, &mut small_segment_pool(1 << 17));
    assert_eq!(blocks.iter().map(|block| block.bytes.len()).sum::<usize>(), written);
}

#[test]
fn b7_unwritable_forms_are_refused_with_a_reason() {
    for (output, capture) in [
        (Form::Frame, false),
        (Form::Message, false),
        (Form::Segment, true),
        (Form::Packet, false),
        (Form::Bytes, true),
    ] {
        assert!(
            WriterForm::for_node_output(output, capture).unwrap_err().contains("write"),
            "{output:?}"
        );
    }
    assert_eq!(WriterForm::for_node_output(Form::Frame, true), Ok(WriterForm::Capture));
    assert_eq!(WriterForm::for_node_output(Form::Record, false), Ok(WriterForm::Lines));
}
