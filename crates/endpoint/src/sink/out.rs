//! The output of a sink: a file or standard output, behind a buffer that knows its blocks.
//!
//! In: the bytes of one block after another. Out: one write per 64 KB, or when somebody wants to
//! see what is there. After a failure [`Out::written`] tells exactly how many blocks left in whole,
//! which is what the ledger needs, and the file holds no part of another. What is in a file stays
//! until there is something to write: then a new one takes its name (`sys::replace`), or a line
//! that an earlier run has torn is mended ([`super::tail`]). A file that was made for a request
//! goes again as long as it is empty. Regular files are locked while they are written, so that
//! nobody writes into the capture that a `replay` still reads.

use crate::Failure;
use crate::fail::failed;
use crate::readers::Making;
use crate::sink::tail::{self, Lines};
use filter::{Amount, Report};
use rustix::event::{PollFd, PollFlags, poll};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use sys::open::{self, Target, WriteMode};
use sys::replace::{Replacement, must_write_in_place};
use sys::steps::{Resource, Steps};

/// Bytes gathered before a write.
const FULL: usize = 64 * 1024;
/// Attempts to open a file that other requests replace meanwhile.
const TRIES: u32 = 10;
/// The most bytes of a message besides its first.
const MESSAGE: usize = 32 * 1024;

/// A file or standard output.
#[derive(Debug)]
pub(crate) struct Out {
    file: File,
    target: String,
    /// True if a closed pipe means that the reader has seen enough.
    standard: bool,
    /// True if a person watches, so that nothing should wait in the buffer.
    interactive: bool,
    /// True for a socket with message boundaries, whose reader joins the output of several
    /// processes: the first byte of a message says if blocks end with it.
    messages: bool,
    /// The action before the first write.
    before: Before,
    /// True if the lock is ours; a shell's lock on standard output is not.
    locked: bool,
    /// True if other requests may append, too: each holds a lock with them.
    shared: bool,
    buffer: Vec<u8>,
    /// The end of each block in the buffer, with its viewed bytes.
    ends: Vec<(usize, u32)>,
    written: Amount,
    /// Remarks for the final report.
    remarks: Vec<String>,
}

/// The treatment of old contents at the first write.
#[derive(Debug)]
enum Before {
    /// They stay, or there are none.
    Nothing,
    /// They go: a new file takes the name of this one.
    Replace(PathBuf),
    /// They stay, and end with a line.
    Mend(Lines),
}

impl Out {
    /// Standard output, for lines: where they go behind others in a file, they begin a line.
    pub(crate) fn lines() -> Result<Self, Failure> {
        let mut out = Self::stdout()?;
        out.before = Before::Mend(Lines::Text);
        Ok(out)
    }

    /// Standard output.
    pub(crate) fn stdout() -> Result<Self, Failure> {
        let target = "standard output".to_owned();
        let stdout = io::stdout();
        let interactive = stdout.is_terminal();
        let fd =
            stdout.as_fd().try_clone_to_owned().map_err(|error| failed("open", &target, &error))?;
        let mut out = Self::over(File::from(fd), target);
        (out.interactive, out.standard) = (interactive, true);
        out.messages = sys::descriptor::is_packet_socket(&stdout);
        Ok(out)
    }

    /// The file with this name, made if it is missing; `-` is standard output.
    pub(crate) fn create(path: &str, making: Making<'_>) -> Result<Self, Failure> {
        if path == "-" {
            return Self::stdout();
        }
        let mut out = Self::open(path, WriteMode::FromStart, making)?;
        if out.locked && out.length() > 0 {
            out.before = Before::Replace(PathBuf::from(path));
        }
        Ok(out)
    }

    /// The file with this name, made if it is missing, to which lines are appended; `-` is standard
    /// output.
    pub(crate) fn append(path: &str, lines: Lines, making: Making<'_>) -> Result<Self, Failure> {
        if path == "-" {
            return Self::lines();
        }
        let mut out = Self::open(path, WriteMode::Append, making)?;
        out.before = Before::Mend(lines);
        Ok(out)
    }

    /// A file that is open already, to which several requests append lines.
    pub(crate) fn shared(file: File, target: String, lines: Lines) -> Self {
        let mut out = Self::over(file, target);
        (out.before, out.shared) = (Before::Mend(lines), true);
        out
    }

    fn open(path: &str, writes: WriteMode, (steps, readers): Making<'_>) -> Result<Self, Failure> {
        let mode = readers.mode_of(Path::new(path), 0o666);
        let cannot = |error: io::Error| failed("open", path, &error);
        steps.take(Resource::File, path).map_err(|error| cannot(error.into()))?;
        for _ in 0..TRIES {
            let Target { file, created: made } =
                open::open_target(Path::new(path), writes, mode).map_err(cannot)?;
            if made {
                takes_back(&file, Path::new(path).to_owned(), steps).map_err(cannot)?;
            }
            let regular = file.metadata().is_ok_and(|meta| meta.is_file());
            if regular && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                let why = "it is being read or written by a running request";
                return Err(Failure::new("write", path, why).hint("choose another file name"));
            }
            // Before it was locked, another request may have put its own file there.
            if !regular || leads_to(path, &file) {
                let mut out = Self::over(file, path.to_owned());
                out.locked = regular;
                return Ok(out);
            }
        }
        Err(Failure::new("open", path, "other requests replace it again and again"))
    }

    fn over(file: File, target: String) -> Self {
        Self {
            file,
            target,
            standard: false,
            interactive: false,
            messages: false,
            before: Before::Nothing,
            locked: false,
            shared: false,
            buffer: Vec::new(),
            ends: Vec::new(),
            written: Amount::default(),
            remarks: Vec::new(),
        }
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |about| about.len())
    }

    /// Returns true if old contents are still there, which the first write replaces.
    pub(crate) const fn keeps_old(&self) -> bool {
        matches!(self.before, Before::Replace(_))
    }

    /// Returns remarks for the final report.
    pub(crate) fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// A report of these lines, and of `count` things that were written here.
    pub(crate) fn report(&self, rows: Vec<(String, u64)>, count: u64, unit: &str) -> Report {
        let mut report =
            Report::of_rows(rows).put(count, unit, format!("written to {}", self.target));
        report.remarks.extend(self.remarks.iter().cloned());
        if self.keeps_old() {
            report
                .remarks
                .push(format!("{} stays as it was: nothing came to replace it", self.target));
        }
        report
    }

    /// Returns the target, for messages.
    pub(crate) fn target(&self) -> &str {
        &self.target
    }

    /// Returns true if standard output is a terminal.
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

    /// WriteMode what is in the buffer, or as much of it as can be written.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let (done, outcome) = match self.begin() {
            Ok(0) if self.messages => write_messages(&mut self.file, &self.buffer),
            Ok(0) => write_all(&mut self.file, &self.buffer),
            Ok(done) => (done, Ok(())),
            Err(error) => (0, Err(error)),
        };
        if outcome.is_err() {
            let whole = tail::whole(done, self.ends.iter().map(|(end, _)| *end));
            // The first error is the one to be told.
            let _ = self.alone(|out| tail::cut(&out.file, done - whole));
        }
        for (end, bytes) in self.ends.drain(..) {
            if end <= done {
                self.written.add(bytes);
            }
        }
        self.buffer.clear();
        outcome.map_err(|error| self.failure(&error))
    }

    /// Returns the blocks written completely.
    pub(crate) fn written(&self) -> Amount {
        self.written
    }

    /// Does what is to be done before the first write. Answers how many bytes of the buffer are
    /// written then: all, or none.
    fn begin(&mut self) -> io::Result<usize> {
        if self.buffer.is_empty() {
            return Ok(0);
        }
        match &self.before {
            Before::Nothing => return Ok(0),
            Before::Mend(lines) if self.standard => {
                // What the shell has opened to be appended to (`>>`).
                if is_appended(&self.file) {
                    self.remarks.extend(tail::mend(&mut self.file, &self.target, *lines)?);
                }
            }
            Before::Mend(lines) => {
                let lines = *lines;
                let said = self.alone(|out| tail::mend(&mut out.file, &out.target, lines))?;
                self.remarks.extend(said.flatten());
            }
            Before::Replace(path) => {
                if let Some(file) = replaced(path, &self.file, &self.buffer)? {
                    let old = std::mem::replace(&mut self.file, file);
                    self.before = Before::Nothing;
                    // By hand: see below.
                    let _ = old.unlock();
                    return Ok(self.buffer.len());
                }
                self.file.set_len(0)?;
            }
        }
        self.before = Before::Nothing;
        Ok(0)
    }

    /// Changes the end of the file, unless another request may be writing there. What a shell has
    /// opened is left as it is.
    fn alone<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let alone = self.locked || self.shared && self.file.try_lock().is_ok();
        let changed = alone.then(|| change(self)).transpose();
        if self.shared {
            // Somebody who holds it alone only keeps others from changing the end.
            let _ = self.file.try_lock_shared();
        }
        changed
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
        if self.locked || self.shared {
            let _ = self.file.unlock();
        }
    }
}

/// A new file with these bytes that has taken the name of the old one, locked; none where the old
/// one has to be written itself.
fn replaced(path: &Path, old: &File, bytes: &[u8]) -> io::Result<Option<File>> {
    let Some(mut new) = Replacement::of(path, old)? else { return Ok(None) };
    // Nobody else knows it yet.
    let _ = new.file().try_lock();
    write_all(new.file(), bytes).1?;
    match new.commit() {
        Ok(file) => Ok(Some(file)),
        Err(error) if must_write_in_place(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if all that is written goes to the end of a file.
fn is_appended(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND))
}

/// Returns true if a name leads to this file now.
fn leads_to(path: &str, file: &File) -> bool {
    let there = std::fs::metadata(path);
    let here = file.metadata();
    let same = |(there, here): (std::fs::Metadata, std::fs::Metadata)| {
        (there.dev(), there.ino()) == (here.dev(), here.ino())
    };
    there.ok().zip(here.ok()).is_some_and(same)
}

/// Notes that a file goes again that has been made under this name, unless somebody has written
/// into it, or put another in its place.
pub(crate) fn takes_back(file: &File, path: PathBuf, steps: &Steps) -> io::Result<()> {
    let made = file.metadata()?;
    let path = std::path::absolute(path)?;
    steps.on_rollback(format!("file {}", path.display()), move || {
        let still = std::fs::symlink_metadata(&path);
        let same = |now: &std::fs::Metadata| (now.dev(), now.ino()) == (made.dev(), made.ino());
        if still.is_ok_and(|now| same(&now) && now.len() == 0) {
            // Who made it meanwhile impossible to remove it wants it to stay.
            let _ = std::fs::remove_file(&path);
        }
    });
    Ok(())
}

/// WriteMode all bytes, waiting where the descriptor does not block; answers how many were written.
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

/// WriteMode all bytes in messages, the last of which says so; answers how many were written.
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
            let mut out = Out::append(&path, Lines::Text, MAKING).unwrap();
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
