//! Undoes the content codings of bodies (RFC 9110 §8.4).
//!
//! In: the pieces of a coded body, held until it ends. Out: blocks of the decoded body or, if
//! decoding fails, the pieces unchanged. Output is bounded before it is produced, against
//! decompression bombs.
//!
//! It accepts the deviations that browsers accept: an announced coding that was not applied, gzip
//! with a wrong or missing checksum, `deflate` without the zlib header that RFC 9110 §8.4.1.2
//! requires, a truncated body.

use super::walk::Walk;
use super::why;
use crate::prelude::*;
use abi::BLOCK_MAX;
use brotli_decompressor::Decompressor;
use flate2::{Decompress, FlushDecompress, Status};
use std::io::Read;
use wire::http::{Coding, Codings};

impl Walk<'_, '_, '_> {
    /// Holds the body of the open message from `from` to the current offset.
    pub(super) fn hold_data(&mut self, from: u32) {
        let length = self.at - from;
        let gathered = self.way().gathered.saturating_add(length);
        if gathered as usize > self.options.most {
            self.cx.count(why::TOO_LARGE, 1);
            self.give_up_decoding();
            return self.give_data(from, self.has_ended());
        }
        self.way().gathered = gathered;
        let piece = self.block.narrow(from, length);
        let list = &mut self.it.ways[self.way].held;
        let key = list.len();
        let kept = match std::mem::replace(&mut self.given, true) {
            true => self.cx.keep(list, &piece, key),
            false => self.cx.hold(list, &piece, key),
        };
        if !kept {
            self.way().broken = 1;
            self.give_up_decoding();
        }
    }

    /// Releases the pieces unchanged.
    pub(super) fn give_up_decoding(&mut self) {
        let class = Class(self.way().class);
        self.way().codings = 0;
        self.way().gathered = 0;
        let mut held = std::mem::take(&mut self.way().held);
        let turned = self.turned();
        while !held.is_empty() {
            self.cx.release(&mut held, |block| {
                let mut block = block.with_class(class);
                block.context.flags = turned(block.context.flags);
                block
            });
        }
    }

    /// Emits the decoded body of the held pieces.
    pub(super) fn decode(&mut self) {
        let codings = self.codings();
        self.decoder.input.clear();
        for (_, piece) in self.cx.held(&self.it.ways[self.way].held) {
            self.decoder.input.extend_from_slice(piece.bytes());
        }
        if self.decoder.input.is_empty() {
            return self.give_up_decoding();
        }
        match self.decoder.decode(codings) {
            Ok(whole) => {
                self.cx.count(if whole { why::DECODED } else { why::DECODED_IN_PART }, 1);
                self.give_decoded();
            }
            Err(bad) => {
                let counter = match bad {
                    DecodeError::TooLarge => why::TOO_LARGE,
                    DecodeError::Format => why::NOT_DECODABLE,
                };
                self.cx.count(counter, 1);
                self.give_up_decoding();
            }
        }
    }

    fn give_decoded(&mut self) {
        let mut held = std::mem::take(&mut self.way().held);
        while !held.is_empty() {
            self.cx.forget(&mut held);
        }
        self.way().codings = 0;
        self.way().gathered = 0;
        let class = Class(self.way().class);
        let last = self.last();
        let mut context = self.block.context;
        context.flags = self.turned()(context.flags);
        let mut rest = self.decoder.output.as_slice();
        while !rest.is_empty() {
            let (next, behind) = rest.split_at(rest.len().min(BLOCK_MAX));
            rest = behind;
            if rest.is_empty() {
                context.flags = context.flags.with(last);
                self.it.ways[self.way].owes = 0;
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

/// Cause for which a body cannot be decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DecodeError {
    /// It has another coding than announced, or an unknown one.
    Format,
    /// It would be too large.
    TooLarge,
}

/// A decoder with reusable buffers.
pub(super) struct BodyDecoder {
    ratio: usize,
    most: usize,
    pub(super) input: Vec<u8>,
    output: Vec<u8>,
}

/// Size below which no ratio applies: short runs compress very well.
const RATIO_FREE: usize = 64 * 1024;
/// Output step.
const STEP: usize = 64 * 1024;
/// Maximum nested codings; a session cannot encode more.
const LAYERS: usize = 4;

impl BodyDecoder {
    /// Creates a decoder with at most `most` bytes of output and, beyond 64 KB, `ratio` times the
    /// input.
    pub(super) const fn new(ratio: usize, most: usize) -> Self {
        Self { ratio, most, input: Vec::new(), output: Vec::new() }
    }

    /// Undoes the codings of the input; returns true if the input was complete. A coding that the
    /// bytes do not have counts as announced only.
    fn decode(&mut self, codings: Codings) -> Result<bool, DecodeError> {
        let limit = self.input.len().saturating_mul(self.ratio).max(RATIO_FREE).min(self.most);
        let (mut whole, mut undone) = (true, false);
        for coding in codings.outermost_first().take(LAYERS) {
            self.output.clear();
            match undo(coding, &self.input, &mut self.output, limit) {
                Ok(ended) => {
                    (whole, undone) = (whole && ended, true);
                    std::mem::swap(&mut self.input, &mut self.output);
                }
                Err(DecodeError::TooLarge) => return Err(DecodeError::TooLarge),
                Err(DecodeError::Format) => {}
            }
        }
        std::mem::swap(&mut self.input, &mut self.output);
        self.input.shrink_to(STEP);
        if undone { Ok(whole) } else { Err(DecodeError::Format) }
    }
}

/// Undoes one coding; returns true if the coded form was complete.
fn undo(
    coding: Coding,
    bytes: &[u8],
    out: &mut Vec<u8>,
    limit: usize,
) -> Result<bool, DecodeError> {
    match coding {
        Coding::Gzip => gunzip(bytes, out, limit),
        Coding::Deflate => {
            let zlib = matches!(bytes, [cmf, flg, ..]
                if cmf & 0x0f == 8 && u16::from_be_bytes([*cmf, *flg]).is_multiple_of(31));
            if zlib {
                let (end, _) = inflate(bytes.get(2..).unwrap_or_default(), out, limit)?;
                if end != End::Corrupt || !out.is_empty() {
                    return Ok(end == End::Whole);
                }
            }
            out.clear();
            match inflate(bytes, out, limit)? {
                (End::Corrupt, _) => Err(DecodeError::Format),
                (end, _) if !out.is_empty() => Ok(end == End::Whole),
                _ => Err(DecodeError::Format),
            }
        }
        Coding::Brotli => unbrotli(bytes, out, limit),
        Coding::Other => Err(DecodeError::Format),
    }
}

/// The end of a coded form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// Regular.
    Whole,
    /// Premature.
    Cut,
    /// Invalid contents.
    Corrupt,
}

/// Decodes consecutive gzip members (RFC 1952). Checksums are ignored.
fn gunzip(bytes: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, DecodeError> {
    const TRAILER: usize = 8;
    let mut rest = behind_gzip_header(bytes).ok_or(DecodeError::Format)?;
    loop {
        let (end, taken) = inflate(rest, out, limit)?;
        if end != End::Whole {
            return if out.is_empty() { Err(DecodeError::Format) } else { Ok(false) };
        }
        let behind = rest.get(taken..).unwrap_or_default();
        let next = behind.get(TRAILER..).and_then(behind_gzip_header);
        match next {
            Some(next) => rest = next,
            None => return Ok(behind.len() >= TRAILER),
        }
    }
}

fn behind_gzip_header(bytes: &[u8]) -> Option<&[u8]> {
    const CHECKSUM: u8 = 1 << 1;
    const EXTRA: u8 = 1 << 2;
    const NAME: u8 = 1 << 3;
    const COMMENT: u8 = 1 << 4;
    let [0x1f, 0x8b, 8, flags, _, _, _, _, _, _, rest @ ..] = bytes else { return None };
    let mut rest = rest;
    if flags & EXTRA != 0 {
        let (length, behind) = rest.split_first_chunk()?;
        rest = behind.get(usize::from(u16::from_le_bytes(*length))..)?;
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let end = memchr::memchr(0, rest)?;
            rest = rest.get(end + 1..)?;
        }
    }
    if flags & CHECKSUM != 0 {
        rest = rest.get(2..)?;
    }
    Some(rest)
}

/// Inflates raw deflate (RFC 1951); returns the kind of end and the bytes consumed.
fn inflate(bytes: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<(End, usize), DecodeError> {
    let mut inflate = Decompress::new(false);
    loop {
        let (taken, made) = (inflate.total_in() as usize, out.len());
        if made > limit {
            return Err(DecodeError::TooLarge);
        }
        // One byte beyond the limit distinguishes too large from exactly full.
        out.resize(made + STEP.min(limit + 1 - made), 0);
        let before = inflate.total_out();
        let room = out.get_mut(made..).unwrap_or_default();
        let full = room.len();
        let input = bytes.get(taken..).unwrap_or_default();
        let step = inflate.decompress(input, room, FlushDecompress::None);
        let used = (inflate.total_out() - before) as usize;
        out.truncate(made + used);
        if out.len() > limit {
            return Err(DecodeError::TooLarge);
        }
        let taken = inflate.total_in() as usize;
        match step {
            Err(_) => return Ok((End::Corrupt, taken)),
            Ok(Status::StreamEnd) => return Ok((End::Whole, taken)),
            Ok(Status::Ok | Status::BufError) if used == full => {}
            Ok(Status::Ok | Status::BufError) => return Ok((End::Cut, taken)),
        }
    }
}

fn unbrotli(bytes: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<bool, DecodeError> {
    let mut reader = Decompressor::new(bytes, 4096).take(limit as u64 + 1);
    let read = reader.read_to_end(out);
    match read {
        _ if out.len() > limit => Err(DecodeError::TooLarge),
        Ok(_) => Ok(true),
        Err(_) if out.is_empty() => Err(DecodeError::Format),
        Err(_) => Ok(false),
    }
}
