//! `files`: writes the viewed bytes into files, one per session, message or block, with an index.
//!
//! Out: in the directory, `000001-10.0.0.1.1234-10.0.0.2.80` and so on, and `index.jsonl`, which
//! has one JSON object per finished file (`shelf`).
//!
//! Bytes that were lost on the way become zeros, as in tcpflow and Zeek, so that what stands behind
//! them stands where its sender put it; `holes=skip` leaves them out. Either way the index says how
//! many there are.

use super::shelf::{FILL_MAX, Habits, Key, OPEN, SESSIONS, Shelf, Volume};
use crate::{Failure, Opening, Sink, SinkEntry};
use abi::{Direction, Flags};
use filter::{
    Amount, Batch, Block, Description, Form, Forms, Gives, Kind, Parameter, Report, Several,
    StateFacts, Time, Type,
};

/// The description of `files`.
pub const FILES: Description = Description {
    name: "files",
    summary: "write sessions, messages or blocks into files of a directory",
    details: "\
Writes the viewed bytes. `per=session` makes one file for each direction of a session,
`per=connection` one for both, `per=message` one for each message, `per=block` one for each block.
The default, `auto`, takes messages where messages come, and sessions otherwise; blocks without a
session get a file each.

The directory is made if it is missing, links in it are not followed, and no file is ever
overwritten: names begin with a number, and a second run goes on with the next one. What has no
bytes, such as a request without a body, gets no file, only its line in the index.

`index.jsonl` gets one JSON object for each finished file: version (1), file, first and last
(times), blocks, bytes, missing (bytes that were lost on the way), complete (whether beginning and
end were seen and nothing is missing), sha256 (of the file), and where known origin, session,
direction, class and class_name (of the first block) and who spoke to whom as in `json`. A message
adds what is known about it, by the names that `json` gives: kind, client, server, method, url,
host, status, content_type, content_length and so on. A file of a session says how many messages are
in it.

Lost bytes stand in the file as zeros (at most 16 MiB of them; unfilled says how many do not), or
are left out with `holes=skip`. At most `open` files are open at one time, and at most `sessions`
sessions are remembered; a session that was forgotten goes on in another file.",
    example: "replay web.pcap | tcp | http |get files out/",
    kind: Kind::Sink,
    takes: Forms::ANY,
    gives: Gives::Nothing,
    state: StateFacts::NONE.several(|_| Several::Folder("dir")),
    parameters: &[
        Parameter::needed("dir", Type::Path, "the directory to write into"),
        Parameter::named(
            "per",
            Type::OneOf(&["auto", "session", "connection", "message", "block"]),
            "auto",
            "what gets a file of its own",
        ),
        Parameter::named(
            "holes",
            Type::OneOf(&["zero", "skip"]),
            "zero",
            "what stands for bytes that were lost on the way",
        ),
        OPEN,
        SESSIONS,
    ],
    ..Description::EMPTY
};

const _: () = assert!(FILL_MAX == 16 << 20, "the help says so");

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry::new(&FILES, open).writing_files();

/// The unit that gets a file of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Per {
    Session,
    Connection,
    Message,
    Block,
}

#[derive(Debug)]
struct Files {
    shelf: Shelf,
    per: Per,
    written: Amount,
    /// Descriptions, bytes that came, bytes that did not, and lines without a file.
    messages: u64,
    bytes: u64,
    missing: u64,
}

fn open(opening: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(Files::new(opening)?))
}

impl Sink for Files {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        for (_, block) in batch.blocks() {
            match self.key(&block) {
                Some(key) => self.append(key, &block)?,
                None => self.single(&block)?,
            }
            self.count(&block);
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.shelf.flush()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.shelf.end_all()?;
        let always = [("files", self.shelf.made()), ("blocks", self.written.blocks)];
        let mut rows = Vec::from(always);
        rows.push(("bytes", self.bytes));
        let others = [("messages", self.messages), ("missing bytes", self.missing)];
        rows.extend(others.into_iter().filter(|(_, value)| *value > 0));
        let rows = rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Ok(self.shelf.report(rows))
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }
}

impl Files {
    fn new(opening: &Opening<'_>) -> Result<Self, Failure> {
        let text = |name| opening.arguments.text(name);
        let per = match (text("per"), opening.form) {
            (Some("session"), _) => Per::Session,
            (Some("connection"), _) => Per::Connection,
            (Some("block"), _) => Per::Block,
            (Some("message"), _) | (_, Form::Message) => Per::Message,
            _ => Per::Session,
        };
        let habits = Habits {
            ending: "",
            digests: true,
            single: per == Per::Message,
            begun: per == Per::Message || per != Per::Block && opening.form == Form::Stream,
            fills: text("holes") != Some("skip"),
        };
        Ok(Self {
            shelf: Shelf::open(text("dir").unwrap_or("."), habits, opening)?,
            per,
            written: Amount::default(),
            messages: 0,
            bytes: 0,
            missing: 0,
        })
    }

    /// Returns the key of a block's file; `None` if it gets a file of its own.
    fn key(&self, block: &Block<'_>) -> Option<Key> {
        let number = block.context.session;
        let backward = block.context.flags.direction() == Direction::Backward;
        match self.per {
            Per::Message if is_whole_message(block) => None,
            Per::Message => Some(Key::Session { number, backward }),
            Per::Session if number != 0 => Some(Key::Session { number, backward }),
            Per::Connection if number != 0 => Some(Key::Session { number, backward: false }),
            Per::Block | Per::Session | Per::Connection => None,
        }
    }

    /// Gives a block a file of its own.
    fn single(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        if says_nothing(block) || self.per != Per::Message && block.marks.is_description() {
            return Ok(());
        }
        let mut volume = Volume::new(block, true);
        self.write(&mut volume, block)?;
        volume.end(block);
        self.shelf.tell(&volume)
    }

    /// Adds a block to the file of its session or message.
    fn append(&mut self, key: Key, block: &Block<'_>) -> Result<(), Failure> {
        let flags = block.context.flags;
        let mut known = self.shelf.take_out(key);
        if self.per == Per::Message && flags.has(Flags::FIRST) {
            // What follows a description may be the first block of its stream, and say so.
            let awaits = |volume: &Volume| volume.is_only_described();
            if block.marks.is_description() || !known.as_ref().is_some_and(awaits) {
                let before = known.take();
                before.map_or(Ok(()), |volume| self.shelf.tell(&volume))?;
            }
        }
        let mut volume = match known {
            Some(volume) => volume,
            None if says_nothing(block) => return Ok(()),
            None => {
                self.shelf.make_room()?;
                Volume::new(block, self.per != Per::Connection)
            }
        };
        let outcome = self.write(&mut volume, block);
        let (ended, is_over) = match self.per {
            // Where the stream ends without the end of the message, there will be none.
            Per::Message => (flags.has(Flags::LAST), flags.has(Flags::END)),
            _ => (flags.has(Flags::END), false),
        };
        if outcome.is_ok() && ended {
            volume.end(block);
        }
        let one_way = self.per != Per::Connection;
        let is_over = is_over || volume.has_ended() || ended && one_way;
        self.shelf.put_back(key, volume);
        outcome?;
        if is_over { self.shelf.end(key) } else { Ok(()) }
    }

    fn write(&mut self, volume: &mut Volume, block: &Block<'_>) -> Result<(), Failure> {
        let bytes = block.bytes();
        let missing = u64::from(block.length()).saturating_sub(bytes.len() as u64);
        volume.meet(block);
        self.shelf.write(volume, bytes)?;
        self.shelf.skip(volume, missing)?;
        volume.note(block);
        Ok(())
    }

    fn count(&mut self, block: &Block<'_>) {
        let here = block.bytes().len() as u64;
        self.written.add(block.length());
        self.messages += u64::from(block.marks.is_description());
        self.bytes += here;
        self.missing += u64::from(block.length()).saturating_sub(here);
    }
}

/// Returns true if a block is a whole message; blocks of the same time are later parts.
fn is_whole_message(block: &Block<'_>) -> bool {
    block.marks.is_description() && block.context.flags.has(Flags::FIRST.with(Flags::LAST))
}

/// Returns true if a block has no bytes and stands for none: the end of a direction without data.
fn says_nothing(block: &Block<'_>) -> bool {
    block.length() == 0 && block.pointer.is_hole()
}

#[cfg(test)]
mod tests;
