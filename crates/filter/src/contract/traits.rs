//! The six traits an author chooses from. The signature takes away the rights that the kind does
//! not give: [Th Table 5.1].
//!
//! | trait | sees | may |
//! |---|---|---|
//! | [`Statistics`] | rich pointers | count |
//! | [`Classify`] | one block | answer a class, set marks |
//! | [`Edit`] | one block | also change bytes, where they lie if nobody else sees them |
//! | [`Lanes`] | a batch | move the view, edit in copies, end lanes |
//! | [`Stream`] | one block at a time | hold, release, append, be woken: blocks in, others out |
//! | [`HoldingLanes`] | a batch | what both may: most blocks stay in their lanes, few are held |

use super::batch::{Batch, Block, Tags};
use super::edit::Edit;
use super::state::State;
use super::turn::{LaneContext, StreamContext, Tell, Time};
use abi::Class;

/// Counts what goes by and sees no bytes.
pub trait Statistics: Send {
    /// Records the live blocks.
    fn record(&mut self, tags: Tags<'_>, now: Time);
    /// Returns its report, on request or when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Its state, if it keeps any that moves.
    fn state(&mut self) -> Option<&mut dyn State> {
        None
    }
}

/// Answers a class for one block.
pub trait Classify: Send {
    /// True if its changes to the marks of a block are kept for the filters behind it. `false`
    /// saves a write per block for filters that do not look for layers.
    const SETS_MARKS: bool = true;

    /// The class of this block; [`Tell::absent`] when it has none.
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut Tell<'_>) -> Class;
    /// Returns its report, on request or when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Its state, if it keeps any that moves.
    fn state(&mut self) -> Option<&mut dyn State> {
        None
    }
}

/// Works on a whole batch in place.
pub trait Lanes: Send {
    /// Looks at, narrows, edits or ends the live lanes.
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>);
    /// Returns its report, on request or when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Its state, if it keeps any that moves.
    fn state(&mut self) -> Option<&mut dyn State> {
        None
    }
}

/// Takes blocks and gives others.
pub trait Stream: Send {
    /// Is called before the blocks of a batch are taken one by one, for filters whose state is
    /// large: [`Sessions::look_ahead`](super::state::Sessions::look_ahead).
    fn look_ahead(&mut self, _tags: Tags<'_>) {}
    /// Takes one block: passes, consumes, holds or drops it, and may make others.
    fn block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>);
    /// Is called when the path's clock has reached the time that was asked for.
    fn tick<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Is called when no more blocks will come: what is held must leave.
    fn finish<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Returns its report, on request or when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Its state, if it keeps any that moves.
    fn state(&mut self) -> Option<&mut dyn State> {
        None
    }
}

/// Works on a whole batch in place, and may hold blocks and make others: for filters that let most
/// blocks go on as they are and seldom put several together. What stays in its lane costs what it
/// costs in [`Lanes`]; a lane ends where its block is held, dropped or used up, and may get a block
/// that was made ([`StreamContext::replace`]).
pub trait HoldingLanes: Send {
    /// Looks at, narrows, holds, replaces or ends the live lanes. What is given out here by other
    /// means goes on behind the batch.
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>);
    /// See [`Stream::tick`].
    fn tick<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// See [`Stream::finish`].
    fn finish<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Returns its report, on request or when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Its state, if it keeps any that moves.
    fn state(&mut self) -> Option<&mut dyn State> {
        None
    }
}

/// A filter's or sink's own report at the end of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Lines: a name, and how much, in the order in which they are printed.
    pub rows: Vec<(String, u64)>,
    /// Persistent outputs of a sink.
    pub outputs: Vec<Delivered>,
    /// Sentences that a person should read besides, though nothing has failed.
    pub remarks: Vec<String>,
}

/// Things of one kind that a sink has put somewhere: "6 packets written to x.pcap".
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    /// Number of items.
    pub count: u64,
    /// One of them: `packet`.
    pub unit: String,
    /// Action on the items: `written to x.pcap`.
    pub done: String,
}

impl Report {
    /// A report of these lines.
    #[must_use]
    pub fn of_rows(rows: Vec<(String, u64)>) -> Self {
        Self { rows, ..Self::default() }
    }

    /// Returns true if it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.outputs.is_empty() && self.remarks.is_empty()
    }

    /// Adds things that were put somewhere.
    #[must_use]
    pub fn put(mut self, count: u64, unit: &str, done: String) -> Self {
        self.outputs.push(Delivered { count, unit: unit.to_owned(), done });
        self
    }
}

/// A filter ready to be called once per batch.
pub enum Filter {
    /// Sees rich pointers.
    Statistics(Box<dyn Statistics>),
    /// Keeps blocks in their lanes.
    Lanes(Box<dyn Lanes>),
    /// Changes blocks in their lanes.
    Edit(Box<dyn Edit>),
    /// Takes blocks and gives others.
    Stream(Box<dyn StreamBatches>),
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Statistics(_) => "Filter::Statistics",
            Self::Lanes(_) => "Filter::Lanes",
            Self::Edit(_) => "Filter::Edit",
            Self::Stream(_) => "Filter::Stream",
        })
    }
}

impl Filter {
    /// A statistics filter.
    pub fn statistics(f: impl Statistics + 'static) -> Self {
        Self::Statistics(Box::new(f))
    }

    /// A classifier, called in a loop over the live lanes.
    pub fn classify(f: impl Classify + 'static) -> Self {
        Self::Lanes(Box::new(Each(f)))
    }

    /// A filter that changes blocks, called in a loop over the live lanes.
    pub fn edit(f: impl Edit + 'static) -> Self {
        Self::Edit(Box::new(f))
    }

    /// A filter that works on batches in place.
    pub fn lanes(f: impl Lanes + 'static) -> Self {
        Self::Lanes(Box::new(f))
    }

    /// A filter that takes blocks and gives others, called in a loop over the live lanes.
    pub fn stream(f: impl Stream + 'static) -> Self {
        Self::Stream(Box::new(EachBlock(f)))
    }

    /// A filter that works on batches in place and may hold blocks.
    pub fn holding(f: impl HoldingLanes + 'static) -> Self {
        Self::Stream(Box::new(InPlace(f)))
    }

    /// Returns the filter's report.
    #[must_use]
    pub fn report(&self) -> Report {
        match self {
            Self::Statistics(f) => f.report(),
            Self::Lanes(f) => f.report(),
            Self::Edit(f) => f.report(),
            Self::Stream(f) => f.report(),
        }
    }

    /// The filter's state, if it keeps any that moves.
    pub fn state(&mut self) -> Option<&mut dyn State> {
        match self {
            Self::Statistics(f) => f.state(),
            Self::Lanes(f) => f.state(),
            Self::Edit(f) => f.state(),
            Self::Stream(f) => f.state(),
        }
    }
}

/// A [`Stream`] called once per batch, or [`HoldingLanes`]. Authors write one of these; this is
/// what the engine calls.
pub trait StreamBatches: Send {
    /// Takes the live blocks.
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>);
    /// Returns true if the blocks that `process` leaves in the batch go on, ahead of those it gave
    /// out.
    fn in_place(&self) -> bool {
        false
    }
    /// See [`Stream::tick`].
    fn tick<'a>(&mut self, cx: &mut StreamContext<'_, 'a>);
    /// See [`Stream::finish`].
    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>);
    /// See [`Stream::report`].
    fn report(&self) -> Report;
    /// See [`Stream::state`].
    fn state(&mut self) -> Option<&mut dyn State>;
}

struct Each<F>(F);

impl<F: Classify> Lanes for Each<F> {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        let answer = |block: &mut Block<'a>| self.0.classify(block, &mut cx.tell);
        if F::SETS_MARKS {
            batch.classify::<true>(answer);
        } else {
            batch.classify::<false>(answer);
        }
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    fn state(&mut self) -> Option<&mut dyn State> {
        self.0.state()
    }
}

struct EachBlock<F>(F);

impl<F: Stream> StreamBatches for EachBlock<F> {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>) {
        self.0.look_ahead(batch.tags());
        cx.each(batch, |cx, block| self.0.block(block, cx));
    }

    fn in_place(&self) -> bool {
        true
    }

    fn tick<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        self.0.tick(cx);
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        self.0.finish(cx);
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    fn state(&mut self) -> Option<&mut dyn State> {
        self.0.state()
    }
}

struct InPlace<F>(F);

impl<F: HoldingLanes> StreamBatches for InPlace<F> {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>) {
        self.0.process(batch, cx);
    }

    fn in_place(&self) -> bool {
        true
    }

    fn tick<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        self.0.tick(cx);
    }

    fn finish<'a>(&mut self, cx: &mut StreamContext<'_, 'a>) {
        self.0.finish(cx);
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    fn state(&mut self) -> Option<&mut dyn State> {
        self.0.state()
    }
}
