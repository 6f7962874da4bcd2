//! The destination of a report (`--report`): standard output, or a file whose contents are replaced
//! when the report is complete.

use crate::status::Status;
use crate::terminal;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use sys::open::{WriteMode, open_target};

/// The destination of the report of a run (`--report`).
#[derive(Debug)]
pub(crate) enum ReportTarget {
    /// The report is written to standard output.
    Output,
    /// A file, opened before the run starts.
    File(PathBuf, File),
}

impl ReportTarget {
    /// Opens a destination; `-` means standard output. On failure, prints an error and returns the
    /// exit status.
    pub(crate) fn open(path: &Path) -> Result<Self, Status> {
        if path.as_os_str() == "-" {
            return Ok(Self::Output);
        }
        let opened = open_target(path, WriteMode::FromStart, 0o666);
        opened
            .map(|target| Self::File(path.to_owned(), target.file))
            .map_err(|error| print_error(path, &error))
    }

    /// Writes the report to the destination. Returns the exit status.
    pub(crate) fn write(self, text: &str) -> Status {
        match self {
            Self::Output => terminal::print_text(text),
            Self::File(path, mut file) => {
                let written = sys::replace::replace_contents(&path, &mut file, text.as_bytes());
                written.map_or_else(|error| print_error(&path, &error), |()| Status::Done)
            }
        }
    }
}

fn print_error(path: &Path, error: &io::Error) -> Status {
    let (name, why) = (path.display(), terminal::describe_io_error(error));
    terminal::print_error(&format!("cannot write the report to {name}: {why}"));
    Status::Failed
}
