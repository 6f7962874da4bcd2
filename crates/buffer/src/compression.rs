//! Compression of memory that is retained but rarely read. [SL §10], FEATURES D16

/// Compresses `bytes`. Returns `None` if compression saves less than a quarter of the length. Takes
/// about 2 ns per byte, and less for bytes without repetitions.
#[must_use]
pub fn compress(bytes: &[u8]) -> Option<Box<[u8]>> {
    let packed = lz4_flex::block::compress(bytes);
    (packed.len() <= bytes.len() / 4 * 3).then(|| packed.into())
}

/// Decompresses `packed`, a result of [`compress`], into `out`, which must be as long as the
/// original bytes. Returns false if `packed` is invalid or has another decompressed length.
#[must_use]
pub fn decompress(packed: &[u8], out: &mut [u8]) -> bool {
    lz4_flex::block::decompress_into(packed, out).is_ok_and(|length| length == out.len())
}
