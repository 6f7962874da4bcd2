//! Temporary directories of benches, which are removed even if a bench is killed.
//!
//! The process that creates a directory locks it; the kernel releases the lock when that process
//! exits or is killed. Creating a directory removes all unlocked directories of other benches. A
//! directory gets its final name only after it has been locked, so an unlocked directory with a
//! final name was left behind by a process that has exited.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Name prefix of temporary directories that their bench has locked.
const LOCKED_DIRECTORY_PREFIX: &str = "streamline-bench.";
/// Name prefix of temporary directories that their bench has created but not locked yet.
const UNLOCKED_DIRECTORY_PREFIX: &str = ".streamline-bench.";

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub(crate) struct TempDirectory(pub(crate) PathBuf, #[expect(dead_code, reason = "the lock")] File);

impl TempDirectory {
    /// Creates a directory for a bench in the system's temporary directory.
    pub(crate) fn new(bench: &str) -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir(), bench)
    }

    /// Creates a directory in `base`, after removing the directories of processes that have exited.
    pub(crate) fn new_in(base: &Path, bench: &str) -> io::Result<Self> {
        static NEXT_NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_stale_directories(base)?;
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{bench}-{}-{number}", std::process::id());
        let made = base.join(format!("{UNLOCKED_DIRECTORY_PREFIX}{name}"));
        std::fs::create_dir(&made)?;
        let lock = File::open(&made)?;
        lock.lock()?;
        let path = base.join(format!("{LOCKED_DIRECTORY_PREFIX}{name}"));
        std::fs::rename(&made, &path)?;
        Ok(Self(path, lock))
    }
}

impl Drop for TempDirectory {
    fn drop(&mut self) {
        // If removing fails, the creation of the next directory removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the temporary directories of processes that have exited.
fn remove_stale_directories(base: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(base)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(LOCKED_DIRECTORY_PREFIX.as_bytes()) {
            continue;
        }
        // Directories of other users cannot be opened or removed, and another process may have
        // removed this directory first.
        if let Ok(lock) = File::open(entry.path())
            && lock.try_lock().is_ok()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const PARENT_DIRECTORY_VARIABLE: &str = "STREAMLINE_BENCH_FOLDER";

    /// Entry point of the child process that `directory_of_a_killed_bench_is_removed_by_the_next`
    /// starts and kills. Creates a directory in the directory that an environment variable names,
    /// and waits. Does nothing if the variable is not set.
    #[test]
    fn child_creates_a_directory_and_waits() {
        let Some(base) = std::env::var_os(PARENT_DIRECTORY_VARIABLE) else { return };
        let folder = TempDirectory::new_in(Path::new(&base), "killed").unwrap();
        std::fs::write(folder.0.join("left"), "behind").unwrap();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn directory_of_a_killed_bench_is_removed_by_the_next() {
        let base = TempDirectory::new("folders").unwrap();
        let other = TempDirectory::new_in(&base.0, "other").unwrap();
        let mine = std::env::current_exe().unwrap();
        let mut killed = Command::new(mine)
            .args(["--exact", "temp_directory::tests::child_creates_a_directory_and_waits"])
            .env(PARENT_DIRECTORY_VARIABLE, &base.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let left = || {
            let folders = std::fs::read_dir(&base.0).unwrap().map(|entry| entry.unwrap().path());
            folders.map(|folder| folder.join("left")).find(|file| file.exists())
        };
        testkit::wait_until("it has written something", || left().is_some());
        let left = left().unwrap();
        let _next = TempDirectory::new_in(&base.0, "next").unwrap();
        assert!(left.exists(), "it is still at it");
        killed.kill().unwrap();
        killed.wait().unwrap();
        let third = TempDirectory::new_in(&base.0, "third").unwrap();
        assert!(!left.parent().unwrap().exists(), "{}", left.display());
        assert!(other.0.is_dir() && third.0.is_dir(), "those of others stay");
        let path = third.0.clone();
        drop(third);
        assert!(!path.exists());
    }
}
