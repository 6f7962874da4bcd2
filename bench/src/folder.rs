//! Folders for what a bench writes, which go away with it, however it ends.
//!
//! A folder is locked by the process that made it, for as long as that lives: the kernel gives the
//! lock up when it is gone, killed or not. So whoever makes the next folder removes those that
//! nobody has locked. A folder gets its name when it is locked, and is never without an owner under
//! that name.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The prefixes of the names of such folders, and of folders that are not locked yet.
const NAME: &str = "streamline-bench.";
const UNNAMED: &str = ".streamline-bench.";

/// A temporary folder.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf, #[expect(dead_code, reason = "the lock")] File);

impl Folder {
    /// One for this bench, where the machine keeps temporary files.
    pub(crate) fn new(bench: &str) -> io::Result<Self> {
        Self::within(&std::env::temp_dir(), bench)
    }

    /// The same in this folder. Those of processes that are gone are removed from it.
    pub(crate) fn within(base: &Path, bench: &str) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_left(base)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{bench}-{}-{number}", std::process::id());
        let made = base.join(format!("{UNNAMED}{name}"));
        std::fs::create_dir(&made)?;
        let lock = File::open(&made)?;
        lock.lock()?;
        let path = base.join(format!("{NAME}{name}"));
        std::fs::rename(&made, &path)?;
        Ok(Self(path, lock))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays until the next one is made.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders whose processes are gone.
fn remove_left(base: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(base)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(NAME.as_bytes()) {
            continue;
        }
        // Another user's cannot be opened or removed, and another may have been quicker: both leave
        // a folder that is not ours to care for.
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

    /// Makes a folder in the one that it is told, if it is, and stays until it is killed.
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
    fn folders_of_benches_that_were_killed_go_when_the_next_begins() {
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
