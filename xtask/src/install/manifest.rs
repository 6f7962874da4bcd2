//! The manifest of an installation: the installed files, and the directories that the installation
//! created.

use super::InstallPaths;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The installed files and the created directories, as paths without `DESTDIR`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct InstallManifest {
    pub(super) files: BTreeSet<PathBuf>,
    /// Directories that the installation created.
    pub(super) folders: BTreeSet<PathBuf>,
}

impl InstallManifest {
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text =
            fs::read_to_string(path).map_err(|error| with_path_context(error, "read", path))?;
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
        super::file_list::write_atomically(path, text.as_bytes(), 0o644)
    }

    /// Returns the union of both manifests.
    pub(super) fn union(&self, other: &Self) -> Self {
        Self {
            files: self.files.union(&other.files).cloned().collect(),
            folders: self.folders.union(&other.folders).cloned().collect(),
        }
    }

    /// Creates a directory and its missing parents, and adds them to the manifest.
    pub(super) fn create_directory(
        &mut self,
        paths: &InstallPaths,
        folder: &Path,
    ) -> io::Result<()> {
        let staged = paths.staged_path(folder);
        if staged.is_dir() {
            return Ok(());
        }
        if let Some(parent) = folder.parent() {
            self.create_directory(paths, parent)?;
        }
        fs::create_dir(&staged).map_err(|error| with_path_context(error, "make", &staged))?;
        self.folders.insert(folder.to_owned());
        Ok(())
    }

    /// Removes all files in the manifest, the manifest itself, and the created directories that are
    /// empty afterwards. Returns the number of files that existed.
    pub(super) fn remove_installed_files(&self, paths: &InstallPaths) -> io::Result<usize> {
        let mut removed = 0;
        for file in &self.files {
            removed += usize::from(remove_file(&paths.staged_path(file))?);
        }
        remove_file(&paths.manifest_path())?;
        // The directories are removed in reverse order, so that subdirectories precede their
        // parents.
        for folder in self.folders.iter().rev() {
            // A directory that contains other files remains.
            let _ = fs::remove_dir(paths.staged_path(folder));
        }
        Ok(removed)
    }
}

/// Removes a file; returns false if it did not exist.
pub(super) fn remove_file(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(with_path_context(error, "remove", path)),
    }
}

/// Returns an error with a message of the form `cannot WHAT PATH: ERROR`.
pub(super) fn with_path_context(error: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
}
