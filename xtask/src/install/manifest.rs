//! The manifest of an installation: the installed files, and the directories that the installation
//! created.

use super::Folders;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Installed paths as seen after the installation, without `DESTDIR`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Installed {
    pub(super) files: BTreeSet<PathBuf>,
    /// Directories that the installation created.
    pub(super) folders: BTreeSet<PathBuf>,
}

impl Installed {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| in_context(error, "read", path))?;
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
        super::parts::write_atomically(path, text.as_bytes(), 0o644)
    }

    /// Returns the union of both manifests.
    pub(super) fn union(&self, other: &Self) -> Self {
        Self {
            files: self.files.union(&other.files).cloned().collect(),
            folders: self.folders.union(&other.folders).cloned().collect(),
        }
    }

    /// Creates a directory and its parents, and records those that did not exist.
    pub(super) fn create_folder(&mut self, place: &Folders, folder: &Path) -> io::Result<()> {
        let staged = place.staged(folder);
        if staged.is_dir() {
            return Ok(());
        }
        if let Some(parent) = folder.parent() {
            self.create_folder(place, parent)?;
        }
        fs::create_dir(&staged).map_err(|error| in_context(error, "make", &staged))?;
        self.folders.insert(folder.to_owned());
        Ok(())
    }

    /// Removes all files, the manifest, and the created directories that are empty. Returns the
    /// number of files removed.
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

/// Removes a file; returns false if it did not exist.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(in_context(error, "remove", path)),
    }
}

/// Returns the error with a description of the failed action and its path.
pub(super) fn in_context(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}
