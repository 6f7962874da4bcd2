//! Contexts passed to a filter call, by which the filter counts, edits, appends, holds and releases
//! blocks, and requests a wake-up.
//!
//! Contexts are concrete structs; only the gateway that they wrap is called dynamically, and
//! rarely. [SL §6.1], [Th §5.3.3] (`slblock_writable` is [`LaneContext::edit`]).

mod counts;
mod gateway;
mod lane;
mod stream;

pub use counts::{Amount, Counter, Counts, Reason};
pub use gateway::{Fill, Gateway, Keep, PinId};
pub use lane::{ClassifyContext, LaneContext};
pub use stream::{Output, StreamContext};

/// Time on the path's clock, in ns: block time in replay, monotonic time in live runs, never
/// wall-clock time.
pub type Time = u64;
