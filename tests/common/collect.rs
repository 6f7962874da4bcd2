//! The test filter `collect`: stores the blocks that reach its position in a request.
//!
//! Requests run in the test's thread ([`crate::request::PlannedRequest::run_sequential`]), so
//! blocks are stored per thread, and the test fetches them after the request.

use crate::request::PlannedRequest;
use engine::run::RunOutcome;
use filter::prelude::*;
use std::cell::RefCell;
use wire::LinkType;
use wire::flow::Flow;

/// Filters that requests with `collect` can use in addition to those of the catalog.
pub(crate) const COLLECT_FILTERS: &[&Description] = &[&COLLECT];

const COLLECT: Description = Description {
    name: "collect",
    summary: "keep what goes by for the test",
    input_forms: Forms::ANY,
    constructor: Some(|_| Ok(Filter::lanes(CollectFilter))),
    ..Description::FILTER_DEFAULTS
};

thread_local! {
    static COLLECTED_BLOCKS: RefCell<Vec<CollectedBlock>> = const { RefCell::new(Vec::new()) };
}

/// A block that the filter `collect` has stored, with its bytes and metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CollectedBlock {
    pub(crate) class: u32,
    pub(crate) session: u32,
    pub(crate) flags: BlockFlags,
    pub(crate) time: u64,
    /// Length of the block's view in bytes, including bytes that were not captured.
    pub(crate) length: u32,
    /// True if the block is a hole: its bytes were never captured.
    pub(crate) hole: bool,
    pub(crate) bytes: Vec<u8>,
    /// The record that the block carries if it is a description, else `None`.
    pub(crate) record: Option<Vec<u8>>,
    /// Addresses and ports of the frame, or `None` if the block has no frame or no flow.
    pub(crate) flow: Option<Flow>,
}

impl CollectedBlock {
    pub(crate) fn from_block(block: &Block<'_>) -> Self {
        let Block { pointer, frame, marks, context } = *block;
        let framed = marks.is_frame() && !frame.is_empty();
        let flow = framed.then(|| {
            let layers = wire::dissect::layers(LinkType(marks.link), frame);
            Flow::from_frame(&layers, frame)
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

    /// Returns true if the block flows from server to client.
    pub(crate) fn is_backward(&self) -> bool {
        self.flags.contains(BlockFlags::BACKWARD)
    }
}

struct CollectFilter;

impl LaneFilter for CollectFilter {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, _: &mut LaneContext<'_, 'a>) {
        COLLECTED_BLOCKS.with_borrow_mut(|observed| {
            observed.extend(batch.blocks().map(|(_, block)| CollectedBlock::from_block(&block)));
        });
    }
}

/// Runs a request with the filter `collect`. Returns the collected blocks and the outcome, or the
/// error of opening the source. Panics if the ledger does not balance.
pub(crate) fn run_and_collect(
    line: &PlannedRequest,
) -> Result<(Vec<CollectedBlock>, RunOutcome), String> {
    COLLECTED_BLOCKS.take();
    let outcome = line.run_sequential().map_err(|error| error.to_string())?;
    assert_eq!(outcome.ledger.imbalances(), [], "{}", line.text);
    Ok((COLLECTED_BLOCKS.take(), outcome))
}
