//! `read`: reads any file in blocks of a fixed size or line by line.
//!
//! The source reads a file or standard input in pieces directly into the pool. It emits blocks
//! without a frame, stamped with the time of reading. A line longer than the longest block is cut
//! into fragments, marked by the first and last flags (CONTRACT 6), and counted.

use super::buffered_input::{BufferedInput, FillOutcome};
use super::input::Input;
use crate::{Failure, Intake, OpenArguments, Source, SourceCounters, SourceEntry, SourceStatus};
use abi::{BLOCK_LENGTH_MAX, BlockFlags, Entry, Extent, Marks};
use filter::{Amount, Arguments, Description, Effect, Form, OutputForm, Parameter, ParameterType};
use std::os::fd::BorrowedFd;

/// Description of `read`, the source that reads a file in blocks or lines.
pub const READ: Description = Description {
    name: "read",
    summary: "read the bytes of a file, in blocks or line by line",
    details: "\
Reads any file; `-` is standard input. Each block has `block` bytes (default 64 KB); the last may be
shorter. Input from a pipe or terminal is passed on as soon as it arrives. `lines=yes` produces one
record per line, without its line end. A line longer than `block` (default 1 MB) is cut into several
blocks, which filters see one by one; the report says how many lines were cut. Blocks are not part
of a frame, so filters that read headers refuse them.",
    example: "read access.log lines=yes | match \" 404 \" | count",
    output_form: OutputForm::Form(Form::Bytes),
    effect: Some(effect),
    parameters: &[
        Parameter::required("file", ParameterType::Path, "the file to read; - is standard input"),
        Parameter::optional(
            "block",
            BLOCK_SIZE_TYPE,
            "maximum size of a block; if absent 64k, or the most for lines",
        ),
        Parameter::with_default("lines", ParameterType::Flag, "no", "one block per line"),
    ],
    ..Description::SOURCE_DEFAULTS
};

/// Type of the parameter for the block size in bytes. The upper limit is the longest block that a
/// rich pointer can describe.
const BLOCK_SIZE_TYPE: ParameterType =
    ParameterType::Size { low: 1, high: BLOCK_LENGTH_MAX as u64 };

/// The catalog entry of `read`.
pub const ENTRY: SourceEntry =
    SourceEntry::new(&READ, open).with_facts(super::input::READ_SOURCE_FACTS);

/// Returns the properties of the output of `read` with these arguments. The form of the output is
/// records for lines, and bytes for blocks of a fixed size.
fn effect(arguments: &Arguments) -> Effect {
    let form = if arguments.flag("lines") { Form::Record } else { Form::Bytes };
    Effect { output_form: OutputForm::Form(form), kind: READ.kind, reads: READ.reads }
}

/// A source that emits the bytes of a file or of standard input as blocks of a fixed size or as
/// lines. `exec` also uses it for the output of child programs.
#[derive(Debug)]
pub(crate) struct ReadSource {
    feed: BufferedInput,
    block: usize,
    lines: bool,
    origin: u16,
    emitted: Amount,
    /// True if the next byte is the first of a line.
    line_begins: bool,
    /// Number of lines that were cut because they are longer than a block.
    cut_lines: u64,
    /// Maximum length in bytes of a line that fits into one block. Set when a line is cut, from the
    /// length of its first fragment.
    line_max: u32,
}

/// Boundaries of the next block of an input. The block begins with the first unread byte.
struct BlockBounds {
    length: u32,
    /// Number of bytes that the block uses up in the input, including the line terminator.
    consumed: usize,
    flags: BlockFlags,
}

fn open(opening: &OpenArguments<'_>) -> Result<Box<dyn Source>, Failure> {
    let path = opening.arguments.text("file").unwrap_or("-");
    let block = opening.arguments.number("block").and_then(|block| usize::try_from(block).ok());
    let lines = opening.arguments.flag("lines");
    let default = if lines { BLOCK_LENGTH_MAX } else { 64 * 1024 };
    let block = block.unwrap_or(default).clamp(1, BLOCK_LENGTH_MAX);
    let input = Input::open(path)?;
    Ok(Box::new(ReadSource::new(input, block, lines, opening.origin)))
}

impl Source for ReadSource {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let again = SourceStatus::retry_at(intake.now);
        let before = self.emitted.blocks;
        let mut ended = false;
        loop {
            self.emit_from_piece(intake, ended);
            if intake.room() == 0 {
                return Ok(SourceStatus::Blocks);
            }
            let left = self.feed.release_piece(intake.pool);
            if ended {
                return Ok(SourceStatus::End);
            }
            if self.emitted.blocks > before {
                // The pass must end before the next piece is filled, because that piece may reuse
                // the memory of the emitted blocks.
                return Ok(SourceStatus::Blocks);
            }
            let at_once = self.lines || self.feed.input().may_block();
            let wanted = if at_once { left + 1 } else { self.block };
            match self.feed.fill_piece(intake.pool, wanted.min(intake.pool.block_length_max()))? {
                FillOutcome::Ready => {}
                FillOutcome::Nothing => {
                    return Ok(SourceStatus::AWAITS_INPUT);
                }
                FillOutcome::Full => return Ok(again),
                FillOutcome::End(0) => return Ok(SourceStatus::End),
                FillOutcome::End(_) => match self.feed.move_remainder_to_piece(intake.pool)? {
                    FillOutcome::Ready => ended = true,
                    _ => return Ok(again),
                },
            }
        }
    }

    fn counters(&self) -> SourceCounters {
        SourceCounters {
            position: self.feed.input().position(),
            remark: self.cut_lines_remark(),
            warns: self.cut_lines > 0,
            ..SourceCounters::lossless(self.emitted)
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.feed.descriptor()
    }
}

impl ReadSource {
    pub(crate) const fn new(input: Input, block: usize, lines: bool, origin: u16) -> Self {
        Self {
            feed: BufferedInput::new(input),
            block,
            lines,
            origin,
            emitted: Amount { blocks: 0, bytes: 0 },
            line_begins: true,
            cut_lines: 0,
            line_max: 0,
        }
    }

    /// Returns a note about the lines that were cut, or `None` if there are none.
    fn cut_lines_remark(&self) -> Option<String> {
        let (noun, were) = if self.cut_lines == 1 { ("line", "was") } else { ("lines", "were") };
        let length = self.line_max;
        (self.cut_lines > 0)
            .then(|| format!("{} {noun} longer than {length} bytes {were} cut", self.cut_lines))
    }

    /// Emits blocks until the batch is full, or until the current input piece contains no other
    /// complete block. If `ended` is true, no bytes follow the piece.
    fn emit_from_piece(&mut self, intake: &mut Intake<'_>, ended: bool) {
        let pool = intake.pool;
        let mut rest = self.feed.unconsumed_bytes(pool);
        while intake.room() > 0
            && let Some(next) = self.next_block(rest, pool.block_length_max(), ended)
        {
            let place = self.feed.unconsumed_extent(0, next.length);
            if self.lines
                && next.flags.contains(BlockFlags::FIRST)
                && !next.flags.contains(BlockFlags::LAST)
            {
                self.cut_lines += 1;
                self.line_max = next.length;
            }
            intake.append_block_entry(self.entry(intake, place, next.flags));
            self.line_begins = next.flags.contains(BlockFlags::LAST);
            self.feed.consume(next.consumed);
            rest = rest.get(next.consumed..).unwrap_or_default();
        }
        self.feed.report_consumed(pool);
    }

    /// Returns the block at the start of `bytes`, or `None` if its end is not known yet. `ended` is
    /// true if no bytes follow.
    fn next_block(&self, bytes: &[u8], length_max: usize, ended: bool) -> Option<BlockBounds> {
        if bytes.is_empty() {
            return None;
        }
        if self.lines {
            return self.next_line_bounds(bytes, length_max, ended);
        }
        let length = self.block.min(length_max).min(bytes.len());
        let whole = length == self.block.min(length_max) || ended || self.feed.input().may_block();
        whole.then(|| BlockBounds::new(length, length, BlockFlags::FIRST.with(BlockFlags::LAST)))
    }

    fn next_line_bounds(
        &self,
        bytes: &[u8],
        length_max: usize,
        ended: bool,
    ) -> Option<BlockBounds> {
        let first = if self.line_begins { BlockFlags::FIRST } else { BlockFlags::NONE };
        // One more byte decides whether a line terminator follows.
        let limit = self.block.min(length_max - 1);
        let window = bytes.get(..=limit).unwrap_or(bytes);
        if let Some(end) = memchr::memchr(b'\n', window) {
            let length = if bytes.get(..end)?.ends_with(b"\r") { end - 1 } else { end };
            return Some(BlockBounds::new(length, end + 1, first.with(BlockFlags::LAST)));
        }
        if bytes.len() > limit {
            let cut = |length| Some(BlockBounds::new(length, length, first));
            return match bytes.get(limit..) {
                Some([b'\r', b'\n', ..]) => {
                    Some(BlockBounds::new(limit, limit + 2, first.with(BlockFlags::LAST)))
                }
                // The next byte decides whether the line ends here. If there is no room for it, the
                // line is cut one byte earlier, so that no empty fragment follows.
                Some([b'\r']) if !ended && limit + 1 < length_max => None,
                Some([b'\r']) if !ended => cut(limit - 1),
                _ => cut(limit),
            };
        }
        ended.then(|| BlockBounds::new(bytes.len(), bytes.len(), first.with(BlockFlags::LAST)))
    }

    fn entry(&mut self, intake: &Intake<'_>, place: Extent, flags: BlockFlags) -> Entry {
        self.emitted.add_block(place.length());
        let marks = Marks::for_plain_block(place.length());
        let mut entry = intake.entry(place, (intake.now, self.origin), marks);
        entry.context.flags = flags;
        entry
    }
}

impl BlockBounds {
    /// Creates the boundaries of a block. A block is at most `BLOCK_MAX` bytes long, so its length
    /// fits in 32 bits.
    fn new(length: usize, consumed: usize, flags: BlockFlags) -> Self {
        Self { length: u32::try_from(length).unwrap_or(u32::MAX), consumed, flags }
    }
}

#[cfg(test)]
mod tests;
