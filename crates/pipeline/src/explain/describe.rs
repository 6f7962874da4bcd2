//! Descriptions of single items of a plan: rings, replicas, programs, pipes, policies.
//!
//! A request may contain any text, so each hidden character is always replaced by a placeholder.

use super::table::TEXT_COLUMNS_MAX;
use crate::format::{format_count, format_nanoseconds};
use crate::names::quoted_if_needed;
use crate::plan::{
    DelayCause, LatencyPlan, Machine, Plan, Policy, Program, ReplicaChain, RingPlan,
    ThreadPlacement,
};
use crate::share::RingSharing;
use filter::sharing::ShardKey;
use filter::{FilterKind, ReadDepth, TrafficDirection};
use std::fmt::Write as _;

/// Describes a ring between threads: its sizes, its notification thresholds, and their reasons.
pub(super) fn describe_ring(ring: &RingPlan) -> String {
    let RingPlan { stride, signal_ns, .. } = ring;
    let range = |least: usize, most: usize| match least < most {
        true => format!("{least} to {most}"),
        false => most.to_string(),
    };
    let entries = range(ring.entries_min, ring.entries);
    let signal_blocks = range(ring.signal_blocks, ring.signal_blocks_max);
    let because = ring.reasons_text();
    format!(
        "ring of {entries} entries of {stride} bytes, signal after {signal_blocks} blocks or {} \
         ({because})",
        format_nanoseconds(*signal_ns)
    )
}

/// Describes the processors on which the threads of a plan will run. Returns `None` if there is
/// only one thread.
pub(super) fn describe_threads(plan: &Plan, machine: &Machine) -> Option<String> {
    let threads = plan.thread_count();
    if threads < 2 {
        return None;
    }
    Some(match machine.path_processors.place_threads(threads) {
        ThreadPlacement::SharedCache(near) => format!(
            "{threads}, on processors {}, which share the last cache with processor {}, where the \
             request starts; threads added later: anywhere",
            format_ranges(&near),
            machine.path_processors.start
        ),
        ThreadPlacement::Anywhere(why) => {
            format!(
                "{threads}, on any of processors {}: {why}",
                format_ranges(&machine.path_processors.allowed)
            )
        }
    })
}

/// Formats ascending numbers as ranges: `0-2, 5`.
fn format_ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => ranges.push((*number, *number)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Describes a latency budget and the share of each cause of delay.
pub(super) fn describe_latency(latency: &LatencyPlan, plan: &Plan, names: &[String]) -> String {
    let parts: Vec<String> = latency
        .delays
        .iter()
        .map(|delays| match delays {
            DelayCause::Source(id, ns) => {
                format!("ring of the kernel of {} {}", names[id.0], format_nanoseconds(*ns))
            }
            DelayCause::Edge(edge, ns) => {
                let edge = &plan.graph.edges[*edge];
                format!("{} → {} {}", names[edge.from.0], names[edge.to.0], format_nanoseconds(*ns))
            }
            DelayCause::Replicas(replicas, ns) => {
                let replicas = &plan.replicas[*replicas];
                let filters = replicas.nodes.iter().map(|id| names[id.0].as_str());
                let filters: Vec<&str> = filters.collect();
                format!(
                    "to and from replicas of {} {}",
                    filters.join(", "),
                    format_nanoseconds(*ns)
                )
            }
        })
        .collect();
    let asked = format_nanoseconds(latency.bound_ns);
    match parts.is_empty() {
        true => format!("{asked}: no crossing delays blocks"),
        false => format!("{asked} at most: {}", parts.join(", ")),
    }
}

/// Returns the names of the spaces in which the replicas run.
pub(super) fn replica_space_names(plan: &Plan, replicas: &ReplicaChain) -> Vec<String> {
    replicas.spaces.iter().map(|space| plan.spaces[*space].name.clone()).collect()
}

/// Describes an edge that enters or leaves a chain of filters with replicas. `border` contains this
/// chain, and true if the edge enters it, as [`Plan::replicas_at_border`] returns them. The text is
/// empty for any other edge (`None`).
pub(super) fn describe_replica_edge(border: Option<(&ReplicaChain, bool)>) -> String {
    match border {
        Some((replicas, true)) => format!("distributed among {} replicas", replicas.spaces.len()),
        Some((replicas, false)) => {
            format!("call from the merge of {} replicas", replicas.spaces.len())
        }
        None => String::new(),
    }
}

/// Describes replicas, with the reason for them.
pub(super) fn describe_replicas(replicas: &ReplicaChain, plan: &Plan, names: &[String]) -> String {
    let filters: Vec<&str> = replicas.nodes.iter().map(|id| names[id.0].as_str()).collect();
    let first = replica_space_names(plan, replicas).into_iter().next().unwrap_or_default();
    let stays = match replicas.shard_key {
        None => "a batch goes to the least loaded replica",
        Some(ShardKey::Flow) => "a connection stays with its replica, both ways",
        Some(ShardKey::Addresses) => "packets between two addresses stay with one replica",
        Some(ShardKey::Session) => "a session stays with its replica",
    };
    format!(
        "{}: {}; distributed in {first}: {stays}; merged in {} in input order; {} to and from each",
        filters.join(" → "),
        replicas.because,
        plan.spaces[replicas.join].name,
        describe_ring(&replicas.ring),
    )
}

/// Describes a ring from the kernel: its size, its readers, its notification thresholds, and their
/// reasons.
pub(super) fn describe_kernel_ring(ring: &RingPlan, plan: &Plan, edge: usize) -> String {
    let RingPlan { entries, signal_blocks, signal_ns, .. } = ring;
    let because = ring.reasons_text();
    let program = plan.programs.iter().find(|program| program.has_exit(edge));
    if program.is_some_and(|program| program.attach.redirects) {
        return "the rings of AF_XDP sockets, one for each queue: frames stay where the driver put \
                them"
            .to_owned();
    }
    let apart = program.map_or(0, |program| program.ring.interval_min_ns);
    let frames = match RingSharing::from_graph(&plan.graph) {
        RingSharing::User => "the frames".to_owned(),
        RingSharing::Group(name) => format!(
            "frames that all members of group {name} with `--share` can \
                                       read"
        ),
        RingSharing::World => "frames that all users with `--share` can read".to_owned(),
    };
    format!(
        "ring of at least {entries} pointers per processor, beside {frames}; doorbell after \
         {signal_blocks} blocks, {} apart, or {} ({because})",
        format_nanoseconds(apart),
        format_nanoseconds(*signal_ns)
    )
}

/// Describes an eBPF program of a plan: its attachment, its size and its output.
pub(super) fn describe_program(program: &Program, plan: &Plan) -> String {
    let attach = &program.attach;
    let way = match (attach.own_sockets, attach.side) {
        (true, _) => "packets exchanged by the user's own sockets",
        (false, TrafficDirection::Received) => "frames received on",
        (false, TrafficDirection::Sent) => "frames sent on",
    };
    let what = match (attach.redirects, attach.only_matching_flows) {
        (true, _) => "takes",
        (false, true) => "takes some of",
        (false, false) => "observes",
    };
    let interface = match attach.own_sockets {
        true => String::new(),
        false => format!(" {}", quoted_if_needed(attach.interface.as_bytes())),
    };
    let netns = attach.netns.as_ref().map_or_else(String::new, |name| format!(" of {name}"));
    let steps = format_count(program.steps.len() as u64, "filter");
    let mut readers: Vec<&str> = Vec::new();
    for source in &program.sources {
        let reader = plan.spaces[plan.placements[source.0].output_space].name.as_str();
        readers.extend((!readers.contains(&reader)).then_some(reader));
    }
    let outlets = program.steps.iter().flat_map(|step| step.nodes.first()).filter_map(|node| {
        let used = plan.graph.node(*node).filter()?;
        Some(quoted_if_needed(used.outlet()?.interface.as_bytes()))
    });
    let outlets: Vec<String> = outlets.collect();
    let frames = if attach.redirects { "frames leave" } else { "copies leave" };
    let sent = match outlets.as_slice() {
        [] => String::new(),
        all => format!("; {frames} by {}", all.join(" and ")),
    };
    let how = if attach.redirects { "redirected to a socket" } else { "copied once" };
    let replicas = match program.exits.len() {
        0 => "nothing leaves it".to_owned(),
        1 => format!("its output is {how}, over one edge"),
        n => format!("its output is {how}, over {n} edges"),
    };
    let why = match attach.only_matching_flows {
        true => {
            "; it is attached at traffic control, where the frames that it leaves to the host \
             cost nothing more, and drops those that it took: at XDP every frame would have to be \
             converted to one of the host's, and large ones split; frames that it cannot decide \
             stay with the host"
        }
        false => "",
    };
    let written = sink_writing_in_place(program, plan).map_or_else(String::new, |sink| {
        format!("; {sink} writes frames from there, with one call for a batch")
    });
    let readable = if attach.redirects {
        ""
    } else {
        "; a switch in memory enables readers of a filter's output"
    };
    format!(
        "program in the kernel: {what} the {way}{interface}{netns}, {steps}{sent}; \
         {replicas}{written}; blocks that a twin is unsure of are decided in {}{readable}{why}",
        readers.join(", ")
    )
}

/// Returns the name of a sink that writes a program's frames directly from the memory into which
/// the program stores them. Returns `None` if there is no such sink, if the frames are redirected
/// to a socket, or if they are copied first because another node of the thread may read their
/// bytes.
fn sink_writing_in_place(program: &Program, plan: &Plan) -> Option<String> {
    let mut written = None;
    for (edge, leaves) in plan.graph.edges.iter().enumerate() {
        let sink = plan.graph.node(leaves.to);
        if program.has_exit(edge) {
            let used = sink.filter().filter(|_| sink.kind() == Some(FilterKind::Sink))?;
            let appends =
                used.endpoint.only_appends.is_some_and(|appends| appends(&used.arguments));
            if appends {
                written.get_or_insert_with(|| format!("`{}`", sink.name()));
            } else if used.effect().reads != ReadDepth::Nothing {
                return None;
            }
        }
    }
    written.filter(|_| !program.attach.redirects)
}

/// Describes a filter that sources evaluate in the kernel, before frames reach the process.
pub(super) fn describe_kernel_evaluation(
    filter: &str,
    sources: &[&str],
    except: Option<&str>,
) -> String {
    let filters = if sources.len() == 1 { "filter" } else { "filters" };
    let mut text = format!(
        "{filter}: runs in the kernel too, as the socket {filters} of {}: frames that fail it \
         never enter the ring",
        sources.join(" and ")
    );
    if let Some(except) = except {
        let _ = write!(text, "; {except}");
    }
    text
}

/// Describes a source that evaluates no filter in the kernel, with the reason.
pub(super) fn describe_no_kernel_evaluation(source: &str, why: &str) -> String {
    format!("{source}: receives every frame from the kernel: {why}")
}

/// Describes the pipes of an edge to or from a process. `out` is true if the edge leaves a process,
/// and `into` if it enters one. If both are true, `thread` names the thread that copies from one
/// pipe to the other.
pub(super) fn describe_pipe(out: bool, into: bool, thread: &str) -> String {
    match (out, into) {
        (true, true) => format!("two pipes, with {thread} between them"),
        (true, false) => {
            "pipe: bytes in blocks of up to 64 KB, as soon as they are written".to_owned()
        }
        (false, _) => "pipe: the bytes in view, one block after the other".to_owned(),
    }
}

/// Describes the rings of an edge to or from a sandbox. `out` is true if the edge leaves a sandbox,
/// and `into` if it enters one. `both` is true if the edge connects two processes, between which a
/// thread copies the blocks.
pub(super) fn describe_sandbox_ring(out: bool, into: bool, both: bool) -> String {
    let what = match (out, into) {
        (true, false) => "ring that its process writes: every block is copied out and checked",
        (false, true) => "ring that its process can only read: blocks are copied in, with frames",
        _ => "two rings, untrusted on both sides: every block is copied out, checked and copied in",
    };
    if both { format!("{what}, through a thread") } else { what.to_owned() }
}

pub(super) const fn describe_policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Cost => "cost",
        Policy::Deepest => "deepest",
    }
}

/// Writes a paragraph with a hanging indent.
pub(super) fn write_wrapped(out: &mut String, text: &str, columns: usize) {
    for (number, line) in
        super::table::wrap_text(text, columns.min(TEXT_COLUMNS_MAX) - 3).iter().enumerate()
    {
        let indent = if number == 0 { " " } else { "   " };
        let _ = writeln!(out, "{indent}{line}");
    }
}
