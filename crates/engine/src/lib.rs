//! From plans to running paths, and control over them. [SL §7]
//!
//! - [`catalogue`]: all that a request may name;
//! - [`compiler`]: libpcap, for the filter expressions that we do not know;
//! - [`keys`]: keys out of files, for the filters that are trusted with one;
//! - [`build`]: from a plan to spaces of `runtime`;
//! - [`run`]: from spaces to an outcome; [`joint`]: the outcomes of several processes;
//! - [`live`]: a running path from outside; [`spaces`]: what its spaces have; [`tap`]: looking on;
//! - [`change`][]: another request in the place of one that runs; [`adapt`]: by itself;
//! - [`record`]: all that a path was given, in one file, to run it again;
//! - [`why`]: what became of a flow in a run that is repeated;
//! - [`kernel`]: the part of a plan that runs in the kernel;
//! - [`seen`]: what filters show that run somewhere on this machine;
//! - [`sandbox`]: filters that are not trusted, each in a process of its own;
//! - [`suspect`]: the block on which a filter failed; [`lateness`]: late blocks in words;
//! - [`calibrate`]: what things cost on this machine, measured and kept;
//! - [`machine`]: the machine as the planner takes it; [`doctor`]: as people want to know it.
#![forbid(unsafe_code)]

pub mod adapt;
pub mod build;
pub mod calibrate;
pub mod catalogue;
pub mod change;
pub mod compiler;
mod described;
pub mod digest;
pub mod doctor;
mod error;
pub mod joint;
pub mod kernel;
pub mod keys;
pub mod lateness;
pub mod live;
pub mod machine;
mod names;
mod numbering;
pub mod path;
mod pools;
pub mod record;
pub mod run;
pub mod sandbox;
pub mod seen;
pub mod signal;
pub mod spaces;
pub mod suspect;
pub mod tap;
pub mod why;

#[cfg(feature = "testing")]
mod testing;
