//! `streamline explain`: prints the placement of each filter with the reasons. With `--analyze`,
//! also prints measurements.
//!
//! The functions in this module define the `--json` format. `version` changes when a field is
//! removed or gets a different meaning.

mod endpoints;

use crate::arguments::RunArguments;
use crate::arguments::explain::ExplainArguments;
use crate::failure::report_open_error;
use crate::run::{self, StartNotifier};
use crate::shell::exec_description;
use crate::status::Status;
use crate::{drawings, request, request_words, shared_prefix, terminal};
use endpoints::{
    format_retained_frames, format_ring_sizes, reader_rings_json, retaining_sinks_json,
    writer_rings_json,
};
use engine::doctor::neighbors::{Neighbors, device_rule_count};
use engine::doctor::{Capabilities, Refusal};
use pipeline::explain;
use pipeline::plan::{
    Candidate, Kernel, Machine, Plan, PlannedEdge, Policy, SpaceKind, ThreadPlacement,
};
use streamline::neighbors::NeighborFindings;
use streamline::privilege::Denial;
use streamline::report::{JsonObject, json_line, refusals_json, to_object};
use streamline::{PreparedRequest, analysis};

/// Version of the output format of `explain --json`.
const JSON_VERSION: u32 = 1;

/// Explains the request in the arguments or, for `exec CMD…`, the parts that `exec` would take
/// over.
pub(crate) fn explain(arguments: &ExplainArguments) -> Status {
    if let Some(words) = request_words::exec_command_words(&arguments.line.words) {
        if arguments.json || arguments.analyze || !arguments.drawings.is_empty() {
            terminal::print_error(
                "a program is explained as text, without options; quote `exec` and its command to \
                 explain a request",
            );
            return Status::Usage;
        }
        return exec_description::describe_exec(words);
    }
    let explained = request::request_text(&arguments.line).and_then(|text| {
        let run = RunArguments {
            time: arguments.time,
            count: arguments.count,
            embedded: arguments.embedded,
            stats: arguments.analyze,
            analyze: arguments.analyze,
            drawings: arguments.drawings.clone(),
            ..RunArguments::default()
        };
        let options = run::options_from_arguments(&run);
        let mut prepared = PreparedRequest::read(&text, &options).map_err(report_open_error)?;
        if let Some(first) = prepared.workers().first() {
            let of = prepared.workers().len();
            terminal::print_note(&format!(
                "{of} processes run the request, each on its own processor and for its share of \
                 the sessions; this is the plan of the first: {first}"
            ));
            prepared = prepared.reduce_to_first_worker();
        }
        let text = prepared.text().to_owned();
        if arguments.analyze {
            drawings::refuse_mixed_stdout(&arguments.drawings, prepared.plan())?;
            terminal::print_error_text(&format!(
                "{}\n",
                explain::format_plan(prepared.plan(), prepared.machine())
            ));
            print_plan_changes(&text, prepared.plan());
            return run::build_and_run_request(prepared, &options, &run, StartNotifier::FOREGROUND);
        }
        let prepared = prepared.replan_within_policy().map_err(report_open_error)?;
        let (plan, machine) = (prepared.plan(), prepared.machine());
        if !arguments.drawings.is_empty() {
            return Ok(drawings::draw(&arguments.drawings, plan, None));
        }
        if !arguments.json {
            print_plan_changes(&text, plan);
        }
        let printed = terminal::print_text(&match () {
            () if arguments.json => json_line(&to_json(&text, plan, machine)),
            () => {
                let shared = shared_prefix::format_prefixes(plan)
                    + &shared_prefix::format_similar_requests(&text);
                explain::format_plan(plan, machine)
                    + &shared
                    + &format_ring_sizes(plan)
                    + &format_retained_frames(plan)
                    + &devices_text(plan)
                    + &format_neighbors_section(plan)
            }
        });
        print_missing_privilege(&text, plan, machine);
        Ok(printed)
    });
    explained.unwrap_or_else(|status| status)
}

/// Finds the kernel programs and packet sockets of other applications on the interfaces that `rx`
/// and `tx` in the request use. Skips `rx` with `own`, which observes sockets and not interfaces.
fn find_neighbors(plan: &Plan) -> NeighborFindings {
    let mut places: Vec<(Option<&str>, Option<&str>)> = Vec::new();
    for (_, node) in plan.graph.nodes_with_ids() {
        let Some(used) = node.filter() else { continue };
        let live = ["rx", "tx"].contains(&used.description.name);
        let own = live && used.arguments.flag("own");
        let place = (used.arguments.text("netns"), used.arguments.text("interface"));
        if live && !own && !places.contains(&place) {
            places.push(place);
        }
    }
    let mut found = NeighborFindings::new(&Neighbors::default());
    for (netns, interface) in places {
        found.extend(NeighborFindings::new(&Neighbors::find(netns, interface)));
    }
    found
}

/// Returns the interfaces from which sources take frames, so that the host does not receive them.
/// Each interface has the number of receive rules that are installed in its device, or the reason
/// why the device cannot select frames by rules.
fn redirecting_devices(plan: &Plan) -> Vec<(String, Result<u32, String>)> {
    let takes = |node: &pipeline::graph::Node| {
        let used = node.filter().filter(|used| used.description.name == "rx")?;
        let takes = used.arguments.text("how") == Some("take");
        let interface = used.arguments.text("interface").filter(|_| takes)?;
        let rules = device_rule_count(used.arguments.text("netns"), interface);
        let why = |refusal: Refusal| {
            format!("its driver supports no receive rules ({}: {})", refusal.call, refusal.why)
        };
        Some((interface.to_owned(), rules.map_err(why)))
    };
    let mut all: Vec<_> = plan.graph.nodes_with_ids().filter_map(|(_, node)| takes(node)).collect();
    all.dedup();
    all
}

fn devices_json(plan: &Plan) -> Vec<JsonObject> {
    let device = |(interface, rules): (String, Result<u32, String>)| {
        to_object(&[
            ("interface", &interface),
            ("rules", &rules.as_ref().ok()),
            ("refused", &rules.as_ref().err()),
        ])
    };
    redirecting_devices(plan).into_iter().map(device).collect()
}

/// Explains, for each device from which a source redirects frames, why the device itself does not
/// select these frames. Returns an empty string if there is no such device.
fn devices_text(plan: &Plan) -> String {
    let line = |(interface, rules): (String, Result<u32, String>)| match rules {
        Ok(rules) => format!(
            " device       {interface}: its driver supports receive rules (`ethtool -n`; {rules} \
             installed), which this request does not use\n"
        ),
        Err(why) => format!(" device       {interface} cannot select frames itself: {why}\n"),
    };
    redirecting_devices(plan).into_iter().map(line).collect()
}

/// Formats the kernel programs and packet sockets of other applications on the interfaces. Returns
/// an empty string if there are none.
fn format_neighbors_section(plan: &Plan) -> String {
    let found = find_neighbors(plan);
    match found.is_empty() {
        true => String::new(),
        false => {
            format!(
                "\n other users of the interfaces\n{}",
                found.format_table(explain::TEXT_COLUMNS_MAX)
            )
        }
    }
}

/// Prints the privilege that is missing on this machine for the request, and the remedies. Without
/// the privilege, the request cannot start, or no part of it can run in the kernel.
fn print_missing_privilege(text: &str, plan: &Plan, machine: &Machine) {
    let live = |(id, node): (_, &pipeline::graph::Node)| {
        let name = node.filter()?.description.name;
        let is_live = ["rx", "tx", "redirect"].contains(&name);
        let placed = plan.space_of(id).kind;
        is_live.then_some(placed)
    };
    let ends: Vec<_> = plan.graph.nodes_with_ids().filter_map(live).collect();
    let in_process = ends.iter().any(|placed| *placed != SpaceKind::Kernel);
    if in_process && let Some(denial) = Denial::for_capability(Capabilities::NET_RAW) {
        terminal::print_note(&format!("this request would not start: {}", denial.sentence()));
        terminal::print_error_text(&denial.remedies(text));
    } else if let (false, Kernel::Closed { .. }) = (ends.is_empty(), &machine.kernel)
        && let Some(denial) = Denial::for_programs()
    {
        terminal::print_note(&format!(
            "nothing of this request runs in the kernel: {}",
            denial.sentence()
        ));
        terminal::print_error_text(&denial.remedies(text));
    }
}

/// Prints the differences between this plan and the plan of the request's last analyzed run
/// (`--analyze`).
fn print_plan_changes(text: &str, plan: &Plan) {
    for change in analysis::changes_since_last_analysis(text, plan) {
        terminal::print_note(&format!("since it was analyzed: {change}"));
    }
}

/// Returns the explanation of a plan as the JSON object of `explain --json`.
fn to_json(text: &str, plan: &Plan, machine: &Machine) -> JsonObject {
    let names = &explain::unique_names(&plan.graph);
    let spaces = plan.spaces.iter().map(|space| {
        let kind = match space.kind {
            SpaceKind::Kernel => "kernel",
            SpaceKind::Thread => "thread",
            SpaceKind::Process => "process",
        };
        // `path` is the index of the space's connected component in the graph, counted from 0.
        to_object(&[("name", &space.name), ("kind", &kind), ("path", &space.component)])
    });
    let policy = match plan.choice.policy {
        Policy::Cost => "cost",
        Policy::Deepest => "deepest",
    };
    to_object(&[
        ("version", &JSON_VERSION),
        // The identity of the plan, which also appears in the daemon's log.
        ("plan", &plan.id()),
        ("policy", &policy),
        // The rings from which other programs read, with sizes in bytes.
        ("reader_rings?", &reader_rings_json(plan)),
        // The sources to which other programs write. Each writer has a separate ring.
        ("writer_rings?", &writer_rings_json(plan)),
        // The sinks that retain past frames. Each entry has the memory for the frames in bytes, and
        // true if a low-priority thread compresses the frames.
        ("keeps?", &retaining_sinks_json(plan)),
        // The processors on which the path's threads start, or the reason why the choice is left to
        // the scheduler.
        ("threads", &threads_json(plan, machine)),
        // The estimated cost of a block that reaches every filter.
        ("cost_ns", &plan.choice.cost_ns),
        // True if the search was exhaustive, so that no cheaper placement exists.
        ("proved", &plan.choice.is_exact),
        // The number of placements that were evaluated.
        ("looked_at", &plan.choice.examined),
        ("machine", &machine_json(machine)),
        ("spaces", &spaces.collect::<Vec<_>>()),
        ("filters", &filters_json(plan, names)),
        ("edges", &edges_json(plan, names)),
        // Filters that the kernel refused when they were loaded. Refusals that were known in
        // advance are listed with the candidates.
        ("refused", &refusals_json(plan, names)),
        // The filters whose report is the output of the request.
        ("reports", &plan.reports.iter().map(|id| &names[id.0]).collect::<Vec<_>>()),
        ("ahead", &pushed_filters_json(plan, names)),
        // The network devices from which frames are redirected. Each entry has the number of
        // receive rules installed in the device, or the reason why the device supports none.
        ("devices", &devices_json(plan)),
        // Programs and packet sockets of other applications at the interfaces.
        ("others", &find_neighbors(plan)),
        ("shared", &shared_prefix::find_prefixes(plan)),
        // Running requests that begin like this one, but do not share a process with it.
        ("alike", &shared_prefix::find_similar_requests(text)),
    ])
}

fn threads_json(plan: &Plan, machine: &Machine) -> JsonObject {
    let count = plan.thread_count();
    let (processors, why) = match machine.path_processors.place_threads(count) {
        ThreadPlacement::SharedCache(processors) => (processors, None),
        ThreadPlacement::Anywhere(why) => (machine.path_processors.allowed.clone(), Some(why)),
    };
    to_object(&[("count", &count), ("processors", &processors), ("anywhere", &why)])
}

fn machine_json(machine: &Machine) -> JsonObject {
    let (release, why, hardened) = match &machine.kernel {
        Kernel::Open { release, hardened } => (release, None, Some(*hardened)),
        Kernel::Closed { release, why } => (release, Some(why), None),
    };
    let kernel = to_object(&[
        ("release", release),
        // True if programs can be loaded. If false, `why` contains the reason.
        ("open", &machine.kernel.can_load_programs()),
        ("why", &why),
        // True if the verifier applies the restrictions of a user without CAP_PERFMON.
        ("hardened", &hardened),
    ]);
    let costs = &machine.costs;
    to_object(&[
        ("processors", &machine.processors),
        ("l1d", &machine.l1d),
        ("l2", &machine.l2),
        ("kernel", &kernel),
        ("calibration", &to_object(&[("origin", &costs.origin), ("version", &costs.version)])),
    ])
}

fn filters_json(plan: &Plan, names: &[String]) -> Vec<JsonObject> {
    // A candidate space, with the cost per block in this space or the reason why the space was
    // refused.
    let candidate = |known: &Candidate| {
        to_object(&[
            ("space", &known.space),
            ("cost_ns", &known.verdict.as_ref().ok()),
            ("refused", &known.verdict.as_ref().err()),
        ])
    };
    let filters = plan.graph.nodes_with_ids().map(|(id, node)| {
        let placed = &plan.placements[id.0];
        to_object(&[
            ("name", &names[id.0]),
            // The filter with its arguments.
            ("text", &explain::node_text(&plan.graph, id)),
            // The section that contains the filter as an operand.
            ("inside", &node.inside.map(|owner| &names[owner.0])),
            // The index of the filter's space in the array `spaces`.
            ("space", &placed.space),
            // The indices of the spaces of all replicas; `null` if the filter is not replicated.
            ("copies", &plan.replicas_of(id).map(|copied| &copied.spaces)),
            ("because", &placed.because),
            ("candidates", &placed.candidates.iter().map(candidate).collect::<Vec<_>>()),
        ])
    });
    filters.collect()
}

/// Returns, as JSON, each source that could evaluate a filter in the kernel. Each entry contains
/// the filter that the source evaluates there, or the reason why it evaluates none.
fn pushed_filters_json(plan: &Plan, names: &[String]) -> Vec<JsonObject> {
    let pushed = plan.pushdowns.iter().map(|pushed| {
        to_object(&[
            ("source", &names[pushed.source.0]),
            ("filter", &pushed.filter.as_ref().ok().map(|id| &names[id.0])),
            // Frames to which the filter is not applied.
            ("except", &pushed.except),
            ("refused", &pushed.filter.as_ref().err()),
        ])
    });
    pushed.collect()
}

fn edges_json(plan: &Plan, names: &[String]) -> Vec<JsonObject> {
    let edges = plan.graph.edges.iter().zip(&plan.edges).map(|(edge, planned)| {
        let (kind, ring) = match planned {
            PlannedEdge::Call => ("call", None),
            PlannedEdge::Back => ("back edge", None),
            PlannedEdge::Pipe => ("pipe", None),
            PlannedEdge::Ring(ring) => ("ring", Some(ring)),
            PlannedEdge::Kernel(ring) => ("kernel ring", Some(ring)),
        };
        let ring = ring.map(|ring| {
            to_object(&[
                ("entries", &ring.entries),
                ("entries_min", &ring.entries_min),
                ("entry_bytes", &ring.stride),
                ("signal_blocks", &ring.signal_blocks),
                ("signal_blocks_max", &ring.signal_blocks_max),
                ("signal_ns", &ring.signal_ns),
                ("signal_because", &ring.reasons_text()),
            ])
        });
        to_object(&[
            ("from", &names[edge.from.0]),
            ("to", &names[edge.to.0]),
            // Classes in the notation of arcs, such as `80`, `!80` or `all`; `!0` for a plain pipe.
            ("classes", &edge.classes.to_string()),
            ("kind", &kind),
            ("ring", &ring),
        ])
    });
    edges.collect()
}
