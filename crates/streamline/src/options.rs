//! The options of a run, which are not part of the request.

use crate::notice::Notices;
use crate::own::Own;
use engine::kernel::InjectedRefusal;
use std::path::PathBuf;
use std::time::Duration;
use sys::steps::Steps;

/// The options of a run that are not part of the request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Number of blocks received by sinks after which the run ends, or `None` for no limit.
    pub count: Option<u64>,
    /// Time after which the run ends, or `None` for no limit.
    pub time: Option<Duration>,
    /// True to measure the time spent in each filter.
    pub timed: bool,
    /// True to let the kernel also measure the run time of its programs.
    pub programs_timed: bool,
    /// True to run without the daemon: unregistered, and with only this process's rights in the
    /// kernel.
    pub embedded: bool,
    /// True to keep every filter out of the kernel.
    pub outside_kernel: bool,
    /// Name of the path in the daemon's registry, which implies `registered`; `None` for no name.
    pub name: Option<String>,
    /// True to fail if no daemon registers the path, instead of running unregistered.
    pub registered: bool,
    /// Log file of the run, which the daemon reports to its clients, if any.
    pub log: Option<PathBuf>,
    /// Bytes of output that each source retains for taps that start in the past; `None` to retain
    /// nothing.
    pub history: Option<usize>,
    /// File to create as a record, from which the run can be replayed; `None` for no record.
    pub record: Option<PathBuf>,
    /// Size limit of the record in bytes; `None` for 1 GiB.
    pub record_bytes: Option<u64>,
    /// True to save blocks that made filters panic as captures in the user's state directory.
    pub captures_crashes: bool,
    /// True if this process serves a shared prefix. The run ends when there are no readers left.
    pub serves_prefix: bool,
    /// True if a request without `--prefix=` joins a shared prefix that runs already.
    pub joins_prefixes: bool,
    /// Program to start for workers and untrusted filters: the command `streamline`, or any program
    /// that calls [`serve_if_asked`](crate::serve_if_asked); for shared prefixes, only the command.
    /// `None` for this program.
    pub helper: Option<PathBuf>,
    /// Filters, sources, sinks and pipe ends of the calling program.
    pub own: Own,
    /// Receiver of messages for people; the default discards them.
    pub notices: Notices,
    /// Rollback log of acquired resources, whose steps tests can make fail.
    pub steps: Steps,
    /// Refusal by the kernel that a test simulates.
    pub refuses: InjectedRefusal,
}

impl Options {
    /// Returns the default options for a run that does not contact the daemon.
    #[must_use]
    pub fn alone() -> Self {
        Self { embedded: true, ..Self::default() }
    }
}
