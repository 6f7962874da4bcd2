//! `streamline explain`: what would run where, and why not elsewhere; with `--analyze`, what was
//! measured too.
//!
//! The forms of `--json` are the types below; `version` changes when a field goes or changes its
//! meaning.

use crate::arguments::{ExplainArguments, RunArguments};
use crate::failure::refuse;
use crate::privilege::Shut;
use crate::run::{self, Starter};
use crate::status::Status;
use crate::{line, terminal};
use pipeline::explain;
use pipeline::plan::{Candidate, Kernel, Machine, Plan, PlannedEdge, Policy, SpaceKind};
use serde::Serialize;
use streamline::report::{Refused, json_line, refused};
use streamline::{Prepared, analysis};

/// The version of the form of `--json`.
const VERSION: u32 = 1;

/// Explains the line of these words.
pub(crate) fn explain(given: &ExplainArguments) -> Status {
    let explained = line::text(&given.line).and_then(|text| {
        let run = RunArguments {
            time: given.time,
            count: given.count,
            embedded: given.embedded,
            stats: given.analyze,
            analyze: given.analyze,
            ..RunArguments::default()
        };
        let options = run::options(&run);
        let mut prepared = Prepared::read(&text, &options).map_err(refuse)?;
        if let Some(first) = prepared.workers().first() {
            let of = prepared.workers().len();
            terminal::note(&format!(
                "{of} processes, each on a processor of its own, run the line for their share of \
                 the sessions; this is the first of them: {first}"
            ));
            prepared = prepared.first_worker();
        }
        let text = prepared.text().to_owned();
        if given.analyze {
            terminal::tell(&format!("{}\n", explain::text(prepared.plan(), prepared.machine())));
            tell_changes(&text, prepared.plan());
            return run::go(prepared, &options, &run, Starter::NONE);
        }
        let prepared = prepared.foreseen().map_err(refuse)?;
        let (plan, machine) = (prepared.plan(), prepared.machine());
        if !given.json && !given.dot {
            tell_changes(&text, plan);
        }
        let printed = terminal::print(&match () {
            () if given.json => {
                json_line(&Explained::new(plan, machine, &explain::names(&plan.graph)))
            }
            () if given.dot => explain::dot(plan),
            () => explain::text(plan, machine),
        });
        tell_shut(&text, plan, machine);
        Ok(printed)
    });
    explained.unwrap_or_else(|status| status)
}

/// Says which right the line lacks here, and what gives it: it would not start, or not run in the
/// kernel.
fn tell_shut(text: &str, plan: &Plan, machine: &Machine) {
    let live = |(id, node): (_, &pipeline::graph::Node)| {
        let name = node.filter()?.description.name;
        let is_live = ["rx", "tx", "redirect"].contains(&name);
        let placed = plan.space_of(id).kind;
        is_live.then_some((name, placed))
    };
    let ends: Vec<_> = plan.graph.ids().filter_map(live).collect();
    let in_process = ends.iter().find(|(_, placed)| *placed != SpaceKind::Kernel);
    if let Some(shut) = in_process.and_then(|(name, _)| Shut::at(name, "open", None)) {
        terminal::note(&format!("this line would not start: {}", shut.sentence()));
        terminal::tell(&shut.ways(text));
    } else if let (false, Kernel::Closed { .. }) = (ends.is_empty(), &machine.kernel)
        && let Some(shut) = Shut::programs()
    {
        terminal::note(&format!("nothing of this line runs in the kernel: {}", shut.sentence()));
        terminal::tell(&shut.ways(text));
    }
}

/// Tells what is different since the line was analyzed, and why.
fn tell_changes(text: &str, plan: &Plan) {
    for change in analysis::changes(text, plan) {
        terminal::note(&format!("since it was analyzed: {change}"));
    }
}

#[derive(Serialize, Debug)]
struct Explained<'p> {
    version: u32,
    /// `cost` or `deepest`.
    policy: &'static str,
    /// The cost of a block that goes everywhere.
    cost_ns: f64,
    /// True if no cheaper placement exists.
    proved: bool,
    /// Placements that were looked at.
    looked_at: u64,
    machine: OnMachine<'p>,
    spaces: Vec<Space<'p>>,
    filters: Vec<Filter<'p>>,
    edges: Vec<Edge>,
    /// Refusals of the kernel at load time; those known beforehand are among the candidates.
    refused: Vec<Refused<'p>>,
    /// Filters whose report is the output of the line.
    reports: Vec<String>,
    /// Questions that sources ask in the kernel ahead.
    ahead: Vec<Ahead<'p>>,
}

/// A source, and the filter that it asks ahead in the kernel, or why none.
#[derive(Serialize, Debug)]
struct Ahead<'p> {
    source: String,
    filter: Option<String>,
    /// The excepted frames.
    except: Option<&'p str>,
    refused: Option<&'p str>,
}

#[derive(Serialize, Debug)]
struct OnMachine<'p> {
    processors: usize,
    l1d: usize,
    l2: usize,
    kernel: OnKernel<'p>,
    calibration: Calibration<'p>,
}

#[derive(Serialize, Debug)]
struct OnKernel<'p> {
    release: &'p str,
    /// True if it takes programs.
    open: bool,
    /// The reason, if not.
    why: Option<&'p str>,
    /// True if programs are verified as those of a user without CAP_PERFMON.
    hardened: Option<bool>,
}

#[derive(Serialize, Debug)]
struct Calibration<'p> {
    origin: &'p str,
    version: u32,
}

#[derive(Serialize, Debug)]
struct Space<'p> {
    name: &'p str,
    /// `kernel` or `thread`.
    kind: &'static str,
    /// The connected part of the line that it runs, from 0.
    path: usize,
}

#[derive(Serialize, Debug)]
struct Filter<'p> {
    name: String,
    /// With its arguments.
    text: String,
    /// The section of which it is an operand.
    inside: Option<String>,
    /// The place in `spaces`.
    space: usize,
    /// The places of all its copies, where several share the work.
    copies: Option<&'p [usize]>,
    because: &'p str,
    candidates: Vec<Considered<'p>>,
}

/// A space that was considered: what a block would cost there, or why it refused.
#[derive(Serialize, Debug)]
struct Considered<'p> {
    space: &'p str,
    cost_ns: Option<f64>,
    refused: Option<&'p str>,
}

#[derive(Serialize, Debug)]
struct Edge {
    from: String,
    to: String,
    /// As in a label: `80`, `!80`, `all`; `!0` is a plain pipe.
    classes: String,
    /// `call`, `back edge`, `pipe`, `ring` or `kernel ring`.
    kind: &'static str,
    ring: Option<Ring>,
}

#[derive(Serialize, Debug)]
struct Ring {
    entries: usize,
    entry_bytes: usize,
    signal_blocks: usize,
    signal_ns: u64,
    signal_because: String,
}

impl<'p> Explained<'p> {
    fn new(plan: &'p Plan, machine: &'p Machine, names: &'p [String]) -> Self {
        Self {
            version: VERSION,
            policy: match plan.choice.policy {
                Policy::Cost => "cost",
                Policy::Deepest => "deepest",
            },
            cost_ns: plan.choice.cost_ns,
            proved: plan.choice.proved,
            looked_at: plan.choice.looked_at,
            machine: OnMachine::new(machine),
            spaces: plan
                .spaces
                .iter()
                .map(|space| Space {
                    name: &space.name,
                    kind: match space.kind {
                        SpaceKind::Kernel => "kernel",
                        SpaceKind::Thread => "thread",
                        SpaceKind::Process => "process",
                    },
                    path: space.part,
                })
                .collect(),
            filters: filters(plan, names),
            reports: plan.reports.iter().map(|id| names[id.0].clone()).collect(),
            edges: edges(plan, names),
            refused: refused(plan, names),
            ahead: ahead(plan, names),
        }
    }
}

impl<'p> OnMachine<'p> {
    fn new(machine: &'p Machine) -> Self {
        let kernel = match &machine.kernel {
            Kernel::Open { release, hardened } => {
                OnKernel { release, open: true, why: None, hardened: Some(*hardened) }
            }
            Kernel::Closed { release, why } => {
                OnKernel { release, open: false, why: Some(why), hardened: None }
            }
        };
        let costs = &machine.costs;
        Self {
            processors: machine.processors,
            l1d: machine.l1d,
            l2: machine.l2,
            kernel,
            calibration: Calibration { origin: &costs.origin, version: costs.version },
        }
    }
}

fn filters<'p>(plan: &'p Plan, names: &[String]) -> Vec<Filter<'p>> {
    let considered = |candidate: &'p Candidate| Considered {
        space: &candidate.space,
        cost_ns: candidate.verdict.as_ref().ok().copied(),
        refused: candidate.verdict.as_ref().err().map(String::as_str),
    };
    plan.graph
        .ids()
        .map(|(id, node)| {
            let placed = &plan.placed[id.0];
            Filter {
                name: names[id.0].clone(),
                text: explain::shown(&plan.graph, id),
                inside: node.inside.map(|owner| names[owner.0].clone()),
                space: placed.space,
                copies: plan.copies_of(id).map(|copied| copied.spaces.as_slice()),
                because: &placed.because,
                candidates: placed.candidates.iter().map(considered).collect(),
            }
        })
        .collect()
}

fn ahead<'p>(plan: &'p Plan, names: &[String]) -> Vec<Ahead<'p>> {
    let told = plan.pushed.iter().map(|pushed| Ahead {
        source: names[pushed.source.0].clone(),
        filter: pushed.filter.as_ref().ok().map(|id| names[id.0].clone()),
        except: pushed.except,
        refused: pushed.filter.as_ref().err().map(String::as_str),
    });
    told.collect()
}

fn edges(plan: &Plan, names: &[String]) -> Vec<Edge> {
    let edges = plan.graph.edges.iter().zip(&plan.edges);
    edges
        .map(|(edge, planned)| {
            let (kind, ring) = match planned {
                PlannedEdge::Call => ("call", None),
                PlannedEdge::Back => ("back edge", None),
                PlannedEdge::Pipe => ("pipe", None),
                PlannedEdge::Ring(ring) => ("ring", Some(ring)),
                PlannedEdge::Kernel(ring) => ("kernel ring", Some(ring)),
            };
            Edge {
                from: names[edge.from.0].clone(),
                to: names[edge.to.0].clone(),
                classes: edge.classes.to_string(),
                kind,
                ring: ring.map(|ring| Ring {
                    entries: ring.entries,
                    entry_bytes: ring.stride,
                    signal_blocks: ring.signal_blocks,
                    signal_ns: ring.signal_ns,
                    signal_because: ring.because(),
                }),
            }
        })
        .collect()
}
