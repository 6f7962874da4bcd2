//! Where bytes enter and leave: one file per source and sink.
//!
//! A source puts bytes into the pool of its space and names them by entries; a sink takes batches. What
//! they do to the outside world (files, standard streams, interfaces) they do through `sys` or `std`.
//! [SL §5.5], [Th §5.3.2 "Source"]
#![forbid(unsafe_code)]

pub mod contract;

pub use contract::{Failure, Given, Intake, Opening, Seen, Sink, SinkEntry, Source, SourceEntry};
