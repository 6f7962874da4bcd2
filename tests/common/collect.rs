//! Collects the output of a line block by block, at the place of the filter `collect`.
//!
//! Lines run in the thread of the test ([`crate::line::Line::alone`]), so the blocks are stored per
//! thread and taken when the line has ended.

use crate::line::Line;
use engine::run::Outcome;
use filter::prelude::*;
use std::cell::RefCell;
use wire::LinkType;
use wire::flow::Flow;

/// Filters that a line may use besides the catalog's.
pub(crate) const COLLECTING: &[&Description] = &[&COLLECT];

const COLLECT: Description = Description {
    name: "collect",
    summary: "keep what goes by for the test",
    takes: Forms::ANY,
    user: Some(|_| Ok(Filter::lanes(Collect))),
    ..Description::EMPTY
};

thread_local! {
    static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
}

/// One block that came by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) class: u32,
    pub(crate) session: u32,
    pub(crate) flags: Flags,
    pub(crate) time: u64,
    /// The number of bytes in view, seen or not.
    pub(crate) length: u32,
    /// Bytes that exist and were never seen.
    pub(crate) hole: bool,
    pub(crate) bytes: Vec<u8>,
    /// The record of a description.
    pub(crate) record: Option<Vec<u8>>,
    /// The addresses and ports of the frame around it.
    pub(crate) flow: Option<Flow>,
}

impl Seen {
    pub(crate) fn of(block: &Block<'_>) -> Self {
        let Block { pointer, frame, marks, context } = *block;
        let framed = marks.is_frame() && !frame.is_empty();
        let flow = framed.then(|| {
            let layers = wire::dissect::layers(LinkType(marks.link), frame);
            Flow::of(&layers, frame)
        });
        Self {
            class: pointer.class.0,
            session: context.session,
            flags: context.flags,
            time: context.time,
            length: pointer.length(),
            hole: pointer.is_hole(),
            bytes: block.bytes().to_vec(),
            record: marks.is_description().then(|| frame.to_vec()),
            flow: flow.flatten(),
        }
    }

    /// Returns true if it goes from server to client.
    pub(crate) fn backward(&self) -> bool {
        self.flags.has(Flags::BACKWARD)
    }
}

struct Collect;

impl Lanes for Collect {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        SEEN.with_borrow_mut(|seen| {
            seen.extend(batch.blocks().map(|(_, block)| Seen::of(&block)));
        });
    }
}

/// Runs a line that collects, with a ledger that balances; answers what was collected, and how it
/// ended. Nothing: the source could not be opened, and why.
pub(crate) fn collected(line: &Line) -> Result<(Vec<Seen>, Outcome), String> {
    SEEN.take();
    let outcome = line.alone().map_err(|error| error.to_string())?;
    assert_eq!(outcome.ledger.imbalances(), [], "{}", line.text);
    Ok((SEEN.take(), outcome))
}
