//! `files`: writes the viewed bytes into files, one per session, message or block, with an index.
//!
//! Out: in the directory, `000001-10.0.0.1.1234-10.0.0.2.80` and so on, and `index.jsonl`, which
//! has one JSON object per finished file (`index`). What is open and remembered at one time
//! is bounded: the file that was unused for longest is closed, and opened again for appending when
//! it is needed.

mod folder;
mod index;
mod volume;

use super::headers::Headers;
use super::json::Ends;
use super::names::Names;
use crate::fail::failed;
use crate::{Failure, Opening, Sink, SinkEntry};
use abi::{Direction, Flags};
use filter::{
    Amount, Batch, Block, Description, Form, Forms, Gives, Kind, Parameter, Report, Time, Type,
};
use folder::{Folder, INDEX, Identity};
use index::Index;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use volume::{Key, Volume};

/// What everybody knows about `files`.
pub const FILES: Description = Description {
    name: "files",
    summary: "write sessions, messages or blocks into files of a directory",
    details: "\
Writes the viewed bytes. `per=session` makes one file for each direction of a session,
`per=connection` one for both, `per=message` one for each message, `per=block` one for each block.
The default, `auto`, takes messages where messages come, and sessions otherwise; blocks without a
session get a file each.

The directory is made if it is missing, links in it are not followed, and no file is ever
overwritten: names begin with a number, and a second run goes on with the next one. `index.jsonl`
gets one JSON object for each finished file: version (1), file, first and last (times), blocks,
bytes, complete (whether the end was seen), and where known origin, session, direction, class and
class_name (of the first block) and who spoke to whom as in `json`.

At most `open` files are open at one time, and at most `sessions` sessions are remembered; a session
that was forgotten goes on in another file.",
    example: "replay web.pcap | tcp | http |get files out/",
    kind: Kind::Sink,
    writes_files: true,
    takes: Forms::ANY,
    gives: Gives::Nothing,
    parameters: &[
        Parameter::needed("dir", Type::Path, "the directory to write into"),
        Parameter::named(
            "per",
            Type::OneOf(&["auto", "session", "connection", "message", "block"]),
            "auto",
            "what gets a file of its own",
        ),
        Parameter::named(
            "open",
            Type::Number { low: 1, high: 100_000 },
            "256",
            "how many files are open at one time",
        ),
        Parameter::named(
            "sessions",
            Type::Number { low: 1, high: 100_000_000 },
            "65536",
            "how many sessions are remembered",
        ),
    ],
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry { description: &FILES, open };

/// What gets a file of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Per {
    Session,
    Connection,
    Message,
    Block,
}

#[derive(Debug)]
struct Files {
    folder: Folder,
    index: Index,
    names: Names,
    per: Per,
    open_max: usize,
    known_max: usize,
    volumes: HashMap<Key, Volume>,
    /// All volumes, and those that are open, by when they were used last.
    by_use: BTreeMap<u64, Key>,
    open_by_use: BTreeMap<u64, Key>,
    uses: u64,
    made: u64,
    written: Amount,
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
            self.written.add(block.length());
        }
        Ok(())
    }

    fn idle(&mut self) -> Result<(), Failure> {
        self.index.write()
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        self.end_all()?;
        let Amount { blocks, bytes } = self.written;
        let rows = [("files", self.made), ("blocks", blocks), ("bytes", bytes)];
        Ok(Report { rows: rows.map(|(name, value)| (name.to_owned(), value)).to_vec() })
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }
}

impl Drop for Files {
    /// After a failure the index still tells what is there.
    fn drop(&mut self) {
        let _ = self.end_all();
    }
}

impl Files {
    fn new(opening: &Opening<'_>) -> Result<Self, Failure> {
        let path = opening.arguments.text("dir").unwrap_or(".");
        let per = match (opening.arguments.text("per"), opening.form) {
            (Some("session"), _) => Per::Session,
            (Some("connection"), _) => Per::Connection,
            (Some("block"), _) => Per::Block,
            (Some("message"), _) | (_, Form::Message) => Per::Message,
            _ => Per::Session,
        };
        let number = |name, otherwise| {
            opening
                .arguments
                .number(name)
                .map_or(otherwise, |n| usize::try_from(n).unwrap_or(otherwise))
        };
        let (folder, index) = Folder::open(path)?;
        Ok(Self {
            index: Index::new(index, folder.target(INDEX)),
            folder,
            names: Names::new(opening),
            per,
            open_max: number("open", 256),
            known_max: number("sessions", 65_536),
            volumes: HashMap::new(),
            by_use: BTreeMap::new(),
            open_by_use: BTreeMap::new(),
            uses: 0,
            made: 0,
            written: Amount::default(),
        })
    }

    /// Where a block goes; nothing if it gets a file of its own.
    fn key(&self, block: &Block<'_>) -> Option<Key> {
        let session = block.context.session;
        let backward = block.context.flags.direction() == Direction::Backward;
        match self.per {
            Per::Block => None,
            Per::Message => Some(Key { session, backward }),
            Per::Session if session != 0 => Some(Key { session, backward }),
            Per::Connection if session != 0 => Some(Key { session, backward: false }),
            Per::Session | Per::Connection => None,
        }
    }

    /// Writes a block into a file of its own.
    fn single(&mut self, block: &Block<'_>) -> Result<(), Failure> {
        let (mut volume, mut file) = self.make(block)?;
        self.write(&mut file, &volume.name, block)?;
        volume.note(block);
        volume.ended = true;
        self.index.tell(&volume, &self.names)
    }

    /// Adds a block to the file of its session or message.
    fn append(&mut self, key: Key, block: &Block<'_>) -> Result<(), Failure> {
        let flags = block.context.flags;
        if self.per == Per::Message && flags.has(Flags::FIRST) {
            self.end(key)?;
        }
        let mut volume = match self.take_out(key) {
            Some(volume) => volume,
            None => self.begin(block)?,
        };
        let last = if self.per == Per::Message { Flags::LAST } else { Flags::END };
        let outcome = self.write_to(&mut volume, block);
        volume.ended = outcome.is_ok() && flags.has(last);
        let ended = volume.ended;
        self.put_back(key, volume);
        outcome?;
        if ended { self.end(key) } else { Ok(()) }
    }

    /// A new volume for a session, after the oldest was ended if there are too many.
    fn begin(&mut self, block: &Block<'_>) -> Result<Volume, Failure> {
        if self.volumes.len() >= self.known_max
            && let Some((_, key)) = self.by_use.first_key_value()
        {
            self.end(*key)?;
        }
        let (mut volume, file) = self.make(block)?;
        volume.file = Some(file);
        volume.begun = self.per != Per::Message || block.context.flags.has(Flags::FIRST);
        Ok(volume)
    }

    fn make(&mut self, block: &Block<'_>) -> Result<(Volume, File), Failure> {
        let headers = Headers::of(block);
        let about = headers.and_then(|headers| headers.flow).map(|flow| {
            let end = |address: std::net::IpAddr, port: Option<u16>| match port {
                Some(port) => format!("-{address}.{port}"),
                None => format!("-{address}"),
            };
            let source = end(flow.source, flow.ports.map(|ports| ports.source));
            source + &end(flow.target, flow.ports.map(|ports| ports.target))
        });
        let about = about.unwrap_or_default();
        let (file, name) = self
            .with_room(|folder| folder.create(&about))
            .map_err(|error| failed("make a file in", &self.folder.target(""), &error))?;
        let identity = Identity::of(&file)
            .map_err(|error| failed("look at", &self.folder.target(&name), &error))?;
        self.made += 1;
        let told = block.context.session != 0 && self.per != Per::Connection;
        let volume = Volume::new(name, identity, block, told, Ends::of(headers.as_ref()));
        Ok((volume, file))
    }

    /// Writes a block to a file that is open, or is opened again.
    fn write_to(&mut self, volume: &mut Volume, block: &Block<'_>) -> Result<(), Failure> {
        let mut file = match volume.file.take() {
            Some(file) => file,
            None => self
                .with_room(|folder| folder.reopen(&volume.name, volume.identity))
                .map_err(|error| failed("open", &self.folder.target(&volume.name), &error))?,
        };
        let outcome = self.write(&mut file, &volume.name, block);
        volume.file = Some(file);
        outcome.map(|()| volume.note(block))
    }

    /// Opens a file, after others were closed if too many are open.
    fn with_room<T>(
        &mut self,
        mut open: impl FnMut(&mut Folder) -> io::Result<T>,
    ) -> io::Result<T> {
        while self.open_by_use.len() >= self.open_max && self.close_oldest() {}
        loop {
            let opened = open(&mut self.folder);
            let errno = opened.as_ref().err().and_then(Errno::from_io_error);
            let too_many = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
            if !too_many || !self.close_oldest() {
                return opened;
            }
        }
    }

    /// Closes the open file that was unused for longest; answers false if none is open.
    fn close_oldest(&mut self) -> bool {
        let Some((_, key)) = self.open_by_use.pop_first() else { return false };
        if let Some(volume) = self.volumes.get_mut(&key) {
            volume.file = None;
        }
        true
    }

    fn write(&self, file: &mut File, name: &str, block: &Block<'_>) -> Result<(), Failure> {
        file.write_all(block.bytes())
            .map_err(|error| failed("write", &self.folder.target(name), &error))
    }

    fn take_out(&mut self, key: Key) -> Option<Volume> {
        let volume = self.volumes.remove(&key)?;
        self.by_use.remove(&volume.used);
        self.open_by_use.remove(&volume.used);
        Some(volume)
    }

    fn put_back(&mut self, key: Key, mut volume: Volume) {
        self.uses += 1;
        volume.used = self.uses;
        self.by_use.insert(volume.used, key);
        if volume.file.is_some() {
            self.open_by_use.insert(volume.used, key);
        }
        self.volumes.insert(key, volume);
    }

    /// Finishes a file, if there is one with this key.
    fn end(&mut self, key: Key) -> Result<(), Failure> {
        match self.take_out(key) {
            Some(volume) => self.index.tell(&volume, &self.names),
            None => Ok(()),
        }
    }

    fn end_all(&mut self) -> Result<(), Failure> {
        while let Some((_, key)) = self.by_use.first_key_value() {
            self.end(*key)?;
        }
        self.index.write()
    }
}

#[cfg(test)]
mod tests;
