//! How many blocks a thread walks at once. [SL §6.2, Th §5.2.1]
//!
//! The sources disagree: filter by filter over all that has come [SL §6.2], or block by block
//! through all filters [Th §5.2.1]. Between the two lies one number, the blocks of a batch, which
//! goes through the whole graph before the next is taken: the more, the fewer calls and the longer
//! a filter's code stays in the cache; the fewer, the more of the blocks is still in the cache
//! when the next filter looks. `streamline bench walk` tries all of them on lines with few filters
//! and with many, over short blocks and long ones. A full batch is the best or near it on each of
//! them, so it is what is chosen, whatever the line.

use crate::graph::Graph;
use filter::LANES;

/// How many blocks a thread of a plan walks at once, if so many are there: nothing waits for a
/// batch to fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtOnce {
    /// At most so many.
    pub most: usize,
    /// What was asked for with `--batch`.
    pub asked: Option<u64>,
}

impl AtOnce {
    /// A full batch.
    pub const FULL: Self = Self { most: LANES, asked: None };
    /// Block by block.
    pub const ONE: Self = Self { most: 1, asked: None };

    /// What a request says.
    pub(super) fn of(graph: &Graph) -> Self {
        graph.options.number("batch").map_or(Self::FULL, Self::asked)
    }

    fn asked(asked: u64) -> Self {
        let most = usize::try_from(asked).unwrap_or(LANES).clamp(1, LANES);
        Self { most, asked: Some(asked) }
    }

    /// How many and why, in words.
    pub(crate) fn because(self) -> String {
        let Self { most, asked } = self;
        let why = match asked {
            Some(asked) if asked > most as u64 => "all that a batch holds; `--batch` says more",
            Some(_) => "as `--batch` says",
            None => "a full batch, measured as the best or near it for blocks of any length",
        };
        let blocks = if most == 1 { "block" } else { "blocks" };
        format!("a thread walks {most} {blocks} at once, if so many are there: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_a_request_may_say_how_many_up_to_a_batch() {
        for (asked, most, why) in [
            (1, 1, "1 block at once, if so many are there: as `--batch` says"),
            (8, 8, "8 blocks at once, if so many are there: as `--batch` says"),
            (64, 64, "64 blocks at once, if so many are there: as `--batch` says"),
            (u64::MAX, 64, "all that a batch holds; `--batch` says more"),
        ] {
            let at_once = AtOnce::asked(asked);
            assert_eq!(at_once.most, most);
            assert!(at_once.because().ends_with(why), "{}", at_once.because());
        }
        assert!(AtOnce::FULL.because().contains("64 blocks at once"));
    }
}
