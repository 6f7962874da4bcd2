//! Fixtures for tests of PipesFS mounts.

use super::Folder;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use testkit::{need, wait_until};

/// A mount of PipesFS. Dropping this value unmounts it.
pub(crate) struct PipesMount {
    pub(crate) directory: PathBuf,
}

impl PipesMount {
    /// Mounts PipesFS on the directory `pipes`. Reports a skip and returns `None` if root
    /// privileges or `/dev/fuse` are missing.
    pub(crate) fn new(folder: &Folder, options: &[&str]) -> Option<Self> {
        Some(Self::new_unmounted(folder)?.mount(folder, options))
    }

    /// Mounts PipesFS again on the directory `pipes`, after an earlier mount was dropped.
    pub(crate) fn mount_again(folder: &Folder) -> Self {
        Self { directory: folder.path().join("pipes") }.mount(folder, &[])
    }

    fn mount(self, folder: &Folder, options: &[&str]) -> Self {
        // The time limit for edits is high, because a path may need seconds to start on a busy
        // machine.
        let words = [&["mount", "-o", "edit_limit=20"], options, &["pipes"]].concat();
        let ran = folder.run(&words);
        assert_eq!(ran.status, Some(0), "{}", ran.err);
        self
    }

    /// Creates the directory `pipes` without mounting anything on it. Reports a skip and returns
    /// `None` if root privileges or `/dev/fuse` are missing.
    pub(crate) fn new_unmounted(folder: &Folder) -> Option<Self> {
        need::require_root()?;
        need::require_file("/dev/fuse")?;
        let directory = folder.path().join("pipes");
        fs::create_dir(&directory).unwrap();
        Some(Self { directory })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(crate) fn read_text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn read_number(&self, name: &str) -> u64 {
        self.read_text(name).trim().parse().unwrap()
    }

    pub(crate) fn entry_names(&self, name: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path(name)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for PipesMount {
    fn drop(&mut self) {
        let mut umount = Command::new("umount");
        let _ = umount.arg("-l").arg(&self.directory).stderr(Stdio::null()).status();
    }
}

/// Runs a shell script in the mount's directory, and kills the script after a minute. Returns its
/// output and exit status.
pub(crate) fn run_in_mount(mounted: &PipesMount, script: &str) -> (String, i32) {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60", "sh", "-c", script]).current_dir(&mounted.directory);
    let output = command.stdin(Stdio::null()).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap_or(-1))
}

/// A process that is killed and reaped on drop.
pub(crate) struct ProcessGuard(pub(crate) Child);

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal, such as `-STOP`, to a process.
pub(crate) fn send_signal(name: &str, process: u32) {
    let process = process.to_string();
    assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
}

/// Stops a process with SIGSTOP, and waits until all of its threads have stopped.
pub(crate) fn stop_process(process: u32) {
    send_signal("-STOP", process);
    let is_stopped = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T'))
    };
    wait_until("all threads are stopped", || {
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        threads.flatten().all(is_stopped)
    });
}
