//! Allocation of dbuf ids that are never used twice: machine-wide through a daemon, otherwise
//! within one process tree. A position in a dbuf is never written twice either, so a pair of id and
//! position identifies contents. [SL §5.3.1] [IOL §2.9], FEATURES D3, Q10
//!
//! | ids (24 bits) | allocated by | unique |
//! |---|---|---|
//! | 1 to 2²³ − 1 | a counter in memory that the processes of a tree share | in this tree |
//! | 2²³ to 2²⁴ − 1 | the daemon ([`set_id_source`]) | on this machine |
//!
//! A process takes one range at a time and allocates ids from it. A child of fork(2) takes its own
//! range, and a program that Streamline starts inherits the counter ([`duplicate_id_counter`]). A
//! program that was started in another way, without a daemon, begins its own tree. When the daemon
//! runs out of ids, ids of the tree are used; when these run out as well, no dbuf can be created.

use abi::DbufId;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};
use sys::memory::{Mapping, Memfd, Seals};

/// The first id that a daemon may allocate; smaller ids belong to process trees.
pub const DAEMON_ID_MIN: u32 = 1 << 23;
/// Name of the environment variable through which a program finds the counter of its process tree.
/// The value is a descriptor and an inode number, separated by a colon.
pub const ID_COUNTER_VARIABLE: &str = "STREAMLINE_IDS";
/// Number of ids that a process takes from the counter of its tree at a time.
const ID_RANGE_LENGTH: u32 = 16;

/// A range of consecutive dbuf ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// First id of the range.
    pub first: u32,
    /// Number of ids in the range.
    pub count: u32,
}

/// A function that requests a range of unused ids from a daemon. Returns `None` if there is no
/// daemon, or if the daemon has run out of ids. May block for the duration of a call to the daemon.
pub type IdSource = fn() -> Option<IdRange>;

static ID_SOURCE: OnceLock<IdSource> = OnceLock::new();
static PROCESS_IDS: Mutex<ProcessIds> =
    Mutex::new(ProcessIds { process: 0, next: 0, end: 0, tree: None });

/// The ids that this process has taken but not used yet.
#[derive(Debug)]
struct ProcessIds {
    /// Id of the process that took the range. A child of fork(2) must not use the range of its
    /// parent.
    process: u32,
    next: u32,
    end: u32,
    tree: Option<TreeCounter>,
}

/// The counter of a process tree, in shared memory. The first word of the memory holds the last id
/// taken.
#[derive(Debug)]
struct TreeCounter {
    file: OwnedFd,
    memory: Mapping,
}

/// Sets the source of id ranges. Must be called before the first id is allocated. Only the first
/// call has an effect.
pub fn set_id_source(source: IdSource) {
    let _ = ID_SOURCE.set(source);
}

/// Returns an id that no other dbuf has had, or `None` if all ids are used or the counter of the
/// tree cannot be opened. May block for as long as the [`IdSource`] does.
pub fn allocate_id() -> Option<DbufId> {
    let mut ids = PROCESS_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if ids.process != process {
        (ids.process, ids.next, ids.end) = (process, 0, 0);
    }
    if ids.next == ids.end {
        let given = ID_SOURCE.get().and_then(|source| source()).filter(is_daemon_range);
        let range = given.or_else(|| ids.take_tree_range())?;
        (ids.next, ids.end) = (range.first, range.first + range.count);
    }
    ids.next += 1;
    DbufId::new(ids.next - 1)
}

/// Returns the value of [`ID_COUNTER_VARIABLE`] for a program that is about to be started, and a
/// duplicate of the counter's descriptor, numbered `from` or higher, for that program to inherit.
pub fn duplicate_id_counter(from: i32) -> std::io::Result<(String, OwnedFd)> {
    let mut ids = PROCESS_IDS.lock().unwrap_or_else(PoisonError::into_inner);
    let tree = ids.tree_counter().ok_or(std::io::ErrorKind::OutOfMemory)?;
    let copy = sys::children::duplicate_inheritable(tree.file.as_fd(), from)?;
    let inode = sys::preload::inode(copy.as_raw_fd()).unwrap_or(0);
    Ok((format!("{}:{inode}", copy.as_raw_fd()), copy))
}

fn is_daemon_range(range: &IdRange) -> bool {
    let end = range.first.checked_add(range.count);
    range.first >= DAEMON_ID_MIN && range.count > 0 && end.is_some_and(|end| end <= ID_END)
}

/// One more than the greatest id that a dbuf can have.
const ID_END: u32 = DbufId::MAX.number() + 1;

impl ProcessIds {
    fn take_tree_range(&mut self) -> Option<IdRange> {
        let taken = self.tree_counter()?.memory.add_word(0, ID_RANGE_LENGTH.into())?;
        let first = u32::try_from(taken.checked_add(1)?).ok()?;
        (first + ID_RANGE_LENGTH <= DAEMON_ID_MIN)
            .then_some(IdRange { first, count: ID_RANGE_LENGTH })
    }

    /// Returns the counter of the process tree, either the inherited one or a new one; `None` if
    /// neither can be opened.
    fn tree_counter(&mut self) -> Option<&TreeCounter> {
        if self.tree.is_none() {
            self.tree = TreeCounter::open_inherited().or_else(TreeCounter::create);
        }
        self.tree.as_ref()
    }
}

impl TreeCounter {
    fn create() -> Option<Self> {
        let file = Memfd::create("streamline-ids", abi::ring::PAGE_SIZE).ok()?;
        file.seal(Seals::SIZE).ok()?;
        let memory = file.map().ok()?;
        Some(Self { file: file.into(), memory })
    }

    /// Opens the counter that [`ID_COUNTER_VARIABLE`] names. Returns `None` if the variable is not
    /// set, or if the descriptor in it was not inherited, in which case its number belongs to
    /// another file or to none.
    fn open_inherited() -> Option<Self> {
        let variable = std::env::var(ID_COUNTER_VARIABLE).ok()?;
        let (number, inode) = variable.split_once(':')?;
        let (number, inode) = (number.parse().ok()?, inode.parse().ok()?);
        if sys::preload::inode(number) != Some(inode) {
            return None;
        }
        let copy = sys::preload::borrow_descriptor(number)?.try_clone_to_owned().ok()?;
        let file = Memfd::from_fd(copy).ok()?;
        let has_size =
            file.seals().ok()?.contains(Seals::SIZE) && file.len() == abi::ring::PAGE_SIZE;
        let memory = has_size.then(|| file.map())?.ok()?;
        Some(Self { file: file.into(), memory })
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    #[test]
    fn d3_ids_of_several_threads_and_a_child_differ() {
        let many = || (0..100).map(|_| allocate_id().unwrap().number()).collect::<Vec<_>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(many)).collect();
        let mut all: Vec<u32> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(all.iter().all(|id| (1..DAEMON_ID_MIN).contains(id)), "no daemon gave them");
    }

    #[test]
    fn d3_used_up_ids_are_refused() {
        let mut ids = ProcessIds { process: 0, next: 0, end: 0, tree: TreeCounter::create() };
        let memory = &ids.tree_counter().unwrap().memory;
        assert!(memory.set_word(0, u64::from(DAEMON_ID_MIN - 1 - ID_RANGE_LENGTH)));
        let last = IdRange { first: DAEMON_ID_MIN - ID_RANGE_LENGTH, count: ID_RANGE_LENGTH };
        assert_eq!(ids.take_tree_range(), Some(last));
        assert_eq!(ids.take_tree_range(), None);
        assert!(ids.tree_counter().unwrap().memory.set_word(0, u64::MAX));
        assert_eq!(ids.take_tree_range(), None);
    }

    #[test]
    fn d3_ranges_beyond_the_ids_of_daemons_are_rejected() {
        let range = |first, count| IdRange { first, count };
        assert!(
            is_daemon_range(&range(DAEMON_ID_MIN, 64)) && is_daemon_range(&range(ID_END - 1, 1))
        );
        for wrong in [range(1, 64), range(ID_END - 1, 2), range(u32::MAX, 64), range(ID_END, 0)] {
            assert!(!is_daemon_range(&wrong), "{wrong:?}");
        }
    }
}
