//! Access lists, which determine the users that may read a shared object. The rules are those for
//! files with Unix permissions and an access control list. [IOL §2.3], [SL §8], CONTRACT 21
//!
//! The owner fixes the list when it creates the object; the kernel identifies the peer
//! (`SO_PEERCRED`). Access is checked once, when the object is handed over: a peer that has mapped
//! the object can read all its bytes (T17). A right can be revoked only by creating a new object
//! (T11), so a list never changes.

use alloc::vec::Vec;

/// The identity of a process as reported by the kernel, never as claimed by the process itself.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary group ids.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Creates credentials with this user and group id and no supplementary groups.
    #[must_use]
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new() }
    }

    /// Returns true if `group` is the effective group or a supplementary group.
    #[must_use]
    pub fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

impl From<(u32, u32)> for Credentials {
    fn from((uid, gid): (u32, u32)) -> Self {
        Self::new(uid, gid)
    }
}

/// Users and groups to which an access list grants a right.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Grantees {
    /// Ids of the users.
    pub users: Vec<u32>,
    /// Ids of the groups whose members all have the right.
    pub groups: Vec<u32>,
}

impl Grantees {
    /// The empty set of users and groups.
    pub const NONE: Self = Self { users: Vec::new(), groups: Vec::new() };

    /// Returns true if the set contains the user of the peer or one of its groups.
    #[must_use]
    pub fn contains(&self, peer: &Credentials) -> bool {
        self.users.contains(&peer.uid) || self.groups.iter().any(|&group| peer.is_in(group))
    }
}

/// The access rights to an object: its owner, group and permission bits, and additional readers.
///
/// The first rule that applies to a peer decides, as in acl(5): root may read; the owner may read
/// if the owner's bit is set, whatever the other bits permit; an additional reader may read; a
/// member of the group may read if the group's bit is set; any other user may read if the bit for
/// others is set.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AccessList {
    /// Id of the user that owns the object.
    pub owner: u32,
    /// Id of the group to which the group bits of `mode` apply.
    pub group: u32,
    /// Permission bits: 0o400, 0o040 and 0o004 to read; 0o200, 0o020 and 0o002 to write.
    pub mode: u32,
    /// Additional users and groups that may read. For the owner, `mode` alone decides.
    pub readers: Grantees,
}

impl AccessList {
    /// Creates an access list without additional readers.
    #[must_use]
    pub const fn new(owner: u32, group: u32, mode: u32) -> Self {
        Self { owner, group, mode, readers: Grantees::NONE }
    }

    /// Creates a list that permits only this user and root to read. Members of the group may not
    /// read.
    #[must_use]
    pub const fn private((uid, gid): (u32, u32)) -> Self {
        Self::new(uid, gid, OWNER_READ)
    }

    /// Returns true if this peer may write. The rules are those for reading, but with the
    /// permission bits for writing, and additional readers have no special rights.
    #[must_use]
    pub fn may_write(&self, peer: &Credentials) -> bool {
        Self::new(self.owner, self.group, self.mode << 1).may_read(peer)
    }

    /// Returns true if this peer may read, by the rules of [`AccessList`].
    #[must_use]
    pub fn may_read(&self, peer: &Credentials) -> bool {
        let has = |bit| self.mode & bit != 0;
        match peer {
            _ if peer.uid == ROOT_UID => true,
            _ if peer.uid == self.owner => has(OWNER_READ),
            _ if self.readers.contains(peer) => true,
            _ if peer.is_in(self.group) => has(GROUP_READ),
            _ => has(OTHER_READ),
        }
    }
}

/// User id of root.
const ROOT_UID: u32 = 0;
/// Permission bit with which the owner may read.
const OWNER_READ: u32 = 0o400;
/// Permission bit with which members of the group may read.
const GROUP_READ: u32 = 0o040;
/// Permission bit with which all other users may read.
const OTHER_READ: u32 = 0o004;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the credentials of a process with supplementary groups.
    fn peer_in_groups(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { groups: groups.to_vec(), ..Credentials::new(uid, gid) }
    }

    /// Returns grantees with these user and group ids, for [`AccessList::readers`].
    fn additional_readers(users: &[u32], groups: &[u32]) -> Grantees {
        Grantees { users: users.to_vec(), groups: groups.to_vec() }
    }

    /// Checks all permission bits for the owner, for members of the effective or a supplementary
    /// group, and for other users (T17).
    #[test]
    fn q4_permission_bits_decide_as_for_a_file() {
        for mode in 0..0o1000 {
            let list = AccessList::new(10, 20, mode);
            let [owner, group, other] = [0o400, 0o040, 0o004].map(|bit| mode & bit != 0);
            assert!(list.may_read(&peer_in_groups(0, 0, &[])), "root");
            assert_eq!(
                list.may_read(&peer_in_groups(10, 20, &[])),
                owner,
                "{mode:o}: the owner's bit alone"
            );
            assert_eq!(list.may_read(&peer_in_groups(10, 99, &[])), owner, "{mode:o}");
            assert_eq!(list.may_read(&peer_in_groups(11, 20, &[])), group, "{mode:o}");
            assert_eq!(list.may_read(&peer_in_groups(11, 99, &[5, 20])), group, "{mode:o}");
            assert_eq!(list.may_read(&peer_in_groups(11, 99, &[5])), other, "{mode:o}");
        }
    }

    #[test]
    fn additional_readers_may_never_write() {
        let list = AccessList {
            readers: additional_readers(&[11], &[]),
            ..AccessList::new(10, 20, 0o624)
        };
        assert!(
            list.may_write(&peer_in_groups(0, 0, &[]))
                && list.may_write(&peer_in_groups(10, 1, &[]))
        );
        assert!(
            list.may_write(&peer_in_groups(12, 20, &[]))
                && !list.may_write(&peer_in_groups(12, 1, &[]))
        );
        assert!(
            !list.may_write(&peer_in_groups(11, 1, &[]))
                && list.may_read(&peer_in_groups(11, 1, &[]))
        );
    }

    #[test]
    fn q4_named_users_and_groups_may_read_too() {
        let named =
            AccessList { readers: additional_readers(&[11], &[30]), ..AccessList::new(10, 20, 0) };
        assert!(named.may_read(&peer_in_groups(11, 99, &[])));
        assert!(named.may_read(&peer_in_groups(12, 30, &[])));
        assert!(named.may_read(&peer_in_groups(12, 99, &[1, 30])));
        assert!(named.may_read(&peer_in_groups(12, 20, &[30])), "one group of two is enough");
        assert!(!named.may_read(&peer_in_groups(12, 20, &[])));
        assert!(!named.may_read(&peer_in_groups(12, 99, &[])));
        assert!(!named.may_read(&peer_in_groups(10, 30, &[])), "the owner's bit decides");
        let shut_out = AccessList { mode: 0o004, ..AccessList::new(10, 20, 0) };
        assert!(!shut_out.may_read(&peer_in_groups(12, 20, &[])), "the group may less than others");
        assert!(shut_out.may_read(&peer_in_groups(12, 99, &[])));
    }

    #[test]
    fn private_access_list_admits_only_its_user_and_root() {
        let list = AccessList::private((11, 20));
        assert!(list.may_read(&Credentials::from((11, 20))));
        assert!(!list.may_read(&Credentials::from((12, 20))));
    }
}
