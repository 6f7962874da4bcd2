//! Where a sink writes its bytes: a file or standard output, behind a buffer that knows its blocks.
//!
//! In: the bytes of one block after another. Out: one write per 64 KB, or when somebody wants to
//! see what is there. After a failure [`Out::written`] tells exactly how many blocks left in whole,
//! which is what the ledger needs. A file is emptied at the first write, not when it is opened, so
//! that a request that fails elsewhere leaves the old contents; one that was made for it goes again
//! as long as it is empty. Regular files are locked while they
//! are written, so that nobody writes into the capture that a `replay` still reads.

use crate::Failure;
use crate::fail::failed;
use crate::readers::Making;
use filter::Amount;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use sys::steps::{Makes, Steps};

/// How many bytes are gathered before they are written.
const FULL: usize = 64 * 1024;
/// How many bytes a message has at most besides its first.
const MESSAGE: usize = 32 * 1024;

/// A file or standard output.
#[derive(Debug)]
pub(crate) struct Out {
    file: File,
    target: String,
    /// Whether a closed pipe means that the reader has seen enough.
    standard: bool,
    /// Whether a person watches, so that nothing should wait in the buffer.
    interactive: bool,
    /// Whether it is a socket that keeps messages, whose reader puts what several processes write
    /// one behind the other: the first byte of a message says whether blocks end with it.
    messages: bool,
    /// Whether old contents must still go.
    replaces: bool,
    /// Whether the lock is ours; that of a shell around us on standard output is not.
    locked: bool,
    buffer: Vec<u8>,
    /// Where each block of the buffer ends, and how many viewed bytes it stands for.
    ends: Vec<(usize, u32)>,
    written: Amount,
}

impl Out {
    /// Standard output.
    pub(crate) fn stdout() -> Result<Self, Failure> {
        let target = "standard output".to_owned();
        let stdout = io::stdout();
        let interactive = stdout.is_terminal();
        let fd =
            stdout.as_fd().try_clone_to_owned().map_err(|error| failed("open", &target, &error))?;
        let mut out = Self::over(File::from(fd), target);
        (out.interactive, out.standard) = (interactive, true);
        out.messages = sys::descriptor::is_one(&stdout);
        Ok(out)
    }

    /// The file with this name, made if it is missing; `-` is standard output.
    pub(crate) fn create(path: &str, making: Making<'_>) -> Result<Self, Failure> {
        if path == "-" {
            return Self::stdout();
        }
        let mut out = Self::open(path, OpenOptions::new().write(true), making)?;
        out.replaces = out.locked;
        Ok(out)
    }

    /// The file with this name, made if it is missing, to be written behind what is in it; `-` is
    /// standard output.
    pub(crate) fn append(path: &str, making: Making<'_>) -> Result<Self, Failure> {
        match path {
            "-" => Self::stdout(),
            _ => Self::open(path, OpenOptions::new().append(true), making),
        }
    }

    fn open(
        path: &str,
        options: &mut OpenOptions,
        (steps, readers): Making<'_>,
    ) -> Result<Self, Failure> {
        options.mode(readers.mode_of(Path::new(path), 0o666));
        let cannot = |error: io::Error| failed("open", path, &error);
        steps.take(Makes::File, path).map_err(|error| cannot(error.into()))?;
        let file = made(path, options, steps).map_err(cannot)?;
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        if regular && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            let why = "it is being read or written by a running request";
            return Err(Failure::new("write", path, why).hint("choose another file name"));
        }
        let mut out = Self::over(file, path.to_owned());
        out.locked = regular;
        Ok(out)
    }

    fn over(file: File, target: String) -> Self {
        Self {
            file,
            target,
            standard: false,
            interactive: false,
            messages: false,
            replaces: false,
            locked: false,
            buffer: Vec::new(),
            ends: Vec::new(),
            written: Amount::default(),
        }
    }

    /// What is written to, for messages.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Whether standard output is a terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// The buffer, to be appended to.
    pub(crate) fn text(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Says that what was appended ends a block of `bytes` viewed bytes.
    pub(crate) fn ended(&mut self, bytes: u32) -> Result<(), Failure> {
        self.ends.push((self.buffer.len(), bytes));
        if self.buffer.len() >= FULL { self.flush() } else { Ok(()) }
    }

    /// Writes what is in the buffer, or as much of it as can be written.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let (done, outcome) = match self.empty_old() {
            Ok(()) if self.messages => write_messages(&mut self.file, &self.buffer),
            Ok(()) => write_all(&mut self.file, &self.buffer),
            Err(error) => (0, Err(error)),
        };
        for (end, bytes) in self.ends.drain(..) {
            if end <= done {
                self.written.add(bytes);
            }
        }
        self.buffer.clear();
        outcome.map_err(|error| self.failure(&error))
    }

    /// What has been written in whole.
    pub(crate) fn written(&self) -> Amount {
        self.written
    }

    fn empty_old(&mut self) -> io::Result<()> {
        if self.replaces {
            self.file.set_len(0)?;
            self.replaces = false;
        }
        Ok(())
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let quiet = self.standard && error.kind() == ErrorKind::BrokenPipe;
        Failure { quiet, ..failed("write", &self.target, error) }
    }
}

impl Drop for Out {
    /// Unlocks by hand: a child that is being started still has a copy of the descriptor for a
    /// moment.
    fn drop(&mut self) {
        if self.locked {
            let _ = self.file.unlock();
        }
    }
}

/// The file with this name. One that is made for this is noted to be taken back.
pub(crate) fn made(path: &str, options: &mut OpenOptions, steps: &Steps) -> io::Result<File> {
    match options.create_new(true).open(path) {
        Ok(file) => {
            takes_back(&file, Path::new(path).to_owned(), steps)?;
            Ok(file)
        }
        // Also a link to what is not there, which is followed.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            options.create_new(false).create(true).truncate(false).open(path)
        }
        Err(error) => Err(error),
    }
}

/// Notes that a file goes again that has been made under this name, unless somebody has written
/// into it, or put another in its place.
pub(crate) fn takes_back(file: &File, path: PathBuf, steps: &Steps) -> io::Result<()> {
    let made = file.metadata()?;
    let path = std::path::absolute(path)?;
    steps.undo(format!("file {}", path.display()), move || {
        let still = std::fs::symlink_metadata(&path);
        let same = |now: &std::fs::Metadata| (now.dev(), now.ino()) == (made.dev(), made.ino());
        if still.is_ok_and(|now| same(&now) && now.len() == 0) {
            // Who made it meanwhile impossible to remove it wants it to stay.
            let _ = std::fs::remove_file(&path);
        }
    });
    Ok(())
}

/// Writes all bytes, waiting where the descriptor does not block; answers how many were written.
fn write_all(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let problem = match file.write(rest) {
            Ok(0) => ErrorKind::WriteZero.into(),
            Ok(count) => {
                done += count;
                continue;
            }
            Err(error) => error,
        };
        match problem.kind() {
            ErrorKind::Interrupted => {}
            ErrorKind::WouldBlock => {
                // A failed wait shows itself in the next write.
                let _ = poll(&mut [PollFd::new(&*file, PollFlags::OUT)], None);
            }
            _ => return (done, Err(problem)),
        }
    }
    (done, Ok(()))
}

/// Writes all bytes in messages, the last of which says so; answers how many were written.
fn write_messages(file: &mut File, bytes: &[u8]) -> (usize, io::Result<()>) {
    let mut message = Vec::with_capacity(MESSAGE + 1);
    let mut done = 0;
    for piece in bytes.chunks(MESSAGE) {
        message.clear();
        message.push(u8::from(done + piece.len() == bytes.len()));
        message.extend_from_slice(piece);
        if let (_, Err(error)) = write_all(file, &message) {
            return (done, Err(error));
        }
        done += piece.len();
    }
    (done, Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MAKING;
    use crate::testing::TempDir;
    use std::io::Read;

    fn on_pipe() -> (io::PipeReader, Out) {
        let (reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut out = Out::over(file, "standard output".to_owned());
        out.standard = true;
        (reader, out)
    }

    fn block(out: &mut Out, text: &[u8]) -> Result<(), Failure> {
        out.text().extend_from_slice(text);
        out.ended(1)
    }

    #[test]
    fn small_blocks_wait_for_a_flush_and_many_do_not() {
        let dir = TempDir::new();
        let path = dir.path("out");
        let mut out = Out::create(&path, MAKING).unwrap();
        block(&mut out, b"one").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        block(&mut out, &[b'x'; FULL]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), FULL + 3);
        block(&mut out, b"two").unwrap();
        assert_eq!(out.written().blocks, 2);
        out.flush().unwrap();
        assert_eq!(out.written(), Amount { blocks: 3, bytes: 3 });
    }

    #[test]
    fn old_contents_stay_until_the_first_write() {
        let dir = TempDir::new();
        let path = dir.path("old");
        std::fs::write(&path, "old contents").unwrap();
        drop(Out::create(&path, MAKING).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"old contents");
        let mut out = Out::create(&path, MAKING).unwrap();
        block(&mut out, b"new").unwrap();
        out.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn what_is_appended_stands_behind_what_was_there() {
        let dir = TempDir::new();
        let path = dir.path("log");
        for text in [b"one\n", b"two\n"] {
            let mut out = Out::append(&path, MAKING).unwrap();
            let busy = Out::create(&path, MAKING).unwrap_err().to_string();
            assert!(busy.contains("running request"), "{busy}");
            block(&mut out, text).unwrap();
            out.flush().unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
        let (reader, mut out) = on_pipe();
        drop(reader);
        testkit::closed(&out.file);
        block(&mut out, b"nobody reads this").unwrap();
        assert!(out.flush().unwrap_err().quiet);
        let mut out = Out::create("/dev/full", MAKING).unwrap();
        block(&mut out, b"too much").unwrap();
        let failure = out.flush().unwrap_err();
        assert!(!failure.quiet);
        assert!(failure.to_string().starts_with("cannot write /dev/full: no space left"));
        assert_eq!(out.written(), Amount::default());
    }

    #[test]
    fn what_left_before_the_pipe_closed_is_counted_block_by_block() {
        let (mut reader, mut out) = on_pipe();
        rustix::io::ioctl_fionbio(&out.file, true).unwrap();
        let gone = std::thread::spawn(move || {
            let mut first = vec![0; 10_000];
            reader.read_exact(&mut first).unwrap();
        });
        let mut outcome = Ok(());
        for _ in 0..200 {
            outcome = block(&mut out, &[b'y'; 1000]);
            if outcome.is_err() {
                break;
            }
        }
        gone.join().unwrap();
        let outcome = outcome.and_then(|()| out.flush());
        assert!(outcome.unwrap_err().quiet);
        let left = out.written().blocks;
        assert!((10..200).contains(&left), "{left}");
    }

    #[test]
    fn n7_blocks_that_go_through_messages_end_with_one_that_says_so() {
        let (reader, writer) = sys::descriptor::pair().unwrap();
        let mut out = Out::over(File::from(writer), "standard output".to_owned());
        out.messages = true;
        block(&mut out, b"one").unwrap();
        block(&mut out, b"two").unwrap();
        out.flush().unwrap();
        block(&mut out, &[b'x'; MESSAGE + 1]).unwrap();
        out.flush().unwrap();
        let mut message = vec![0; MESSAGE + 1];
        let mut next = || {
            let (length, _) = sys::descriptor::receive(&reader, &mut message).unwrap();
            (message[0], length - 1)
        };
        assert_eq!([next(), next(), next()], [(1, 6), (0, MESSAGE), (1, 1)]);
        assert_eq!(out.written().blocks, 3);
    }

    #[test]
    fn a_file_that_is_read_is_not_overwritten() {
        let dir = TempDir::new();
        let path = dir.path("both");
        std::fs::write(&path, "in use").unwrap();
        let reader = File::open(&path).unwrap();
        reader.try_lock_shared().unwrap();
        let failure = Out::create(&path, MAKING).unwrap_err();
        assert!(failure.to_string().contains("being read or written"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap(), b"in use");
    }
}
