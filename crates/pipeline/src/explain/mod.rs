//! The output of `explain` and `filters`: plans and descriptions as text and drawings.
//!
//! A plan, or the error that no plan exists, is formatted as text of at most [`TEXT_COLUMNS_MAX`]
//! columns, or as a Graphviz graph. This module makes no decisions: the plan contains every
//! candidate, the choice, its reason and its cost. [SL §7.1]

mod analysis;
mod describe;
mod dot;
mod draw;
mod facts;
mod figures;
mod help;
mod lanes;
mod svg;
pub mod table;

pub use analysis::{
    EdgeMeasurement, LEARNED_BLOCKS_MIN, Measurements, NodeMeasurement, ProgramMeasurement,
    format_analysis, learn_costs,
};
pub use dot::format_dot;
pub use draw::format_drawing;
pub use facts::{ArgumentFacts, NodeFacts, arc_label, node_facts};
pub use figures::DrawnFigures;
pub use help::{COMMON_PARAMETERS_TITLE, HelpPage, HelpSection, OPTIONS_TITLE};
pub use help::{
    common_parameters, format_hanging_indent, format_help, format_options, option_facts,
    option_words,
};
pub use lanes::{DrawnEdge, DrawnGraph, DrawnNode, Symbol};
pub use svg::format_svg;
pub use table::TEXT_COLUMNS_MAX;

pub use crate::format::{
    format_bytes, format_nanoseconds, format_rounded_duration, format_short_duration, parse_size,
    parse_time,
};
pub use crate::names::{cost_key, is_path, node_text, unique_names};

use crate::format::{format_count, format_one_decimal};
use crate::graph::{Graph, NodeId};
use crate::plan::{
    Candidate, Kernel, Machine, MovePeriod, PlacementChoice, Plan, PlannedEdge, Policy,
    RuntimeChanges, Unplaceable, signal,
};
use filter::STATE_MODE_PARAMETER;
use std::fmt::Write as _;
use table::Table;

/// Formats the entire explanation: a drawing and a table for each connected component, then the
/// edges, the choice and the machine.
#[must_use]
pub fn format_plan(plan: &Plan, machine: &Machine) -> String {
    let names = unique_names(&plan.graph);
    let components = plan.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
    let mut out = String::new();
    for component in 0..components {
        if components > 1 {
            let _ = writeln!(out, " path {} of {components}\n", component + 1);
        }
        let order = draw::drawing_order(plan, component);
        out.push_str(&draw::draw_nodes(plan, &order, (&names, None)));
        out.push('\n');
        out.push_str(&placement_table(plan, &order, &names));
        out.push('\n');
    }
    write_remarks(&mut out, plan, &names);
    write_programs(&mut out, plan, &names);
    write_edges(&mut out, plan, &names);
    write_replicas(&mut out, plan, &names);
    out.push('\n');
    write_fact(&mut out, "batch", &plan.batch.reason_text());
    if let Some(latency) = &plan.latency {
        write_fact(&mut out, "latency", &describe::describe_latency(latency, plan, &names));
    }
    for node in signal::signal_nodes_without_ring(plan) {
        let called = format!("no ring between spaces leads to `{node}`: nothing has to wake it");
        write_fact(&mut out, "signal", &called);
    }
    if let Some(threads) = describe::describe_threads(plan, machine) {
        write_fact(&mut out, "threads", &threads);
    }
    write_placement_choice(&mut out, plan);
    write_runtime_changes(&mut out, plan, machine, &names);
    write_machine_facts(&mut out, machine);
    out
}

/// Writes notes on the nodes of a plan: the remarks of filters (for example, of the expression
/// compiler), the names of published states, and the filter that each source evaluates in the
/// kernel. For a source that evaluates no filter, writes the reason.
fn write_remarks(out: &mut String, plan: &Plan, names: &[String]) {
    for (name, (_, node)) in names.iter().zip(plan.graph.nodes_with_ids()) {
        let Some(used) = node.filter() else { continue };
        if let Some(remark) =
            used.description.analysis.remark.and_then(|remark| remark(&used.arguments))
        {
            describe::write_wrapped(out, &format!("{name}: {remark}"), TEXT_COLUMNS_MAX);
        }
        if let Some(published) = used.published_state_name() {
            let mode = used.arguments.text(STATE_MODE_PARAMETER.name).unwrap_or("600");
            let _ = writeln!(
                out,
                " {name}: its state is published as `{published}` (mode {mode}): `streamline state \
                 {published}`"
            );
        }
    }
    for (name, (id, _)) in names.iter().zip(plan.graph.nodes_with_ids()) {
        let by: Vec<&str> =
            plan.sources_evaluating(id).map(|source| names[source.0].as_str()).collect();
        if !by.is_empty() {
            let except = plan.pushdowns.iter().filter(|pushed| pushed.filter == Ok(id));
            let except = except.filter_map(|pushed| pushed.except).next();
            describe::write_wrapped(
                out,
                &describe::describe_kernel_evaluation(name, &by, except),
                TEXT_COLUMNS_MAX,
            );
        }
        let why = plan.pushdowns.iter().filter(|pushed| pushed.source == id);
        if let Some(why) = why.filter_map(|pushed| pushed.filter.as_ref().err()).next() {
            describe::write_wrapped(
                out,
                &describe::describe_no_kernel_evaluation(name, why),
                TEXT_COLUMNS_MAX,
            );
        }
    }
}

/// Writes a paragraph for each kernel program. It names the sources and filters that the program
/// runs once for several nodes of the graph.
fn write_programs(out: &mut String, plan: &Plan, names: &[String]) {
    let listed = |nodes: &[NodeId]| {
        nodes.iter().map(|id| names[id.0].as_str()).collect::<Vec<_>>().join(" and ")
    };
    for program in &plan.programs {
        let mut text = describe::describe_program(program, plan);
        let sources = (program.sources.len() > 1).then_some(program.sources.as_slice());
        let shared: Vec<String> =
            sources.into_iter().chain(program.nodes_of_shared_steps()).map(listed).collect();
        if !shared.is_empty() {
            let _ = write!(text, "; shared: {}", shared.join(", "));
        }
        describe::write_wrapped(out, &text, TEXT_COLUMNS_MAX);
    }
}

/// Writes the replicas, and the reasons why other expensive filters have none.
fn write_replicas(out: &mut String, plan: &Plan, names: &[String]) {
    for replicas in &plan.replicas {
        describe::write_wrapped(
            out,
            &describe::describe_replicas(replicas, plan, names),
            TEXT_COLUMNS_MAX,
        );
    }
    for alone in &plan.replica_refusals {
        let text = format!("{}: one copy: {}", names[alone.node.0], alone.why);
        describe::write_wrapped(out, &text, TEXT_COLUMNS_MAX);
    }
}

/// Formats a table with a single row: a node that no space can run, with each space's reason.
#[must_use]
pub fn format_unplaceable(graph: &Graph, refused: &Unplaceable) -> String {
    let all = unique_names(graph);
    let mut table = Table::new(&PLACEMENT_TITLES);
    let name = all.get(refused.node.0).unwrap_or(&refused.name).clone();
    let why: Vec<String> =
        refused.refusals.iter().map(|(space, why)| format!("{space}: {why}")).collect();
    let because = "no space can run it".to_owned();
    table.add_row([name, "–".to_owned(), "–".to_owned(), because, why.join("; ")]);
    table.format_within(TEXT_COLUMNS_MAX)
}

const PLACEMENT_TITLES: [&str; 5] = ["filter", "runs in", ">ns", "because", "refused elsewhere"];

/// Formats the table of placements: each node's space, and the reasons for it and against others.
fn placement_table(plan: &Plan, order: &[NodeId], names: &[String]) -> String {
    let mut table = Table::new(&PLACEMENT_TITLES);
    for id in order {
        table.add_row(placement_row(plan, *id, names, ""));
        for operand in plan.graph.operands(*id) {
            table.add_row(placement_row(plan, operand, names, "· "));
        }
    }
    table.format_within(TEXT_COLUMNS_MAX)
}

fn placement_row(plan: &Plan, id: NodeId, names: &[String], indent: &str) -> [String; 5] {
    let placement = &plan.placements[id.0];
    let here = &plan.space_of(id).name;
    let own = placement.candidates.iter().find(|candidate| candidate.space == *here);
    let cost = match own.map(|candidate| &candidate.verdict) {
        Some(Ok(ns)) => format_one_decimal(*ns),
        _ => "–".to_owned(),
    };
    let name = format!("{indent}{}", names[id.0]);
    let runs_in = match plan.replicas_of(id) {
        Some(replicas) => describe::replica_space_names(plan, replicas).join(", "),
        None => here.clone(),
    };
    let mut because = placement.because.clone();
    if plan.sources_evaluating(id).next().is_some() {
        because.push_str("; in the kernel too");
    }
    [name, runs_in, cost, because, describe_alternatives(&placement.candidates, here)]
}

/// Formats the reasons why a node does not run in other spaces. `candidates` contains the planner's
/// verdict on each space, and `here` is the node's own space, which is omitted. Spaces with the
/// same verdict are listed together.
fn describe_alternatives(candidates: &[Candidate], here: &str) -> String {
    let mut verdicts: Vec<(String, Vec<&str>)> = Vec::new();
    for candidate in candidates.iter().filter(|candidate| candidate.space != here) {
        let verdict = match &candidate.verdict {
            Ok(ns) => match &candidate.disadvantage {
                Some(lost) => lost.clone(),
                None => format!("{} ns", format_one_decimal(*ns)),
            },
            Err(why) => why.clone(),
        };
        match verdicts.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, spaces)) => spaces.push(&candidate.space),
            None => verdicts.push((verdict, vec![&candidate.space])),
        }
    }
    let texts: Vec<String> = verdicts
        .iter()
        .map(|(verdict, spaces)| format!("{}: {verdict}", spaces.join(", ")))
        .collect();
    if texts.is_empty() { "–".to_owned() } else { texts.join("; ") }
}

/// Writes the kind of each edge. A chain of calls is written on one line.
fn write_edges(out: &mut String, plan: &Plan, names: &[String]) {
    let edges = &plan.graph.edges;
    let mut texts = vec![false; edges.len()];
    for first in 0..edges.len() {
        if texts[first] {
            continue;
        }
        texts[first] = true;
        let (from, mut to) = (edges[first].from, edges[first].to);
        let mut way = format!("{} → {}", names[from.0], names[to.0]);
        let what = match plan.edges[first] {
            PlannedEdge::Kernel(ref ring) => describe::describe_kernel_ring(ring, plan, first),
            PlannedEdge::Ring(ref ring) => {
                let handed = plan.programs.iter().any(|program| program.has_exit(first));
                let reader = &plan.spaces[plan.placements[from.0].output_space].name;
                let by = if handed { format!("through {reader}, ") } else { String::new() };
                by + &describe::describe_ring(ring)
            }
            PlannedEdge::Pipe => {
                let process = |id| plan.graph.node(id).has_own_process();
                let apart = |id| plan.graph.node(id).is_untrusted();
                let thread = &plan.spaces[plan.placements[to.0].input_space].name;
                match apart(from) || apart(to) {
                    true => describe::describe_sandbox_ring(
                        apart(from),
                        apart(to),
                        process(from) && process(to),
                    ),
                    false => describe::describe_pipe(process(from), process(to), thread),
                }
            }
            PlannedEdge::Back => "back edge: a bounded work list, drops when it is full".to_owned(),
            PlannedEdge::Call if plan.replicas_at_border(&edges[first]).is_some() => {
                describe::describe_replica_edge(plan.replicas_at_border(&edges[first]))
            }
            PlannedEdge::Call => {
                let mut calls = 1;
                while let Some(next) = (0..edges.len()).find(|next| {
                    !texts[*next]
                        && edges[*next].from == to
                        && plan.edges[*next] == PlannedEdge::Call
                        && plan.replicas_at_border(&edges[*next]).is_none()
                }) {
                    texts[next] = true;
                    to = edges[next].to;
                    calls += 1;
                    let _ = write!(way, " → {}", names[to.0]);
                }
                if calls == 1 { "call, no ring" } else { "calls, no ring" }.to_owned()
            }
        };
        describe::write_wrapped(out, &format!("{way}: {what}"), TEXT_COLUMNS_MAX);
    }
}

fn write_placement_choice(out: &mut String, plan: &Plan) {
    let PlacementChoice { policy, cost_ns, examined, is_exact: proved } = &plan.choice;
    let examined = format_count(*examined, "placement");
    let how = match (policy, proved) {
        (Policy::Deepest, _) => "every filter as deep as it can run".to_owned(),
        (Policy::Cost, true) => format!("minimal, proved; examined {examined}"),
        (Policy::Cost, false) => format!("the best found; examined only {examined}"),
    };
    let everywhere = plan.flows.1.iter().all(|flow| *flow >= 1.0);
    let block = match everywhere {
        true => "a block that passes every node",
        false => "a block of a source, by measured flows",
    };
    let mut cost = format!("{} ns for {block}", format_one_decimal(*cost_ns));
    let filters = total_filter_cost(plan);
    let rest = cost_ns - filters;
    if rest >= 0.05 {
        let _ = write!(
            cost,
            ": {} ns in filters, {} ns between spaces",
            format_one_decimal(filters),
            format_one_decimal(rest)
        );
    }
    write_fact(out, "cost", &cost);
    write_fact(out, "policy", &format!("{}: {how}", describe::describe_policy(*policy)));
}

/// Returns the total cost of the filters, without edges, on the way of a source's block, in ns.
fn total_filter_cost(plan: &Plan) -> f64 {
    let own = plan.placements.iter().zip(&plan.flows.0).filter_map(|(placement, flow)| {
        let chosen = |candidate: &&Candidate| candidate.disadvantage.is_none();
        let chosen = placement.candidates.iter().filter(chosen);
        let cost = chosen.filter_map(|candidate| candidate.verdict.as_ref().ok()).next()?;
        Some(cost * flow)
    });
    own.sum()
}

/// Writes the changes that the path may make to its own plan at run time.
fn write_runtime_changes(out: &mut String, plan: &Plan, machine: &Machine, names: &[String]) {
    let RuntimeChanges { replicas: copies, stages, moves, sessions } = plan.runtime_changes();
    let copies = copies.then_some(match machine.processors {
        0 | 1 => "no replicas: there is one processor",
        _ => "costly filters without state gain and lose replicas, as measured",
    });
    let kernel = |known: &Candidate| known.space == "kernel" && known.verdict.is_ok();
    let inside = plan.placements.iter().any(|placement| placement.candidates.iter().any(kernel));
    let moves = match moves {
        MovePeriod::Never => None,
        MovePeriod::Always if inside => {
            Some("filters move between kernel and threads, as measured".to_owned())
        }
        MovePeriod::Always => {
            Some("nothing moves: no filter of this request can run in the kernel".to_owned())
        }
        MovePeriod::Start => {
            let movable = plan.movable_filters().into_iter().map(|id| format!("`{}`", names[id.0]));
            let movable = movable.collect::<Vec<_>>().join(", ");
            Some(format!(
                "in the first 2 s of traffic the shares of the arcs are counted, and {movable} \
                 may move between kernel and threads if that saves a tenth (`--no-adapt`: never)"
            ))
        }
    };
    let sinks = plan.sinks_in_reader_threads().into_iter().map(|id| format!("`{}`", names[id.0]));
    let sinks = sinks.collect::<Vec<_>>().join(", ");
    let relief = (!sinks.is_empty()).then(|| {
        format!("{sinks}: a thread of its own once a write of 20 ms holds up half a ring of frames")
    });
    let copies = copies.map(str::to_owned);
    let stages = (stages && machine.processors > 1).then(|| {
        "a stage gets a thread of its own if one thread is busy, and keeps it if throughput \
         increases (`--parallel=no`: never)"
            .to_owned()
    });
    let sessions = sessions.then(|| {
        "sessions move, with their state, from a replica with more work than the others to the one \
         with the least (`--no-adapt`: never)"
            .to_owned()
    });
    let spread = copies.into_iter().chain(stages).chain(sessions);
    let both: Vec<String> = spread.chain(moves).chain(relief).collect();
    if !both.is_empty() {
        write_fact(out, "at run time", &both.join("; "));
    }
}

fn write_machine_facts(out: &mut String, machine: &Machine) {
    let Machine { processors, l1d, l2, kernel, costs, .. } = machine;
    let processors = format_count(*processors as u64, "processor");
    let caches =
        format!("caches of {} and {}", format_bytes(*l1d as u64), format_bytes(*l2 as u64));
    write_fact(out, "machine", &format!("{processors}, {caches}"));
    let (release, what) = match kernel {
        Kernel::Open { release, .. } => (release, "takes programs".to_owned()),
        Kernel::Closed { release, why } => (release, format!("takes no programs: {why}")),
    };
    write_fact(out, "kernel", &format!("{release} {what}"));
    write_fact(out, "calibration", &format!("{}, version {}", costs.origin, costs.version));
}

/// Writes a paragraph with the label `what`, indented to a common column.
fn write_fact(out: &mut String, what: &str, text: &str) {
    const FACT_INDENT: usize = 14;
    let mut what = format!(" {what}");
    for line in table::wrap_text(text, TEXT_COLUMNS_MAX - FACT_INDENT) {
        let _ = writeln!(out, "{what:<FACT_INDENT$}{line}");
        what.clear();
    }
}
