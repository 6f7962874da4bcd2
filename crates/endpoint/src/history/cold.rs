//! The compressed part of a history: chunks of its oldest frames.
//!
//! A chunk holds complete frames and is compressed once. If a chunk does not shrink, as with
//! ciphertext, the following chunks are not compressed at all. The number of chunks skipped in this
//! way doubles after each failure.

use super::FrameHeader;
use buffer::packing;
use std::collections::VecDeque;

/// Minimum size of a chunk in bytes before compression; [`CHUNK_MAX`] is the maximum.
const CHUNK_MIN: usize = 16 << 10;
const CHUNK_MAX: usize = 256 << 10;
/// Maximum number of chunks skipped after a chunk that did not shrink.
const SKIPPED_CHUNKS_MAX: usize = 64;

/// The compressed chunks of a history, oldest first.
#[derive(Debug)]
pub(super) struct ColdChunks {
    chunks: VecDeque<Chunk>,
    /// Size of a chunk in bytes before compression.
    chunk: usize,
    /// Number of frames in all chunks together.
    frames: usize,
    /// Compressed size of all chunks in bytes.
    used: usize,
    /// Number of bytes that must arrive before the next attempt to compress. Set after a chunk did
    /// not shrink.
    bytes_to_skip: usize,
    /// Number of chunks skipped after the last failure.
    skipped_chunks: usize,
    /// Bytes compressed so far, and their size after compression.
    totals: (u64, u64),
}

/// A group of frames that were compressed together.
#[derive(Debug)]
struct Chunk {
    packed: Box<[u8]>,
    length: usize,
    /// Number of bytes at the start of the chunk that belong to evicted frames.
    skip: usize,
    /// Number of frames that have not been evicted.
    frames: usize,
}

impl ColdChunks {
    pub(super) const fn new(limit: usize) -> Self {
        let chunk = limit / 16;
        let chunk = if chunk < CHUNK_MIN { CHUNK_MIN } else { chunk };
        let chunk = if chunk > CHUNK_MAX { CHUNK_MAX } else { chunk };
        let chunks = VecDeque::new();
        Self {
            chunks,
            chunk,
            frames: 0,
            used: 0,
            bytes_to_skip: 0,
            skipped_chunks: 0,
            totals: (0, 0),
        }
    }

    pub(super) const fn used(&self) -> usize {
        self.used
    }

    pub(super) const fn totals(&self) -> (u64, u64) {
        self.totals
    }

    /// Compresses the oldest bytes that are not compressed yet. `frames` are the headers of all
    /// stored frames. Returns false if there are too few bytes, or if they do not shrink.
    pub(super) fn compress_oldest(
        &mut self,
        frames: &VecDeque<FrameHeader>,
        bytes: &mut VecDeque<u8>,
    ) -> bool {
        if bytes.len() < 2 * self.chunk {
            return false;
        }
        let (mut length, mut count) = (0, 0);
        for header in frames.iter().skip(self.frames) {
            if length >= self.chunk {
                break;
            }
            (length, count) = (length + header.length, count + 1);
        }
        if self.bytes_to_skip > 0 {
            // Called for each frame that is evicted: about one per frame that comes.
            self.bytes_to_skip = self.bytes_to_skip.saturating_sub(length / count.max(1));
            return false;
        }
        let chunk: Vec<u8> = bytes.range(..length).copied().collect();
        let Some(packed) = packing::pack(&chunk) else {
            self.skipped_chunks = (self.skipped_chunks * 2).clamp(1, SKIPPED_CHUNKS_MAX);
            self.bytes_to_skip = self.skipped_chunks * self.chunk;
            return false;
        };
        self.skipped_chunks = 0;
        bytes.drain(..length);
        self.totals.0 += length as u64;
        self.totals.1 += packed.len() as u64;
        self.used += packed.len();
        self.frames += count;
        self.chunks.push_back(Chunk { packed, length, skip: 0, frames: count });
        true
    }

    /// Evicts the oldest frame of the oldest chunk. Returns false if there are no chunks.
    pub(super) fn evict(&mut self, length: usize) -> bool {
        let Some(chunk) = self.chunks.front_mut() else { return false };
        chunk.skip += length;
        chunk.frames -= 1;
        self.frames -= 1;
        if chunk.frames == 0 {
            self.used -= chunk.packed.len();
            self.chunks.pop_front();
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        (self.frames, self.used) = (0, 0);
    }

    /// Returns a reader of all frames in chunks, oldest first.
    pub(super) fn reader(&self) -> ColdReader<'_> {
        ColdReader { chunks: self.chunks.iter(), bytes: Vec::new(), at: 0, left: 0 }
    }
}

/// A reader that decompresses one chunk at a time.
#[derive(Debug)]
pub(super) struct ColdReader<'c> {
    chunks: std::collections::vec_deque::Iter<'c, Chunk>,
    bytes: Vec<u8>,
    at: usize,
    /// Number of frames of the chunk that have not been returned.
    left: usize,
}

impl ColdReader<'_> {
    /// Returns the bytes of the next frame; `None` once all frames in chunks have been returned.
    pub(super) fn next_frame(&mut self, length: usize) -> Option<&[u8]> {
        if self.left == 0 {
            let chunk = self.chunks.next()?;
            self.bytes.resize(chunk.length, 0);
            let is_unpacked = packing::unpack(&chunk.packed, &mut self.bytes);
            debug_assert!(is_unpacked, "a chunk of this history");
            (self.at, self.left) = (chunk.skip, chunk.frames);
        }
        self.left -= 1;
        self.at += length;
        self.bytes.get(self.at - length..self.at)
    }
}
