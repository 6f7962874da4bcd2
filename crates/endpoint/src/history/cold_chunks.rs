//! The compressed part of a history: chunks of the oldest frames.
//!
//! A chunk holds complete frames and is compressed once. If a chunk does not shrink (ciphertext,
//! for example), compression is suspended: the frames of the next chunks stay uncompressed. The
//! number of these chunks doubles with each chunk in a row that does not shrink.

use super::FrameHeader;
use super::compression_thread::{CompressionJob, CompressionThread};
use buffer::compression;
use std::collections::VecDeque;
use std::sync::Arc;

/// Minimum size in bytes of the frames that are compressed together as one chunk.
const CHUNK_BYTES_MIN: usize = 16 << 10;
/// Maximum size in bytes of the frames that are compressed together as one chunk.
const CHUNK_BYTES_MAX: usize = 256 << 10;
/// Maximum number of chunks for which compression is suspended after a chunk that did not shrink.
const SKIPPED_CHUNKS_MAX: usize = 64;

/// The chunks of a history, oldest first.
#[derive(Debug)]
pub(super) struct ColdChunks {
    chunks: VecDeque<Chunk>,
    /// Number of bytes of uncompressed frames from which the next chunk is formed.
    chunk_size: usize,
    /// Number of frames in all chunks together.
    frame_count: usize,
    /// Size of all chunks in bytes, as they are stored.
    stored_size: usize,
    /// Number of bytes that must arrive before compression resumes. Greater than 0 while
    /// compression is suspended, after a chunk that did not shrink.
    bytes_to_skip: usize,
    /// Number of chunks for which compression was suspended after the latest chunk that did not
    /// shrink. Doubles with each such chunk, up to [`SKIPPED_CHUNKS_MAX`]; 0 after a chunk that
    /// shrank.
    chunks_to_skip: usize,
    /// Number of chunks that the compression thread has received and not finished. They are the
    /// newest chunks.
    sent: usize,
    /// Total size in bytes of all chunks that were compressed so far: before compression, and
    /// after.
    totals: (u64, u64),
}

/// A group of frames that are compressed together.
#[derive(Debug)]
struct Chunk {
    bytes: ChunkBytes,
    length: usize,
    /// Number of bytes at the start of the chunk that belong to evicted frames.
    evicted_bytes: usize,
    /// Number of frames of the chunk that have not been evicted.
    frames_left: usize,
}

/// The bytes of a chunk, in the form in which they are stored.
#[derive(Debug)]
enum ChunkBytes {
    Packed(Box<[u8]>),
    /// Uncompressed bytes, which did not shrink or for which there was no compression thread.
    Plain(Vec<u8>),
    /// Bytes that the compression thread has received, and whose compressed form has not been
    /// collected yet.
    Sent(Arc<CompressionJob>),
}

impl ColdChunks {
    pub(super) const fn new(limit: usize) -> Self {
        let chunk = limit / 16;
        let chunk = if chunk < CHUNK_BYTES_MIN { CHUNK_BYTES_MIN } else { chunk };
        let chunk = if chunk > CHUNK_BYTES_MAX { CHUNK_BYTES_MAX } else { chunk };
        let chunks = VecDeque::new();
        Self {
            chunks,
            chunk_size: chunk,
            frame_count: 0,
            stored_size: 0,
            bytes_to_skip: 0,
            chunks_to_skip: 0,
            sent: 0,
            totals: (0, 0),
        }
    }

    pub(super) const fn stored_size(&self) -> usize {
        self.stored_size
    }

    pub(super) const fn compression_totals(&self) -> (u64, u64) {
        self.totals
    }

    /// Compresses the oldest uncompressed bytes in this thread, and appends them as a chunk.
    /// `frames` are the headers of all stored frames. Returns false if there are too few bytes, if
    /// the bytes do not shrink, or while compression is suspended.
    pub(super) fn compress_oldest_chunk(
        &mut self,
        frames: &VecDeque<FrameHeader>,
        bytes: &mut VecDeque<u8>,
    ) -> bool {
        let Some((length, count)) = self.measure_next_chunk(frames, bytes.len()) else {
            return false;
        };
        let chunk = copy_queue_front(bytes, length);
        let Some(packed) = compression::compress(&chunk) else {
            self.suspend_compression();
            return false;
        };
        bytes.drain(..length);
        let stored = packed.len();
        self.record_compressed_chunk(length, stored);
        self.push(ChunkBytes::Packed(packed), length, stored, count);
        true
    }

    /// Hands the oldest uncompressed bytes to the compression thread, as one chunk. Does nothing if
    /// the queue of the thread is full, if there are too few bytes, or while compression is
    /// suspended. If there is no thread, the chunk stays uncompressed.
    pub(super) fn send_oldest_chunk(
        &mut self,
        frames: &VecDeque<FrameHeader>,
        bytes: &mut VecDeque<u8>,
        packer: &mut CompressionThread,
    ) {
        // Jobs whose chunks were evicted also occupy the thread. A later call tries again.
        if packer.is_full() {
            return;
        }
        let Some((length, count)) = self.measure_next_chunk(frames, bytes.len()) else { return };
        let chunk = copy_queue_front(bytes, length);
        bytes.drain(..length);
        let chunk = match packer.send(chunk) {
            Ok(job) => {
                self.sent += 1;
                ChunkBytes::Sent(job)
            }
            // Without a thread, the bytes remain uncompressed.
            Err(bytes) => ChunkBytes::Plain(bytes),
        };
        self.push(chunk, length, length, count);
    }

    /// Collects the results of the compression thread, which replace the uncompressed bytes of
    /// their chunks. Suspends compression if a chunk did not shrink.
    pub(super) fn collect_results(&mut self) {
        while self.sent > 0 {
            let first = self.chunks.len() - self.sent;
            let Some(chunk) = self.chunks.get_mut(first) else { return };
            let ChunkBytes::Sent(job) = &mut chunk.bytes else { return };
            // The thread may hold its reference to the job for a short time after it has set the
            // result.
            let Some(job) = job.is_done().then(|| Arc::get_mut(job)).flatten() else { return };
            let (plain, packed) = job.take_bytes();
            let length = chunk.length;
            self.sent -= 1;
            match packed {
                Some(packed) => {
                    let stored = packed.len();
                    chunk.bytes = ChunkBytes::Packed(packed);
                    self.stored_size = self.stored_size - length + stored;
                    self.record_compressed_chunk(length, stored);
                }
                None => {
                    chunk.bytes = ChunkBytes::Plain(plain);
                    self.suspend_compression();
                }
            }
        }
    }

    /// Returns the length in bytes and the number of frames of the next chunk to compress. Returns
    /// `None` if there are too few uncompressed bytes. While compression is suspended, also returns
    /// `None`, and shortens the suspension by the mean length of a frame.
    fn measure_next_chunk(
        &mut self,
        frames: &VecDeque<FrameHeader>,
        uncompressed: usize,
    ) -> Option<(usize, usize)> {
        if uncompressed < 2 * self.chunk_size {
            return None;
        }
        let (mut length, mut count) = (0, 0);
        for header in frames.iter().skip(self.frame_count) {
            if length >= self.chunk_size {
                break;
            }
            (length, count) = (length + header.length, count + 1);
        }
        if self.bytes_to_skip > 0 {
            // This function is called about once for each arriving frame.
            self.bytes_to_skip = self.bytes_to_skip.saturating_sub(length / count.max(1));
            return None;
        }
        Some((length, count))
    }

    /// Suspends compression after a chunk that did not shrink. The suspension lasts twice as many
    /// chunks as the previous one, at most [`SKIPPED_CHUNKS_MAX`].
    fn suspend_compression(&mut self) {
        self.chunks_to_skip = (self.chunks_to_skip * 2).clamp(1, SKIPPED_CHUNKS_MAX);
        self.bytes_to_skip = self.chunks_to_skip * self.chunk_size;
    }

    fn record_compressed_chunk(&mut self, length: usize, packed: usize) {
        self.chunks_to_skip = 0;
        self.totals.0 += length as u64;
        self.totals.1 += packed as u64;
    }

    fn push(&mut self, bytes: ChunkBytes, length: usize, stored: usize, frames_left: usize) {
        self.stored_size += stored;
        self.frame_count += frames_left;
        self.chunks.push_back(Chunk { bytes, length, evicted_bytes: 0, frames_left });
    }

    /// Evicts the oldest frame of the oldest chunk. `length` is the length of the frame. Returns
    /// false if there are no chunks.
    pub(super) fn evict_oldest_frame(&mut self, length: usize) -> bool {
        let Some(chunk) = self.chunks.front_mut() else { return false };
        chunk.evicted_bytes += length;
        chunk.frames_left -= 1;
        self.frame_count -= 1;
        if chunk.frames_left == 0 {
            self.stored_size -= chunk.stored_size();
            self.chunks.pop_front();
            self.sent = self.sent.min(self.chunks.len());
        }
        true
    }

    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        (self.frame_count, self.stored_size, self.sent) = (0, 0, 0);
    }

    /// Returns a reader of all frames in chunks, oldest first.
    pub(super) fn reader(&self) -> ColdReader<'_> {
        ColdReader { chunks: self.chunks.iter(), bytes: Vec::new(), at: 0, frames_left: 0 }
    }
}

impl Chunk {
    fn stored_size(&self) -> usize {
        match &self.bytes {
            ChunkBytes::Packed(packed) => packed.len(),
            ChunkBytes::Plain(_) | ChunkBytes::Sent(_) => self.length,
        }
    }
}

/// Copies the first `length` bytes of a queue.
fn copy_queue_front(bytes: &VecDeque<u8>, length: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(length);
    let (front, back) = bytes.as_slices();
    all.extend_from_slice(front.get(..length).unwrap_or(front));
    all.extend_from_slice(back.get(..length - all.len()).unwrap_or_default());
    all
}

/// A reader of the frames in the compressed part of a history. Decompresses one chunk at a time.
#[derive(Debug)]
pub(super) struct ColdReader<'c> {
    chunks: std::collections::vec_deque::Iter<'c, Chunk>,
    bytes: Vec<u8>,
    at: usize,
    /// Number of frames in the current chunk that the reader has not returned yet.
    frames_left: usize,
}

impl ColdReader<'_> {
    /// Returns the bytes of the next frame, or `None` after the last frame in the chunks. `length`
    /// must be the length of this frame in bytes.
    pub(super) fn next_frame(&mut self, length: usize) -> Option<&[u8]> {
        if self.frames_left == 0 {
            let chunk = self.chunks.next()?;
            match &chunk.bytes {
                ChunkBytes::Packed(packed) => {
                    self.bytes.resize(chunk.length, 0);
                    let is_unpacked = compression::decompress(packed, &mut self.bytes);
                    debug_assert!(is_unpacked, "a chunk of this history");
                }
                ChunkBytes::Plain(plain) => self.bytes.clone_from(plain),
                ChunkBytes::Sent(job) => {
                    self.bytes.clear();
                    self.bytes.extend_from_slice(job.uncompressed_bytes());
                }
            }
            (self.at, self.frames_left) = (chunk.evicted_bytes, chunk.frames_left);
        }
        self.frames_left -= 1;
        self.at += length;
        self.bytes.get(self.at - length..self.at)
    }
}
