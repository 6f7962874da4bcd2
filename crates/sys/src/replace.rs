//! Atomic replacement of files: readers see the old file or the new one, never a mixture.
//! (docs/book/decisions/0049-replaced-files.md)
//!
//! The new file is written to the same directory and renamed over the old one with rename(2).
//! Renaming is correct only if the new file differs from the old one in nothing but its contents.
//! The old file must therefore have one hard link, be owned by this user, and have no attributes
//! that a new file would lack. In other cases (symbolic links, several hard links, another owner,
//! access lists, directories that cannot be written) the caller overwrites the old file in place.

use crate::open::RegularOpenOptions;
use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new file that will replace an old one. Dropping this value before [`FileReplacement::commit`]
/// deletes the new file.
#[derive(Debug)]
pub struct FileReplacement {
    file: File,
    name: PathBuf,
    target: PathBuf,
}

/// Maximum number of attempts to find an unused name for the new file.
const NAME_ATTEMPTS_MAX: u32 = 100;

impl FileReplacement {
    /// Creates a replacement, with the same group and mode, for the open file `old` at path
    /// `target`. Returns `None` if the old file must be overwritten in place. Fails with errors
    /// that would also prevent overwriting, such as a full disk.
    pub fn create(target: &Path, old: &File) -> io::Result<Option<Self>> {
        let about = old.metadata()?;
        if !can_be_replaced_atomically(target, &about) {
            return Ok(None);
        }
        let made = match Self::create_temporary(target) {
            Ok(made) => made,
            Err(error) if must_write_in_place(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let same_group = made.file.metadata()?.gid() == about.gid();
        let group = rustix::fs::Gid::from_raw(about.gid());
        let given = same_group || rustix::fs::fchown(&made.file, None, Some(group)).is_ok();
        let mode = PermissionsExt::from_mode(about.mode() & 0o7777);
        Ok((given && made.file.set_permissions(mode).is_ok()).then_some(made))
    }

    fn create_temporary(target: &Path) -> io::Result<Self> {
        static NEXT_NAME_NUMBER: AtomicU32 = AtomicU32::new(0);
        let mut last = Err(ErrorKind::AlreadyExists.into());
        for _ in 0..NAME_ATTEMPTS_MAX {
            let number = NEXT_NAME_NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!(".streamline-{}-{number}.new", std::process::id());
            let name = target.with_file_name(name);
            last =
                RegularOpenOptions::write().create_new(0o600).open(&name).map(|file| (file, name));
            if !matches!(&last, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
                break;
            }
        }
        last.map(|(file, name)| Self { file, name, target: target.to_owned() })
    }

    /// Returns the new file, for writing its contents.
    pub const fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Renames the new file over the old one and returns the new file. If the renaming fails, the
    /// old file remains and the new file is deleted.
    pub fn commit(self) -> io::Result<File> {
        fs::rename(&self.name, &self.target)?;
        // The temporary name is gone, so the drop deletes nothing.
        self.file.try_clone()
    }
}

impl Drop for FileReplacement {
    fn drop(&mut self) {
        let same = |metadata: Metadata| {
            let own = self.file.metadata().ok();
            own.is_some_and(|own| (own.dev(), own.ino()) == (metadata.dev(), metadata.ino()))
        };
        if fs::symlink_metadata(&self.name).is_ok_and(same) {
            let _ = fs::remove_file(&self.name);
        }
    }
}

/// Returns true if a new file at `target` would differ from the old file, whose metadata is
/// `about`, only in its contents.
fn can_be_replaced_atomically(target: &Path, about: &Metadata) -> bool {
    let Ok(metadata) = fs::symlink_metadata(target) else { return false };
    let still = (metadata.dev(), metadata.ino()) == (about.dev(), about.ino());
    let alone = metadata.is_file() && metadata.nlink() == 1;
    still
        && alone
        && metadata.uid() == crate::process::effective_ids().0
        && !has_extra_attributes(target)
}

/// Returns true if the file has extended attributes that a new file would lack. Ignores the SELinux
/// label, because the kernel labels new files itself.
fn has_extra_attributes(path: &Path) -> bool {
    const SELINUX_LABEL: &[u8] = b"security.selinux";
    let mut names = [0u8; 1024];
    match rustix::fs::llistxattr(path, &mut names) {
        Ok(length) => {
            let names = names.get(..length).unwrap_or_default();
            names.split(|byte| *byte == 0).any(|name| !name.is_empty() && name != SELINUX_LABEL)
        }
        Err(rustix::io::Errno::RANGE) => true,
        // The file system does not support extended attributes.
        Err(_) => false,
    }
}

/// Returns true if `error` prevents the creation of a new file but not the overwriting of an
/// existing one.
#[must_use]
pub fn must_write_in_place(error: &io::Error) -> bool {
    use ErrorKind::{
        CrossesDevices, InvalidInput, PermissionDenied, ReadOnlyFilesystem, ResourceBusy,
        Unsupported,
    };
    let kinds = [
        CrossesDevices,
        InvalidInput,
        PermissionDenied,
        ReadOnlyFilesystem,
        ResourceBusy,
        Unsupported,
    ];
    kinds.contains(&error.kind())
}

/// Replaces the contents of `file`, whose path is `path`: atomically if possible, otherwise in
/// place. If `file` is not a regular file, only writes the bytes.
pub fn replace_contents(path: &Path, file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if !file.metadata()?.is_file() {
        return file.write_all(bytes);
    }
    if let Some(mut new) = FileReplacement::create(path, file)? {
        new.file().write_all(bytes)?;
        match new.commit() {
            Ok(_) => return Ok(()),
            Err(error) if must_write_in_place(&error) => {}
            Err(error) => return Err(error),
        }
    }
    file.set_len(0)?;
    rustix::fs::seek(file.as_fd(), rustix::fs::SeekFrom::Start(0))?;
    file.write_all(bytes)
}

/// Replaces the contents of the regular file at `path`, or creates the file with permissions
/// according to the umask.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = RegularOpenOptions::write().create(0o666).open(path)?;
    replace_contents(path, &mut file, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct TempDirectory(PathBuf);

    impl TempDirectory {
        fn new(name: &str) -> Self {
            let name = format!("sys-replace-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn create_file(&self, name: &str, text: &str) -> (PathBuf, File) {
            let path = self.0.join(name);
            fs::write(&path, text).unwrap();
            let file = RegularOpenOptions::write().open(&path).unwrap();
            (path, file)
        }

        fn entry_count(&self) -> usize {
            fs::read_dir(&self.0).unwrap().count()
        }
    }

    impl Drop for TempDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn old_file_is_intact_until_it_is_replaced() {
        let folder = TempDirectory::new("whole");
        let (path, old) = folder.create_file("file", "old");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let mut new = FileReplacement::create(&path, &old).unwrap().unwrap();
        new.file().write_all(b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(new);
        assert_eq!((fs::read(&path).unwrap(), folder.entry_count()), (b"old".to_vec(), 1));
        let mut new = FileReplacement::create(&path, &old).unwrap().unwrap();
        new.file().write_all(b"new").unwrap();
        new.commit().unwrap().write_all(b"er").unwrap();
        assert_eq!((fs::read(&path).unwrap(), folder.entry_count()), (b"newer".to_vec(), 1));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn replacing_keeps_links_and_overwrites_their_file() {
        let folder = TempDirectory::new("links");
        let (path, old) = folder.create_file("file", "old");
        symlink("file", folder.0.join("link")).unwrap();
        assert!(FileReplacement::create(&folder.0.join("link"), &old).unwrap().is_none());
        replace_file(&folder.0.join("link"), b"through").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"through");
        assert!(fs::symlink_metadata(folder.0.join("link")).unwrap().is_symlink());
        fs::hard_link(&path, folder.0.join("second")).unwrap();
        replace_file(&path, b"both").unwrap();
        assert_eq!(fs::read(folder.0.join("second")).unwrap(), b"both");
        // Another file took the name.
        fs::remove_file(folder.0.join("second")).unwrap();
        fs::rename(folder.0.join("file"), folder.0.join("moved")).unwrap();
        fs::write(&path, "another").unwrap();
        assert!(FileReplacement::create(&path, &old).unwrap().is_none());
        replace_file(&folder.0.join("missing"), b"made").unwrap();
        assert_eq!(fs::read(folder.0.join("missing")).unwrap(), b"made");
    }
}
