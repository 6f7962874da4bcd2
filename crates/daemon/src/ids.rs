//! Allocation of dbuf ids to processes, in ranges. A range belongs to one process and is never
//! allocated again: the next free id is written to disk before a range is returned, so that the
//! next daemon continues there. [SL §5.3.1], FEATURES D3
//!
//! | ids | allocated by |
//! |---|---|
//! | 2²³ to 2²³ + 2²² − 1 | the daemon of the machine |
//! | 2²³ + 2²² to 2²⁴ − 1 | the daemon of a user |
//!
//! A process requests ids from the first daemon that it finds. On a machine with both kinds of
//! daemon, their ids are disjoint.

use engine::ids::{DAEMON_ID_MIN, IdRange};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use sys::local_socket;

/// Name of the file that holds the next free id.
pub(crate) const IDS_FILE: &str = "ids";
/// Number of ids in a range.
const IDS_PER_RANGE: u32 = 64;
/// Number of ids that the daemon of the machine can allocate, and likewise each daemon of a user.
const IDS_PER_DAEMON_KIND: u32 = 1 << 22;
/// Maximum number of ids that one user other than root may get.
const IDS_PER_USER_MAX: u32 = IDS_PER_DAEMON_KIND / 8;
const ROOT_UID: u32 = 0;

/// The state of id allocation: the next free id, the number of ids that each user has received, and
/// the processes that have received ranges.
#[derive(Debug)]
pub(crate) struct DbufIdRanges {
    first: u32,
    /// The file with the next free id; opened when the first range is allocated.
    file: Option<File>,
    next: u32,
    by_user: BTreeMap<u32, u32>,
    /// Ids of the processes to which this daemon has allocated ranges of dbuf ids.
    holders: BTreeSet<i32>,
    /// True if an earlier daemon has allocated dbuf ids, as the file shows. Processes that are
    /// still running may use these ids.
    has_earlier_ids: bool,
}

impl DbufIdRanges {
    /// Creates the state of the machine-wide daemon if `machine` is true, else of a user's daemon.
    /// No range has been allocated yet.
    pub(crate) fn new(machine: bool) -> Self {
        let first = if machine { DAEMON_ID_MIN } else { DAEMON_ID_MIN + IDS_PER_DAEMON_KIND };
        let (by_user, holders) = (BTreeMap::new(), BTreeSet::new());
        Self { first, file: None, next: first, by_user, holders, has_earlier_ids: false }
    }

    /// Removes the file with the next free id when the daemon exits. Keeps the file if a running
    /// process may still use ids of this daemon or of an earlier one.
    pub(crate) fn remove_file(&self, directory: &OwnedFd) {
        // The link of a zombie, that is, an exited process that has not been reaped, is gone, too.
        let runs = |process: &i32| {
            let program = Path::new("/proc").join(process.to_string()).join("exe");
            !matches!(program.read_link(), Err(error) if error.kind() == ErrorKind::NotFound)
        };
        if self.file.is_some() && !self.has_earlier_ids && !self.holders.iter().any(runs) {
            // If the removal fails, the next daemon continues after these ids, so they are only
            // wasted.
            let _ = local_socket::remove_if_present(directory, IDS_FILE);
        }
    }

    /// Allocates a range for this process of user `uid`. Returns `None` if the user has received
    /// too many ids, all ids are allocated, or the next free id cannot be stored.
    pub(crate) fn allocate(
        &mut self,
        directory: &OwnedFd,
        (uid, process): (u32, i32),
    ) -> Option<IdRange> {
        let given = self.by_user.get(&uid).copied().unwrap_or(0);
        if uid != ROOT_UID && given >= IDS_PER_USER_MAX {
            return None;
        }
        if self.file.is_none() {
            self.open_file(directory)?;
        }
        let end = self
            .next
            .checked_add(IDS_PER_RANGE)
            .filter(|end| *end <= self.first + IDS_PER_DAEMON_KIND)?;
        self.file.as_ref()?.write_all_at(format!("{end:010}\n").as_bytes(), 0).ok()?;
        let range = IdRange { first: self.next, count: IDS_PER_RANGE };
        self.next = end;
        self.by_user.insert(uid, given + IDS_PER_RANGE);
        self.holders.insert(process);
        Some(range)
    }

    /// Opens the file with the next free id, and continues after the last id that an earlier daemon
    /// allocated. Returns `None` if the file cannot be opened or read.
    fn open_file(&mut self, directory: &OwnedFd) -> Option<()> {
        let file = File::from(local_socket::open_private_file(directory, IDS_FILE).ok()?);
        let mut text = String::new();
        (&file).take(32).read_to_string(&mut text).ok()?;
        let stored = text.trim().parse();
        self.has_earlier_ids = stored.is_ok();
        let stored = stored.unwrap_or(self.first);
        self.next = stored.clamp(self.first, self.first + IDS_PER_DAEMON_KIND);
        self.file = Some(file);
        Some(())
    }
}
