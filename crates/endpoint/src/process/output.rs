//! The half of a program from which blocks come: a source over its standard output.
//!
//! In: what the program writes. Out: blocks of bytes, each as soon as anything is there. The source
//! ends with the program's output, not with the path: what is under way is taken first.

use super::Process;
use crate::source::input::Input as Pipe;
use crate::source::read::Read;
use crate::{Failure, Given, Intake, Seen, Source, SourceProperties};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The largest block: the default capacity of a pipe (pipe(7)).
const BLOCK: usize = 64 * 1024;

/// The standard output of a program.
#[derive(Debug)]
pub(super) struct Output {
    /// The reading end, until its output is not wanted any more.
    pipe: Option<Read>,
    process: Arc<Process>,
    seen: Seen,
    ended: bool,
}

impl Output {
    pub(super) fn new(pipe: Pipe, process: Arc<Process>, origin: u16) -> Self {
        let pipe = Some(Read::new(pipe, BLOCK, false, origin));
        Self { pipe, process, seen: Seen::default(), ended: false }
    }
}

impl Source for Output {
    fn give(&mut self, intake: &mut Intake<'_>) -> Result<Given, Failure> {
        let Some(pipe) = &mut self.pipe else { return Ok(Given::End) };
        let given = pipe.give(intake);
        self.seen = pipe.seen();
        self.ended |= matches!(given, Ok(Given::End));
        given
    }

    fn seen(&self) -> Seen {
        self.seen.clone()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref()?.descriptor()
    }

    fn stop(&mut self) -> bool {
        if self.process.is_head() {
            self.process.release();
        }
        !self.ended
    }

    fn close(&mut self) {
        // First, so that nobody takes what the closed pipe does to it for a mistake of its own.
        if !self.ended {
            self.process.release();
        }
        self.pipe = None;
    }

    fn properties(&self) -> SourceProperties {
        let process = Some(Arc::clone(&self.process));
        SourceProperties { process, ..SourceProperties::default() }
    }
}
