//! Decoding of bodies with content codings (RFC 9110 §8.4).
//!
//! Input: the pieces of a coded body, held until it ends. Output: blocks of the decoded body or, if
//! decoding fails, the pieces unchanged. The output size is limited during decoding, so that a
//! decompression bomb cannot exhaust memory.
//!
//! Decoding tolerates the same deviations as browsers: an announced coding that was not applied,
//! gzip with a wrong or missing checksum, `deflate` without the zlib header that RFC 9110 §8.4.1.2
//! requires, a truncated body.

use super::reasons;
use super::walk::BlockWalk;
use crate::prelude::*;
use abi::BLOCK_LENGTH_MAX;
use brotli_decompressor::Decompressor;
use flate2::{Decompress, FlushDecompress, Status};
use std::io::Read;
use wire::http::{ContentCoding, ContentCodings};

impl BlockWalk<'_, '_, '_> {
    /// Holds a piece of the open message's coded body: the block's bytes from offset `from` to the
    /// current offset. If the held body becomes too large, abandons the decoding and emits the
    /// bytes. A piece that cannot be held is lost; in that case, abandons the decoding and marks
    /// the message as broken.
    pub(super) fn hold_body_piece(&mut self, from: u32) {
        let length = self.offset - from;
        let gathered = self.direction().held_bytes.saturating_add(length);
        if gathered as usize > self.options.decoded_max {
            self.cx.count(reasons::BODIES_TOO_LARGE, 1);
            self.abandon_decoding();
            return self.emit_body_bytes(from, self.body_has_ended());
        }
        self.direction().held_bytes = gathered;
        let piece = self.block.narrow(from, length);
        let list = &mut self.connection.directions[self.direction].held;
        let kept = self.cx.hold_block_part(list, &piece, &mut self.has_emitted);
        if !kept {
            self.direction().is_broken = 1;
            self.abandon_decoding();
        }
    }

    /// Abandons the decoding of the body, and emits its held pieces unchanged.
    pub(super) fn abandon_decoding(&mut self) {
        let class = Class(self.direction().class);
        self.direction().codings = 0;
        self.direction().held_bytes = 0;
        let mut held = std::mem::take(&mut self.direction().held);
        let to_flags = self.message_flags_function();
        while !held.is_empty() {
            self.cx.release_front_block(&mut held, |block| {
                let mut block = block.with_class(class);
                block.context.flags = to_flags(block.context.flags);
                block
            });
        }
    }

    /// Decodes the held pieces of the body and emits the decoded bytes or, if decoding fails, the
    /// pieces. Marks the message as broken if the coded body is truncated.
    pub(super) fn decode_body(&mut self) {
        let codings = self.content_codings();
        self.cx.gather_views(
            &self.connection.directions[self.direction].held,
            &mut self.decoder.input,
        );
        if self.decoder.input.is_empty() {
            return self.abandon_decoding();
        }
        let decoded = self.decoder.decode(codings);
        let (Ok(counter) | Err(counter)) = decoded;
        self.cx.count(counter, 1);
        if decoded == Ok(reasons::PARTLY_DECODED_BODIES) {
            self.direction().is_broken = 1;
        }
        if decoded.is_ok() { self.emit_decoded_body() } else { self.abandon_decoding() }
    }

    fn emit_decoded_body(&mut self) {
        let mut held = std::mem::take(&mut self.direction().held);
        while !held.is_empty() {
            self.cx.consume_front_block(&mut held);
        }
        self.direction().codings = 0;
        self.direction().held_bytes = 0;
        let class = Class(self.direction().class);
        let last = self.last_fragment_flag();
        let mut context = self.block.context;
        context.flags = self.message_flags_function()(context.flags).with(BlockFlags::DECODED);
        if self.decoder.output.is_empty() {
            self.direction().owes_last_fragment = 0;
            context.flags = context.flags.with(last);
            let empty = self.block.narrow(self.offset, 0).with_class(class);
            return self.emit_piece(Block { context, ..empty });
        }
        let mut rest = self.decoder.output.as_slice();
        while !rest.is_empty() {
            let (next, after) = rest.split_at(rest.len().min(BLOCK_LENGTH_MAX));
            rest = after;
            if rest.is_empty() {
                context.flags = context.flags.with(last);
                self.connection.directions[self.direction].owes_last_fragment = 0;
            }
            self.cx.append(next.len(), class, context, |room| {
                let length = next.len().min(room.len());
                if let (Some(room), Some(bytes)) = (room.get_mut(..length), next.get(..length)) {
                    room.copy_from_slice(bytes);
                }
                length
            });
        }
    }
}

/// A decoder for content codings, with reusable buffers.
pub(super) struct BodyDecoder {
    ratio: usize,
    output_max: usize,
    pub(super) input: Vec<u8>,
    output: Vec<u8>,
}

/// Output size in bytes up to which the ratio of output to input is not limited, because short
/// repetitive bodies have a high compression ratio.
const UNLIMITED_RATIO_SIZE_MAX: usize = 64 * 1024;
/// Number of bytes by which the output buffer grows at a time.
const OUTPUT_GROWTH_BYTES: usize = 64 * 1024;
/// Maximum number of nested codings that are decoded, which is also the maximum that the state of a
/// session can store.
const CODINGS_MAX: usize = 4;

impl BodyDecoder {
    /// Creates a decoder that produces at most `output_max` bytes per body. The output of a coding
    /// is also limited to `ratio` times the coded body, but not to less than 64 KiB.
    pub(super) const fn new(ratio: usize, output_max: usize) -> Self {
        Self { ratio, output_max, input: Vec::new(), output: Vec::new() }
    }

    /// Decodes a body by undoing its codings, the last applied one first. Skips a coding that
    /// cannot be undone, because a sender may announce a coding without applying it. Decodes
    /// nothing if the list contains a registered coding without a decoder, under which the content
    /// would remain coded. Returns the counter to increment: as `Ok` after success, as `Err` after
    /// a failure.
    fn decode(&mut self, codings: ContentCodings) -> Result<Counter, Counter> {
        if codings.iter_outermost_first().any(|coding| coding == ContentCoding::OtherRegistered) {
            return Err(reasons::UNDECODABLE_BODIES);
        }
        let limit = self
            .input
            .len()
            .saturating_mul(self.ratio)
            .max(UNLIMITED_RATIO_SIZE_MAX)
            .min(self.output_max);
        let (mut whole, mut undone) = (true, false);
        for coding in codings.iter_outermost_first().take(CODINGS_MAX) {
            self.output.clear();
            match decode_content_coding(coding, &self.input, &mut self.output, limit) {
                Ok(ended) => {
                    (whole, undone) = (whole && ended, true);
                    std::mem::swap(&mut self.input, &mut self.output);
                }
                Err(reasons::BODIES_TOO_LARGE) => return Err(reasons::BODIES_TOO_LARGE),
                Err(_) => {}
            }
        }
        std::mem::swap(&mut self.input, &mut self.output);
        self.input.shrink_to(OUTPUT_GROWTH_BYTES);
        match undone {
            true if whole => Ok(reasons::DECODED_BODIES),
            true => Ok(reasons::PARTLY_DECODED_BODIES),
            false => Err(reasons::UNDECODABLE_BODIES),
        }
    }
}

/// Undoes one coding and stores the decoded bytes in `out`, which must be empty. Returns true if
/// the coded input was complete. Fails with the counter to increment if nothing can be decoded, or
/// if the output exceeds `limit` bytes.
fn decode_content_coding(
    coding: ContentCoding,
    bytes: &[u8],
    out: &mut Vec<u8>,
    limit: usize,
) -> Result<bool, Counter> {
    match coding {
        ContentCoding::Gzip => gunzip(bytes, out, limit),
        ContentCoding::Deflate => {
            let zlib = matches!(bytes, [cmf, flg, ..]
                if cmf & 0x0f == 8 && u16::from_be_bytes([*cmf, *flg]).is_multiple_of(31));
            if zlib {
                let (end, _) = inflate(bytes.get(2..).unwrap_or_default(), out, limit)?;
                if end != InflateOutcome::Corrupt || !out.is_empty() {
                    return Ok(end == InflateOutcome::Complete);
                }
            }
            out.clear();
            match inflate(bytes, out, limit)? {
                // An empty body, if nothing follows its deflate stream.
                (InflateOutcome::Complete, taken) if taken == bytes.len() => Ok(true),
                (end, _) if end != InflateOutcome::Corrupt && !out.is_empty() => {
                    Ok(end == InflateOutcome::Complete)
                }
                _ => Err(reasons::UNDECODABLE_BODIES),
            }
        }
        ContentCoding::Brotli => decode_brotli(bytes, out, limit),
        ContentCoding::OtherRegistered | ContentCoding::Unknown => Err(reasons::UNDECODABLE_BODIES),
    }
}

/// The result of inflating a deflate stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InflateOutcome {
    /// The decoder has reached the end of the deflate stream.
    Complete,
    /// The input is truncated.
    Truncated,
    /// The input is invalid.
    Corrupt,
}

/// Decodes consecutive gzip members (RFC 1952) without checking their checksums. Returns false if
/// the last member is truncated, or corrupt after some output. Fails with the counter to increment
/// if no byte can be decoded, or if the output exceeds `limit` bytes.
fn gunzip(bytes: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, Counter> {
    const TRAILER_SIZE: usize = 8;
    let mut rest = skip_gzip_header(bytes).ok_or(reasons::UNDECODABLE_BODIES)?;
    loop {
        let (end, taken) = inflate(rest, out, limit)?;
        if end != InflateOutcome::Complete {
            return if out.is_empty() { Err(reasons::UNDECODABLE_BODIES) } else { Ok(false) };
        }
        let trailer = rest.get(taken..).unwrap_or_default();
        let next = trailer.get(TRAILER_SIZE..).and_then(skip_gzip_header);
        match next {
            Some(next) => rest = next,
            None => return Ok(trailer.len() >= TRAILER_SIZE),
        }
    }
}

fn skip_gzip_header(bytes: &[u8]) -> Option<&[u8]> {
    const CHECKSUM_FLAG: u8 = 1 << 1;
    const EXTRA_FLAG: u8 = 1 << 2;
    const NAME_FLAG: u8 = 1 << 3;
    const COMMENT_FLAG: u8 = 1 << 4;
    let [0x1f, 0x8b, 8, flags, _, _, _, _, _, _, rest @ ..] = bytes else { return None };
    let mut rest = rest;
    if flags & EXTRA_FLAG != 0 {
        let (length, after) = rest.split_first_chunk()?;
        rest = after.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    for text in [NAME_FLAG, COMMENT_FLAG] {
        if flags & text != 0 {
            let end = memchr::memchr(0, rest)?;
            rest = rest.get(end + 1..)?;
        }
    }
    if flags & CHECKSUM_FLAG != 0 {
        rest = rest.get(2..)?;
    }
    Some(rest)
}

/// Inflates raw deflate data (RFC 1951). Returns how the data ended, and the number of bytes
/// consumed. Fails with the counter to increment if the output exceeds `limit` bytes.
fn inflate(
    bytes: &[u8],
    out: &mut Vec<u8>,
    limit: usize,
) -> Result<(InflateOutcome, usize), Counter> {
    let mut inflate = Decompress::new(false);
    loop {
        // The output may exceed the limit by one byte, to distinguish a body that is too large from
        // a body of exactly the maximum size.
        out.reserve(OUTPUT_GROWTH_BYTES.min(limit + 1 - out.len()));
        let rest = bytes.get(inflate.total_in() as usize..).unwrap_or_default();
        let step = inflate.decompress_vec(rest, out, FlushDecompress::None);
        if out.len() > limit {
            return Err(reasons::BODIES_TOO_LARGE);
        }
        let end = match step {
            Err(_) => InflateOutcome::Corrupt,
            Ok(Status::StreamEnd) => InflateOutcome::Complete,
            Ok(Status::Ok | Status::BufError) if out.len() == out.capacity() => continue,
            Ok(Status::Ok | Status::BufError) => InflateOutcome::Truncated,
        };
        return Ok((end, inflate.total_in() as usize));
    }
}

fn decode_brotli(bytes: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, Counter> {
    let mut reader = Decompressor::new(bytes, 4096).take(limit as u64 + 1);
    let read = reader.read_to_end(out);
    match read {
        _ if out.len() > limit => Err(reasons::BODIES_TOO_LARGE),
        Ok(_) => Ok(true),
        Err(_) if out.is_empty() => Err(reasons::UNDECODABLE_BODIES),
        Err(_) => Ok(false),
    }
}
