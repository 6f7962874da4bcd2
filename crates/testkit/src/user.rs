//! Names of users: the number that a test takes may have a name on another machine.

use std::fs;

/// The name of a user on this machine, if the number has one.
#[must_use]
pub fn name(uid: u32) -> Option<String> {
    let text = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let mut ours = entries.filter(|entry| entry.get(2).and_then(|n| n.parse().ok()) == Some(uid));
    ours.find_map(|entry| Some((*entry.first()?).to_owned()))
}

/// The numbers from one on that have no name here.
pub fn unnamed(from: u32) -> impl Iterator<Item = u32> {
    (from..).filter(|uid| name(*uid).is_none())
}

/// The user as sentences name it.
#[must_use]
pub fn describe(uid: u32) -> String {
    name(uid).map_or_else(|| format!("user {uid}"), |name| format!("`{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_where_they_have_a_name() {
        assert_eq!((name(0).as_deref(), describe(0).as_str()), (Some("root"), "`root`"));
        let free = unnamed(70_000).next().unwrap();
        assert_eq!(describe(free), format!("user {free}"));
    }
}
