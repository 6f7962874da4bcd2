//! Test harness that runs editing filters over plain memory, block by block, on copies.

use super::Space;
use crate::contract::{
    Batch, Block, ClassifyContext, Edit, EditBackend, EditableBlock, OldBytes, lanes,
};
use abi::Marks;
use std::ops::Range;

/// A copy of a block that is being edited.
struct CopiedBlock {
    frame: Vec<u8>,
    old: Option<Vec<u8>>,
}

impl EditBackend for CopiedBlock {
    fn frame(&mut self) -> &[u8] {
        &self.frame
    }

    fn write(&mut self, range: Range<usize>, _: OldBytes) -> Option<&mut [u8]> {
        self.frame.get_mut(range)
    }

    fn replace(&mut self, room: usize) -> Option<&mut [u8]> {
        self.old = Some(std::mem::replace(&mut self.frame, vec![0; room]));
        Some(&mut self.frame)
    }
}

/// Runs an editing filter over the live blocks of a batch. Returns the lengths of the blocks that
/// were lost because memory ran out.
pub(super) fn run_edit<'a>(
    filter: &mut dyn Edit,
    batch: &mut Batch<'a>,
    space: &mut Space<'a>,
    common: &mut ClassifyContext<'_>,
) -> Vec<u32> {
    let mut all_lost = Vec::new();
    for l in lanes(batch.live_lanes()) {
        let block = batch.block(l);
        let mut bench =
            CopiedBlock { frame: space.arena.frame_at(block.entry().frame()).to_vec(), old: None };
        let lanes = (block.pointer, block.marks, block.context);
        let mut editable = EditableBlock::new(lanes, &mut bench);
        let class = filter.edit(&mut editable, common);
        let (pointer, marks, context) = (editable.pointer, editable.marks, editable.context);
        let (used, lost) = (editable.replacement_length(), editable.is_lost());
        bench.frame.truncate(used.unwrap_or(usize::MAX));
        let kept = if lost { None } else { space.arena.store(bench.frame) };
        match (kept, used) {
            (None, _) => {
                all_lost.push(block.length());
                batch.retain_lanes(!(1 << l));
            }
            (Some((made, frame)), Some(_)) => {
                let marks = Marks::for_plain_block(made.length());
                batch
                    .set_block(l, Block { pointer: made.with_class(class), frame, marks, context });
            }
            (Some((made, frame)), None) => {
                let pointer = made.subrange(marks.view, pointer.length()).with_class(class);
                batch.set_block(l, Block { pointer, frame, marks, context });
            }
        }
    }
    all_lost
}
