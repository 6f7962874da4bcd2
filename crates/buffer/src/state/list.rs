//! Which tables there are in this network namespace, as the kernel lists them.

use crate::name::{Address, STATES};

/// Their names, sorted; those that may not be opened, too.
pub fn names() -> std::io::Result<Vec<Address>> {
    let listed = std::fs::read_to_string("/proc/net/unix")?;
    let mut names: Vec<Address> = listed.lines().filter_map(name).collect();
    names.sort_by(|a, b| (a.uid(), a.name()).cmp(&(b.uid(), b.name())));
    names.dedup();
    Ok(names)
}

/// The name in a line about a socket that listens.
fn name(line: &str) -> Option<Address> {
    let mut words = line.split_ascii_whitespace();
    let (flags, name) = (words.nth(3)?, words.next_back()?);
    let listens = u32::from_str_radix(flags, 16).ok()? & LISTENS != 0;
    let named = name.strip_prefix('@')?.strip_prefix(STATES)?;
    named.parse::<Address>().ok().filter(|_| listens && named.contains('/')).map(Address::of_state)
}

/// In its flags: it listens.
const LISTENS: u32 = 0x0001_0000;
