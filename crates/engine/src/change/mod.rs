//! Another request in the place of one that runs, without losing a block. [Th §5.4]
//!
//! In: a path that runs ([`Live`]) and an edit of its request. Out: what the ledger says of the
//! switch, or why everything is as before.
//!
//! 1. The edited text is checked and planned. What stays keeps its space, so that a change moves
//!    nothing that was not asked to be moved; if no plan does that, the planner is free.
//! 2. What is new is built, beside the path that runs ([`crate::build`]). Whatever fails until
//!    here, and in the next step, leaves the path as it is.
//! 3. The spaces that differ are taken at block boundaries ([`switch`]): each is between two
//!    passes, and no block is under way in it.
//! 4. What goes lets out what it holds and is finished, and what lies in rings that go is taken,
//!    all in the old graph. Now the old graph has settled its accounts; the new one has none yet.
//! 5. The new graph is put in, and the spaces go on.
//!
//! So every block that came before the boundary met the old graph alone, and every one behind it
//! meets the new one alone. The answer does not rest on that: it is read from the counters of both.

mod crossing;
mod identity;
mod repeat;
mod shape;
mod switch;
mod switched;

pub(crate) use repeat::Changer;
pub use shape::{Place, reshape};
pub(crate) use shape::{worth_copies, worth_moves};
pub use switched::{Switched, Unchanged};

use crate::build::{Again, Prepared, prepare};
use crate::catalogue::{House, Repeated};
use crate::error::BuildError;
use crate::live::Live;
use crate::numbering::{Ids, links};
use crate::path::crew::Thread;
use crate::path::origins::Origins;
use crate::path::running::{Manned, Part, RunningSpace, State, Whole};
use crate::path::{Extras, Settings};
use crate::record::{self, Tape};
use crossing::Crossing;
use filter::Kind;
use identity::Matched;
use pipeline::Catalogue;
use pipeline::Graph;
use pipeline::edit::{Edit, Edited};
use pipeline::plan::{Machine, Plan, PlannedSpace, Refused};
use runtime::commands::NotTaken;
use runtime::space::graft::Graft;
use std::sync::Arc;
use std::time::Duration;
use sys::steps::{Resource, Steps};

/// Maximum number of retries of a change that was undone because the process that runs a part of
/// the path was restarted.
const AGAIN_MAX: usize = 4;

/// Edits the request of a running path, and the path with it. The spaces that differ must be at a
/// block boundary within `limit`. One change at a time: another one waits for this one. What is
/// undone because a daemon was started again is asked of the next one.
pub fn change(
    live: &Live,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
) -> Result<Switched, Unchanged> {
    change_telling(live, edit, machine, limit, &Steps::default())
}

/// The same; this log, of this change alone, is told each step.
pub fn change_telling(
    live: &Live,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
    steps: &Steps,
) -> Result<Switched, Unchanged> {
    let mut begun = 0;
    let begin = sys::clock::monotonic();
    loop {
        let changed = try_to_change(live, edit, machine, limit, steps);
        if changed.is_err() {
            steps.roll_back();
        }
        // Between its making and its run a path has nobody who starts threads for it.
        if let Err(Unchanged::NotTaken(NotTaken::NotBegun)) = changed {
            let since = Duration::from_nanos(sys::clock::monotonic().saturating_sub(begin));
            if whole(live)?.is_run_within(limit.saturating_sub(since)) {
                continue;
            }
        }
        begun += 1;
        if begun > AGAIN_MAX || !matches!(changed, Err(Unchanged::Again(_))) {
            return changed;
        }
    }
}

fn try_to_change(
    live: &Live,
    edit: &Edit,
    machine: &Machine,
    limit: Duration,
    steps: &Steps,
) -> Result<Switched, Unchanged> {
    let whole = whole(live)?;
    // What is recorded is planned as its record says, so that it can be planned so again.
    let machine = match &whole.extras.tape {
        Tape::Off => machine,
        Tape::Record(recording) => recording.machine(),
        Tape::Play(_) => {
            let why = "it comes from a record, and is changed where the recorded path was: `replay \
                       RECORD | …` runs another line over the frames";
            return Err(Unchanged::Refused(why.to_owned()));
        }
    };
    make(whole, (edit, &|_, _| Ok(())), machine, limit, steps)
}

/// Resource a change of a recorded path again, when the spaces have come to where it was made.
pub(crate) fn change_again(live: &Live, change: &record::Change) -> Result<(), Unchanged> {
    let whole = whole(live)?;
    let Tape::Play(replay) = &whole.extras.tape else {
        return Err(Unchanged::Refused("it comes from no record".to_owned()));
    };
    let head = &replay.record().head;
    whole.state().text.get_or_insert_with(|| head.request.clone());
    let same = |text: &str, plan: &Plan| match text == change.text {
        true if record::layout(plan) == change.layout => Ok(()),
        _ => Err(Unchanged::Refused(format!(
            "streamline {} did it otherwise than this version does",
            head.program
        ))),
    };
    let (asked, steps) = ((&change.edit, &same as Check<'_>), Steps::default());
    let made = make(whole, asked, &head.machine, Duration::MAX, &steps);
    if made.is_err() {
        steps.roll_back();
    }
    made.map(drop)
}

fn whole(live: &Live) -> Result<&Whole, Unchanged> {
    let whole = live.whole();
    whole
        .map(|whole| &**whole)
        .ok_or_else(|| Unchanged::Refused("this path was not built from a plan".to_owned()))
}

/// Says whether a new text and its plan are what is wanted.
type Check<'c> = &'c dyn Fn(&str, &Plan) -> Result<(), Unchanged>;

fn make(
    whole: &Whole,
    (edit, check): (&Edit, Check<'_>),
    machine: &Machine,
    limit: Duration,
    steps: &Steps,
) -> Result<Switched, Unchanged> {
    let mut state = whole.state();
    // Where nothing differs no space is asked, so none would say it.
    if state.parts.iter().all(Part::has_ended) {
        return Err(NotTaken::Ended.into());
    }
    own_sessions(&state)?;
    let text = state
        .text
        .clone()
        .ok_or_else(|| Unchanged::Refused("nobody said which request this path runs".to_owned()))?;
    let repeated = matches!(whole.extras.tape, Tape::Play(_));
    let catalogue: &dyn Catalogue = if repeated { &Repeated } else { &House };
    let edit = &edit.settled(catalogue);
    let edited = edit.apply(&text).map_err(Unchanged::Misfit)?;
    let (graph, mistakes) = pipeline::read(&edited.text, catalogue);
    if mistakes.iter().any(|mistake| mistake.severity == pipeline::language::Severity::Error) {
        return Err(Unchanged::Mistakes { text: edited.text, mistakes });
    }
    let (mut graph, asked) = (graph.clone(), graph.options);
    // Copies go with what they are copies of, and come again when it pays.
    graph.options.set("parallel", filter::Value::Text("no".to_owned()));
    // What this fails to make is taken back, and nothing else.
    let extras = Extras { steps: steps.clone(), ..whole.extras.clone() };
    let with = (whole.settings, &extras);
    let mut changed = Changed::prepare_as_taken((&graph, &edited), &state, machine, with)?;
    check(&edited.text, &changed.plan)?;
    let told = record::Change {
        number: state.changes,
        edit: edit.clone(),
        text: edited.text.clone(),
        layout: record::layout(&changed.plan),
    };
    let origins = changed.origins.clone();
    let settled = || {
        // Before a block comes from a new source.
        origins.tell();
        if let Tape::Record(recording) = &whole.extras.tape {
            recording.name(origins.names());
            recording.change(&told);
        }
    };
    let replay = match &whole.extras.tape {
        Tape::Play(replay) => Some(&**replay),
        _ => None,
    };
    let mut switched = changed.switch(&state, (replay, &settled), limit)?;
    extras.steps.commit();
    changed.plan.graph.options = asked;
    switched.text = edited.text;
    let gone =
        |number: &usize| state.ids.nodes.contains(number) && !changed.ids.nodes.contains(number);
    switched.reports.retain(|report| gone(&report.planned));
    changed.keep(&mut state, Some(switched.text.clone()));
    Ok(switched)
}

/// Copies by session have sessions of their own, which nobody joins again.
fn own_sessions(state: &State) -> Result<(), Unchanged> {
    match state.plan.copied.iter().any(|copied| copied.sharing.is_some()) {
        false => Ok(()),
        true => Err(Unchanged::Refused(
            "filters of it have copies that keep sessions of their own; begin it with \
             `--parallel=no`"
                .to_owned(),
        )),
    }
}

/// A change that has been built.
struct Changed {
    plan: Plan,
    ids: Ids,
    origins: Origins,
    /// New content of the spaces, by part.
    parts: Vec<Prepared>,
    /// The spaces to be switched, in the order of the plan, and the threads of those that are new.
    desks: Vec<(switch::Desk, Option<Thread>)>,
    /// Spaces in which nothing is left.
    leaving: Vec<switch::Leaving>,
    /// The numbers of filters that go on in another process.
    crossed: Vec<usize>,
}

impl Changed {
    /// Builds what the kernel takes: what it refuses is planned in a thread.
    fn prepare_as_taken(
        (graph, edited): (&Graph, &Edited),
        state: &State,
        machine: &Machine,
        with: (Settings, &Extras),
    ) -> Result<Self, Unchanged> {
        let mut refused: Vec<Refused> = Vec::new();
        loop {
            let matched = Matched::plan(graph, edited, state, (machine, &refused));
            let matched = matched.map_err(Unchanged::Unplaceable)?;
            matched.may_be(state)?;
            if !matched.crossed.is_empty() && !matches!(with.1.tape, Tape::Off) {
                let why = "what it knows is told by a process of its own, which no record has";
                return Err(Unchanged::Refused(why.to_owned()));
            }
            match Self::prepare(matched, state, with) {
                Err(Unchanged::Build(BuildError::Refused(why)))
                    if graph.node(why.node).kind() != Some(Kind::Source)
                        && !refused.iter().any(|known| known.node == why.node) =>
                {
                    with.1.steps.roll_back();
                    refused.push(why);
                }
                done => return done,
            }
        }
    }

    fn prepare(
        matched: Matched,
        state: &State,
        with: (Settings, &Extras),
    ) -> Result<Self, Unchanged> {
        let Matched { plan, ids, kept, renewed, origins, ways, anew, .. } = &matched;
        let (mut parts, mut desks, mut leaving) = (Vec::new(), Vec::new(), Vec::new());
        for (number, part) in state.parts.iter().enumerate() {
            let spaces = &state.plan.spaces;
            let is = |space: &PlannedSpace, name: &str| space.part == number && space.name == name;
            let rank =
                |name: &str| spaces.iter().position(|space| is(space, name)).unwrap_or(usize::MAX);
            let again = Again {
                part,
                kept,
                renewed,
                ways,
                anew: anew.contains(&number),
                spaces: state.spaces,
            };
            let mut prepared = prepare((plan, ids), number, &again, origins, with)?;
            for space in &mut prepared.spaces {
                let name = &space.running.name;
                let differs = matched.differs(state, number, name);
                if space.fresh.is_none() && !differs && !space.anew {
                    continue;
                }
                let thread = match &space.fresh {
                    None => None,
                    Some(_) => {
                        let crew = match &part.crew {
                            Manned::By(crew) => crew,
                            Manned::NotYet => return Err(NotTaken::NotBegun.into()),
                            Manned::NoMore => return Err(NotTaken::Ended.into()),
                        };
                        let step = with.1.steps.take(Resource::Thread, "a further space");
                        step.map_err(BuildError::Machine)?;
                        Some(crew.further(name.clone()).map_err(BuildError::Machine)?)
                    }
                };
                let graft = std::mem::take(&mut space.graft);
                let (running, fresh) = (&space.running, space.fresh.take());
                let rank = rank(&running.name);
                desks.push((switch::Desk::new(running, fresh, graft, rank), thread));
            }
            let stays = |name: &str| prepared.spaces.iter().any(|s| s.running.name == name);
            for goes in part.spaces.iter().filter(|space| !stays(&space.name)) {
                if matched.takes_from(state, number, &goes.name) {
                    let rank = rank(&goes.name);
                    desks.push((switch::Desk::new(goes, None, Graft::default(), rank), None));
                } else {
                    leaving.push(switch::Leaving::new(goes));
                }
            }
            parts.push(prepared);
        }
        let Matched { plan, ids, origins, crossed, .. } = matched;
        let mut crossed: Vec<usize> = crossed.into_iter().collect();
        crossed.sort_unstable();
        Ok(Self { plan, ids, origins, parts, desks, leaving, crossed })
    }

    fn switch(
        &mut self,
        state: &State,
        (replay, settled): (Option<&record::Replay>, &dyn Fn()),
        limit: Duration,
    ) -> Result<Switched, Unchanged> {
        let desks = std::mem::take(&mut self.desks);
        let parts = self.parts.iter_mut().zip(&state.parts);
        let kernels = parts.flat_map(|(prepared, part)| {
            let kernels = part.kernels.upgrade();
            let all = std::mem::take(&mut prepared.successions).into_iter();
            all.filter_map(move |succession| Some((kernels.clone()?, succession)))
        });
        let crossings = self.crossed.iter().copied().map(Crossing::new).collect();
        let (leaving, kernels) = (&self.leaving[..], kernels.collect());
        let number = state.changes;
        let beside = switch::Beside { leaving, kernels, crossings, number, replay, settled };
        switch::switch(desks, beside, limit)
    }

    /// The path is this from now on.
    fn keep(self, state: &mut State, text: Option<String>) {
        let Self { plan, ids, origins, parts, .. } = self;
        for (part, prepared) in state.parts.iter_mut().zip(parts) {
            part.demand.follow(links(&plan.graph, &ids.nodes));
            let left = |old: &&RunningSpace| {
                !prepared.spaces.iter().any(|new| Arc::ptr_eq(&new.running.orders, &old.orders))
            };
            part.gone.extend(part.spaces.iter().filter(left).map(|old| Arc::clone(&old.orders)));
            part.spaces = prepared.spaces.into_iter().map(|space| space.running).collect();
            part.rings = prepared.rings;
            part.rising = prepared.rising;
            part.lenders = prepared.lenders;
            part.control.ring_only(part.spaces.iter().map(|space| Arc::clone(&space.bell)));
            part.tell();
        }
        state.changes += 1;
        state.spaces += plan.spaces.len();
        (state.plan, state.ids, state.origins, state.text) = (plan, ids, origins, text);
    }
}
