//! The requests whose placements `bench placement` measures, and the planning of all placements of
//! a request.

use engine::registry::MachineRegistry;
use pipeline::plan::{Machine, Plan, plan};

/// Requests with at least three filters. Each begins with `rx`, to which the bench adds the device.
/// The flood is UDP to port 53 and to another port, alternately, with `Z` in all payload bytes.
pub(super) const REQUESTS: [&str; 29] = [
    // All filters have twins.
    "rx | eth | ip | udp | count",
    "rx | eth |ip ip | udp | dport |53 count",
    "rx | ip | udp | dport |53 count",
    "rx | ip | udp | dport |9 count",
    "rx | ipproto |udp dport |53 count",
    "rx | ip | udp | hist length",
    "rx | bpf \"udp port 53\" | ip | udp | count",
    "rx | sample 10 | ip | udp | count",
    "rx | ip | udp | match \"ZZZZ\" at=0 | count",
    // Little or none of the flood continues in the process.
    "rx | udp | dport |9 dns | count",
    "rx | sample 100 | ip | udp | regex \"Z+Y\" | count",
    "rx | ip | udp | dport |9 regex \"Z+Y\" | count",
    "rx | bpf \"tcp\" | ip | regex \"Z+Y\" | count",
    // Most or all frames of the flood continue in the process.
    "rx | ip | udp | match \"absent\" | count",
    "rx | ip | udp | regex \"Z+Y\" | count",
    "rx | udp | dport |53 dns | count",
    "rx | eth | ip | regex \"Z+Y\" | count",
    "rx | ip | udp | dport |4053 match \"Y\" | count",
    // The twins of these filters cost more than the filters. With `burst`, `ratelimit` passes all
    // frames in any space, even in a thread, in which all frames of a batch arrive at the same
    // time.
    "rx | ratelimit 1000 | ip | udp | count",
    "rx | ip | ratelimit 2000000 burst=100000 | regex \"Z+Y\" | count",
    "rx | udp | ratelimit 2000000 burst=100000 | match \"Y\" | count",
    "rx | ip | udp | ratelimit 2000000 burst=100000 | match \"Y\" | count",
    "rx | ratelimit 2000000 burst=100000 | udp | match \"Y\" | count",
    "rx | ratelimit 3000000 burst=100000 | ratelimit 2000000 burst=100000 | match \"Y\" | count",
    // These requests collect statistics of all frames, and then search their bytes. The twin of a
    // statistics filter costs several times as much as the filter, and drops no frame.
    "rx | hist length | ipproto |all hist | sport |all hist | dport | hist | match \"Y\" | count",
    "rx | sport |all hist | dport |all hist | count | regex \"Z+Y\" | count",
    "rx | hist length | count | ratelimit 2000000 burst=100000 | count | match \"Y\" | count",
    "rx | ip | hist length | udp | hist | ratelimit 2000000 burst=100000 | regex \"Z+Y\" | count",
    "rx | eth | hist | ip | hist length | count | match \"Y\" | count",
];

/// A placement of a request: its plan, and the space of each node.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) plan: Plan,
    pub(super) spaces: Vec<String>,
}

impl Placement {
    /// Plans a request on the given machine. The request may pin its nodes to spaces.
    pub(super) fn plan_pinned(text: &str, machine: &Machine) -> Result<Self, String> {
        let (graph, mistakes) = pipeline::read_request(text, &MachineRegistry::Local);
        if mistakes.iter().any(|mistake| mistake.is_error()) {
            return Err(pipeline::render(text, &mistakes, false));
        }
        let plan = plan(graph, &MachineRegistry::Local, machine).map_err(|why| why.to_string())?;
        Ok(Self::from_plan(plan, split_nodes(text).len()))
    }

    /// Returns the placement of the first `count` nodes of a plan, which are the nodes in the
    /// request's text.
    pub(super) fn from_plan(plan: Plan, count: usize) -> Self {
        let placed = plan.placements.iter().take(count);
        let spaces = placed.map(|placed| plan.spaces[placed.space].name.clone()).collect();
        Self { plan, spaces }
    }

    /// Formats the placement as spaces, each with the number of consecutive nodes in it: `kernel 2
    /// thread0 3`.
    pub(super) fn summary(&self) -> String {
        let runs = self.spaces.chunk_by(|one, other| one == other);
        runs.map(|run| format!("{} {}", run[0], run.len())).collect::<Vec<_>>().join(" ")
    }
}

/// Returns all placements of a request that the planner accepts. In each placement, the first
/// filters, possibly none, are in the kernel, and the others are in one or two threads.
pub(super) fn plan_placements(line: &str, machine: &Machine) -> Vec<Placement> {
    let nodes = split_nodes(line);
    let count = nodes.len();
    let mut found: Vec<Placement> = Vec::new();
    for kernel in 0..=count {
        for first in kernel..=count {
            // A placement in one thread uses `thread0`.
            if first == kernel && first < count {
                continue;
            }
            let space = |node: usize| match node {
                node if node < kernel => "kernel",
                node if node < first => "thread0",
                _ => "thread1",
            };
            let spaces: Vec<&str> = (0..count).map(space).collect();
            let Ok(new) = Placement::plan_pinned(&pin_nodes(&nodes, &spaces), machine) else {
                continue;
            };
            if found.iter().all(|known| known.spaces != new.spaces) {
                found.push(new);
            }
        }
    }
    found
}

/// Returns the texts of the nodes of a request without branches. Each text includes the class of
/// the arc to the node.
fn split_nodes(line: &str) -> Vec<&str> {
    line.split('|').map(str::trim_end).collect()
}

fn pin_nodes(nodes: &[&str], spaces: &[&str]) -> String {
    let pinned: Vec<String> =
        nodes.iter().zip(spaces).map(|(node, space)| format!("{node} @{space}")).collect();
    pinned.join(" |")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_at_least_two_placements() {
        let machine = Machine::example_with_kernel();
        for line in REQUESTS {
            assert!(split_nodes(line).len() > 3, "{line}: three filters behind the source");
            let line = line.replacen("rx", "rx lo", 1);
            let all = plan_placements(&line, &machine);
            let inside = |all: &[Placement]| {
                all.iter().filter(|placed| placed.spaces.contains(&"kernel".to_owned())).count()
            };
            assert!(inside(&all) > 1 && all.len() > inside(&all), "{line}: {all:?}");
            let chosen = Placement::plan_pinned(&line, &machine).unwrap().spaces;
            assert!(all.iter().any(|placement| placement.spaces == chosen), "{line}: {chosen:?}");
        }
    }

    #[test]
    fn pins_follow_their_nodes() {
        let nodes = split_nodes("rx | dport |53 count");
        let text = pin_nodes(&nodes, &["kernel", "thread0", "thread0"]);
        assert_eq!(text, "rx @kernel | dport @thread0 |53 count @thread0");
    }
}
