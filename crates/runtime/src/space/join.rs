//! Joins, which merge branches in input order. (CONTRACT 16)
//!
//! A fork numbers its blocks, and a block that a branch outputs inherits the number of the block
//! from which it was made. A stable sort by number, then by branch, restores the input order at any
//! batch size.
//!
//! Limitation: if a branch forks again after a filter that makes several blocks from one block, the
//! output is in branch order instead of block order.

use filter::{Batch, lanes};

/// Merges batches of several branches into full batches in input order. Each batch is paired with
/// the index of its branch, in ascending order. A single batch that is already in order is returned
/// unchanged.
pub(super) fn merge_branches<'a>(mut branches: Vec<(usize, Batch<'a>)>) -> Vec<Batch<'a>> {
    let in_order = |batch: &Batch<'a>| {
        lanes(batch.live_lanes()).is_sorted_by_key(|l| batch.sequence_number(l))
    };
    if branches.len() < 2
        && let Some((branch, alone)) = branches.pop()
    {
        match in_order(&alone) {
            true => return vec![alone],
            false => branches.push((branch, alone)),
        }
    }
    let blocks = branches.iter().flat_map(|(_, batch)| {
        lanes(batch.live_lanes()).map(move |l| (batch.sequence_number(l), batch.block(l)))
    });
    let mut sorted: Vec<_> = blocks.collect();
    // The sort is stable: blocks of the same number stay in branch order.
    sorted.sort_by_key(|(order, _)| *order);
    let mut merged: Vec<Batch<'a>> = Vec::new();
    for (order, block) in sorted {
        if merged.last().is_none_or(Batch::is_full) {
            merged.push(Batch::empty());
        }
        if let Some(last) = merged.last_mut() {
            let added = last.push(block, order);
            debug_assert!(added.is_ok(), "a batch that is not full takes a block");
        }
    }
    merged
}
