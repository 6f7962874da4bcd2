//! Encoder and decoder for the compressed formats of `compress` and `decompress`.
//!
//! Input: the bytes of a block. Output: the converted bytes in a reused buffer, or an error. The
//! decoder limits the size of the output before producing it, which stops decompression bombs.

use super::lz4;
use abi::BLOCK_LENGTH_MAX;
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Names of the compressed formats, as written in requests.
pub(super) const FORMAT_NAMES: &[&str] = &["gzip", "deflate", "zlib", "lz4"];

/// A compressed format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CompressionFormat {
    /// The gzip format (RFC 1952).
    Gzip,
    /// Raw deflate data (RFC 1951), without header or checksum.
    Deflate,
    /// The zlib format (RFC 1950).
    Zlib,
    /// The LZ4 frame format.
    Lz4,
}

/// Reason why a block cannot be compressed or decompressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CodecError {
    /// The input does not begin with a header of the format.
    OtherFormat,
    /// The input contains an invalid code, length or checksum.
    Corrupt,
    /// The input ends before the compressed data does.
    Truncated,
    /// The output would exceed the maximum block length, or the maximum ratio of output to input.
    TooLarge,
    /// The compressed data is followed by bytes of another format.
    TrailingBytes,
}

impl CompressionFormat {
    /// Returns the format with this name, or gzip if there is no name or the name is not in
    /// [`FORMAT_NAMES`].
    pub(super) fn from_name(word: Option<&str>) -> Self {
        match word {
            Some("deflate") => Self::Deflate,
            Some("zlib") => Self::Zlib,
            Some("lz4") => Self::Lz4,
            _ => Self::Gzip,
        }
    }
}

/// Base-2 logarithm of the window size in bytes with which deflate searches for repetitions. The
/// formats permit no larger window.
const WINDOW_BITS: u8 = 15;

/// A compressor, which compresses each block on its own.
pub(super) struct Encoder {
    format: CompressionFormat,
    deflate: Compress,
    out: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder; `level`, from 0 to 9, applies to all formats except LZ4.
    pub(super) fn new(format: CompressionFormat, level: u32) -> Self {
        let level = Compression::new(level.min(9));
        let deflate = match format {
            CompressionFormat::Gzip => Compress::new_gzip(level, WINDOW_BITS),
            CompressionFormat::Zlib | CompressionFormat::Deflate | CompressionFormat::Lz4 => {
                Compress::new(level, format == CompressionFormat::Zlib)
            }
        };
        Self { format, deflate, out: Vec::new() }
    }

    /// Compresses `bytes` into the reused buffer. Fails with [`CodecError::TooLarge`] if the result
    /// exceeds `length_max` bytes.
    pub(super) fn encode(&mut self, bytes: &[u8], length_max: usize) -> Result<&[u8], CodecError> {
        self.out.clear();
        match self.format {
            CompressionFormat::Lz4 => lz4::encode(bytes, &mut self.out)?,
            CompressionFormat::Gzip | CompressionFormat::Deflate | CompressionFormat::Zlib => {
                self.deflate(bytes)?
            }
        }
        if self.out.len() > length_max { Err(CodecError::TooLarge) } else { Ok(&self.out) }
    }

    fn deflate(&mut self, bytes: &[u8]) -> Result<(), CodecError> {
        self.deflate.reset();
        // Worst case: nine bits of output per eight of input, plus the headers.
        self.out.reserve(bytes.len() + bytes.len() / 8 + 1024);
        match self.deflate.compress_vec(bytes, &mut self.out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => Ok(()),
            Ok(Status::Ok | Status::BufError) | Err(_) => Err(CodecError::TooLarge),
        }
    }
}

/// A decompressor, which decompresses each block on its own.
pub(super) struct Decoder {
    format: CompressionFormat,
    ratio: usize,
    out: Vec<u8>,
}

/// Output size in bytes up to which the ratio of output to input is not limited, because short
/// repetitive input has a high compression ratio.
pub(super) const UNLIMITED_RATIO_SIZE_MAX: usize = 64 * 1024;

impl Decoder {
    /// Creates a decoder that limits the output to `ratio` times the input, clamped to the range
    /// from [`UNLIMITED_RATIO_SIZE_MAX`] to [`BLOCK_LENGTH_MAX`].
    pub(super) fn new(format: CompressionFormat, ratio: usize) -> Self {
        Self { format, ratio, out: Vec::new() }
    }

    /// Decompresses `bytes`. The contents of consecutive gzip members or LZ4 frames are
    /// concatenated, as RFC 1952 §2.2 and the LZ4 frame format specify.
    pub(super) fn decode(&mut self, bytes: &[u8]) -> Result<&[u8], CodecError> {
        let limit = bytes
            .len()
            .saturating_mul(self.ratio)
            .clamp(UNLIMITED_RATIO_SIZE_MAX, BLOCK_LENGTH_MAX);
        let (mut rest, mut used) = (bytes, 0);
        loop {
            let (taken, made) = self.decode_member(rest, used, limit)?;
            rest = rest.get(taken..).unwrap_or_default();
            used = made;
            match self.format {
                _ if rest.is_empty() => break,
                CompressionFormat::Gzip | CompressionFormat::Lz4
                    if has_magic_prefix(self.format, rest) => {}
                _ => return Err(CodecError::TrailingBytes),
            }
        }
        Ok(self.out.get(..used).unwrap_or_default())
    }

    /// Decodes one gzip member, zlib or deflate stream, or LZ4 frame into the buffer, after the
    /// first `used` bytes. Returns the number of bytes consumed and the new length of the output.
    fn decode_member(
        &mut self,
        bytes: &[u8],
        used: usize,
        limit: usize,
    ) -> Result<(usize, usize), CodecError> {
        if !has_magic_prefix(self.format, bytes) {
            return Err(if bytes.is_empty() {
                CodecError::Truncated
            } else {
                CodecError::OtherFormat
            });
        }
        let inflate = match self.format {
            CompressionFormat::Lz4 => return lz4::decode(bytes, &mut self.out, used, limit),
            CompressionFormat::Gzip => Decompress::new_gzip(WINDOW_BITS),
            CompressionFormat::Zlib => Decompress::new(true),
            CompressionFormat::Deflate => Decompress::new(false),
        };
        self.inflate(inflate, bytes, used, limit)
    }

    fn inflate(
        &mut self,
        mut inflate: Decompress,
        bytes: &[u8],
        used: usize,
        limit: usize,
    ) -> Result<(usize, usize), CodecError> {
        /// Half of the initial size of the output buffer in bytes. The buffer is doubled until the
        /// output fits.
        const HALF_INITIAL_OUTPUT_SIZE: usize = 16 * 1024;
        let (mut taken, mut made) = (0, used);
        loop {
            // The output may exceed the limit by one byte, to distinguish output that is too large
            // from output of exactly the maximum size.
            let room = (made.max(HALF_INITIAL_OUTPUT_SIZE) * 2).min(limit + 1);
            if self.out.len() < room {
                self.out.resize(room, 0);
            }
            let end = self.out.len().min(limit + 1);
            let output = self.out.get_mut(made..end).unwrap_or_default();
            let input = bytes.get(taken..).unwrap_or_default();
            let room = output.len();
            let step = inflate.decompress(input, output, FlushDecompress::None);
            taken = inflate.total_in() as usize;
            let before = made;
            made = used + inflate.total_out() as usize;
            let full = made - before == room;
            match step {
                Err(_) => return Err(CodecError::Corrupt),
                _ if made > limit => return Err(CodecError::TooLarge),
                Ok(Status::StreamEnd) => return Ok((taken, made)),
                Ok(Status::Ok | Status::BufError) if full => {}
                Ok(Status::Ok | Status::BufError) => return Err(CodecError::Truncated),
            }
        }
    }
}

/// Returns true if `bytes` may begin with this format, that is, begin with its magic number or
/// header, or with a prefix of it. Deflate has no header and may begin with any byte.
fn has_magic_prefix(format: CompressionFormat, bytes: &[u8]) -> bool {
    match (format, bytes) {
        (CompressionFormat::Gzip, [0x1f, 0x8b, ..] | [0x1f]) => true,
        (CompressionFormat::Zlib, [cmf, flg, ..]) => {
            cmf & 0x0f == 8 && u16::from_be_bytes([*cmf, *flg]).is_multiple_of(31)
        }
        (CompressionFormat::Zlib, [cmf]) => cmf & 0x0f == 8,
        (CompressionFormat::Lz4, _) => lz4::has_magic_prefix(bytes),
        (CompressionFormat::Deflate, [_, ..]) => true,
        _ => false,
    }
}
