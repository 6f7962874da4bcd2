//! Many files in one directory, and what is remembered about each: what `files` and `pcap` share.
//!
//! A file is made when the first byte for it comes, so that what has none gets a line in the index
//! and no file. What is open and remembered at one time is bounded: the file that was unused for
//! longest is closed, and opened again for appending when it is needed. Nothing is synchronised:
//! many short files cost a few system calls each.

mod folder;
mod index;
mod volume;

use super::names::Names;
use crate::fail::failed;
use crate::{Failure, Opening};
use filter::{Parameter, Report, Type};
use folder::{Folder, Identity};
use index::Index;
use rustix::io::Errno;
use sha2::Sha256;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use volume::Paper;

pub(crate) use folder::INDEX;
pub(crate) use volume::{Key, Volume};

/// The most missing bytes written as zeros into one file: a number far behind the last one, which a
/// peer may forge, should not determine its size.
pub(crate) const FILL_MAX: u64 = 16 << 20;

/// The most bytes of descriptions stored: a peer may send long ones.
const RECORDS_MAX: usize = 64 << 20;

/// The most open files: a parameter of every sink that writes many.
pub(crate) const OPEN: Parameter = Parameter::named(
    "open",
    Type::Number { low: 1, high: 100_000 },
    "256",
    "how many files are open at one time",
);

/// The most unfinished files remembered: a parameter likewise.
pub(crate) const SESSIONS: Parameter = Parameter::named(
    "sessions",
    Type::Number { low: 1, high: 100_000_000 },
    "65536",
    "how many sessions are remembered",
);

/// The rules by which a sink uses its directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// The suffix of its files.
    pub(crate) ending: &'static str,
    /// True if the index contains digests.
    pub(crate) digests: bool,
    /// True if a file holds one message, so that the index contains its description.
    pub(crate) single: bool,
    /// True if a complete file needs an observed beginning.
    pub(crate) begun: bool,
    /// True if missing bytes are written as zeros.
    pub(crate) fills: bool,
}

/// A directory with its unfinished files.
#[derive(Debug)]
pub(crate) struct Shelf {
    folder: Folder,
    index: Index,
    names: Names,
    habits: Habits,
    open_max: usize,
    known_max: usize,
    volumes: HashMap<Key, Volume>,
    /// Bytes of descriptions stored.
    records: usize,
    /// All volumes, and those that are open, by when they were used last.
    by_use: BTreeMap<u64, Key>,
    open_by_use: BTreeMap<u64, Key>,
    uses: u64,
    made: u64,
}

impl Drop for Shelf {
    /// After a failure the index still tells what is there.
    fn drop(&mut self) {
        let _ = self.end_all();
    }
}

impl Shelf {
    /// Opens the directory with this path.
    pub(crate) fn open(path: &str, habits: Habits, opening: &Opening<'_>) -> Result<Self, Failure> {
        let number = |name, otherwise| {
            let given = opening.arguments.number(name);
            given.map_or(otherwise, |n| usize::try_from(n).unwrap_or(otherwise))
        };
        let (folder, index) = Folder::open(path, (opening.steps, opening.readers))?;
        Ok(Self {
            index: Index::new(index, folder.target(INDEX)),
            folder,
            names: Names::new(opening),
            habits,
            open_max: number(OPEN.name, 256),
            known_max: number(SESSIONS.name, 65_536),
            volumes: HashMap::new(),
            records: 0,
            by_use: BTreeMap::new(),
            open_by_use: BTreeMap::new(),
            uses: 0,
            made: 0,
        })
    }

    /// Returns the number of files made.
    pub(crate) const fn made(&self) -> u64 {
        self.made
    }

    /// The path of the directory, for messages.
    pub(crate) fn target(&self) -> String {
        self.folder.target("")
    }

    /// A report of these lines, and of the files that were made.
    pub(crate) fn report(&self, rows: Vec<(String, u64)>) -> Report {
        let done = format!("written to {}", self.target().trim_end_matches('/'));
        let mut report = Report::of_rows(rows).put(self.made, "file", done);
        report.remarks.extend_from_slice(self.index.remarks());
        report
    }

    /// Takes the volume with this key out, to be changed and [put back](Self::put_back).
    pub(crate) fn take_out(&mut self, key: Key) -> Option<Volume> {
        let volume = self.volumes.remove(&key)?;
        self.records -= volume.record.len();
        self.by_use.remove(&volume.used);
        self.open_by_use.remove(&volume.used);
        Some(volume)
    }

    /// Puts a volume back, as the one that was used last.
    pub(crate) fn put_back(&mut self, key: Key, mut volume: Volume) {
        self.uses += 1;
        volume.used = self.uses;
        self.by_use.insert(volume.used, key);
        if volume.paper.as_ref().is_some_and(|paper| paper.open.is_some()) {
            self.open_by_use.insert(volume.used, key);
        }
        self.records += volume.record.len();
        self.volumes.insert(key, volume);
    }

    /// Ends volumes that were unused for longest, until there is room for one more.
    pub(crate) fn make_room(&mut self) -> Result<(), Failure> {
        while self.volumes.len() >= self.known_max || self.records > RECORDS_MAX {
            let Some((_, key)) = self.by_use.first_key_value() else { return Ok(()) };
            self.end(*key)?;
        }
        Ok(())
    }

    /// Adds bytes to the file of a volume, which is made or opened again where it must be.
    pub(crate) fn write(&mut self, volume: &mut Volume, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut paper = match volume.paper.take() {
            Some(paper) => paper,
            None => self.make(&volume.about())?,
        };
        let outcome = self.append(&mut paper, volume.owed, bytes);
        if outcome.is_ok() {
            volume.filled += std::mem::take(&mut volume.owed);
        }
        volume.paper = Some(paper);
        outcome
    }

    /// Says that `length` bytes belong here that never came: zeros, if that is the habit, up to
    /// [`FILL_MAX`] and the first hole that does not fit. Comes before the block is noted.
    pub(crate) fn skip(&mut self, volume: &mut Volume, length: u64) -> Result<(), Failure> {
        let stands = volume.filled + volume.owed;
        let in_place = volume.missing == stands && stands + length <= FILL_MAX;
        if !self.habits.fills || length == 0 || !in_place {
            return Ok(());
        }
        volume.owed += length;
        let Some(mut paper) = volume.paper.take() else { return Ok(()) };
        let outcome = self.append(&mut paper, volume.owed, &[]);
        if outcome.is_ok() {
            volume.filled += std::mem::take(&mut volume.owed);
        }
        volume.paper = Some(paper);
        outcome
    }

    /// Finishes a file, if there is one with this key.
    pub(crate) fn end(&mut self, key: Key) -> Result<(), Failure> {
        match self.take_out(key) {
            Some(volume) => self.tell(&volume),
            None => Ok(()),
        }
    }

    /// Tells a finished volume in the index.
    pub(crate) fn tell(&mut self, volume: &Volume) -> Result<(), Failure> {
        self.index.tell(volume, &self.names, &self.habits)
    }

    /// Finishes all files.
    pub(crate) fn end_all(&mut self) -> Result<(), Failure> {
        while let Some((_, key)) = self.by_use.first_key_value() {
            self.end(*key)?;
        }
        self.index.write()
    }

    /// Makes visible what is told so far.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.index.write()
    }

    fn make(&mut self, about: &str) -> Result<Paper, Failure> {
        let ending = self.habits.ending;
        let (file, name) = self
            .with_room(|folder| folder.create(about, ending))
            .map_err(|error| failed("make a file in", &self.target(), &error))?;
        let identity = Identity::of(&file)
            .map_err(|error| failed("look at", &self.folder.target(&name), &error))?;
        self.made += 1;
        let digest = self.habits.digests.then(Sha256::default);
        Ok(Paper { name, identity, open: Some(file), size: 0, digest })
    }

    /// Adds zeros and bytes to a file that is open, or is opened again.
    fn append(&mut self, paper: &mut Paper, zeros: u64, bytes: &[u8]) -> Result<(), Failure> {
        let mut file = match paper.open.take() {
            Some(file) => file,
            None => self
                .with_room(|folder| folder.reopen(&paper.name, paper.identity))
                .map_err(|error| failed("open", &self.folder.target(&paper.name), &error))?,
        };
        let outcome = add(&mut file, paper, zeros, bytes);
        paper.open = Some(file);
        if outcome.is_err()
            && let Some(file) = &paper.open
            && file.set_len(paper.size).is_err()
        {
            // Part of the bytes is in the file.
            paper.digest = None;
        }
        outcome.map_err(|error| failed("write", &self.folder.target(&paper.name), &error))
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
        if let Some(paper) = self.volumes.get_mut(&key).and_then(|volume| volume.paper.as_mut()) {
            paper.open = None;
        }
        true
    }
}

#[cfg(test)]
impl Shelf {
    /// Returns the number of output files remembered, and of those open.
    pub(crate) fn kept(&self) -> (usize, usize) {
        let is_open = |volume: &&Volume| volume.paper.as_ref().is_some_and(|p| p.open.is_some());
        let open = self.volumes.values().filter(is_open).count();
        assert_eq!(open, self.open_by_use.len());
        (self.volumes.len(), open)
    }
}

/// Makes a file longer by zeros, which take no room on the disk, and by bytes.
fn add(file: &mut File, paper: &mut Paper, zeros: u64, bytes: &[u8]) -> io::Result<()> {
    const NOTHING: [u8; 4096] = [0; 4096];
    if zeros > 0 {
        file.set_len(paper.size + zeros)?;
        let mut left = zeros;
        while let Some(piece) = NOTHING.get(..left.min(NOTHING.len() as u64) as usize)
            && left > 0
        {
            paper.note(piece);
            left -= piece.len() as u64;
        }
    }
    file.write_all(bytes)?;
    paper.note(bytes);
    Ok(())
}
