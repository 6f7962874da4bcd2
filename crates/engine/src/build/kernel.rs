//! Kernel spaces of a plan. The program of a kernel space runs at an interface. Its output enters
//! user space at a source in the first thread of the same connected component. The user
//! implementations of the kernel's filters follow that source, for blocks that a twin is unsure
//! about. A component that runs entirely in the kernel gets a thread for these implementations. [SL
//! §7.1; CONTRACT 18]

use super::builder::{Builder, Local, ProgramSuccession, SpaceDraft, SwapContext};
use super::rings::PendingRing;
use crate::description::zero_counts;
use crate::error::BuildError;
use crate::kernel::taps::TreeTap;
use crate::kernel::{Generation, KernelInputs, KernelSpace, is_perfmon_capable};
use crate::path::running_path::KernelExit;
use endpoint::Source;
use filter::{Counts, FilterKind};
use pipeline::graph::{FilterUse, NodeId};
use pipeline::plan::{KernelRefusal, Plan, Program, SpaceKind};
use runtime::space::class_selection::SelectedClasses as Classes;
use runtime::space::node::{Node, Operator, SourceOperator};
use runtime::space::node_key::NodeKey;
use runtime::space::{GENERAL_INTAKE, Input};
use std::sync::PoisonError;

/// Name of the thread that is added for a component that runs entirely in the kernel.
const KERNEL_COMPONENT_THREAD_NAME: &str = "thread0";

/// Returns the name of the thread that runs a space or, for a kernel space, the name of the thread
/// added for it.
pub(super) fn thread_name(plan: &Plan, space: usize) -> String {
    let space = &plan.spaces[space];
    if space.kind == SpaceKind::Kernel {
        KERNEL_COMPONENT_THREAD_NAME.to_owned()
    } else {
        space.name.clone()
    }
}

impl SpaceDraft {
    /// Returns all new kernel programs whose output enters this space, including successors of
    /// running programs. Each is paired with the node through which its output enters.
    fn generations(&self) -> impl Iterator<Item = (Local, &Generation)> {
        let first = self.kernels.iter().map(|(local, kernel)| (*local, &kernel.generation));
        first.chain(self.successors.iter().map(|(local, one)| (*local, &one.next.generation)))
    }
}

impl Builder<'_> {
    /// Returns the name of the component's space with the index `place`.
    pub(super) fn space_name(&self, place: usize) -> String {
        thread_name(self.plan, self.spaces[place])
    }

    /// Returns true if a node runs in the kernel.
    pub(super) fn is_in_kernel(&self, id: NodeId) -> bool {
        self.plan.space_of(id).kind == SpaceKind::Kernel
    }

    /// Returns true if a node is a source that a kernel program implements.
    pub(super) fn is_source_in_kernel(&self, id: NodeId) -> bool {
        self.is_in_kernel(id) && self.plan.graph.node(id).kind() == Some(FilterKind::Source)
    }

    /// Loads the kernel programs whose frames enter user space in this space, and attaches them.
    pub(super) fn attach_programs(
        &self,
        place: usize,
        locals: &mut [Option<Local>],
        draft: &mut SpaceDraft,
    ) -> Result<(), BuildError> {
        for (first, planned) in self.programs_with_output_in(place) {
            self.check_count_limit()?;
            let origin = self.origins.origin_of_node(self.node_number(first));
            let build = |wanted: &KernelInputs<'_>| KernelSpace::build(wanted);
            let (kernel, source) = self.with_kernel_inputs((first, planned), origin, build)?;
            let intake = draft.add_source_intake(source.properties().lender, &self.extras.steps)?;
            let taps = &kernel.generation.tree.taps;
            let local = self.add_kernel_source((first, taps), (source, intake), locals, draft);
            draft.kernels.push((local, kernel));
        }
        Ok(())
    }

    /// Builds a successor for each running kernel program whose frames enter user space in the
    /// space `place`. Fails for a source that does not run in the kernel yet.
    pub(super) fn build_successors(
        &self,
        place: usize,
        again: &SwapContext<'_>,
        locals: &mut [Option<Local>],
        draft: &mut SpaceDraft,
    ) -> Result<(), BuildError> {
        let ended = || BuildError::Unexpected("a path that has ended is changed".to_owned());
        let kernels = again.part.kernels.upgrade().ok_or_else(ended)?;
        let kernels = kernels.lock().unwrap_or_else(PoisonError::into_inner);
        for (first, planned) in self.programs_with_output_in(place) {
            self.check_count_limit()?;
            let number = self.node_number(first);
            let Some(kernel) =
                kernels.iter().position(|kernel| kernel.generation.source_number() == number)
            else {
                let why = "a running request cannot move its source into the kernel".to_owned();
                return Err(BuildError::Refused(KernelRefusal { node: first, why }));
            };
            let known = &kernels[kernel];
            let follow = |wanted: &KernelInputs<'_>| known.prepare_next_generation(wanted);
            let (next, source) =
                self.with_kernel_inputs((first, planned), known.generation.origin, follow)?;
            // The existing memory is large enough, because it was sized for the longest frames of
            // this source.
            let entry = (first, next.generation.tree.taps.as_slice());
            let local = self.add_kernel_source(entry, (source, GENERAL_INTAKE), locals, draft);
            draft.successors.push((
                local,
                ProgramSuccession { program_index: kernel, source_number: number, next },
            ));
        }
        Ok(())
    }

    /// Returns the kernel programs whose frames enter user space in the space `place`. Each is
    /// paired with its first source in this component.
    fn programs_with_output_in(&self, place: usize) -> impl Iterator<Item = (NodeId, &Program)> {
        self.plan.programs.iter().filter_map(move |planned| {
            let first = planned.sources.iter().copied().find(|id| self.is_in_component(*id))?;
            (self.exit_space(first) == Some(place)).then_some((first, planned))
        })
    }

    /// Returns true if a node belongs to this component.
    fn is_in_component(&self, id: NodeId) -> bool {
        let space = self.plan.placements[id.0].space;
        self.plan.spaces[space].component == self.part
    }

    /// Collects the inputs from which a kernel program is built, and calls `make` with them.
    /// `planned` is the program in the plan, and `first` its first source. `origin` is the number
    /// of this source in the metadata of its blocks.
    fn with_kernel_inputs<M>(
        &self,
        (first, planned): (NodeId, &Program),
        origin: u16,
        make: impl FnOnce(&KernelInputs<'_>) -> Result<M, BuildError>,
    ) -> Result<M, BuildError> {
        let outside = self.endpoint_context();
        let Some(used) = self.plan.graph.node(first).filter() else {
            return Err(BuildError::Unexpected("a program for no source".to_owned()));
        };
        make(&KernelInputs {
            graph: &self.plan.graph,
            ids: self.ids,
            planned,
            nodes: &self.kernel_nodes(planned),
            origin,
            host: self.host,
            hardened: !is_perfmon_capable(),
            refuses: self.settings.refuses,
            timed: self.settings.programs_timed,
            opening: &outside.open_arguments(first, used),
        })
    }

    /// Adds the source node where the blocks of a kernel program enter the space. `first` is the
    /// program's first source, `taps` are its taps, and `intake` is the pool that `source` fills.
    /// Returns the index of the node.
    fn add_kernel_source(
        &self,
        (first, taps): (NodeId, &[TreeTap]),
        (source, intake): (Box<dyn Source>, usize),
        locals: &mut [Option<Local>],
        draft: &mut SpaceDraft,
    ) -> Local {
        let nodes =
            taps.iter().map(|tap| tap.nodes.iter().map(|id| self.node_number(*id)).collect());
        let taps = nodes.collect();
        let part = Operator::Source(SourceOperator { taps, ..SourceOperator::new(source) });
        let used = self.plan.graph.node(first).filter();
        let name = used.map_or_else(String::new, FilterUse::display_name);
        let counts = used.map_or_else(Counts::default, |used| zero_counts(used.description));
        let local = draft.assembly.add_node(Node::new(name, self.node_number(first), part, counts));
        draft.inputs.push(Input::Source { node: local, intake });
        locals[first.0] = Some(local);
        local
    }

    /// Returns the nodes of this component that a kernel program runs, in ascending order.
    fn kernel_nodes(&self, planned: &Program) -> Vec<NodeId> {
        let steps = planned.steps.iter().flat_map(|step| &step.nodes);
        let all =
            planned.sources.iter().chain(steps).copied().filter(|id| self.is_in_component(*id));
        let mut nodes: Vec<NodeId> = all.collect();
        nodes.sort_unstable_by_key(|id| id.0);
        nodes
    }

    /// Returns, for each kernel program whose output enters this space, the edges over which it
    /// passes blocks to threads.
    pub(super) fn kernel_exits(&self, draft: &SpaceDraft) -> Vec<KernelExit> {
        let kernel_exits = |(local, generation): (Local, &Generation)| KernelExit {
            source_number: draft.assembly.nodes()[local].number,
            exit_edges: generation
                .tree
                .exits
                .iter()
                .map(|exit| self.ids.edges[exit.edge])
                .collect(),
        };
        draft.generations().map(kernel_exits).collect()
    }

    /// Adds a placeholder for each node through which the output of a running kernel program enters
    /// the space.
    pub(super) fn add_running_program_placeholders(
        &self,
        place: usize,
        again: &SwapContext<'_>,
        locals: &mut [Option<Local>],
        draft: &mut SpaceDraft,
    ) -> Result<(), BuildError> {
        for KernelExit { source_number: first, exit_edges } in &again.part.kernel_exits {
            let Some(id) = self.ids.nodes.iter().position(|number| number == first) else {
                continue;
            };
            if self.exit_space(NodeId(id)) != Some(place) {
                continue;
            }
            let local = draft.assembly.add_node(self.placeholder(NodeId(id)));
            draft.kept.push((local, NodeKey::Node(*first)));
            locals[id] = Some(local);
            let target = |way: &usize| {
                let edge = *again.exit_edges.get(way)?;
                Some((edge, self.plan.graph.edges[edge].to))
            };
            let exit_edges: Option<Vec<_>> = exit_edges.iter().map(target).collect();
            let lost =
                || BuildError::Unexpected("an exit of the kernel program leads nowhere".to_owned());
            draft.kernel_exits.push((local, exit_edges.ok_or_else(lost)?));
        }
        Ok(())
    }

    /// Adds an arc for each exit of the kernel programs, in the order of the exits. The program
    /// selects an exit by the index of its arc, so a missing arc would shift all later arcs. Fails
    /// if the target of an exit is unreachable.
    pub(super) fn add_arcs_out_of_kernel(
        &self,
        place: usize,
        locals: &[Option<Local>],
        draft: &mut SpaceDraft,
        rings: &mut [PendingRing],
    ) -> Result<(), BuildError> {
        let mut kernel_exits = std::mem::take(&mut draft.kernel_exits);
        kernel_exits.extend(draft.generations().map(|(from, generation)| {
            (from, generation.tree.exits.iter().map(|exit| (exit.edge, exit.to)).collect())
        }));
        for (from, exit_edges) in &kernel_exits {
            for (edge, target) in exit_edges {
                let target = *target;
                let near = locals[target.0].filter(|_| self.entry_space(target) == Some(place));
                let ring = rings.iter_mut().find(|ends| ends.edges.contains(edge));
                let to = near.or_else(|| self.find_or_add_ring_exit(draft, ring?, *edge));
                let to = to.ok_or_else(|| self.missing_ring_error(place, *edge))?;
                let number = self.ids.edges[*edge];
                draft.assembly.add_arc(*from, to, Classes::All, false, number);
            }
        }
        draft.kernel_exits = kernel_exits;
        Ok(())
    }

    /// Returns the error for an edge out of the kernel whose target is neither in this space nor
    /// connected to it by a ring.
    fn missing_ring_error(&self, place: usize, edge: usize) -> BuildError {
        let graph = &self.plan.graph;
        let name = |id: NodeId| graph.node(id).name();
        let edge = &graph.edges[edge];
        BuildError::Unexpected(format!(
            "blocks of `{}` leave the kernel in {}, from which no ring leads to `{}`: pin both to \
             the same thread (`@thread0`), or pin the first to a thread",
            name(edge.from),
            self.space_name(place),
            name(edge.to),
        ))
    }

    /// Fails if the request has a block limit (`-c`) and a counted node would run in the kernel,
    /// because only threads count blocks against the limit.
    fn check_count_limit(&self) -> Result<(), BuildError> {
        if self.settings.count.is_none() {
            return Ok(());
        }
        let graph = &self.plan.graph;
        let counted = |id: &NodeId| self.counts_toward_limit(*id) && self.is_in_kernel(*id);
        match graph.nodes_with_ids().map(|(id, _)| id).find(counted) {
            None => Ok(()),
            Some(node) => {
                let why = "`-c` counts blocks in a thread".to_owned();
                Err(BuildError::Refused(KernelRefusal { node, why }))
            }
        }
    }
}
