//! Construction of new content for running spaces from a new plan: new nodes, rings and sinks, and
//! placeholders for nodes that stay.
//!
//! As in the first build, steps that can fail run in ascending order of the cost of undoing them.
//! The build does not touch running nodes and rings; a failure only releases the new ones.

use super::ComponentDrafts;
use super::builder::{
    Builder, ProgramSuccession, SpaceDraft, SwapContext, create_doorbell, sleeps_on_descriptors,
    thread_spaces,
};
use super::kernel;
use crate::error::BuildError;
use crate::kernel::shared_attach_point::AttachPoints;
use crate::numbering::PlanNumbers;
use crate::path::origins::PathOrigins;
use crate::path::running_path::{KernelExit, RunningRing, RunningSpace};
use crate::path::{PathOptions, RunSettings};
use crate::pools::intake_config_for_length;
use buffer::pool::PoolConfig;
use pipeline::plan::Plan;
use runtime::space::assemble::Assembly;
use runtime::space::swap::HotSwap;
use runtime::space::{Space, SpaceParts};
use std::sync::Arc;
use sys::memory::SegmentLender;

/// The result of a rebuild: new content for the spaces of a connected component, ready for a hot
/// swap.
#[derive(Debug)]
pub(crate) struct PreparedComponent {
    /// The spaces of the new plan, in the order of the plan.
    pub(crate) spaces: Vec<PreparedSpace>,
    pub(crate) rings: Vec<RunningRing>,
    pub(crate) lenders: Vec<Arc<dyn SegmentLender>>,
    pub(crate) kernel_exits: Vec<KernelExit>,
    pub(crate) successions: Vec<ProgramSuccession>,
}

/// New content for one space of a component, ready for a hot swap.
#[derive(Debug)]
pub(crate) struct PreparedSpace {
    pub(crate) running: RunningSpace,
    /// The space itself if it is new; `None` if it already runs.
    pub(crate) fresh: Option<Space>,
    pub(crate) hot_swap: HotSwap,
    /// True if the output of kernel programs enters this space and the hot swap replaces the
    /// programs.
    pub(crate) replaces_program: bool,
}

/// Builds everything that a connected component of a running path needs for a new plan: new nodes,
/// rings and sinks. `part` is the index of the component.
pub(crate) fn prepare_component(
    (plan, ids): (&Plan, &PlanNumbers),
    part: usize,
    again: &SwapContext<'_>,
    origins: &PathOrigins,
    (settings, extras): (RunSettings, &PathOptions),
) -> Result<PreparedComponent, BuildError> {
    let spaces = thread_spaces(plan, part);
    let running = again.part;
    let mut all = Vec::new();
    for space in &spaces {
        let name = kernel::thread_name(plan, *space);
        let known = running.spaces.iter().find(|known| known.name == name);
        let sleeps_on_descriptors = sleeps_on_descriptors(plan, *space);
        all.push(match known {
            Some(known) => {
                if sleeps_on_descriptors {
                    // From its next wake-up on, the space sleeps on descriptors, and the doorbell's
                    // alarm interrupts that sleep. The alarm stays even if the swap fails.
                    known.doorbell.add_alarm_descriptor()?;
                }
                (Some(known.clone()), Arc::clone(&known.doorbell))
            }
            None => (None, Arc::new(create_doorbell(plan, *space, &extras.steps)?)),
        });
    }
    // The kernel programs already exist and their owners install the successors, so the builder
    // needs no host.
    let points = AttachPoints::default();
    let mut builder = Builder {
        plan,
        ids,
        swap: Some(again),
        origins,
        host: &points,
        settings,
        extras,
        part,
        spaces,
        doorbells: all.iter().map(|(_, doorbell)| Arc::clone(doorbell)).collect(),
        control: Arc::clone(&running.control),
        demand: Arc::clone(&running.demand),
        drives_clock: matches!(running.clock, runtime::space::Clock::BlockTime(_)),
        epoch: running.epoch,
    };
    let ComponentDrafts { rings, chains, drafts, lenders } =
        builder.draft_spaces(running.lenders.clone())?;
    let kernel_exits = drafts.iter().flat_map(|draft| {
        draft.kernel_exits.iter().map(|(local, exit_edges)| KernelExit {
            source_number: draft.assembly.nodes()[*local].number,
            exit_edges: exit_edges.iter().map(|(edge, _)| ids.edges[*edge]).collect(),
        })
    });
    let kernel_exits = kernel_exits.collect();
    let mut processors = builder.replica_processors(&chains).into_iter();
    let (mut spaces, mut successions) = (Vec::new(), Vec::new());
    for (place, (draft, (known, _))) in drafts.into_iter().zip(all).enumerate() {
        let SpaceDraft { assembly, inputs, lent, kept, renewed, successors, .. } = draft;
        let replaces_program = !successors.is_empty();
        successions.extend(successors.into_iter().map(|(_, one)| one));
        let hot_swap = HotSwap {
            assembly,
            kept,
            inputs,
            intakes: lent,
            renewed,
            processor: processors.next().flatten(),
            live: ids.nodes.clone(),
        };
        let (running, fresh) = match known {
            Some(running) => (running, None),
            None => {
                let space = builder.build_empty_space(place)?;
                let (commands, doorbell) =
                    (space.command_queue(), Arc::clone(&builder.doorbells[place]));
                let running = RunningSpace { name: builder.space_name(place), commands, doorbell };
                (running, Some(space))
            }
        };
        spaces.push(PreparedSpace { running, fresh, hot_swap, replaces_program });
    }
    Ok(PreparedComponent { spaces, rings, lenders, kernel_exits, successions })
}

impl Builder<'_> {
    /// Builds a space without nodes.
    fn build_empty_space(&self, place: usize) -> Result<Space, BuildError> {
        let Some(again) = self.swap else {
            return Err(BuildError::Unexpected("an empty space in a first plan".to_owned()));
        };
        let (nodes, shape) = Assembly::default().finish();
        Ok(Space::new(SpaceParts {
            name: self.space_name(place),
            nodes,
            shape,
            intakes: vec![
                self.create_intake_pool(intake_config_for_length(PoolConfig::default().segment))?,
            ],
            work: self.create_pool(PoolConfig::default())?,
            inputs: Vec::new(),
            control: Arc::clone(&self.control),
            doorbell: Arc::clone(&self.doorbells[place]),
            clock: again.part.clock,
            epoch: self.epoch,
            options: self
                .space_options(again.part.count_limit.clone(), again.spaces + self.spaces[place]),
        }))
    }
}
