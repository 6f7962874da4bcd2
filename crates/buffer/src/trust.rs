//! Trust in the creator of shared memory. A process of the same user, or of root, could write to
//! this process's memory anyway (ptrace(2)), so relying on such a process grants it no additional
//! power. (RELIABILITY, threat model)

use std::os::fd::OwnedFd;

/// A proof that the creator of shared memory can be trusted, because it could write this process's
/// memory anyway.
#[derive(Clone, Copy, Debug)]
pub struct TrustProof(());

impl TrustProof {
    /// Returns a proof that processes of `user` can be trusted, or `None` if `user` is neither the
    /// current user nor root.
    #[must_use]
    pub fn for_user(user: u32) -> Option<Self> {
        const ROOT_UID: u32 = 0;
        (user == ROOT_UID || user == sys::process::effective_ids().0).then_some(Self(()))
    }

    /// Returns a proof that the process that created a file can be trusted, or `None` if it cannot.
    pub(crate) fn for_file_creator(file: &OwnedFd) -> Option<Self> {
        sys::descriptor::owner_uid(file).ok().and_then(Self::for_user)
    }
}
