//! The maps of a program besides its counters.

use super::tail_call::{PROCESSORS, ROW_BITS};
use super::tap::is_given;
use crate::insn::{Insn, PSEUDO_MAP, PSEUDO_MAP_VALUE};
use crate::program::{FilterSpan, MapSpec};

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
pub(super) enum Table {
    /// The state of a filter, with its size in bytes.
    State(Option<usize>, u16),
    /// Per-CPU rows for values between parts.
    Rows,
    /// The program array of the parts.
    Links,
}

impl Table {
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
