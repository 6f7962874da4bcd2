//! The output of a sink: a buffered file or standard output that tracks block boundaries.
//!
//! The output collects the bytes of blocks and writes them in chunks of 64 KB, or less on a flush.
//! After a failure, [`BufferedOutputFile::written`] returns the exact number of blocks written
//! completely, which the ledger needs, and the file contains no incomplete block. The old contents
//! of a file are left unchanged until the first write. At the first write, a new file replaces the
//! old one (`sys::replace`) or, if the output is appended, an incomplete last line of an earlier
//! run is repaired ([`super::line_repair`]). An empty file that was created for a request is
//! removed on rollback. Regular files are locked while they are written, so that no request
//! overwrites a capture that another request reads.

mod in_place_write;

pub(crate) use in_place_write::FramePiece;

use crate::Failure;
use crate::entry::is_standard_output;
use crate::failure::failure_from_io_error;
use crate::permitted_readers::FileCreationContext;
use crate::sink::full_write::{write_all, write_messages};
use crate::sink::line_repair::{self, LineFormat};
use crate::stop_limit::{StopFlag, open_nonblocking};
use filter::{Amount, Report};
use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use sys::open::{self, OpenedTarget, WriteMode};
use sys::replace::{FileReplacement, must_write_in_place};
use sys::rollback::{RollbackLog, StepResource};

/// Size in bytes at which the buffer of an output is written to the file.
const FLUSH_SIZE: usize = 64 * 1024;
/// Maximum number of attempts to open a file that other requests keep replacing.
const OPEN_ATTEMPTS_MAX: u32 = 10;

/// An output file or standard output, with a buffer that tracks block boundaries.
#[derive(Debug)]
pub(crate) struct BufferedOutputFile {
    file: File,
    target: String,
    /// True for standard output. A broken pipe then means that the reader needs no more output.
    is_standard: bool,
    /// True if the output is a terminal. The output is then flushed after every batch.
    is_interactive: bool,
    /// True if the output is a socket that preserves message boundaries. The reader of the socket
    /// merges the output of several processes. The first byte of each message is 1 if the message
    /// ends a block, and otherwise 0.
    keeps_message_boundaries: bool,
    /// Action of the first write on the old contents of the file.
    old_contents: OldContents,
    /// True if this output has locked the file. If the shell has locked standard output instead,
    /// this output does not release that lock.
    is_locked: bool,
    /// True if several requests append to this file. Each of them then holds a shared file lock.
    is_shared: bool,
    /// True if the output is /dev/null.
    is_null: bool,
    buffer: Vec<u8>,
    /// The blocks whose output is in the buffer, in order.
    blocks: Vec<BufferedBlock>,
    /// Number of items (lines, packets) that were appended to the buffer after the end of the last
    /// complete block.
    items_after_blocks: u32,
    /// Number of bytes that the next write takes directly from kernel memory instead of the buffer
    /// ([`in_place_write`]).
    bytes_outside_buffer: usize,
    written: Amount,
    /// Number of items (lines, packets) in the blocks that have been written.
    items_written: u64,
    /// Longest duration of a write of the buffer, in ns, since the last call of
    /// [`BufferedOutputFile::take_longest_write`].
    longest_write: u64,
    /// Stop flag of the path. Once the flag is set, waits for a reader of this output are limited
    /// in time.
    limit: StopFlag,
    /// Notes for the final report of the sink.
    remarks: Vec<String>,
}

/// A block whose output is in the buffer.
#[derive(Clone, Copy, Debug)]
struct BufferedBlock {
    /// Offset of the end of the block's output, in bytes. Offset 0 is the first byte that has not
    /// been written to the file.
    end: usize,
    /// Number of bytes in the block's view.
    bytes: u32,
    /// Number of items (lines, packets) in the block's output.
    items: u32,
}

/// Treatment of the file's old contents at the first write.
#[derive(Debug)]
enum OldContents {
    /// The old contents need no action: there are none, they are kept, or they have already been
    /// replaced or repaired.
    Nothing,
    /// A new file with this name replaces the old one.
    Replace(PathBuf),
    /// Output follows the old contents. An incomplete last line is first removed or terminated
    /// ([`super::line_repair`]).
    RepairLastLine(LineFormat),
}

impl BufferedOutputFile {
    /// Opens standard output for writing lines. If standard output is a file opened for appending,
    /// an incomplete last line is repaired first.
    pub(crate) fn open_stdout_lines() -> Result<Self, Failure> {
        let mut out = Self::stdout()?;
        out.old_contents = OldContents::RepairLastLine(LineFormat::Text);
        Ok(out)
    }

    /// Opens standard output for bytes of any format.
    pub(crate) fn stdout() -> Result<Self, Failure> {
        let target = "standard output".to_owned();
        let stdout = io::stdout();
        let interactive = stdout.is_terminal();
        let fd = stdout
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| failure_from_io_error("open", &target, &error))?;
        let mut out = Self::from_file(File::from(fd), target);
        (out.is_interactive, out.is_standard) = (interactive, true);
        out.keeps_message_boundaries = sys::descriptor::is_seqpacket_socket(&stdout);
        Ok(out)
    }

    /// Opens or creates the file with this path; `-` is standard output. Old contents are replaced
    /// at the first write.
    pub(crate) fn create(path: &str, creation: FileCreationContext<'_>) -> Result<Self, Failure> {
        if is_standard_output(path) {
            return Self::stdout();
        }
        let mut out = Self::open(path, WriteMode::FromStart, creation)?;
        if out.is_locked && out.file_length() > 0 {
            out.old_contents = OldContents::Replace(PathBuf::from(path));
        }
        Ok(out)
    }

    /// Opens or creates the file with this path for appending lines; `-` is standard output.
    pub(crate) fn append(
        path: &str,
        lines: LineFormat,
        creation: FileCreationContext<'_>,
    ) -> Result<Self, Failure> {
        if is_standard_output(path) {
            return Self::open_stdout_lines();
        }
        let mut out = Self::open(path, WriteMode::Append, creation)?;
        out.old_contents = OldContents::RepairLastLine(lines);
        Ok(out)
    }

    /// Wraps an open file to which several requests append lines.
    pub(crate) fn from_shared_file(file: File, target: String, lines: LineFormat) -> Self {
        let mut out = Self::from_file(file, target);
        (out.old_contents, out.is_shared) = (OldContents::RepairLastLine(lines), true);
        out
    }

    fn open(
        path: &str,
        writes: WriteMode,
        (steps, readers): FileCreationContext<'_>,
    ) -> Result<Self, Failure> {
        let mode = readers.file_mode_for_path(Path::new(path), 0o666);
        let cannot = |error: io::Error| failure_from_io_error("open", path, &error);
        steps.announce_creation(StepResource::File, path).map_err(|error| cannot(error.into()))?;
        for _ in 0..OPEN_ATTEMPTS_MAX {
            let OpenedTarget { file, created: made } =
                open::open_target(Path::new(path), writes, mode).map_err(cannot)?;
            if made {
                remove_on_rollback(&file, Path::new(path).to_owned(), steps).map_err(cannot)?;
            }
            let regular = file.metadata().is_ok_and(|meta| meta.is_file());
            if regular && matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
                let why = "it is being read or written by a running request";
                return Err(Failure::new("write", path, why).with_hint("choose another file name"));
            }
            // Another request may have replaced the file between open and lock.
            if !regular || is_file_at_path(path, &file) {
                let mut out = Self::from_file(file, path.to_owned());
                out.is_locked = regular;
                return Ok(out);
            }
        }
        Err(Failure::new("open", path, "other requests keep replacing it"))
    }

    fn from_file(file: File, target: String) -> Self {
        Self {
            is_null: in_place_write::is_dev_null(&file),
            file,
            target,
            is_standard: false,
            is_interactive: false,
            keeps_message_boundaries: false,
            old_contents: OldContents::Nothing,
            is_locked: false,
            is_shared: false,
            buffer: Vec::new(),
            blocks: Vec::new(),
            items_after_blocks: 0,
            bytes_outside_buffer: 0,
            written: Amount::default(),
            items_written: 0,
            longest_write: 0,
            limit: StopFlag::default(),
            remarks: Vec::new(),
        }
    }

    /// Limits the time for which a stopped path waits for a reader of this output. Has an effect
    /// only on pipes and terminals. The caller must not have written to such an output by other
    /// means.
    pub(crate) fn with_stop_limit(mut self, stopped: &Arc<AtomicBool>) -> Self {
        if let Some(file) = open_nonblocking(&self.file).filter(|_| !self.is_null) {
            self.file = file;
            self.limit = StopFlag::new(stopped);
        }
        self
    }

    fn file_length(&self) -> u64 {
        self.file.metadata().map_or(0, |metadata| metadata.len())
    }

    /// Returns true if the file has old contents that the first write will replace.
    pub(crate) const fn will_replace_contents(&self) -> bool {
        matches!(self.old_contents, OldContents::Replace(_))
    }

    /// Returns notes for the user about this output, for the final report.
    pub(crate) fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Returns a report with these rows and the number of items written. `unit` is the noun for one
    /// item, such as `packet` or `line`.
    pub(crate) fn report(&self, rows: Report, unit: &str) -> Report {
        let done = format!("written to {}", self.target);
        let mut report = rows.with_delivered_items(self.items_written, unit, done);
        report.remarks.extend(self.remarks.iter().cloned());
        if self.will_replace_contents() {
            report
                .remarks
                .push(format!("{} was left unchanged: no data arrived to replace it", self.target));
        }
        report
    }

    /// Returns the name of the output, for use in messages.
    pub(crate) fn name_for_messages(&self) -> &str {
        &self.target
    }

    /// Returns true if this output is standard output on a terminal.
    pub(crate) fn is_interactive(&self) -> bool {
        self.is_interactive
    }

    /// Returns the buffer, to which the caller appends output.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.buffer
    }

    /// Counts an item (a line, a packet) whose output has been appended to the buffer. The item
    /// belongs to the block that ends next.
    pub(crate) const fn end_item(&mut self) {
        self.items_after_blocks += 1;
    }

    /// Marks the end of a block of `bytes` viewed bytes in the buffer, and writes the buffer if it
    /// is full.
    pub(crate) fn end_block(&mut self, bytes: u32) -> Result<(), Failure> {
        self.end_block_without_flush(bytes);
        self.flush_if_full()
    }

    /// Writes the buffer and empties it. After a failure, blocks that were not written completely
    /// are lost.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.write_buffered_blocks(|out| match out.prepare_first_write() {
            Ok(0) if out.keeps_message_boundaries => {
                write_messages(&mut out.file, &out.buffer, &out.limit)
            }
            Ok(0) => write_all(&mut out.file, &out.buffer, &out.limit),
            Ok(done) => (done, Ok(())),
            Err(error) => (0, Err(error)),
        })
    }

    /// Writes the buffered blocks by calling `write`, counts the blocks that were written
    /// completely, and empties the buffer. `write` returns the number of bytes written, and the
    /// error that stopped it, if any.
    fn write_buffered_blocks(
        &mut self,
        write: impl FnOnce(&mut Self) -> (usize, io::Result<()>),
    ) -> Result<(), Failure> {
        // Several sinks, each in its own thread, may write to standard output. The lock prevents
        // them from interleaving within a line.
        let _lock = self.is_standard.then(|| io::stdout().lock());
        let begin = sys::clock::monotonic_ns();
        let (done, outcome) = write(self);
        let duration = sys::clock::monotonic_ns().saturating_sub(begin);
        self.longest_write = self.longest_write.max(duration);
        if outcome.is_err() {
            let whole = line_repair::complete_blocks_length(
                done,
                self.blocks.iter().map(|block| block.end),
            );
            // If the truncation fails too, only the original error is reported.
            let _ = self
                .change_end_exclusively(|out| line_repair::truncate_tail(&out.file, done - whole));
        }
        for block in self.blocks.drain(..).filter(|block| block.end <= done) {
            self.written.add_block(block.bytes);
            self.items_written += u64::from(block.items);
        }
        let items = std::mem::take(&mut self.items_after_blocks);
        if outcome.is_ok() {
            self.items_written += u64::from(items);
        }
        self.buffer.clear();
        self.bytes_outside_buffer = 0;
        outcome.map_err(|error| self.failure(&error))
    }

    /// Returns the longest duration of a write of the buffer, in ns, since the last call of this
    /// function.
    pub(crate) const fn take_longest_write(&mut self) -> u64 {
        std::mem::replace(&mut self.longest_write, 0)
    }

    /// Returns the number of completely written blocks, and of their viewed bytes.
    pub(crate) fn amount_written(&self) -> Amount {
        self.written
    }

    /// Returns the number of items (lines, packets) in the blocks that have been written.
    pub(crate) const fn items_written(&self) -> u64 {
        self.items_written
    }

    /// Prepares the file for the first write: replaces the old contents, or repairs their last
    /// line. Does nothing before later writes. Returns the number of buffered bytes that this call
    /// has already written: all of them, or none.
    fn prepare_first_write(&mut self) -> io::Result<usize> {
        if self.buffer.is_empty() {
            return Ok(0);
        }
        match &self.old_contents {
            OldContents::Nothing => return Ok(0),
            OldContents::RepairLastLine(lines) if self.is_standard => {
                // Standard output opened for appending by the shell (`>>`).
                if is_open_for_appending(&self.file) {
                    self.remarks.extend(line_repair::repair_last_line(
                        &mut self.file,
                        &self.target,
                        *lines,
                    )?);
                }
            }
            OldContents::RepairLastLine(lines) => {
                let lines = *lines;
                let remark = self.change_end_exclusively(|out| {
                    line_repair::repair_last_line(&mut out.file, &out.target, lines)
                })?;
                self.remarks.extend(remark.flatten());
            }
            OldContents::Replace(path) => {
                if let Some(file) = replace_contents(path, &self.file, &self.buffer)? {
                    let old = std::mem::replace(&mut self.file, file);
                    self.old_contents = OldContents::Nothing;
                    // The file is unlocked explicitly; see `Drop`.
                    let _ = old.unlock();
                    return Ok(self.buffer.len());
                }
                self.file.set_len(0)?;
            }
        }
        self.old_contents = OldContents::Nothing;
        Ok(0)
    }

    /// Calls `change` to modify the end of the file while no other request can write to it. Returns
    /// `None` without calling it if another request may be writing. A file that the shell has
    /// opened is never changed.
    fn change_end_exclusively<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let is_exclusive = self.is_locked || self.is_shared && self.file.try_lock().is_ok();
        let changed = is_exclusive.then(|| change(self)).transpose();
        if self.is_shared {
            // Locking fails only while another request is changing the end of the file.
            let _ = self.file.try_lock_shared();
        }
        changed
    }

    fn failure(&self, error: &io::Error) -> Failure {
        let quiet = self.is_standard && error.kind() == ErrorKind::BrokenPipe;
        Failure { is_quiet: quiet, ..failure_from_io_error("write", &self.target, error) }
    }
}

impl Drop for BufferedOutputFile {
    /// Unlocks the file explicitly, because a child process between fork and exec still has a copy
    /// of the descriptor, which would hold the lock.
    fn drop(&mut self) {
        if self.is_locked || self.is_shared {
            let _ = self.file.unlock();
        }
    }
}

/// Writes `bytes` to a new file, which then replaces the old one. Returns the new file, locked, or
/// `None` if the old file must be overwritten in place.
fn replace_contents(path: &Path, old: &File, bytes: &[u8]) -> io::Result<Option<File>> {
    let Some(mut new) = FileReplacement::create(path, old)? else { return Ok(None) };
    // Locking cannot fail, because no other process has opened the new file.
    let _ = new.file().try_lock();
    write_all(new.file(), bytes, &StopFlag::default()).1?;
    match new.commit() {
        Ok(file) => Ok(Some(file)),
        Err(error) if must_write_in_place(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if the file is open for appending.
fn is_open_for_appending(file: &File) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::APPEND))
}

/// Returns true if the path currently names this file.
fn is_file_at_path(path: &str, file: &File) -> bool {
    let path_metadata = std::fs::metadata(path);
    let file_metadata = file.metadata();
    let same = |(path_metadata, file_metadata): (std::fs::Metadata, std::fs::Metadata)| {
        (path_metadata.dev(), path_metadata.ino()) == (file_metadata.dev(), file_metadata.ino())
    };
    path_metadata.ok().zip(file_metadata.ok()).is_some_and(same)
}

/// Registers a newly created file for removal if the request is rolled back. A file that has been
/// written to or replaced by then is not removed.
pub(crate) fn remove_on_rollback(
    file: &File,
    path: PathBuf,
    steps: &RollbackLog,
) -> io::Result<()> {
    let made = file.metadata()?;
    let path = std::path::absolute(path)?;
    steps.on_rollback(format!("file {}", path.display()), move || {
        let current = std::fs::symlink_metadata(&path);
        let same = |now: &std::fs::Metadata| (now.dev(), now.ino()) == (made.dev(), made.ino());
        if current.is_ok_and(|now| same(&now) && now.len() == 0) {
            // A failure is ignored, because the file is empty and unused.
            let _ = std::fs::remove_file(&path);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::full_write::MESSAGE_PAYLOAD_MAX;
    use crate::testing::TempDir;
    use crate::testing::UNLOGGED_CREATION;
    use std::io::Read;

    fn output_to_pipe() -> (io::PipeReader, BufferedOutputFile) {
        let (reader, writer) = io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut out = BufferedOutputFile::from_file(file, "standard output".to_owned());
        out.is_standard = true;
        (reader, out)
    }

    fn append_block(out: &mut BufferedOutputFile, text: &[u8]) -> Result<(), Failure> {
        out.buffer().extend_from_slice(text);
        out.end_item();
        out.end_block(1)
    }

    #[test]
    fn buffer_is_written_when_full_or_flushed() {
        let dir = TempDir::new();
        let path = dir.path("out");
        let mut out = BufferedOutputFile::create(&path, UNLOGGED_CREATION).unwrap();
        append_block(&mut out, b"one").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        append_block(&mut out, &[b'x'; FLUSH_SIZE]).unwrap();
        assert_eq!(std::fs::read(&path).unwrap().len(), FLUSH_SIZE + 3);
        append_block(&mut out, b"two").unwrap();
        assert_eq!(out.amount_written().blocks, 2);
        out.flush().unwrap();
        assert_eq!(out.amount_written(), Amount { blocks: 3, bytes: 3 });
    }

    #[test]
    fn old_contents_stay_until_first_write() {
        let dir = TempDir::new();
        let path = dir.path("old");
        std::fs::write(&path, "old contents").unwrap();
        drop(BufferedOutputFile::create(&path, UNLOGGED_CREATION).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"old contents");
        let mut out = BufferedOutputFile::create(&path, UNLOGGED_CREATION).unwrap();
        append_block(&mut out, b"new").unwrap();
        out.flush().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn appended_lines_follow_old_contents() {
        let dir = TempDir::new();
        let path = dir.path("log");
        for text in [b"one\n", b"two\n"] {
            let mut out =
                BufferedOutputFile::append(&path, LineFormat::Text, UNLOGGED_CREATION).unwrap();
            let busy =
                BufferedOutputFile::create(&path, UNLOGGED_CREATION).unwrap_err().to_string();
            assert!(busy.contains("running request"), "{busy}");
            append_block(&mut out, text).unwrap();
            out.flush().unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn closed_pipe_fails_without_message_and_full_disk_with_one() {
        let (reader, mut out) = output_to_pipe();
        drop(reader);
        testkit::wait_until_closed(&out.file);
        append_block(&mut out, b"nobody reads this").unwrap();
        assert!(out.flush().unwrap_err().is_quiet);
        let mut out = BufferedOutputFile::create("/dev/full", UNLOGGED_CREATION).unwrap();
        append_block(&mut out, b"too much").unwrap();
        let failure = out.flush().unwrap_err();
        assert!(!failure.is_quiet);
        assert!(failure.to_string().starts_with("cannot write /dev/full: no space left"));
        assert_eq!(out.amount_written(), Amount::default());
    }

    #[test]
    fn blocks_written_before_pipe_closed_are_counted() {
        let (mut reader, mut out) = output_to_pipe();
        rustix::io::ioctl_fionbio(&out.file, true).unwrap();
        let gone = std::thread::spawn(move || {
            let mut first = vec![0; 10_000];
            reader.read_exact(&mut first).unwrap();
        });
        let mut outcome = Ok(());
        for _ in 0..200 {
            outcome = append_block(&mut out, &[b'y'; 1000]);
            if outcome.is_err() {
                break;
            }
        }
        gone.join().unwrap();
        let outcome = outcome.and_then(|()| out.flush());
        assert!(outcome.unwrap_err().is_quiet);
        let left = out.amount_written().blocks;
        assert!((10..200).contains(&left), "{left}");
        assert_eq!(out.items_written(), left, "the report names no line that was not written");
    }

    #[test]
    fn n7_last_message_of_a_write_is_marked() {
        let (reader, writer) = sys::descriptor::socket_pair().unwrap();
        let mut out =
            BufferedOutputFile::from_file(File::from(writer), "standard output".to_owned());
        out.keeps_message_boundaries = true;
        append_block(&mut out, b"one").unwrap();
        append_block(&mut out, b"two").unwrap();
        out.flush().unwrap();
        append_block(&mut out, &[b'x'; MESSAGE_PAYLOAD_MAX + 1]).unwrap();
        out.flush().unwrap();
        let mut message = vec![0; MESSAGE_PAYLOAD_MAX + 1];
        let mut next = || {
            let (length, _) = sys::descriptor::receive(&reader, &mut message).unwrap();
            (message[0], length - 1)
        };
        assert_eq!([next(), next(), next()], [(1, 6), (0, MESSAGE_PAYLOAD_MAX), (1, 1)]);
        assert_eq!(out.amount_written().blocks, 3);
    }

    #[test]
    fn file_locked_by_a_reader_is_not_overwritten() {
        let dir = TempDir::new();
        let path = dir.path("both");
        std::fs::write(&path, "in use").unwrap();
        let reader = File::open(&path).unwrap();
        reader.try_lock_shared().unwrap();
        let failure = BufferedOutputFile::create(&path, UNLOGGED_CREATION).unwrap_err();
        assert!(failure.to_string().contains("being read or written"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap(), b"in use");
    }
}
