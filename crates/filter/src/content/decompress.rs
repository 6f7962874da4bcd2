//! `decompress`: replaces the view by its decompressed form.
//!
//! Input: blocks with complete members of a compressed format in view. Output: bytes, one block per
//! block. A block that cannot be decompressed passes unchanged and without a class, and the reason
//! is counted: `decompress |0 files bad/` stores such blocks. [SL §4.2]

use super::codec::{CodecError, Decoder, FORMATS, Format};
use crate::prelude::*;

/// Catalog entry of `decompress`, which replaces the view of a block by its decompressed form.
pub const DECOMPRESS: Description = Description {
    name: "decompress",
    summary: "decompress the bytes in view, block by block",
    details: "\
Replaces the view of each block by its decompressed form. The input is `gzip` (the default), `zlib`,
`deflate` or `lz4` frames. The class stays. The output is at most 1 MB long, and beyond 64 KB at
most `ratio` times as long as the input.

A block with an error stays as it was. Reasons for no class: `other format`, `corrupt`, `cut` (the
data ends too early), `too large`, `trailing bytes` (of another format).",
    example: "replay web.pcap | udp | compress | decompress | print",
    kind: FilterKind::Editing,
    output_form: OutputForm::Form(Form::Bytes),
    reads: ReadDepth::All,
    parameters: &[
        Parameter::named("format", Type::OneOf(FORMATS), "gzip", "the compressed format")
            .positional(),
        Parameter::named(
            "ratio",
            Type::Number { low: 1, high: 100_000 },
            "200",
            "maximum ratio of output to input length, beyond 64 KB",
        ),
    ],
    reasons: &["other format", "corrupt", "cut", "too large", "trailing bytes"],
    user: Some(make),
    ..Description::EMPTY
};

fn make(arguments: &Arguments) -> Result<Filter, Mistake> {
    let format = Format::of(arguments.text("format"));
    Ok(Filter::lanes(Decompress { decoder: Decoder::new(format, arguments.count("ratio")) }))
}

struct Decompress {
    decoder: Decoder,
}

impl Lanes for Decompress {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live()) {
            let Some(block) = cx.complete_block(batch, l) else { continue };
            match self.decoder.decode(block.bytes()) {
                Ok(bytes) => super::replace_block(batch, l, cx, bytes),
                Err(bad) => batch.set_class(l, cx.common.absent(reason(bad))),
            }
        }
    }
}

fn reason(bad: CodecError) -> Reason {
    const FORMAT: Reason = DECOMPRESS.reason("other format");
    const CORRUPT: Reason = DECOMPRESS.reason("corrupt");
    const CUT: Reason = DECOMPRESS.reason("cut");
    const TOO_LARGE: Reason = DECOMPRESS.reason("too large");
    const TRAILING: Reason = DECOMPRESS.reason("trailing bytes");
    match bad {
        CodecError::Format => FORMAT,
        CodecError::Corrupt => CORRUPT,
        CodecError::Truncated => CUT,
        CodecError::TooLarge => TOO_LARGE,
        CodecError::Trailing => TRAILING,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::compress::COMPRESS;
    use crate::testing::{Answer, Frame, answers, chain};

    fn packed(format: &str, text: &[u8]) -> Vec<u8> {
        let mut found = answers(&COMPRESS, &[format], &[Frame::of(1, text)]);
        found.remove(0).bytes
    }

    fn unpacked(format: &str, bytes: &[u8]) -> Answer {
        answers(&DECOMPRESS, &[format], &[Frame::of(1, bytes)]).remove(0)
    }

    fn texts() -> Vec<Vec<u8>> {
        let mut noise = 0x9e37_79b9_u32;
        let mut random = || {
            noise ^= noise << 13;
            noise ^= noise >> 17;
            noise ^= noise << 5;
            noise as u8
        };
        let random: Vec<u8> = (0..70_000).map(|_| random()).collect();
        vec![vec![], b"a".to_vec(), b"to be or not to be".repeat(100), vec![7; 60_000], random]
    }

    #[test]
    fn h11_compressed_text_round_trips() {
        for format in FORMATS {
            for text in texts() {
                let frames = [Frame::of(1, &text)];
                let words: &[&str] = &[format];
                let back = chain(&[(&COMPRESS, words), (&DECOMPRESS, words)], &frames);
                assert_eq!(back[0].class, Class::YES, "{format}");
                assert!(back[0].bytes == text, "{format}: {} bytes", text.len());
            }
        }
    }

    #[test]
    fn several_members_are_one_text() {
        for format in ["gzip", "lz4"] {
            let two = [packed(format, b"one "), packed(format, b"two")].concat();
            assert_eq!(unpacked(format, &two).bytes, b"one two", "{format}");
            let junk = [packed(format, b"one"), b"junk".to_vec()].concat();
            assert_eq!(unpacked(format, &junk).why, Some("trailing bytes"), "{format}");
        }
        let junk = [packed("zlib", b"one"), b"junk".to_vec()].concat();
        assert_eq!(unpacked("zlib", &junk).why, Some("trailing bytes"));
    }

    #[test]
    fn truncation_is_detected_and_leaves_the_block() {
        for format in FORMATS {
            let whole = packed(format, &b"to be or not to be ".repeat(40));
            for cut in 0..whole.len() {
                let found = unpacked(format, &whole[..cut]);
                assert_eq!((found.class, found.why), (Class::NONE, Some("cut")), "{format} {cut}");
                assert_eq!(found.bytes, whole[..cut]);
            }
        }
    }

    #[test]
    fn flipped_bit_is_detected_or_harmless() {
        let text = b"to be or not to be ".repeat(40);
        for format in ["gzip", "zlib", "lz4"] {
            let whole = packed(format, &text);
            for bit in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let found = unpacked(format, &flipped);
                assert!(found.why.is_some() || found.bytes == text, "{format} {bit}");
            }
        }
    }

    #[test]
    fn decompression_bomb_is_refused() {
        let bomb = packed("gzip", &vec![0; 1_000_000]);
        assert!(bomb.len() < 2000);
        assert_eq!(unpacked("gzip", &bomb).why, Some("too large"));
        let found = answers(&DECOMPRESS, &["gzip", "ratio=1000"], &[Frame::of(1, &bomb)]);
        assert_eq!(found[0].length, 1_000_000);
        let two = [packed("lz4", &vec![0; 600_000]), packed("lz4", &vec![0; 600_000])].concat();
        let found = answers(&DECOMPRESS, &["lz4", "ratio=100000"], &[Frame::of(1, &two)]);
        assert_eq!(found[0].why, Some("too large"));
    }

    #[test]
    fn other_formats_are_reported() {
        for format in ["gzip", "zlib", "lz4"] {
            assert_eq!(unpacked(format, b"GET / HTTP/1.1").why, Some("other format"), "{format}");
        }
        assert_eq!(unpacked("deflate", &[0xff; 9]).why, Some("corrupt"));
    }
}
