//! The maps of a program that has states.

use crate::insn::{Insn, PSEUDO_MAP_VALUE};
use crate::program::{MapSpec, Word};

/// Without counters, map 0 is that of the first state: every number becomes one less.
pub(super) fn number_from_zero(code: &mut [Insn]) {
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        if first && insn.src == PSEUDO_MAP_VALUE {
            insn.imm -= 1;
        }
        wide = first;
    }
}

/// The map of a state, named after its filter.
pub(super) fn of_state(words: &[Word], word: Option<usize>, size: u16) -> MapSpec {
    let filter = word.and_then(|word| words.get(word)).map_or("state", |word| &word.filter);
    let value_size = u32::from(size);
    MapSpec { name: filter.to_owned(), value_size, mappable: true, state_of: word }
}
