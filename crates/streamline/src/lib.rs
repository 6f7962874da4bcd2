//! Streamline as a library: a request in the language of the Unix shell, from text to outcome.
//!
//! ```
//! # fn main() -> Result<(), streamline::OpenError> {
//! # let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/web.pcap");
//! let request = format!("replay {capture} | tcp | http |get count");
//! let running = streamline::open(&request, streamline::Options::alone())?;
//! let results = running.wait()?;
//! println!("{}", results.report().sentence());
//! # assert_eq!(results.report().lost(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! [`open`] reads the request, plans it for this machine, builds it (again, in another place, where
//! the kernel refuses), registers it with the machine's daemon and starts it. The three steps can
//! be taken one by one: [`Prepared::read`], [`Prepared::build`], [`Ready::run`]. Every door of the
//! project stands on them; the command line only prints.
//!
//! Filters, sources and sinks of the program around are named in an [`Own`]; a stream of bytes goes
//! in or out through an [`end`](Own::output).
//!
//! This library installs no signal handler, never ends the process, and writes to standard output
//! for sinks alone that the request names. Sentences for people go to [`Options::notices`]. Worker
//! processes (`--engines`) and untrusted filters are programs that serve as such: this one, if it
//! called [`serve_if_asked`] first of all, or the one that [`Options::helper`] names.
#![forbid(unsafe_code)]

pub mod analysis;
mod crash;
mod error;
mod hosts;
mod membership;
mod options;
mod own;
mod prepared;
mod ready;
pub mod record;
pub mod report;
mod running;
mod workers;

pub use crash::{CrashCapture, replaced};
pub use error::OpenError;
pub use options::{Notice, Notices, Options};
pub use own::Own;
pub use prepared::{Prepared, read};
pub use ready::{Finished, Ready, Results};
pub use report::Report;
pub use running::Running;
pub use workers::WorkerRun;

pub use endpoint::{Failure, Sink, SinkEntry, Source, SourceEntry};
pub use engine::run::Until;
pub use filter;

use std::sync::atomic::{AtomicBool, Ordering};

/// Opens a request: reads, plans, builds and registers it, and runs it in threads of its own.
///
/// Returns once its paths run. An error leaves nothing behind.
pub fn open(request: &str, options: Options) -> Result<Running, OpenError> {
    Prepared::read(request, &options)?.build(&options)?.start(&options)
}

/// A task of this process, if it was started for one.
#[derive(Debug)]
#[must_use]
pub enum Served {
    /// It ran an untrusted filter, and is to end with this status.
    Filter(u8),
    /// It ran a request as one of several workers.
    Worker(Result<(), OpenError>),
}

/// True once this program has said that it serves.
static SERVES: AtomicBool = AtomicBool::new(false);

/// Runs an untrusted filter or a worker, if this process was started for that; the program ends
/// then. Otherwise lets this program be started for either: a program calls it first of all.
pub fn serve_if_asked(notices: &Notices) -> Option<Served> {
    if let Some(status) = engine::sandbox::serve_if_asked() {
        return Some(Served::Filter(status));
    }
    if let Some(served) = workers::serve_if_asked(notices) {
        return Some(Served::Worker(served));
    }
    SERVES.store(true, Ordering::Relaxed);
    None
}

/// Returns true if this program can be started as a worker.
fn serves() -> bool {
    SERVES.load(Ordering::Relaxed)
}
