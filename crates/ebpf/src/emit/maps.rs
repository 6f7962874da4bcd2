//! The maps of a program other than that of its counters.

use crate::insn::{Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE};
use crate::program::{FilterSpan, MapSpec};

/// Number of processors with a row; on other processors the answer is unsure.
pub(super) const PROCESSORS: i32 = 512;
/// log2 of the bytes of a row: sixteen numbers.
pub(super) const ROW_BITS: i32 = 7;

/// A map of a program other than that of its counters.
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
    /// Returns the parameters of the map, for a program of `words` in `parts` continuations.
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

/// Number of the caller's first map until the program's own maps have been counted.
pub(super) const CALLER_MAPS: u32 = 0x7000;

/// Returns true if this is the number of a caller's map.
const fn is_caller_map(number: i32) -> bool {
    number >= CALLER_MAPS.cast_signed()
}

/// Renumbers the maps of a program. Its own maps begin at 0 if it has no counters, else at 1, after
/// the map of counters; the caller's maps follow these `own` maps.
pub(super) fn number_maps(code: &mut [Insn], has_counters: bool, own: usize) {
    let own = i32::try_from(own).unwrap_or(i32::MAX);
    let mut wide = false;
    for insn in code {
        let first = insn.is_load64() && !wide;
        if first && matches!(insn.src, PSEUDO_MAP | PSEUDO_MAP_VALUE) {
            insn.imm = match is_caller_map(insn.imm) {
                true => insn.imm + own - CALLER_MAPS.cast_signed(),
                false => insn.imm - i32::from(!has_counters),
            };
        }
        wide = first;
    }
}
