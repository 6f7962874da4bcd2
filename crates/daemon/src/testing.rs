//! Temporary directories for the tests of this crate.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new temporary directory, which is removed on drop.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    pub(crate) fn new() -> Self {
        static NEXT_DIRECTORY_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_DIRECTORY_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-daemon-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
