//! A line in the place of another one of the same path, in one step: every frame meets exactly one
//! of both. [Th §5.4]
//!
//! In: a line that runs, and one that is to run instead. First the new one is made with all that it
//! has for itself, and a program in which it stands for the old one is verified and loaded beside
//! the one that runs. Then the link puts that program in its place, between two frames on each
//! processor. When the old program runs nowhere any more, what it handed over is complete, and what
//! the old line has counted is its last word.

use super::super::host::{Lent, NotSwitched, Refusal, Succeeds, Successor};
use super::super::joint::{Member, alike};
use super::Standing;
use super::kept::Next;
use super::line::{Line, New};
use super::version::{Failure, States, Version};
use std::sync::{Arc, OnceLock};
use sys::steps::{Resource, Steps, UNLOGGED};

/// A line that waits.
#[derive(Debug)]
struct Waiting {
    old: Arc<Standing>,
    /// Its steps that go on with what one of the old line has kept, by the number there.
    stays: Vec<usize>,
    ready: Option<Ready>,
}

#[derive(Debug)]
struct Ready {
    line: Line,
    version: Version,
    states: States,
    steps: Steps,
    /// Number of replacements of the program when this one was made.
    replaced: u64,
}

/// Resource a line that can be put in the place of `old`. `stays` names the steps of the old one
/// and of the new one that are the same filter.
pub(super) fn prepare(
    old: Arc<Standing>,
    mut new: New,
    stays: &[(usize, usize)],
) -> Result<Successor, Refusal> {
    let source = new.source;
    let refused = |why: String| Refusal { node: source, why };
    let point = Arc::clone(&old.point);
    let steps = new.steps.clone();
    let step = |makes, what| steps.take(makes, what).map_err(|error| refused(error.to_string()));
    let mut state = point.state();
    step(Resource::Memory, "what waits for programs")?;
    state.begin_to_wait().map_err(refused)?;
    let number = point.next_number();
    let mut kept = Vec::new();
    if let Some(line) = state.lines.iter().find(|line| line.number == old.number) {
        let (before, member) =
            (line.member(), Member { tree: &new.tree, graph: &new.graph, request: number });
        // Who has lines run by others may say anything: what one filter keeps is no other one's.
        let same = |(from, own): &&(usize, usize)| alike((&before, *from), (&member, *own));
        for (step, map) in &line.states {
            if let Some((_, own)) = stays.iter().filter(same).find(|(from, _)| from == step) {
                new.states.push((*own, Arc::clone(map)));
                kept.push(*step);
            }
        }
    }
    let made = Line::make(number, &state.lines, new);
    let (line, bell) = made.map_err(refused)?;
    let rings = Arc::clone(&line.pointers);
    let blame = |failure: Failure| Refusal {
        node: failure.node_of(number).unwrap_or(source),
        why: failure.why,
    };
    let lines = in_its_place(&state.lines, old.number, &line);
    let (version, states) = Version::make(&point, &lines, &steps).map_err(blame)?;
    step(Resource::Program, "a place at an interface")?;
    let (behind_tag, replaced) = (version.behind_tag(number), state.replaced);
    drop(state);
    let standing = Standing { point: Arc::clone(&point), number, ended: OnceLock::new() };
    let lent = Lent { held: Arc::new(standing), rings, bell, behind_tag };
    let ready = Some(Ready { line, version, states, steps, replaced });
    let switch = Box::new(Waiting { old, stays: kept, ready });
    Ok(Successor { lent, switch })
}

/// The lines of a program in which one stands for another.
fn in_its_place<'l>(lines: &'l [Line], old: u32, new: &'l Line) -> Vec<&'l Line> {
    let stay = lines.iter().filter(|line| !line.leaving && line.number != old);
    stay.chain([new]).collect()
}

impl Succeeds for Waiting {
    fn switch(&mut self) -> Result<(), NotSwitched> {
        self.put_there().map_err(NotSwitched::Refused)
    }
}

impl Waiting {
    fn put_there(&mut self) -> Result<(), String> {
        let point = Arc::clone(&self.old.point);
        let Some(ready) = self.ready.take() else {
            return Err("it was put there already".to_owned());
        };
        let Ready { mut line, mut version, mut states, steps, replaced } = ready;
        let mut state = point.state();
        if state.replaced != replaced {
            // Others have come or gone since.
            let lines = in_its_place(&state.lines, self.old.number, &line);
            let made = Version::make(&point, &lines, &UNLOGGED);
            (version, states) = made.map_err(|failure| failure.why)?;
        }
        let next = Next { version: &version, line: Some(&line), states: &states };
        point.store(&mut state, Some(next));
        steps.checkpoint("a line in the place of another one");
        let put = point.put(&mut state, version, &steps);
        steps.checkpoint("the line in whose place it is");
        if put.is_err() {
            point.store(&mut state, None);
        }
        put?;
        line.busy_before = point.busy();
        state.lines.push(line);
        state.keep(states);
        // What the old program handed over is complete behind this.
        state.settle();
        let number = self.old.number;
        if let Some(place) = state.lines.iter().position(|line| line.number == number) {
            let old = state.lines.remove(place);
            let mut ended = point.ended(&old);
            // What goes on elsewhere is told there.
            ended.states.retain(|step, _| !self.stays.contains(step));
            state.has_left(old.about, &ended);
            let _ = self.old.ended.set(ended);
        }
        point.store(&mut state, None);
        steps.checkpoint("a line in the place of another one is kept");
        Ok(())
    }
}
