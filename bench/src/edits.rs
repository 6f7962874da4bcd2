//! `bench edits`: a filter that changes eight bytes of every block, where they lie and in copies of
//! the frames: what write isolation saves where nobody else looks. [Th §5.3], FEATURES L1, L2
//!
//! The same request, run twice: once as it is, once with every edit forced into a copy. Beside both
//! stands the same line without the edit: what making and counting the frames takes.

use crate::harness::{Candidate, interleave};
use crate::line::outcome_with;
use crate::row::Row;
use engine::build::Settings;

/// Bytes of a frame, and how many are made.
const SIZES: [(u64, u64); 3] = [(64, 400_000), (1500, 200_000), (16_000, 30_000)];

pub(crate) fn run(rounds: usize) -> Result<Vec<Row>, String> {
    sys::process::pin_to(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for (size, count) in SIZES {
        let line =
            |edit: &str| format!("generate count={count} size={size} seq=yes {edit}| discard");
        let candidate = |name, edit: &str, copies| {
            let text = line(edit);
            Candidate { name, measure: Box::new(move || rate(&text, count, copies)) }
        };
        let candidates = vec![
            candidate("in copies", "| blank length=8 ", true),
            candidate("in place", "| blank length=8 ", false),
            candidate("no edit", "", false),
        ];
        #[expect(clippy::cast_precision_loss, reason = "the size of a frame")]
        let x = size as f64;
        let name = format!("{size} B");
        rows.extend(interleave(("edits", &name, x), "M/s", rounds, candidates, &[])?);
    }
    Ok(rows)
}

/// Blocks per microsecond.
fn rate(text: &str, count: u64, copies: bool) -> Result<f64, String> {
    let settings = Settings { copies, ..Settings::default() };
    let outcome = outcome_with(text, settings)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
    Ok(count as f64 * 1e3 / outcome.elapsed_ns as f64)
}
