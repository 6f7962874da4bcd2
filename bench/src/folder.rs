//! Temporary directories of benches, removed however a bench ends.
//!
//! A directory is locked by the process that created it; the kernel releases the lock when that
//! process ends, even if killed. Creating a directory removes the unlocked ones. A directory gets
//! its final name after it was locked, so one with such a name has had an owner.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Prefixes of the names of these directories: locked ones, and ones that are not locked yet.
const LOCKED_PREFIX: &str = "streamline-bench.";
const UNLOCKED_PREFIX: &str = ".streamline-bench.";

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf, #[expect(dead_code, reason = "the lock")] File);

impl Folder {
    /// Creates a directory for a bench in the system's temporary directory.
    pub(crate) fn new(bench: &str) -> io::Result<Self> {
        Self::within(&std::env::temp_dir(), bench)
    }

    /// Creates a directory in `base`, after removing those whose process has ended.
    pub(crate) fn within(base: &Path, bench: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_stale(base)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{bench}-{}-{number}", std::process::id());
        let made = base.join(format!("{UNLOCKED_PREFIX}{name}"));
        std::fs::create_dir(&made)?;
        let lock = File::open(&made)?;
        lock.lock()?;
        let path = base.join(format!("{LOCKED_PREFIX}{name}"));
        std::fs::rename(&made, &path)?;
        Ok(Self(path, lock))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays until the next directory is created.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the directories whose process has ended.
fn remove_stale(base: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(base)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(LOCKED_PREFIX.as_bytes()) {
            continue;
        }
        // Another user's cannot be opened or removed, and another process may have been quicker:
        // both are not ours to remove.
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

    const ASKED: &str = "STREAMLINE_BENCH_FOLDER";

    /// Creates a directory in the one that the environment names, if any, and waits to be killed.
    #[test]
    fn one_that_is_killed() {
        let Some(base) = std::env::var_os(ASKED) else { return };
        let folder = Folder::within(Path::new(&base), "killed").unwrap();
        std::fs::write(folder.0.join("left"), "behind").unwrap();
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn folder_of_a_killed_bench_is_removed_by_the_next() {
        let base = Folder::new("folders").unwrap();
        let other = Folder::within(&base.0, "other").unwrap();
        let mine = std::env::current_exe().unwrap();
        let mut killed = Command::new(mine)
            .args(["--exact", "folder::tests::one_that_is_killed"])
            .env(ASKED, &base.0)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let left = || {
            let folders = std::fs::read_dir(&base.0).unwrap().map(|entry| entry.unwrap().path());
            folders.map(|folder| folder.join("left")).find(|file| file.exists())
        };
        testkit::until("it has written something", || left().is_some());
        let left = left().unwrap();
        let _next = Folder::within(&base.0, "next").unwrap();
        assert!(left.exists(), "it is still at it");
        killed.kill().unwrap();
        killed.wait().unwrap();
        let third = Folder::within(&base.0, "third").unwrap();
        assert!(!left.parent().unwrap().exists(), "{}", left.display());
        assert!(other.0.is_dir() && third.0.is_dir(), "those of others stay");
        let path = third.0.clone();
        drop(third);
        assert!(!path.exists());
    }
}
