//! Who may read a pool: Unix permissions, and more users and groups by name. [IOL §2.3], [SL §8],
//! CONTRACT 21
//!
//! In: the list, fixed when the pool is made, and the credentials of a peer, as the kernel told
//! them when it was introduced. Out: yes or no. Asked once, when a pool is handed to a peer: who
//! has mapped it reads all of it (T17). Taking a right away takes a new pool (T11), so a list
//! never changes.

/// Who a peer is. The caller has it from the kernel (`SO_PEERCRED`), never from the peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Credentials {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The other groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// A user in one group.
    #[must_use]
    pub const fn new(uid: u32, gid: u32) -> Self {
        Self { uid, gid, groups: Vec::new() }
    }

    /// Those of this process, without its other groups.
    #[must_use]
    pub fn own() -> Self {
        let (uid, gid) = sys::process::identity();
        Self::new(uid, gid)
    }

    fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// Who may read: a set that the owner, the group, the permission bits and the named users and
/// groups describe together.
///
/// The first that fits decides, as for a file with an access control list (acl(5)): root reads;
/// the owner by the owner's bit, even where others may more; a named user reads; a member of the
/// group or of named groups if one of them lets it; everybody else by the last bit. Of pools
/// and streams only reading is ever asked for: bytes are immutable, and there is one writer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AccessList {
    /// Whose data it is.
    pub owner: u32,
    /// The group that the middle bit is for.
    pub group: u32,
    /// Permission bits: 0o400, 0o040 and 0o004 to read; 0o200, 0o020 and 0o002 where there is
    /// something to write.
    pub mode: u32,
    /// More users who may read.
    pub users: Vec<u32>,
    /// More groups who may read.
    pub groups: Vec<u32>,
}

impl AccessList {
    /// A list of permission bits alone.
    #[must_use]
    pub const fn new(owner: u32, group: u32, mode: u32) -> Self {
        Self { owner, group, mode, users: Vec::new(), groups: Vec::new() }
    }

    /// For the user of this process alone.
    #[must_use]
    pub fn private() -> Self {
        let Credentials { uid, gid, .. } = Credentials::own();
        Self::new(uid, gid, OWNER)
    }

    /// Whether this peer may write. Those who are named may only read: among them nobody is the
    /// owner or in the group.
    #[must_use]
    pub fn may_write(&self, peer: &Credentials) -> bool {
        let bits = Self { mode: self.mode << 1, ..Self::new(self.owner, self.group, 0) };
        bits.may_read(peer)
    }

    /// Whether this peer may read.
    #[must_use]
    pub fn may_read(&self, peer: &Credentials) -> bool {
        let has = |bit| self.mode & bit != 0;
        if peer.uid == ROOT {
            return true;
        }
        if peer.uid == self.owner {
            return has(OWNER);
        }
        if self.users.contains(&peer.uid) {
            return true;
        }
        let is_member = peer.is_in(self.group);
        let is_named = self.groups.iter().any(|&group| peer.is_in(group));
        if is_member || is_named {
            return is_named || has(GROUP);
        }
        has(OTHER)
    }
}

const ROOT: u32 = 0;
const OWNER: u32 = 0o400;
const GROUP: u32 = 0o040;
const OTHER: u32 = 0o004;

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials { groups: groups.to_vec(), ..Credentials::new(uid, gid) }
    }

    /// T17: every set of bits for the owner, members by either way, and everybody else.
    #[test]
    fn q4_permission_bits_decide_as_for_a_file() {
        for mode in 0..0o1000 {
            let list = AccessList::new(10, 20, mode);
            let [owner, group, other] = [0o400, 0o040, 0o004].map(|bit| mode & bit != 0);
            assert!(list.may_read(&peer(0, 0, &[])), "root");
            assert_eq!(list.may_read(&peer(10, 20, &[])), owner, "{mode:o}: the owner's bit alone");
            assert_eq!(list.may_read(&peer(10, 99, &[])), owner, "{mode:o}");
            assert_eq!(list.may_read(&peer(11, 20, &[])), group, "{mode:o}");
            assert_eq!(list.may_read(&peer(11, 99, &[5, 20])), group, "{mode:o}");
            assert_eq!(list.may_read(&peer(11, 99, &[5])), other, "{mode:o}");
        }
    }

    #[test]
    fn writing_is_asked_for_by_bits_alone() {
        let list = AccessList { users: vec![11], ..AccessList::new(10, 20, 0o624) };
        assert!(list.may_write(&peer(0, 0, &[])) && list.may_write(&peer(10, 1, &[])));
        assert!(list.may_write(&peer(12, 20, &[])) && !list.may_write(&peer(12, 1, &[])));
        assert!(!list.may_write(&peer(11, 1, &[])) && list.may_read(&peer(11, 1, &[])));
    }

    #[test]
    fn q4_named_users_and_groups_may_read_too() {
        let named = AccessList { users: vec![11], groups: vec![30], ..AccessList::new(10, 20, 0) };
        assert!(named.may_read(&peer(11, 99, &[])));
        assert!(named.may_read(&peer(12, 30, &[])));
        assert!(named.may_read(&peer(12, 99, &[1, 30])));
        assert!(named.may_read(&peer(12, 20, &[30])), "one group of two is enough");
        assert!(!named.may_read(&peer(12, 20, &[])));
        assert!(!named.may_read(&peer(12, 99, &[])));
        assert!(!named.may_read(&peer(10, 30, &[])), "the owner's bit decides");
        let shut_out = AccessList { mode: 0o004, ..AccessList::new(10, 20, 0) };
        assert!(!shut_out.may_read(&peer(12, 20, &[])), "the group may less than others");
        assert!(shut_out.may_read(&peer(12, 99, &[])));
    }

    #[test]
    fn what_is_private_this_user_reads() {
        let own = Credentials::own();
        assert!(AccessList::private().may_read(&own));
        let stranger = peer(own.uid.wrapping_add(1).max(1), own.gid, &[]);
        assert!(!AccessList::private().may_read(&stranger));
    }
}
