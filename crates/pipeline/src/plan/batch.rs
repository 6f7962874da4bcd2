//! The number of blocks that a thread processes at once. [SL §6.2, Th §5.2.1]
//!
//! The papers disagree: all available blocks pass one filter after the other [SL §6.2], or each
//! block passes all filters before the next [Th §5.2.1]. Large batches save calls and keep the
//! filter's code in the cache; small batches keep the blocks in the cache until the next filter
//! reads them. `streamline bench walk` measures all sizes on requests with few and many filters and
//! on short and long blocks. A full batch is best or nearly best in each case, so it is the
//! default.

use crate::graph::Graph;
use filter::LANES;

/// The maximum batch size of a plan's threads. A thread never waits for a batch to fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSize {
    /// The maximum number of blocks, up to `LANES`.
    pub max: usize,
    /// The value of `--batch`, or `None` if not set.
    pub requested: Option<u64>,
}

impl BatchSize {
    /// The size of a full batch, 64 blocks.
    pub const FULL: Self = Self { max: LANES, requested: None };

    /// Returns the batch size set by a request, or otherwise the default.
    pub(super) fn for_request(graph: &Graph) -> Self {
        graph.options.number("batch").map_or(Self::FULL, Self::from_option)
    }

    fn from_option(requested: u64) -> Self {
        let max = usize::try_from(requested).unwrap_or(LANES).clamp(1, LANES);
        Self { max, requested: Some(requested) }
    }

    /// Formats the batch size and the reason for it.
    pub(crate) fn reason_text(self) -> String {
        let Self { max, requested } = self;
        let why = match requested {
            Some(requested) if requested > max as u64 => "the maximum; `--batch` is larger",
            Some(_) => "as `--batch` says",
            None => "a full batch, measured as the best or near it for blocks of any length",
        };
        let blocks = if max == 1 { "block" } else { "blocks" };
        format!("{max} {blocks} at most: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k2_batch_option_is_limited_to_the_maximum() {
        for (requested, max, why) in [
            (1, 1, "1 block at most: as `--batch` says"),
            (8, 8, "8 blocks at most: as `--batch` says"),
            (64, 64, "64 blocks at most: as `--batch` says"),
            (u64::MAX, 64, "the maximum; `--batch` is larger"),
        ] {
            let batch = BatchSize::from_option(requested);
            assert_eq!(batch.max, max);
            assert!(batch.reason_text().ends_with(why), "{}", batch.reason_text());
        }
        assert!(BatchSize::FULL.reason_text().contains("64 blocks at most"));
    }
}
