//! `pcap` as a filter in the middle of a request, where it emits the bytes of a capture file.
//!
//! Input: any views into frames. Output: the bytes of one pcap file per session: a file header with
//! the first frame, then one record for each frame, both directions in one stream. A frame that
//! arrives several times in a row, under different views, is recorded once. At the end of a request
//! `pcap` is the sink, which writes the file. [SL §4.2, `rx | ip | tcp | pcap | compress | files`]

use crate::prelude::*;
use wire::LinkType;
use wire::capture::write;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `pcap` as a filter, which emits the bytes of a capture file.
pub const PCAP_FILTER: Description = Description {
    name: "pcap",
    summary: "convert the frames of each session to a capture file",
    details: "\
Converts frames to the bytes of a pcap file with nanoseconds, if other filters follow; at the end of
a request, `pcap` writes a file. Each session has one stream for both directions, and blocks without
a session share another. The file header precedes the first frame. Each block adds a record with its
whole frame, of at most 262,144 bytes. The class stays. Above `sessions` sessions, an idle one is
forgotten, and would begin with a new header.

Consumed are blocks without a frame (lost bytes, descriptions, decoded bodies), counted as `not
frames`, and views of the frame before, counted as `repeated`. Reasons for a drop: `another link
type` than that of the first frame of the session.",
    example: "replay web.pcap | ip | tcp | pcap | compress | files traces/",
    kind: FilterKind::Editing,
    input_forms: Forms::of(&[
        Form::Frame,
        Form::Packet,
        Form::Segment,
        Form::Stream,
        Form::Message,
    ])
    .inside_frames(),
    output_form: OutputForm::Form(Form::Bytes),
    reads: ReadDepth::All,
    parameters: &[Parameter::table_size(
        "sessions",
        "262144",
        "maximum number of sessions in memory",
    )],
    reasons: &["another link type"],
    counters: &["not frames", "repeated", "evicted sessions"],
    state: StateFacts::sessions::<SessionCapture>(),
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

const OTHER_LINK_TYPE: Reason = PCAP_FILTER.reason("another link type");
const NOT_FRAMES: Counter = PCAP_FILTER.counter("not frames");
const REPEATED_VIEWS: Counter = PCAP_FILTER.counter("repeated");
const EVICTED_SESSIONS: Counter = PCAP_FILTER.counter("evicted sessions");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let sessions_max = arguments.number_as_usize("sessions");
    Ok(Filter::stream(PcapFilter { sessions_max, traces: Sessions::default() }))
}

/// State of the capture that the filter emits for one session.
#[derive(FromBytes, IntoBytes, Immutable, Default, Clone, Copy, Debug)]
#[repr(C)]
struct SessionCapture {
    /// Pointer to the frame that was recorded last.
    last_frame: RichPointer,
    /// Pointer to the bytes that were in view of the last block of this frame.
    last_view: RichPointer,
    /// Time of this frame, which distinguishes it from later frames in the same memory.
    last_time: Time,
    /// Link type of the first frame plus 1; 0 until a frame has arrived.
    link_plus_one: u32,
    /// Directions of the session that have ended: bit 0 for forward, bit 1 for backward.
    ended_directions: u32,
}

impl Session for SessionCapture {}

struct PcapFilter {
    sessions_max: usize,
    traces: Sessions<SessionCapture>,
}

impl Stream for PcapFilter {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        let key = u64::from(block.context.session);
        if self.traces.make_room(key, self.sessions_max).is_some() {
            cx.count(EVICTED_SESSIONS, 1);
        }
        let trace = self.traces.get_or_create(key);
        let context = trace.output_metadata(&block);
        let ends = context.flags.contains(BlockFlags::SESSION_END);
        if block.marks.is_frame() {
            trace.emit_capture_record(&block, context, cx);
        } else if ends && trace.link_plus_one != 0 {
            // A block without bytes that ends the connection also ends its capture.
            cx.consume(&block);
            emit_capture_end(&block, context, cx);
        } else {
            cx.count(NOT_FRAMES, 1);
            cx.consume(&block);
        }
        if ends {
            self.traces.remove(key);
        }
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.traces)
    }
}

impl SessionCapture {
    /// Returns the metadata for an output block. All output blocks of a session form a single
    /// stream for both directions. The stream begins with the file header, and ends when both
    /// directions have ended.
    fn output_metadata(&mut self, block: &Block<'_>) -> BlockMetadata {
        let flags = block.context.flags;
        if flags.contains(BlockFlags::SESSION_END) {
            self.ended_directions |= if flags.contains(BlockFlags::BACKWARD) { 2 } else { 1 };
        }
        let end = if self.ended_directions == 3 {
            BlockFlags(flags.0 & BlockFlags::SESSION_END_MASK.0)
        } else {
            BlockFlags::NONE
        };
        let first = if self.link_plus_one == 0 { BlockFlags::FIRST } else { BlockFlags::NONE };
        BlockMetadata { flags: first.with(end), ..block.context }
    }

    /// Emits the capture record of a frame. The first record of a session follows a file header.
    /// Drops a frame whose link type differs from that of the file. Consumes a repeated frame and
    /// emits no record. If `context` has the end flag, the end of the session is emitted even for a
    /// dropped or repeated frame, in a block without a record.
    fn emit_capture_record<'a>(
        &mut self,
        block: &Block<'a>,
        context: BlockMetadata,
        cx: &mut StreamContext<'_, 'a>,
    ) {
        let link_type_in_file = LinkType(block.marks.link).file_link_type();
        let link = u32::from(link_type_in_file.0) + 1;
        let frame = block.entry().frame().with_class(Class::NONE);
        if self.link_plus_one != 0 && self.link_plus_one != link {
            cx.drop(block, OTHER_LINK_TYPE);
            if context.flags.contains(BlockFlags::SESSION_END) {
                emit_capture_end(block, context, cx);
            }
            return;
        }
        let view = block.pointer.with_class(Class::NONE);
        // A stream views no byte twice, so the same view again is another block with this frame.
        let is_repeated = self.link_plus_one != 0
            && (self.last_frame, self.last_time) == (frame, block.context.time)
            && (self.last_view != view || block.length() == 0);
        self.last_view = view;
        if is_repeated && !context.flags.contains(BlockFlags::SESSION_END) {
            cx.count(REPEATED_VIEWS, 1);
            return cx.consume(block);
        }
        let header = write::encode_file_header(link_type_in_file);
        let header: &[u8] = if self.link_plus_one == 0 { &header } else { &[] };
        let bytes = block.frame;
        let bytes = bytes.get(..write::SNAP_LENGTH_MAX as usize).unwrap_or(bytes);
        let captured = bytes.len() as u32;
        let record =
            write::encode_record_header(block.context.time, captured, block.marks.wire_length);
        let (record, bytes) = if is_repeated { (&[][..], &[][..]) } else { (&record[..], bytes) };
        (self.link_plus_one, self.last_frame, self.last_time) = (link, frame, block.context.time);
        let block = &super::with_header_offsets(*block);
        cx.append_replacement(block, context, &[header, record, bytes]);
        cx.consume(block);
    }
}

/// Emits an empty block with metadata `context`, which ends the capture of the session of `block`.
fn emit_capture_end<'a>(block: &Block<'a>, context: BlockMetadata, cx: &mut StreamContext<'_, 'a>) {
    let end = Block { pointer: RichPointer::hole(0), frame: &[], ..*block };
    let end = Block { marks: Marks::for_plain_block(0), context, ..end };
    cx.emit_created_block(end.with_class(block.pointer.class));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, answer_frames};

    fn run_over_frames(frames: &[Frame]) -> Vec<(u64, usize)> {
        let found = answer_frames(&PCAP_FILTER, &[], frames);
        let capture: Vec<u8> = found.into_iter().flat_map(|answer| answer.bytes).collect();
        let packets = wire::capture::packets(&capture).map(|packet| packet.expect("a packet"));
        packets.map(|(packet, bytes)| (packet.time_ns, bytes.len())).collect()
    }

    #[test]
    fn h10_blocks_become_the_records_of_one_capture() {
        let frames = [Frame::udp(1, 2, b"abc"), Frame::tcp(3, 4, b"defg")];
        let lengths: Vec<usize> = frames.iter().map(|frame| frame.bytes.len()).collect();
        let found = run_over_frames(&frames);
        assert_eq!(found.iter().map(|(_, length)| *length).collect::<Vec<_>>(), lengths);
    }

    #[test]
    fn other_link_type_is_dropped_with_a_reason() {
        let raw = Frame::new(LinkType::RAW.0, &Frame::udp(1, 2, b"abc").bytes[14..]);
        assert_eq!(run_over_frames(&[Frame::udp(1, 2, b"abc"), raw]).len(), 1);
    }
}
