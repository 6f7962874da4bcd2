//! `decompress`: replaces the view with its decompressed form.
//!
//! Input: blocks with complete members of a compressed format in view. Output: bytes, one output
//! block per input block. A block that cannot be decompressed passes unchanged and without a class,
//! and the reason is counted: `decompress |0 files bad/` stores such blocks. [SL §4.2]

use super::codec::{CodecError, CompressionFormat, Decoder, FORMAT_NAMES};
use crate::prelude::*;

/// Catalog entry of `decompress`, which replaces the view of a block with its decompressed form.
pub const DECOMPRESS: Description = Description {
    name: "decompress",
    summary: "decompress the bytes in view, block by block",
    details: "\
Replaces the view of each block by its decompressed form. The input is `gzip` (the default), `zlib`,
`deflate` or `lz4` frames. The class stays. The output is at most 1 MB long, and beyond 64 KB at
most `ratio` times as long as the input. Gaps and descriptions pass as they are.

A block with an error stays as it was. Reasons for no class: `other format`, `corrupt`, `cut` (the
data ends too early), `too large`, `trailing bytes` (of another format).",
    example: "replay web.pcap | udp | compress | decompress | print",
    kind: FilterKind::Editing,
    output_form: OutputForm::Form(Form::Bytes),
    reads: ReadDepth::All,
    parameters: &[
        Parameter::with_default(
            "format",
            ParameterType::OneOf(FORMAT_NAMES),
            "gzip",
            "the compressed format",
        )
        .positional(),
        Parameter::with_default(
            "ratio",
            ParameterType::Number { low: 1, high: 100_000 },
            "200",
            "maximum ratio of output to input length, beyond 64 KB",
        ),
    ],
    reasons: &["other format", "corrupt", "cut", "too large", "trailing bytes"],
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let format = CompressionFormat::from_name(arguments.text("format"));
    Ok(Filter::lanes(Decompress {
        decoder: Decoder::new(format, arguments.number_as_usize("ratio")),
    }))
}

struct Decompress {
    decoder: Decoder,
}

impl LaneFilter for Decompress {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live_lanes()) {
            if super::has_nothing_to_compress(&batch.block(l)) {
                continue;
            }
            let Some(block) = cx.complete_block(batch, l) else { continue };
            match self.decoder.decode(block.bytes()) {
                Ok(bytes) => super::replace_block_view(batch, l, cx, bytes),
                Err(bad) => batch.set_class(l, cx.common.answer_absent(codec_reason(bad))),
            }
        }
    }
}

fn codec_reason(bad: CodecError) -> Reason {
    const OTHER_FORMAT: Reason = DECOMPRESS.reason("other format");
    const CORRUPT: Reason = DECOMPRESS.reason("corrupt");
    const CUT: Reason = DECOMPRESS.reason("cut");
    const TOO_LARGE: Reason = DECOMPRESS.reason("too large");
    const TRAILING_BYTES: Reason = DECOMPRESS.reason("trailing bytes");
    match bad {
        CodecError::OtherFormat => OTHER_FORMAT,
        CodecError::Corrupt => CORRUPT,
        CodecError::Truncated => CUT,
        CodecError::TooLarge => TOO_LARGE,
        CodecError::TrailingBytes => TRAILING_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::compress::COMPRESS;
    use crate::testing::{
        Answer, Fragment, Frame, Node, answer_frames, answer_through_chain, run_fragments,
    };

    fn compressed_bytes(format: &str, text: &[u8]) -> Vec<u8> {
        let mut found = answer_frames(&COMPRESS, &[format], &[Frame::new(1, text)]);
        found.remove(0).bytes
    }

    fn run_decompress(format: &str, bytes: &[u8]) -> Answer {
        answer_frames(&DECOMPRESS, &[format], &[Frame::new(1, bytes)]).remove(0)
    }

    fn sample_texts() -> Vec<Vec<u8>> {
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
        for format in FORMAT_NAMES {
            for text in sample_texts() {
                let frames = [Frame::new(1, &text)];
                let words: &[&str] = &[format];
                let back =
                    answer_through_chain(&[(&COMPRESS, words), (&DECOMPRESS, words)], &frames);
                assert_eq!(back[0].class, Class::YES, "{format}");
                assert!(back[0].bytes == text, "{format}: {} bytes", text.len());
            }
        }
    }

    #[test]
    fn consecutive_members_become_one_text() {
        for format in ["gzip", "lz4"] {
            let two =
                [compressed_bytes(format, b"one "), compressed_bytes(format, b"two")].concat();
            assert_eq!(run_decompress(format, &two).bytes, b"one two", "{format}");
            let junk = [compressed_bytes(format, b"one"), b"junk".to_vec()].concat();
            assert_eq!(run_decompress(format, &junk).reason, Some("trailing bytes"), "{format}");
        }
        let junk = [compressed_bytes("zlib", b"one"), b"junk".to_vec()].concat();
        assert_eq!(run_decompress("zlib", &junk).reason, Some("trailing bytes"));
    }

    #[test]
    fn truncated_block_is_reported_and_passes_unchanged() {
        for format in FORMAT_NAMES {
            let whole = compressed_bytes(format, &b"to be or not to be ".repeat(40));
            for cut in 0..whole.len() {
                let found = run_decompress(format, &whole[..cut]);
                assert_eq!(
                    (found.class, found.reason),
                    (Class::NONE, Some("cut")),
                    "{format} {cut}"
                );
                assert_eq!(found.bytes, whole[..cut]);
            }
        }
    }

    #[test]
    fn flipped_bit_is_detected_or_harmless() {
        let text = b"to be or not to be ".repeat(40);
        for format in ["gzip", "zlib", "lz4"] {
            let whole = compressed_bytes(format, &text);
            for bit in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let found = run_decompress(format, &flipped);
                assert!(found.reason.is_some() || found.bytes == text, "{format} {bit}");
            }
        }
    }

    #[test]
    fn decompression_bomb_is_refused() {
        let bomb = compressed_bytes("gzip", &vec![0; 1_000_000]);
        assert!(bomb.len() < 2000);
        assert_eq!(run_decompress("gzip", &bomb).reason, Some("too large"));
        let found = answer_frames(&DECOMPRESS, &["gzip", "ratio=1000"], &[Frame::new(1, &bomb)]);
        assert_eq!(found[0].length, 1_000_000);
        let two = [
            compressed_bytes("lz4", &vec![0; 600_000]),
            compressed_bytes("lz4", &vec![0; 600_000]),
        ]
        .concat();
        let found = answer_frames(&DECOMPRESS, &["lz4", "ratio=100000"], &[Frame::new(1, &two)]);
        assert_eq!(found[0].reason, Some("too large"));
    }

    #[test]
    fn gaps_and_descriptions_pass_unchanged() {
        let mut node = Node::new(&DECOMPRESS, &[]).unwrap();
        let pieces = [Fragment::description(1), Fragment::hole(1, 700)];
        let found = run_fragments(&mut node, &pieces);
        let passed = found.iter().map(|part| (part.class, part.length)).collect::<Vec<_>>();
        assert_eq!(passed, [(Class::YES, 0), (Class::YES, 700)]);
        assert_eq!((node.counts.no_room.blocks, node.counts.unanswered.iter().sum()), (0, 0));
    }

    #[test]
    fn other_formats_are_reported() {
        for format in ["gzip", "zlib", "lz4"] {
            assert_eq!(
                run_decompress(format, b"GET / HTTP/1.1").reason,
                Some("other format"),
                "{format}"
            );
        }
        assert_eq!(run_decompress("deflate", &[0xff; 9]).reason, Some("corrupt"));
    }
}
