//! The manifest of an installation: its files, and the folders that it made.

use super::Folders;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Paths as they are found later, without `DESTDIR`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Installed {
    pub(super) files: BTreeSet<PathBuf>,
    /// Folders that the installation made.
    pub(super) folders: BTreeSet<PathBuf>,
}

impl Installed {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| named(error, "read", path))?;
        let mut manifest = Self::default();
        for line in text.lines() {
            match line.strip_suffix('/') {
                Some(folder) => manifest.folders.insert(PathBuf::from(folder)),
                None => manifest.files.insert(PathBuf::from(line)),
            };
        }
        Ok(manifest)
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let files = self.files.iter().map(|file| format!("{}\n", file.display()));
        let folders = self.folders.iter().map(|folder| format!("{}/\n", folder.display()));
        let text: String = files.chain(folders).collect();
        super::parts::write_beside(path, text.as_bytes(), 0o644)
    }

    /// Both.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            files: self.files.union(&other.files).cloned().collect(),
            folders: self.folders.union(&other.folders).cloned().collect(),
        }
    }

    /// Makes a folder with those above it, and notes which were not there.
    pub(super) fn make_folder(&mut self, place: &Folders, folder: &Path) -> io::Result<()> {
        let staged = place.staged(folder);
        if staged.is_dir() {
            return Ok(());
        }
        if let Some(parent) = folder.parent() {
            self.make_folder(place, parent)?;
        }
        fs::create_dir(&staged).map_err(|error| named(error, "make", &staged))?;
        self.folders.insert(folder.to_owned());
        Ok(())
    }

    /// Removes all files, the manifest, and the folders that were made and are empty. Answers how
    /// many files there were.
    pub(super) fn remove_all(&self, place: &Folders) -> io::Result<usize> {
        let mut removed = 0;
        for file in &self.files {
            removed += usize::from(remove(&place.staged(file))?);
        }
        remove(&place.manifest())?;
        // Deeper ones first: a folder sorts before what lies in it.
        for folder in self.folders.iter().rev() {
            // One in which something else lies stays.
            let _ = fs::remove_dir(place.staged(folder));
        }
        Ok(removed)
    }
}

/// Removes a file; false if it was not there.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(named(error, "remove", path)),
    }
}

/// The error with what was tried.
pub(super) fn named(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}
