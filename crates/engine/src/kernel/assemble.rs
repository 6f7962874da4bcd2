//! The kernel segment of a plan as one program. [SL §5.3, §7.1; CONTRACT 18]
//!
//! In: the tree of steps that a plan has for one interface and direction. Out: the program, what is
//! handed over to whom, and where what is tallied. Pieces stand one inside the other, each in an
//! arm of its own, so that what several branches have in common is done once and knows what was
//! found before.
//!
//! A block leaves a step by the classes that its edges want, and over several edges if several want
//! it. One that a piece is unsure of goes to the user implementation of that filter, as it came to
//! it, and nowhere else from there on in the kernel.

use super::Refusal;
use ebpf::Word;
use ebpf::emit::tap::{self, HANDED_MAX, Hand, TALLIES_MAX, Tap};
use ebpf::emit::{Cmp, Emit, Exit, Layers, Scope, Target, Unfit, Value};
use filter::Arguments;
use pipeline::ClassSet;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::Program as Planned;
use std::cell::RefCell;

/// What a program does with a frame, as far as one part of the graph is concerned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// The filters.
    pub(crate) steps: Vec<Step>,
    /// What leaves.
    pub(crate) hands: Vec<Handed>,
}

/// A filter in the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// The nodes that it is.
    pub(crate) nodes: Vec<NodeId>,
    /// The step before, none: the source.
    pub(crate) from: Option<usize>,
    /// The classes that lead to it.
    pub(crate) classes: ClassSet,
}

/// A way out of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    /// The step that it leaves, none: the source.
    pub(crate) from: Option<usize>,
    /// Which blocks, or those that the step is unsure of.
    pub(crate) which: Which,
    /// Over which edge of the graph; of what a step is unsure of, the one that led to it.
    pub(crate) edge: usize,
    /// To which node.
    pub(crate) to: NodeId,
}

/// Which blocks take a way out.
#[derive(Clone, Debug)]
pub(crate) enum Which {
    /// These classes.
    Classes(ClassSet),
    /// What the step cannot tell.
    Unsure,
}

/// What is tallied of a frame and a step, by number.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tally {
    /// Frames that the program was given.
    Ran,
    /// Blocks that at least one edge of the source, or of a step, let through.
    Passed(Option<usize>),
    /// Blocks that none of them wanted.
    Unselected(Option<usize>),
    /// Blocks that came to a step.
    Entered(usize),
    /// Blocks that took a way out.
    Handed(usize),
}

impl Tree {
    /// The tree of what belongs to some nodes.
    pub(crate) fn new(planned: &Planned, graph: &Graph, ours: impl Fn(NodeId) -> bool) -> Self {
        let mut kept = vec![None; planned.steps.len()];
        let mut tree = Self::default();
        for (number, step) in planned.steps.iter().enumerate() {
            let nodes: Vec<NodeId> = step.nodes.iter().copied().filter(|id| ours(*id)).collect();
            if !nodes.is_empty() {
                kept[number] = Some(tree.steps.len());
                let from = step.from.and_then(|from| kept[from]);
                tree.steps.push(Step { nodes, from, classes: step.classes.clone() });
            }
        }
        for leave in &planned.leaves {
            let edge = &graph.edges[leave.edge.0];
            if ours(edge.from) {
                let from = leave.from.and_then(|from| kept[from]);
                let which = Which::Classes(leave.classes.clone());
                tree.hands.push(Handed { from, which, edge: leave.edge.0, to: edge.to });
            }
        }
        for (number, step) in tree.steps.iter().enumerate() {
            for node in &step.nodes {
                let into = graph.edges.iter().position(|edge| edge.to == *node);
                let (from, to) = (Some(number), *node);
                let unsure = Handed { from, which: Which::Unsure, edge: into.unwrap_or(0), to };
                tree.hands.push(unsure);
            }
        }
        tree
    }

    /// The number of a tally.
    pub(crate) fn tally(&self, tally: Tally) -> u16 {
        let steps = self.steps.len();
        let number = match tally {
            Tally::Ran => 0,
            Tally::Passed(None) => 1,
            Tally::Unselected(None) => 2,
            Tally::Passed(Some(step)) => 3 + step,
            Tally::Unselected(Some(step)) => 3 + steps + step,
            Tally::Entered(step) => 3 + 2 * steps + step,
            Tally::Handed(hand) => 3 + 3 * steps + hand,
        };
        u16::try_from(number).unwrap_or(u16::MAX)
    }

    /// The steps that follow one, or the source, and the classes that lead to each.
    fn behind(&self, from: Option<usize>) -> impl Iterator<Item = (usize, &ClassSet)> {
        let steps = self.steps.iter().enumerate();
        steps.filter(move |(_, step)| step.from == from).map(|(at, step)| (at, &step.classes))
    }

    /// The ways out of a step, or of the source, with their classes.
    fn out(&self, from: Option<usize>) -> impl Iterator<Item = (usize, &ClassSet)> {
        let hands = self.hands.iter().enumerate().filter(move |(_, hand)| hand.from == from);
        hands.filter_map(|(at, hand)| match &hand.which {
            Which::Classes(classes) => Some((at, classes)),
            Which::Unsure => None,
        })
    }

    fn unsure(&self, step: usize) -> impl Iterator<Item = usize> {
        let hands = self.hands.iter().enumerate();
        let here = hands.filter(move |(_, hand)| hand.from == Some(step));
        here.filter(|(_, hand)| matches!(hand.which, Which::Unsure)).map(|(at, _)| at)
    }

    /// Whether more than one edge leads on, so that it must be counted whether any was taken.
    pub(crate) fn forks(&self, from: Option<usize>) -> bool {
        self.edges(from) > 1
    }

    fn edges(&self, from: Option<usize>) -> usize {
        self.behind(from).count() + self.out(from).count()
    }
}

/// A tree as a program.
#[derive(Debug)]
pub(crate) struct Assembled {
    /// The program.
    pub(crate) program: ebpf::Program,
    /// Of each way out, whether what is seen there begins behind a tag that may lie beside.
    pub(crate) behind_tag: Vec<bool>,
}

/// Makes the program.
pub(crate) fn assemble(
    tree: &Tree,
    graph: &Graph,
    source: NodeId,
    (target, layout): (Target, &Tap),
) -> Result<Assembled, Refusal> {
    let tallies = tree.tally(Tally::Handed(tree.hands.len()));
    if tree.hands.len() > HANDED_MAX as usize || tallies > TALLIES_MAX {
        let why = "it leaves the kernel on more ways than one program has".to_owned();
        return Err(Refusal { node: source, why });
    }
    let emission = Emission {
        tree,
        graph,
        at: RefCell::new(source),
        behind_tag: RefCell::new(vec![false; tree.hands.len()]),
    };
    let hands = (0..tree.hands.len()).map(|hand| emission.hand(hand)).collect();
    let made = tap::tap(
        target,
        layout,
        |s, on, done| {
            let length = s.viewed(on);
            s.tally(tree.tally(Tally::Ran), length);
            emission.route(s, None, on, done)?;
            Ok(hands)
        },
        |s, on| {
            let length = s.viewed(on);
            s.tally(tree.tally(Tally::Ran), length);
            emission.all_unsure(s, on);
        },
    );
    let behind_tag = emission.behind_tag.into_inner();
    let refused = |unfit: Unfit| Refusal { node: *emission.at.borrow(), why: unfit.why.into() };
    Ok(Assembled { program: made.map_err(refused)?, behind_tag })
}

struct Emission<'t> {
    tree: &'t Tree,
    graph: &'t Graph,
    /// The node that was emitted last: whose fault it is.
    at: RefCell<NodeId>,
    behind_tag: RefCell<Vec<bool>>,
}

impl Emission<'_> {
    fn hand(&self, number: usize) -> Hand {
        let reader = u8::try_from(number).unwrap_or(u8::MAX);
        let edge = u32::try_from(self.tree.hands[number].edge).unwrap_or(u32::MAX);
        Hand { number: reader.into(), reader, edge }
    }

    /// Sends a block on its ways, and then to `done`: `on` is what is known of it, its class
    /// included.
    fn route<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        from: Option<usize>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), Unfit> {
        let tree = self.tree;
        if tree.edges(from) == 0 {
            s.leave(done);
            return Ok(());
        }
        let forks = tree.forks(from).then(|| s.var(0));
        for (step, classes) in tree.behind(from).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, end| {
                only_of(t, on.class, classes, end);
                match forks {
                    Some(taken) => {
                        t.set(taken, 1);
                        self.step(t, step, on, end)
                    }
                    None => self.step(t, step, on, done),
                }
            })?;
        }
        for (hand, classes) in tree.out(from).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, end| {
                only_of(t, on.class, classes, end);
                self.leave(t, hand, on);
                match forks {
                    Some(taken) => t.set(taken, 1),
                    None => t.leave(done),
                }
            });
        }
        let length = s.viewed(on);
        if let Some(taken) = forks {
            s.arm(|t, none| {
                let taken = t.get(taken);
                t.only(taken, Cmp::Ne, 0, none);
                t.tally(tree.tally(Tally::Passed(from)), length);
                t.leave(done);
            });
        }
        s.tally(tree.tally(Tally::Unselected(from)), length);
        s.leave(done);
        Ok(())
    }

    /// A filter, and all behind it; then to `end`.
    fn step<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        step: usize,
        on: Layers<'s>,
        end: Exit<'s>,
    ) -> Result<(), Unfit> {
        let length = s.viewed(on);
        s.tally(self.tree.tally(Tally::Entered(step)), length);
        let (word, twin, arguments) = self.piece(step)?;
        s.doubting(|t, _| {
            t.arm(|u, absent| {
                let answer = u.piece(word, twin, arguments, on, absent)?;
                self.route(u, Some(step), answer.layers, end)
            })?;
            let none = Layers { class: Value::Const(0), ..on };
            self.route(t, Some(step), none, end)
        })?;
        for hand in self.tree.unsure(step) {
            self.leave(s, hand, on);
        }
        s.leave(end);
        Ok(())
    }

    fn piece(&self, step: usize) -> Result<(Word, Emit<Arguments>, &Arguments), Unfit> {
        let id = self.tree.steps[step].nodes[0];
        *self.at.borrow_mut() = id;
        let node = self.graph.node(id);
        let used = node.filter().ok_or_else(|| Unfit::new("it is no filter"))?;
        let twin = used.description.kernel.ok_or_else(|| Unfit::new("no twin"))?;
        Ok((self.word(id), twin, &used.arguments))
    }

    fn word(&self, id: NodeId) -> Word {
        word(self.graph, id)
    }

    /// Hands a block over.
    fn leave<'s>(&self, s: &mut Scope<'s, '_>, hand: usize, on: Layers<'s>) {
        let length = s.viewed(on);
        s.tally(self.tree.tally(Tally::Handed(hand)), length);
        self.behind_tag.borrow_mut()[hand] = tap::is_behind_tag(&on);
        s.hand_over(self.hand(hand), on, on.class);
    }

    /// What nothing can be read of: all that follows the source is unsure of it.
    fn all_unsure<'s>(&self, s: &mut Scope<'s, '_>, on: Layers<'s>) {
        let tree = self.tree;
        for (step, _) in tree.behind(None).filter(|(_, set)| may_be(on.class, set)) {
            let length = s.viewed(on);
            s.tally(tree.tally(Tally::Entered(step)), length);
            tree.unsure(step).for_each(|hand| self.leave(s, hand, on));
        }
        for (hand, _) in tree.out(None).filter(|(_, set)| may_be(on.class, set)) {
            self.leave(s, hand, on);
        }
        if tree.forks(None) {
            let length = s.viewed(on);
            s.tally(tree.tally(Tally::Passed(None)), length);
        }
    }
}

/// The words of the request that a node stands for.
pub(crate) fn word(graph: &Graph, id: NodeId) -> Word {
    let node = graph.node(id);
    Word::new(node.name(), node.span.start, node.span.end - node.span.start)
}

/// Whether a class that is known while emitting is in the set; others may be.
fn may_be(class: Value<'_>, set: &ClassSet) -> bool {
    match class {
        Value::Const(class) => set.contains(class),
        Value::Num(_) => true,
    }
}

/// Goes on only with a class of the set.
fn only_of<'s>(s: &mut Scope<'s, '_>, class: Value<'s>, set: &ClassSet, miss: Exit<'s>) {
    let open = |high: u32| if high >= ebpf::emit::ZERO { u32::MAX } else { high };
    match set.ranges() {
        [] => s.leave(miss),
        [(low, high)] => s.only_in(class, *low, open(*high), miss),
        ranges => s.arm(|t, found| {
            for (low, high) in ranges {
                t.arm(|u, other| {
                    u.only_in(class, *low, open(*high), other);
                    u.leave(found);
                });
            }
            t.leave(miss);
        }),
    }
}
