//! The lines whose placements are tried, and every way to place one.

use engine::catalogue::House;
use pipeline::plan::{Machine, Plan, plan};

/// Lines of at least three filters over what comes in; each begins with `rx`, whose device is
/// added. What comes is UDP to port 53 and to another, one of each, with `Z` in all its bytes.
pub(super) const LINES: [&str; 29] = [
    // All of it has twins.
    "rx | eth | ip | udp | count",
    "rx | eth |ip ip | udp | dport |53 count",
    "rx | ip | udp | dport |53 count",
    "rx | ip | udp | dport |9 count",
    "rx | ipproto |udp dport |53 count",
    "rx | ip | udp | hist length",
    "rx | bpf \"udp port 53\" | ip | udp | count",
    "rx | sample 10 | ip | udp | count",
    "rx | ip | udp | match \"ZZZZ\" at=0 | count",
    // Nothing or little of what comes goes on in the process.
    "rx | udp | dport |9 dns | count",
    "rx | sample 100 | ip | udp | regex \"Z+Y\" | count",
    "rx | ip | udp | dport |9 regex \"Z+Y\" | count",
    "rx | bpf \"tcp\" | ip | regex \"Z+Y\" | count",
    // Much or all of it does.
    "rx | ip | udp | match \"absent\" | count",
    "rx | ip | udp | regex \"Z+Y\" | count",
    "rx | udp | dport |53 dns | count",
    "rx | eth | ip | regex \"Z+Y\" | count",
    "rx | ip | udp | dport |4053 match \"Y\" | count",
    // A filter whose twin is dearer than it is itself. What has a burst lets all pass wherever it
    // runs: in a thread a batch comes at one time.
    "rx | ratelimit 1000 | ip | udp | count",
    "rx | ip | ratelimit 2000000 burst=100000 | regex \"Z+Y\" | count",
    "rx | udp | ratelimit 2000000 burst=100000 | match \"Y\" | count",
    "rx | ip | udp | ratelimit 2000000 burst=100000 | match \"Y\" | count",
    "rx | ratelimit 2000000 burst=100000 | udp | match \"Y\" | count",
    "rx | ratelimit 3000000 burst=100000 | ratelimit 2000000 burst=100000 | match \"Y\" | count",
    // Statistics of all that comes, before a look at all of it: a twin that counts costs some times
    // what a filter does that counts, and nothing of it keeps a frame from being handed over.
    "rx | hist length | ipproto |all hist | sport |all hist | dport | hist | match \"Y\" | count",
    "rx | sport |all hist | dport |all hist | count | regex \"Z+Y\" | count",
    "rx | hist length | count | ratelimit 2000000 burst=100000 | count | match \"Y\" | count",
    "rx | ip | hist length | udp | hist | ratelimit 2000000 burst=100000 | regex \"Z+Y\" | count",
    "rx | eth | hist | ip | hist length | count | match \"Y\" | count",
];

/// A line with the space of every node that is written in it.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) plan: Plan,
    pub(super) spaces: Vec<String>,
}

impl Placement {
    /// The plan of a request on this machine.
    pub(super) fn of(text: &str, machine: &Machine) -> Result<Self, String> {
        let (graph, mistakes) = pipeline::read(text, &House);
        if mistakes.iter().any(|mistake| mistake.is_error()) {
            return Err(pipeline::render(text, &mistakes, false));
        }
        let plan = plan(graph, &House, machine).map_err(|why| why.to_string())?;
        let placed = plan.placed.iter().take(nodes(text).len());
        let spaces = placed.map(|placed| plan.spaces[placed.space].name.clone()).collect();
        Ok(Self { plan, spaces })
    }

    /// Formats the number of nodes in each space, in their order: `kernel 2 thread0 3`.
    pub(super) fn short(&self) -> String {
        let runs = self.spaces.chunk_by(|one, other| one == other);
        runs.map(|run| format!("{} {}", run[0], run.len())).collect::<Vec<_>>().join(" ")
    }
}

/// Every placement of a line that can be planned: a beginning in the kernel, perhaps, then a
/// thread, then perhaps another.
pub(super) fn placements(line: &str, machine: &Machine) -> Vec<Placement> {
    let nodes = nodes(line);
    let count = nodes.len();
    let mut found: Vec<Placement> = Vec::new();
    for kernel in 0..=count {
        for first in kernel..=count {
            // Who has one thread has the first.
            if first == kernel && first < count {
                continue;
            }
            let space = |node: usize| match node {
                node if node < kernel => "kernel",
                node if node < first => "thread0",
                _ => "thread1",
            };
            let spaces: Vec<&str> = (0..count).map(space).collect();
            let Ok(new) = Placement::of(&pinned(&nodes, &spaces), machine) else { continue };
            if found.iter().all(|known| known.spaces != new.spaces) {
                found.push(new);
            }
        }
    }
    found
}

/// The nodes of a line without branches, each with the class before it.
fn nodes(line: &str) -> Vec<&str> {
    line.split('|').map(str::trim_end).collect()
}

fn pinned(nodes: &[&str], spaces: &[&str]) -> String {
    let pinned: Vec<String> =
        nodes.iter().zip(spaces).map(|(node, space)| format!("{node} @{space}")).collect();
    pinned.join(" |")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_can_be_placed_in_two_ways() {
        let machine = Machine::with_kernel();
        for line in LINES {
            assert!(nodes(line).len() > 3, "{line}: three filters behind the source");
            let line = line.replacen("rx", "rx lo", 1);
            let all = placements(&line, &machine);
            let inside = |all: &[Placement]| {
                all.iter().filter(|placed| placed.spaces.contains(&"kernel".to_owned())).count()
            };
            assert!(inside(&all) > 1 && all.len() > inside(&all), "{line}: {all:?}");
            let chosen = Placement::of(&line, &machine).unwrap().spaces;
            assert!(all.iter().any(|placement| placement.spaces == chosen), "{line}: {chosen:?}");
        }
    }

    #[test]
    fn pins_stand_behind_their_nodes() {
        let nodes = nodes("rx | dport |53 count");
        let text = pinned(&nodes, &["kernel", "thread0", "thread0"]);
        assert_eq!(text, "rx @kernel | dport @thread0 |53 count @thread0");
    }
}
