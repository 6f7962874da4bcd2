//! `pcap`: writes the frames around the blocks as a capture file.
//!
//! Out: the classic format with nanoseconds, little-endian, which tcpdump, tshark and Wireshark
//! read. What is written is always the whole frame, found through the marks, whatever the view
//! (CONTRACT 4). A file of this format has one link type, that of the first block; another one
//! later is a failure that says so, because nothing may get lost in silence.

use super::out::Out;
use crate::{Failure, Opening, Sink, SinkEntry};
use filter::{
    Amount, Batch, Block, Description, Forms, Gives, Kind, Parameter, Report, Time, Type,
};
use wire::capture::write;
use wire::link::LinkType;

/// What everybody knows about `pcap`.
pub const PCAP: Description = Description {
    name: "pcap",
    summary: "write the frames of the blocks to a capture file",
    details: "\
Writes a pcap file with nanoseconds. Each block gives its whole frame, whatever part of it the
filters before looked at. The link type of the file is that of the first block; a block of another
link type ends the path with an error. An existing file is replaced when the first block comes; `-`
is standard output. Frames of more than 262,144 bytes, which no reader accepts, are cut to that and
counted in the report.",
    example: "replay all.pcap | bpf \"udp port 53\" | pcap dns.pcap",
    kind: Kind::Sink,
    writes_files: true,
    takes: Forms::FRAMED,
    gives: Gives::Nothing,
    parameters: &[Parameter::needed("file", Type::Path, "the file to write; - is standard output")],
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry { description: &PCAP, open };

#[derive(Debug)]
struct Pcap {
    out: Out,
    /// The link type of the file, once its header is in the buffer.
    link: Option<LinkType>,
    cut: u64,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    let path = opening.arguments.text("file").unwrap_or("-");
    let out = Out::create(path)?;
    if out.is_interactive() {
        let why = "it is a terminal, and a capture is not text";
        let hint = "name a file, or use `print` to look at the blocks";
        return Err(Failure::new("write", out.target(), why).hint(hint));
    }
    Ok(Box::new(Pcap { out, link: None, cut: 0 }))
}

impl Sink for Pcap {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.check(&block)?;
            self.frame(&block)?;
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.out.flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        if self.link.is_none() {
            // A capture without packets is still a capture.
            self.begin(LinkType::ETHERNET);
        }
        self.out.flush()?;
        let rows = [("frames", self.out.written().blocks), ("cut", self.cut)];
        Ok(Report { rows: rows.map(|(name, value)| (name.to_owned(), value)).to_vec() })
    }

    fn written(&self) -> Option<Amount> {
        Some(self.out.written())
    }
}

impl Pcap {
    fn check(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let number = block.marks.link;
        let problem = match self.link {
            _ if !block.marks.is_frame() => "a block lies in no frame".to_owned(),
            None => {
                self.begin(LinkType(number));
                return Ok(());
            }
            Some(LinkType(first)) if first == number => return Ok(()),
            Some(first) => {
                let second = LinkType(number);
                format!("it holds frames of link type {first}, and one of {second} came")
            }
        };
        let failure = Failure::new("write", self.out.target(), problem);
        // What came before is good and must not be lost with the rest.
        self.out.flush()?;
        Err(failure.hint(if block.marks.is_frame() {
            "write each source into a file of its own"
        } else {
            "put `pcap` before the filter that makes new bytes, or write them with `files`"
        }))
    }

    fn begin(&mut self, link: LinkType) {
        self.out.text().extend_from_slice(&write::header(link));
        self.link = Some(link);
    }

    fn frame(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let most = write::SNAP_LENGTH as usize;
        let bytes = block.frame.get(..most).unwrap_or(block.frame);
        self.cut += u64::from(bytes.len() < block.marks.captured as usize);
        let captured = u32::try_from(bytes.len()).unwrap_or(write::SNAP_LENGTH);
        let header = write::record(block.context.time, captured, block.marks.wire_length);
        let text = self.out.text();
        text.extend_from_slice(&header);
        text.extend_from_slice(bytes);
        self.out.ended(block.length())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TIME, TempDir, arguments, bare, batch, block, frame, opening, refused};
    use abi::Marks;

    fn on(path: &str) -> Result<Box<dyn Sink>, Failure> {
        let given = arguments(&PCAP, &[("file", path)]);
        open(&opening(&given, &[]))
    }

    fn read(path: &str) -> Vec<(u64, u32, u16, Vec<u8>)> {
        let capture = std::fs::read(path).unwrap();
        let each = |packet: Result<(wire::capture::Packet, &[u8]), _>| {
            let (packet, data) = packet.unwrap();
            (packet.time_ns, packet.wire_length, packet.link.0, data.to_vec())
        };
        wire::capture::packets(&capture).map(each).collect()
    }

    #[test]
    fn whole_frames_whatever_the_view() {
        let dir = TempDir::new();
        let path = dir.path("a.pcap");
        let mut sink = on(&path).unwrap();
        let cut = block(Marks::frame(1, 3, 1500), b"xyz");
        sink.take(&batch(&[frame(b"0123456789").narrow(4, 2), cut]), 0).unwrap();
        let rows = sink.finish().unwrap().rows;
        assert_eq!(rows, [("frames".to_owned(), 2), ("cut".to_owned(), 0)]);
        assert_eq!(sink.written(), Some(Amount { blocks: 2, bytes: 5 }));
        let expected = [(TIME, 10, 1, b"0123456789".to_vec()), (TIME, 1500, 1, b"xyz".to_vec())];
        assert_eq!(read(&path), expected);
    }

    #[test]
    fn a_path_without_blocks_still_gives_a_capture() {
        let dir = TempDir::new();
        let path = dir.path("empty.pcap");
        on(&path).unwrap().finish().unwrap();
        assert_eq!(read(&path), []);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 24);
    }

    #[test]
    fn a_frame_that_no_reader_would_accept_is_cut_and_counted() {
        let dir = TempDir::new();
        let path = dir.path("long.pcap");
        let mut sink = on(&path).unwrap();
        let long = vec![7; 300_000];
        sink.take(&batch(&[frame(&long)]), 0).unwrap();
        assert_eq!(sink.finish().unwrap().rows[1], ("cut".to_owned(), 1));
        let packets = read(&path);
        assert_eq!((packets[0].1, packets[0].3.len()), (300_000, 262_144));
    }

    #[test]
    fn another_link_type_ends_the_path_and_keeps_what_came() {
        let dir = TempDir::new();
        let path = dir.path("two.pcap");
        let mut sink = on(&path).unwrap();
        let cooked = block(Marks::frame(276, 2, 2), b"ab");
        let failure = sink.take(&batch(&[frame(b"first"), cooked]), 0).unwrap_err().to_string();
        let expected = "it holds frames of link type EN10MB, and one of LINUX_SLL2 came; \
                        write each source into a file of its own";
        assert_eq!(failure, format!("cannot write {path}: {expected}"));
        assert_eq!(sink.written(), Some(Amount { blocks: 1, bytes: 5 }));
        assert_eq!(read(&path).len(), 1);
    }

    #[test]
    fn what_is_no_frame_names_the_fix() {
        let dir = TempDir::new();
        let mut sink = on(&dir.path("x.pcap")).unwrap();
        let failure = sink.take(&batch(&[bare(b"a line")]), 0).unwrap_err().to_string();
        assert!(failure.contains("lies in no frame; put `pcap` before"), "{failure}");
    }

    #[test]
    fn refusals_of_the_machine() {
        let dir = TempDir::new();
        let failure = refused(on(&dir.path("no/such/dir.pcap")));
        assert!(failure.to_string().ends_with("no such file or directory"), "{failure}");
        assert!(refused(on(&dir.path(""))).to_string().contains("directory"));
        let mut sink = on("/dev/full").unwrap();
        sink.take(&batch(&[frame(b"lost")]), 0).unwrap();
        assert!(sink.finish().unwrap_err().to_string().contains("no space left"));
        assert_eq!(sink.written(), Some(Amount::default()));
    }
}
