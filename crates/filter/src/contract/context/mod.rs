//! Contexts passed to filter calls. Through them a filter counts, edits, appends, holds and
//! releases blocks, and requests a wake-up.
//!
//! Contexts are concrete structs. Only the gateway is called through dynamic dispatch, and rarely.
//! [SL §6.1], [Th §5.3.3] (`slblock_writable` corresponds to [`LaneContext::edit`]).

mod counts;
mod gateway;
mod lane;
mod stream;

pub use counts::{Amount, Counter, Counts, Reason};
pub use gateway::{FillFn, Gateway, OldBytes, PinId};
pub use lane::{ClassifyContext, LaneContext};
pub use stream::{Output, StreamContext};

/// Time on the path's clock, in ns. During replay, this is the time of the blocks. In live runs, it
/// is the monotonic time plus a constant: the difference between the time of day and the monotonic
/// time when the path was built. The clock therefore never jumps, and its times can be compared
/// with block times.
pub type Time = u64;
