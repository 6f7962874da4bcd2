//! Sources and sinks, one file each.
//!
//! A source puts bytes into the pool of its space and names them by entries; a sink takes batches.
//! Both act on files, standard streams and interfaces through `sys`, `rustix` or `std`. [SL §5.5],
//! [Th §5.3.2 "Source"]
//!
//! Read [`contract`] first, then [`catalog`] (the list), then any source or sink.
#![forbid(unsafe_code)]

pub mod catalog;
pub mod contract;
pub mod history;
mod missing;
mod origins;
pub mod process;
pub mod readers;
mod reason;
pub mod sink;
pub mod source;

pub use catalog::{PROCESSES, SINKS, SOURCES};
pub use contract::{
    Failure, Given, Intake, Opening, Position, ProcessEntry, Seen, Sink, SinkEntry, Source,
    SourceEntry, SourceProperties,
};
pub use interface::sees_one_way;
pub use missing::{Gap, Missing};
pub use origins::Origins;
pub use reason::DropReason;

mod clock;
mod fail;
mod interface;

#[cfg(test)]
mod testing;
