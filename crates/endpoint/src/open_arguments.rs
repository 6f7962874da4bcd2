//! The arguments with which sources and sinks are opened.

use crate::origins::Origins;
use crate::permitted_readers::{ALL_USERS, PermittedReaders};
use filter::{Arguments, Classes, Form, Time};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use sys::memory::SegmentLender;
use sys::rollback::{NO_ROLLBACK_LOG, RollbackLog};

/// Arguments for opening a source or sink.
#[derive(Debug)]
pub struct OpenArguments<'o> {
    /// Arguments from the request, already checked.
    pub arguments: &'o Arguments,
    /// Form of the incoming blocks (sinks only); the first of them if blocks have several forms.
    pub form: Form,
    /// The other forms of the incoming blocks, if branches with several forms meet (sinks only).
    pub other_forms: &'o [Form],
    /// Classes of the incoming blocks, as defined by the nearest classifiers upstream (sinks only).
    /// Several, if branches with different classifiers meet. [`Classes::Same`] stands for blocks
    /// that no filter has classified.
    pub classes: &'o [Classes],
    /// Index of the source among the sources of the path, copied into `BlockMetadata::origin`
    /// (sources only).
    pub origin: u16,
    /// Names of all of the path's sources, by origin (sinks only). The list may grow while the sink
    /// is open.
    pub origins: Origins,
    /// Arguments of the filter that follows this source, if the planner has delegated that filter's
    /// test to the kernel; otherwise `None`. Only for sources whose facts set `accepts_pushdown`.
    pub pushed_filter: Option<&'o Arguments>,
    /// Maximum latency of a block in nanoseconds (T_t): the time after which a ring wakes its
    /// reader even for a few blocks. `None` if the request sets no limit.
    pub latency: Option<Time>,
    /// True if the request may use resources that the user may need for other work (`--force`).
    pub force: bool,
    /// Memory lent by the sources of the path, from which blocks may be sent in place (sinks only).
    pub lent: &'o [Arc<dyn SegmentLender>],
    /// Users who may read all input files of the path (sinks only).
    pub readers: &'o PermittedReaders,
    /// True if blocks arrive at their own rate, and are lost while a sink is slow (sinks only).
    /// False if the source waits for the path, or if the path is recorded. The behavior of the sink
    /// must then not depend on timing.
    pub live: bool,
    /// True after the path has been stopped. A sink that waits for another program must then end
    /// its wait promptly.
    pub stopped: Arc<AtomicBool>,
    /// Log of completed steps, with the actions that undo them after a later failure.
    pub rollback_log: &'o RollbackLog,
}

impl<'o> OpenArguments<'o> {
    /// Creates the arguments for opening a source, or a sink whose input is unclassified frames.
    /// All other fields get default values.
    #[must_use]
    pub fn new(arguments: &'o Arguments) -> Self {
        Self {
            arguments,
            form: Form::Frame,
            other_forms: &[],
            classes: &[],
            origin: 0,
            origins: Origins::default(),
            pushed_filter: None,
            latency: None,
            force: false,
            lent: &[],
            readers: &ALL_USERS,
            live: false,
            stopped: Arc::default(),
            rollback_log: &NO_ROLLBACK_LOG,
        }
    }

    /// Returns all forms that the incoming blocks can have.
    pub fn forms(&self) -> impl Iterator<Item = Form> {
        std::iter::once(self.form).chain(self.other_forms.iter().copied())
    }
}
