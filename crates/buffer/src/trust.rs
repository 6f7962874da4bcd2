//! Trust in the maker of memory: a process of our own user, or of root, could write our memory
//! anyway (ptrace(2)), so relying on it grants it nothing. (RELIABILITY, threat model)

use std::os::fd::OwnedFd;

/// Proof that a process could write our memory anyway.
#[derive(Clone, Copy, Debug)]
pub struct Trusted(());

impl Trusted {
    /// Returns the proof for processes of this user, if it is ours or root.
    #[must_use]
    pub fn of(user: u32) -> Option<Self> {
        const ROOT: u32 = 0;
        (user == ROOT || user == sys::process::identity().0).then_some(Self(()))
    }

    /// Returns the proof for the maker of this file.
    pub(crate) fn maker(file: &OwnedFd) -> Option<Self> {
        sys::descriptor::owner_uid(file).ok().and_then(Self::of)
    }
}
