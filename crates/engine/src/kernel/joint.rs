//! The fused program of all requests at one attach point, as one tree. [SL §7.1, prefix sharing;
//! FEATURES O6, O7]
//!
//! In: the trees of the lines. Out: a tree in which what they do alike from its beginning on stands
//! once, so that an interface has one demultiplexer however many lines begin there; and what is
//! tallied in it, as what each line counts. A filter that keeps something between blocks is not
//! shared: the line that comes later would find what the other one has kept.
//!
//! Lines that go on in the same way from a step are counted together there ([`Fork`]).

use super::tree::{Step, Tree, Which, word};
use filter::{Amount, Description, Keeps};
use pipeline::ClassSet;
use pipeline::graph::{Graph, NodeId, Use};
use std::collections::HashMap;

/// A line as the joint tree needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member<'m> {
    pub(super) tree: &'m Tree,
    pub(super) graph: &'m Graph,
    /// Its number among all that ever were here, by which its words are known.
    pub(super) request: u32,
}

/// The trees of several lines as one.
#[derive(Clone, Debug, Default)]
pub(super) struct Joint {
    pub(super) steps: Vec<Shared>,
    pub(super) hands: Vec<Out>,
    pub(super) forks: Vec<Fork>,
    /// The steps that send frames out by an interface.
    pub(super) leads: Vec<usize>,
    lines: Vec<Own>,
}

/// A filter, for all lines that do the same with the same frames.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    /// The step before, none: the source.
    pub(super) from: Option<usize>,
    /// The classes that lead to it.
    pub(super) classes: ClassSet,
    /// The lines. The first one's word stands for it.
    pub(super) lines: Vec<usize>,
    /// The number that it has in the first one's tree.
    own: usize,
}

/// A way out, of one line.
#[derive(Clone, Debug)]
pub(super) struct Out {
    pub(super) line: usize,
    /// Its number in the line's tree.
    pub(super) own: usize,
    /// The step that it leaves, none: the source.
    pub(super) from: Option<usize>,
    pub(super) which: Which,
}

/// A fork: the edges over which some requests go on from a step, or from the source.
#[derive(Clone, Debug)]
pub(super) struct Fork {
    pub(super) at: Option<usize>,
    lines: Vec<usize>,
    pub(super) steps: Vec<usize>,
    /// Exits of one request only.
    pub(super) hands: Vec<usize>,
}

/// Positions of a request's steps and exits in the fused tree.
#[derive(Clone, Debug, Default)]
struct Own {
    steps: Vec<usize>,
    hands: Vec<usize>,
}

/// The counters of a program, by number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tally {
    /// Frames that the program was given.
    Ran,
    /// Blocks that came to a step.
    Entered(usize),
    /// Blocks that at least one edge of a fork with several let through.
    Passed(usize),
    /// Blocks that no edge of a fork wanted.
    Unselected(usize),
    /// Blocks that took a way out.
    Handed(usize),
    /// Delivered blocks that could not be copied.
    Failed(usize),
    /// Frames that the interface refused by which a step sends, by its number among those.
    Refused(usize),
}

/// Counters of a request in the kernel, by the numbers of its own tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Frames.
    pub(crate) ran: Amount,
    /// Input of each step.
    pub(crate) entered: Vec<Amount>,
    /// Output of the source, then of each step, over at least one edge.
    pub(crate) passed: Vec<Amount>,
    /// Blocks that no edge selected, in the same order.
    pub(crate) unselected: Vec<Amount>,
    /// Output of each exit.
    pub(crate) handed: Vec<Amount>,
    /// Output of each exit that could not be copied.
    pub(crate) failed: Vec<Amount>,
    /// Blocks that a step left unanswered, by reason.
    pub(crate) reasons: HashMap<(usize, String), u64>,
}

impl Joint {
    /// Joins the trees of these lines.
    pub(super) fn of(members: &[Member<'_>]) -> Self {
        let mut joint = Self::default();
        for (line, member) in members.iter().enumerate() {
            let mut own = Own::default();
            for number in 0..member.tree.steps.len() {
                own.steps.push(joint.step(members, line, number, &own.steps));
            }
            for (number, hand) in member.tree.hands.iter().enumerate() {
                let from = hand.from.and_then(|from| own.steps.get(from).copied());
                own.hands.push(joint.hands.len());
                joint.hands.push(Out { line, own: number, from, which: hand.which.clone() });
            }
            joint.lines.push(own);
            joint.fork(line);
        }
        joint
    }

    /// The step that one of a line's tree is: one that does the same with the same frames, or a new
    /// one.
    fn step(&mut self, members: &[Member<'_>], line: usize, own: usize, before: &[usize]) -> usize {
        let step = &members[line].tree.steps[own];
        let from = step.from.and_then(|from| before.get(from).copied());
        let same = |shared: &Shared| {
            let first = shared.lines[0];
            let other = &members[first].tree.steps[shared.own];
            let both = used(&members[first], other).zip(used(&members[line], step));
            let place = shared.from == from && shared.classes == step.classes;
            place && first != line && both.is_some_and(|(one, other)| is_shared(one, other))
        };
        if let Some(known) = self.steps.iter().position(same) {
            self.steps[known].lines.push(line);
            return known;
        }
        if used(&members[line], step).is_some_and(|used| used.endpoint.outlet.is_some()) {
            self.leads.push(self.steps.len());
        }
        self.steps.push(Shared { from, classes: step.classes.clone(), lines: vec![line], own });
        self.steps.len() - 1
    }

    /// Records the forks of the request that was added last.
    fn fork(&mut self, line: usize) {
        let places = std::iter::once(None).chain(self.lines[line].steps.iter().copied().map(Some));
        let places: Vec<Option<usize>> = places.collect();
        for at in places {
            let here = |step: &usize| self.steps[*step].from == at;
            let steps: Vec<usize> = self.lines[line].steps.iter().copied().filter(here).collect();
            let out = |hand: &usize| {
                let hand = &self.hands[*hand];
                hand.from == at && matches!(hand.which, Which::Classes(_))
            };
            let hands: Vec<usize> = self.lines[line].hands.iter().copied().filter(out).collect();
            let alike = |fork: &&mut Fork| {
                fork.at == at && fork.steps == steps && fork.hands.is_empty() && hands.is_empty()
            };
            match self.forks.iter_mut().find(alike) {
                _ if steps.is_empty() && hands.is_empty() => {}
                Some(fork) => fork.lines.push(line),
                None => self.forks.push(Fork { at, lines: vec![line], steps, hands }),
            }
        }
    }

    /// The number of a tally.
    pub(super) fn tally(&self, tally: Tally) -> u16 {
        let (steps, forks, hands) = (self.steps.len(), self.forks.len(), self.hands.len());
        let number = match tally {
            Tally::Ran => 0,
            Tally::Entered(step) => 1 + step,
            Tally::Passed(fork) => 1 + steps + fork,
            Tally::Unselected(fork) => 1 + steps + forks + fork,
            Tally::Handed(hand) => 1 + steps + 2 * forks + hand,
            Tally::Failed(hand) => 1 + steps + 2 * forks + hands + hand,
            Tally::Refused(lead) => 1 + steps + 2 * (forks + hands) + lead,
        };
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// Returns the number of counters.
    pub(super) fn tallies(&self) -> usize {
        1 + self.steps.len() + 2 * (self.forks.len() + self.hands.len()) + self.leads.len()
    }

    /// The steps that follow one, or the source, and the classes that lead to each.
    pub(super) fn behind(&self, from: Option<usize>) -> impl Iterator<Item = (usize, &ClassSet)> {
        let steps = self.steps.iter().enumerate();
        steps.filter(move |(_, step)| step.from == from).map(|(at, step)| (at, &step.classes))
    }

    /// The ways out of a step, or of the source, with their classes.
    pub(super) fn out(&self, from: Option<usize>) -> impl Iterator<Item = (usize, &ClassSet)> {
        let hands = self.hands.iter().enumerate().filter(move |(_, hand)| hand.from == from);
        hands.filter_map(|(at, hand)| match &hand.which {
            Which::Classes(classes) => Some((at, classes)),
            Which::Unsure => None,
        })
    }

    /// The only way on from a step, or from the source, if that is a filter: how it is counted,
    /// which filter, and the classes that lead there.
    pub(super) fn only_step(&self, at: Option<usize>) -> Option<(usize, usize, &ClassSet)> {
        let mut forks = self.forks_at(at);
        let (number, fork) = forks.next().filter(|(_, fork)| fork.is_one())?;
        let alone = forks.next().is_none() && fork.hands.is_empty();
        let step = fork.steps.first().filter(|_| alone)?;
        Some((number, *step, &self.steps.get(*step)?.classes))
    }

    /// The ways out for what a step is unsure of.
    pub(super) fn unsure(&self, step: usize) -> impl Iterator<Item = usize> {
        let hands = self.hands.iter().enumerate();
        let here = hands.filter(move |(_, hand)| hand.from == Some(step));
        here.filter(|(_, hand)| matches!(hand.which, Which::Unsure)).map(|(at, _)| at)
    }

    /// The mark of a frame that a step sends out by an interface, none if it does no such thing;
    /// and the number of the step among those that do.
    pub(super) fn lead(&self, step: usize) -> Option<(u16, usize)> {
        let number = self.leads.iter().position(|lead| *lead == step)?;
        Some((u16::try_from(self.forks.len() + number).unwrap_or(u16::MAX), number))
    }

    /// Returns the number of marks.
    pub(super) fn marks(&self) -> usize {
        self.forks.len() + self.leads.len()
    }

    /// Returns the forks at a step, or at the source.
    pub(super) fn forks_at(&self, at: Option<usize>) -> impl Iterator<Item = (usize, &Fork)> {
        self.forks.iter().enumerate().filter(move |(_, fork)| fork.at == at)
    }

    /// The line whose word stands for a step, and the node.
    pub(super) fn node(&self, members: &[Member<'_>], step: usize) -> (usize, NodeId) {
        let shared = &self.steps[step];
        let line = shared.lines[0];
        (line, members[line].tree.steps[shared.own].nodes[0])
    }

    /// The word that stands for a step.
    pub(super) fn word(&self, members: &[Member<'_>], step: usize) -> ebpf::FilterSpan {
        let (line, node) = self.node(members, step);
        word(members[line].graph, node).in_request(members[line].request)
    }

    /// The step of a line's own tree that is shared by nobody, by its number there.
    pub(super) fn own_step(&self, line: usize, step: usize) -> Option<usize> {
        self.lines.get(line)?.steps.iter().position(|known| *known == step)
    }

    /// Returns the counters of a request, read through `tally`.
    pub(super) fn counted(&self, line: usize, tally: impl Fn(u16) -> Amount) -> Counted {
        let read = |one: Tally| tally(self.tally(one));
        let Some(own) = self.lines.get(line) else { return Counted::default() };
        let places = || std::iter::once(None).chain(own.steps.iter().copied().map(Some));
        let fork =
            |at: Option<usize>| self.forks_at(at).find(|(_, fork)| fork.lines.contains(&line));
        let passed = |at: Option<usize>| match fork(at) {
            None => Amount::default(),
            Some((number, fork)) if fork.is_one() => {
                let step = fork.steps.first().map(|step| read(Tally::Entered(*step)));
                let hand = fork.hands.first().map(|hand| read(Tally::Handed(*hand)));
                step.or(hand).unwrap_or_else(|| read(Tally::Passed(number)))
            }
            Some((number, _)) => read(Tally::Passed(number)),
        };
        let unselected = |at: Option<usize>| {
            fork(at).map_or_else(Amount::default, |(number, _)| read(Tally::Unselected(number)))
        };
        let refused = self.leads.iter().enumerate().filter_map(|(number, step)| {
            let own = self.own_step(line, *step)?;
            let blocks = read(Tally::Refused(number)).blocks;
            (blocks > 0).then(|| ((own, REFUSED.to_owned()), blocks))
        });
        Counted {
            ran: read(Tally::Ran),
            entered: own.steps.iter().map(|step| read(Tally::Entered(*step))).collect(),
            passed: places().map(passed).collect(),
            unselected: places().map(unselected).collect(),
            handed: own.hands.iter().map(|hand| read(Tally::Handed(*hand))).collect(),
            failed: own.hands.iter().map(|hand| read(Tally::Failed(*hand))).collect(),
            reasons: refused.collect(),
        }
    }
}

/// The reason under which frames are counted that the egress interface refused.
pub(super) const REFUSED: &str = "refused";

impl Fork {
    /// Returns true if there is one edge only, whose target counts the blocks already.
    pub(super) fn is_one(&self) -> bool {
        self.steps.len() + self.hands.len() == 1
    }
}

impl Counted {
    /// Adds what another program has counted for the same line.
    pub(super) fn add(&mut self, more: &Self) {
        add(&mut self.ran, more.ran);
        for (to, from) in [
            (&mut self.entered, &more.entered),
            (&mut self.passed, &more.passed),
            (&mut self.unselected, &more.unselected),
            (&mut self.handed, &more.handed),
            (&mut self.failed, &more.failed),
        ] {
            to.resize(from.len().max(to.len()), Amount::default());
            to.iter_mut().zip(from).for_each(|(to, from)| add(to, *from));
        }
        for (what, count) in &more.reasons {
            *self.reasons.entry(what.clone()).or_default() += count;
        }
    }

    /// Takes in why filters did not answer, as the memory of a program's counters says; `own` is
    /// which step of the line a word stands for.
    pub(super) fn add_reasons(
        &mut self,
        code: &ebpf::Program,
        values: &[u8],
        own: impl Fn(&ebpf::FilterSpan) -> Option<usize>,
    ) {
        let (values, _) = values.as_chunks::<8>();
        for (counter, value) in code.counters.iter().zip(values) {
            let word = counter.filter.and_then(|word| code.filters.get(word));
            if let Some(own) = word.and_then(&own) {
                let known = self.reasons.entry((own, counter.name.clone())).or_default();
                *known += u64::from_ne_bytes(*value);
            }
        }
    }

    /// Returns the output of a step of the request's tree, or of its source, over at least one
    /// edge.
    pub(crate) fn passed(&self, at: Option<usize>) -> Amount {
        self.passed.get(at.map_or(0, |step| step + 1)).copied().unwrap_or_default()
    }

    /// Returns the blocks that no edge selected.
    pub(crate) fn unselected(&self, at: Option<usize>) -> Amount {
        self.unselected.get(at.map_or(0, |step| step + 1)).copied().unwrap_or_default()
    }
}

fn add(to: &mut Amount, more: Amount) {
    to.blocks += more.blocks;
    to.bytes += more.bytes;
}

fn used<'m>(member: &Member<'m>, step: &Step) -> Option<&'m Use> {
    step.nodes.first().and_then(|id| member.graph.node(*id).filter())
}

/// Returns true if steps of two requests are the same filter with the same arguments.
pub(super) fn alike(one: (&Member<'_>, usize), other: (&Member<'_>, usize)) -> bool {
    let filter = |(member, step): (&Member<'_>, usize)| {
        let used = used(member, member.tree.steps.get(step)?)?;
        Some((std::ptr::from_ref(used.description), used.arguments.clone()))
    };
    filter(one).is_some_and(|one| Some(one) == filter(other))
}

/// Returns true if two filters are identical and keep no state through which one would affect the
/// other.
fn is_shared(one: &Use, other: &Use) -> bool {
    let same = std::ptr::eq(one.description, other.description);
    // Who sends a frame twice means two frames.
    let plain = keeps_nothing(one.description) && one.endpoint.outlet.is_none();
    same && one.arguments == other.arguments && plain
}

/// Returns true if the kernel twin of a filter is stateless: sessions it leaves to the user
/// implementation.
fn keeps_nothing(description: &Description) -> bool {
    matches!(description.state.keeps, Keeps::Nothing | Keeps::Sessions)
}
