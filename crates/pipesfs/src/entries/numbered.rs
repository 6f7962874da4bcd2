//! Lookup of directories by names that contain the number of a node, such as `count#7`.

use super::{DirectoryObject, ObjectKey};
use crate::tree::{Child, Tree};

impl Tree {
    /// Finds a directory by a name that contains the number of its node. For example, `count#7` is
    /// the directory `count` if the node of this directory has the number 7. Programs use the
    /// longer name if the directory had it when they listed the parent.
    pub(super) fn lookup_by_node_number(&self, key: &ObjectKey, name: &str) -> Option<ObjectKey> {
        let (stem, number) = name.split_once('#')?;
        let number: u64 = number.parse().ok()?;
        let directory =
            self.directory(&key.place).filter(|_| key.part == DirectoryObject::Whole)?;
        directory.children.iter().find_map(|(known, child)| {
            let Child::Directory(at) = child else { return None };
            let below = self.directories.get(*at)?;
            let same = known == stem && self.first_node(below)?.1.id == Some(number);
            same.then(|| ObjectKey::directory(below.place.clone()))
        })
    }
}
