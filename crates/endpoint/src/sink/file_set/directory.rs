//! The output directory of a file set. The directory is created if it is missing, and stays open.
//!
//! Files are created relative to the open directory, without following symbolic links. Their names
//! are generated from digits, letters, dots, dashes and underscores. Existing files are never
//! overwritten, because the numbering continues after the largest number in the directory.

use crate::Failure;
use crate::failure::failure_from_io_error;
use crate::permitted_readers::FileCreationContext;
use crate::sink::buffered_output::remove_on_rollback;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt};
use std::path::Path;
use sys::open::RegularOpenOptions;
use sys::rollback::StepResource;

/// Name of the index file in the output directory of a file set.
pub(crate) const INDEX_FILE_NAME: &str = "index.jsonl";
/// Maximum number of attempts to find an unused file name while other processes create files.
const NAME_ATTEMPTS_MAX: u32 = 1000;

/// The open directory of a file set.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: String,
    /// Number that begins the name of the next file to be created.
    next_number: u64,
    /// Mode with which files are created, before the umask.
    mode: u32,
}

/// Device and inode number of an output file. The file set uses them to detect that the file's name
/// now refers to another file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// Returns the device and inode number of an open file.
    pub(super) fn of_file(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { device: meta.dev(), inode: meta.ino() })
    }
}

impl Directory {
    /// Opens a directory and its index for appending. Creates the directory if only the last
    /// component of the path is missing.
    pub(super) fn open(
        path: &str,
        (steps, readers): FileCreationContext<'_>,
    ) -> Result<(Self, File), Failure> {
        let refused = |error: sys::Error| failure_from_io_error("make", path, &error.into());
        steps.announce_creation(StepResource::File, path).map_err(refused)?;
        let mode = readers.file_mode_for_path(Path::new(path), 0o777);
        let created = match fs::DirBuilder::new().mode(mode).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let hint = "create its parent directory first, with mkdir -p";
                return Err(failure_from_io_error("make", path, &error).with_hint(hint));
            }
            Err(error) => return Err(failure_from_io_error("make", path, &error)),
        };
        let mark = steps.savepoint();
        if created {
            let path = std::path::absolute(path)
                .map_err(|error| failure_from_io_error("make", path, &error))?;
            // Fails unless the directory is empty, so it deletes no other files.
            steps.on_rollback(format!("directory {}", path.display()), move || {
                drop(fs::remove_dir(path))
            });
        }
        let opened = Self::open_existing_directory(path, (steps, readers));
        if opened.is_err() {
            steps.roll_back_to(mark);
        }
        opened
    }

    fn open_existing_directory(
        path: &str,
        (steps, readers): FileCreationContext<'_>,
    ) -> Result<(Self, File), Failure> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
            let failure = failure_from_io_error("open", path, &errno.into());
            // A missing directory has been created, so this is a dangling link.
            match errno {
                Errno::NOENT => {
                    failure.with_hint("it is a link to a directory that does not exist")
                }
                _ => failure,
            }
        })?;
        let next =
            first_free_number(path).map_err(|error| failure_from_io_error("read", path, &error))?;
        let mode = readers.file_mode(Path::new(path), 0o666);
        let directory = Self { fd, path: path.to_owned(), next_number: next, mode };
        let cannot = |error: io::Error| {
            failure_from_io_error("open", &directory.path_for_messages(INDEX_FILE_NAME), &error)
        };
        steps
            .announce_creation(StepResource::File, INDEX_FILE_NAME)
            .map_err(|error| cannot(error.into()))?;
        let index = match directory.open_regular_file(
            INDEX_FILE_NAME,
            RegularOpenOptions::append().create_new(directory.mode),
        ) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => directory
                .open_regular_file(
                    INDEX_FILE_NAME,
                    RegularOpenOptions::append().create(directory.mode),
                )
                .map_err(cannot)?,
            created => {
                let index = created.map_err(cannot)?;
                remove_on_rollback(
                    &index,
                    directory.path_for_messages(INDEX_FILE_NAME).into(),
                    steps,
                )
                .map_err(cannot)?;
                index
            }
        };
        Ok((directory, index))
    }

    /// Creates the next output file. Its name consists of its number, `details` and `suffix`. Skips
    /// numbers for which a file exists, but fails after [`NAME_ATTEMPTS_MAX`] such numbers. Returns
    /// the file and its name.
    pub(super) fn create_next_file(
        &mut self,
        details: &str,
        suffix: &str,
    ) -> io::Result<(File, String)> {
        for _ in 0..NAME_ATTEMPTS_MAX {
            let name = format!("{:06}{}{suffix}", self.next_number, sanitize_file_name(details));
            let created =
                self.open_regular_file(&name, RegularOpenOptions::append().create_new(self.mode));
            match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.next_number += 1,
                created => {
                    let file = created?;
                    self.next_number += 1;
                    return Ok((file, name));
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Reopens the file with this name. Fails if the name now refers to another file, whose
    /// identity differs.
    pub(super) fn reopen(&self, name: &str, identity: FileIdentity) -> io::Result<File> {
        let file = self.open_regular_file(name, RegularOpenOptions::append())?;
        if FileIdentity::of_file(&file)? != identity {
            return Err(io::Error::other("another process has replaced it"));
        }
        Ok(file)
    }

    /// Returns the path of a file in the directory, for messages.
    pub(super) fn path_for_messages(&self, name: &str) -> String {
        format!("{}/{name}", self.path.trim_end_matches('/'))
    }

    /// Opens a regular file without following symbolic links. Fails if the file has several hard
    /// links.
    fn open_regular_file(&self, name: &str, options: RegularOpenOptions) -> io::Result<File> {
        options.require_sole_link().open_at(&self.fd, name)
    }
}

/// Returns the first unused file number: one more than the largest number at the start of a name in
/// the directory, or 1 if no name starts with a number.
fn first_free_number(path: &str) -> io::Result<u64> {
    let mut next = 1;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let digits: String =
            name.to_string_lossy().chars().take_while(char::is_ascii_digit).take(19).collect();
        next = next.max(digits.parse::<u64>().map_or(0, |number| number + 1));
    }
    Ok(next)
}

/// Replaces all characters except ASCII letters, digits, `.`, `-` and `_` with `_`, because they
/// may be special to a file system or shell. Truncates the text to 100 characters.
fn sanitize_file_name(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' };
    text.chars().map(safe).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::UNLOGGED_CREATION;
    use crate::testing::{TempDir, expect_failure};
    use std::io::Write;

    #[test]
    fn numbering_continues_after_an_earlier_run() {
        let dir = TempDir::new();
        let path = dir.path("out");
        let (mut directory, _) = Directory::open(&path, UNLOGGED_CREATION).unwrap();
        assert_eq!(directory.create_next_file("", "").unwrap().1, "000001");
        assert_eq!(
            directory.create_next_file("-a/../b:c", ".pcap").unwrap().1,
            "000002-a_.._b_c.pcap"
        );
        fs::write(dir.path("out/000004"), "taken later").unwrap();
        assert_eq!(directory.create_next_file("", "").unwrap().1, "000003");
        assert_eq!(directory.create_next_file("", "").unwrap().1, "000005");
        fs::write(dir.path("out/17-by-hand"), "").unwrap();
        let (mut again, _) = Directory::open(&path, UNLOGGED_CREATION).unwrap();
        assert_eq!(again.create_next_file("", "").unwrap().1, "000018");
        assert_eq!(fs::read_to_string(dir.path("out/000004")).unwrap(), "taken later");
    }

    #[test]
    fn links_in_the_directory_are_not_followed() {
        let dir = TempDir::new();
        fs::write(dir.path("victim"), "untouched").unwrap();
        fs::create_dir(dir.path("out")).unwrap();
        let link = |name: &str| std::os::unix::fs::symlink(dir.path("victim"), dir.path(name));
        link("out/index.jsonl").unwrap();
        let failure =
            expect_failure(Directory::open(&dir.path("out"), UNLOGGED_CREATION)).to_string();
        assert!(failure.contains("index.jsonl"), "{failure}");
        fs::remove_file(dir.path("out/index.jsonl")).unwrap();
        let (mut directory, _) = Directory::open(&dir.path("out"), UNLOGGED_CREATION).unwrap();
        link("out/000001").unwrap();
        assert_eq!(directory.create_next_file("", "").unwrap().1, "000002");
        // The descriptor stays open, so that the inode number is not reused.
        let (file, name) = directory.create_next_file("", "").unwrap();
        let identity = FileIdentity::of_file(&file).unwrap();
        directory.reopen(&name, identity).unwrap().write_all(b"more").unwrap();
        fs::remove_file(dir.path("out/000003")).unwrap();
        link("out/000003").unwrap();
        assert!(directory.reopen(&name, identity).is_err());
        fs::remove_file(dir.path("out/000003")).unwrap();
        fs::hard_link(dir.path("victim"), dir.path("out/000003")).unwrap();
        let replaced = directory.reopen(&name, identity).unwrap_err().to_string();
        assert!(replaced.starts_with("it has 2 names"), "{replaced}");
        fs::write(dir.path("out/another"), "more").unwrap();
        fs::rename(dir.path("out/another"), dir.path("out/000003")).unwrap();
        let replaced = directory.reopen(&name, identity).unwrap_err().to_string();
        assert_eq!(replaced, "another process has replaced it");
        assert_eq!(fs::read_to_string(dir.path("victim")).unwrap(), "untouched");
    }

    #[test]
    fn index_with_second_link_or_wrong_type_is_refused() {
        let dir = TempDir::new();
        fs::write(dir.path("victim"), "untouched").unwrap();
        fs::create_dir(dir.path("out")).unwrap();
        let index = dir.path("out/index.jsonl");
        let refusal =
            || expect_failure(Directory::open(&dir.path("out"), UNLOGGED_CREATION)).to_string();
        fs::hard_link(dir.path("victim"), &index).unwrap();
        let failure = refusal();
        assert!(failure.contains("index.jsonl: it has 2 names"), "{failure}");
        fs::remove_file(&index).unwrap();
        std::os::unix::fs::symlink(dir.path("victim"), &index).unwrap();
        assert!(refusal().contains("index.jsonl: it is a symbolic link"), "{}", refusal());
        fs::remove_file(&index).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &index, pipe, mode, 0).unwrap();
        assert!(refusal().contains("index.jsonl: it is a named pipe"), "{}", refusal());
        assert_eq!(fs::read_to_string(dir.path("victim")).unwrap(), "untouched");
    }

    #[test]
    fn path_that_cannot_be_directory_is_refused() {
        let dir = TempDir::new();
        fs::write(dir.path("file"), "").unwrap();
        let failure =
            |path: &str| expect_failure(Directory::open(path, UNLOGGED_CREATION)).to_string();
        assert!(failure(&dir.path("file")).contains("not a directory"));
        assert!(failure(&dir.path("a/b")).ends_with("with mkdir -p"));
        assert!(!failure("/proc/self").is_empty(), "not even root can create a file there");
    }
}
