//! Content filters: pattern matching, compression, overwriting.

pub mod blank;
pub mod compress;
pub mod decompress;
pub mod r#match;
pub mod pcap;
pub mod regex;

mod codec;
mod lz4;

use crate::layers;
use crate::prelude::*;

/// Replaces the view of the block in a lane with `bytes`, and keeps the block's network and
/// transport headers. If memory runs out, drops the block and counts the loss.
fn replace_block_view<'a>(
    batch: &mut Batch<'a>,
    l: Lane,
    cx: &mut LaneContext<'_, 'a>,
    bytes: &[u8],
) {
    batch.set_block(l, with_header_offsets(batch.block(l)));
    cx.replace_view(batch, l, bytes);
}

/// Returns true for a block without bytes to compress or decompress: a gap, the end of a connection
/// or the description of a message.
fn has_nothing_to_compress(block: &Block<'_>) -> bool {
    block.pointer.is_hole() || block.length() == 0 && block.marks.is_description()
}

/// Returns the block with the offsets of its headers in its marks. If these offsets are unknown and
/// the block lies in a frame, parses the headers to find them.
fn with_header_offsets(mut block: Block<'_>) -> Block<'_> {
    if block.marks.is_frame() && block.marks.payload == Marks::UNKNOWN_OFFSET {
        layers::parse(&mut block);
    }
    block
}
