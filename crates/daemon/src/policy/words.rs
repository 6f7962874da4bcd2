//! What root has not opened, as a person is told: who may not what, why, and where that is written.

/// For whom, and where the policy stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words<'w> {
    pub(crate) uid: u32,
    pub(crate) file: &'w str,
}

impl Words<'_> {
    fn user(self) -> String {
        let number = || format!("user {}", self.uid);
        super::user_name(self.uid).map_or_else(number, |name| format!("`{name}`"))
    }

    /// An interface, in this name space.
    pub(crate) fn closed(self, interface: &str, netns: Option<&str>) -> String {
        let space = netns.map_or_else(String::new, |name| format!("{name}/"));
        format!(
            "{} may not watch {space}{interface}: who does sees the frames of everybody there, and \
             root has not opened it ([[open]] in {})",
            self.user(),
            self.file
        )
    }

    /// A group of which it is no member.
    pub(crate) fn not_in(self, group: &str) -> String {
        format!(
            "{} is not in group {group}, and may not read what its members share: leave \
             `--share=group:{group}` out, or start it as a member (`sg {group}`)",
            self.user()
        )
    }

    /// A group that is not there.
    pub(crate) fn no_group(self, group: &str) -> String {
        format!("no group is called `{group}` in /etc/group: write the number (`id -g`)")
    }

    /// A filter.
    pub(crate) fn not_safe(self, filter: &str) -> String {
        format!(
            "{} may not have `{filter}` in the kernel: root has not opened it ([kernel] filters in \
             {})",
            self.user(),
            self.file
        )
    }
}
