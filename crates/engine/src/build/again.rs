//! From another plan to what is to be put into spaces that run: nodes, rings, sinks and programs
//! that are new, and places for what stays.
//!
//! As when a path is built for the first time, what can fail comes in the order in which it is
//! cheapest to undo, and nothing that runs is touched: whatever was made is given back when a later
//! step fails.

use super::builder::{Again, Builder, Draft, Succession, bell, programs, reads, threads};
use super::inside;
use crate::error::BuildError;
use crate::kernel::point::Points;
use crate::numbering::Ids;
use crate::path::origins::Origins;
use crate::path::running::{Rising, RunningRing, RunningSpace};
use crate::path::{Extras, Settings};
use crate::pools::intake_for;
use buffer::pool::Config as PoolConfig;
use pipeline::plan::Plan;
use runtime::space::assemble::Assembly;
use runtime::space::graft::Graft;
use runtime::space::{Parts, Space};
use std::sync::Arc;
use sys::memory::Lender;

/// New content of a part's spaces, ready for the hot swap.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The spaces of the new plan in its order: which, whether it is new, and what comes there.
    pub(crate) spaces: Vec<PreparedSpace>,
    pub(crate) rings: Vec<RunningRing>,
    pub(crate) lenders: Vec<Arc<dyn Lender>>,
    pub(crate) rising: Vec<Rising>,
    pub(crate) successions: Vec<Succession>,
}

/// New content of a space.
#[derive(Debug)]
pub(crate) struct PreparedSpace {
    pub(crate) running: RunningSpace,
    /// The space, if it does not run yet.
    pub(crate) fresh: Option<Space>,
    pub(crate) graft: Graft,
    /// True if the output of kernel programs enters here, and other programs are to run.
    pub(crate) anew: bool,
}

/// Builds what is new in a part of a plan.
pub(crate) fn prepare(
    (plan, ids): (&Plan, &Ids),
    part: usize,
    again: &Again<'_>,
    origins: &Origins,
    (settings, extras): (Settings, &Extras),
) -> Result<Prepared, BuildError> {
    let spaces = threads(plan, part);
    let running = again.part;
    let mut all = Vec::new();
    for space in &spaces {
        let name = inside::name(plan, *space);
        let known = running.spaces.iter().find(|known| known.name == name);
        let reads = reads(plan, *space);
        all.push(match known {
            Some(known) => {
                if reads {
                    // It sleeps on descriptors when it wakes next, and may go on doing so.
                    known.bell.add_alarm()?;
                }
                (Some(known.clone()), Arc::clone(&known.bell))
            }
            None => (None, Arc::new(bell(plan, *space, &extras.steps)?)),
        });
    }
    // What begins in the kernel is there already: those who hold it put others in its place.
    let points = Points::default();
    let mut builder = Builder {
        plan,
        ids,
        again: Some(again),
        origins,
        host: &points,
        settings,
        extras,
        part,
        spaces,
        bells: all.iter().map(|(_, bell)| Arc::clone(bell)).collect(),
        control: Arc::clone(&running.control),
        demand: Arc::clone(&running.demand),
        tells_time: matches!(running.clock, runtime::space::Clock::Blocks(_)),
        epoch: running.epoch,
    };
    let mut ends = builder.rings()?;
    let rings = ends.iter().map(|ends| builder.running_ring(ends)).collect();
    let mut shared = builder.shared()?;
    let mut drafts = Vec::new();
    for place in 0..builder.spaces.len() {
        drafts.push(builder.space(place, &mut ends, &mut shared)?);
    }
    let mut lenders = running.lenders.clone();
    lenders.extend(drafts.iter().flat_map(|draft| draft.lenders.clone()));
    for draft in &mut drafts {
        for (local, id) in std::mem::take(&mut draft.sinks) {
            draft.assembly.replace(local, builder.outside().sink(id, &lenders)?);
        }
    }
    for (id, used) in programs(&plan.graph) {
        builder.program(id, used, &mut drafts)?;
    }
    builder.bound_signals(&mut drafts, &shared);
    builder.measure(&mut drafts);
    let rising = drafts.iter().flat_map(|draft| {
        draft.rising.iter().map(|(local, ways)| Rising {
            first: draft.assembly.nodes()[*local].planned,
            ways: ways.iter().map(|(edge, _)| ids.edges[*edge]).collect(),
        })
    });
    let rising = rising.collect();
    let mut processors = builder.processors(&shared).into_iter();
    let (mut spaces, mut successions) = (Vec::new(), Vec::new());
    for (place, (draft, (known, _))) in drafts.into_iter().zip(all).enumerate() {
        let Draft { assembly, inputs, lent, kept, renewed, successors, .. } = draft;
        let anew = !successors.is_empty();
        successions.extend(successors.into_iter().map(|(_, one)| one));
        let graft = Graft {
            assembly,
            kept,
            inputs,
            intakes: lent,
            renewed,
            processor: processors.next().flatten(),
        };
        let (running, fresh) = match known {
            Some(running) => (running, None),
            None => {
                let space = builder.empty(place)?;
                let (orders, bell) = (space.queue(), Arc::clone(&builder.bells[place]));
                let running = RunningSpace { name: builder.name(place), orders, bell };
                (running, Some(space))
            }
        };
        spaces.push(PreparedSpace { running, fresh, graft, anew });
    }
    Ok(Prepared { spaces, rings, lenders, rising, successions })
}

impl Builder<'_> {
    /// A space in which nothing runs yet.
    fn empty(&self, place: usize) -> Result<Space, BuildError> {
        let Some(again) = self.again else {
            return Err(BuildError::Unexpected("an empty space in a first plan".to_owned()));
        };
        let (nodes, shape) = Assembly::default().done();
        Ok(Space::new(Parts {
            name: self.name(place),
            nodes,
            shape,
            intakes: vec![self.intake(intake_for(PoolConfig::default().segment))?],
            work: self.pool(PoolConfig::default())?,
            inputs: Vec::new(),
            control: Arc::clone(&self.control),
            bell: Arc::clone(&self.bells[place]),
            clock: again.part.clock,
            epoch: self.epoch,
            options: self.options(again.part.left.clone(), again.spaces + self.spaces[place]),
        }))
    }
}
