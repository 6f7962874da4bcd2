//! What this process has of the machine: descriptors, memory, threads, children; and what it has
//! left at interfaces and in folders.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use sys::bpf::{Side, tcx_chain};
use sys::net::Links;
use testkit::net::{Pair, SERVER_DEVICE};

/// How much of what there is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct State(BTreeMap<String, u64>);

impl State {
    /// What there is now, with what is at the device of this pair and in this folder; in a process
    /// in which no other test runs.
    pub(crate) fn alone(pair: &Pair, folder: &Path) -> Self {
        let mut state = Self::default();
        state.descriptors();
        state.memory();
        state.tasks();
        state.attached(pair);
        state.names(folder, "");
        state
    }

    /// What is here more than there.
    pub(crate) fn beyond(&self, other: &Self) -> Vec<String> {
        let before = |what: &String| other.0.get(what).copied().unwrap_or(0);
        let more = self.0.iter().filter(|(what, now)| **now > before(what));
        more.map(|(what, now)| format!("{what}: {} and now {now}", before(what))).collect()
    }

    /// The most of both.
    pub(crate) fn or(&self, other: &Self) -> Self {
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

    fn descriptors(&mut self) {
        for entry in fs::read_dir("/proc/self/fd").expect("descriptors").flatten() {
            // The one over which they are read has gone.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            let kind = target.split_once(":[").map_or(target.as_str(), |(kind, _)| kind);
            if !kind.starts_with("/proc/") {
                self.add(format!("descriptor {kind}"), 1);
            }
        }
    }

    /// What is mapped and has a name: heap and stacks are kept by the allocator.
    fn memory(&mut self) {
        let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
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

    fn tasks(&mut self) {
        for task in fs::read_dir("/proc/self/task").expect("threads").flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            // The one that lets signals wait is the process's, from the first that waits.
            if name.trim() != "signals" {
                self.add(format!("thread {}", name.trim()), 1);
            }
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let many = children.split_whitespace().count();
            if many > 0 {
                self.add("child".to_owned(), many as u64);
            }
        }
    }

    fn attached(&mut self, pair: &Pair) {
        pair.server.enter(|| {
            let device = Links::open().expect("links").named(SERVER_DEVICE).expect("the device");
            for side in [Side::Ingress, Side::Egress] {
                let chain = tcx_chain(device.index, side).expect("a chain");
                self.add(format!("programs at {side:?}"), chain.members.len() as u64);
            }
        });
        let shown = pair.server.ip(&format!("link show dev {SERVER_DEVICE}"));
        self.add("programs at XDP".to_owned(), u64::from(shown.contains("xdp")));
        self.add("promiscuous".to_owned(), u64::from(shown.contains("PROMISC")));
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
