//! A set of output files in one directory, with the state of unfinished files. The sinks `files`
//! and `pcap` use it.
//!
//! A file is created when its first byte arrives. If no byte arrives, the file is listed in the
//! index only. The number of open files is limited: the least recently used file is closed, and
//! reopened for appending when needed. The number of unfinished files is limited too. Files are not
//! synchronized to disk, because there may be many short files.

mod directory;
mod index;
mod output_file;

use super::class_names::ClassNames;
use crate::failure::failure_from_io_error;
use crate::{Failure, OpenArguments};
use directory::{Directory, FileIdentity};
use filter::{Parameter, ParameterType, Report};
use index::IndexFile;
use output_file::DiskFile;
use rustix::io::Errno;
use sha2::Sha256;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};

pub(crate) use directory::INDEX_FILE_NAME;
pub(crate) use output_file::{FileKey, OutputFile};

/// Maximum number of missing bytes that are written as zeros to one file. The limit prevents peers
/// that forge sequence numbers from creating huge files.
pub(crate) const ZERO_FILL_BYTES_MAX: u64 = 16 << 20;

/// Maximum memory, in bytes, for the message descriptions of all unfinished files. A limit is
/// needed because peers determine the lengths of descriptions.
const DESCRIPTION_BYTES_MAX: usize = 64 << 20;

/// The parameter `open` of a sink with a file set. It limits the number of open files.
pub(crate) const OPEN_FILES_PARAMETER: Parameter = Parameter::with_default(
    "open",
    ParameterType::Number { low: 1, high: 100_000 },
    "256",
    "maximum number of open files",
);

/// The parameter `sessions` of a sink with a file set. It limits the number of unfinished files.
pub(crate) const SESSIONS_PARAMETER: Parameter = Parameter::with_default(
    "sessions",
    ParameterType::Number { low: 1, high: 100_000_000 },
    "65536",
    "maximum number of sessions in memory",
);

/// Policy for the files of a [`FileSet`], chosen by the sink: the names of the files, the condition
/// under which a file counts as complete, and the contents of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSetPolicy {
    /// Suffix of the names of output files, such as `.pcap`.
    pub(crate) suffix: &'static str,
    /// True if the index contains a digest of each file.
    pub(crate) has_digests: bool,
    /// True if each file contains one message. The index then contains the description of the
    /// message.
    pub(crate) has_single_message: bool,
    /// True if a file counts as complete only if the start of its stream was observed.
    pub(crate) needs_beginning: bool,
    /// True if missing bytes are written to the file as zeros.
    pub(crate) fills_holes: bool,
}

/// The output directory of a sink, with the files that are not finished yet.
#[derive(Debug)]
pub(crate) struct FileSet {
    directory: Directory,
    index: IndexFile,
    names: ClassNames,
    policy: FileSetPolicy,
    open_max: usize,
    known_max: usize,
    files: HashMap<FileKey, OutputFile>,
    /// Memory used by the message descriptions of unfinished files, in bytes.
    description_bytes: usize,
    /// Keys of all unfinished files, ordered by last use. The map keys are values of a logical
    /// clock.
    by_use: BTreeMap<u64, FileKey>,
    open_by_use: BTreeMap<u64, FileKey>,
    uses: u64,
    created: u64,
}

impl Drop for FileSet {
    /// Finishes all files and writes the index, even if the sink has failed.
    fn drop(&mut self) {
        let _ = self.finish_all();
    }
}

impl FileSet {
    /// Opens the directory with this path, and creates it if it is missing.
    pub(crate) fn open(
        path: &str,
        policy: FileSetPolicy,
        opening: &OpenArguments<'_>,
    ) -> Result<Self, Failure> {
        let (directory, index) = Directory::open(path, (opening.rollback_log, opening.readers))?;
        Ok(Self {
            index: IndexFile::new(index, directory.path_for_messages(INDEX_FILE_NAME)),
            directory,
            names: ClassNames::new(opening),
            policy,
            open_max: opening.arguments.number_as_usize(OPEN_FILES_PARAMETER.name),
            known_max: opening.arguments.number_as_usize(SESSIONS_PARAMETER.name),
            files: HashMap::new(),
            description_bytes: 0,
            by_use: BTreeMap::new(),
            open_by_use: BTreeMap::new(),
            uses: 0,
            created: 0,
        })
    }

    /// Returns the number of files created.
    pub(crate) const fn files_created(&self) -> u64 {
        self.created
    }

    /// Returns the path of the directory, for use in messages.
    pub(crate) fn path_for_messages(&self) -> String {
        self.directory.path_for_messages("")
    }

    /// Returns a report with these rows and the number of files.
    pub(crate) fn report(&self, rows: Report) -> Report {
        let done = format!("written to {}", self.path_for_messages().trim_end_matches('/'));
        let mut report = rows.with_delivered_items(self.created, "file", done);
        report.remarks.extend_from_slice(self.index.remarks());
        report
    }

    /// Removes the file with this key from the set, so that the caller can modify it and return it
    /// with [`Self::put_back`]. Returns `None` if the set has no such file.
    pub(crate) fn take_file(&mut self, key: FileKey) -> Option<OutputFile> {
        let file = self.files.remove(&key)?;
        self.description_bytes -= file.record.len();
        self.by_use.remove(&file.last_use);
        self.open_by_use.remove(&file.last_use);
        Some(file)
    }

    /// Puts a new or modified file into the set, as the most recently used file.
    pub(crate) fn put_back(&mut self, key: FileKey, mut file: OutputFile) {
        self.uses += 1;
        file.last_use = self.uses;
        self.by_use.insert(file.last_use, key);
        if file.disk.as_ref().is_some_and(|disk| disk.open.is_some()) {
            self.open_by_use.insert(file.last_use, key);
        }
        self.description_bytes += file.record.len();
        self.files.insert(key, file);
    }

    /// Finishes the least recently used files until there is room for one more unfinished file.
    pub(crate) fn make_room(&mut self) -> Result<(), Failure> {
        while self.files.len() >= self.known_max || self.description_bytes > DESCRIPTION_BYTES_MAX {
            let Some((_, key)) = self.by_use.first_key_value() else { return Ok(()) };
            self.finish_file(*key)?;
        }
        Ok(())
    }

    /// Appends bytes to a file, and creates or reopens the file if necessary.
    pub(crate) fn write_bytes(
        &mut self,
        file: &mut OutputFile,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        if file.disk.is_none() {
            file.disk = Some(self.create_file(&file.file_name_addresses())?);
        }
        self.append_after_pending_zeros(file, bytes)
    }

    /// Appends `bytes` to a file, after the zeros that are still to be written for missing bytes.
    /// Does nothing if the file does not exist on disk yet.
    fn append_after_pending_zeros(
        &mut self,
        file: &mut OutputFile,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let Some(mut disk) = file.disk.take() else { return Ok(()) };
        let outcome = self.append_to_disk_file(&mut disk, file.pending_zeros, bytes);
        if outcome.is_ok() {
            file.filled += std::mem::take(&mut file.pending_zeros);
        }
        file.disk = Some(disk);
        outcome
    }

    /// Appends `length` zeros to a file in place of missing bytes. If the file does not exist on
    /// disk yet, the zeros are written with its first bytes. The caller must call this before
    /// [`OutputFile::update_for_block`], which counts the missing bytes.
    ///
    /// Does nothing unless the policy fills holes, all earlier holes of the file are filled, and
    /// the file has at most [`ZERO_FILL_BYTES_MAX`] such zeros, including the new ones.
    pub(crate) fn fill_missing_bytes(
        &mut self,
        file: &mut OutputFile,
        length: u64,
    ) -> Result<(), Failure> {
        let zeros = file.filled + file.pending_zeros;
        let is_filled = file.missing == zeros && zeros + length <= ZERO_FILL_BYTES_MAX;
        if !self.policy.fills_holes || length == 0 || !is_filled {
            return Ok(());
        }
        file.pending_zeros += length;
        self.append_after_pending_zeros(file, &[])
    }

    /// Finishes the file with this key, if there is one.
    pub(crate) fn finish_file(&mut self, key: FileKey) -> Result<(), Failure> {
        match self.take_file(key) {
            Some(file) => self.add_to_index(&file),
            None => Ok(()),
        }
    }

    /// Adds a finished file to the index.
    pub(crate) fn add_to_index(&mut self, file: &OutputFile) -> Result<(), Failure> {
        self.index.append(file, &self.names, &self.policy)
    }

    /// Finishes all files and writes the index.
    pub(crate) fn finish_all(&mut self) -> Result<(), Failure> {
        while let Some((_, key)) = self.by_use.first_key_value() {
            self.finish_file(*key)?;
        }
        self.index.flush()
    }

    /// Writes the buffered lines of the index.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.index.flush()
    }

    fn create_file(&mut self, details: &str) -> Result<DiskFile, Failure> {
        let suffix = self.policy.suffix;
        let (file, name) = self
            .open_within_limit(|directory| directory.create_next_file(details, suffix))
            .map_err(|error| {
                failure_from_io_error("make a file in", &self.path_for_messages(), &error)
            })?;
        let identity = FileIdentity::of_file(&file).map_err(|error| {
            failure_from_io_error("look at", &self.directory.path_for_messages(&name), &error)
        })?;
        self.created += 1;
        let digest = self.policy.has_digests.then(Sha256::default);
        Ok(DiskFile { name, identity, open: Some(file), size: 0, digest })
    }

    /// Appends `zeros` zero bytes, and then `bytes`, to a file. Reopens the file if it is closed.
    fn append_to_disk_file(
        &mut self,
        disk: &mut DiskFile,
        zeros: u64,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let mut file = match disk.open.take() {
            Some(file) => file,
            None => self
                .open_within_limit(|directory| directory.reopen(&disk.name, disk.identity))
                .map_err(|error| {
                    failure_from_io_error(
                        "open",
                        &self.directory.path_for_messages(&disk.name),
                        &error,
                    )
                })?,
        };
        let outcome = extend_file(&mut file, disk, zeros, bytes);
        disk.open = Some(file);
        if outcome.is_err()
            && let Some(file) = &disk.open
            && file.set_len(disk.size).is_err()
        {
            // The file still contains a partial write, so the digest no longer matches its
            // contents.
            disk.digest = None;
        }
        outcome.map_err(|error| {
            failure_from_io_error("write", &self.directory.path_for_messages(&disk.name), &error)
        })
    }

    /// Opens a file by calling `open`. If too many files are open, closes the least recently used
    /// one first.
    fn open_within_limit<T>(
        &mut self,
        mut open: impl FnMut(&mut Directory) -> io::Result<T>,
    ) -> io::Result<T> {
        while self.open_by_use.len() >= self.open_max && self.close_oldest_file() {}
        loop {
            let opened = open(&mut self.directory);
            let errno = opened.as_ref().err().and_then(Errno::from_io_error);
            let too_many = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
            if !too_many || !self.close_oldest_file() {
                return opened;
            }
        }
    }

    /// Closes the least recently used open file. Returns false if no file is open.
    fn close_oldest_file(&mut self) -> bool {
        let Some((_, key)) = self.open_by_use.pop_first() else { return false };
        if let Some(disk) = self.files.get_mut(&key).and_then(|file| file.disk.as_mut()) {
            disk.open = None;
        }
        true
    }
}

#[cfg(test)]
impl FileSet {
    /// Returns the number of unfinished files, and the number of open files among them.
    pub(crate) fn file_counts(&self) -> (usize, usize) {
        let is_open = |file: &&OutputFile| file.disk.as_ref().is_some_and(|p| p.open.is_some());
        let open = self.files.values().filter(is_open).count();
        assert_eq!(open, self.open_by_use.len());
        (self.files.len(), open)
    }
}

/// Extends a file by `zeros` zero bytes, which use no disk blocks, and then by `bytes`.
fn extend_file(file: &mut File, disk: &mut DiskFile, zeros: u64, bytes: &[u8]) -> io::Result<()> {
    const ZEROS: [u8; 4096] = [0; 4096];
    if zeros > 0 {
        file.set_len(disk.size + zeros)?;
        let mut left = zeros;
        while let Some(piece) = ZEROS.get(..left.min(ZEROS.len() as u64) as usize)
            && left > 0
        {
            disk.record_appended_bytes(piece);
            left -= piece.len() as u64;
        }
    }
    file.write_all(bytes)?;
    disk.record_appended_bytes(bytes);
    Ok(())
}
