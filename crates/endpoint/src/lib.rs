//! Sources and sinks of requests.
//!
//! A source stores bytes in the pool of its space and describes each block with an entry. A sink
//! consumes batches of blocks. Both access files, standard streams and network interfaces through
//! `sys`, `rustix` or `std`. [SL §5.5], [Th §5.3.2 "Source"]
//!
//! Read [`contract`] first, then [`catalog`] (the list), then any source or sink.
#![forbid(unsafe_code)]

mod batch_limit;
pub mod catalog;
mod class_selection;
pub mod contract;
mod drop_reason;
pub mod entry;
pub mod external_writers;
mod failure;
pub mod history;
mod loss_ranges;
pub mod message;
pub mod named_endpoints;
mod open_arguments;
mod origins;
pub mod permitted_readers;
pub mod process;
pub mod shared_prefix;
pub mod sink;
pub mod source;
mod source_counts;
mod source_status;
mod stop_limit;
pub mod tap_ring;

pub use catalog::{PROCESS_ENTRIES, SINKS, SOURCES};
pub use class_selection::ClassSelection;
pub use contract::{
    BatchLimit, FileReadPosition, Intake, NextBlockTime, OpenArguments, Sink, Source,
    SourceCounters, SourceProperties, SourceStatus,
};
pub use drop_reason::{DropReason, deserialize_interned_keys};
pub use entry::{ProcessEntry, SinkEntry, SourceEntry};
pub use failure::Failure;
pub use history::RetainedFrames;
pub use interface::one_way_capture_reason;
pub use loss_ranges::{Gap, LossRanges};
pub use named_endpoints::RingState;
pub use origins::Origins;

mod interface;
mod timestamp_text;

#[cfg(test)]
mod testing;
