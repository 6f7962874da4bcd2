//! A temporary directory for a test, in memory if possible, because captures are written thousands
//! of times. It is removed with its contents unless the test fails.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// Temporary directory of a test, removed on drop unless the test fails.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty directory in `/dev/shm` or, if that does not exist, in the directory for
    /// temporary files.
    pub(crate) fn new() -> Self {
        static NEXT_DIRECTORY_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_DIRECTORY_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-tests-{}-{number}", std::process::id());
        let memory = PathBuf::from("/dev/shm");
        let place = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = place.join(name);
        std::fs::create_dir(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// Returns the path of the file `name` in the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept: {}", self.0.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
