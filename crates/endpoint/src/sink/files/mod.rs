//! `files`: writes viewed bytes to files, one per session, message or block, with an index.
//!
//! The directory contains files with names such as `000001-10.0.0.1.1234-10.0.0.2.80`, and
//! `index.jsonl` with one JSON object per finished file (`file_set`).
//!
//! Lost bytes are replaced by zeros, as in tcpflow and Zeek, so that the position of later data in
//! the file is its offset in the stream. With `holes=skip`, lost bytes are omitted. The index
//! counts lost bytes in either case.

use super::file_set::{
    FileKey, FileSet, FileSetPolicy, OPEN_FILES_PARAMETER, OutputFile, SESSIONS_PARAMETER,
    ZERO_FILL_BYTES_MAX,
};
use crate::entry::is_standard_output;
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use abi::{BlockFlags, Direction};
use filter::{
    Amount, Batch, Block, Description, Form, Parameter, ParameterType, Report, StateFacts, Time,
    WorkerRule,
};

/// Description of `files`, the sink that writes a file per session, message or block.
pub const FILES: Description = Description {
    name: "files",
    summary: "write sessions, messages or blocks into files of a directory",
    details: "\
Writes the viewed bytes to files: one for each direction of a session (`per=session`), each session
(`per=connection`), each message or each block. The default, `auto`, is `message` if the input is
messages, and `session` otherwise; blocks without a session get a file each.

The directory (by default `files/`, which the report names) is created if it is missing. Symbolic
links in it are not followed, and no file is overwritten: names begin with a number, and a second
run continues with the next one. A message without bytes, such as a request without a body, gets no
file, only an entry in the index.

`index.jsonl` gets one JSON object for each finished file: version (1), file, first and last
(times), blocks, bytes, missing (lost bytes), complete (true if beginning and end were observed and
nothing is missing), sha256 (of the file), and if known origin, session, direction, class and
class_name (of the first block) and the endpoints as in `json`. A message adds the fields of its
description as in `json`: kind, client, server, method, url, host, status, content_type,
content_length and more; decoded is false if the file has the content coding that content_encoding
names, and true if `http decode=yes` has undone it (as far as the body goes, if complete is false).
For the file of a session, the object has the number of its messages.

Lost bytes become zeros in the file (at most 16 MiB; unfilled is the number of those that do not),
or are left out with `holes=skip`. At most `open` files are open and at most `sessions` sessions
remembered at a time; a session that was forgotten continues in another file.",
    example: "replay web.pcap | tcp | http |get files out/",
    state: StateFacts::NONE.with_worker_rule(|_| WorkerRule::Directory("dir")),
    parameters: &[
        Parameter::with_default(
            "dir",
            ParameterType::Path,
            "files/",
            "the directory to write into",
        )
        .positional(),
        Parameter::with_default(
            "per",
            ParameterType::OneOf(&["auto", "session", "connection", "message", "block"]),
            "auto",
            "unit that gets a file of its own",
        ),
        Parameter::with_default(
            "holes",
            ParameterType::OneOf(&["zero", "skip"]),
            "zero",
            "the replacement for bytes that were lost",
        ),
        OPEN_FILES_PARAMETER,
        SESSIONS_PARAMETER,
    ],
    ..Description::SINK_DEFAULTS
};

const _: () = assert!(ZERO_FILL_BYTES_MAX == 16 << 20, "the help text states this value");

/// The catalog entry of `files`.
pub const ENTRY: SinkEntry = SinkEntry::new(&FILES, open).with_file_writes();

/// The unit of data that the sink `files` writes to one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FileUnit {
    Session,
    Connection,
    Message,
    Block,
}

#[derive(Debug)]
struct FilesSink {
    file_set: FileSet,
    unit: FileUnit,
    /// True if blocks without a session may be fragments of a record that is longer than a block.
    has_fragments: bool,
    /// True while a record without a session is incomplete: its first fragment has arrived, and its
    /// last fragment has not.
    in_fragments: bool,
    written: Amount,
    /// Number of message descriptions received.
    messages: u64,
    bytes: u64,
    missing: u64,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(FilesSink::new(opening)?))
}

impl Sink for FilesSink {
    fn consume(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            match self.file_key(&block) {
                Some(key) => self.append_block(key, &block)?,
                None => self.write_block_to_own_file(&block)?,
            }
            self.count_block(&block);
        }
        Ok(())
    }

    fn on_idle(&mut self) -> Result<(), Failure> {
        self.file_set.flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.file_set.finish_all()?;
        let always = [("files", self.file_set.files_created()), ("blocks", self.written.blocks)];
        let rows = Report::from_rows(always.into_iter().chain([("bytes", self.bytes)]));
        let others = [("messages", self.messages), ("missing bytes", self.missing)];
        Ok(self.file_set.report(rows.with_nonzero_rows(others)))
    }

    fn amount_written(&self) -> Option<Amount> {
        Some(self.written)
    }
}

impl FilesSink {
    fn new(opening: &OpenArguments<'_>) -> Result<Self, Failure> {
        let text = |name| opening.arguments.text(name);
        if text("dir").is_some_and(is_standard_output) {
            let why = "several files need a directory";
            let hint = "name a directory, or use `print`, `json` or `pcap`";
            return Err(Failure::new("write", "standard output", why).with_hint(hint));
        }
        let unit = match (text("per"), opening.form) {
            (Some("session"), _) => FileUnit::Session,
            (Some("connection"), _) => FileUnit::Connection,
            (Some("block"), _) => FileUnit::Block,
            (Some("message"), _) => FileUnit::Message,
            (_, Form::Message) if opening.other_forms.is_empty() => FileUnit::Message,
            _ => FileUnit::Session,
        };
        // Frames, lines and bytes have no beginning of a stream.
        let in_sessions = |form| matches!(form, Form::Segment | Form::Stream | Form::Message);
        let has_streams =
            opening.forms().any(|form| form == Form::Stream) && opening.forms().all(in_sessions);
        let policy = FileSetPolicy {
            suffix: "",
            has_digests: true,
            has_single_message: unit == FileUnit::Message,
            needs_beginning: unit == FileUnit::Message || unit != FileUnit::Block && has_streams,
            fills_holes: text("holes") != Some("skip"),
        };
        Ok(Self {
            file_set: FileSet::open(text("dir").unwrap_or("."), policy, opening)?,
            unit,
            has_fragments: opening.forms().any(|form| matches!(form, Form::Bytes | Form::Record)),
            in_fragments: false,
            written: Amount::default(),
            messages: 0,
            bytes: 0,
            missing: 0,
        })
    }

    /// Returns the key of the file to which a block is appended, or `None` if the block is written
    /// to its own file.
    fn file_key(&mut self, block: &Block<'_>) -> Option<FileKey> {
        let number = block.context.session;
        let backward = block.context.flags.direction() == Direction::Backward;
        let is_fragment = self.has_fragments && number == 0 && self.is_fragment(block);
        match self.unit {
            FileUnit::Message if is_complete_message(block) => None,
            FileUnit::Message => Some(FileKey::Session { number, backward }),
            FileUnit::Session if number != 0 => Some(FileKey::Session { number, backward }),
            FileUnit::Connection if number != 0 => {
                Some(FileKey::Session { number, backward: false })
            }
            FileUnit::Session | FileUnit::Connection if is_fragment => Some(FileKey::Unassigned),
            FileUnit::Block | FileUnit::Session | FileUnit::Connection => None,
        }
    }

    /// Returns true if a block without a session is a fragment of a record that is longer than a
    /// block. All fragments of a record share one file (CONTRACT 6).
    fn is_fragment(&mut self, block: &Block<'_>) -> bool {
        let flags = block.context.flags;
        let is_part = self.in_fragments
            || flags.contains(BlockFlags::FIRST) && !flags.contains(BlockFlags::LAST);
        self.in_fragments = is_part && !flags.contains(BlockFlags::LAST);
        is_part
    }

    /// Writes a block to its own file. Does nothing for an end marker. Does nothing for a
    /// description unless each message has its own file.
    fn write_block_to_own_file(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        if block.is_end_marker() || self.unit != FileUnit::Message && block.marks.is_description() {
            return Ok(());
        }
        let mut file = OutputFile::new(block, true);
        self.write_block(&mut file, block)?;
        file.end_direction(block);
        self.file_set.add_to_index(&file)
    }

    /// Appends a block to the file with this key, which is the file of the block's session or
    /// message.
    fn append_block(&mut self, key: FileKey, block: &Block<'_>) -> Result<(), Failure> {
        let flags = block.context.flags;
        let mut existing = self.file_set.take_file(key);
        if self.unit == FileUnit::Message && flags.contains(BlockFlags::FIRST) {
            // The first fragment after a description may be the first block of its stream, and then
            // has the flag `FIRST` although its message has begun already.
            let is_waiting = |file: &OutputFile| file.has_only_description();
            if block.marks.is_description() || !existing.as_ref().is_some_and(is_waiting) {
                let before = existing.take();
                before.map_or(Ok(()), |file| self.file_set.add_to_index(&file))?;
            }
        }
        let mut file = match existing {
            Some(file) => file,
            None if block.is_end_marker() => return Ok(()),
            None => {
                self.file_set.make_room()?;
                OutputFile::new(block, self.unit != FileUnit::Connection)
            }
        };
        let outcome = self.write_block(&mut file, block);
        let (ended, is_over) = match self.unit {
            // The end of a stream also ends an unfinished message.
            FileUnit::Message => {
                (flags.contains(BlockFlags::LAST), flags.contains(BlockFlags::SESSION_END))
            }
            _ => (
                flags.contains(BlockFlags::SESSION_END)
                    || key == FileKey::Unassigned && flags.contains(BlockFlags::LAST),
                false,
            ),
        };
        if outcome.is_ok() && ended {
            file.end_direction(block);
        }
        let one_way = self.unit != FileUnit::Connection;
        let is_over = is_over || file.has_ended() || ended && one_way;
        self.file_set.put_back(key, file);
        outcome?;
        if is_over { self.file_set.finish_file(key) } else { Ok(()) }
    }

    fn write_block(&mut self, file: &mut OutputFile, block: &Block<'_>) -> Result<(), Failure> {
        let bytes = block.bytes();
        let missing = u64::from(block.length()).saturating_sub(bytes.len() as u64);
        // Fragments without a session may belong to many flows.
        if block.context.session != 0 || !self.in_fragments {
            file.copy_addresses(block);
        }
        self.file_set.write_bytes(file, bytes)?;
        self.file_set.fill_missing_bytes(file, missing)?;
        file.update_for_block(block);
        Ok(())
    }

    fn count_block(&mut self, block: &Block<'_>) {
        let present = block.bytes().len() as u64;
        self.written.add_block(block.length());
        self.messages += u64::from(block.marks.is_description());
        self.bytes += present;
        self.missing += u64::from(block.length()).saturating_sub(present);
    }
}

/// Returns true if a description block is a complete message, so that no fragments follow it.
fn is_complete_message(block: &Block<'_>) -> bool {
    block.marks.is_description()
        && block.context.flags.contains(BlockFlags::FIRST.with(BlockFlags::LAST))
}

#[cfg(test)]
mod tests;
