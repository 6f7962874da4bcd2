//! The output half of a program: a source that reads the program's standard output.
//!
//! The source emits the output of the program as blocks, each as soon as data is available. The
//! source ends when the program's output ends. When the path stops, the source first reads the
//! output that is still buffered.

use super::child::{Process, SUSPENSION_CHECK_INTERVAL};
use crate::source::input::Input as Pipe;
use crate::source::read::ReadSource;
use crate::{Failure, Intake, Source, SourceCounters, SourceProperties, SourceStatus};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Maximum size, in bytes, of a block of a program's output. It equals the default capacity of a
/// pipe (pipe(7)).
const BLOCK_SIZE_MAX: usize = 64 * 1024;

/// The interval [`SUSPENSION_CHECK_INTERVAL`] in ns.
const SUSPENSION_CHECK_NS: u64 = SUSPENSION_CHECK_INTERVAL.as_nanos() as u64;

/// A source that reads the standard output of a program.
#[derive(Debug)]
pub(super) struct ProgramOutput {
    /// Read end of the pipe from the program's standard output, or `None` after the source has been
    /// closed.
    pipe: Option<ReadSource>,
    process: Arc<Process>,
    counters: SourceCounters,
    ended: bool,
}

impl ProgramOutput {
    pub(super) fn new(pipe: Pipe, process: Arc<Process>, origin: u16) -> Self {
        let pipe = Some(ReadSource::new(pipe, BLOCK_SIZE_MAX, false, origin));
        Self { pipe, process, counters: SourceCounters::default(), ended: false }
    }
}

impl Source for ProgramOutput {
    fn produce(&mut self, intake: &mut Intake<'_>) -> Result<SourceStatus, Failure> {
        let Some(pipe) = &mut self.pipe else { return Ok(SourceStatus::End) };
        let status = pipe.produce(intake);
        self.counters = pipe.counters();
        self.ended |= matches!(status, Ok(SourceStatus::End));
        match status {
            Ok(SourceStatus::Wait { until: None, readable }) if self.process.kill_if_stalled() => {
                let until = Some(intake.now.saturating_add(SUSPENSION_CHECK_NS));
                Ok(SourceStatus::Wait { until, readable })
            }
            status => status,
        }
    }

    fn counters(&self) -> SourceCounters {
        self.counters.clone()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref()?.descriptor()
    }

    fn stop(&mut self) -> bool {
        if self.process.is_first_in_request() {
            self.process.request_exit();
        }
        !self.ended
    }

    fn close(&mut self) {
        // The exit is requested before the pipe is closed, so that the failure caused by the closed
        // pipe is not reported.
        if !self.ended {
            self.process.request_exit();
        }
        self.pipe = None;
    }

    fn properties(&self) -> SourceProperties {
        let process = Some(Arc::clone(&self.process));
        SourceProperties { process, ..SourceProperties::default() }
    }
}
