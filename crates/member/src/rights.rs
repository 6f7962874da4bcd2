//! Rights that root has not opened, in words for people, and the names of users and groups.

/// The policy of a machine.
pub const FILE: &str = "/etc/streamline/policy.toml";

/// A user without a right, and the file of the policy.
#[derive(Clone, Copy, Debug)]
pub struct Missing<'w> {
    /// The user.
    pub uid: u32,
    /// The file.
    pub file: &'w str,
}

impl Missing<'_> {
    fn user(self) -> String {
        let number = || format!("user {}", self.uid);
        user_name(self.uid).map_or_else(number, |name| format!("`{name}`"))
    }

    /// Says that the user may not watch an interface in this name space.
    #[must_use]
    pub fn closed(self, interface: &str, netns: Option<&str>) -> String {
        let space = netns.map_or_else(String::new, |name| format!("{name}/"));
        format!(
            "{} may not watch {space}{interface}: who does sees the frames of everybody there, and \
             root has not opened it ([[open]] in {})",
            self.user(),
            self.file
        )
    }

    /// Says that the user is no member of a group.
    #[must_use]
    pub fn not_in(self, group: &str) -> String {
        format!(
            "{} is not in group {group}, and may not read what its members share: leave \
             `--share=group:{group}` out, or start it as a member (`sg {group}`)",
            self.user()
        )
    }

    /// Says that no group has this name.
    #[must_use]
    pub fn no_group(self, group: &str) -> String {
        format!("no group is called `{group}` in /etc/group: write the number (`id -g`)")
    }

    /// Says that the user may not have a filter in the kernel.
    #[must_use]
    pub fn not_safe(self, filter: &str) -> String {
        format!(
            "{} may not have `{filter}` in the kernel: root has not opened it ([kernel] filters in \
             {})",
            self.user(),
            self.file
        )
    }
}

/// All interfaces of the daemon's name space.
pub const ALL: &str = "*";

/// Returns true if one of these names means this interface.
#[must_use]
pub fn is_named(names: &[String], interface: &str, netns: Option<&str>) -> bool {
    names.iter().any(|known| match (known.split_once('/'), netns) {
        (Some((space, name)), Some(netns)) => space == netns && name == interface,
        (None, None) => known == interface || known == ALL,
        _ => false,
    })
}

/// The number of a user by its name.
#[must_use]
pub fn user_number(name: &str) -> Option<u32> {
    entries("/etc/passwd").find(|(known, _)| known == name).map(|(_, number)| number)
}

/// The number of a group by its name.
#[must_use]
pub fn group_number(name: &str) -> Option<u32> {
    entries("/etc/group").find(|(known, _)| known == name).map(|(_, number)| number)
}

/// The name of a user by its number.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    entries("/etc/passwd").find(|(_, number)| *number == uid).map(|(name, _)| name)
}

/// Names and numbers of a file of the form `name:password:number:…`.
fn entries(file: &str) -> impl Iterator<Item = (String, u32)> {
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
