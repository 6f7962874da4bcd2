//! Streamline as a library: runs a request, which is written in a language modelled on the Unix
//! shell.
//!
//! ```
//! # fn main() -> Result<(), streamline::OpenError> {
//! # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
//! let request = format!("replay {capture} | tcp | http |get count");
//! let running = streamline::open(&request, streamline::Options::without_daemon())?;
//! let results = running.wait()?;
//! println!("{}", results.report().summary_sentence());
//! # assert_eq!(results.report().lost_blocks(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! [`open`] parses the request, plans it for this machine, builds it (replanning if the kernel
//! refuses a filter), registers it with the machine's daemon, and starts it. The steps are also
//! available one by one: [`PreparedRequest::read`], [`PreparedRequest::build`],
//! [`ReadyRequest::run`]. The command line, the C library and the Python module are front ends to
//! these functions.
//!
//! [`Running::change`] applies an [`Edit`] to a running request, as `streamline set` does.
//!
//! A program adds its own filters, sources and sinks in an [`RegistryAdditions`], and exchanges
//! byte streams with a running request through pipes ([`RegistryAdditions::pipe_from_sink`],
//! [`RegistryAdditions::pipe_to_source`]).
//!
//! The library installs no signal handler, never ends the process, and writes to standard output
//! only for sinks that the request names. Messages for users are passed to [`Options::notices`].
//! Worker processes (`--engines`) and untrusted filters run in new processes. The processes run the
//! program named in [`Options::helper`] or, if none is named, the calling program, which must then
//! call [`serve_if_asked`] at the start of `main`.
#![forbid(unsafe_code)]

mod additions;
pub mod analysis;
mod build;
pub mod capture;
mod crash;
mod error;
pub mod figures;
mod hosts;
pub mod metrics;
pub mod neighbors;
mod notice;
mod observer;
mod options;
pub mod paths;
mod prefix;
mod prepared;
pub mod privilege;
mod ready;
pub mod record;
mod registration;
pub mod report;
mod running;
mod serve;
mod snapshot;
mod workers;

pub use additions::RegistryAdditions;
pub use crash::replace_sources;
pub use engine::change::{ChangeError, SwitchReport};
pub use engine::ids;
pub use error::OpenError;
pub use member::dbuf_ids::use_daemon_dbuf_ids;
pub use notice::{CrashCapture, Notice, Notices};
pub use observer::Observer;
pub use options::Options;
pub use prepared::{PreparedRequest, read_graph};
pub use ready::{FinishedRun, ReadyRequest, RunResults};
pub use report::Report;
pub use running::Running;
pub use serve::{CompletedTask, serve_if_asked};
pub use workers::run::WorkerRun;

pub use endpoint::named_endpoints;
pub use endpoint::{Failure, Sink, SinkEntry, Source, SourceEntry};
pub use engine::run::StopConditions;
pub use filter;
pub use pipeline::edit::{Edit, InvalidEdit, NodeOutput, PathMove, Position};

/// Reads, plans, builds and registers a request, and runs it on its own threads.
///
/// Returns as soon as the paths are running. If an error occurs, nothing remains allocated or
/// registered.
pub fn open(request: &str, options: Options) -> Result<Running, OpenError> {
    PreparedRequest::read(request, &options)?.build(&options)?.start(&options)
}
