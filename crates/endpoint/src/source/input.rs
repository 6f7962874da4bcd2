//! The input of a source: a file or standard input, read without blocking.
//!
//! Regular files are read at once. Pipes, terminals and sockets are asked with poll first whether a
//! read would wait, so that the space stays awake; a FIFO is opened without waiting for its writer.
//! Regular files are locked for reading as far as that is possible, so that no sink of ours
//! overwrites them.

use crate::fail::failed;
use crate::{Failure, Position};
use filter::{EndpointFacts, Observed};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

/// The facts about a source that reads a file: what it observes.
pub(super) const FACTS: EndpointFacts = EndpointFacts {
    observes: Some(|arguments| {
        Observed::File(arguments.text("file").unwrap_or_default().to_owned())
    }),
    ..EndpointFacts::NONE
};

/// A file or standard input.
#[derive(Debug)]
pub(crate) struct Input {
    file: File,
    target: String,
    /// True if a read may have to wait.
    waits: bool,
    /// True if the lock is ours; a shell's lock on standard input is not.
    locked: bool,
}

impl Drop for Input {
    /// Unlocks by hand: a child that is being started still has a copy of the descriptor for a
    /// moment.
    fn drop(&mut self) {
        if self.locked {
            let _ = self.file.unlock();
        }
    }
}

/// The result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Got {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet: wait for the descriptor.
    Nothing,
    /// Nothing will come any more.
    End,
}

impl Input {
    /// The file with this name; `-` is standard input.
    pub(crate) fn open(path: &str) -> Result<Self, Failure> {
        if path == "-" {
            let target = "standard input".to_owned();
            let fd = io::stdin().as_fd().try_clone_to_owned();
            let file = File::from(fd.map_err(|error| failed("open", &target, &error))?);
            return Self::over(file, target);
        }
        let no_wait = OFlags::NONBLOCK.bits().cast_signed();
        let opened = OpenOptions::new().read(true).custom_flags(no_wait).open(path);
        let file = opened.map_err(|error| failed("open", path, &error))?;
        let mut input = Self::over(file, path.to_owned())?;
        // Who writes it already may go on: reading a growing file is a thing that people do.
        input.locked = !input.waits && input.file.try_lock_shared().is_ok();
        Ok(input)
    }

    /// Wraps an open descriptor.
    pub(crate) fn over(file: File, target: String) -> Result<Self, Failure> {
        let meta = file.metadata().map_err(|error| failed("read", &target, &error))?;
        if meta.is_dir() {
            let failure = Failure::new("read", target, "it is a directory");
            return Err(failure.hint("name a file in it"));
        }
        Ok(Self { file, target, waits: !meta.is_file(), locked: false })
    }

    /// Returns the target, for messages.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Returns true if bytes may come later, unlike those of a regular file.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the position in a regular file.
    pub(crate) fn position(&self) -> Option<Position> {
        let mut file = &self.file;
        let read = file.stream_position().ok().filter(|_| !self.waits)?;
        let size = self.file.metadata().ok()?.len();
        Some(Position { read, size })
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.waits.then(|| self.file.as_fd())
    }

    /// The first bytes of a regular file, without reading them; nothing where that is impossible.
    pub(crate) fn peek(&self, room: &mut [u8]) -> Result<usize, Failure> {
        if self.waits {
            return Ok(0);
        }
        self.file.read_at(room, 0).map_err(|error| failed("read", &self.target, &error))
    }

    /// Reads what is there.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> Result<Got, Failure> {
        loop {
            if self.waits && !self.is_ready() {
                return Ok(Got::Nothing);
            }
            match self.file.read(room) {
                Ok(0) => return Ok(Got::End),
                Ok(count) => return Ok(Got::Bytes(count)),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    ErrorKind::WouldBlock => return Ok(Got::Nothing),
                    _ => return Err(failed("read", &self.target, &error)),
                },
            }
        }
    }

    /// Returns true if a read would not block: there are bytes, the writer has gone, or there is an
    /// error to report.
    fn is_ready(&self) -> bool {
        let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&at_once)).is_ok_and(|count| count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TempDir, refused};
    use std::io::Write;

    #[test]
    fn a_pipe_is_never_waited_for() {
        let (reader, mut writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        let mut input = Input::over(file, "a pipe".to_owned()).unwrap();
        let mut room = [0; 16];
        assert!(input.descriptor().is_some());
        assert_eq!(input.read(&mut room).unwrap(), Got::Nothing);
        writer.write_all(b"hello").unwrap();
        assert_eq!(input.read(&mut room).unwrap(), Got::Bytes(5));
        assert_eq!(input.read(&mut room).unwrap(), Got::Nothing);
        drop(writer);
        testkit::closed(input.descriptor().unwrap());
        assert_eq!(input.read(&mut room).unwrap(), Got::End);
    }

    #[test]
    fn a_fifo_without_a_writer_is_opened_and_then_read() {
        let dir = TempDir::new();
        let path = dir.path("fifo");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let mut input = Input::open(&path).unwrap();
        let mut room = [0; 16];
        assert_eq!(input.read(&mut room).unwrap(), Got::Nothing);
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(b"late").unwrap();
        assert_eq!(input.read(&mut room).unwrap(), Got::Bytes(4));
    }

    #[test]
    fn refusals_name_the_file_and_the_reason() {
        let dir = TempDir::new();
        let missing = refused(Input::open(&dir.path("none"))).to_string();
        assert!(missing.ends_with("none: no such file or directory"), "{missing}");
        let directory = refused(Input::open(&dir.path(""))).to_string();
        assert!(directory.ends_with("it is a directory; name a file in it"), "{directory}");
        let mut wrong = Input::over(
            OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.path("w"))
                .unwrap(),
            "w".to_owned(),
        )
        .unwrap();
        let failure = refused(wrong.read(&mut [0; 4])).to_string();
        assert_eq!(failure, "cannot read w: bad file descriptor");
    }
}
