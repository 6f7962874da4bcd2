//! Contexts that a filter gets while it is called: count, edit, append, hold, release, be woken.
//!
//! Contexts are concrete structs; only the rare gateway functions behind them are virtual.
//! [SL §6.1], [Th §5.3.3] (`slblock_writable` is [`LaneContext::edit`]).

mod counts;
mod gateway;
mod lane;
mod stream;

pub use counts::{Amount, Counter, Counts, Reason};
pub use gateway::{Fill, Gateway, Keep, Pin};
pub use lane::{LaneContext, Tell};
pub use stream::{Output, StreamContext};

/// The path's clock in ns: block time in replay, monotonic in live runs, never wall clock.
pub type Time = u64;
