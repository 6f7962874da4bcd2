//! The lines whose placements are tried, and every way to place one.

use engine::catalogue::House;
use pipeline::plan::{Machine, Plan, plan};

/// Lines of at least three filters over what comes in; each begins with `rx`, whose device is
/// added.
pub(super) const LINES: [&str; 22] = [
    "rx | eth | ip | udp | count",
    "rx | eth |ip ip | udp | dport |53 count",
    "rx | ip | udp | dport |53 count",
    "rx | ip | udp | dport |9 count",
    "rx | ip |udp udp | dport |53 count",
    "rx | ip | udp | sport |4000 count",
    "rx | ipproto |udp udp | count",
    "rx | ipproto |udp dport |53 count",
    "rx | ip | udp | hist length",
    "rx | ip | udp | dport |53 hist length",
    "rx | bpf \"udp port 53\" | ip | udp | count",
    "rx | bpf \"udp\" | udp | dport |53 count",
    "rx | sample 10 | ip | udp | count",
    "rx | ip | udp | sample 10 | count",
    "rx | ratelimit 1000 | ip | udp | count",
    "rx | ip | udp | match \"ZZZZ\" | count",
    "rx | ip | udp | match \"absent\" | count",
    "rx | ip | udp | match \"ZZZZ\" at=0 | count",
    "rx | udp | dport |53 dns | count",
    "rx | ip | udp | dport |4053 match \"Y\" | count",
    "rx | ip | udp | regex \"Z+Y\" | count",
    "rx | sample 100 | ip | udp | regex \"Z+Y\" | count",
];

/// A line with the space of every node that is written in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) text: String,
    pub(super) spaces: Vec<String>,
}

/// Plans a line for this machine.
pub(super) fn planned(text: &str, machine: &Machine) -> Result<Plan, String> {
    let (graph, mistakes) = pipeline::read(text, &House);
    if mistakes.iter().any(|mistake| mistake.is_error()) {
        return Err(pipeline::render(text, &mistakes, false));
    }
    plan(graph, &House, machine).map_err(|why| why.to_string())
}

/// Where the nodes that are written stand.
pub(super) fn spaces(plan: &Plan, nodes: usize) -> Vec<String> {
    let placed = plan.placed.iter().take(nodes);
    placed.map(|placed| plan.spaces[placed.space].name.clone()).collect()
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
            let text = pinned(&nodes, &spaces);
            let Ok(plan) = planned(&text, machine) else { continue };
            let spaces = self::spaces(&plan, count);
            if found.iter().all(|known| known.spaces != spaces) {
                found.push(Placement { text, spaces });
            }
        }
    }
    found
}

/// The nodes of a line without branches, each with the class before it.
pub(super) fn nodes(line: &str) -> Vec<&str> {
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
        let machine = Machine::example();
        for line in LINES {
            assert!(nodes(line).len() > 3, "{line}: three filters behind the source");
            let all = placements(line, &machine);
            assert!(all.len() > 1, "{line}: {all:?}");
            let chosen = spaces(&planned(line, &machine).unwrap(), nodes(line).len());
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
