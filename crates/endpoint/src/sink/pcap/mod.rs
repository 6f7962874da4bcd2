//! `pcap`: writes the frames of blocks to a capture file, or to one file per connection.
//!
//! The files are classic little-endian pcap with nanoseconds, as read by tcpdump, tshark and
//! Wireshark. The entire frame is written, not only the block's view (CONTRACT 4), and only once if
//! several blocks of a stream are views of the same frame. The first frame determines the link type
//! of a file. A frame with another link type is a failure, because no frame may be lost silently.

mod deduplication;
mod in_place_records;
mod split_pcap;

use super::buffered_output::BufferedOutputFile;
use super::file_set::{OPEN_FILES_PARAMETER, SESSIONS_PARAMETER};
use crate::entry::is_file_standard_output;
use crate::source::kernel::frames_in_place::FramesInPlace;
use crate::{DropReason, Failure, OpenArguments, Sink, SinkEntry};
use deduplication::FrameDeduplication;
use filter::{
    Amount, Batch, Block, Description, Form, Forms, Parameter, ParameterType, Report,
    StandardOutput, StateFacts, Time, WorkerRule,
};
use in_place_records::InPlaceSources;
use split_pcap::SplitPcap;
use std::sync::Arc;
use wire::capture::write;
use wire::link::LinkType;

/// Description of `pcap`, the sink that writes frames to capture files.
pub const PCAP: Description = Description {
    name: "pcap",
    summary: "write the frames of the blocks to a capture file",
    details: "\
Writes the whole frame of each block, whatever its view, to a pcap file with nanoseconds. A frame
that several blocks of a stream view is written once. Blocks without a frame (lost bytes,
descriptions, decoded bodies) are omitted, and counted in the report. The file has the link type of
its first frame; a frame of another type ends the path with an error. Frames of more than 262,144
bytes, which no reader accepts, are truncated to that length and counted. An existing file is
replaced when the first frame arrives. `-` is standard output, to which no other sink of the request
may then write; the reports of `count` and others follow on standard error.

`per=connection` writes one file for each connection into the directory FILE, `per=session` one for
each of its directions, as `files` does: names such as 000001-10.0.0.1.1234-10.0.0.2.80.pcap,
nothing overwritten, an `index.jsonl`. A connection is a session of `tcp` or `udp`. Before them it
is all frames with the same addresses, ports and protocol, including frames without payload, which
`tcp` consumes. Frames other than IP share one file. At most `open` files are open and at most
`sessions` sessions remembered at a time; a session that was forgotten continues in another file.",
    example: "replay all.pcap | bpf \"udp port 53\" | pcap dns.pcap",
    input_forms: FRAMED_FORMS,
    state: StateFacts::NONE.with_worker_rule(|arguments| match arguments.text("per") {
        Some("connection" | "session") => WorkerRule::Directory("file"),
        _ => WorkerRule::Differs(
            "a capture has one header, and all frames in order",
            "write `per=connection`, so that each has files of its own, or leave `--engines` out",
        ),
    }),
    parameters: &[
        Parameter::required(
            "file",
            ParameterType::Path,
            "the file to write; - is standard output; with `per`, the directory",
        ),
        Parameter::with_default(
            "per",
            ParameterType::OneOf(&["all", "connection", "session"]),
            "all",
            "unit that gets a file of its own",
        ),
        OPEN_FILES_PARAMETER,
        SESSIONS_PARAMETER,
    ],
    ..Description::SINK_DEFAULTS
};

/// Forms whose blocks are part of frames. Messages are included, because most of their blocks are
/// part of frames.
const FRAMED_FORMS: Forms =
    Forms::of(&[Form::Frame, Form::Packet, Form::Segment, Form::Stream, Form::Message])
        .inside_frames();

/// The catalog entry of `pcap`.
pub const ENTRY: SinkEntry = SinkEntry::new(&PCAP, open)
    .with_file_writes()
    .with_append_only(|given| given.text("per") == Some("all") && !is_file_standard_output(given))
    .with_standard_output(|given| match is_file_standard_output(given) {
        true => StandardOutput::Capture,
        false => StandardOutput::Unused,
    });

#[derive(Debug)]
struct PcapSink {
    out: BufferedOutputFile,
    /// Link type of the capture file, or `None` until the file's header is in the buffer.
    link: Option<LinkType>,
    frames: FrameDeduplication,
    in_place: InPlaceSources,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let path = opening.arguments.text("file").unwrap_or("-");
    let frames = FrameDeduplication::new(opening);
    if let Some(per @ ("connection" | "session")) = opening.arguments.text("per") {
        return Ok(Box::new(SplitPcap::open(path, per == "session", frames, opening)?));
    }
    let out = BufferedOutputFile::create(path, (opening.rollback_log, opening.readers))?;
    if out.is_interactive() {
        let why = "it is a terminal, and a capture is not text";
        let hint = "name a file, or use `print` to look at the blocks";
        return Err(Failure::new("write", out.name_for_messages(), why).with_hint(hint));
    }
    let out = out.with_stop_limit(&opening.stopped);
    Ok(Box::new(PcapSink { out, link: None, frames, in_place: InPlaceSources::default() }))
}

impl Sink for PcapSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        if let Some(frames) = self.in_place.find_batch_frames(batch) {
            return self.write_in_place(batch, &frames);
        }
        for (_, block) in batch.blocks() {
            if self.frames.record_frame_if_new(&block) {
                self.check_link_type(&block)?;
                self.frames.append_frame(&block, self.out.buffer());
                self.out.end_item();
            }
            self.out.end_block(block.length())?;
        }
        Ok(())
    }

    fn accepts_in_place(&mut self, frames: &Arc<FramesInPlace>) -> bool {
        // If several blocks viewed the same frame, the frame would have to be found again for each
        // of them.
        !self.frames.may_share_frames() && self.in_place.add_source(frames)
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        self.out.flush()
    }

    fn take_longest_write(&mut self) -> u64 {
        self.out.take_longest_write()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        if self.link.is_none() && !self.out.will_replace_contents() {
            // A capture without packets is still valid.
            self.write_header(LinkType::ETHERNET);
        }
        self.out.flush()?;
        let rows = self.frames.rows(self.out.items_written(), self.out.name_for_messages())?;
        Ok(self.out.report(rows, "packet"))
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.out.amount_written())
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        self.in_place.drops_by_reason()
    }
}

impl PcapSink {
    fn check_link_type(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let link = LinkType(block.marks.link).file_link_type();
        match self.link {
            None => {
                self.write_header(link);
                Ok(())
            }
            Some(first) if first == link => Ok(()),
            Some(first) => {
                // The frames before this one are written before the sink fails.
                self.out.flush()?;
                Err(link_type_failure(self.out.name_for_messages(), first, link))
            }
        }
    }

    fn write_header(&mut self, link: LinkType) {
        self.out.buffer().extend_from_slice(&write::encode_file_header(link));
        self.link = Some(link);
    }
}

/// Creates the failure for a frame whose link type differs from that of the file.
fn link_type_failure(target: &str, first: LinkType, second: LinkType) -> Failure {
    let problem = format!("it contains frames of link type {first}, and one of {second} arrived");
    Failure::new("write", target, problem).with_hint("write each source into a file of its own")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::testing::{
        TEST_TIME, TempDir, batch_from_blocks, block_with_marks, checked_arguments,
        description_block, expect_failure, frame_block, frameless_block, hole_block, sink_opening,
    };
    use abi::{Class, DbufId, Extent, Marks, RichPointer};

    fn pcap_sink(path: &str) -> Result<Box<dyn Sink>, Failure> {
        pcap_sink_of_form(path, Form::Frame)
    }

    fn pcap_sink_of_form(path: &str, form: Form) -> Result<Box<dyn Sink>, Failure> {
        let given = checked_arguments(&PCAP, &[("file", path)]);
        open(&OpenArguments { form, ..sink_opening(&given, &[]) })
    }

    /// Returns a block that is a frame at this position of its dbuf.
    fn frame_at(position: u64, bytes: &[u8]) -> Block<'_> {
        let frame = frame_block(bytes);
        let place = Extent::new(position, frame.length());
        let pointer = RichPointer::new(DbufId::new(1).unwrap(), place, Class::YES);
        Block { pointer, ..frame }
    }

    pub(crate) fn read_capture(path: &str) -> Vec<(u64, u32, u16, Vec<u8>)> {
        let capture = std::fs::read(path).unwrap();
        let each = |packet: Result<(wire::capture::Packet, &[u8]), _>| {
            let (packet, data) = packet.unwrap();
            (packet.time_ns, packet.wire_length, packet.link.0, data.to_vec())
        };
        wire::capture::packets(&capture).map(each).collect()
    }

    #[test]
    fn entire_frame_is_written_regardless_of_view() {
        let dir = TempDir::new();
        let path = dir.path("a.pcap");
        let mut sink = pcap_sink(&path).unwrap();
        let cut = block_with_marks(Marks::frame(1, 3, 1500), b"xyz");
        sink.consume(&batch_from_blocks(&[frame_block(b"0123456789").narrow(4, 2), cut]), 0)
            .unwrap();
        let rows = sink.finish().unwrap().rows;
        assert_eq!(rows, [("frames".to_owned(), 2), ("cut".to_owned(), 0)]);
        assert_eq!(sink.amount_written(), Some(Amount { blocks: 2, bytes: 5 }));
        let expected =
            [(TEST_TIME, 10, 1, b"0123456789".to_vec()), (TEST_TIME, 1500, 1, b"xyz".to_vec())];
        assert_eq!(read_capture(&path), expected);
    }

    #[test]
    fn empty_path_writes_a_capture_header() {
        let dir = TempDir::new();
        let path = dir.path("empty.pcap");
        pcap_sink(&path).unwrap().finish().unwrap();
        assert_eq!(read_capture(&path), []);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 24);
    }

    #[test]
    fn old_capture_stays_until_first_frame() {
        let dir = TempDir::new();
        let path = dir.path("old.pcap");
        std::fs::write(&path, "yesterday").unwrap();
        let mut sink = pcap_sink(&path).unwrap();
        sink.on_idle().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"yesterday");
        let report = sink.finish().unwrap();
        assert!(report.remarks[0].contains("was left unchanged"), "{report:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"yesterday");
        drop(sink);
        let mut sink = pcap_sink(&path).unwrap();
        sink.consume(&batch_from_blocks(&[frame_block(b"0123456789")]), 0).unwrap();
        sink.on_idle().unwrap();
        assert_eq!(read_capture(&path).len(), 1, "the replaced file contains the frame");
        assert!(pcap_sink(&path).is_err(), "the new file is locked too");
    }

    #[test]
    fn frame_beyond_snap_length_is_truncated_and_counted() {
        let dir = TempDir::new();
        let path = dir.path("long.pcap");
        let mut sink = pcap_sink(&path).unwrap();
        let long = vec![7; 300_000];
        sink.consume(&batch_from_blocks(&[frame_block(&long)]), 0).unwrap();
        assert_eq!(sink.finish().unwrap().rows[1], ("cut".to_owned(), 1));
        let packets = read_capture(&path);
        assert_eq!((packets[0].1, packets[0].3.len()), (300_000, 262_144));
    }

    #[test]
    fn second_link_type_fails_and_keeps_earlier_frames() {
        let dir = TempDir::new();
        let path = dir.path("two.pcap");
        let mut sink = pcap_sink(&path).unwrap();
        let cooked = block_with_marks(Marks::frame(276, 2, 2), b"ab");
        let failure = sink
            .consume(&batch_from_blocks(&[frame_block(b"first"), cooked]), 0)
            .unwrap_err()
            .to_string();
        let expected = "it contains frames of link type EN10MB, and one of LINUX_SLL2 arrived; \
                        write each source into a file of its own";
        assert_eq!(failure, format!("cannot write {path}: {expected}"));
        assert_eq!(sink.amount_written(), Some(Amount { blocks: 1, bytes: 5 }));
        assert_eq!(read_capture(&path).len(), 1);
    }

    #[test]
    fn raw_ip_of_both_versions_shares_a_file() {
        let dir = TempDir::new();
        let path = dir.path("ip.pcap");
        let mut sink = pcap_sink(&path).unwrap();
        let raw = |link: LinkType, bytes| block_with_marks(Marks::frame(link.0, 2, 2), bytes);
        let batch = [raw(LinkType::IPV4, b"\x45\x00"), raw(LinkType::IPV6, b"\x60\x00")];
        sink.consume(&batch_from_blocks(&batch), 0).unwrap();
        sink.finish().unwrap();
        let links: Vec<u16> = read_capture(&path).iter().map(|packet| packet.2).collect();
        assert_eq!(links, [LinkType::RAW.0; 2]);
    }

    #[test]
    fn frame_viewed_by_several_blocks_is_written_once() {
        let dir = TempDir::new();
        let path = dir.path("stream.pcap");
        let (one, two) = (frame_at(4096, b"0123456789"), frame_at(8192, b"0123456789"));
        let views = [
            one.narrow(0, 4),
            hole_block(7),
            description_block(b"\x01"),
            two.narrow(2, 2),
            one.narrow(4, 4).with_class(Class(7)),
            two,
            frameless_block(b"decoded"),
        ];
        let mut sink = pcap_sink_of_form(&path, Form::Message).unwrap();
        sink.consume(&batch_from_blocks(&views), 0).unwrap();
        let rows = sink.finish().unwrap().rows;
        let expected = [("frames", 2), ("cut", 0), ("repeated", 2), ("not frames", 3)];
        assert_eq!(rows, expected.map(|(name, value)| (name.to_owned(), value)));
        assert_eq!(
            sink.amount_written(),
            Some(Amount { blocks: 7, bytes: 4 + 7 + 2 + 4 + 10 + 7 })
        );
        assert_eq!(read_capture(&path).len(), 2);
        drop(sink);
        let mut sink = pcap_sink_of_form(&path, Form::Frame).unwrap();
        sink.consume(&batch_from_blocks(&[one, one]), 0).unwrap();
        sink.finish().unwrap();
        assert_eq!(
            read_capture(&path).len(),
            2,
            "a copy for each branch is a separate frame in the file"
        );
    }

    #[test]
    fn capture_without_frames_fails_with_remedy() {
        let dir = TempDir::new();
        for blocks in
            [vec![frameless_block(b"a line")], vec![description_block(b"\x03"), hole_block(3)]]
        {
            let mut sink = pcap_sink_of_form(&dir.path("x.pcap"), Form::Message).unwrap();
            sink.consume(&batch_from_blocks(&blocks), 0).unwrap();
            let failure = expect_failure(sink.finish()).to_string();
            assert!(failure.contains("is part of a frame; put `pcap` before"), "{failure}");
        }
        let mut sink = pcap_sink_of_form(&dir.path("x.pcap"), Form::Stream).unwrap();
        sink.consume(&batch_from_blocks(&[hole_block(0), hole_block(0)]), 0).unwrap();
        assert_eq!(sink.finish().unwrap().rows[2], ("not frames".to_owned(), 2));
    }

    #[test]
    fn unwritable_targets_fail() {
        let dir = TempDir::new();
        let failure = expect_failure(pcap_sink(&dir.path("no/such/dir.pcap")));
        assert!(failure.to_string().ends_with("no such file or directory"), "{failure}");
        assert!(expect_failure(pcap_sink(&dir.path(""))).to_string().contains("directory"));
        let mut sink = pcap_sink("/dev/full").unwrap();
        sink.consume(&batch_from_blocks(&[frame_block(b"lost")]), 0).unwrap();
        assert!(sink.finish().unwrap_err().to_string().contains("no space left"));
        assert_eq!(sink.amount_written(), Some(Amount::default()));
    }
}
