//! Resources of processes: descriptors, memory, threads, children; of interfaces and folders; and
//! kernel objects with numbers: programs, maps, links.
//!
//! [`Resources`] is compared before and behind something that is to leave nothing.
//! [`KernelObjects`] is looked at while something runs: an object can be found by its number when
//! its process is gone, also on a machine on which other tests run beside.

use crate::net::{Pair, SERVER_DEVICE};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use sys::bpf::{ObjectKind, Side, ids, tcx_chain};
use sys::net::RouteSocket;

/// The amount of each resource, by its name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resources(BTreeMap<String, u64>);

impl Resources {
    /// Counts the resources of this process, of the device of this pair and of this folder, in a
    /// process in which no other test runs ([`crate::alone`]).
    ///
    /// # Panics
    /// If it cannot be looked at.
    #[must_use]
    pub fn alone(pair: &Pair, folder: &Path) -> Self {
        Self::of(std::process::id()).at(pair).with(folder)
    }

    /// Counts the resources of a process. Heap and stacks, which the allocator keeps, are left out.
    ///
    /// # Panics
    /// If it is not there, or may not be looked at.
    #[must_use]
    pub fn of(process: u32) -> Self {
        let mut state = Self::default();
        state.descriptors(process);
        state.memory(process);
        state.tasks(process);
        state
    }

    /// And what is at the server's device of this pair.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn at(mut self, pair: &Pair) -> Self {
        pair.server.enter(|| {
            let device =
                RouteSocket::open().expect("links").named(SERVER_DEVICE).expect("the device");
            for side in [Side::Ingress, Side::Egress] {
                let chain = tcx_chain(device.index, side).expect("a chain");
                self.add(format!("programs at {side:?}"), chain.members.len() as u64);
            }
        });
        let link = pair.server.ip(&format!("link show dev {SERVER_DEVICE}"));
        self.add("programs at XDP".to_owned(), u64::from(link.contains("xdp")));
        self.add("promiscuous".to_owned(), u64::from(link.contains("PROMISC")));
        self
    }

    /// And what lies in this folder and those in it.
    ///
    /// # Panics
    /// If it is not there.
    #[must_use]
    pub fn with(mut self, folder: &Path) -> Self {
        self.names(folder, "");
        self
    }

    /// And what these users have in the folders of the machine in which anybody may make names.
    #[must_use]
    pub fn of_users(mut self, users: &[u32]) -> Self {
        for folder in ["/dev/shm", "/dev/mqueue", "/run", "/run/user", "/tmp", "/var/tmp"] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                // What is of another test may go meanwhile.
                let Ok(about) = fs::symlink_metadata(entry.path()) else { continue };
                if users.contains(&about.uid()) {
                    self.add(format!("name {}", entry.path().display()), 1);
                }
            }
        }
        self
    }

    /// Describes the resources of which this has more than `other`.
    #[must_use]
    pub fn beyond(&self, other: &Self) -> Vec<String> {
        let before = |what: &String| other.0.get(what).copied().unwrap_or(0);
        let more = self.0.iter().filter(|(what, now)| **now > before(what));
        more.map(|(what, now)| format!("{what}: {} and now {now}", before(what))).collect()
    }

    /// The most of both.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (what, count) in &other.0 {
            let here = both.0.entry(what.clone()).or_default();
            *here = (*here).max(*count);
        }
        both
    }

    fn add(&mut self, what: String, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    fn descriptors(&mut self, process: u32) {
        for entry in fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors").flatten() {
            // The one over which they are read has gone.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let kind = target.split_once(":[").map_or(target.as_str(), |(kind, _)| kind);
            if !kind.starts_with("/proc/") {
                self.add(format!("descriptor {kind}"), 1);
            }
        }
    }

    /// Counts the mappings that have a name.
    fn memory(&mut self, process: u32) {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("mappings");
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let range = words.next().unwrap_or_default();
            let name = words.nth(4).unwrap_or_default();
            let ours = ["/memfd:", "anon_inode:", "socket:", "/dev/"];
            if !ours.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            let (from, to) = range.split_once('-').expect("a range");
            let at = |text| u64::from_str_radix(text, 16).expect("an address");
            let name = name.split_once(":[").map_or(name, |(kind, _)| kind);
            self.add(format!("memory {name}"), at(to) - at(from));
        }
    }

    fn tasks(&mut self, process: u32) {
        for task in fs::read_dir(format!("/proc/{process}/task")).expect("threads").flatten() {
            // It may end meanwhile.
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            // The one that lets signals wait is the process's, from the first that waits.
            if name.trim() != "signals" {
                self.add(format!("thread {}", name.trim()), 1);
            }
        }
        let children = children(process).len() as u64;
        if children > 0 {
            self.add("child".to_owned(), children);
        }
    }

    fn names(&mut self, folder: &Path, within: &str) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let name = format!("{within}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                self.names(&entry.path(), &format!("{name}/"));
            }
            self.add(format!("name {name}"), 1);
        }
    }
}

/// The kernel objects of a process that have a number on the whole machine, and its children.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelObjects {
    /// Programs of BPF.
    pub programs: BTreeSet<u32>,
    /// Maps of BPF.
    pub maps: BTreeSet<u32>,
    /// RouteSocket of BPF.
    pub links: BTreeSet<u32>,
    /// Processes.
    pub children: BTreeSet<u32>,
}

impl KernelObjects {
    /// Lists the objects of a process; none, if it has gone.
    #[must_use]
    pub fn of(process: u32) -> Self {
        let mut all = Self::default();
        let infos = fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
        for info in infos {
            let text = fs::read_to_string(info.path()).unwrap_or_default();
            for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
                let to = match name {
                    "prog_id" => &mut all.programs,
                    "map_id" => &mut all.maps,
                    "link_id" => &mut all.links,
                    _ => continue,
                };
                to.extend(value.trim().parse::<u32>());
            }
        }
        all.children = children(process);
        all
    }

    /// Both.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.programs.extend(other.programs);
        self.maps.extend(other.maps);
        self.links.extend(other.links);
        self.children.extend(other.children);
        self
    }

    /// Lists the objects that still exist.
    ///
    /// # Panics
    /// If the kernel does not list what it has.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let kinds = [
            (ObjectKind::Programs, &self.programs),
            (ObjectKind::Maps, &self.maps),
            (ObjectKind::Links, &self.links),
        ];
        let mut left = Vec::new();
        for (kind, ours) in kinds.into_iter().filter(|(_, ours)| !ours.is_empty()) {
            let all: BTreeSet<u32> = ids(kind).expect("root may ask").into_iter().collect();
            left.extend(all.intersection(ours).map(|id| format!("{kind:?} {id}")));
        }
        // Who has ended and was not waited for yet by init is not there any more.
        let there = |id: &&u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        left.extend(self.children.iter().filter(there).map(|id| format!("process {id}")));
        left
    }
}

/// The processes that the threads of one have started.
fn children(process: u32) -> BTreeSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let each = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
        ids.collect::<Vec<u32>>()
    };
    tasks.flat_map(each).collect()
}
