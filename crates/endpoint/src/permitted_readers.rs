//! Permissions of output files: an output file is readable by the users who may read every input
//! file. [SL §8, fan-in; CONTRACT 21]
//!
//! The permissions of the input files determine the mode of a new output file, before the umask.
//! The paper demands that the permissions of joined data "correspond to the union of all inputs".
//! This module applies the union of the restrictions of all inputs. With a single input, the output
//! therefore has the mode of the input, as with `cp`. An existing output file keeps its mode.
//! Inputs other than files, such as interfaces and programs, impose no restriction.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use sys::rollback::RollbackLog;

/// The set of users who may read all inputs, represented by the group and the mode of each input
/// file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PermittedReaders(Vec<FilePermissions>);

/// Context in which a sink creates a file: the rollback log, and the users who may read the file.
pub(crate) type FileCreationContext<'m> = (&'m RollbackLog, &'m PermittedReaders);

/// The set of all users, for output that depends on no input file.
pub static ALL_USERS: PermittedReaders = PermittedReaders(Vec::new());

/// Group and mode of an input file, which determine who may read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FilePermissions {
    group: u32,
    mode: u32,
}

const GROUP_READ: u32 = 0o040;
const OTHERS_READ: u32 = 0o004;
/// Name of the extended attribute that contains a file's access list (acl(5)).
const ACCESS_LIST_ATTRIBUTE: &str = "system.posix_acl_access";
/// Set-group-ID mode bit: files created in a directory with this bit inherit the directory's group.
const SET_GROUP_ID_BIT: u32 = 0o2000;

impl PermittedReaders {
    /// Restricts the set to users who may read the input file with this path; `-` is standard
    /// input. A file whose metadata cannot be read adds no restriction, because opening the file
    /// fails later with a message.
    pub fn restrict_to_readers_of(&mut self, path: &str) {
        let opened = if path == "-" { Path::new("/dev/stdin") } else { Path::new(path) };
        if let Some(file) = fs::metadata(opened).ok().filter(Metadata::is_file) {
            // With an access list, the group bits are the mask of the list, not the rights of the
            // group.
            let found = rustix::fs::getxattr(opened, ACCESS_LIST_ATTRIBUTE, &mut [0u8; 256]);
            let listed = matches!(found, Ok(_) | Err(rustix::io::Errno::RANGE));
            let mode = if listed { file.mode() & !GROUP_READ } else { file.mode() };
            self.0.push(FilePermissions { group: file.gid(), mode });
        }
    }

    /// Returns the mode, before the umask, of a file to be created in `directory`. The mode is
    /// `full` minus the permissions of users who may not read all inputs.
    pub(crate) fn file_mode(&self, directory: &Path, full: u32) -> u32 {
        // If the metadata cannot be read, creating the file fails later with the kernel's reason.
        let metadata = fs::metadata(directory).ok();
        let inherited = metadata.filter(|metadata| metadata.mode() & SET_GROUP_ID_BIT != 0);
        let group =
            inherited.map_or_else(|| sys::process::effective_ids().1, |metadata| metadata.gid());
        let others = self.0.iter().all(FilePermissions::is_readable_by_all);
        let members = self
            .0
            .iter()
            .all(|input| input.is_readable_by_all() || input.is_readable_by_group(group));
        let group = if members { 0o070 } else { 0 };
        let others = if others { 0o007 } else { 0 };
        full & (0o700 | group | others)
    }

    /// Returns the mode, before the umask, of a file to be created at the path `file`. Computes it
    /// with [`Self::file_mode`] from the parent directory of `file`.
    pub(crate) fn file_mode_for_path(&self, file: &Path, full: u32) -> u32 {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.file_mode(directory.unwrap_or_else(|| Path::new(".")), full)
    }
}

impl FilePermissions {
    /// Returns true if both the group and others may read the file.
    const fn is_readable_by_all(&self) -> bool {
        self.mode & (GROUP_READ | OTHERS_READ) == GROUP_READ | OTHERS_READ
    }

    const fn is_readable_by_group(&self, group: u32) -> bool {
        self.group == group && self.mode & GROUP_READ != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_output_mode_permits_readers_of_all_inputs() {
        let own = sys::process::effective_ids().1;
        let here = std::env::temp_dir();
        let mode = |inputs: &[(u32, u32)]| {
            let input = |(group, mode): &(u32, u32)| FilePermissions { group: *group, mode: *mode };
            PermittedReaders(inputs.iter().map(input).collect()).file_mode(&here, 0o666)
        };
        let other = own + 1;
        for (inputs, wanted) in [
            (&[][..], 0o666),
            (&[(own, 0o644), (other, 0o664)], 0o666),
            (&[(own, 0o644), (own, 0o600)], 0o600),
            (&[(own, 0o640), (own, 0o640)], 0o660),
            (&[(own, 0o640), (other, 0o644)], 0o660),
            // Members of one group need not be members of the other.
            (&[(own, 0o640), (other, 0o640)], 0o600),
            // Members of the file's group have no read access, although others do.
            (&[(other, 0o604)], 0o600),
        ] {
            assert_eq!(mode(inputs), wanted, "{inputs:?}");
        }
    }

    #[test]
    fn p6_group_bits_with_access_list_grant_nothing() {
        let folder = crate::testing::TempDir::new();
        let file = folder.path("listed");
        fs::write(&file, "").unwrap();
        // The entries are the owner, user 1 (with read access), the group (without access), the
        // mask, and others.
        let entries = [(1u16, 6u16, u32::MAX), (2, 4, 1), (4, 0, u32::MAX), (16, 4, u32::MAX)];
        let entries = entries.into_iter().chain([(32, 0, u32::MAX)]);
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()));
            list.extend(id.to_le_bytes());
        }
        if rustix::fs::setxattr(
            &file,
            ACCESS_LIST_ATTRIBUTE,
            &list,
            rustix::fs::XattrFlags::empty(),
        )
        .is_err()
        {
            eprintln!("skipped: files here have no lists of access");
            return;
        }
        assert_eq!(
            fs::metadata(&file).unwrap().mode() & 0o777,
            0o640,
            "the mode is that of a file that the group may read"
        );
        let mut readers = PermittedReaders::default();
        readers.restrict_to_readers_of(&file);
        assert_eq!(readers.file_mode_for_path(Path::new(&file), 0o666), 0o600);
    }
}
