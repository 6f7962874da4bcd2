//! The reader that opens recordings.
//!
//! Input: an untrusted file. Output: its head, the positions of the chunks of each space, the
//! changes to the path, and the completeness of the file. One pass over all bytes also checks the
//! digest. Memory use is proportional to the number of changes and chunks. Truncation and damage
//! are reported, and everything before the damage can be replayed.

use super::change::{self, RecordedChange};
use super::file_format::{self, FileBlock, LOCAL_BLOCK_TYPE, LocalBlockKind, ValueReader};
use super::head::{FORMAT_VERSION, READABLE_VERSION_MIN, RecordingHead};
use super::write::MissingInput;
use crate::error::reason_text;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;
use sys::open::RegularOpenOptions;

/// A recording that can be replayed.
#[derive(Debug)]
pub struct Record {
    /// The head: the parameters needed to build the path again.
    pub head: RecordingHead,
    /// The version of the file format.
    pub version: u32,
    /// Result of two checks: that the recording covers the entire run, and that the file is intact.
    pub completeness: Completeness,
    /// The changes to the path while it ran, oldest first.
    pub changes: Vec<RecordedChange>,
    pub(super) file: File,
    /// The chunks, each with the number of its space, the file offset of its events, and the length
    /// of the events in bytes.
    pub(super) chunks: Vec<(u32, u64, usize)>,
    target: String,
}

/// The extent to which a recording is complete and intact.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Completeness {
    /// The recording covers the run to its end.
    Complete {
        /// The digest of the run, as passed to [`super::Recording::finish`].
        digest: String,
    },
    /// The recording reached its size limit before the run ended.
    Full {
        /// Amount and time of the input that arrived after the size limit was reached.
        beyond: MissingInput,
    },
    /// The recording is truncated: the writer was killed, or the file was shortened or a block was
    /// damaged later.
    Truncated {
        /// File offset of the end of the last block that can be read, in bytes.
        at: u64,
    },
    /// The recording is complete but its digest does not match, so the file was changed or damaged.
    Changed,
}

impl Completeness {
    /// Returns true if the recording is truncated or was changed, so that a replay may differ from
    /// the run. A recording that reached its size limit is not damaged.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        matches!(self, Self::Truncated { .. } | Self::Changed)
    }
}

/// A failure to open a recording. No part of the file can then be replayed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file could not be opened or read.
    #[error("cannot read {target}: {}", reason_text(.error))]
    Unreadable {
        /// Path of the file, for messages.
        target: String,
        /// The error of the system call.
        #[source]
        error: std::io::Error,
    },
    /// The file is not a recording.
    #[error("{target} is not a record: `run --record=FILE REQUEST` makes one")]
    NotARecording {
        /// Path of the file, for messages.
        target: String,
    },
    /// The file is a capture, which other commands can read.
    #[error("{target} is a capture, not a record: `replay {target} | …` runs a request over it")]
    Capture {
        /// Path of the file, for messages.
        target: String,
    },
    /// The file is a recording of an unsupported version.
    #[error(
        "{target} has record format {version}, and this version reads {READABLE_VERSION_MIN} to \
         {FORMAT_VERSION}: replay it with the version that wrote it; its frames can be read as a \
         capture"
    )]
    Version {
        /// Path of the file, for messages.
        target: String,
        /// Format version that the file names.
        version: u32,
    },
    /// An item is missing from the head of the recording.
    #[error("{target} is an incomplete record: its head lacks `{missing}`")]
    IncompleteHead {
        /// Path of the file, for messages.
        target: String,
        /// Name of the item that is missing from the head.
        missing: &'static str,
    },
}

impl RecordError {
    /// Returns true if the file does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Unreadable { error, .. } if error.kind() == ErrorKind::NotFound)
    }
}

/// Returns true if a file begins with the header blocks of a recording.
pub fn is_record(path: &Path) -> std::io::Result<bool> {
    let mut first = Vec::new();
    RegularOpenOptions::read().open(path)?.take(HEAD_BYTES_MAX).read_to_end(&mut first)?;
    let section = file_format::parse_block(&first).filter(FileBlock::is_section_header);
    let second = section.and_then(|section| file_format::parse_block(first.get(section.length..)?));
    Ok(second
        .and_then(|second| second.local_block())
        .is_some_and(|(what, _)| what == LocalBlockKind::RecordingHead))
}

/// Maximum total length of the section header and the head in bytes; a request has at most 64 KB.
const HEAD_BYTES_MAX: u64 = 1 << 20;

impl Record {
    /// Opens a recording and scans all of it.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let target = path.display().to_string();
        let unread = |error| RecordError::Unreadable { target: target.clone(), error };
        let file = RegularOpenOptions::read().open(path).map_err(unread)?;
        let mut scan = RecordScan::new(file.try_clone().map_err(unread)?);
        let (version, head) = scan.read_head(&target)?;
        let (mut chunks, mut changes) = (Vec::new(), Vec::new());
        let whole = scan.scan_chunks(&mut chunks, &mut changes).map_err(unread)?;
        Ok(Self { head, version, completeness: whole, changes, file, chunks, target })
    }

    /// Returns the path of the file, for messages.
    #[must_use]
    pub fn path_for_messages(&self) -> &str {
        &self.target
    }
}

/// A pass over a recording that reads it block by block.
struct RecordScan {
    file: BufReader<File>,
    digest: Sha256,
    /// The current block; incomplete at the end of a truncated file.
    block: Vec<u8>,
    /// File offset of the current block in bytes.
    at: u64,
}

/// Number of bytes read per system call.
const READ_BYTES: usize = 1 << 20;

impl RecordScan {
    fn new(file: File) -> Self {
        let (file, digest) = (BufReader::with_capacity(READ_BYTES, file), Sha256::new());
        Self { file, digest, block: Vec::new(), at: 0 }
    }

    /// Reads the next block; returns false if the file contains no further complete block.
    fn read_block(&mut self) -> std::io::Result<bool> {
        self.block.clear();
        (&mut self.file).take(8).read_to_end(&mut self.block)?;
        let Some((_, length)) = file_format::block_length(&self.block) else { return Ok(false) };
        (&mut self.file).take(length as u64 - 8).read_to_end(&mut self.block)?;
        Ok(self.block.len() == length)
    }

    /// Returns the current block, or `None` if it is malformed.
    fn current_block(&self) -> Option<FileBlock<'_>> {
        file_format::parse_block(&self.block)
    }

    /// Adds the current block to the digest of the file, and advances past the block.
    fn digest_current_block(&mut self) {
        self.digest.update(&self.block);
        self.at += self.block.len() as u64;
    }

    /// Reads the version of the format, and the head.
    fn read_head(&mut self, target: &str) -> Result<(u32, RecordingHead), RecordError> {
        let target = target.to_owned();
        let unread = |error| RecordError::Unreadable { target: target.clone(), error };
        let capture = || RecordError::Capture { target: target.clone() };
        let whole = self.read_block().map_err(unread)?;
        if !whole || !self.current_block().is_some_and(|block| block.is_section_header()) {
            let first = self.block.get(..4).unwrap_or_default();
            let known: [[u8; 4]; 5] = [
                [0x0a, 0x0d, 0x0d, 0x0a],
                [0xd4, 0xc3, 0xb2, 0xa1],
                [0xa1, 0xb2, 0xc3, 0xd4],
                [0x4d, 0x3c, 0xb2, 0xa1],
                [0xa1, 0xb2, 0x3c, 0x4d],
            ];
            return Err(match known.iter().any(|magic| magic == first) {
                true => capture(),
                false => RecordError::NotARecording { target },
            });
        }
        self.digest_current_block();
        let whole = self.read_block().map_err(unread)?;
        let block = self.current_block().filter(|_| whole).and_then(|block| block.local_block());
        let Some((LocalBlockKind::RecordingHead, mut take)) = block else { return Err(capture()) };
        let version = take.read_u32().unwrap_or_default();
        if !(READABLE_VERSION_MIN..=FORMAT_VERSION).contains(&version) {
            return Err(RecordError::Version { target, version });
        }
        let mut pairs = Vec::new();
        for _ in 0..take.read_u32().unwrap_or_default() {
            let (Some(name), Some(value)) = (take.read_text(), take.read_text()) else { break };
            pairs.push((name.to_owned(), value.to_owned()));
        }
        self.digest_current_block();
        let head = RecordingHead::from_pairs(&pairs)
            .map_err(|missing| RecordError::IncompleteHead { target, missing })?;
        Ok((version, head))
    }

    /// Collects all changes and the positions of all chunks. Returns the completeness of the file.
    fn scan_chunks(
        &mut self,
        chunks: &mut Vec<(u32, u64, usize)>,
        changes: &mut Vec<RecordedChange>,
    ) -> std::io::Result<Completeness> {
        loop {
            let cut = Completeness::Truncated { at: self.at };
            let whole = self.read_block()?;
            let Some(block) = self.current_block().filter(|_| whole) else { return Ok(cut) };
            if block.kind != LOCAL_BLOCK_TYPE {
                self.digest_current_block();
                continue;
            }
            match block.local_block() {
                Some((LocalBlockKind::End, take)) => {
                    return Ok(self.decode_completeness(take).unwrap_or(cut));
                }
                Some((LocalBlockKind::Chunk, mut take)) => {
                    let (Some(space), Some(events)) = (take.read_u32(), take.read_u32()) else {
                        return Ok(cut);
                    };
                    self.digest_current_block();
                    let begin = self.at;
                    let there = self.skip_events(events as usize)?;
                    chunks.push((space, begin, there));
                    if there < events as usize {
                        return Ok(Completeness::Truncated { at: begin + there as u64 });
                    }
                }
                Some((LocalBlockKind::Change, take)) => {
                    // In a complete file, changes are well-formed and numbered without gaps.
                    let next = changes.len() as u64;
                    let Some(change) = change::decode_change(take).filter(|one| one.number == next)
                    else {
                        return Ok(cut);
                    };
                    changes.push(change);
                    self.digest_current_block();
                }
                _ => return Ok(cut),
            }
        }
    }

    /// Skips the events of a chunk, `bytes` bytes in total, and adds them to the digest. Stops at
    /// the first block that is truncated or malformed. Returns the number of bytes skipped.
    fn skip_events(&mut self, bytes: usize) -> std::io::Result<usize> {
        let mut there = 0;
        while there < bytes {
            let whole = self.read_block()?;
            if !whole || there + self.block.len() > bytes || self.current_block().is_none() {
                break;
            }
            self.digest_current_block();
            there += self.block.len();
        }
        Ok(there)
    }

    /// Checks the digest of the file and decodes, from the contents of the last block, the
    /// completeness of the recording. Returns `None` if the last block is malformed.
    fn decode_completeness(&self, mut take: ValueReader<'_>) -> Option<Completeness> {
        let digest = take.read_bytes(32)?;
        let sum = self.digest.clone().chain_update(take.0).finalize();
        if *digest != *sum {
            return Some(Completeness::Changed);
        }
        let full = take.read_u32()? != 0;
        let (blocks, bytes, since) = (take.read_u64()?, take.read_u64()?, take.read_u64()?);
        let digest = take.read_text()?.to_owned();
        let since = (since != u64::MAX).then_some(since);
        let beyond = MissingInput { blocks, bytes, since };
        Some(if full { Completeness::Full { beyond } } else { Completeness::Complete { digest } })
    }
}
