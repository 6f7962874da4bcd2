//! Construction of a plan's spaces, up to the point where they can run. [SL §7.1, allocation]
//!
//! Steps that can fail run in ascending order of the cost of undoing them: filters and sections,
//! sources (which only read), memory and rings, sinks (which create files), and finally programs
//! (whose effects are unknown). Every step returns an owned value, so a later failure releases the
//! values of earlier steps. [`crate::run`] starts the spaces.

use self::builder::{Builder, Local, SpaceDraft, entry_thread_space, nodes_in_processes};
use self::replicas::ReplicatedChain;
use self::rings::PendingRing;
pub use crate::error::BuildError;
use crate::kernel::KernelHost;
use crate::kernel::shared_attach_point::AttachPoints;
use crate::live::PathHandle;
use crate::numbering::PlanNumbers;
use crate::path::origins::PathOrigins;
use crate::path::running_path::{self, PathState, RunningPath};
pub use crate::path::{PathOptions, ProgramRegistry, REMOVED_INDEX, RunSettings};
use crate::pools::{intake_config, intake_config_for_length};
use crate::record::RecordMode;
use buffer::pool::PoolConfig;
use filter::FilterKind;
use pipeline::graph::{NodeId, Step};
use pipeline::plan::Plan;
use runtime::control::PathControl;
use runtime::space::count_limit::CountLimit;
use runtime::space::node::Operator;
use runtime::space::node_key::NodeKey;
use runtime::space::{Clock, GENERAL_INTAKE, Input, Space, SpaceParts};
use std::sync::{Arc, Mutex};
use sys::memory::SegmentLender;
use sys::rollback::RollbackLog;

mod builder;
mod endpoints;
mod kernel;
mod latency;
mod nodes;
mod notification_thresholds;
mod processes;
mod rebuild;
mod replicas;
mod rings;

pub(crate) use builder::{ProgramSuccession, SwapContext};
pub(crate) use rebuild::{PreparedComponent, prepare_component};

/// The spaces of one connected component of a request's graph, built but not yet running.
#[derive(Debug)]
pub struct BuiltPath {
    /// The spaces, in the order of the plan.
    pub(crate) spaces: Vec<Space>,
    /// The kernel programs whose output enters these spaces.
    pub(crate) kernels: running_path::SharedKernelSpaces,
    /// The shared control state, with which other threads stop the spaces and query them.
    pub(crate) control: Arc<PathControl>,
    pub(crate) live: PathHandle,
    /// The log of the steps that allocated the resources of this path. If a later step fails, the
    /// steps are undone.
    pub(crate) steps: RollbackLog,
}

impl BuiltPath {
    /// Returns a handle that controls the path and stays valid before, during and after the run
    /// ([`crate::live`]).
    #[must_use]
    pub fn live(&self) -> PathHandle {
        self.live.clone()
    }

    /// Returns true if no block has reached any source. Returns false if a source is in the kernel,
    /// because only the kernel program counts the input of such a source.
    #[must_use]
    pub fn has_received_nothing(&self) -> bool {
        let nodes = self.spaces.iter().flat_map(Space::nodes);
        let sources = nodes.filter_map(|node| match &node.operator {
            Operator::Source(part) => Some(part),
            _ => None,
        });
        let quiet = |source: endpoint::SourceCounters| {
            source.observed.is_some_and(|amount| amount.blocks == 0)
        };
        sources
            .into_iter()
            .all(|part| !part.properties.chooses_arc && quiet(part.source.counters()))
    }
}

/// Builds every connected component of a plan. All sources in the kernel at the same interface and
/// direction share one program.
///
/// # Errors
///
/// Fails with the error of the first step that fails; earlier steps are undone.
pub fn build(plan: &Plan, settings: RunSettings) -> Result<Vec<BuiltPath>, BuildError> {
    build_with_options(plan, settings, &AttachPoints::default(), &PathOptions::default())
}

/// Builds every connected component of a plan, as [`build`] does; `host` attaches the kernel
/// programs, and `extras` selects recording, observation and adaptation.
pub fn build_with_options(
    plan: &Plan,
    settings: RunSettings,
    host: &dyn KernelHost,
    extras: &PathOptions,
) -> Result<Vec<BuiltPath>, BuildError> {
    let mark = extras.steps.savepoint();
    let built = build_all(plan, settings, host, extras);
    if built.is_err() {
        extras.steps.roll_back_to(mark);
    }
    built
}

fn build_all(
    plan: &Plan,
    settings: RunSettings,
    host: &dyn KernelHost,
    extras: &PathOptions,
) -> Result<Vec<BuiltPath>, BuildError> {
    let parts = plan.spaces.iter().map(|space| space.component + 1).max().unwrap_or(0);
    let count_limit = settings.count.map(|blocks| Arc::new(CountLimit::new(blocks)));
    let ids =
        PlanNumbers::for_first_plan(plan, extras.record_mode.has_independent_session_numbers());
    let origins = PathOrigins::for_first_plan(&plan.graph, &ids.nodes);
    if let RecordMode::Record(recording) = &extras.record_mode {
        recording.set_source_names(&origins.names);
    }
    let extras = &PathOptions { budget: Arc::default(), ..extras.clone() };
    let path = |part| {
        let with = (settings, extras);
        Builder::new((plan, &ids), part, (&origins, host), with)?.build(&count_limit)
    };
    let built: Result<Vec<(BuiltPath, running_path::RunningComponent)>, BuildError> =
        (0..parts).map(path).collect();
    let (mut paths, parts): (Vec<BuiltPath>, Vec<running_path::RunningComponent>) =
        built?.into_iter().unzip();
    let state = PathState::new(plan.clone(), ids.clone(), origins, parts);
    let whole = RunningPath::new(settings, extras.clone(), state);
    for (part, path) in paths.iter_mut().enumerate() {
        path.live.set_running_path(&whole, part);
    }
    Ok(paths)
}

/// The unfinished spaces of a connected component, and the resources that these spaces share.
struct ComponentDrafts {
    rings: Vec<running_path::RunningRing>,
    chains: Vec<ReplicatedChain>,
    drafts: Vec<SpaceDraft>,
    lenders: Vec<Arc<dyn SegmentLender>>,
}

impl Builder<'_> {
    fn build(
        mut self,
        count_limit: &Option<Arc<CountLimit>>,
    ) -> Result<(BuiltPath, running_path::RunningComponent), BuildError> {
        let ComponentDrafts { rings: running_rings, chains: shared, drafts, lenders } =
            self.draft_spaces(Vec::new())?;
        let kernel_exits = drafts.iter().flat_map(|draft| self.kernel_exits(draft)).collect();
        let (mut spaces, mut kernels) = (Vec::new(), Vec::new());
        for (place, draft) in drafts.into_iter().enumerate() {
            let SpaceDraft { assembly, inputs, lent, .. } = draft;
            kernels.extend(draft.kernels.into_iter().map(|(_, kernel)| kernel));
            let (nodes, shape) = assembly.finish();
            let mut intakes = vec![self.create_intake_pool(intake_config(&nodes))?];
            intakes.extend(lent);
            spaces.push(Space::new(SpaceParts {
                name: self.space_name(place),
                nodes,
                shape,
                intakes,
                work: self.create_pool(PoolConfig::default())?,
                inputs,
                control: Arc::clone(&self.control),
                doorbell: Arc::clone(&self.doorbells[place]),
                clock: if self.drives_clock { Clock::BlockTime(0) } else { Clock::Live },
                epoch: self.epoch,
                options: self.space_options(count_limit.clone(), self.spaces[place]),
            }));
        }
        let running_spaces =
            spaces.iter().enumerate().map(|(place, space)| running_path::RunningSpace {
                name: space.name.clone(),
                commands: space.command_queue(),
                doorbell: Arc::clone(&self.doorbells[place]),
            });
        let kernels = Arc::new(Mutex::new(kernels));
        let part = running_path::RunningComponent {
            control: Arc::clone(&self.control),
            demand: Arc::clone(&self.demand),
            count_limit: count_limit.clone(),
            clock: if self.drives_clock { Clock::BlockTime(0) } else { Clock::Live },
            epoch: self.epoch,
            lenders,
            spaces: running_spaces.collect(),
            rings: running_rings,
            removed_queues: Vec::new(),
            listed_queues: Arc::default(),
            kernel_exits,
            kernels: Arc::downgrade(&kernels),
            final_kernel_counters: Vec::new(),
            starter: running_path::StarterState::Pending,
        };
        for (space, processor) in spaces.iter_mut().zip(self.replica_processors(&shared)) {
            space.processor = processor;
        }
        if let Some(bytes) = self.extras.history_bytes {
            spaces.iter_mut().for_each(|space| space.start_source_histories(bytes));
        }
        part.publish();
        let live = PathHandle::new(Arc::clone(&self.control), Arc::clone(&part.listed_queues));
        let steps = self.extras.steps.clone();
        Ok((BuiltPath { spaces, kernels, control: self.control, live, steps }, part))
    }

    /// Builds the drafts of all spaces of the component, with their sinks and programs. `lenders`
    /// own the memory of sources that already run.
    fn draft_spaces(
        &mut self,
        mut lenders: Vec<Arc<dyn SegmentLender>>,
    ) -> Result<ComponentDrafts, BuildError> {
        let mut ends = self.build_rings()?;
        let rings = ends.iter().map(|ends| self.running_ring(ends)).collect();
        let mut chains = self.create_replicated_chains()?;
        let mut drafts: Vec<SpaceDraft> = Vec::new();
        for place in 0..self.spaces.len() {
            drafts.push(self.build_space(place, &mut ends, &mut chains)?);
        }
        lenders.extend(drafts.iter().flat_map(|draft| draft.lenders.clone()));
        for draft in &mut drafts {
            for (local, id) in std::mem::take(&mut draft.sinks) {
                draft
                    .assembly
                    .replace_operator(local, self.endpoint_context().open_sink(id, &lenders)?);
            }
        }
        for (id, used) in nodes_in_processes(&self.plan.graph) {
            self.start_component_program(id, used, &mut drafts)?;
        }
        self.limit_notification_thresholds(&mut drafts, &chains);
        self.attach_gauges(&mut drafts);
        Ok(ComponentDrafts { rings, chains, drafts, lenders })
    }

    /// Builds a space without its sinks and programs, which have side effects and are therefore
    /// opened later.
    fn build_space(
        &mut self,
        place: usize,
        rings: &mut [PendingRing],
        shared: &mut [ReplicatedChain],
    ) -> Result<SpaceDraft, BuildError> {
        let graph = &self.plan.graph;
        let mut draft = SpaceDraft::default();
        let mut locals: Vec<Option<Local>> = vec![None; graph.nodes.len()];
        // A program's node runs in a process of its own, so its two halves are absent from this
        // list.
        let here = |id: NodeId| {
            entry_thread_space(self.plan, self.plan.placements[id.0].space) == self.spaces[place]
        };
        let (inner, outer): (Vec<_>, Vec<_>) = graph
            .nodes_with_ids()
            .filter(|(id, _)| here(*id) && !self.is_replicated(*id))
            .partition(|(_, node)| node.inside.is_some());
        // Order of the inputs: output halves of programs, kernel programs, sources. The input
        // halves of programs come last.
        for (id, used) in
            nodes_in_processes(graph).filter(|(id, _)| self.has_output_half(place, *id))
        {
            let local = self.add_process_half(id, used, true, &mut draft);
            if !draft.kept.iter().any(|(kept, _)| *kept == local) {
                draft.inputs.push(Input::Source { node: local, intake: GENERAL_INTAKE });
            }
            locals[id.0] = Some(local);
        }
        let mut drives_clock = false;
        for (id, _) in inner {
            let key = NodeKey::Node(self.node_number(id));
            let kept = self.swap.is_some_and(|again| again.is_kept(key));
            self.create_replacement_filter(id, &locals, &mut draft)?;
            let made =
                if kept { self.placeholder(id) } else { self.create_published_node(id, &locals)? };
            let local = draft.assembly.add_operand(made);
            draft.kept.extend(kept.then_some((local, key)));
            locals[id.0] = Some(local);
        }
        match self.swap {
            None => self.attach_programs(place, &mut locals, &mut draft)?,
            Some(again) if again.replaces_program => {
                self.build_successors(place, again, &mut locals, &mut draft)?;
            }
            Some(again) => {
                self.add_running_program_placeholders(place, again, &mut locals, &mut draft)?
            }
        }
        for (id, node) in outer {
            if self.is_in_kernel(id) && node.kind() == Some(FilterKind::Source) {
                continue;
            }
            let key = NodeKey::Node(self.node_number(id));
            let kept = self.swap.is_some_and(|again| again.is_kept(key));
            self.create_replacement_filter(id, &locals, &mut draft)?;
            let mut made = match kept && !matches!(node.step, Step::Section(_)) {
                true => self.placeholder(id),
                false => self.create_published_node(id, &locals)?,
            };
            made.counts_to_limit = self.counts_toward_limit(id);
            made.fragments = self.accepts_fragments(id);
            let mut source = None;
            if let Operator::Source(part) = &mut made.operator {
                drives_clock |= part.properties.drives_clock;
                source = Some(match (part.properties.lender.clone(), self.swap) {
                    (None, Some(_)) => draft.add_single_source_intake(
                        intake_config_for_length(part.properties.block_max),
                        &self.extras.steps,
                    )?,
                    (lent, _) => draft.add_source_intake(lent, &self.extras.steps)?,
                });
            }
            let local = draft.assembly.add_node(made);
            locals[id.0] = Some(local);
            if kept {
                draft.kept.push((local, key));
            } else if node.kind() == Some(FilterKind::Sink) {
                draft.sinks.push((local, id));
            }
            if let Some(intake) = source {
                draft.inputs.push(Input::Source { node: local, intake });
            }
        }
        self.drives_clock |= drives_clock;
        for (id, used) in
            nodes_in_processes(graph).filter(|(id, _)| self.has_input_half(place, *id))
        {
            locals[id.0] = Some(self.add_process_half(id, used, false, &mut draft));
        }
        self.add_replicas(place, shared, &mut locals, &mut draft)?;
        self.connect_nodes(place, &locals, &mut draft, rings)?;
        Ok(draft)
    }
}
