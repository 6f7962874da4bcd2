//! The number of blocks that a thread walks at once. [SL §6.2, Th §5.2.1]
//!
//! The sources disagree: filter by filter over all that has come [SL §6.2], or block by block
//! through all filters [Th §5.2.1]. The size of a batch lies between the two. Large batches save
//! calls and keep a filter's code in the cache; small ones keep the blocks in the cache for the
//! next filter. `streamline bench walk` tries all sizes on lines with few and many filters and on
//! short and long blocks. A full batch is the best, or near it, on each of them, so it is chosen
//! for every line.

use crate::graph::Graph;
use filter::LANES;

/// The number of blocks that a thread of a plan walks at once, if so many are there: a thread never
/// waits for a batch to fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtOnce {
    /// At most so many.
    pub most: usize,
    /// The value of `--batch`.
    pub asked: Option<u64>,
}

impl AtOnce {
    /// A full batch.
    pub const FULL: Self = Self { most: LANES, asked: None };
    /// Block by block.
    pub const ONE: Self = Self { most: 1, asked: None };

    /// Reads the batch size from a request.
    pub(super) fn of(graph: &Graph) -> Self {
        graph.options.number("batch").map_or(Self::FULL, Self::asked)
    }

    fn asked(asked: u64) -> Self {
        let most = usize::try_from(asked).unwrap_or(LANES).clamp(1, LANES);
        Self { most, asked: Some(asked) }
    }

    /// Formats the size and the reason for it.
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
    fn k2_a_request_may_set_the_batch_up_to_the_maximum() {
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
