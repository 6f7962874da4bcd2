//! Messages about privileges that the policy does not grant, and lookup of users and groups.

use std::path::PathBuf;

/// The default policy file of a machine.
pub const POLICY_FILE: &str = "/etc/streamline/policy.toml";

/// A user who lacks a privilege, and the policy file that could grant it.
#[derive(Clone, Copy, Debug)]
pub struct Denial<'w> {
    /// Numeric id of the user.
    pub uid: u32,
    /// Path of the policy file.
    pub file: &'w str,
}

impl Denial<'_> {
    fn format_user(self) -> String {
        let number = || format!("user {}", self.uid);
        user_name(self.uid).map_or_else(number, |name| format!("`{name}`"))
    }

    /// Explains that the user may not observe an interface in this network namespace.
    #[must_use]
    pub fn interface_denied_text(self, interface: &str, netns: Option<&str>) -> String {
        let space = netns.map_or_else(String::new, |name| format!("{name}/"));
        format!(
            "{} may not watch {space}{interface}: an observer sees the frames of all users there, \
             and root has not opened it ([[open]] in {})",
            self.format_user(),
            self.file
        )
    }

    /// Explains that the user may not divert flows from the host at an interface in this network
    /// namespace.
    #[must_use]
    pub fn diversion_denied_text(self, interface: &str, netns: Option<&str>) -> String {
        let space = netns.map_or_else(String::new, |name| format!("{name}/"));
        format!(
            "{} may watch {space}{interface} but not take from it: taken frames do not reach their \
             receiver, and root has not granted it (`take = true` in [[open]] of {})",
            self.format_user(),
            self.file
        )
    }

    /// Explains that the user is not a member of a group.
    #[must_use]
    pub fn missing_membership_text(self, group: &str) -> String {
        format!(
            "{} is not in group {group}, and may not read the frames that its members share: \
             leave `--share=group:{group}` out, or start the path as a member (`sg {group}`)",
            self.format_user()
        )
    }

    /// Explains that no group has this name.
    #[must_use]
    pub fn unknown_group_text(self, group: &str) -> String {
        format!("no group is called `{group}` in /etc/group: write the number (`id -g`)")
    }

    /// Explains that the user may not run a filter in the kernel.
    #[must_use]
    pub fn filter_denied_text(self, filter: &str) -> String {
        format!(
            "{} may not run `{filter}` in the kernel: root has not opened it ([kernel] filters in \
             {})",
            self.format_user(),
            self.file
        )
    }
}

/// Pattern that matches every interface in the daemon's network namespace.
pub const ALL_INTERFACES: &str = "*";

/// Returns true if one of the patterns in `names` matches the interface.
#[must_use]
pub fn matches_interface(names: &[String], interface: &str, netns: Option<&str>) -> bool {
    names.iter().any(|known| match (known.split_once('/'), netns) {
        (Some((space, name)), Some(netns)) => space == netns && name == interface,
        (None, None) => known == interface || known == ALL_INTERFACES,
        _ => false,
    })
}

/// Looks up the id of a user in `/etc/passwd`. Returns `None` if the user is unknown.
#[must_use]
pub fn look_up_user_id(name: &str) -> Option<u32> {
    name_entries("/etc/passwd").find(|(known, _)| known == name).map(|(_, number)| number)
}

/// Looks up the id of a group in `/etc/group`. Returns `None` if the group is unknown.
#[must_use]
pub fn look_up_group_id(name: &str) -> Option<u32> {
    name_entries("/etc/group").find(|(known, _)| known == name).map(|(_, number)| number)
}

/// Looks up the name of a user in `/etc/passwd`. Returns `None` if the id is unknown.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    name_entries("/etc/passwd").find(|(_, number)| *number == uid).map(|(name, _)| name)
}

/// Looks up the home directory of a user in `/etc/passwd`. Returns `None` if the id is unknown.
#[must_use]
pub fn home_directory(uid: u32) -> Option<PathBuf> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let fields = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut homes =
        fields.filter_map(|fields| Some((fields.get(2)?.parse().ok()?, *fields.get(5)?)));
    homes.find(|(number, _): &(u32, _)| *number == uid).map(|(_, home)| home.into())
}

/// Returns the names and ids in a file with lines of the form `name:password:number:…`, or an empty
/// list if the file cannot be read.
fn name_entries(file: &str) -> impl Iterator<Item = (String, u32)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let entries: Vec<_> = text
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_owned();
            let number = fields.nth(1)?.parse().ok()?;
            Some((name, number))
        })
        .collect();
    entries.into_iter()
}
