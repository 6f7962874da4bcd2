//! `freeze`: saves the frames around a triggering block to a capture file.
//!
//! The sink keeps the most recent frames in memory, and writes nothing until a block triggers it.
//! It then creates a file with the frames of the period `before` the trigger, the triggering frame,
//! and the frames of the period `after` the trigger. Older frames are evicted, so a path that waits
//! for weeks needs at most `bytes` of memory. Files are readable only by their owner, and no file
//! is overwritten. At most `files` files are created, so that a peer cannot fill the disk by
//! causing many triggers. (V9)

use crate::entry::is_standard_output;
use crate::failure::failure_from_io_error;
use crate::history::{
    self, CompressionMode, FrameHeader, History, HistoryLimits, HistoryStart, RetainedFrames,
};
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use filter::general::bpf;
use filter::{
    Arguments, Batch, Block, Description, Form, Forms, Parameter, StateFacts, WorkerRule,
};
use filter::{ParameterType, Report, Time, Value};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek as _, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use wire::link::LinkType;

/// Description of `freeze`, the sink that saves frames around a triggering block.
pub const FREEZE: Description = Description {
    name: "freeze",
    summary: "save the frames around a trigger to a capture file",
    details: "\
Stores recent frames in memory, and writes them to a pcap file when one triggers: the frames of the
time `before` it, the frame itself, and those of the time `after` it. Another trigger in that time
extends the file. The next file is FILE.2, and so on, up to `files`; frames that belong to two files
are in both. Files are readable by their owner only, and no existing file is replaced.

`when` is a pcap-filter expression. Without it, every block with a class triggers, so any filter can
be the trigger: `match \"evil\" |all freeze FILE` (a plain pipe would omit the blocks without a
class, which are the history).

At most `bytes` of memory store frames; the oldest are compressed before any are discarded: of live
traffic by a thread of low priority, so that the path never waits for it. A file has the stored
frames, the one that triggers it, and at most `bytes` more. If a file cannot be written, as on a
full disk, the path continues and fails at its end, with the number of frames that are missing.
Times are those of the blocks.",
    example: "replay web.pcap | freeze alert.pcap when=\"tcp port 443\" before=1s after=500ms",
    input_forms: Forms::of(&[Form::Frame, Form::Packet, Form::Segment]),
    state: StateFacts::NONE.with_worker_rule(|_| {
        WorkerRule::Differs("it stores recent frames of all sessions", WorkerRule::DEFAULT_HINT)
    }),
    parameters: &[
        Parameter::required(
            "into",
            ParameterType::Path,
            "the file to write; later ones get a number",
        ),
        Parameter::optional(
            "when",
            ParameterType::Text,
            "the trigger; by default, any block with a class",
        ),
        Parameter::with_default(
            "before",
            ParameterType::Duration,
            "5s",
            "time before the trigger that a file covers",
        ),
        Parameter::with_default(
            "after",
            ParameterType::Duration,
            "1s",
            "time after the trigger that a file covers",
        ),
        Parameter::with_default(
            "bytes",
            ParameterType::Size { low: 64 << 10, high: 1 << 32 },
            "64M",
            "maximum memory for frames",
        ),
        Parameter::with_default(
            "files",
            ParameterType::Number { low: 1, high: 1000 },
            "10",
            "maximum number of files",
        ),
    ],
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `freeze`.
pub const ENTRY: SinkEntry = SinkEntry::new(&FREEZE, open).with_file_writes();

struct FreezeSink {
    into: PathBuf,
    /// The expression that selects the triggering blocks. If `None`, every block with a nonzero
    /// class is a trigger.
    trigger: Option<bpf::ExpressionMatcher>,
    after: Time,
    bytes: usize,
    files_max: u64,
    history: History,
    /// Number and size of the frames in the history, at the time when the history had the most
    /// bytes.
    peak: RetainedFrames,
    /// Name of the first file created; `None` until then.
    first_file: Option<PathBuf>,
    /// The capture file that is being written. `None` while the sink waits for a trigger.
    capture: Option<Capture>,
    counts: FreezeCounts,
    /// The first failure to write a file, which is reported when the path ends; `None` if there was
    /// none.
    failure: Option<Failure>,
}

/// Counters in the report of `freeze`.
#[derive(Clone, Copy, Debug, Default)]
struct FreezeCounts {
    triggers: u64,
    files: u64,
    /// Number of frames written to capture files.
    frames: u64,
    /// Number of triggers ignored because the maximum number of files had already been created.
    ignored_triggers: u64,
    /// Number of frames omitted because they exceed the size limit, or because their link type
    /// differs from the link type of the file's first frame.
    omitted_frames: u64,
    /// Number of capture files that were not created because of an error.
    files_missing: u64,
    /// Number of frames that could not be written to a capture file.
    frames_missing: u64,
}

/// A capture file that `freeze` is writing after a trigger.
struct Capture {
    file: File,
    name: PathBuf,
    link: LinkType,
    until: Time,
    /// Number of bytes that may still be written to the file without exceeding its size limit.
    room_left: usize,
    buffer: Vec<u8>,
    /// Number of frames in the buffer that have not been written to the file.
    buffered: u64,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    let arguments = opening.arguments;
    let into = PathBuf::from(arguments.text("into").unwrap_or_default());
    if arguments.text("into").is_some_and(is_standard_output) {
        let why = "each trigger writes a file of its own";
        let hint = "name a file, or use `pcap` for one capture of all frames";
        return Err(Failure::new("freeze into", "standard output", why).with_hint(hint));
    }
    let directory = into.parent().filter(|directory| !directory.as_os_str().is_empty());
    if directory.is_some_and(|directory| !directory.is_dir()) {
        let why = "its directory does not exist";
        return Err(Failure::new("freeze into", into.to_string_lossy(), why));
    }
    let when = arguments.text("when").map(|when| compile_trigger(when, arguments)).transpose()?;
    let number = |name| arguments.number(name).unwrap_or_default();
    let bytes = usize::try_from(number("bytes")).unwrap_or(usize::MAX);
    let compresses =
        if opening.live { CompressionMode::OwnThread } else { CompressionMode::CallingThread };
    Ok(Box::new(FreezeSink {
        into,
        trigger: when,
        after: number("after"),
        bytes,
        files_max: number("files"),
        history: History::new(HistoryLimits { bytes, time: number("before") }, compresses),
        peak: RetainedFrames::default(),
        first_file: None,
        capture: None,
        counts: FreezeCounts::default(),
        failure: None,
    }))
}

/// Compiles `expression`, the value of the parameter `when`.
fn compile_trigger(expression: &str, given: &Arguments) -> Result<bpf::ExpressionMatcher, Failure> {
    let arguments = Arguments::default().with_link_types(given.link_types().map(Into::into));
    let arguments = arguments.with_compiler(given.compiler().cloned());
    let mut arguments = arguments.with_name_resolver(given.name_resolver().cloned());
    arguments.set("expression", Value::Text(expression.to_owned()));
    bpf::ExpressionMatcher::new(arguments).map_err(|mistake| {
        Failure::new(
            "freeze when",
            format!("`{expression}`"),
            format!("it is not a valid expression: {mistake}"),
        )
    })
}

impl Sink for FreezeSink {
    fn consume(&mut self, batch: &Batch<'_>, _: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            self.add_block(&block);
        }
        let kept = self.history.retained_frame_counts();
        if kept.bytes > self.peak.bytes {
            self.peak = kept;
        }
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        self.flush_capture();
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.close_capture();
        if let Some(mut failure) = self.failure.take() {
            let frames = self.counts.frames_missing;
            failure.why = format!("{}; {frames} frames around triggers are missing", failure.why);
            return Err(failure);
        }
        let FreezeCounts {
            triggers,
            files,
            frames,
            ignored_triggers: ignored,
            omitted_frames: omitted,
            ..
        } = self.counts;
        let (before, after) = self.history.compressed_totals();
        let always = [("triggers", triggers), ("files", files), ("frames", frames)];
        let others = [
            ("triggers without a file", ignored),
            ("frames left out", omitted),
            ("bytes compressed", before),
            ("bytes after compression", after),
            ("bytes kept at most", self.peak.bytes),
            ("in bytes of memory", self.peak.stored),
        ];
        let first = self.first_file.as_ref().unwrap_or(&self.into).display();
        let done = match files {
            0 | 1 => format!("written to {first}"),
            _ => format!("written to {files} files, {first} the first"),
        };
        Ok(Report::from_rows(always)
            .with_nonzero_rows(others)
            .with_delivered_items(frames, "frame", done))
    }

    fn retained_frames(&self) -> Option<RetainedFrames> {
        Some(self.history.retained_frame_counts())
    }
}

impl FreezeSink {
    fn add_block(&mut self, block: &Block<'_>) {
        if self.capture.as_ref().is_some_and(|capture| block.context.time > capture.until) {
            self.close_capture();
        }
        let triggers = match &mut self.trigger {
            None => block.pointer.class.is_answered(),
            Some(when) => when.matches(block),
        };
        // A frame that the history cannot store clears it, so the earlier frames are written first.
        let fits = self.history.can_store(block);
        if fits {
            self.history.push(block);
        }
        if block.marks.is_frame() {
            // A frame that has just been stored is evicted last.
            let is_stored = fits && self.history.retained_frame_counts().blocks > 0;
            self.add_frame_of_block(block, triggers, is_stored);
        }
        if !fits {
            self.history.push(block);
        }
    }

    /// Writes the frame of a block to the file, if there is one or the block triggers one.
    /// `is_stored` is true if the history contains the frame.
    fn add_frame_of_block(&mut self, block: &Block<'_>, triggers: bool, is_stored: bool) {
        let until = block.context.time.saturating_add(self.after);
        self.counts.triggers += u64::from(triggers);
        match &mut self.capture {
            Some(capture) => {
                if triggers {
                    capture.until = until;
                }
                self.add_frame(&FrameHeader::for_block(block), block.frame);
            }
            None if triggers && self.counts.files + self.counts.files_missing >= self.files_max => {
                self.counts.ignored_triggers += 1;
            }
            None if triggers => self.begin_capture(block, until, is_stored),
            None => {}
        }
    }

    /// Creates a file, copies the stored frames into the file, then the trigger unless it is the
    /// last of them (`is_stored`), and starts a capture that ends at `until`. The stored frames
    /// stay in the history, because the next file also covers the time before its trigger. If the
    /// file cannot be created, counts the file and the trigger as missing.
    fn begin_capture(&mut self, trigger: &Block<'_>, until: Time, is_stored: bool) {
        let (file, name) = match create_capture(&self.into, self.files_max) {
            Ok(created) => created,
            Err((error, name)) => {
                self.counts.files_missing += 1;
                self.counts.frames_missing += 1;
                self.record_failure("create", &name, &error);
                return;
            }
        };
        self.counts.files += 1;
        self.first_file.get_or_insert_with(|| name.clone());
        let link = LinkType(trigger.marks.link);
        let buffer = history::file_header(link).to_vec();
        let header = FrameHeader::for_block(trigger);
        // Room for the uncompressed history and the trigger, and for another `bytes` bytes.
        let unstored =
            if is_stored { 0 } else { trigger.frame.len() + history::RECORD_HEADER_SIZE };
        let room = self.history.capture_size().saturating_add(unstored + self.bytes);
        self.capture =
            Some(Capture { file, name, link, until, room_left: room, buffer, buffered: 0 });
        let none = History::new(HistoryLimits::RETAIN_NOTHING, CompressionMode::CallingThread);
        let history = std::mem::replace(&mut self.history, none);
        let since = trigger.context.time.saturating_sub(history.limits().time);
        let start = if is_stored { HistoryStart::Oldest } else { HistoryStart::Time(since) };
        history.visit_frames_since(start, |header, frame| self.add_frame(header, frame));
        self.history = history;
        if !is_stored {
            self.add_frame(&header, trigger.frame);
        }
    }

    /// Appends a frame to the capture file that is being written. Omits the frame if its link type
    /// differs from that of the file, or if it exceeds the remaining room.
    fn add_frame(&mut self, header: &FrameHeader, frame: &[u8]) {
        let Some(capture) = &mut self.capture else { return };
        let needs = frame.len() + history::RECORD_HEADER_SIZE;
        if capture.link.file_link_type() != header.link.file_link_type()
            || needs > capture.room_left
        {
            self.counts.omitted_frames += 1;
            return;
        }
        capture.room_left -= needs;
        history::append_record(header, frame, &mut capture.buffer);
        capture.buffered += 1;
        if capture.buffer.len() >= FLUSH_SIZE {
            self.flush_capture();
        }
    }

    /// Writes the buffered frames and closes the capture file.
    fn close_capture(&mut self) {
        self.flush_capture();
        self.capture = None;
    }

    /// Writes the buffered frames. If the write fails, counts all buffered frames as missing, and
    /// leaves the file open, because there may be room for later frames.
    fn flush_capture(&mut self) {
        let Some(capture) = &mut self.capture else { return };
        let frames = std::mem::take(&mut capture.buffered);
        match capture.flush_buffer() {
            Ok(()) => self.counts.frames += frames,
            Err(error) => {
                self.counts.frames_missing += frames;
                let name = capture.name.clone();
                self.record_failure("write", &name, &error);
            }
        }
    }

    fn record_failure(&mut self, call: &'static str, file: &Path, error: &std::io::Error) {
        self.failure
            .get_or_insert_with(|| failure_from_io_error(call, &file.to_string_lossy(), error));
    }
}

/// Size in bytes at which the buffer of a capture file is written to the file.
const FLUSH_SIZE: usize = 256 << 10;

impl Capture {
    /// Writes the buffer to the file. After a failure, truncates the file to its previous length
    /// and discards the frames in the buffer. A file header that has not been written yet stays in
    /// the buffer.
    fn flush_buffer(&mut self) -> std::io::Result<()> {
        let written = self.file.metadata()?.len();
        let result = self.file.write_all(&self.buffer);
        if result.is_err() {
            // If the truncation fails too, only the original error is reported.
            let _ = self.file.set_len(written);
            let _ = self.file.seek(SeekFrom::Start(written));
        }
        let is_begun = result.is_ok() || written > 0;
        self.buffer.truncate(if is_begun { 0 } else { history::FILE_HEADER_SIZE });
        result
    }
}

/// Creates a file that only its owner can read. The file name is `into` or, if `into` exists, the
/// first unused name among FILE.2, FILE.3 … Returns the name with the file, or with the error.
fn create_capture(
    into: &Path,
    files_max: u64,
) -> Result<(File, PathBuf), (std::io::Error, PathBuf)> {
    let mut last = Err((ErrorKind::AlreadyExists.into(), into.to_owned()));
    for number in 1..=files_max.saturating_add(1000) {
        let mut name = into.as_os_str().to_owned();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        let name = PathBuf::from(name);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&name);
        last = match file {
            Ok(file) => return Ok((file, name)),
            Err(error) => Err((error, name)),
        };
        if !matches!(&last, Err((error, _)) if error.kind() == ErrorKind::AlreadyExists) {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::pcap::tests::read_capture;
    use crate::testing::{
        TempDir, batch_from_blocks, block_with_marks, checked_arguments, expect_failure,
        frame_block, sink_opening,
    };
    use abi::{BlockMetadata, Class, Marks};
    use std::os::unix::fs::PermissionsExt;

    const SECOND: Time = 1_000_000_000;

    fn freeze_sink(path: &str, given: &[(&str, &str)]) -> Box<dyn Sink> {
        let given = checked_arguments(&FREEZE, &[&[("into", path)], given].concat());
        open(&sink_opening(&given, &[])).unwrap()
    }

    fn block_at(second: u64, class: Class, bytes: &[u8]) -> Block<'_> {
        let context = BlockMetadata { time: second * SECOND, ..BlockMetadata::default() };
        Block { context, ..frame_block(bytes) }.with_class(class)
    }

    fn feed_seconds(sink: &mut dyn Sink, seconds: std::ops::Range<u64>, triggers: &[u64]) {
        for second in seconds {
            let class = if triggers.contains(&second) { Class::YES } else { Class::NONE };
            sink.consume(&batch_from_blocks(&[block_at(second, class, &[second as u8; 60])]), 0)
                .unwrap();
        }
    }

    fn captured_seconds(path: &str) -> Vec<u64> {
        read_capture(path).into_iter().map(|(time, ..)| time / SECOND).collect()
    }

    #[test]
    fn v9_frames_around_trigger_are_saved() {
        let dir = TempDir::new();
        let path = dir.path("alert.pcap");
        let mut sink = freeze_sink(&path, &[("before", "5s"), ("after", "2s")]);
        feed_seconds(&mut *sink, 0..100, &[20, 50, 51, 53]);
        let rows = sink.finish().unwrap().rows;
        let value = |name: &str| rows.iter().find(|(row, _)| row == name).map(|(_, value)| *value);
        assert_eq!((value("triggers"), value("files")), (Some(4), Some(2)));
        assert_eq!(captured_seconds(&path), (15..=22).collect::<Vec<_>>());
        assert_eq!(captured_seconds(&format!("{path}.2")), (45..=55).collect::<Vec<_>>());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn v9_next_file_also_has_frames_of_the_file_before() {
        let dir = TempDir::new();
        let path = dir.path("alert.pcap");
        let mut sink = freeze_sink(&path, &[("before", "5s"), ("after", "2s")]);
        feed_seconds(&mut *sink, 0..40, &[20, 24, 27]);
        let rows = sink.finish().unwrap().rows;
        assert!(rows.contains(&("frames".to_owned(), 8 + 8 + 8)), "{rows:?}");
        assert_eq!(captured_seconds(&path), (15..=22).collect::<Vec<_>>());
        assert_eq!(captured_seconds(&format!("{path}.2")), (19..=26).collect::<Vec<_>>());
        assert_eq!(captured_seconds(&format!("{path}.3")), (22..=29).collect::<Vec<_>>());
    }

    #[test]
    fn v9_file_contains_raw_ip_of_both_versions() {
        let dir = TempDir::new();
        let path = dir.path("raw.pcap");
        let mut sink = freeze_sink(&path, &[("before", "5s"), ("after", "2s")]);
        let raw = |link: LinkType, bytes| block_with_marks(Marks::frame(link.0, 2, 2), bytes);
        let batch = [raw(LinkType::IPV4, b"\x45\x00"), raw(LinkType::IPV6, b"\x60\x00")];
        sink.consume(&batch_from_blocks(&batch), 0).unwrap();
        assert!(sink.finish().unwrap().rows.contains(&("frames".to_owned(), 2)));
        let links: Vec<u16> = read_capture(&path).iter().map(|packet| packet.2).collect();
        assert_eq!(links, [LinkType::RAW.0; 2]);
    }

    #[test]
    fn v9_freeze_limits_files_and_bytes_and_replaces_nothing() {
        let dir = TempDir::new();
        let path = dir.path("alert.pcap");
        std::fs::write(&path, "mine").unwrap();
        let given = [("before", "1s"), ("after", "1s"), ("files", "2")];
        let mut few = freeze_sink(&path, &given);
        feed_seconds(&mut *few, 0..60, &[10, 20, 30, 40]);
        let report = few.finish().unwrap();
        let rows = report.rows;
        assert!(rows.contains(&("triggers without a file".to_owned(), 2)), "{rows:?}");
        let done = format!("written to 2 files, {path}.2 the first");
        assert!(report.outputs.iter().any(|output| output.done == done), "{:?}", report.outputs);
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        assert_eq!(captured_seconds(&format!("{path}.2")), [9, 10, 11]);
        assert_eq!(captured_seconds(&format!("{path}.3")), [19, 20, 21]);
        assert!(!Path::new(&format!("{path}.4")).exists());

        let path = dir.path("long.pcap");
        let mut long = freeze_sink(&path, &[("bytes", "64k"), ("before", "1h"), ("after", "1h")]);
        let mut random = testkit::Random::with_replayable_seed();
        for second in 0..50 {
            let big = random.bytes(10_000);
            let class = if second == 20 { Class::YES } else { Class::NONE };
            long.consume(&batch_from_blocks(&[block_at(second, class, &big)]), 0).unwrap();
        }
        let rows = long.finish().unwrap().rows;
        assert!(
            rows.iter().any(|(row, count)| row == "frames left out" && *count > 10),
            "{rows:?}"
        );
        assert!(std::fs::metadata(&path).unwrap().len() <= 128 << 10);
        assert_eq!(
            captured_seconds(&path)[0],
            15,
            "the file begins with the oldest frame that fits in 64 KB"
        );
    }

    #[test]
    fn v9_trigger_larger_than_the_memory_is_in_the_file() {
        let dir = TempDir::new();
        let path = dir.path("alert.pcap");
        let given = [("bytes", "64k"), ("before", "5s"), ("after", "2s")];
        let mut sink = freeze_sink(&path, &given);
        feed_seconds(&mut *sink, 0..20, &[]);
        let large = vec![7; 70_000];
        sink.consume(&batch_from_blocks(&[block_at(20, Class::YES, &large)]), 0).unwrap();
        feed_seconds(&mut *sink, 21..40, &[]);
        let rows = sink.finish().unwrap().rows;
        assert!(rows.contains(&("frames".to_owned(), 8)), "{rows:?}");
        assert_eq!(captured_seconds(&path), (15..=22).collect::<Vec<_>>());
    }

    #[test]
    fn v9_failed_file_is_reported_with_its_missing_frames() {
        // Writing to this device fails as on a full disk; creating another file in the same
        // directory does not.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let dir = TempDir::new();
        let path = dir.path("alert.pcap");
        let mut sink = FreezeSink {
            capture: Some(Capture {
                file: full,
                name: path.clone().into(),
                link: LinkType(1),
                until: 2 * SECOND,
                room_left: 1 << 20,
                buffer: history::file_header(LinkType(1)).to_vec(),
                buffered: 0,
            }),
            ..new_freeze(&path)
        };
        feed_seconds(&mut sink, 0..10, &[1, 6]);
        let failure = sink.finish().unwrap_err();
        assert_eq!((failure.call, failure.errno), ("write", Some(28)));
        let why = "no space left on device; 3 frames around triggers are missing";
        assert_eq!(failure.why, why, "{failure}");
        assert_eq!(captured_seconds(&path).last(), Some(&7), "the next file is complete");
    }

    fn new_freeze(path: &str) -> FreezeSink {
        let none = CompressionMode::CallingThread;
        FreezeSink {
            into: path.into(),
            trigger: None,
            after: SECOND,
            bytes: 1 << 20,
            files_max: 10,
            history: History::new(HistoryLimits { bytes: 1 << 20, time: SECOND }, none),
            peak: RetainedFrames::default(),
            first_file: None,
            capture: None,
            counts: FreezeCounts::default(),
            failure: None,
        }
    }

    #[test]
    fn v9_expression_selects_the_trigger() {
        let dir = TempDir::new();
        let path = dir.path("x.pcap");
        let mut sink =
            freeze_sink(&path, &[("when", "ether[0] = 7"), ("before", "1s"), ("after", "0s")]);
        feed_seconds(&mut *sink, 0..20, &[]);
        sink.finish().unwrap();
        assert_eq!(captured_seconds(&path), [6, 7]);
        let given = checked_arguments(&FREEZE, &[("into", &path), ("when", "tcp prt 5")]);
        let failure = expect_failure(open(&sink_opening(&given, &[]))).to_string();
        assert!(failure.contains("`tcp prt 5`: it is not a valid expression"), "{failure}");
        let given = checked_arguments(&FREEZE, &[("into", &dir.path("no/such.pcap"))]);
        assert!(
            expect_failure(open(&sink_opening(&given, &[]))).to_string().contains("its directory")
        );
    }
}
