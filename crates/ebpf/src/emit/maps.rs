//! The maps of a program other than the map of its counters.

use crate::insn::{Insn, PSEUDO_MAP_FD, PSEUDO_MAP_VALUE};
use crate::program::{FilterSpan, MapSpec};

/// Number of processors that have a row, in which the parts of a program pass on values. On
/// processors with higher numbers, the program leaves every frame to the user implementation.
pub(super) const PROCESSORS_MAX: i32 = 512;
/// Base-2 logarithm of the size in bytes of a row, in which a part of a program passes values to
/// the next part. A row has room for sixteen numbers.
pub(super) const ROW_SIZE_LOG2: i32 = 7;

/// A map of a program other than the map of its counters.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProgramMap {
    /// The state of a filter: the filter's index in the program (`None` for code outside any
    /// filter), and the size of the state in bytes.
    State(Option<usize>, u16),
    /// A map with one row per processor, in which a part of a program passes values to the next
    /// part.
    Rows,
    /// The program array through which tail calls enter the parts of a program.
    PartPrograms,
}

impl ProgramMap {
    /// Returns the parameters with which the loader must create this map. `filters` are the filters
    /// of the program, and `parts` is the number of its continuations.
    pub(super) fn map_spec(self, filters: &[FilterSpan], parts: usize) -> MapSpec {
        match self {
            Self::State(index, size) => {
                let filter = index.and_then(|index| filters.get(index));
                let filter = filter.map_or("state", |filter| &filter.filter);
                MapSpec { state_of: index, ..MapSpec::array(filter, size.into()) }
            }
            Self::Rows => MapSpec::array("rows", (PROCESSORS_MAX << ROW_SIZE_LOG2).cast_unsigned()),
            Self::PartPrograms => {
                let programs = u32::try_from(parts).unwrap_or(u32::MAX);
                MapSpec { mappable: false, programs, ..MapSpec::array("parts", 4) }
            }
        }
    }
}

/// Temporary number of the first map that the caller provides, used until the number of the
/// program's own maps is known.
pub(super) const FIRST_CALLER_MAP: u32 = 0x7000;

/// Returns true if a map with this number belongs to the caller.
const fn is_caller_map(number: i32) -> bool {
    number >= FIRST_CALLER_MAP.cast_signed()
}

/// Replaces the temporary map numbers in a program by the final ones. The map of counters, if there
/// is one, has number 0. The other maps of the program follow it, and then the caller's maps. The
/// program has `own` maps, including the map of counters.
pub(super) fn assign_map_numbers(code: &mut [Insn], has_counters: bool, own: usize) {
    let own = i32::try_from(own).unwrap_or(i32::MAX);
    let mut wide = false;
    for insn in code {
        let first = insn.is_load_imm64() && !wide;
        if first && matches!(insn.src, PSEUDO_MAP_FD | PSEUDO_MAP_VALUE) {
            insn.imm = match is_caller_map(insn.imm) {
                true => insn.imm + own - FIRST_CALLER_MAP.cast_signed(),
                false => insn.imm - i32::from(!has_counters),
            };
        }
        wide = first;
    }
}
