//! Inode numbers. An object has an inode number from the kernel's first reference to it until the
//! kernel has dropped all references.

use crate::entries::{DirectoryObject, ObjectKey};
use crate::tree::DirectoryId;
use std::collections::HashMap;

/// Inode number of the root.
pub const ROOT_INODE: u64 = 1;

/// The objects to which the kernel has references, with their inode numbers.
#[derive(Debug)]
pub struct InodeTable {
    numbers: HashMap<ObjectKey, u64>,
    objects: HashMap<u64, ReferencedObject>,
    next: u64,
}

#[derive(Debug)]
struct ReferencedObject {
    key: ObjectKey,
    /// Number of references that the kernel holds.
    references: u64,
}

impl Default for InodeTable {
    fn default() -> Self {
        let root = ObjectKey::directory(DirectoryId::Root);
        let numbers = HashMap::from([(root.clone(), ROOT_INODE)]);
        let objects = HashMap::from([(ROOT_INODE, ReferencedObject { key: root, references: 1 })]);
        Self { numbers, objects, next: ROOT_INODE + 1 }
    }
}

impl InodeTable {
    /// Returns the object with an inode number, or `None` if the number is not assigned.
    #[must_use]
    pub fn key(&self, inode: u64) -> Option<ObjectKey> {
        self.objects.get(&inode).map(|known| known.key.clone())
    }

    /// Returns the inode number of an object, and adds a reference.
    pub fn add_reference(&mut self, key: &ObjectKey) -> u64 {
        let number = match key.part {
            // Each open of a stream gets a separate inode.
            DirectoryObject::Stream(_) => self.next,
            _ => *self.numbers.entry(key.clone()).or_insert(self.next),
        };
        if number == self.next {
            self.next += 1;
        }
        let known = self.objects.entry(number);
        known.or_insert_with(|| ReferencedObject { key: key.clone(), references: 0 }).references +=
            1;
        number
    }

    /// Returns the inode number of an object without adding a reference, for listings. Returns
    /// `u64::MAX`, which means "unknown", if the object has no inode number.
    #[must_use]
    pub fn peek_inode(&self, key: &ObjectKey) -> u64 {
        self.numbers.get(key).copied().unwrap_or(u64::MAX)
    }

    /// Drops references to an object. An object without references loses its inode number.
    pub fn forget(&mut self, inode: u64, references: u64) {
        let Some(known) = self.objects.get_mut(&inode).filter(|_| inode != ROOT_INODE) else {
            return;
        };
        known.references = known.references.saturating_sub(references);
        if known.references == 0
            && let Some(known) = self.objects.remove(&inode)
            && self.numbers.get(&known.key) == Some(&inode)
        {
            self.numbers.remove(&known.key);
        }
    }

    /// Makes the object get a new inode number at its next lookup. Called when the entry of the
    /// object was removed from its directory.
    pub fn detach(&mut self, key: &ObjectKey) {
        self.numbers.remove(key);
    }

    /// Makes the next lookups in moved directories assign new inode numbers. The moved directories
    /// are the values of `places`. The old numbers stay valid until the kernel drops its references
    /// to them.
    pub fn renumber(&mut self, places: &HashMap<DirectoryId, DirectoryId>) {
        self.numbers.retain(|key, _| !places.values().any(|place| *place == key.place));
    }

    /// Updates the keys of objects whose directories have moved, so that the objects keep their
    /// inode numbers. `places` contains the new identity of each moved directory, by the old
    /// identity. If an object has several numbers, lookups continue to return the number that the
    /// latest lookup returned.
    pub fn update_moved_objects(&mut self, places: &HashMap<DirectoryId, DirectoryId>) {
        let mut moved = Vec::new();
        for (number, known) in &mut self.objects {
            let Some(place) = places.get(&known.key.place) else { continue };
            let old = known.key.clone();
            known.key.place = place.clone();
            if self.numbers.get(&old) == Some(number) {
                self.numbers.remove(&old);
                moved.push((known.key.clone(), *number));
            }
        }
        self.numbers.extend(moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b1_object_keeps_its_number_until_it_is_forgotten() {
        let mut inodes = InodeTable::default();
        let (one, other) = (
            ObjectKey::directory(DirectoryId::Filters),
            ObjectKey::directory(DirectoryId::Machine),
        );
        let first = inodes.add_reference(&one);
        assert_eq!(inodes.add_reference(&one), first);
        assert_ne!(inodes.add_reference(&other), first);
        inodes.forget(first, 1);
        assert_eq!(inodes.key(first), Some(one.clone()));
        inodes.forget(first, 1);
        assert_eq!(inodes.key(first), None);
        assert_ne!(inodes.add_reference(&one), first, "a number is not used twice");
        inodes.forget(ROOT_INODE, 5);
        assert!(inodes.key(ROOT_INODE).is_some());
    }

    #[test]
    fn b1_renumbered_object_stays_valid_under_its_old_number() {
        let mut inodes = InodeTable::default();
        let (one, other) = (
            ObjectKey::directory(DirectoryId::Filters),
            ObjectKey::directory(DirectoryId::Machine),
        );
        let number = inodes.add_reference(&one);
        let places = HashMap::from([(one.place.clone(), other.place.clone())]);
        inodes.update_moved_objects(&places);
        inodes.renumber(&places);
        assert_ne!(inodes.add_reference(&other), number);
        assert_eq!(inodes.key(number), Some(other));
        inodes.forget(number, 1);
        assert_eq!(inodes.key(number), None);
    }

    #[test]
    fn b1_moved_object_keeps_the_latest_of_its_numbers() {
        // The iteration order of a hash table is random, so one run is not enough.
        for _ in 0..32 {
            let mut inodes = InodeTable::default();
            let places = [DirectoryId::Filters, DirectoryId::Machine];
            let [one, other] = places.clone().map(ObjectKey::directory);
            let there = HashMap::from([(places[0].clone(), places[1].clone())]);
            let old = inodes.add_reference(&one);
            inodes.update_moved_objects(&there);
            inodes.renumber(&there);
            let new = inodes.add_reference(&other);
            assert_ne!(new, old);
            inodes.update_moved_objects(&HashMap::from([(places[1].clone(), places[0].clone())]));
            assert_eq!(inodes.peek_inode(&one), new);
            assert_eq!(inodes.peek_inode(&other), u64::MAX, "nothing is left behind");
            assert_eq!((inodes.key(old), inodes.key(new)), (Some(one.clone()), Some(one.clone())));
        }
    }

    #[test]
    fn b1_moved_object_keeps_its_number_and_removed_one_loses_it() {
        let mut inodes = InodeTable::default();
        let (one, other) = (
            ObjectKey::directory(DirectoryId::Filters),
            ObjectKey::directory(DirectoryId::Machine),
        );
        let number = inodes.add_reference(&one);
        inodes.update_moved_objects(&HashMap::from([(one.place.clone(), other.place.clone())]));
        assert_eq!(inodes.key(number), Some(other.clone()));
        assert_eq!(inodes.add_reference(&other), number);
        inodes.detach(&other);
        let again = inodes.add_reference(&other);
        assert_ne!(again, number);
        inodes.forget(number, 2);
        assert_eq!(
            inodes.add_reference(&other),
            again,
            "the old number does not take the new one along"
        );
    }
}
