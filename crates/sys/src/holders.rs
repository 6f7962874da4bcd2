//! The processes that hold sockets and BPF objects open, found through `/proc/PID/fd`.
//!
//! Descriptors of other users' processes are readable only with CAP_SYS_PTRACE;
//! [`ObjectHolders::hidden`] counts the processes whose descriptors were not readable.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// A process that holds an object open.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HolderProcess {
    /// Process id.
    pub process: u32,
    /// Effective user id.
    pub uid: u32,
    /// Name of the program, at most 15 bytes (proc_pid_comm(5)); empty if unreadable.
    pub command: String,
}

/// The processes that hold certain sockets and BPF programs, found with [`ObjectHolders::find`].
#[derive(Clone, Debug, Default)]
pub struct ObjectHolders {
    sockets: HashMap<u64, Vec<HolderProcess>>,
    programs: HashMap<u32, Vec<HolderProcess>>,
    /// Number of processes whose descriptors could not be read.
    pub hidden: usize,
    /// Number of processes with unreadable descriptors that were started after this process. This
    /// process may have started them, directly or through its children.
    pub hidden_later: usize,
}

impl ObjectHolders {
    /// Finds the processes that hold any of these sockets (given by inode) or BPF programs (given
    /// by id; held directly or through a link). Reads the descriptors of every process on the
    /// machine.
    #[must_use]
    pub fn find(sockets: &HashSet<u64>, programs: &HashSet<u32>) -> Self {
        let mut found = Self::default();
        if sockets.is_empty() && programs.is_empty() {
            return found;
        }
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(process) = number else { continue };
            found.read_process_descriptors(process, &entry.path(), (sockets, programs));
        }
        let lists = found.sockets.values_mut().chain(found.programs.values_mut());
        for list in lists {
            list.sort();
            list.dedup();
        }
        found
    }

    /// Returns the processes that hold the socket with this inode.
    #[must_use]
    pub fn holders_of_socket(&self, inode: u64) -> &[HolderProcess] {
        self.sockets.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// Returns the processes that hold the program with this id.
    #[must_use]
    pub fn holders_of_program(&self, id: u32) -> &[HolderProcess] {
        self.programs.get(&id).map_or(&[], Vec::as_slice)
    }

    fn record_hidden_process(&mut self, folder: &Path) {
        self.hidden += 1;
        let own = process_start_time(Path::new("/proc/self"));
        self.hidden_later +=
            usize::from(process_start_time(folder).is_none_or(|its| Some(its) >= own));
    }

    fn read_process_descriptors(
        &mut self,
        process: u32,
        folder: &Path,
        (sockets, programs): (&HashSet<u64>, &HashSet<u32>),
    ) {
        // A process that has exited since the listing holds nothing.
        let Ok(facts) = fs::metadata(folder) else { return };
        let descriptors = match fs::read_dir(folder.join("fd")) {
            Ok(descriptors) => descriptors,
            Err(error) => {
                let denied = error.kind() == ErrorKind::PermissionDenied;
                if denied {
                    self.record_hidden_process(folder);
                }
                return;
            }
        };
        let holder = || HolderProcess {
            process,
            uid: facts.uid(),
            command: fs::read_to_string(folder.join("comm")).unwrap_or_default().trim().to_owned(),
        };
        for descriptor in descriptors.flatten() {
            let target = match fs::read_link(descriptor.path()) {
                Ok(target) => target,
                // Some processes permit listing their descriptors, but not reading the links.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    self.record_hidden_process(folder);
                    return;
                }
                Err(_) => continue,
            };
            let Some(target) = target.to_str() else { continue };
            if let Some(inode) = parse_socket_inode(target).filter(|inode| sockets.contains(inode))
            {
                self.sockets.entry(inode).or_default().push(holder());
            } else if target.starts_with("anon_inode:bpf") {
                let facts = folder.join("fdinfo").join(descriptor.file_name());
                let facts = fs::read_to_string(facts).unwrap_or_default();
                if let Some(id) = parse_program_id(&facts).filter(|id| programs.contains(id)) {
                    self.programs.entry(id).or_default().push(holder());
                }
            }
        }
    }
}

/// Returns the time at which a process started, in clock ticks since boot; `None` if the process
/// has ended.
fn process_start_time(folder: &Path) -> Option<u64> {
    parse_start_time(&fs::read_to_string(folder.join("stat")).ok()?)
}

/// Parses the start time in the text of `/proc/PID/stat` (proc_pid_stat(5)). The name of the
/// program, in parentheses, may contain spaces and parentheses.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(19)?.parse().ok()
}

/// Parses the socket inode from the target of a symbolic link in `/proc/PID/fd`, such as
/// `socket:[12345]`. Returns `None` if the link does not refer to a socket.
fn parse_socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Parses the program id from the fdinfo text of a descriptor of a program or link
/// (proc_pid_fdinfo(5)). Returns `None` if the text contains no program id.
fn parse_program_id(facts: &str) -> Option<u32> {
    let id = |line: &str| line.strip_prefix("prog_id:")?.trim().parse().ok();
    facts.lines().find_map(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_inodes_and_program_ids_are_parsed() {
        assert_eq!(parse_socket_inode("socket:[4711]"), Some(4711));
        for other in ["socket:[", "socket:[x]", "/dev/null", "anon_inode:[eventfd]", ""] {
            assert_eq!(parse_socket_inode(other), None, "{other}");
        }
        let link = "pos:\t0\nlink_type:\ttcx\nlink_id:\t7\nprog_tag:\tab\nprog_id:\t61\n";
        assert_eq!((parse_program_id(link), parse_program_id("pos:\t0\n")), (Some(61), None));
    }

    #[test]
    fn start_time_follows_any_program_name() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
        assert_eq!(parse_start_time(&format!("12 (a) b (c) {rest}")), Some(4711));
        assert_eq!(parse_start_time("12 (a) S 1"), None);
        assert!(
            process_start_time(Path::new("/proc/self")) >= process_start_time(Path::new("/proc/1"))
        );
    }

    #[test]
    fn open_socket_is_found_with_its_process() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
        let link = fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
        let inode = parse_socket_inode(link.to_str().unwrap()).unwrap();
        let found = ObjectHolders::find(&HashSet::from([inode]), &HashSet::new());
        let own = found.holders_of_socket(inode);
        assert_eq!(own.len(), 1, "{own:?}");
        assert_eq!(own[0].process, std::process::id());
        assert_eq!(own[0].uid, crate::process::effective_ids().0);
        assert!(!own[0].command.is_empty());
        assert!(
            found.holders_of_socket(inode + 1).is_empty() && found.holders_of_program(1).is_empty()
        );
    }
}
