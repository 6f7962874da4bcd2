//! The dbuf ids that this daemon gives out. A range is for one process and is never given out
//! again: the next id is on disk before a range leaves, so that the next daemon continues there.
//! [SL §5.3.1], FEATURES D3
//!
//! | ids | given out by |
//! |---|---|
//! | 2²³ to 2²³ + 2²² − 1 | the daemon of the machine |
//! | 2²³ + 2²² to 2²⁴ − 1 | the daemon of a user |
//!
//! A process asks the first daemon that it finds, so the ids of a machine with both do not meet.

use engine::ids::{IdRange, MACHINE_FIRST};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use sys::local_socket;

/// Name of the file that holds the next id.
pub(crate) const FILE: &str = "ids";
/// Number of ids in a range.
const RANGE: u32 = 64;
/// Number of ids of one kind of daemon.
const PART: u32 = 1 << 22;
/// The share of the ids that one user may have, except root.
const USER_MAX: u32 = PART / 8;
const ROOT: u32 = 0;

/// The ids that were given out.
#[derive(Debug)]
pub(crate) struct DbufIdRanges {
    first: u32,
    /// The file with the next id; opened for the first range.
    file: Option<File>,
    next: u32,
    by_user: BTreeMap<u32, u32>,
    /// The processes that have got ranges.
    holders: BTreeSet<i32>,
    /// True if an earlier daemon has given out ids.
    continues: bool,
}

impl DbufIdRanges {
    /// Creates the state. `machine`: the daemon is the machine's.
    pub(crate) fn new(machine: bool) -> Self {
        let first = if machine { MACHINE_FIRST } else { MACHINE_FIRST + PART };
        let (by_user, holders) = (BTreeMap::new(), BTreeSet::new());
        Self { first, file: None, next: first, by_user, holders, continues: false }
    }

    /// Removes the file when the daemon ends, unless a process may still use ids.
    pub(crate) fn clear(&self, directory: &OwnedFd) {
        // The link of an exited process that nobody has waited for is gone, too.
        let runs = |process: &i32| {
            let program = Path::new("/proc").join(process.to_string()).join("exe");
            !matches!(program.read_link(), Err(error) if error.kind() == ErrorKind::NotFound)
        };
        if self.file.is_some() && !self.continues && !self.holders.iter().any(runs) {
            // A file that stays costs ids, nothing else.
            let _ = local_socket::remove(directory, FILE);
        }
    }

    /// Returns a range for this process of `uid`; `None` if the user has had too many, none is
    /// left, or the next id cannot be stored.
    pub(crate) fn give(
        &mut self,
        directory: &OwnedFd,
        (uid, process): (u32, i32),
    ) -> Option<IdRange> {
        let given = self.by_user.get(&uid).copied().unwrap_or(0);
        if uid != ROOT && given >= USER_MAX {
            return None;
        }
        if self.file.is_none() {
            self.open(directory)?;
        }
        let end = self.next.checked_add(RANGE).filter(|end| *end <= self.first + PART)?;
        self.file.as_ref()?.write_all_at(format!("{end:010}\n").as_bytes(), 0).ok()?;
        let range = IdRange { first: self.next, count: RANGE };
        self.next = end;
        self.by_user.insert(uid, given + RANGE);
        self.holders.insert(process);
        Some(range)
    }

    /// Opens the file and continues where the last daemon ended.
    fn open(&mut self, directory: &OwnedFd) -> Option<()> {
        let file = File::from(local_socket::open_private_file(directory, FILE).ok()?);
        let mut text = String::new();
        (&file).take(32).read_to_string(&mut text).ok()?;
        let stored = text.trim().parse();
        self.continues = stored.is_ok();
        let stored = stored.unwrap_or(self.first);
        self.next = stored.clamp(self.first, self.first + PART);
        self.file = Some(file);
        Some(())
    }
}
