//! 5. `compress` edits through the gateway, over a fan-out where the sibling must not see the edit.

use crate::house::{line, reported};
use filter::prelude::*;

/// Adds up the payload bytes that go by, and how many there were.
const TOTAL: Description = Description {
    name: "total",
    summary: "adds up bytes",
    kind: Kind::Inspection,
    reports: true,
    user: Some(|_| Ok(Filter::lanes(Total::default()))),
    ..Description::EMPTY
};

#[derive(Default)]
struct Total {
    bytes: u64,
    sum: u64,
}

impl Lanes for Total {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        for (_, block) in batch.blocks() {
            self.bytes += u64::from(block.length());
            self.sum += block.bytes().iter().map(|b| u64::from(*b)).sum::<u64>();
        }
    }

    fn report(&self) -> Report {
        Report::of_rows(vec![("bytes".to_owned(), self.bytes), ("sum".to_owned(), self.sum)])
    }
}

/// Overwrites every byte in view.
const WIPE: Description = Description {
    name: "wipe",
    summary: "overwrites bytes",
    kind: Kind::Editing,
    user: Some(|_| Ok(Filter::lanes(Wipe))),
    ..Description::EMPTY
};

struct Wipe;

impl Lanes for Wipe {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        for l in lanes(batch.live()) {
            cx.edit(batch, l, Keep::Nothing, |bytes| bytes.fill(0xff));
        }
    }
}

const FRAMES: u64 = 3000;
const SIZE: u64 = 700;

fn untouched() -> u64 {
    let outcome = line(&format!("generate count={FRAMES} size={SIZE} seq=yes | total"), &[&TOTAL]);
    reported(&outcome, "total", "sum")
}

#[test]
fn a_sibling_sees_the_blocks_as_they_were() {
    for (editor, back) in [("wipe", ""), ("compress", "| decompress ")] {
        let text = format!(
            "generate count={FRAMES} size={SIZE} seq=yes | {editor} {back}| count + total | discard"
        );
        // The editor and its sibling in both orders: whoever is called first.
        let text = text.replace(
            &format!("| {editor} {back}| count + total | discard"),
            &format!("| ({editor} {back}| discard) + total"),
        );
        for text in [text.clone(), swapped(&text, editor, back)] {
            let outcome = line(&text, &[&TOTAL, &WIPE]);
            assert_eq!(reported(&outcome, "total", "bytes"), FRAMES * SIZE, "{text}");
            assert_eq!(reported(&outcome, "total", "sum"), untouched(), "{text}");
        }
    }
}

fn swapped(text: &str, editor: &str, back: &str) -> String {
    text.replace(
        &format!("({editor} {back}| discard) + total"),
        &format!("total + ({editor} {back}| discard)"),
    )
}

#[test]
fn an_edit_is_visible_downstream() {
    let text =
        format!("generate count={FRAMES} size={SIZE} seq=yes | compress | decompress | total");
    let outcome = line(&text, &[&TOTAL]);
    assert_eq!(reported(&outcome, "total", "sum"), untouched());
    let text = format!("generate count={FRAMES} size={SIZE} seq=yes | wipe | total");
    let outcome = line(&text, &[&TOTAL, &WIPE]);
    assert_eq!(reported(&outcome, "total", "sum"), FRAMES * SIZE * 255);
}
