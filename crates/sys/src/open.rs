//! Safe opening of paths where another user may have placed a pipe, terminal or link.
//!
//! Opening a named pipe may block indefinitely until a process opens its other end, a terminal may
//! become the controlling terminal, and a link may lead to any file. [`RegularOpenOptions`] opens
//! without blocking and checks the file type before any access. [`open_target`] opens a destination
//! that the user names, which may be a pipe; for a pipe, it waits for a reader until the first stop
//! signal, or for a limited time ([`set_pipe_wait_rules`]).

use crate::eventfd::EventFd;
use crate::signal;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

/// Flags with which open(2) neither blocks nor acquires a controlling terminal.
const NONBLOCKING_OPEN: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Options for opening a regular file. Opening any other type of file fails without waiting for a
/// peer.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct RegularOpenOptions {
    flags: OFlags,
    mode: u32,
    own: bool,
}

impl RegularOpenOptions {
    /// Creates options to open a file for reading.
    pub const fn read() -> Self {
        Self { flags: OFlags::RDONLY, mode: 0, own: false }
    }

    /// Creates options for writing from the start of the file, without truncating it.
    pub const fn write() -> Self {
        Self { flags: OFlags::WRONLY, mode: 0, own: false }
    }

    /// Creates options to open a file for appending.
    pub const fn append() -> Self {
        Self { flags: OFlags::WRONLY.union(OFlags::APPEND), mode: 0, own: false }
    }

    /// Sets the option to create the file if it is missing, with `mode` before the umask.
    pub const fn create(self, mode: u32) -> Self {
        Self { flags: self.flags.union(OFlags::CREATE), mode, ..self }
    }

    /// Sets the option to create the file, with `mode` before the umask, and to fail if it exists.
    pub const fn create_new(self, mode: u32) -> Self {
        Self { flags: self.flags.union(OFlags::CREATE).union(OFlags::EXCL), mode, ..self }
    }

    /// Sets the option to reject symbolic links and files that have several hard links.
    pub const fn require_sole_link(self) -> Self {
        Self { flags: self.flags.union(OFlags::NOFOLLOW), own: true, ..self }
    }

    /// Opens the file at a path with these options.
    pub fn open(self, path: impl AsRef<Path>) -> io::Result<File> {
        self.open_at(CWD, path)
    }

    /// Opens the file with this name in a directory.
    pub fn open_at(self, directory: impl AsFd, name: impl AsRef<Path>) -> io::Result<File> {
        let (directory, name) = (directory.as_fd(), name.as_ref());
        let mode = Mode::from_raw_mode(self.mode);
        let opened = rustix::fs::openat(directory, name, self.flags | NONBLOCKING_OPEN, mode);
        let file = match opened {
            Ok(file) => file,
            // ENXIO: no peer at a pipe or socket; ELOOP: a symbolic link. Report the type instead.
            Err(errno @ (Errno::NXIO | Errno::LOOP)) => {
                let status = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
                let unfit = status.ok().and_then(|stat| self.file_type_error(&stat));
                return Err(unfit.unwrap_or_else(|| errno.into()));
            }
            Err(errno) => return Err(errno.into()),
        };
        let stat = rustix::fs::fstat(&file)?;
        if let Some(error) = self.file_type_error(&stat) {
            return Err(error);
        }
        if self.own && stat.st_nlink > 1 {
            let why =
                format!("it has {} names, and one of them may be of another file", stat.st_nlink);
            return Err(io::Error::new(ErrorKind::InvalidInput, format!("{why}; {REMOVE_ADVICE}")));
        }
        Ok(file.into())
    }

    /// Returns the error for a file that is not a regular file; `None` for a regular file.
    fn file_type_error(self, stat: &Stat) -> Option<io::Error> {
        let what = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return None,
            FileType::Fifo => "a named pipe",
            FileType::Socket => "a socket",
            FileType::Symlink => "a symbolic link",
            FileType::Directory => "a directory",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            FileType::Unknown => "something unknown",
        };
        let advice = if self.own { format!("; {REMOVE_ADVICE}") } else { String::new() };
        let why = format!("it is {what}, not a regular file{advice}");
        Some(io::Error::new(ErrorKind::InvalidInput, why))
    }
}

/// Advice to the user for a path where this program wants to create a file but another user has
/// already put one.
const REMOVE_ADVICE: &str = "remove it, or choose another place";

/// The position of the first write to an existing regular file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteMode {
    /// Writes start at the beginning of the file.
    FromStart,
    /// Every write appends to the file.
    Append,
}

/// A destination opened for writing.
#[derive(Debug)]
pub struct OpenedTarget {
    /// The destination, open for writing.
    pub file: File,
    /// True if [`open_target`] created the file at its own path; false if the file existed, or was
    /// created through a dangling symbolic link.
    pub created: bool,
}

/// Opens a destination for writing: a regular file, created with `mode` (before the umask) if
/// missing, or a pipe, terminal or device. Never truncates. Waits until a named pipe has a reader;
/// fails at a stop signal or at the deadline of [`PipeWaitRules`]. Rejects a pipe that another user
/// may have planted in a sticky directory that other users may write.
pub fn open_target(path: &Path, writes: WriteMode, mode: u32) -> io::Result<OpenedTarget> {
    let flags = match writes {
        WriteMode::FromStart => OFlags::WRONLY,
        WriteMode::Append => OFlags::WRONLY | OFlags::APPEND,
    };
    let open =
        |more| rustix::fs::open(path, flags | NONBLOCKING_OPEN | more, Mode::from_raw_mode(mode));
    let made = match open(OFlags::CREATE | OFlags::EXCL) {
        Ok(file) => {
            let file = File::from(file);
            set_blocking(&file)?;
            return Ok(OpenedTarget { file, created: true });
        }
        // The file exists, or the path is a dangling link, which is followed.
        Err(Errno::EXIST) => open(OFlags::CREATE),
        Err(errno) => Err(errno),
    };
    let file = match made {
        Ok(file) => File::from(file),
        Err(Errno::NXIO) if is_pipe(&rustix::fs::stat(path)?) => {
            reject_planted_pipe(path, &rustix::fs::stat(path)?)?;
            open_pipe_with_reader(path)?
        }
        Err(errno) => return Err(errno.into()),
    };
    reject_planted_pipe(path, &rustix::fs::fstat(&file)?)?;
    set_blocking(&file)?;
    Ok(OpenedTarget { file, created: false })
}

/// Makes an opened file blocking again. Only its opening had to be nonblocking.
fn set_blocking(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK)?)
}

/// Rules of this process for waits until a named pipe has a reader.
#[derive(Clone, Copy, Debug)]
pub struct PipeWaitRules {
    /// Function that is called with the path of a pipe once the pipe has had no reader for
    /// [`PIPE_NOTICE_DELAY`].
    pub notify: fn(&Path),
    /// Time at which every wait for a reader fails; `None` means that waits are unlimited.
    pub deadline: Option<Instant>,
}

/// Time without a reader after which [`PipeWaitRules::notify`] is called.
pub const PIPE_NOTICE_DELAY: Duration = Duration::from_secs(1);

static PIPE_WAIT_RULES: OnceLock<PipeWaitRules> = OnceLock::new();

/// Sets the rules for waiting until a named pipe has a reader. Without rules, the wait is silent
/// and unlimited. Later calls have no effect.
pub fn set_pipe_wait_rules(rules: PipeWaitRules) {
    let _ = PIPE_WAIT_RULES.set(rules);
}

fn is_pipe(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Fifo
}

/// Rejects a pipe that another user may have planted in the directory of `path`. Applies the rule
/// of `fs.protected_fifos`, regardless of the value of this setting.
fn reject_planted_pipe(path: &Path, stat: &Stat) -> io::Result<()> {
    const STICKY_BIT: u32 = 0o1000;
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    let own = crate::process::effective_ids().0;
    if !is_pipe(stat) || stat.st_uid == own {
        return Ok(());
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let around = rustix::fs::stat(folder.unwrap_or_else(|| Path::new(".")))?;
    let open_to_all = around.st_mode & STICKY_BIT != 0 && around.st_mode & WRITABLE_BY_OTHERS != 0;
    if !open_to_all || around.st_uid == stat.st_uid {
        return Ok(());
    }
    let why = format!("it is a named pipe of another user (uid {})", stat.st_uid);
    Err(io::Error::new(ErrorKind::PermissionDenied, format!("{why}; {REMOVE_ADVICE}")))
}

/// Opens a named pipe for writing as soon as the pipe has a reader. Fails at the first stop signal,
/// or at the deadline of [`PipeWaitRules`].
fn open_pipe_with_reader(path: &Path) -> io::Result<File> {
    let refused = |error: crate::Error| io::Error::from(error);
    let (answer, answered) = mpsc::channel();
    let opened = Arc::new(EventFd::new().map_err(refused)?);
    // A blocking open(2) is the only way to learn of a reader. If a signal ends the wait, the
    // thread ends with the process.
    let (notifier, pipe) = (Arc::clone(&opened), PathBuf::from(path));
    let wait = move || {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        let opened: io::Result<OwnedFd> =
            rustix::io::retry_on_intr(|| rustix::fs::open(&pipe, flags, Mode::empty()))
                .map_err(io::Error::from);
        // The receiver is gone only when the process is about to exit.
        let _ = answer.send(opened);
        notifier.notify();
    };
    std::thread::Builder::new().name("pipe".to_owned()).spawn(wait)?;
    let stop = signal::stop_event();
    let descriptors: Vec<BorrowedFd<'_>> =
        [Some(opened.as_fd()), stop.map(AsFd::as_fd)].into_iter().flatten().collect();
    let begin = Instant::now();
    let deadline = PIPE_WAIT_RULES.get().and_then(|rules| rules.deadline);
    let mut notice = PIPE_WAIT_RULES.get().map(|rules| (rules.notify, begin + PIPE_NOTICE_DELAY));
    loop {
        let now = Instant::now();
        if let Some((notify, _)) = notice.take_if(|(_, at)| now >= *at) {
            notify(path);
        }
        let next = [deadline, notice.map(|(_, at)| at)].into_iter().flatten().min();
        let limit = next.map(|at| at.saturating_duration_since(now));
        let ready = crate::poll::wait_until_readable(&descriptors, limit);
        if let Ok(opened) = answered.try_recv() {
            return Ok(opened?.into());
        }
        if ready.get(1) == Some(&true) || signal::stop_signal_count() > 0 {
            let why = "no program had opened this pipe for reading before a signal arrived";
            return Err(io::Error::other(why));
        }
        if deadline.is_some_and(|at| Instant::now() >= at) {
            let why = "no program opened this pipe for reading within the time limit of the run";
            return Err(io::Error::new(ErrorKind::TimedOut, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt, symlink};

    struct TempDirectory(PathBuf);

    impl TempDirectory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sys-open-{name}-{}", std::process::id()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn path_of(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn create_pipe(&self, name: &str) -> PathBuf {
            let path = self.path_of(name);
            rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
            path
        }
    }

    impl Drop for TempDirectory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn irregular_files_are_rejected_without_waiting() {
        let folder = TempDirectory::new("kinds");
        let pipe = folder.create_pipe("pipe");
        let _socket = std::os::unix::net::UnixListener::bind(folder.path_of("socket")).unwrap();
        let cases = [
            (pipe, "a named pipe"),
            (folder.path_of("socket"), "a socket"),
            ("/dev/null".into(), "a device"),
        ];
        for (path, what) in cases {
            for how in [
                RegularOpenOptions::read(),
                RegularOpenOptions::write(),
                RegularOpenOptions::append().create(0o600),
            ] {
                let error = how.open(&path).unwrap_err().to_string();
                assert!(error.starts_with(&format!("it is {what}, not a regular file")), "{error}");
            }
        }
        assert!(
            RegularOpenOptions::read()
                .open(&folder.0)
                .unwrap_err()
                .to_string()
                .contains("a directory")
        );
    }

    #[test]
    fn sole_link_rejects_symlinks_and_hard_links() {
        let folder = TempDirectory::new("own");
        let held = crate::local_socket::open_directory(&folder.0).unwrap();
        let own = RegularOpenOptions::append().create(0o640).require_sole_link();
        own.open_at(&held, "mine").unwrap().write_all(b"one").unwrap();
        own.open_at(&held, "mine").unwrap().write_all(b"two").unwrap();
        assert_eq!(std::fs::read(folder.path_of("mine")).unwrap(), b"onetwo");
        assert!(own.create_new(0o600).open_at(&held, "mine").is_err());
        symlink("mine", folder.path_of("link")).unwrap();
        let error = own.open_at(&held, "link").unwrap_err().to_string();
        assert!(error.contains("a symbolic link"), "{error}");
        std::fs::hard_link(folder.path_of("mine"), folder.path_of("other")).unwrap();
        let error = own.open_at(&held, "mine").unwrap_err().to_string();
        assert!(error.starts_with("it has 2 names"), "{error}");
        let mut text = String::new();
        RegularOpenOptions::read()
            .open(folder.path_of("link"))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "onetwo");
    }

    #[test]
    fn open_target_creates_keeps_and_awaits_a_pipe_reader() {
        let folder = TempDirectory::new("target");
        let file = folder.path_of("file");
        assert!(open_target(&file, WriteMode::FromStart, 0o666).unwrap().created);
        std::fs::write(&file, "here").unwrap();
        let again = open_target(&file, WriteMode::Append, 0o666).unwrap();
        assert!(!again.created && again.file.metadata().unwrap().len() == 4);
        symlink("later", folder.path_of("link")).unwrap();
        assert!(
            !open_target(&folder.path_of("link"), WriteMode::FromStart, 0o666).unwrap().created
        );
        assert!(folder.path_of("later").exists());
        assert!(open_target(Path::new("/dev/null"), WriteMode::FromStart, 0o666).is_ok());

        let pipe = folder.create_pipe("pipe");
        let path = pipe.clone();
        let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
        let mut writer = open_target(&pipe, WriteMode::FromStart, 0o666).unwrap().file;
        writer.write_all(b"bytes").unwrap();
        drop(writer);
        assert_eq!(reader.join().unwrap(), b"bytes");
    }

    #[test]
    fn planted_pipe_of_another_user_is_rejected() {
        if testkit::need::require_root().is_none() {
            return;
        }
        let folder = TempDirectory::new("planted");
        let pipe = folder.create_pipe("pipe");
        std::os::unix::fs::chown(&pipe, Some(41_007), None).unwrap();
        let reader =
            rustix::fs::open(&pipe, OFlags::RDONLY | NONBLOCKING_OPEN, Mode::empty()).unwrap();
        assert!(
            open_target(&pipe, WriteMode::FromStart, 0o600).is_ok(),
            "the directory is ours alone"
        );
        std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o1777)).unwrap();
        let error = open_target(&pipe, WriteMode::FromStart, 0o600).unwrap_err().to_string();
        // The kernel may reject it first.
        assert!(error.contains("of another user") || error.contains("denied"), "{error}");
        drop(reader);
        let error = open_target(&pipe, WriteMode::FromStart, 0o600).unwrap_err().to_string();
        assert!(error.contains("of another user") || error.contains("denied"), "{error}");
    }
}
