//! The options of a run, which are not part of the request.

use crate::additions::RegistryAdditions;
use crate::notice::Notices;
use engine::kernel::InjectedRefusal;
use std::path::PathBuf;
use std::time::Duration;
use sys::rollback::RollbackLog;

/// The options of a run that are not part of the request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Number of blocks that the sinks receive before the run ends; `None` for no limit.
    pub count: Option<u64>,
    /// Time after which the run ends, or `None` for no limit.
    pub time: Option<Duration>,
    /// True to measure the time that the run spends in each filter.
    pub timed: bool,
    /// True to make the kernel also measure the run time of its programs.
    pub programs_timed: bool,
    /// True to run without the daemon: the path is not registered, and kernel programs need this
    /// process's own privileges.
    pub embedded: bool,
    /// True to keep every filter out of the kernel.
    pub outside_kernel: bool,
    /// Name of the path in the daemon's registry; `None` for no name. With a name, the run fails
    /// without a daemon, as if `registered` were true.
    pub name: Option<String>,
    /// True to fail if no daemon registers the path, instead of running unregistered.
    pub registered: bool,
    /// Log file of the run, if any. The daemon reports its name to clients.
    pub log: Option<PathBuf>,
    /// Number of bytes of output that each source retains for taps that start in the past; `None`
    /// to retain nothing.
    pub history: Option<usize>,
    /// File to create for a record, from which the run can be replayed; `None` for no record.
    pub record: Option<PathBuf>,
    /// Maximum size of the record in bytes; `None` for 1 GiB.
    pub record_bytes: Option<u64>,
    /// True to save the blocks on which filters panicked as captures in the user's state directory.
    pub captures_crashes: bool,
    /// True if this process runs a shared prefix, that is, the beginning of other requests. The run
    /// then ends when no readers are left.
    pub serves_prefix: bool,
    /// True if the run may read the output of a shared prefix that is already running, although the
    /// request has no option `--prefix=`. The run then does not run the filters of the prefix
    /// itself.
    pub joins_prefixes: bool,
    /// Program to start for workers, untrusted filters and shared prefixes; `None` for this
    /// program. For shared prefixes, it must be the command `streamline`. Otherwise, any program
    /// that calls [`serve_if_asked`](crate::serve_if_asked) is suitable.
    pub helper: Option<PathBuf>,
    /// Filters, sources, sinks and pipe ends of the calling program.
    pub own: RegistryAdditions,
    /// Callback for messages to the user; the default discards them.
    pub notices: Notices,
    /// Rollback log of the run's start: if the start fails, it releases the resources that were
    /// acquired. Tests can make its steps fail.
    pub steps: RollbackLog,
    /// Refusal by the kernel that a test simulates: of loading a program, of attaching a program,
    /// or of a filter.
    pub injected_refusal: InjectedRefusal,
}

impl Options {
    /// Returns the default options for a run that does not contact the daemon.
    #[must_use]
    pub fn without_daemon() -> Self {
        Self { embedded: true, ..Self::default() }
    }
}
