//! Changes of attributes, and permission checks. A user can remove permissions of an object, but
//! cannot add any.

use super::{Outcome, Server, lock};
use crate::entries::{ObjectKey, ObjectKind};
use crate::protocol::{AttributeChange, Attributes, Header, X_OK, errno};

/// Maximum number of objects whose permissions, changed by chmod(2), are stored.
const CHANGED_OBJECTS_MAX: usize = 4096;
/// Bits of a mode that chmod(2) sets.
const MODE_BITS: u32 = 0o7777;
/// Bits of a mode that permit the execution of a file.
const EXECUTE_BITS: u32 = 0o111;

impl Server {
    /// Changes the attributes of an object. The kernel has already checked that the caller is root
    /// or the owner of the object. Refuses permissions that the object does not have by default,
    /// and a new owner or group, because the owner is the user of the path's process. A writable
    /// file can be truncated to length 0, without effect, because the file stores nothing.
    pub(super) fn set_attributes(
        &self,
        header: &Header,
        change: AttributeChange,
    ) -> Result<Outcome, i32> {
        let key = self.key(header.inode)?;
        let AttributeChange { mode, uid, gid, size } = change;
        let known = self.attributes(&key, header.inode)?;
        let refuse = |errno, why: &str| Err(self.record_failure(header.uid, errno, why.to_owned()));
        if uid.is_some_and(|uid| uid != known.uid) || gid.is_some_and(|gid| gid != known.gid) {
            let why = "the owner of a path is the user of its process, and its group has no \
                       rights: start the path as the other user";
            return refuse(errno::EPERM, why);
        }
        let is_written = self.snapshots.latest().tree.is_writable(&key);
        let is_permission = (mode, uid, gid) != (None, None, None);
        if !is_written && (size.is_some() || !is_permission) {
            return refuse(errno::EROFS, "times and lengths are those of the paths");
        }
        if size.is_some_and(|size| size > 0) {
            let why = "a length cannot be set: what is written to this file is processed at once";
            return refuse(errno::EINVAL, why);
        }
        if let Some(mode) = mode.map(|mode| mode & MODE_BITS) {
            let most = self.unrestricted_attributes(&key, header.inode)?.mode & MODE_BITS;
            if mode & !most != 0 {
                let why = format!(
                    "mode {mode:04o} is wider than {most:04o}, which the inputs of the path \
                     permit: only its owner may read them"
                );
                return Err(self.record_failure(header.uid, errno::EPERM, why));
            }
            self.record_changed_permissions(key.clone(), mode);
        }
        Ok(Outcome::Attributes(self.attributes(&key, header.inode)?))
    }

    /// Checks an access by root. Only the execution of a file without execute permission is
    /// refused. The kernel checks the accesses of all other users itself.
    pub(super) fn check_access(&self, header: &Header, mask: u32) -> Result<Outcome, i32> {
        let key = self.key(header.inode)?;
        let attributes = self.attributes(&key, header.inode)?;
        let executes = mask & X_OK != 0 && key.kind() == ObjectKind::File;
        match executes && attributes.mode & EXECUTE_BITS == 0 {
            true => Err(errno::EACCES),
            false => Ok(Outcome::Done),
        }
    }

    fn record_changed_permissions(&self, key: ObjectKey, mode: u32) {
        let snapshot = self.snapshots.latest();
        let mut changed = lock(&self.permissions);
        if changed.len() >= CHANGED_OBJECTS_MAX {
            changed.retain(|key, _| snapshot.tree.contains(key));
        }
        changed.insert(key, mode);
    }

    /// Returns the attributes of an object, or ENOENT if its node no longer exists.
    pub(super) fn attributes(&self, key: &ObjectKey, inode: u64) -> Result<Attributes, i32> {
        let mut attributes = self.unrestricted_attributes(key, inode)?;
        if let Some(mode) = lock(&self.permissions).get(key) {
            attributes.mode &= !MODE_BITS | mode;
        }
        Ok(attributes)
    }
}
