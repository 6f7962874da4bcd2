//! Fixtures for tests of the command: a directory with the example capture, and commands that run
//! in it.

#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod pipes_mount;
pub(crate) mod schema_validator;
pub(crate) mod screen;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Subdirectory in which commands search for the daemon. It is empty unless a test starts a daemon.
pub(crate) const DAEMON_DIR: &str = "no-daemon";

/// A temporary directory with the example captures and requests in `examples`. Removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-cli-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(examples_directory(), folder.join("examples")).unwrap();
        Self(folder)
    }

    /// Creates a directory that all users can write to, with a copy of the program.
    pub(crate) fn accessible_to_all() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = Self::new();
        let everybody = std::fs::Permissions::from_mode(0o1777);
        std::fs::set_permissions(folder.path(), everybody).unwrap();
        testkit::copy_program(Path::new(env!("CARGO_BIN_EXE_streamline")), &folder.program_copy());
        folder
    }

    fn program_copy(&self) -> PathBuf {
        self.0.join("streamline")
    }

    /// Returns a command that runs `program`, or the copy of `streamline` if it is `None`, as a
    /// user and group. Requires a directory created by
    /// [`accessible_to_all`](Self::accessible_to_all).
    pub(crate) fn command_as_user(&self, (uid, gid): (u32, u32), program: Option<&str>) -> Command {
        use std::os::unix::process::CommandExt as _;
        let own = self.program_copy();
        let mut command = Command::new(program.map_or(own.as_path(), Path::new));
        command.current_dir(&self.0).uid(uid).gid(gid).stdin(Stdio::null());
        self.set_environment(&mut command);
        command.env("XDG_STATE_HOME", self.0.join(format!("state-{uid}")));
        command
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    /// Returns a command that runs the program with these arguments in this directory.
    pub(crate) fn streamline_command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamline"));
        command.args(words).current_dir(&self.0);
        self.set_environment(&mut command);
        command
    }

    /// Returns a command that runs a shell script in this directory, with the program in its
    /// `PATH`.
    pub(crate) fn shell_command(&self, script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(&self.0);
        self.set_environment(&mut command);
        command
    }

    pub(crate) fn set_environment(&self, command: &mut Command) {
        let binary = Path::new(env!("CARGO_BIN_EXE_streamline")).parent().unwrap();
        let others = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{others}", binary.display()));
        command.env("XDG_STATE_HOME", self.0.join("state"));
        command.env("STREAMLINE_DAEMON", self.0.join(DAEMON_DIR));
        command.env("NO_COLOR", "1").env_remove("RUST_BACKTRACE");
    }

    /// Runs the program with these arguments until it ends. Returns its output and exit status.
    pub(crate) fn run(&self, words: &[&str]) -> CommandResult {
        CommandResult::from(self.streamline_command(words).output().unwrap())
    }

    /// Starts the program with these arguments, and discards its output. Returns a guard that kills
    /// the process on drop.
    pub(crate) fn spawn_without_output(&self, words: &[&str]) -> ChildGuard {
        let mut command = self.streamline_command(words);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        ChildGuard(command.spawn().unwrap())
    }

    /// Starts a daemon in the subdirectory [`DAEMON_DIR`], and waits until the daemon replies.
    pub(crate) fn start_daemon(&self) -> ChildGuard {
        let place = self.0.join(DAEMON_DIR).display().to_string();
        let daemon = self.spawn_without_output(&["daemon", "--socket", &place]);
        testkit::wait_until("a daemon answers", || self.run(&["ps"]).status == Some(0));
        daemon
    }

    /// Runs a request as a path with a name, discards its output, and waits until the path is
    /// listed.
    pub(crate) fn spawn_named_path(&self, name: &str, line: &str) -> ChildGuard {
        let path = self.spawn_without_output(&["run", "-q", "--as", name, line]);
        self.wait_until_listed(name);
        path
    }

    /// Waits until the daemon lists a path with this name.
    pub(crate) fn wait_until_listed(&self, name: &str) {
        let name = format!(" {name} ");
        testkit::wait_until("it is listed", || self.run(&["ps"]).out.contains(&name));
    }
}

/// A child process that is killed on drop.
#[derive(Debug)]
pub(crate) struct ChildGuard(pub(crate) Child);

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Builds the library that `sh` and `exec` preload for pipes, in the directory of the command.
pub(crate) fn build_pipes_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build_preload_library("sockets"))
}

/// Builds the library that `exec` preloads for live captures, in the directory of the command.
pub(crate) fn build_pcap_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build_preload_library("pcap"))
}

/// Builds the library for UDP sockets, and returns its path.
pub(crate) fn build_udp_library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| build_preload_library("udp"))
}

/// Builds the package of one library, and returns the path of the library. Does not build other
/// packages, because cargo would then build the command again with other features.
fn build_preload_library(name: &str) -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    let package = format!("streamline-{name}");
    build.args(["build", "--quiet", "--package", &package, "--target-dir"]);
    let own = Path::new(env!("CARGO_BIN_EXE_streamline"));
    build.arg(own.ancestors().nth(2).unwrap());
    if own.parent().unwrap().ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "the library was not built");
    own.with_file_name(format!("libstreamline_{name}.so"))
}

/// Returns the directory `examples` of the repository, which contains the example captures and
/// requests.
pub(crate) fn examples_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").canonicalize().unwrap()
}

/// The output and exit status of a command.
#[derive(Debug)]
pub(crate) struct CommandResult {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: Option<i32>,
}

impl From<Output> for CommandResult {
    fn from(output: Output) -> Self {
        Self {
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            status: output.status.code(),
        }
    }
}
