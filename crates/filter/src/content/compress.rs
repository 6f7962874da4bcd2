//! `compress`: replaces the view with its compressed form.
//!
//! Input: any blocks. Output: bytes, one output block per input block. Of the frame around the
//! view, only the headers that identify the flow are kept. Each block is complete in its format, so
//! it can be read independently of others; the concatenation of gzip members or LZ4 frames is a
//! valid file. [SL §4.2], [Par §IV]

use super::codec::{Encoder, FORMATS, Format};
use crate::prelude::*;

/// Catalog entry of `compress`, which replaces the view of a block with its compressed form.
pub const COMPRESS: Description = Description {
    name: "compress",
    summary: "compress the bytes in view, block by block",
    details: "\
Replaces the view of each block by its compressed form: `gzip` (the default), `zlib`, `deflate` or
`lz4` frames. Class, addresses, session and direction stay, so `files` names and indexes its files
as without compression. Each block can be decompressed alone, and gzip or lz4 can read a file of
several blocks.

Reasons for no class: `too large` (a block of nearly 1 MB that does not compress; it stays as it
was).",
    example: "replay web.pcap | udp | compress | files out/",
    kind: FilterKind::Editing,
    output_form: OutputForm::Form(Form::Bytes),
    reads: ReadDepth::All,
    parameters: &[
        Parameter::named("format", Type::OneOf(FORMATS), "gzip", "the compressed format")
            .positional(),
        Parameter::optional(
            "level",
            Type::Number { low: 0, high: 9 },
            "0 stores, 1 is fast, 9 is small; 6 if absent; not for lz4",
        ),
    ],
    reasons: &["too large"],
    user: Some(make_filter),
    ..Description::EMPTY
};

const TOO_LARGE: Reason = COMPRESS.reason("too large");

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let format = Format::from_name(arguments.text("format"));
    let level = arguments.number("level");
    if format == Format::Lz4 && level.is_some() {
        return Err(Mistake::new("level", "lz4 has no levels").hint("leave `level=` out"));
    }
    let level = u32::try_from(level.unwrap_or(6)).unwrap_or(6);
    Ok(Filter::lanes(Compress { encoder: Encoder::new(format, level) }))
}

struct Compress {
    encoder: Encoder,
}

impl Lanes for Compress {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live()) {
            let block = batch.block(l);
            // The end of a connection and the description of a message have no bytes in view.
            if block.length() == 0 && (block.pointer.is_hole() || block.marks.is_description()) {
                continue;
            }
            let Some(block) = cx.complete_block(batch, l) else { continue };
            match self.encoder.encode(block.bytes()) {
                Ok(bytes) => super::replace_block(batch, l, cx, bytes),
                Err(_) => batch.set_class(l, cx.common.absent(TOO_LARGE)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, Node, answer_frames};

    #[test]
    fn h11_block_becomes_a_standard_gzip_member() {
        let found = answer_frames(&COMPRESS, &[], &[Frame::new(1, &[b'a'; 1000])]);
        let (class, view) = (found[0].class, found[0].view);
        assert_eq!((class, view, found[0].marks.link), (Class::YES, 0, Marks::NO_LINK));
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
        assert_eq!((marks.link, marks.network, marks.payload), (Marks::NO_LINK, 0, 28));
        assert_eq!((found.view, marks.transport, marks.captured), (28, 20, 28 + found.length));
        assert_eq!(headers.len(), 28);
    }

    #[test]
    fn lz4_has_no_levels() {
        assert!(Node::new(&COMPRESS, &["lz4", "level=3"]).is_err());
        assert!(Node::new(&COMPRESS, &["lz4"]).is_ok());
        assert!(Node::new(&COMPRESS, &["level=10"]).is_err());
    }
}
