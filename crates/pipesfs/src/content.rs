//! The contents of the text files. Most of these files contain one value and a newline.

use crate::entries::{DirectoryObject, FileText, ObjectKey};
use crate::tree::{DirectoryId, NodeIndex, Tree};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use streamline::paths::{self, Counters, Filter, Loss, Space};

/// The counters of several paths, by path number.
pub type CountersByPath = HashMap<u32, Arc<Counters>>;

/// Returns the text of a file, as far as it can be derived from the tree and from counters.
/// `counters` must contain the counters of every path that [`counted_paths`] returns. Returns
/// `None` if the file does not exist, or if its text depends on other data.
#[must_use]
pub fn file_text(tree: &Tree, key: &ObjectKey, counters: &CountersByPath) -> Option<String> {
    let DirectoryObject::Text(text) = &key.part else { return None };
    let line = |value: &str| Some(format!("{value}\n"));
    let running = || running_spaces(tree, key, counters);
    match text {
        FileText::Readme => Some(README_TEXT.to_owned()),
        FileText::Manual(name) => paths::filter_manual(name),
        FileText::Request => {
            let DirectoryId::Path(path) = &key.place else { return None };
            let of = |view: &&paths::PathView| crate::tree::path_key(view) == *path;
            line(&tree.paths.iter().find(of)?.line)
        }
        FileText::Argument(name) => {
            let (_, node) = tree.first_node(tree.directory(&key.place)?)?;
            let values = node.arguments.iter().filter(|argument| argument.name == *name);
            let lines: Vec<String> = values.map(|argument| argument.value.clone() + "\n").collect();
            (!lines.is_empty()).then(|| lines.concat())
        }
        FileText::Space => {
            let mut spaces = Vec::new();
            for member in &tree.directory(&key.place)?.members {
                let node = tree.node(*member)?;
                let all = if node.copies.is_empty() {
                    vec![node.space.clone()]
                } else {
                    node.copies.clone()
                };
                spaces.extend(all.into_iter().filter(|space| !space.is_empty()));
            }
            spaces.dedup();
            line(&spaces.join(" "))
        }
        FileText::Replicas => {
            let (_, node) = tree.first_node(tree.directory(&key.place)?)?;
            line(&node.copies.len().max(1).to_string())
        }
        FileText::Hook => {
            let (view, node) = tree.first_node(tree.directory(&key.place)?)?;
            line(&paths::kernel_hooks(&view.line, node).ok()?.join(", "))
        }
        FileText::Process => line(&join_numbers(running().filter_map(|on| on.process))),
        FileText::Processors => line(&join_numbers(running().flat_map(|on| on.processors.clone()))),
        FileText::PlacementReason => {
            let (_, node) = tree.first_node(tree.directory(&key.place)?)?;
            let elsewhere = node.elsewhere.iter().map(|why| format!("not in {why}\n"));
            Some(format!("{}\n{}", node.because, elsewhere.collect::<String>()))
        }
        FileText::Blocks => line(&input_totals(tree, key, counters)?.0.to_string()),
        FileText::Bytes => line(&input_totals(tree, key, counters)?.1.to_string()),
        FileText::Lost(reason) => {
            let count = losses(tree, key, counters).get(reason).copied()?;
            line(&count.map_or_else(|| "unknown".to_owned(), |count| count.to_string()))
        }
        FileText::Program => {
            let (view, node) = tree.first_node(tree.directory(&key.place)?)?;
            paths::kernel_instruction_listing(&view.line, node).ok()
        }
        // The server produces these texts, because the tree does not contain them.
        FileText::NsPerBlock
        | FileText::Error
        | FileText::Neighbors
        | FileText::Read
        | FileText::Written
        | FileText::Missed
        | FileText::Freeze
        | FileText::State(_) => None,
    }
}

/// Returns the paths whose counters are needed for the files of a directory. Each path is given by
/// its owner's user id and its number.
#[must_use]
pub fn counted_paths(tree: &Tree, place: &DirectoryId) -> Vec<(u32, u32)> {
    let members = tree.directory(place).map(|directory| directory.members.as_slice());
    let path = |member: &NodeIndex| {
        let view = tree.paths.get(member.path)?;
        Some((view.path.uid, view.path.number))
    };
    members.unwrap_or_default().iter().filter_map(path).collect()
}

/// Returns the losses in the nodes of a directory: each reason, with the number of blocks lost for
/// it. The number is `None` if one of the nodes has no counter for the reason.
#[must_use]
pub fn losses(
    tree: &Tree,
    key: &ObjectKey,
    counters: &CountersByPath,
) -> BTreeMap<String, Option<u64>> {
    let mut sums = BTreeMap::new();
    let mut add = |loss: &Loss| {
        let sum: &mut Option<u64> = sums.entry(loss.why.clone()).or_insert(Some(0));
        *sum = sum.zip(loss.blocks).map(|(sum, blocks)| sum + blocks);
    };
    for_each_filter(tree, key, counters, |filter, counters| {
        filter.lost.iter().for_each(&mut add);
        let source = counters.sources.iter().find(|source| source.name == filter.name);
        source.into_iter().flat_map(|source| &source.lost).for_each(&mut add);
    });
    sums
}

/// Returns the total numbers of blocks and bytes that the nodes of a directory have received or
/// generated. Returns `None` if the directory does not exist.
fn input_totals(tree: &Tree, key: &ObjectKey, counters: &CountersByPath) -> Option<(u64, u64)> {
    tree.directory(&key.place)?;
    let mut sum = (0, 0);
    for_each_filter(tree, key, counters, |filter, _| {
        sum.0 += filter.taken.blocks + filter.made.blocks;
        sum.1 += filter.taken.bytes + filter.made.bytes;
    });
    Some(sum)
}

/// Returns the time spent in the filters of a directory, in ns, and the number of blocks that these
/// filters have received or generated.
#[must_use]
pub fn busy_time_and_blocks(tree: &Tree, key: &ObjectKey, counters: &CountersByPath) -> (u64, u64) {
    let mut sum = (0, 0);
    for_each_filter(tree, key, counters, |filter, _| {
        sum.0 += filter.busy_ns;
        sum.1 += filter.taken.blocks + filter.made.blocks;
    });
    sum
}

/// Returns the spaces that run a node of a directory or a replica of such a node.
fn running_spaces<'c>(
    tree: &'c Tree,
    key: &ObjectKey,
    counters: &'c CountersByPath,
) -> impl Iterator<Item = &'c Space> {
    let members = tree.directory(&key.place).map(|directory| directory.members.as_slice());
    members.unwrap_or_default().iter().flat_map(move |member| {
        let (view, node) = (tree.paths.get(member.path), tree.node(*member));
        let spaces = view.and_then(|view| counters.get(&view.path.number));
        let spaces = spaces.map_or(&[][..], |counters| counters.spaces.as_slice());
        let runs = move |space: &&Space| {
            node.is_some_and(|node| space.name == node.space || node.copies.contains(&space.name))
        };
        spaces.iter().filter(runs)
    })
}

/// Formats distinct numbers in ascending order, separated by spaces.
fn join_numbers<N: Ord + ToString>(numbers: impl Iterator<Item = N>) -> String {
    let numbers: BTreeSet<N> = numbers.collect();
    Vec::from_iter(numbers.iter().map(N::to_string)).join(" ")
}

/// Calls `each` with the counters of every node that a directory represents. A node with replicas,
/// or with a part in the kernel, has several sets of counters; calls `each` with each of them.
fn for_each_filter(
    tree: &Tree,
    key: &ObjectKey,
    counters: &CountersByPath,
    mut each: impl FnMut(&Filter, &Counters),
) {
    let members = tree.directory(&key.place).map(|directory| directory.members.as_slice());
    for member in members.unwrap_or_default() {
        let (Some(view), Some(node)) = (tree.paths.get(member.path), tree.node(*member)) else {
            continue;
        };
        let Some(counters) = counters.get(&view.path.number) else { continue };
        let of = |filter: &&Filter| filter.node == member.node && filter.name == node.name;
        counters.filters.iter().filter(of).for_each(|filter| each(filter, counters));
    }
}

/// Text of the file `README_TEXT` in the root directory.
const README_TEXT: &str = "\
PipesFS shows what Streamline runs on this machine. Each directory is a filter of a running
request; data flows from a directory to those below it.

  ls -R .                         all paths
  cat SOURCE/ip/dport/80/all      what leaves a filter, from now on: bytes
  tcpdump -r SOURCE/all.pcap      frames, as a capture
  head -1 SOURCE/ip/all.jsonl     one JSON object per block or message
  echo 10s > SOURCE/freeze        keep the past for 10 s, to read SOURCE/all.pcap@-1m at leisure
  cat SOURCE/ip/stats/blocks      counters; stats/dropped has one file per reason of a loss
  cat SOURCE/ip/why               why the filter runs where it runs
  cat SOURCE/ip/place             the space in which it runs; process, processors, hook
  cat SOURCE/ip/program           its eBPF instructions, if it runs in the kernel
  cat .filters/tcp                the manual of a filter

A path without a name appears under its source, such as rx:eth0; one with a name under its name.
A class, such as 80 of dport or get of http, is a directory, too; any class can be opened, even if
none of the filters below asks for it.

Then what? Start a request, and look again:

  streamline start web 'rx eth0 | ip | dport |80 tcp | http |get count'
  cat web/rx:eth0/ip/dport/80/tcp/http/get/all | gzip > log.gz

What a program writes to all leaves the filter as if the filter had made it; each open is one
session. Frames are written to all.pcap. A value in config is written where `set` can change it.

A file is read only from the moment at which it is opened, and costs nothing before. A reader that
is too slow loses blocks, and never delays the path. all of raw streams mixes connections: `files`
in a request writes each to a file of its own. An operation that failed leaves the reason in .error
of this directory.
";
