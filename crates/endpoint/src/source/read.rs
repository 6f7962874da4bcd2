//! `read`: gives the bytes of any file, in blocks of one size or line by line.
//!
//! In: a file or standard input, read in pieces straight into the pool. Out: blocks that lie in no
//! frame, with the time at which they were read. A line longer than a block travels as fragments
//! with the first and last flags (CONTRACT 6).

use super::feed::{Feed, Filled};
use super::input::Input;
use crate::{Failure, Given, Intake, Opening, Seen, Source, SourceEntry};
use abi::{BLOCK_MAX, BlockMetadata, Class, Entry, Extent, Flags, Marks, RichPointer};
use filter::{Amount, Arguments, Description, Effect, Form, Forms, Gives, Kind, Parameter, Type};
use std::os::fd::BorrowedFd;

/// The description of `read`.
pub const READ: Description = Description {
    name: "read",
    summary: "give the bytes of a file, in blocks or line by line",
    details: "\
Reads any file; `-` is standard input. Blocks have `block` bytes (64 KB by default, the last one
what is left); from a pipe or terminal a block is given as soon as anything came. `lines=yes` gives
one record per line, without its line end; a line longer than `block` comes in fragments. Blocks lie
in no frame: filters that read headers refuse them.",
    example: "read access.log lines=yes | match \" 404 \" | count",
    kind: Kind::Source,
    takes: Forms::NONE,
    gives: Gives::Form(Form::Bytes),
    effect: Some(effect),
    parameters: &[
        Parameter::needed("file", Type::Path, "the file to read; - is standard input"),
        Parameter::named("block", BLOCK, "64k", "the most bytes of a block"),
        Parameter::named("lines", Type::Flag, "no", "one block per line"),
    ],
    ..Description::EMPTY
};

/// A block is as long as a rich pointer can say.
const BLOCK: Type = Type::Size { low: 1, high: BLOCK_MAX as u64 };

/// The line in the catalogue.
pub const ENTRY: SourceEntry = SourceEntry::new(&READ, open).with(super::input::FACTS);

/// Lines are records, blocks are bytes.
fn effect(arguments: &Arguments) -> Effect {
    let form = if arguments.flag("lines") { Form::Record } else { Form::Bytes };
    Effect { gives: Gives::Form(form), kind: READ.kind, reads: READ.reads }
}

/// Reads an input; also what a program writes.
#[derive(Debug)]
pub(crate) struct Read {
    feed: Feed,
    block: usize,
    lines: bool,
    origin: u16,
    given: Amount,
    /// True if the next bytes begin a line.
    line_begins: bool,
}

/// The next block in front of the bytes that are there.
struct Next {
    length: u32,
    /// Bytes consumed with it: the block, and its line end.
    consumed: usize,
    flags: Flags,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Source>, Failure> {
    let path = opening.arguments.text("file").unwrap_or("-");
    let block = opening.arguments.number("block").and_then(|block| usize::try_from(block).ok());
    let block = block.unwrap_or(64 * 1024).clamp(1, BLOCK_MAX);
    let input = Input::open(path)?;
    Ok(Box::new(Read::new(input, block, opening.arguments.flag("lines"), opening.origin)))
}

impl Source for Read {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let again = Given::Wait { until: Some(intake.now), readable: false };
        let before = self.given.blocks;
        let mut ended = false;
        loop {
            self.give_from_piece(intake, ended);
            if intake.room() == 0 {
                return Ok(Given::Blocks);
            }
            let left = self.feed.let_go(intake.pool);
            if ended {
                return Ok(Given::End);
            }
            if self.given.blocks > before {
                // The next piece can lie where this one lay once the turn is over.
                return Ok(Given::Blocks);
            }
            let at_once = self.lines || self.feed.input().waits();
            let wanted = if at_once { left + 1 } else { self.block };
            match self.feed.fill(intake.pool, wanted.min(intake.pool.block_max()))? {
                Filled::Ready => {}
                Filled::Nothing => return Ok(Given::Wait { until: None, readable: true }),
                Filled::Full => return Ok(again),
                Filled::End(0) => return Ok(Given::End),
                Filled::End(_) => match self.feed.rest(intake.pool)? {
                    Filled::Ready => ended = true,
                    _ => return Ok(again),
                },
            }
        }
    }

    fn seen(&self) -> Seen {
        Seen { position: self.feed.input().position(), ..Seen::all(self.given) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.feed.descriptor()
    }
}

impl Read {
    pub(crate) const fn new(input: Input, block: usize, lines: bool, origin: u16) -> Self {
        Self {
            feed: Feed::new(input),
            block,
            lines,
            origin,
            given: Amount { blocks: 0, bytes: 0 },
            line_begins: true,
        }
    }

    /// Gives blocks until the batch is full or the piece holds no further one.
    fn give_from_piece(&mut self, intake: &mut Intake<'_>, ended: bool) {
        let pool = intake.pool;
        let mut rest = self.feed.bytes(pool);
        while intake.room() > 0
            && let Some(next) = self.next(rest, pool.block_max(), ended)
        {
            let place = self.feed.place(0, next.length);
            intake.put(self.entry(intake, place, next.flags));
            self.line_begins = next.flags.has(Flags::LAST);
            self.feed.consume(next.consumed);
            rest = rest.get(next.consumed..).unwrap_or_default();
        }
        self.feed.settle(pool);
    }

    /// The block in front of these bytes; nothing if more bytes must come before that can be said.
    fn next(&self, bytes: &[u8], most: usize, ended: bool) -> Option<Next> {
        if bytes.is_empty() {
            return None;
        }
        if self.lines {
            return self.line(bytes, most, ended);
        }
        let length = self.block.min(most).min(bytes.len());
        let whole = length == self.block.min(most) || ended || self.feed.input().waits();
        whole.then(|| Next::new(length, length, Flags::FIRST.with(Flags::LAST)))
    }

    fn line(&self, bytes: &[u8], most: usize, ended: bool) -> Option<Next> {
        let first = if self.line_begins { Flags::FIRST } else { Flags::NONE };
        // One byte more tells whether a line end follows.
        let limit = self.block.min(most - 1);
        let window = bytes.get(..=limit).unwrap_or(bytes);
        if let Some(end) = memchr::memchr(b'\n', window) {
            let length = if bytes.get(..end)?.ends_with(b"\r") { end - 1 } else { end };
            return Some(Next::new(length, end + 1, first.with(Flags::LAST)));
        }
        if bytes.len() > limit {
            return Some(Next::new(limit, limit, first));
        }
        ended.then(|| Next::new(bytes.len(), bytes.len(), first.with(Flags::LAST)))
    }

    fn entry(&mut self, intake: &Intake<'_>, place: Extent, flags: Flags) -> Entry {
        self.given.add(place.length());
        let context = BlockMetadata { time: intake.now, session: 0, origin: self.origin, flags };
        let pointer = RichPointer::new(intake.pool.id(), place, Class::YES);
        Entry::new(pointer, context, Marks::bare(place.length()))
    }
}

impl Next {
    /// Blocks are at most as long as a rich pointer can say, so the length fits.
    fn new(length: usize, consumed: usize, flags: Flags) -> Self {
        Self { length: u32::try_from(length).unwrap_or(u32::MAX), consumed, flags }
    }
}

#[cfg(test)]
mod tests;
