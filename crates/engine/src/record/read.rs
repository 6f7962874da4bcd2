//! Opens a record.
//!
//! In: a file that anybody may have made. Out: its head, where the chunks of each space lie, the
//! changes that the path was put through, and whether it is whole. One pass over all bytes, which
//! checks the digest too; nothing but the changes and the places of chunks is kept. What is cut off
//! or damaged is told, and what comes before it can be played.

use super::change::{self, Change};
use super::form::{self, Found, LOCAL, Local, Take};
use super::head::{FIRST, Head, VERSION};
use super::write::Beyond;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use sys::open::OpenRegular;

/// A record that can be played.
#[derive(Debug)]
pub struct Record {
    /// The head: enough to build the same path again.
    pub head: Head,
    /// The version of the file's form.
    pub version: u32,
    /// Completeness of the record.
    pub whole: Whole,
    /// The changes that it was put through while it ran, in their order.
    pub changes: Vec<Change>,
    pub(super) file: File,
    /// For each chunk: its space, the file offset of its events, and their length in bytes.
    pub(super) chunks: Vec<(u32, u64, usize)>,
    target: String,
}

/// Completeness of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whole {
    /// To the end of the run, of which this is told.
    Whole {
        /// See [`super::told`].
        told: String,
    },
    /// It was full before the run ended.
    Full {
        /// Input that the record lacks.
        beyond: Beyond,
    },
    /// It ends at this byte, before its end: its writer was killed, or the file was cut.
    Cut {
        /// The byte.
        at: u64,
    },
    /// It has its end, and a digest that is not that of its bytes: it was changed or damaged.
    Changed,
}

/// The reason a file cannot be played at all.
#[derive(Debug)]
pub enum Broken {
    /// It could not be opened or read.
    Unread {
        /// The file.
        target: String,
        /// The error.
        error: std::io::Error,
    },
    /// It is no record.
    Foreign {
        /// The file.
        target: String,
        /// True if it is a capture, which other commands read.
        capture: bool,
    },
    /// It is a record of another version of this program.
    Version {
        /// The file.
        target: String,
        /// Version of its format.
        version: u32,
    },
    /// Its head is not all there.
    Headless {
        /// The file.
        target: String,
        /// The missing item.
        missing: &'static str,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unread { target, error } => {
                let text = error.to_string();
                let why = text.split(" (os error").next().unwrap_or_default().to_lowercase();
                write!(f, "cannot read {target}: {why}")
            }
            Self::Foreign { target, capture: true } => {
                write!(
                    f,
                    "{target} is a capture and no record: `replay {target} | …` runs a line \
                           over it"
                )
            }
            Self::Foreign { target, capture: false } => {
                write!(f, "{target} is no record: `run --record=FILE LINE` makes one")
            }
            Self::Version { target, version } => write!(
                f,
                "{target} is a record of form {version}, and this program reads forms {FIRST} to \
                 {VERSION}: play it with the program that wrote it; its frames can be read as a \
                 capture"
            ),
            Self::Headless { target, missing } => {
                write!(f, "{target} is a record without its head: `{missing}` is missing")
            }
        }
    }
}

impl std::error::Error for Broken {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unread { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Broken {
    /// Returns true if there is no such file.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unread { error, .. } if error.kind() == ErrorKind::NotFound)
    }
}

/// Returns true if a file begins as a record does.
pub fn is_record(path: &Path) -> std::io::Result<bool> {
    let mut first = Vec::new();
    OpenRegular::read().open(path)?.take(BEGIN).read_to_end(&mut first)?;
    let section = form::found(&first).filter(Found::is_section);
    let second = section.and_then(|section| form::found(first.get(section.length..)?));
    Ok(second.and_then(|second| second.local()).is_some_and(|(what, _)| what == Local::Head))
}

/// The section header and the head are within so many bytes: a request has 64 KB at most.
const BEGIN: u64 = 1 << 20;

impl Record {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, Broken> {
        let target = path.display().to_string();
        let unread = |error| Broken::Unread { target: target.clone(), error };
        let file = OpenRegular::read().open(path).map_err(unread)?;
        let mut scan = Scan::new(file.try_clone().map_err(unread)?);
        let (version, head) = scan.head(&target)?;
        let (mut chunks, mut changes) = (Vec::new(), Vec::new());
        let whole = scan.chunks(&mut chunks, &mut changes).map_err(unread)?;
        Ok(Self { head, version, whole, changes, file, chunks, target })
    }

    /// The file's name.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.target
    }
}

/// One pass over a file.
struct Scan {
    file: File,
    digest: Sha256,
    buffer: Vec<u8>,
    /// Number of bytes of the buffer examined.
    at: usize,
    /// File offset of the buffer, in bytes.
    offset: u64,
    ended: bool,
}

const PIECE: usize = 1 << 20;

impl Scan {
    fn new(file: File) -> Self {
        let (digest, buffer) = (Sha256::new(), Vec::new());
        Self { file, digest, buffer, at: 0, offset: 0, ended: false }
    }

    /// Has at least so many bytes before it, if the file has.
    fn need(&mut self, bytes: usize) -> std::io::Result<bool> {
        while self.buffer.len() - self.at < bytes && !self.ended {
            self.buffer.drain(..self.at);
            self.offset += self.at as u64;
            self.at = 0;
            let before = self.buffer.len();
            let piece = (&self.file).take(PIECE as u64).read_to_end(&mut self.buffer)?;
            self.ended = piece == 0 || self.buffer.len() == before;
        }
        Ok(self.buffer.len() - self.at >= bytes)
    }

    /// The block that comes next, all of it in the buffer; its length in bytes.
    fn next(&mut self) -> std::io::Result<Option<usize>> {
        if !self.need(8)? {
            return Ok(None);
        }
        let Some((_, length)) = form::length(&self.buffer[self.at..]) else { return Ok(None) };
        Ok(self.need(length)?.then_some(length))
    }

    fn here(&self, length: usize) -> Option<Found<'_>> {
        form::found(self.buffer.get(self.at..self.at + length)?)
    }

    /// Goes over so many bytes.
    fn pass(&mut self, length: usize) {
        self.digest.update(&self.buffer[self.at..self.at + length]);
        self.at += length;
    }

    /// The version of the file's form, and its head.
    fn head(&mut self, target: &str) -> Result<(u32, Head), Broken> {
        let target = target.to_owned();
        let unread = |error| Broken::Unread { target: target.clone(), error };
        let foreign = |capture| Broken::Foreign { target: target.clone(), capture };
        let length = self.next().map_err(unread)?;
        let section = length.filter(|length| self.here(*length).is_some_and(|b| b.is_section()));
        let Some(length) = section else {
            let first = self.buffer.get(..4).unwrap_or_default();
            let known: [[u8; 4]; 5] = [
                [0x0a, 0x0d, 0x0d, 0x0a],
                [0xd4, 0xc3, 0xb2, 0xa1],
                [0xa1, 0xb2, 0xc3, 0xd4],
                [0x4d, 0x3c, 0xb2, 0xa1],
                [0xa1, 0xb2, 0x3c, 0x4d],
            ];
            return Err(foreign(known.iter().any(|magic| magic == first)));
        };
        self.pass(length);
        let length = self.next().map_err(unread)?.ok_or_else(|| foreign(true))?;
        let block = self.here(length);
        let Some((Local::Head, mut take)) = block.and_then(|block| block.local()) else {
            return Err(foreign(true));
        };
        let version = take.word().unwrap_or_default();
        if !(FIRST..=VERSION).contains(&version) {
            return Err(Broken::Version { target, version });
        }
        let mut pairs = Vec::new();
        for _ in 0..take.word().unwrap_or_default() {
            let (Some(name), Some(value)) = (take.text(), take.text()) else { break };
            pairs.push((name.to_owned(), value.to_owned()));
        }
        self.pass(length);
        let head = Head::of(&pairs).map_err(|missing| Broken::Headless { target, missing })?;
        Ok((version, head))
    }

    /// The places of all chunks, all changes, and whether that is all.
    fn chunks(
        &mut self,
        chunks: &mut Vec<(u32, u64, usize)>,
        changes: &mut Vec<Change>,
    ) -> std::io::Result<Whole> {
        loop {
            let at = self.offset + self.at as u64;
            let cut = Whole::Cut { at };
            let Some(length) = self.next()? else { return Ok(cut) };
            let Some(block) = self.here(length) else { return Ok(cut) };
            if block.kind != LOCAL {
                self.pass(length);
                continue;
            }
            match block.local() {
                Some((Local::End, take)) => return Ok(self.end(take).unwrap_or(cut)),
                Some((Local::Chunk, mut take)) => {
                    let (Some(space), Some(events)) = (take.word(), take.word()) else {
                        return Ok(cut);
                    };
                    self.pass(length);
                    let begin = self.offset + self.at as u64;
                    let there = self.events(events as usize)?;
                    chunks.push((space, begin, there));
                    if there < events as usize {
                        return Ok(Whole::Cut { at: begin + there as u64 });
                    }
                }
                Some((Local::Change, take)) => {
                    // One that cannot be read, or is not the next, is not that of a whole file.
                    let next = changes.len() as u64;
                    let Some(change) = change::take(take).filter(|one| one.number == next) else {
                        return Ok(cut);
                    };
                    changes.push(change);
                    self.pass(length);
                }
                _ => return Ok(cut),
            }
        }
    }

    /// Goes over the events of a chunk; answers how many bytes of whole blocks are there.
    fn events(&mut self, bytes: usize) -> std::io::Result<usize> {
        let mut there = 0;
        while there < bytes {
            let Some(length) = self.next()? else { break };
            if there + length > bytes || self.here(length).is_none() {
                break;
            }
            self.pass(length);
            there += length;
        }
        Ok(there)
    }

    /// Returns the completeness that the last block states.
    fn end(&self, mut take: Take<'_>) -> Option<Whole> {
        let digest = take.bytes(32)?;
        let sum = self.digest.clone().chain_update(take.0).finalize();
        if *digest != *sum {
            return Some(Whole::Changed);
        }
        let full = take.word()? != 0;
        let (blocks, bytes, since) = (take.long()?, take.long()?, take.long()?);
        let told = take.text()?.to_owned();
        let since = (since != u64::MAX).then_some(since);
        let beyond = Beyond { blocks, bytes, since };
        Some(if full { Whole::Full { beyond } } else { Whole::Whole { told } })
    }
}
