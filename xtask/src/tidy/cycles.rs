//! Groups of files that depend on each other, which are strongly connected components of the graph
//! of file dependencies.

use super::modules::FileDependencies;
use std::collections::VecDeque;

/// Maximum number of files of a crate that may depend on each other, directly or indirectly.
pub(super) const CYCLE_FILES_MAX: usize = 3;

/// A set of files that all depend on each other, directly or indirectly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FileCycle {
    /// Indices of the cycle's files in [`FileDependencies::files`], in the order of their paths.
    pub(super) files: Vec<usize>,
}

/// Returns all sets of two or more files that depend on each other, the largest first.
pub(super) fn file_cycles(dependencies: &FileDependencies) -> Vec<FileCycle> {
    let reached: Vec<Vec<bool>> =
        (0..dependencies.files.len()).map(|at| reachable_from(dependencies, at)).collect();
    let mut found = Vec::new();
    let mut is_done = vec![false; dependencies.files.len()];
    for at in 0..dependencies.files.len() {
        if is_done[at] {
            continue;
        }
        let mut files: Vec<usize> = (0..dependencies.files.len())
            .filter(|&other| other == at || reached[at][other] && reached[other][at])
            .collect();
        files.iter().for_each(|&file| is_done[file] = true);
        files.sort_by_key(|&file| &dependencies.files[file]);
        if files.len() > 1 {
            found.push(FileCycle { files });
        }
    }
    found.sort_by_key(|component| std::cmp::Reverse(component.files.len()));
    found
}

/// Returns a flag for each file of the crate: true if the file with the index `from` depends on it,
/// directly or indirectly.
fn reachable_from(dependencies: &FileDependencies, from: usize) -> Vec<bool> {
    let mut reached = vec![false; dependencies.files.len()];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for &to in dependencies.edges[at].keys() {
            if !reached[to] {
                reached[to] = true;
                open.push(to);
            }
        }
    }
    reached
}

/// Describes a shortest cycle among the files of `component`:
/// `a.rs → b.rs (b::B, line 3) → a.rs (A, line 1)`.
pub(super) fn describe_shortest_cycle(
    dependencies: &FileDependencies,
    component: &FileCycle,
) -> String {
    let cycles =
        component.files.iter().filter_map(|&file| shortest_cycle_through(dependencies, file));
    let Some(cycle) = cycles.min_by_key(Vec::len) else { return String::new() };
    let mut text = dependencies.files[cycle[0]].clone();
    for (step, &from) in cycle.iter().enumerate() {
        let to = cycle[(step + 1) % cycle.len()];
        let (name, line) = &dependencies.edges[from][&to];
        text += &format!(" → {} ({name}, line {line})", dependencies.files[to]);
    }
    text
}

/// Returns the files of a shortest cycle through `start`, or `None` if there is no cycle.
fn shortest_cycle_through(dependencies: &FileDependencies, start: usize) -> Option<Vec<usize>> {
    let mut before = vec![None; dependencies.files.len()];
    let mut open = VecDeque::from([start]);
    while let Some(at) = open.pop_front() {
        if dependencies.edges[at].contains_key(&start) {
            let mut cycle = vec![at];
            while let Some(previous) = before[cycle[cycle.len() - 1]] {
                cycle.push(previous);
            }
            cycle.reverse();
            return Some(cycle);
        }
        for &to in dependencies.edges[at].keys() {
            if to != start && before[to].is_none() {
                before[to] = Some(at);
                open.push_back(to);
            }
        }
    }
    None
}
