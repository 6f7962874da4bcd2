//! The LZ4 frame format, specification 1.6.4.
//!
//! Input: bytes that begin with one frame. Output: the contents of the frame, appended to a buffer.
//! `lz4_flex` decodes the blocks. The frame is parsed here, because the reader of that crate
//! allocates and zeroes as much memory as the frame header claims (up to 8 MB), and accepts a frame
//! truncated between two blocks. Dictionaries, legacy and skippable frames are rejected.

use super::codec::CodecError;
use lz4_flex::block::{DecompressError, decompress_into_with_dict};
use lz4_flex::frame::{FrameEncoder, FrameInfo};
use std::hash::Hasher;
use std::io::Write;
use twox_hash::XxHash32;

const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
/// Size of the LZ4 window in bytes. A match repeats earlier decoded bytes, which begin at most this
/// far back, possibly in an earlier block of the frame.
const WINDOW_SIZE: usize = 64 * 1024;
/// Flag in the size field of an LZ4 block: the block is not compressed.
const UNCOMPRESSED_FLAG: u32 = 1 << 31;

/// Returns true if `bytes` begin like an LZ4 frame: with its magic number or, if `bytes` are
/// shorter, with a part of it. Returns false if `bytes` are empty.
pub(super) fn has_magic_prefix(bytes: &[u8]) -> bool {
    let here = bytes.get(..MAGIC.len()).unwrap_or(bytes);
    !here.is_empty() && MAGIC.starts_with(here)
}

/// Appends an LZ4 frame with the contents `bytes` to `out`, including content size and checksum.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let info = FrameInfo::new().content_size(Some(bytes.len() as u64)).content_checksum(true);
    let mut encoder = FrameEncoder::with_frame_info(info, out);
    encoder.write_all(bytes).map_err(|_| CodecError::TooLarge)?;
    encoder.finish().map(|_| ()).map_err(|_| CodecError::TooLarge)
}

/// Decodes the LZ4 frame at the start of `bytes`. Writes the contents to `out`, from offset `used`
/// on. Returns the number of bytes read from `bytes`, and the offset in `out` at which the contents
/// end. This offset is at most `limit`.
pub(super) fn decode(
    bytes: &[u8],
    out: &mut Vec<u8>,
    used: usize,
    limit: usize,
) -> Result<(usize, usize), CodecError> {
    let mut at = Reader { bytes, at: 0 };
    let header = FrameHeader::read(&mut at)?;
    let mut made = used;
    loop {
        let size = at.read_le32()?;
        if size == 0 {
            break;
        }
        let length = (size & !UNCOMPRESSED_FLAG) as usize;
        if length > header.block_max {
            return Err(CodecError::Corrupt);
        }
        let block = at.read_bytes(length)?;
        if header.block_checksums && at.read_le32()? != checksum(block) {
            return Err(CodecError::Corrupt);
        }
        let room = header.block_max.min(limit - made);
        if out.len() < made + room {
            out.resize(made + room, 0);
        }
        // A linked block refers back into its own frame, never into a previous one.
        let reach = if header.linked { (made - used).min(WINDOW_SIZE) } else { 0 };
        let (before, output) = out.split_at_mut(made);
        let dictionary = before.get(made - reach..).unwrap_or_default();
        let output = output.get_mut(..room).unwrap_or_default();
        made += match size & UNCOMPRESSED_FLAG {
            0 => decode_block(block, output, dictionary, header.block_max)?,
            _ => copy_uncompressed_block(block, output)?,
        };
    }
    let contents = out.get(used..made).unwrap_or_default();
    if header.content_checksum && at.read_le32()? != checksum(contents) {
        return Err(CodecError::Corrupt);
    }
    match header.content_size {
        Some(size) if size != contents.len() as u64 => Err(CodecError::Corrupt),
        _ => Ok((at.at, made)),
    }
}

fn decode_block(
    block: &[u8],
    out: &mut [u8],
    before: &[u8],
    block_max: usize,
) -> Result<usize, CodecError> {
    match decompress_into_with_dict(block, out, before) {
        Ok(made) => Ok(made),
        Err(DecompressError::OutputTooSmall { .. }) if out.len() < block_max => {
            Err(CodecError::TooLarge)
        }
        Err(_) => Err(CodecError::Corrupt),
    }
}

fn copy_uncompressed_block(block: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    out.get_mut(..block.len()).ok_or(CodecError::TooLarge)?.copy_from_slice(block);
    Ok(block.len())
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut hasher = XxHash32::with_seed(0);
    hasher.write(bytes);
    hasher.finish() as u32
}

struct FrameHeader {
    linked: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_size: Option<u64>,
    block_max: usize,
}

impl FrameHeader {
    fn read(at: &mut Reader<'_>) -> Result<Self, CodecError> {
        const VERSION: u8 = 0b0100_0000;
        if at.read_array()? != MAGIC {
            return Err(CodecError::OtherFormat);
        }
        let from = at.at;
        let [flags, sizes] = at.read_array()?;
        let has = |bit: u8| flags & 1 << bit != 0;
        if flags & 0b1100_0000 != VERSION || has(1) || has(0) || sizes & 0b1000_1111 != 0 {
            return Err(CodecError::OtherFormat);
        }
        let block_max = match sizes >> 4 {
            4 => 64 * 1024,
            5 => 256 * 1024,
            6 => 1024 * 1024,
            7 => 4 * 1024 * 1024,
            _ => return Err(CodecError::Corrupt),
        };
        let content_size = if has(3) { Some(u64::from_le_bytes(at.read_array()?)) } else { None };
        let described = at.bytes.get(from..at.at).unwrap_or_default();
        let wanted = (checksum(described) >> 8 & 0xff) as u8;
        if at.read_array::<1>()? != [wanted] {
            return Err(CodecError::Corrupt);
        }
        Ok(Self {
            linked: !has(5),
            block_checksums: has(4),
            content_checksum: has(2),
            content_size,
            block_max,
        })
    }
}

/// A cursor over the bytes of a frame. Reads beyond the end fail with [`CodecError::Truncated`].
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn read_bytes(&mut self, length: usize) -> Result<&'b [u8], CodecError> {
        let end = self.at.checked_add(length).ok_or(CodecError::Truncated)?;
        let taken = self.bytes.get(self.at..end).ok_or(CodecError::Truncated)?;
        self.at = end;
        Ok(taken)
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.read_bytes(N)?.first_chunk().copied().ok_or(CodecError::Truncated)
    }

    fn read_le32(&mut self) -> Result<u32, CodecError> {
        self.read_array().map(u32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lz4_flex::frame::{BlockMode, BlockSize};

    /// Checks frames of streaming encoders, whose blocks refer back to earlier blocks of the frame.
    #[test]
    fn linked_blocks_with_checksums_are_decoded() {
        let text: Vec<u8> = (0..150_000u32).map(|n| (n % 251) as u8).collect();
        for (mode, checksums) in [(BlockMode::Linked, true), (BlockMode::Independent, false)] {
            let info = FrameInfo::new()
                .block_mode(mode)
                .block_size(BlockSize::Max64KB)
                .block_checksums(checksums);
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            encoder.write_all(&text).unwrap();
            let frame = encoder.finish().unwrap();
            let mut out = b"before".to_vec();
            let end = decode(&frame, &mut out, 6, 1 << 20);
            assert_eq!(end, Ok((frame.len(), 6 + text.len())));
            assert!(out[6..6 + text.len()] == text && out.starts_with(b"before"));
            assert_eq!(decode(&frame, &mut out, 0, 149_999), Err(CodecError::TooLarge));
            // Truncated between two blocks, the frame lacks only its end mark.
            let first = 7 + 4 + usize::from(u16::from_le_bytes([frame[7], frame[8]]));
            let cut = &frame[..first + if checksums { 4 } else { 0 }];
            assert_eq!(decode(cut, &mut out, 0, 1 << 20), Err(CodecError::Truncated));
        }
    }
}
