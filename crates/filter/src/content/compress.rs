//! `compress`: replaces the view with its compressed form.
//!
//! Input: any blocks. Output: bytes, in one output block per input block. A block of nearly 1 MB is
//! split in two if its compressed form would exceed the maximum length of a block. Of the frame
//! around the view, only the headers that identify the flow are kept. Each block is complete in its
//! format, so it can be read independently of others; the concatenation of gzip members or LZ4
//! frames is a valid file. [SL §4.2], [Par §IV]

use super::codec::{CompressionFormat, Encoder, FORMAT_NAMES};
use crate::prelude::*;
use abi::BLOCK_LENGTH_MAX;

/// Catalog entry of `compress`, which replaces the view of a block with its compressed form.
pub const COMPRESS: Description = Description {
    name: "compress",
    summary: "compress the bytes in view, block by block",
    details: "\
Replaces the view of each block by its compressed form: `gzip` (the default), `zlib`, `deflate` or
`lz4` frames. Class, addresses, session and direction stay, so `files` names and indexes its files
as without compression, but its default is a file per session; for messages write `http |response
compress | files per=message`. Each block can be decompressed alone, and gzip or lz4 can read a file
of several blocks. A block of nearly 1 MB that does not compress leaves as two, each with one half
of its bytes. Gaps pass as they are.

Reasons for a loss: `overwritten` (a ring reused the memory of a block before it was read), `too
large` (a compressed block would exceed 1 MB).",
    example: "replay web.pcap | udp | compress | files out/",
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
        Parameter::optional(
            "level",
            ParameterType::Number { low: 0, high: 9 },
            "0 stores, 1 is fast, 9 is small; 6 if absent; not for lz4",
        ),
    ],
    reasons: &["overwritten", "too large"],
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

const OVERWRITTEN: Reason = COMPRESS.reason("overwritten");
const TOO_LARGE: Reason = COMPRESS.reason("too large");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let format = CompressionFormat::from_name(arguments.text("format"));
    let level = arguments.number("level");
    if format == CompressionFormat::Lz4 && level.is_some() {
        return Err(Mistake::new("level", "lz4 has no levels").with_hint("leave `level=` out"));
    }
    let level = u32::try_from(level.unwrap_or(6)).unwrap_or(6);
    Ok(Filter::stream(Compress { encoder: Encoder::new(format, level) }))
}

struct Compress {
    encoder: Encoder,
}

impl Stream for Compress {
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>) {
        if super::has_nothing_to_compress(&block) {
            return cx.pass(block);
        }
        let Some(whole) = cx.complete_block(block).filter(Block::has_all_bytes) else {
            return cx.drop(&block, OVERWRITTEN);
        };
        let block = super::with_header_offsets(whole);
        let (bytes, context) = (block.bytes(), block.context);
        if self.append_compressed(&block, context, bytes, cx) {
            return cx.consume(&block);
        }
        // Each half of a block of maximum length fits in every format, even if it is
        // incompressible.
        let (first, second) = bytes.split_at(bytes.len() / 2);
        let first_context =
            context.without_flags(BlockFlags::LAST.with(BlockFlags::SESSION_END_MASK));
        let second_context = context.without_flags(BlockFlags::FIRST);
        let complete = self.append_compressed(&block, first_context, first, cx)
            && self.append_compressed(&block, second_context, second, cx);
        match complete {
            true => cx.consume(&block),
            false => cx.drop(&block, TOO_LARGE),
        }
    }
}

impl Compress {
    /// Compresses `bytes`, and emits them in a block after the headers of `block`. Returns false,
    /// and emits nothing, if the new block would exceed the maximum length. Otherwise returns true.
    /// If memory runs out, `cx` counts the lost block.
    fn append_compressed<'a>(
        &mut self,
        block: &Block<'a>,
        context: BlockMetadata,
        bytes: &[u8],
        cx: &mut StreamContext<'_, 'a>,
    ) -> bool {
        let Ok(bytes) = self.encoder.encode(bytes, BLOCK_LENGTH_MAX - block.headers().len()) else {
            return false;
        };
        cx.append_replacement(block, context, &[bytes]);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fragment, Frame, Node, answer_frames, run_fragments};

    #[test]
    fn h11_block_becomes_a_standard_gzip_member() {
        let found = answer_frames(&COMPRESS, &[], &[Frame::new(1, &[b'a'; 1000])]);
        let (class, view) = (found[0].class, found[0].view);
        assert_eq!((class, view, found[0].marks.link), (Class::YES, 0, Marks::NO_LINK_TYPE));
        let mut text = Vec::new();
        let mut reader = flate2::bufread::GzDecoder::new(&found[0].bytes[..]);
        std::io::Read::read_to_end(&mut reader, &mut text).unwrap();
        assert_eq!(text, [b'a'; 1000]);
        assert!(found[0].length < 100);
    }

    #[test]
    fn headers_stay_in_front_of_compressed_bytes() {
        let frame = Frame::udp(7, 53, b"abc");
        let headers = frame.bytes[14..42].to_vec();
        let found = &answer_frames(&COMPRESS, &[], &[frame])[0];
        let marks = found.marks;
        assert_eq!((marks.link, marks.network, marks.payload), (Marks::NO_LINK_TYPE, 0, 28));
        assert_eq!((found.view, marks.transport, marks.captured), (28, 20, 28 + found.length));
        assert_eq!(headers.len(), 28);
    }

    /// Returns `length` random bytes, which a compressor cannot shrink.
    fn random_bytes(length: usize) -> Vec<u8> {
        testkit::Random::new(5).bytes(length)
    }

    fn decompressed(format: &str, bytes: &[u8]) -> Vec<u8> {
        use crate::content::decompress::DECOMPRESS;
        answer_frames(&DECOMPRESS, &[format], &[Frame::new(1, bytes)]).remove(0).bytes
    }

    #[test]
    fn incompressible_block_is_emitted_in_halves() {
        for format in FORMAT_NAMES {
            let fast = [*format, "level=1"];
            let words = if *format == "lz4" { &fast[..1] } else { &fast };
            for length in [BLOCK_LENGTH_MAX, 1000] {
                let text = random_bytes(length);
                let found = answer_frames(&COMPRESS, words, &[Frame::new(1, &text)]);
                let parts: Vec<Vec<u8>> =
                    found.iter().map(|part| decompressed(format, &part.bytes)).collect();
                assert!(found.iter().all(|part| part.class == Class::YES), "{format} {length}");
                assert!(parts.concat() == text, "{format} {length}");
                assert_eq!(parts.len(), 1 + usize::from(length > 1_000_000), "{format} {length}");
            }
        }
    }

    #[test]
    fn halves_are_two_fragments_of_one_message() {
        let text = random_bytes(BLOCK_LENGTH_MAX);
        let all = BlockFlags::FIRST
            .with(BlockFlags::LAST)
            .with(BlockFlags::SESSION_END)
            .with(BlockFlags::BACKWARD);
        let mut node = Node::new(&COMPRESS, &["lz4"]).unwrap();
        let found = run_fragments(&mut node, &[Fragment::new(3, &text).with_flags(all)]);
        let flags: Vec<BlockFlags> = found.iter().map(|part| part.context.flags).collect();
        let second = all.without(BlockFlags::FIRST);
        assert_eq!(flags, [BlockFlags::FIRST.with(BlockFlags::BACKWARD), second]);
        assert_eq!((node.counts.consumed.blocks, node.counts.made.blocks), (1, 2));
    }

    #[test]
    fn gaps_and_descriptions_pass_unchanged() {
        let mut node = Node::new(&COMPRESS, &[]).unwrap();
        let pieces = [Fragment::description(1), Fragment::hole(1, 700)];
        let found = run_fragments(&mut node, &pieces);
        assert_eq!(found.iter().map(|part| part.length).collect::<Vec<_>>(), [0, 700]);
        assert_eq!((node.counts.no_room.blocks, node.counts.consumed.blocks), (0, 0));
    }

    #[test]
    fn lz4_rejects_compression_level() {
        assert!(Node::new(&COMPRESS, &["lz4", "level=3"]).is_err());
        assert!(Node::new(&COMPRESS, &["lz4"]).is_ok());
        assert!(Node::new(&COMPRESS, &["level=10"]).is_err());
    }
}
