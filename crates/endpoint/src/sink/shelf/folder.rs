//! The directory that a sink writes many files into: made if it is missing, held open, never left.
//!
//! Every file is created exclusively, relative to the open directory, without following links,
//! under a name that is built here from digits, letters, points, dashes and underscores. A name
//! that is taken is never overwritten: numbers go on behind the largest one that is there.

use crate::Failure;
use crate::fail::failed;
use crate::readers::Making;
use crate::sink::out::takes_back;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt};
use std::path::Path;
use sys::open::OpenRegular;
use sys::steps::Resource;

/// The name of the table of contents.
pub(crate) const INDEX: &str = "index.jsonl";
/// Attempts at another number when other processes take names at the same time.
const TRIES: u32 = 1000;

/// An open directory.
#[derive(Debug)]
pub(super) struct Folder {
    fd: OwnedFd,
    path: String,
    /// The number of the next file.
    next: u64,
    /// The mode of files that are made in it, before the umask.
    mode: u32,
}

/// The identity of a file, by which another one under the same name is recognized.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of an open file.
    pub(super) fn of(file: &File) -> io::Result<Self> {
        let meta = file.metadata()?;
        Ok(Self { device: meta.dev(), inode: meta.ino() })
    }
}

impl Folder {
    /// Opens a directory, which is made if only its last part is missing, and its index for
    /// appending.
    pub(super) fn open(path: &str, (steps, readers): Making<'_>) -> Result<(Self, File), Failure> {
        let refused = |error: sys::Error| failed("make", path, &error.into());
        steps.take(Resource::File, path).map_err(refused)?;
        let mode = readers.mode_of(Path::new(path), 0o777);
        let made = match fs::DirBuilder::new().mode(mode).create(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let hint = "make the directory around it first, with mkdir -p";
                return Err(failed("make", path, &error).hint(hint));
            }
            Err(error) => return Err(failed("make", path, &error)),
        };
        let mark = steps.mark();
        if made {
            let path = std::path::absolute(path).map_err(|error| failed("make", path, &error))?;
            // Only an empty one can be removed.
            steps.on_rollback(format!("directory {}", path.display()), move || {
                drop(fs::remove_dir(path))
            });
        }
        let opened = Self::open_existing(path, (steps, readers));
        if opened.is_err() {
            steps.roll_back_to(mark);
        }
        opened
    }

    fn open_existing(path: &str, (steps, readers): Making<'_>) -> Result<(Self, File), Failure> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
            let failure = failed("open", path, &errno.into());
            // What is not there was made before.
            match errno {
                Errno::NOENT => failure.hint("it is a link to a directory that is not there"),
                _ => failure,
            }
        })?;
        let next = first_free(path).map_err(|error| failed("read", path, &error))?;
        let mode = readers.mode(Path::new(path), 0o666);
        let folder = Self { fd, path: path.to_owned(), next, mode };
        let cannot = |error: io::Error| failed("open", &folder.target(INDEX), &error);
        steps.take(Resource::File, INDEX).map_err(|error| cannot(error.into()))?;
        let index = match folder.at(INDEX, OpenRegular::append().create_new(folder.mode)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                folder.at(INDEX, OpenRegular::append().create(folder.mode)).map_err(cannot)?
            }
            made => {
                let index = made.map_err(cannot)?;
                takes_back(&index, folder.target(INDEX).into(), steps).map_err(cannot)?;
                index
            }
        };
        Ok((folder, index))
    }

    /// Creates the next file; `about` and `ending` are added to its number to make its name.
    pub(super) fn create(&mut self, about: &str, ending: &str) -> io::Result<(File, String)> {
        for _ in 0..TRIES {
            let name = format!("{:06}{}{ending}", self.next, safe(about));
            let created = self.at(&name, OpenRegular::append().create_new(self.mode));
            match created {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.next += 1,
                created => {
                    let file = created?;
                    self.next += 1;
                    return Ok((file, name));
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Opens a file again that was created here.
    pub(super) fn reopen(&self, name: &str, identity: Identity) -> io::Result<File> {
        let file = self.at(name, OpenRegular::append())?;
        if Identity::of(&file)? != identity {
            return Err(io::Error::other("somebody else has replaced it"));
        }
        Ok(file)
    }

    /// A file of the directory, for messages.
    pub(super) fn target(&self, name: &str) -> String {
        format!("{}/{name}", self.path.trim_end_matches('/'))
    }

    /// A file of ours, whatever somebody else may have put under its name.
    fn at(&self, name: &str, how: OpenRegular) -> io::Result<File> {
        how.sole_link().open_at(&self.fd, name)
    }
}

/// The number behind the largest one with which a name in the directory begins.
fn first_free(path: &str) -> io::Result<u64> {
    let mut next = 1;
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let digits: String =
            name.to_string_lossy().chars().take_while(char::is_ascii_digit).take(19).collect();
        next = next.max(digits.parse::<u64>().map_or(0, |number| number + 1));
    }
    Ok(next)
}

/// The text with everything replaced that could mean something to a file system or a shell.
fn safe(text: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' };
    text.chars().map(safe).take(100).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::MAKING;
    use crate::testing::{TempDir, refused};
    use std::io::Write;

    #[test]
    fn numbers_go_on_where_an_earlier_run_stopped() {
        let dir = TempDir::new();
        let path = dir.path("out");
        let (mut folder, _) = Folder::open(&path, MAKING).unwrap();
        assert_eq!(folder.create("", "").unwrap().1, "000001");
        assert_eq!(folder.create("-a/../b:c", ".pcap").unwrap().1, "000002-a_.._b_c.pcap");
        fs::write(dir.path("out/000004"), "taken later").unwrap();
        assert_eq!(folder.create("", "").unwrap().1, "000003");
        assert_eq!(folder.create("", "").unwrap().1, "000005");
        fs::write(dir.path("out/17-by-hand"), "").unwrap();
        let (mut again, _) = Folder::open(&path, MAKING).unwrap();
        assert_eq!(again.create("", "").unwrap().1, "000018");
        assert_eq!(fs::read_to_string(dir.path("out/000004")).unwrap(), "taken later");
    }

    #[test]
    fn links_do_not_lead_out_of_the_directory() {
        let dir = TempDir::new();
        fs::write(dir.path("victim"), "untouched").unwrap();
        fs::create_dir(dir.path("out")).unwrap();
        let link = |name: &str| std::os::unix::fs::symlink(dir.path("victim"), dir.path(name));
        link("out/index.jsonl").unwrap();
        let failure = refused(Folder::open(&dir.path("out"), MAKING)).to_string();
        assert!(failure.contains("index.jsonl"), "{failure}");
        fs::remove_file(dir.path("out/index.jsonl")).unwrap();
        let (mut folder, _) = Folder::open(&dir.path("out"), MAKING).unwrap();
        link("out/000001").unwrap();
        assert_eq!(folder.create("", "").unwrap().1, "000002");
        // It stays open, so that its number is not another file's.
        let (file, name) = folder.create("", "").unwrap();
        let identity = Identity::of(&file).unwrap();
        folder.reopen(&name, identity).unwrap().write_all(b"more").unwrap();
        fs::remove_file(dir.path("out/000003")).unwrap();
        link("out/000003").unwrap();
        assert!(folder.reopen(&name, identity).is_err());
        fs::remove_file(dir.path("out/000003")).unwrap();
        fs::hard_link(dir.path("victim"), dir.path("out/000003")).unwrap();
        let replaced = folder.reopen(&name, identity).unwrap_err().to_string();
        assert!(replaced.starts_with("it has 2 names"), "{replaced}");
        fs::write(dir.path("out/another"), "more").unwrap();
        fs::rename(dir.path("out/another"), dir.path("out/000003")).unwrap();
        let replaced = folder.reopen(&name, identity).unwrap_err().to_string();
        assert_eq!(replaced, "somebody else has replaced it");
        assert_eq!(fs::read_to_string(dir.path("victim")).unwrap(), "untouched");
    }

    #[test]
    fn index_that_is_a_link_a_second_name_or_a_pipe_is_refused_at_once() {
        let dir = TempDir::new();
        fs::write(dir.path("victim"), "untouched").unwrap();
        fs::create_dir(dir.path("out")).unwrap();
        let index = dir.path("out/index.jsonl");
        let told = || refused(Folder::open(&dir.path("out"), MAKING)).to_string();
        fs::hard_link(dir.path("victim"), &index).unwrap();
        let failure = told();
        assert!(failure.contains("index.jsonl: it has 2 names"), "{failure}");
        fs::remove_file(&index).unwrap();
        std::os::unix::fs::symlink(dir.path("victim"), &index).unwrap();
        assert!(told().contains("index.jsonl: it is a symbolic link"), "{}", told());
        fs::remove_file(&index).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        let mode = Mode::from_raw_mode(0o666);
        rustix::fs::mknodat(rustix::fs::CWD, &index, pipe, mode, 0).unwrap();
        assert!(told().contains("index.jsonl: it is a named pipe"), "{}", told());
        assert_eq!(fs::read_to_string(dir.path("victim")).unwrap(), "untouched");
    }

    #[test]
    fn what_cannot_be_a_directory_is_told() {
        let dir = TempDir::new();
        fs::write(dir.path("file"), "").unwrap();
        let told = |path: &str| refused(Folder::open(path, MAKING)).to_string();
        assert!(told(&dir.path("file")).contains("not a directory"));
        assert!(told(&dir.path("a/b")).ends_with("with mkdir -p"));
        assert!(!told("/proc/self").is_empty(), "nothing can be created there, not even by root");
    }
}
