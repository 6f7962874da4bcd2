//! Hand-written reference loops, one for each job that a bench compares.
//!
//! They are in a separate crate and never inlined, so that the compiler cannot optimize a loop
//! together with the benchmark that calls it. (The workspace does not use LTO.)
#![forbid(unsafe_code)]

/// A filter function as the reference loops call it, with the bytes of a block. Returns true if the
/// block continues to the next filter.
pub type Matcher = fn(&[u8]) -> bool;

/// Returns true if the first byte of a block is 2. [Th §5.2.1, fig. 5.1]
#[inline(never)]
#[must_use]
pub fn first_byte_is_two(block: &[u8]) -> bool {
    block.first() == Some(&2)
}

/// Returns true if no byte of the block is 0xff. The benchmark's blocks contain no such byte, so
/// every byte is read.
#[inline(never)]
#[must_use]
pub fn no_byte_is_ff(block: &[u8]) -> bool {
    !block.contains(&0xff)
}

/// Processes all blocks `rounds` times: calls the filters for each block until one of them rejects
/// it. Returns the number of blocks that passed all filters.
#[inline(never)]
#[must_use]
pub fn count_by_indirect_calls(blocks: &[&[u8]], filters: &[Matcher], rounds: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..rounds {
        for block in blocks {
            // Without filters, the loop must still visit the blocks.
            let block: &[u8] = std::hint::black_box(block);
            let mut goes_on = true;
            for filter in filters {
                if !filter(block) {
                    goes_on = false;
                    break;
                }
            }
            passed += u64::from(goes_on);
        }
    }
    passed
}
