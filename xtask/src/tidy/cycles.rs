//! Files of a crate that depend on each other: strongly connected components of the arrows.

use super::modules::FileArrows;
use std::collections::VecDeque;

/// Maximum number of files that may depend on each other.
pub(super) const CYCLE_MAX: usize = 3;

/// Files that all depend on each other, directly or indirectly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Component {
    /// Their indices in [`FileArrows::files`], in the order of their paths.
    pub(super) files: Vec<usize>,
}

/// Returns the components of more than one file, the largest first.
pub(super) fn components(arrows: &FileArrows) -> Vec<Component> {
    let reached: Vec<Vec<bool>> = (0..arrows.files.len()).map(|at| reachable(arrows, at)).collect();
    let mut found = Vec::new();
    let mut is_done = vec![false; arrows.files.len()];
    for at in 0..arrows.files.len() {
        if is_done[at] {
            continue;
        }
        let mut files: Vec<usize> = (0..arrows.files.len())
            .filter(|&other| other == at || reached[at][other] && reached[other][at])
            .collect();
        files.iter().for_each(|&file| is_done[file] = true);
        files.sort_by_key(|&file| &arrows.files[file]);
        if files.len() > 1 {
            found.push(Component { files });
        }
    }
    found.sort_by_key(|component| std::cmp::Reverse(component.files.len()));
    found
}

/// Returns, for each file, true if `from` depends on it, directly or indirectly.
fn reachable(arrows: &FileArrows, from: usize) -> Vec<bool> {
    let mut reached = vec![false; arrows.files.len()];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        for &to in arrows.edges[at].keys() {
            if !reached[to] {
                reached[to] = true;
                open.push(to);
            }
        }
    }
    reached
}

/// Describes a shortest cycle of at least three files in the component, or one of two if there is
/// none: `a.rs →
/// b.rs (b::B, line 3) → a.rs (A, line 1)`.
pub(super) fn shortest(arrows: &FileArrows, component: &Component) -> String {
    let cycles = component.files.iter().filter_map(|&file| shortest_through(arrows, file));
    let Some(cycle) = cycles.min_by_key(Vec::len) else { return String::new() };
    let mut text = arrows.files[cycle[0]].clone();
    for (step, &from) in cycle.iter().enumerate() {
        let to = cycle[(step + 1) % cycle.len()];
        let (name, line) = &arrows.edges[from][&to];
        text += &format!(" → {} ({name}, line {line})", arrows.files[to]);
    }
    text
}

/// Returns a shortest cycle through `start`.
fn shortest_through(arrows: &FileArrows, start: usize) -> Option<Vec<usize>> {
    let mut before = vec![None; arrows.files.len()];
    let mut open = VecDeque::from([start]);
    while let Some(at) = open.pop_front() {
        if arrows.edges[at].contains_key(&start) {
            let mut cycle = vec![at];
            while let Some(previous) = before[cycle[cycle.len() - 1]] {
                cycle.push(previous);
            }
            cycle.reverse();
            return Some(cycle);
        }
        for &to in arrows.edges[at].keys() {
            if to != start && before[to].is_none() {
                before[to] = Some(at);
                open.push_back(to);
            }
        }
    }
    None
}
