//! Fixture of the tests: a daemon, paths, and a process that serves the page.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use testkit::{streamline_program, wait_until};

/// A daemon with a separate directory. Dropping this value stops the paths and the daemon.
pub(crate) struct TestDaemon {
    folder: PathBuf,
    daemon: Child,
}

impl TestDaemon {
    pub(crate) fn new() -> Self {
        Self::start_with_arguments(&[])
    }

    /// Starts a daemon with further arguments.
    pub(crate) fn start_with_arguments(arguments: &[&str]) -> Self {
        static NEXT_FOLDER_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_FOLDER_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-page-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        let mut command = Command::new(streamline_program());
        command.arg("daemon").arg("--socket").arg(folder.join("daemon")).args(arguments);
        let log = fs::File::create(folder.join("daemon.log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let daemon = command.env_remove("NOTIFY_SOCKET").spawn().unwrap();
        let machine = Self { folder, daemon };
        wait_until("a daemon replies", || machine.run(&["ps"]).status.success());
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns the daemon's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("daemon.log")).unwrap()
    }

    /// Stops the daemon with SIGTERM, and waits until it has exited.
    pub(crate) fn stop_daemon(&mut self) {
        Command::new("kill").arg(self.daemon.id().to_string()).status().unwrap();
        self.daemon.wait().unwrap();
    }

    /// Kills the daemon with SIGKILL, and waits until it has exited.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
    }

    pub(crate) fn set_environment(&self, command: &mut Command) {
        command.env("STREAMLINE_DAEMON", self.path("daemon"));
        command.env("XDG_STATE_HOME", self.path("state")).env("NO_COLOR", "1");
        command.current_dir(&self.folder).stdin(Stdio::null());
    }

    /// Runs `streamline` with these arguments.
    pub(crate) fn run(&self, words: &[&str]) -> Output {
        let mut command = Command::new(streamline_program());
        self.set_environment(&mut command);
        command.args(words).output().unwrap()
    }

    /// Starts a path in the background, and returns its number.
    pub(crate) fn start(&self, name: &str, request: &str) -> u32 {
        let output = self.run(&["start", name, request]);
        let number = String::from_utf8_lossy(&output.stdout).trim().parse();
        number.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)))
    }

    /// Starts a page that listens on an address, and waits for its URL.
    pub(crate) fn start_page(&self, listen: &str) -> Page {
        let mut command = Command::new(env!("CARGO_BIN_EXE_streamline-page"));
        self.set_environment(&mut command);
        let mut child = command.args(["--listen", listen]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut url = String::new();
        output.read_line(&mut url).unwrap();
        Page { child, url: url.trim().to_owned(), _output: output }
    }
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        let listed = self.run(&["ps", "--json"]);
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let paths = listed["paths"].as_array().cloned().unwrap_or_default();
        for path in paths {
            self.run(&["stop", "--kill", &path["number"].to_string()]);
        }
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The process of the page. Dropping this value ends the process.
pub(crate) struct Page {
    pub(crate) child: Child,
    /// URL of the page, as printed by its process.
    pub(crate) url: String,
    _output: BufReader<ChildStdout>,
}

impl Page {
    /// Returns the host and port of the URL.
    pub(crate) fn host(&self) -> &str {
        self.url.strip_prefix("http://").unwrap().split('/').next().unwrap()
    }

    pub(crate) fn token(&self) -> &str {
        self.url.split_once("#token=").unwrap().1
    }

    /// Returns true if the page has a collector thread, which collects figures from the paths.
    pub(crate) fn has_collector_thread(&self) -> bool {
        let tasks = Path::new("/proc").join(self.child.id().to_string()).join("task");
        let tasks = fs::read_dir(tasks).unwrap().flatten();
        let mut names = tasks.map(|task| fs::read_to_string(task.path().join("comm")));
        names.any(|name| name.is_ok_and(|name| name.trim() == "collector"))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
