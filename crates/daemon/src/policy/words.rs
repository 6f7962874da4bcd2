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
