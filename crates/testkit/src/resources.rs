//! Detection of resource leaks: descriptors, memory, threads and child processes; BPF programs on
//! interfaces; files; and BPF objects.
//!
//! [`Resources`] counts resources, so that a test can compare the counts before and after an
//! action. [`KernelObjects`] records the ids of objects while a process runs. The test finds leaked
//! objects after the process has exited, even if other tests run concurrently.

use crate::net::{NamespacePair, SERVER_DEVICE};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use sys::bpf::{ObjectKind, TrafficDirection, object_ids, tcx_chain};
use sys::net::RouteSocket;

/// Amounts of resources, by description. An amount is a count or, for memory, a number of bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resources(BTreeMap<String, u64>);

impl Resources {
    /// Counts the resources of this process, the BPF programs attached to the device at the
    /// server's end of `pair`, and the files in `folder`. No other test may run in this process
    /// ([`crate::run_in_separate_process`]).
    ///
    /// # Panics
    /// If a resource cannot be read.
    #[must_use]
    pub fn of_this_process(pair: &NamespacePair, folder: &Path) -> Self {
        Self::of_process(std::process::id()).with_programs_at(pair).with_files_in(folder)
    }

    /// Counts the descriptors, threads and children of a process, and the bytes of its mappings of
    /// memfds, anonymous inodes, sockets and devices. Excludes heap and stacks, because the
    /// allocator retains them.
    ///
    /// # Panics
    ///
    /// If the process does not exist or cannot be inspected.
    #[must_use]
    pub fn of_process(process: u32) -> Self {
        let mut state = Self::default();
        state.add_descriptors(process);
        state.add_memory(process);
        state.add_threads_and_children(process);
        state
    }

    /// Adds the number of BPF programs attached to the device at the server's end of `pair`, and 1
    /// if the device is in promiscuous mode.
    ///
    /// # Panics
    /// If the device does not exist.
    #[must_use]
    pub fn with_programs_at(mut self, pair: &NamespacePair) -> Self {
        pair.server.run_in_network_namespace(|| {
            let device = RouteSocket::open()
                .expect("links")
                .interface_by_name(SERVER_DEVICE)
                .expect("the device");
            for side in [TrafficDirection::Ingress, TrafficDirection::Egress] {
                let chain = tcx_chain(device.index, side).expect("a chain");
                self.add(format!("programs at {side:?}"), chain.members.len() as u64);
            }
        });
        let link = pair.server.run_ip(&format!("link show dev {SERVER_DEVICE}"));
        self.add("programs at XDP".to_owned(), u64::from(link.contains("xdp")));
        self.add("promiscuous".to_owned(), u64::from(link.contains("PROMISC")));
        self
    }

    /// Adds the files and directories below `folder`.
    ///
    /// # Panics
    /// If the directory cannot be read.
    #[must_use]
    pub fn with_files_in(mut self, folder: &Path) -> Self {
        self.add_files(folder, "");
        self
    }

    /// Adds the entries in the machine's public directories (`/tmp`, `/dev/shm`, …) that belong to
    /// one of `users`. Does not search subdirectories.
    #[must_use]
    pub fn with_files_of_users(mut self, users: &[u32]) -> Self {
        for folder in ["/dev/shm", "/dev/mqueue", "/run", "/run/user", "/tmp", "/var/tmp"] {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                // Another test may remove the file concurrently.
                let Ok(about) = fs::symlink_metadata(entry.path()) else { continue };
                if users.contains(&about.uid()) {
                    self.add(format!("name {}", entry.path().display()), 1);
                }
            }
        }
        self
    }

    /// Returns the amount of a resource, which is 0 if the resource is not listed.
    #[must_use]
    pub fn amount(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// Returns these amounts without the amount of the resource `what`.
    #[must_use]
    pub fn without(mut self, what: &str) -> Self {
        self.0.remove(what);
        self
    }

    /// Returns a line for each resource whose amount is larger in `self` than in `other`.
    #[must_use]
    pub fn excess_over(&self, other: &Self) -> Vec<String> {
        let more = self.0.iter().filter(|(what, now)| **now > other.amount(what));
        more.map(|(what, now)| format!("{what}: {} and now {now}", other.amount(what))).collect()
    }

    /// Returns, for each resource, the larger of its amounts in `self` and in `other`.
    #[must_use]
    pub fn max(&self, other: &Self) -> Self {
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

    fn add_descriptors(&mut self, process: u32) {
        for entry in fs::read_dir(format!("/proc/{process}/fd")).expect("descriptors").flatten() {
            // The descriptor that was used to read the directory is already closed.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let kind = target.split_once(":[").map_or(target.as_str(), |(kind, _)| kind);
            if !kind.starts_with("/proc/") {
                self.add(format!("descriptor {kind}"), 1);
            }
        }
    }

    /// Adds the bytes that a process maps of memfds, anonymous inodes, sockets and devices, one
    /// amount per kind.
    fn add_memory(&mut self, process: u32) {
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

    fn add_threads_and_children(&mut self, process: u32) {
        for task in fs::read_dir(format!("/proc/{process}/task")).expect("threads").flatten() {
            // The thread may exit concurrently.
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            // The signal thread starts once per process, so it is not a leak.
            if name.trim() != "signals" {
                self.add(format!("thread {}", name.trim()), 1);
            }
        }
        let children = child_processes(process).len() as u64;
        if children > 0 {
            self.add("child".to_owned(), children);
        }
    }

    fn add_files(&mut self, folder: &Path, within: &str) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let name = format!("{within}{}", entry.file_name().to_string_lossy());
            if entry.path().is_dir() {
                self.add_files(&entry.path(), &format!("{name}/"));
            }
            self.add(format!("name {name}"), 1);
        }
    }
}

/// The IDs of a process's BPF objects and child processes. Each ID is unique on the machine.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KernelObjects {
    /// IDs of BPF programs.
    pub programs: BTreeSet<u32>,
    /// IDs of BPF maps.
    pub maps: BTreeSet<u32>,
    /// IDs of BPF links.
    pub links: BTreeSet<u32>,
    /// IDs of child processes.
    pub children: BTreeSet<u32>,
}

impl KernelObjects {
    /// Returns the BPF objects and child processes of a process. If the process has exited, the
    /// sets are empty.
    #[must_use]
    pub fn of_process(process: u32) -> Self {
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
        all.children = child_processes(process);
        all
    }

    /// Returns the union of two sets of objects.
    #[must_use]
    pub fn union(mut self, other: Self) -> Self {
        self.programs.extend(other.programs);
        self.maps.extend(other.maps);
        self.links.extend(other.links);
        self.children.extend(other.children);
        self
    }

    /// Returns a line for each object in the sets that still exists.
    ///
    /// # Panics
    /// If the BPF objects of the machine cannot be listed, which requires root.
    #[must_use]
    pub fn remaining_objects(&self) -> Vec<String> {
        let kinds = [
            (ObjectKind::Programs, &self.programs),
            (ObjectKind::Maps, &self.maps),
            (ObjectKind::Links, &self.links),
        ];
        let mut left = Vec::new();
        for (kind, ours) in kinds.into_iter().filter(|(_, ours)| !ours.is_empty()) {
            let all: BTreeSet<u32> = object_ids(kind).expect("root may ask").into_iter().collect();
            left.extend(all.intersection(ours).map(|id| format!("{kind:?} {id}")));
        }
        // A zombie counts as exited, even if init has not reaped it yet.
        let is_alive = |id: &&u32| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
        };
        left.extend(self.children.iter().filter(is_alive).map(|id| format!("process {id}")));
        left
    }
}

/// Returns the children of all threads of a process.
fn child_processes(process: u32) -> BTreeSet<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let each = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let ids = text.split_whitespace().filter_map(|id| id.parse().ok());
        ids.collect::<Vec<u32>>()
    };
    tasks.flat_map(each).collect()
}
