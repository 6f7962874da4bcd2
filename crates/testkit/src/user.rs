//! Names of users. Tests choose user ids, which may belong to a named user on some machines.

use std::fs;

/// Returns the name of a user in `/etc/passwd`, or `None` if the user has no entry.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut ours = entries.filter(|entry| entry.get(2).and_then(|n| n.parse().ok()) == Some(uid));
    ours.find_map(|entry| Some((*entry.first()?).to_owned()))
}

/// Returns the user ids from `from` on that have no name on this machine.
pub fn unnamed_uids(from: u32) -> impl Iterator<Item = u32> {
    (from..).filter(|uid| user_name(*uid).is_none())
}

/// Describes a user for messages: the quoted name, or `user UID` if the user has no name.
#[must_use]
pub fn describe_user(uid: u32) -> String {
    user_name(uid).map_or_else(|| format!("user {uid}"), |name| format!("`{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_without_a_name_is_described_by_its_id() {
        assert_eq!((user_name(0).as_deref(), describe_user(0).as_str()), (Some("root"), "`root`"));
        let free = unnamed_uids(70_000).next().unwrap();
        assert_eq!(describe_user(free), format!("user {free}"));
    }
}
