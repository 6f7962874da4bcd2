//! The maps of a program besides its counters.

use crate::insn::{Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE};
use crate::program::{FilterSpan, MapSpec};

/// Number of processors with a row; on others the answer is unsure.
pub(super) const PROCESSORS: i32 = 512;
/// log2 of the bytes of a row: sixteen numbers.
pub(super) const ROW_BITS: i32 = 7;

/// Renumbers maps from 0 in a program without counters.
pub(super) fn number_from_zero(code: &mut [Insn]) {
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        let map = matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE);
        if first && map && !is_given(insn.imm) {
            insn.imm -= 1;
        }
        wide = first;
    }
}

/// A map besides that of the counters.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramMap {
    /// The state of a filter, with its size in bytes.
    State(Option<usize>, u16),
    /// Per-CPU rows for values between parts.
    Rows,
    /// The program array of the parts.
    Links,
}

impl ProgramMap {
    /// Returns the spec, for a program with this many continuations.
    pub(super) fn spec(self, words: &[FilterSpan], parts: usize) -> MapSpec {
        match self {
            Self::State(word, size) => {
                let filter = word.and_then(|word| words.get(word));
                let filter = filter.map_or("state", |word| &word.filter);
                MapSpec { state_of: word, ..MapSpec::array(filter, size.into()) }
            }
            Self::Rows => MapSpec::array("rows", (PROCESSORS << ROW_BITS).cast_unsigned()),
            Self::Links => {
                let programs = u32::try_from(parts).unwrap_or(u32::MAX);
                MapSpec { mappable: false, programs, ..MapSpec::array("parts", 4) }
            }
        }
    }
}

/// Number of the caller's first map, until the program's own maps are counted.
pub(super) const GIVEN: u32 = 0x7000;

/// Returns true if the number is that of a caller's map.
pub(super) const fn is_given(number: i32) -> bool {
    number >= GIVEN.cast_signed()
}

/// Renumbers the caller's maps behind the program's own.
pub(super) fn number_given(code: &mut [Insn], own: usize) {
    let own = i32::try_from(own).unwrap_or(i32::MAX);
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        let map = matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE);
        if first && map && is_given(insn.imm) {
            insn.imm += own - GIVEN.cast_signed();
        }
        wide = first;
    }
}
