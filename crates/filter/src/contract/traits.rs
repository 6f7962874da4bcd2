//! The six traits that a filter can implement. Each signature grants only the rights of its kind:
//! [Th Table 5.1].
//!
//! | trait | sees | may |
//! |---|---|---|
//! | [`Statistics`] | rich pointers | count |
//! | [`Classify`] | one block | return a class, set marks |
//! | [`Edit`] | one block | also change bytes, in place if no other reader sees them |
//! | [`LaneFilter`] | a batch | move the view, edit copies, end lanes |
//! | [`Stream`] | one block at a time | hold, release and append blocks, request a wake-up |
//! | [`HoldingLanes`] | a batch | all of the above; for filters that hold few blocks |

use super::batch::{Batch, Block, MetadataView};
use super::context::{ClassifyContext, LaneContext, StreamContext, Time};
use super::edit::Edit;
use super::report::Report;
use super::state::FilterState;
use super::{Arguments, Mistake};
use abi::Class;

/// A filter that counts blocks and has no access to their bytes.
pub trait Statistics: Send {
    /// Records the live blocks of one batch.
    fn record(&mut self, tags: MetadataView<'_>, now: Time);
    /// Returns the filter's report. The engine calls this on request and when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Returns the filter's sessions, to be saved or moved, or `None` if it has none.
    fn state(&mut self) -> Option<&mut dyn FilterState> {
        None
    }
    /// Changes writable parameters; see [`Filter::set`].
    fn set(&mut self, _: &Arguments) -> Result<(), Mistake> {
        Err(no_writable_parameters_error())
    }
}

/// A filter that returns a class for each block.
pub trait Classify: Send {
    /// True if the space must store the marks that the filter sets, for later filters. Filters that
    /// parse no headers set this to false, which saves one write per block.
    const SETS_MARKS: bool = true;

    /// Returns the class of this block, or the result of [`ClassifyContext::answer_absent`] if the
    /// block has no class.
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class;
    /// Returns the filter's report. The engine calls this on request and when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Returns the filter's sessions, to be saved or moved, or `None` if it has none.
    fn state(&mut self) -> Option<&mut dyn FilterState> {
        None
    }
    /// Changes writable parameters; see [`Filter::set`].
    fn set(&mut self, _: &Arguments) -> Result<(), Mistake> {
        Err(no_writable_parameters_error())
    }
}

/// A filter that processes a batch per call and keeps each block in its lane.
pub trait LaneFilter: Send {
    /// Inspects the blocks in the live lanes, and may narrow or edit blocks and end lanes.
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>);
    /// Returns the filter's report. The engine calls this on request and when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Returns the filter's sessions, to be saved or moved, or `None` if it has none.
    fn state(&mut self) -> Option<&mut dyn FilterState> {
        None
    }
    /// Changes writable parameters; see [`Filter::set`].
    fn set(&mut self, _: &Arguments) -> Result<(), Mistake> {
        Err(no_writable_parameters_error())
    }
}

/// A filter that may hold, replace, drop and create blocks, and receives one block at a time.
pub trait Stream: Send {
    /// Processes one block: passes, consumes, holds or drops it, and may emit additional blocks.
    fn process_block<'a>(&mut self, block: Block<'a>, cx: &mut StreamContext<'_, 'a>);
    /// Called when the path's clock has reached the time set by [`StreamContext::wake_at`].
    fn tick<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Emits, consumes or drops all held blocks. Called once, after the last block.
    fn finish<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Returns the filter's report. The engine calls this on request and when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Returns the filter's sessions, to be saved or moved, or `None` if it has none.
    fn state(&mut self) -> Option<&mut dyn FilterState> {
        None
    }
    /// Changes writable parameters; see [`Filter::set`].
    fn set(&mut self, _: &Arguments) -> Result<(), Mistake> {
        Err(no_writable_parameters_error())
    }
}

/// A filter that processes a batch per call, and may hold, replace and append blocks.
///
/// Meant for filters that pass most blocks unchanged: a block that stays in its lane costs no more
/// than in [`LaneFilter`]. When the block of a lane is held, dropped or consumed, the lane is no
/// longer live, but can receive a new block through [`StreamContext::replace`]. An adapter turns
/// each [`Stream`] filter into a filter of this kind.
pub trait HoldingLanes: Send {
    /// Inspects the blocks in the live lanes, and may narrow, hold or replace blocks and end lanes.
    /// Blocks that are emitted through the context follow the batch.
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>);
    /// Called when the path's clock has reached the time set by [`StreamContext::wake_at`].
    fn tick<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Emits, consumes or drops all held blocks. Called once, after the last block.
    fn finish<'a>(&mut self, _cx: &mut StreamContext<'_, 'a>) {}
    /// Returns the filter's report. The engine calls this on request and when the path stops.
    fn report(&self) -> Report {
        Report::default()
    }
    /// Returns the filter's sessions, to be saved or moved, or `None` if it has none.
    fn state(&mut self) -> Option<&mut dyn FilterState> {
        None
    }
    /// Changes writable parameters; see [`Filter::set`].
    fn set(&mut self, _: &Arguments) -> Result<(), Mistake> {
        Err(no_writable_parameters_error())
    }
}

/// A filter of any kind, in the form in which the engine calls it: once per batch.
pub enum Filter {
    /// A filter that reads rich pointers and metadata, never the bytes of blocks.
    Statistics(Box<dyn Statistics>),
    /// A filter that keeps each block in its lane.
    Lanes(Box<dyn LaneFilter>),
    /// A filter that changes the bytes of blocks and keeps each block in its lane.
    Edit(Box<dyn Edit>),
    /// A filter that may hold and emit blocks.
    Stream(Box<dyn HoldingLanes>),
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
    /// Creates a [`Filter`] from a filter that only counts blocks.
    pub fn statistics(f: impl Statistics + 'static) -> Self {
        Self::Statistics(Box::new(f))
    }

    /// Creates a [`Filter`] from a classifier, which is called for each live lane.
    pub fn classify(f: impl Classify + 'static) -> Self {
        Self::Lanes(Box::new(PerLaneAdapter(f)))
    }

    /// Creates a [`Filter`] from an editing filter, which is called for each live lane.
    pub fn edit(f: impl Edit + 'static) -> Self {
        Self::Edit(Box::new(f))
    }

    /// Creates a [`Filter`] from a filter that processes batches and keeps each block in its lane.
    pub fn lanes(f: impl LaneFilter + 'static) -> Self {
        Self::Lanes(Box::new(f))
    }

    /// Creates a [`Filter`] from a stream filter, which is called for each live lane.
    pub fn stream(f: impl Stream + 'static) -> Self {
        Self::Stream(Box::new(PerBlockAdapter(f)))
    }

    /// Creates a [`Filter`] from a filter that processes batches and may hold blocks.
    pub fn holding_lanes(f: impl HoldingLanes + 'static) -> Self {
        Self::Stream(Box::new(f))
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

    /// Returns the filter's sessions, to be saved or moved, or `None` if it has none.
    pub fn state(&mut self) -> Option<&mut dyn FilterState> {
        match self {
            Self::Statistics(f) => f.state(),
            Self::Lanes(f) => f.state(),
            Self::Edit(f) => f.state(),
            Self::Stream(f) => f.state(),
        }
    }

    /// Applies the values of the writable parameters, without changing state or counters.
    ///
    /// # Errors
    ///
    /// Fails without effect if the filter has no writable parameters, or rejects a value.
    pub fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        match self {
            Self::Statistics(f) => f.set(arguments),
            Self::Lanes(f) => f.set(arguments),
            Self::Edit(f) => f.set(arguments),
            Self::Stream(f) => f.set(arguments),
        }
    }
}

/// Returns the error for an attempt to change parameters of a filter without writable parameters.
pub(super) fn no_writable_parameters_error() -> Mistake {
    let what = "its arguments stay as they are while it runs".to_owned();
    Mistake { parameter: None, value_index: 0, range: None, message: what, hint: None }
}

/// Adapter that calls a classifier for each live lane of a batch.
struct PerLaneAdapter<F>(F);

impl<F: Classify> LaneFilter for PerLaneAdapter<F> {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut LaneContext<'_, 'a>) {
        let answer = |block: &mut Block<'a>| self.0.classify(block, &mut cx.common);
        if F::SETS_MARKS {
            batch.classify::<true>(answer);
        } else {
            batch.classify::<false>(answer);
        }
    }

    fn report(&self) -> Report {
        self.0.report()
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        self.0.state()
    }

    fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        self.0.set(arguments)
    }
}

/// Adapter that calls a stream filter for each live block of a batch.
struct PerBlockAdapter<F>(F);

impl<F: Stream> HoldingLanes for PerBlockAdapter<F> {
    fn process<'a>(&mut self, batch: &mut Batch<'a>, cx: &mut StreamContext<'_, 'a>) {
        cx.for_each_block(batch, |cx, block| {
            self.0.process_block(block, cx);
            None
        });
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

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        self.0.state()
    }

    fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        self.0.set(arguments)
    }
}
