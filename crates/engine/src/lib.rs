//! Spaces that run plans: walk, rings between spaces, ledger, control. [SL §6.2, §7]
//!
//! - [`catalogue`]: all that a request may name;
//! - [`compiler`]: libpcap, for the filter expressions that we do not know;
//! - [`keys`]: keys out of files, for the filters that are trusted with one;
//! - [`build`]: from a plan to spaces;
//! - [`run`]: from spaces to an outcome;
//! - [`space`]: a thread, its memory, and the part of the graph that runs in it;
//! - [`ring`]: the two ends of an edge between spaces;
//! - [`ledger`]: what was counted, and whether it balances;
//! - [`record`]: all that a path was given, in one file, to run it again;
//! - [`why`]: what became of a flow in a run that is repeated;
//! - [`kernel`]: the part of a plan that runs in the kernel;
//! - [`seen`]: what filters show that run somewhere on this machine;
//! - [`control`][]: stopping; [`live`]: a running path from outside; [`commands`]: what spaces
//!   execute
//!   between two passes; [`spaces`]: what they have;
//! - [`change`][]: another request in the place of one that runs;
//! - [`sandbox`]: filters that nobody vouches for, each in a process of its own;
//! - [`failure`]: why a path ended early; [`suspect`]: the block on which a filter failed;
//! - [`calibrate`]: what things cost on this machine, measured and kept;
//! - [`machine`]: the machine as the planner takes it; [`doctor`]: as people want to know it.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod build;
pub mod calibrate;
pub mod catalogue;
pub mod change;
pub mod commands;
pub mod compiler;
pub mod control;
pub mod copies;
pub mod doctor;
pub mod failure;
pub mod joint;
pub mod kernel;
pub mod keys;
pub mod latency;
pub mod lateness;
pub mod ledger;
pub mod live;
pub mod machine;
mod names;
mod process;
pub mod record;
pub mod report;
pub mod ring;
pub mod run;
pub mod sandbox;
pub mod seen;
pub mod signal;
pub mod space;
pub mod spaces;
pub mod suspect;
pub mod tap;
pub mod why;

#[cfg(feature = "testing")]
mod testing;
