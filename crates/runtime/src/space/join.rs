//! Joins: blocks of several branches in the order in which they came in (CONTRACT 16).
//!
//! Where paths part, blocks are numbered; what a block becomes on a branch keeps its number. A
//! stable sort by number, then by branch, gives the input order back whatever the size of the
//! batches.
//!
//! One limit: where paths part again inside a branch, and the filter between the two partings made
//! several blocks of one, these come out branch by branch and not block by block.

use filter::{Batch, lanes};

/// The blocks of these branches in input order, in full batches. `branches` are sorted by branch.
/// Where only one has something, and that in order, it stays as it is.
pub(super) fn merge<'a>(mut branches: Vec<(usize, Batch<'a>)>) -> Vec<Batch<'a>> {
    let in_order = |batch: &Batch<'a>| lanes(batch.live()).is_sorted_by_key(|l| batch.order(l));
    if branches.len() < 2
        && let Some((branch, alone)) = branches.pop()
    {
        match in_order(&alone) {
            true => return vec![alone],
            false => branches.push((branch, alone)),
        }
    }
    let blocks = branches
        .iter()
        .flat_map(|(_, batch)| lanes(batch.live()).map(move |l| (batch.order(l), batch.block(l))));
    let mut sorted: Vec<_> = blocks.collect();
    // Stable: what has the same number stays in the order of the branches.
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
