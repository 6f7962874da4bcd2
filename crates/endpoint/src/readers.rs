//! Computes who may read a line's output files: those who may read every input file. [SL §8,
//! fan-in; CONTRACT 21]
//!
//! In: the files from which blocks come. Out: the mode of a file that a sink makes, before the
//! umask. The source says that the permissions of what is joined "correspond to the union of all
//! inputs"; that is the union of their restrictions, as `cp` keeps them of one file. A file that
//! was there keeps its mode, and what is no file (an interface, a program) has none.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use sys::steps::Steps;

/// The users who may read all inputs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Readers(Vec<Input>);

/// The arguments for making a file: the log of steps, and its readers.
pub(crate) type Making<'m> = (&'m Steps, &'m Readers);

/// The readers if no file is read: everybody.
pub static EVERYBODY: Readers = Readers(Vec::new());

/// The readers of a file besides its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Input {
    group: u32,
    mode: u32,
}

const OF_GROUP: u32 = 0o040;
const OF_OTHERS: u32 = 0o004;
/// The attribute of a file's access list (acl(5)).
const LIST: &str = "system.posix_acl_access";
/// A directory that gives its group to what is made in it.
const SET_GROUP: u32 = 0o2000;

impl Readers {
    /// Intersects with the readers of this file; `-` is standard input. A file that cannot be
    /// examined cannot be opened either, which is reported there.
    pub fn and(&mut self, path: &str) {
        let opened = if path == "-" { Path::new("/dev/stdin") } else { Path::new(path) };
        if let Some(file) = fs::metadata(opened).ok().filter(Metadata::is_file) {
            // Where there is a list, the bits of the group say what it grants to anybody at all.
            let found = rustix::fs::getxattr(opened, LIST, &mut [0u8; 256]);
            let listed = matches!(found, Ok(_) | Err(rustix::io::Errno::RANGE));
            let mode = if listed { file.mode() & !OF_GROUP } else { file.mode() };
            self.0.push(Input { group: file.gid(), mode });
        }
    }

    /// The mode of a file that is made in this directory, before the umask: `full`, and nothing for
    /// those who may not read an input.
    pub(crate) fn mode(&self, directory: &Path, full: u32) -> u32 {
        // Of a directory that cannot be looked at the kernel tells why nothing is made there.
        let around = fs::metadata(directory).ok();
        let given = around.filter(|around| around.mode() & SET_GROUP != 0);
        let group = given.map_or_else(|| sys::process::identity().1, |around| around.gid());
        let others = self.0.iter().all(Input::is_for_all);
        let members = self.0.iter().all(|input| input.is_for_all() || input.is_for(group));
        let group = if members { 0o070 } else { 0 };
        let others = if others { 0o007 } else { 0 };
        full & (0o700 | group | others)
    }

    /// The same for a file of this name.
    pub(crate) fn mode_of(&self, file: &Path, full: u32) -> u32 {
        let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
        self.mode(directory.unwrap_or_else(|| Path::new(".")), full)
    }
}

impl Input {
    /// Returns true if group members have no less than others.
    const fn is_for_all(&self) -> bool {
        self.mode & (OF_GROUP | OF_OTHERS) == OF_GROUP | OF_OTHERS
    }

    const fn is_for(&self, group: u32) -> bool {
        self.group == group && self.mode & OF_GROUP != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_what_is_joined_is_for_who_may_read_every_part() {
        let own = sys::process::identity().1;
        let here = std::env::temp_dir();
        let mode = |inputs: &[(u32, u32)]| {
            let input = |(group, mode): &(u32, u32)| Input { group: *group, mode: *mode };
            Readers(inputs.iter().map(input).collect()).mode(&here, 0o666)
        };
        let other = own + 1;
        for (inputs, wanted) in [
            (&[][..], 0o666),
            (&[(own, 0o644), (other, 0o664)], 0o666),
            (&[(own, 0o644), (own, 0o600)], 0o600),
            (&[(own, 0o640), (own, 0o640)], 0o660),
            (&[(own, 0o640), (other, 0o644)], 0o660),
            // Those of one group are not those of the other.
            (&[(own, 0o640), (other, 0o640)], 0o600),
            // Those of its group may not read this one, whoever else may.
            (&[(other, 0o604)], 0o600),
        ] {
            assert_eq!(mode(inputs), wanted, "{inputs:?}");
        }
    }

    #[test]
    fn p6_under_a_list_of_access_the_bits_of_the_group_are_nobodys_right() {
        let folder = crate::testing::TempDir::new();
        let file = folder.path("listed");
        fs::write(&file, "").unwrap();
        // The owner, user 1 (who may read), the group (which may not), the mask, the others.
        let entries = [(1u16, 6u16, u32::MAX), (2, 4, 1), (4, 0, u32::MAX), (16, 4, u32::MAX)];
        let entries = entries.into_iter().chain([(32, 0, u32::MAX)]);
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, rights, id) in entries {
            list.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()));
            list.extend(id.to_le_bytes());
        }
        if rustix::fs::setxattr(&file, LIST, &list, rustix::fs::XattrFlags::empty()).is_err() {
            eprintln!("skipped: files here have no lists of access");
            return;
        }
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640, "as if the group might");
        let mut readers = Readers::default();
        readers.and(&file);
        assert_eq!(readers.mode_of(Path::new(&file), 0o666), 0o600);
    }
}
