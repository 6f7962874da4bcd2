//! Content filters: patterns, compression, overwriting.

pub mod blank;
pub mod compress;
pub mod decompress;
pub mod r#match;
pub mod regex;

mod codec;
mod lz4;

use crate::prelude::*;

/// Replaces the block of a lane by a new one with these bytes. Without memory the lane ends and is
/// counted.
fn replace_block<'a>(batch: &mut Batch<'a>, l: Lane, cx: &mut LaneContext<'_, 'a>, bytes: &[u8]) {
    cx.replace(batch, l, bytes.len(), |_, room| {
        let room = room.get_mut(..bytes.len())?;
        room.copy_from_slice(bytes);
        Some(bytes.len())
    });
}
