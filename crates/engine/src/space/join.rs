//! Joins: blocks of several branches in the order in which they came in (CONTRACT 16).
//!
//! Every block knows the lane of the turn's first batch that caused it. A counting sort by that lane,
//! stable in the order of the branches, gives the input order whatever the size of the batches.

use filter::{Batch, Block, LANES, lanes};

/// The blocks of these branches in input order, in full batches. `branches` are sorted by branch.
pub(super) fn merge<'a>(branches: &[(usize, Batch<'a>)]) -> Vec<Batch<'a>> {
    let mut first = [0usize; LANES + 1];
    for (_, batch) in branches {
        for l in lanes(batch.live()) {
            first[usize::from(batch.order(l)) + 1] += 1;
        }
    }
    for i in 1..=LANES {
        first[i] += first[i - 1];
    }
    let total = first[LANES];
    let mut sorted: Vec<Option<(Block<'a>, u8)>> = vec![None; total];
    for (_, batch) in branches {
        for l in lanes(batch.live()) {
            let order = batch.order(l);
            let at = &mut first[usize::from(order)];
            sorted[*at] = Some((batch.block(l), order));
            *at += 1;
        }
    }
    let mut merged: Vec<Batch<'a>> = Vec::with_capacity(total.div_ceil(LANES));
    for (block, order) in sorted.into_iter().flatten() {
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
