//! Probe 5: a filter edits blocks after a fan-out, and the sibling branch must not observe the
//! edit.

use crate::catalog_fixture::{reported_counter, run_request};
use filter::prelude::*;

/// A filter that sums the lengths of all blocks, and the values of all their bytes, and reports
/// both sums.
const SUM_PAYLOADS: Description = Description {
    name: "total",
    summary: "adds up bytes",
    kind: FilterKind::Inspection,
    has_report: true,
    constructor: Some(|_| Ok(Filter::lanes(SumPayloadsFilter::default()))),
    ..Description::FILTER_DEFAULTS
};

#[derive(Default)]
struct SumPayloadsFilter {
    bytes: u64,
    sum: u64,
}

impl LaneFilter for SumPayloadsFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            self.bytes += u64::from(block.length());
            self.sum += block.bytes().iter().map(|b| u64::from(*b)).sum::<u64>();
        }
    }

    fn report(&self) -> Report {
        Report::from_rows(vec![("bytes".to_owned(), self.bytes), ("sum".to_owned(), self.sum)])
    }
}

/// A filter that overwrites every byte in view.
const WIPE_BYTES: Description = Description {
    name: "wipe",
    summary: "overwrites bytes",
    kind: FilterKind::Editing,
    constructor: Some(|_| Ok(Filter::lanes(WipeBytesFilter))),
    ..Description::FILTER_DEFAULTS
};

struct WipeBytesFilter;

impl LaneFilter for WipeBytesFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live_lanes()) {
            cx.edit(batch, l, OldBytes::Discard, |bytes| bytes.fill(0xff));
        }
    }
}

const FRAMES: u64 = 3000;
const FRAME_SIZE: u64 = 700;

fn payload_sum() -> u64 {
    let outcome = run_request(
        &format!("generate count={FRAMES} size={FRAME_SIZE} seq=yes | total"),
        &[&SUM_PAYLOADS],
    );
    reported_counter(&outcome, "total", "sum")
}

#[test]
fn sibling_branch_receives_unedited_blocks() {
    for (editor, back) in [("wipe", ""), ("compress", "| decompress ")] {
        let text = format!(
            "generate count={FRAMES} size={FRAME_SIZE} seq=yes | {editor} {back}| count + total \
             | discard"
        );
        // The editor and its sibling, called in both orders.
        let text = text.replace(
            &format!(
                "| {editor} {back}| count + total \
             | discard"
            ),
            &format!("| ({editor} {back}| discard) + total"),
        );
        for text in [text.clone(), reverse_branches(&text, editor, back)] {
            let outcome = run_request(&text, &[&SUM_PAYLOADS, &WIPE_BYTES]);
            assert_eq!(reported_counter(&outcome, "total", "bytes"), FRAMES * FRAME_SIZE, "{text}");
            assert_eq!(reported_counter(&outcome, "total", "sum"), payload_sum(), "{text}");
        }
    }
}

fn reverse_branches(text: &str, editor: &str, back: &str) -> String {
    text.replace(
        &format!("({editor} {back}| discard) + total"),
        &format!("total + ({editor} {back}| discard)"),
    )
}

#[test]
fn edit_is_visible_downstream() {
    let text = format!(
        "generate count={FRAMES} size={FRAME_SIZE} seq=yes | compress | decompress | total"
    );
    let outcome = run_request(&text, &[&SUM_PAYLOADS]);
    assert_eq!(reported_counter(&outcome, "total", "sum"), payload_sum());
    let text = format!("generate count={FRAMES} size={FRAME_SIZE} seq=yes | wipe | total");
    let outcome = run_request(&text, &[&SUM_PAYLOADS, &WIPE_BYTES]);
    assert_eq!(reported_counter(&outcome, "total", "sum"), FRAMES * FRAME_SIZE * 255);
}
