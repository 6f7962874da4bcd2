//! `print`: writes one line per block to standard output, in the style of tcpdump.
//!
//! ```text
//! 09:24:46.123456 IP 10.0.0.1:1234 > 10.0.0.2:80 tcp [S] seq 1 win 512, payload 0, length 60
//! ```
//!
//! A described message is printed as one line, even if it consists of many blocks:
//!
//! ```text
//! 09:24:46.123456 10.0.0.1:1234 > 10.0.0.2:80 http GET http://host/path, class get, session 1
//! ```
//!
//! A line contains the time (in UTC, so that all machines print the same times), the source if the
//! path has several sources, the headers of the frame, the length of the view, and the class
//! assigned by the last filter. Captured text is printed without control characters.

use super::buffered_output::BufferedOutputFile;
use super::class_names::ClassNames;
use super::headers::Headers;
use super::json::direction_word;
use super::message::{MessageCounts, MessagePhrase, MessageRecord};
use super::text_sink::{BlockFormatter, TextSink};
use crate::timestamp_text::TimeOfDay;
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use abi::Class;
use abi::text::VisibleText;
use filter::{Block, Description, Form, Parameter, ParameterType, Report, StandardOutput, Time};
use std::io::Write;

/// Description of `print`, the sink that writes a line of text per block.
pub const PRINT: Description = Description {
    name: "print",
    summary: "print one line per block on standard output",
    details: "\
Prints one line per block: time (UTC), source (if there are several), addresses, ports, protocol and
flags (if it is part of a frame), length of the view in bytes, and the class and session from the
filters before. A message that a filter such as `http`, `dns` or `tls` describes is one line with
its contents; its bytes get no lines of their own unless `payload` selects them.

`payload=hex` adds a dump of the viewed bytes, `payload=text` adds them as text, with a dot for all
but printable ASCII, tabs and line ends. Lines are written at once to a terminal, and elsewhere in
pieces of 64 KB, or when the input pauses.",
    example: "replay web.pcap | bpf \"tcp port 80\" | print payload=text",
    parameters: &[Parameter::with_default(
        "payload",
        ParameterType::OneOf(&["none", "hex", "text"]),
        "none",
        "format of the viewed bytes under each line",
    )],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `print`.
pub const ENTRY: SinkEntry =
    SinkEntry::new(&PRINT, open).with_standard_output(|_| StandardOutput::Lines);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DumpFormat {
    None,
    Hex,
    Text,
}

#[derive(Debug)]
struct PrintFormatter {
    names: ClassNames,
    form: Form,
    payload: DumpFormat,
    described: MessageCounts,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let payload = match opening.arguments.text("payload") {
        Some("hex") => DumpFormat::Hex,
        Some("text") => DumpFormat::Text,
        _ => DumpFormat::None,
    };
    let formatter = PrintFormatter::new(opening, payload);
    Ok(Box::new(TextSink {
        formatter,
        out: BufferedOutputFile::stdout()?.with_stop_limit(&opening.stopped),
    }))
}

impl BlockFormatter for PrintFormatter {
    fn append(&mut self, block: &Block<'_>, out: &mut BufferedOutputFile) -> Result<(), Failure> {
        // A fragment of a described message has no line of its own.
        let record = MessageRecord::from_block(block);
        let is_hidden =
            self.payload == DumpFormat::None && self.described.belongs_to_counted_message(block);
        if record.is_some() || !is_hidden {
            match record {
                Some(record) => self.append_message(block, record, out.buffer()),
                None => self.append_line(block, out.buffer()),
            }
            out.end_item();
        }
        self.described.count_block(block);
        Ok(())
    }

    fn report(&self, out: &BufferedOutputFile) -> Report {
        let rows = self.described.rows(out.amount_written());
        rows.with_delivered_items(out.items_written(), "block", "printed".to_owned())
    }
}

/// Appends formatted text to a buffer in memory, which cannot fail.
macro_rules! add {
    ($to:expr, $($text:tt)*) => {{ let _ = write!($to, $($text)*); }};
}

impl PrintFormatter {
    fn new(opening: &OpenArguments<'_>, payload: DumpFormat) -> Self {
        let described = MessageCounts::new(opening.forms().any(|form| form == Form::Message));
        Self { names: ClassNames::new(opening), form: opening.form, payload, described }
    }

    fn append_message(&mut self, block: &Block<'_>, record: MessageRecord<'_>, to: &mut Vec<u8>) {
        self.begin_line(block, record.time().unwrap_or(block.context.time), to);
        add!(to, "{}", MessagePhrase(record));
        self.end_line(block, to);
    }

    fn begin_line(&mut self, block: &Block<'_>, time: Time, to: &mut Vec<u8>) {
        add!(to, "{} ", TimeOfDay(time));
        if let Some(origin) = self.names.origin_name(block.context.origin) {
            add!(to, "[{}] ", VisibleText(origin));
        }
    }

    fn append_line(&mut self, block: &Block<'_>, to: &mut Vec<u8>) {
        self.begin_line(block, block.context.time, to);
        match Headers::parse_frame(block) {
            Some(headers) => add!(to, "{headers}"),
            None => self.append_form(block, to),
        }
        add!(to, ", length {}", block.length());
        if block.marks.captured < block.marks.wire_length {
            add!(to, ", captured {} of {}", block.marks.captured, block.marks.wire_length);
        }
        self.end_line(block, to);
        match self.payload {
            DumpFormat::None => {}
            DumpFormat::Hex => append_dump(to, block.bytes()),
            DumpFormat::Text => append_text(to, block.bytes()),
        }
    }

    /// Appends the form of a block without a frame. Adds the direction if the block belongs to a
    /// session, and a word for a hole or an end marker.
    fn append_form(&self, block: &Block<'_>, to: &mut Vec<u8>) {
        add!(to, "{}", self.form.name());
        if block.context.session != 0 {
            add!(to, " {}", direction_word(block));
        }
        match (block.pointer.is_hole(), block.length()) {
            (true, 0) => add!(to, ", end"),
            (true, _) => add!(to, ", missing"),
            (false, _) => {}
        }
    }

    fn end_line(&self, block: &Block<'_>, to: &mut Vec<u8>) {
        let class = block.pointer.class;
        if self.names.is_class_printed(class) {
            append_class(to, &self.names, class);
        }
        if block.context.session != 0 {
            add!(to, ", session {}", block.context.session);
        }
        to.push(b'\n');
    }
}

fn append_class(to: &mut Vec<u8>, names: &ClassNames, class: Class) {
    match (names.class_name(class), names.class_value(class)) {
        (Some(name), _) => add!(to, ", class {}", VisibleText(name)),
        (None, Some(value)) => add!(to, ", class {value}"),
        (None, None) => to.extend_from_slice(b", no class"),
    }
}

/// Appends a hex dump: 16 bytes per line with offset, digits and characters.
fn append_dump(to: &mut Vec<u8>, bytes: &[u8]) {
    for (row, piece) in bytes.chunks(16).enumerate() {
        add!(to, "\t0x{:04x}: ", row * 16);
        for pair in piece.chunks(2) {
            to.push(b' ');
            for byte in pair {
                add!(to, "{byte:02x}");
            }
        }
        let missing = 16 - piece.len();
        let spaces = missing * 2 + missing / 2 + 2;
        add!(to, "{:spaces$}", "");
        to.extend(piece.iter().map(|byte| if is_graphic(*byte) { *byte } else { b'.' }));
        to.push(b'\n');
    }
}

/// Appends text with a tab at the start of each line, so that data cannot be mistaken for output of
/// `print`. Each unprintable byte except a tab becomes `.`, and a carriage return at the end of a
/// line is omitted.
fn append_text(to: &mut Vec<u8>, bytes: &[u8]) {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() {
        return;
    }
    for line in bytes.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        to.push(b'\t');
        let printable = |byte: &u8| if is_graphic(*byte) || *byte == b'\t' { *byte } else { b'.' };
        to.extend(line.iter().map(printable));
        to.push(b'\n');
    }
}

const fn is_graphic(byte: u8) -> bool {
    matches!(byte, b' '..=b'~')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Origins;
    use crate::testing::UNLOGGED_CREATION;
    use crate::testing::{
        TempDir, batch_from_blocks, checked_arguments, decode_hex, description_block,
        description_record, frame_block, frameless_block, hole_block, sink_opening,
    };
    use abi::BlockFlags;
    use filter::{Classes, ValueRange};
    use wire::record::{Field, RecordKind};

    const FRAME: &str = "020000000002 020000000001 0800 4500002a 00010000 40060000
        0a000001 0a000002 04d20050 00000001 00000007 50180200 00000000 6869";

    /// Returns the lines printed for these blocks.
    fn printed_lines(
        payload: &str,
        change: fn(&mut OpenArguments<'_>),
        blocks: &[Block<'_>],
    ) -> String {
        let given = checked_arguments(&PRINT, &[("payload", payload)]);
        let origins = ["one.pcap".to_owned(), "tw\x1b[2J".to_owned()];
        let mut opening = sink_opening(&given, &origins[..1]);
        change(&mut opening);
        let several = OpenArguments {
            origins: Origins::new(&origins),
            stopped: opening.stopped.clone(),
            ..opening
        };
        let opening = if opening.origin == 1 { &several } else { &opening };
        let dir = TempDir::new();
        let out = BufferedOutputFile::create(&dir.path("out"), UNLOGGED_CREATION).unwrap();
        let payload = match payload {
            "hex" => DumpFormat::Hex,
            "text" => DumpFormat::Text,
            _ => DumpFormat::None,
        };
        let mut print = TextSink { formatter: PrintFormatter::new(opening, payload), out };
        print.consume(&batch_from_blocks(blocks), 0).unwrap();
        let count = blocks.len() as u64;
        assert_eq!(print.finish().unwrap().rows[0], ("blocks".to_owned(), count));
        assert_eq!(print.amount_written().unwrap().blocks, count);
        std::fs::read_to_string(dir.path("out")).unwrap()
    }

    #[test]
    fn frames_and_records_print_as_lines() {
        let bytes = decode_hex(FRAME);
        let line = "23:31:30.123456 IP 10.0.0.1:1234 > 10.0.0.2:80 tcp [P.] seq 1 ack 7 win 512, \
                    payload 2, length 56\n";
        assert_eq!(printed_lines("none", |_| {}, &[frame_block(&bytes)]), line);
        let view = frame_block(&bytes).narrow(54, 2);
        assert_eq!(printed_lines("none", |_| {}, &[view]), line.replace("length 56", "length 2"));
        let record =
            printed_lines("none", |o| o.form = Form::Record, &[frameless_block(b"a line")]);
        assert_eq!(record, "23:31:30.123456 record, length 6\n");
    }

    #[test]
    fn line_shows_class_session_source_and_truncation() {
        let number = |o: &mut OpenArguments<'_>| {
            const CLASSES: Classes = Classes::Number {
                meaning: "port",
                range: ValueRange { low: 0, high: 65_535 },
                names: &[("http", 80)],
            };
            o.classes = &[CLASSES];
            o.form = Form::Bytes;
            o.origin = 1;
        };
        let mut first = frameless_block(b"x").with_class(Class(80));
        first.context.session = 7;
        first.context.origin = 1;
        let mut second = frameless_block(b"yz").with_class(Class(81));
        second.marks.wire_length = 9;
        let third = frameless_block(b"").with_class(Class::NONE);
        assert_eq!(
            printed_lines("none", number, &[first, second, third]),
            "23:31:30.123456 [tw·[2J] bytes forward, length 1, class http, session 7\n\
             23:31:30.123456 [one.pcap] bytes, length 2, captured 2 of 9, class 81\n\
             23:31:30.123456 [one.pcap] bytes, length 0, no class\n"
        );
    }

    #[test]
    fn described_message_is_one_line() {
        let response = description_record(RecordKind::HttpResponse, |writer| {
            writer.add_text(Field::Client, &[10, 0, 0, 1]);
            writer.add_text(Field::Server, &[10, 0, 0, 2]);
            writer.add_number(Field::Status, 200);
            writer.add_text(Field::StatusText, b"\x1b]0;owned\x07");
        });
        let mut first = description_block(&response).with_class(Class(200));
        first.context.session = 5;
        first.context.flags = BlockFlags::FIRST.with(BlockFlags::BACKWARD);
        let fragments = [frameless_block(b"HTTP/1.1 200 OK"), hole_block(3)].map(|mut block| {
            (block.context.session, block.context.flags) = (5, BlockFlags::BACKWARD);
            block
        });
        let blocks = [first, fragments[0], fragments[1]];
        let given = checked_arguments(&PRINT, &[]);
        let dir = TempDir::new();
        let print = |payload, name: &str| {
            let opening = OpenArguments { form: Form::Message, ..sink_opening(&given, &[]) };
            let out = BufferedOutputFile::create(&dir.path(name), UNLOGGED_CREATION).unwrap();
            let mut print = TextSink { formatter: PrintFormatter::new(&opening, payload), out };
            print.consume(&batch_from_blocks(&blocks), 0).unwrap();
            let rows = print.finish().unwrap().rows;
            (std::fs::read_to_string(dir.path(name)).unwrap(), rows)
        };
        let line = "23:31:30.123456 10.0.0.2 > 10.0.0.1 http 200 \\x1B]0;owned\\x07, class 200, \
                    session 5\n";
        let (text, rows) = print(DumpFormat::None, "none");
        assert_eq!(text, line);
        let expected = [("blocks", 3), ("messages", 1), ("fragments", 2)];
        assert_eq!(rows, expected.map(|(name, value)| (name.to_owned(), value)));
        let rest = "23:31:30.123456 message backward, length 15, session 5\n\tHTTP/1.1 200 OK\n\
                    23:31:30.123456 message backward, missing, length 3, session 5\n";
        assert_eq!(print(DumpFormat::Text, "text").0, format!("{line}{rest}"));
        let stream = [first, frameless_block(b"HTTP/1.1 200 OK"), hole_block(0)];
        let stream = printed_lines("none", |o| o.form = Form::Stream, &stream);
        assert_eq!(
            stream.lines().count(),
            3,
            "the blocks of a stream are printed along with its description"
        );
        assert!(stream.ends_with("stream, end, length 0\n"), "{stream}");
        let mut end = hole_block(0);
        (end.context.session, end.context.flags) =
            (5, BlockFlags::BACKWARD.with(BlockFlags::SESSION_END));
        let end = printed_lines("none", |o| o.form = Form::Stream, &[end]);
        assert!(end.ends_with("stream backward, end, length 0, session 5\n"), "{end}");
    }

    #[test]
    fn blocks_of_undescribed_streams_are_printed_beside_messages() {
        let request = description_record(RecordKind::HttpRequest, |writer| {
            writer.add_text(Field::Method, b"GET");
        });
        let block = |block: Block<'static>, session, flags: BlockFlags| {
            let mut block = block;
            (block.context.session, block.context.flags) = (session, flags);
            block
        };
        let mut description = description_block(&request);
        (description.context.session, description.context.flags) = (1, BlockFlags::FIRST);
        let other = || block(frameless_block(b"other"), 2, BlockFlags::NONE);
        let blocks = [
            description,
            block(frameless_block(b"first"), 1, BlockFlags::FIRST),
            other(),
            block(frameless_block(b"between"), 1, BlockFlags::NONE),
            block(frameless_block(b"last"), 1, BlockFlags::LAST),
            block(frameless_block(b"after"), 1, BlockFlags::NONE),
            block(frameless_block(b"answer"), 1, BlockFlags::BACKWARD),
            other(),
        ];
        let printed = printed_lines("none", |o| o.form = Form::Message, &blocks);
        let lines = printed.lines().skip(1).map(|line| line.split_once(' ').unwrap().1);
        let expected = [
            "message forward, length 5, session 2",
            "message forward, length 5, session 1",
            "message backward, length 6, session 1",
            "message forward, length 5, session 2",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), expected, "{printed}");
    }

    #[test]
    fn payload_prints_as_dump_or_text() {
        let forged = b"GET / \x1b[2J\r\n23:31:30 IP forged\n";
        let text = printed_lines("text", |o| o.form = Form::Stream, &[frameless_block(forged)]);
        let lines = "\tGET / .[2J\n\t23:31:30 IP forged\n";
        assert_eq!(text, format!("23:31:30.123456 stream, length 31\n{lines}"));
        let dump = printed_lines(
            "hex",
            |o| o.form = Form::Stream,
            &[frameless_block(b"0123456789abcdef\x00z!")],
        );
        let expected = "23:31:30.123456 stream, length 19\n\
            \t0x0000:  3031 3233 3435 3637 3839 6162 6364 6566  0123456789abcdef\n\
            \t0x0010:  007a 21                                  .z!\n";
        assert_eq!(dump, expected);
    }
}
