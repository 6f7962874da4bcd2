//! Non-blocking reads from a file or standard input.
//!
//! Regular files are read directly. Pipes, terminals and sockets are polled first, so that a read
//! never blocks the space. A FIFO is opened without waiting for its writer. A regular file is
//! locked for reading if possible, so that no sink of Streamline overwrites it in the meantime.

use crate::failure::failure_from_io_error;
use crate::{Failure, FileReadPosition};
use filter::{EndpointFacts, ObservedSource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// Facts for the planner about sources that read a file. Two such sources read the same input if
/// they name the same file.
pub(super) const READ_SOURCE_FACTS: EndpointFacts = EndpointFacts {
    observed_source: Some(|arguments| {
        ObservedSource::File(arguments.text("file").unwrap_or_default().to_owned())
    }),
    ..EndpointFacts::NONE
};

/// An open file or standard input.
#[derive(Debug)]
pub(crate) struct Input {
    file: File,
    target: String,
    /// True if a read may block, which holds for all inputs except regular files.
    may_block: bool,
    /// True if this input has locked the file. If the shell has locked standard input instead, this
    /// input does not release that lock.
    is_locked: bool,
}

impl Drop for Input {
    /// Unlocks the file explicitly, because a child process between fork and exec still has a copy
    /// of the descriptor, which would hold the lock.
    fn drop(&mut self) {
        if self.is_locked {
            let _ = self.file.unlock();
        }
    }
}

/// Result of a read from an input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadOutcome {
    /// The number of bytes that were read; never 0.
    Bytes(usize),
    /// No input has arrived yet. The space polls the descriptor of the input.
    Nothing,
    /// The end of the input has been reached.
    End,
}

impl Input {
    /// Opens the file with this path; `-` is standard input.
    pub(crate) fn open(path: &str) -> Result<Self, Failure> {
        if path == "-" {
            let target = "standard input".to_owned();
            let fd = io::stdin().as_fd().try_clone_to_owned();
            let file =
                File::from(fd.map_err(|error| failure_from_io_error("open", &target, &error))?);
            return Self::from_file(file, target);
        }
        let no_wait = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(no_wait).open(path);
        let file = opened.map_err(|error| failure_from_io_error("open", path, &error))?;
        let mut input = Self::from_file(file, path.to_owned())?;
        // A failure to lock is ignored, because users often follow a file that is still being
        // written.
        input.is_locked = !input.may_block && input.file.try_lock_shared().is_ok();
        Ok(input)
    }

    /// Wraps an open descriptor. Fails if it is a directory.
    pub(crate) fn from_file(file: File, target: String) -> Result<Self, Failure> {
        let meta =
            file.metadata().map_err(|error| failure_from_io_error("read", &target, &error))?;
        if meta.is_dir() {
            let failure = Failure::new("read", target, "it is a directory");
            return Err(failure.with_hint("name a file in it"));
        }
        Ok(Self { file, target, may_block: !meta.is_file(), is_locked: false })
    }

    /// Returns the name of the input, for use in messages.
    pub(crate) fn name_for_messages(&self) -> &str {
        &self.target
    }

    /// Returns true if a read may block; false for a regular file.
    pub(crate) const fn may_block(&self) -> bool {
        self.may_block
    }

    /// Returns the read position in a regular file, or `None` for other inputs.
    pub(crate) fn position(&self) -> Option<FileReadPosition> {
        let mut file = &self.file;
        let read = file.stream_position().ok().filter(|_| !self.may_block)?;
        let size = self.file.metadata().ok()?.len();
        Some(FileReadPosition { read, size })
    }

    /// Returns the descriptor of the input, which the space polls, or `None` for a regular file.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.may_block.then(|| self.file.as_fd())
    }

    /// Copies the first bytes of a regular file to `room` without moving the read position. Returns
    /// the number of bytes copied, which is 0 for other inputs.
    pub(crate) fn peek(&self, room: &mut [u8]) -> Result<usize, Failure> {
        if self.may_block {
            return Ok(0);
        }
        self.file
            .read_at(room, 0)
            .map_err(|error| failure_from_io_error("read", &self.target, &error))
    }

    /// Reads the bytes that are available into `room`, without blocking.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> Result<ReadOutcome, Failure> {
        loop {
            if self.may_block && !self.is_ready() {
                return Ok(ReadOutcome::Nothing);
            }
            match self.file.read(room) {
                Ok(0) => return Ok(ReadOutcome::End),
                Ok(count) => return Ok(ReadOutcome::Bytes(count)),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(ReadOutcome::Nothing),
                    _ => return Err(failure_from_io_error("read", &self.target, &error)),
                },
            }
        }
    }

    /// Returns true if a read would not block: bytes are available, the writer has closed its end,
    /// or an error is pending.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TempDir, expect_failure};
    use std::io::Write;

    #[test]
    fn pipe_read_never_blocks() {
        let (reader, mut writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let mut input = Input::from_file(file, "a pipe".to_owned()).unwrap();
        let mut room = [0; 16];
        assert!(input.descriptor().is_some());
        assert_eq!(input.read(&mut room).unwrap(), ReadOutcome::Nothing);
        writer.write_all(b"hello").unwrap();
        assert_eq!(input.read(&mut room).unwrap(), ReadOutcome::Bytes(5));
        assert_eq!(input.read(&mut room).unwrap(), ReadOutcome::Nothing);
        drop(writer);
        testkit::wait_until_closed(input.descriptor().unwrap());
        assert_eq!(input.read(&mut room).unwrap(), ReadOutcome::End);
    }

    #[test]
    fn fifo_opens_without_writer_and_reads_later() {
        let dir = TempDir::new();
        let path = dir.path("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut input = Input::open(&path).unwrap();
        let mut room = [0; 16];
        assert_eq!(input.read(&mut room).unwrap(), ReadOutcome::Nothing);
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"late").unwrap();
        assert_eq!(input.read(&mut room).unwrap(), ReadOutcome::Bytes(4));
    }

    #[test]
    fn failures_name_file_and_reason() {
        let dir = TempDir::new();
        let missing = expect_failure(Input::open(&dir.path("none"))).to_string();
        assert!(missing.ends_with("none: no such file or directory"), "{missing}");
        let directory = expect_failure(Input::open(&dir.path(""))).to_string();
        assert!(directory.ends_with("it is a directory; name a file in it"), "{directory}");
        let mut wrong = Input::from_file(
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.path("w"))
                .unwrap(),
            "w".to_owned(),
        )
        .unwrap();
        let failure = expect_failure(wrong.read(&mut [0; 4])).to_string();
        assert_eq!(failure, "cannot read w: bad file descriptor");
    }
}
