//! Construction of running paths from plans, and their control. [SL §7]
//!
//! - [`registry`]: the names that a request may use;
//! - [`compiler`]: libpcap, for filter expressions that our own compiler does not support;
//! - [`keys`]: key files, for filters that need a secret;
//! - [`build`](mod@build): the spaces of `runtime` that a plan describes;
//! - [`run`](mod@run): runs spaces to their outcome; [`aggregate`]: merges the outcomes of several
//!   processes;
//! - [`live`]: control of a running path; [`spaces`]: the resources of its spaces; [`tap`]: taps of
//!   its nodes;
//! - [`change`][]: replaces the request of a running path; [`adapt`]: automatic changes;
//! - [`record`]: recordings of a path's input, and their replay;
//! - [`why`]: the fate of one flow in a repeated run;
//! - [`kernel`]: the part of a plan that runs in the kernel;
//! - [`published`]: state that filters on this machine publish;
//! - [`sandbox`]: untrusted filters, each in a process of its own;
//! - [`crash_capture`]: a capture of the block on which a filter failed;
//! - [`latency_breach`]: messages about late blocks;
//! - [`calibrate`]: costs on this machine, measured and stored;
//! - [`machine`]: the machine as the planner sees it; [`doctor`]: the facts about the machine that
//!   `streamline doctor` reports.
#![forbid(unsafe_code)]

pub use buffer::ids;

pub mod adapt;
pub mod aggregate;
pub mod build;
pub mod calibrate;
pub mod change;
pub mod compiler;
pub mod crash_capture;
mod description;
pub mod digest;
pub mod doctor;
mod error;
pub mod kernel;
pub mod keys;
pub mod latency_breach;
pub mod live;
mod live_events;
pub mod machine;
mod machine_names;
mod numbering;
pub mod path;
mod pools;
pub mod published;
pub mod record;
pub mod registry;
pub mod run;
pub mod sandbox;
pub mod signal;
pub mod spaces;
pub mod tap;
pub mod why;
pub mod writers;

#[cfg(feature = "testing")]
mod testing;
