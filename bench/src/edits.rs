//! `bench edits`: a filter that changes eight bytes of every block, in place or in copies of the
//! frames. The difference is the gain of editing in place if a block has no other reader. [Th
//! §5.3], FEATURES L1, L2
//!
//! The request runs unchanged, and with every edit forced into a copy. The same request without the
//! edit shows the cost of generating and counting frames.

use crate::harness::{Candidate, measure_interleaved_rows};
use crate::request_run::run_request_with_settings;
use crate::row::Row;
use engine::build::RunSettings;

/// Frame lengths in bytes, each with the number of frames of this length that a measurement
/// generates.
const FRAME_LENGTHS: [(u64, u64); 3] = [(64, 400_000), (1500, 200_000), (16_000, 30_000)];

pub(crate) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    sys::process::pin_to_processor(0).map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for (size, count) in FRAME_LENGTHS {
        let line =
            |edit: &str| format!("generate count={count} size={size} seq=yes {edit}| discard");
        let candidate = |name, edit: &str, copies| {
            let text = line(edit);
            Candidate { name, measure: Box::new(move || measure_rate(&text, count, copies)) }
        };
        let candidates = vec![
            candidate("in copies", "| blank length=8 ", true),
            candidate("in place", "| blank length=8 ", false),
            candidate("no edit", "", false),
        ];
        #[expect(clippy::cast_precision_loss, reason = "the size of a frame")]
        let x = size as f64;
        let name = format!("{size} B");
        rows.extend(measure_interleaved_rows(("edits", &name, x), "M/s", rounds, candidates, &[])?);
    }
    Ok(rows)
}

/// Runs a request that generates `count` blocks. Returns the rate in blocks per microsecond. If
/// `copies` is true, all edits are made in copies.
fn measure_rate(text: &str, count: u64, copies: bool) -> Result<f64, String> {
    let settings = RunSettings { edits_in_copies: copies, ..RunSettings::default() };
    let outcome = run_request_with_settings(text, settings)?;
    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
    Ok(count as f64 * 1e3 / outcome.elapsed_ns as f64)
}
