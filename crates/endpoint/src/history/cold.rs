//! The compressed part of a history: chunks of its oldest frames.
//!
//! A chunk holds complete frames and is compressed once. If a chunk does not shrink (ciphertext,
//! for example), a number of following chunks is not compressed at all. This number doubles after
//! each failure.

use super::FrameHeader;
use buffer::compression;
use std::collections::VecDeque;

/// Minimum size of a chunk before compression, in bytes.
const CHUNK_MIN: usize = 16 << 10;
/// Maximum size of a chunk before compression, in bytes.
const CHUNK_MAX: usize = 256 << 10;
/// Maximum number of chunks skipped after a chunk that did not shrink.
const SKIPPED_CHUNKS_MAX: usize = 64;

/// The compressed chunks of a history, oldest first.
#[derive(Debug)]
pub(super) struct ColdChunks {
    chunks: VecDeque<Chunk>,
    /// Size of a chunk in bytes before compression.
    chunk_size: usize,
    /// Number of frames in all chunks together.
    frame_count: usize,
    /// Compressed size of all chunks in bytes.
    compressed_size: usize,
    /// Number of bytes that must arrive before the next attempt to compress. Greater than 0 after a
    /// chunk that did not shrink.
    bytes_to_skip: usize,
    /// Number of chunks skipped after the last chunk that did not shrink.
    skipped_chunks: usize,
    /// Total number of bytes compressed so far, and their total size after compression.
    totals: (u64, u64),
}

/// A group of frames that were compressed together.
#[derive(Debug)]
struct Chunk {
    packed: Box<[u8]>,
    length: usize,
    /// Number of bytes at the start of the chunk that belong to evicted frames.
    evicted_bytes: usize,
    /// Number of frames that have not been evicted.
    frames_left: usize,
}

impl ColdChunks {
    pub(super) const fn new(limit: usize) -> Self {
        let chunk = limit / 16;
        let chunk = if chunk < CHUNK_MIN { CHUNK_MIN } else { chunk };
        let chunk = if chunk > CHUNK_MAX { CHUNK_MAX } else { chunk };
        let chunks = VecDeque::new();
        Self {
            chunks,
            chunk_size: chunk,
            frame_count: 0,
            compressed_size: 0,
            bytes_to_skip: 0,
            skipped_chunks: 0,
            totals: (0, 0),
        }
    }

    pub(super) const fn compressed_size(&self) -> usize {
        self.compressed_size
    }

    pub(super) const fn totals(&self) -> (u64, u64) {
        self.totals
    }

    /// Compresses the oldest uncompressed bytes. `frames` are the headers of all stored frames.
    /// Returns false if there are too few bytes, if they do not shrink, or while chunks are
    /// skipped.
    pub(super) fn compress_oldest(
        &mut self,
        frames: &VecDeque<FrameHeader>,
        bytes: &mut VecDeque<u8>,
    ) -> bool {
        if bytes.len() < 2 * self.chunk_size {
            return false;
        }
        let (mut length, mut count) = (0, 0);
        for header in frames.iter().skip(self.frame_count) {
            if length >= self.chunk_size {
                break;
            }
            (length, count) = (length + header.length, count + 1);
        }
        if self.bytes_to_skip > 0 {
            // This is called for each evicted frame, which is about one for each arriving frame.
            self.bytes_to_skip = self.bytes_to_skip.saturating_sub(length / count.max(1));
            return false;
        }
        let chunk: Vec<u8> = bytes.range(..length).copied().collect();
        let Some(packed) = compression::compress(&chunk) else {
            self.skipped_chunks = (self.skipped_chunks * 2).clamp(1, SKIPPED_CHUNKS_MAX);
            self.bytes_to_skip = self.skipped_chunks * self.chunk_size;
            return false;
        };
        self.skipped_chunks = 0;
        bytes.drain(..length);
        self.totals.0 += length as u64;
        self.totals.1 += packed.len() as u64;
        self.compressed_size += packed.len();
        self.frame_count += count;
        self.chunks.push_back(Chunk { packed, length, evicted_bytes: 0, frames_left: count });
        true
    }

    /// Evicts the oldest frame of the oldest chunk. `length` is the length of the frame. Returns
    /// false if there are no chunks.
    pub(super) fn evict_oldest_frame(&mut self, length: usize) -> bool {
        let Some(chunk) = self.chunks.front_mut() else { return false };
        chunk.evicted_bytes += length;
        chunk.frames_left -= 1;
        self.frame_count -= 1;
        if chunk.frames_left == 0 {
            self.compressed_size -= chunk.packed.len();
            self.chunks.pop_front();
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        (self.frame_count, self.compressed_size) = (0, 0);
    }

    /// Returns a reader of all frames in chunks, oldest first.
    pub(super) fn reader(&self) -> ColdReader<'_> {
        ColdReader { chunks: self.chunks.iter(), bytes: Vec::new(), at: 0, frames_left: 0 }
    }
}

/// A reader that decompresses one chunk at a time.
#[derive(Debug)]
pub(super) struct ColdReader<'c> {
    chunks: std::collections::vec_deque::Iter<'c, Chunk>,
    bytes: Vec<u8>,
    at: usize,
    /// Number of frames in the chunk that have not been returned yet.
    frames_left: usize,
}

impl ColdReader<'_> {
    /// Returns the bytes of the next frame, or `None` after the last frame in the chunks.
    pub(super) fn next_frame(&mut self, length: usize) -> Option<&[u8]> {
        if self.frames_left == 0 {
            let chunk = self.chunks.next()?;
            self.bytes.resize(chunk.length, 0);
            let is_unpacked = compression::decompress(&chunk.packed, &mut self.bytes);
            debug_assert!(is_unpacked, "a chunk of this history");
            (self.at, self.frames_left) = (chunk.evicted_bytes, chunk.frames_left);
        }
        self.frames_left -= 1;
        self.at += length;
        self.bytes.get(self.at - length..self.at)
    }
}
