//! Contexts passed to a filter call: count, edit, append, hold, release, set a wake-up.
//!
//! They are concrete structs; only the gateway behind them is virtual, and rarely called. [SL
//! §6.1], [Th §5.3.3] (`slblock_writable` is [`LaneContext::edit`]).

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
