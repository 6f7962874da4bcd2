//! The lines of an attach point as one program. [SL §5.3, §7.1; CONTRACT 18]
//!
//! In: the joint tree of the lines. Out: the program, and where what is handed over to whom. Pieces
//! stand one inside the other, each in an arm of its own, so that what several branches have in
//! common is done once and knows what was found before.

use super::joint::{Fork, Joint, Member, Tally};
use super::tree::Tree;
use ebpf::FilterSpan;
use ebpf::emit::redirect::{self, Redirect};
use ebpf::emit::tap::{self, DELIVERIES_MAX, Delivery, EXITS_MAX};
use ebpf::emit::{Answer, Cmp, Emit, Exit, Layers, Scope, Target, Unfit, Value};
use endpoint::source::rx::take::Head;
use filter::{Arguments, Kind};
use pipeline::ClassSet;
use pipeline::graph::NodeId;
use std::cell::{Cell, RefCell};

/// Lines as a program.
#[derive(Debug)]
pub(super) struct Assembled {
    /// The program.
    pub(super) program: ebpf::Program,
    /// True for each exit whose frames begin behind a VLAN tag that may lie beside the frame.
    pub(super) behind_tag: Vec<bool>,
    /// And what frames begin with there.
    pub(super) heads: Vec<Head>,
}

/// The final action of a program on its frames.
#[derive(Clone, Copy, Debug)]
pub(super) enum Layout<'l> {
    /// It copies them into these rings, and lets them by.
    Watches(&'l tap::FusedTap),
    /// It leads them to a socket, or out by the interfaces of these steps, and nobody else gets
    /// them.
    Takes(&'l Redirect, &'l [(usize, u32)]),
}

/// The reason requests cannot form a program, with the request and node at fault if there is one.
#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) at: Option<(usize, NodeId)>,
    pub(super) why: String,
}

/// Makes the program.
pub(super) fn assemble(
    joint: &Joint,
    members: &[Member<'_>],
    (target, layout): (Target, Layout<'_>),
) -> Result<Assembled, Misfit> {
    if members.iter().any(|member| !fits(member.tree)) {
        let why = "it leaves the kernel on more ways than one program has".to_owned();
        return Err(Misfit { at: None, why });
    }
    let emission = Emission {
        takes: match layout {
            Layout::Watches(_) => None,
            Layout::Takes(_, leads) => Some(leads),
        },
        joint,
        members,
        at: Cell::new(None),
        behind_tag: RefCell::new(vec![false; joint.hands.len()]),
        heads: RefCell::new(vec![Head::Link; joint.hands.len()]),
    };
    let made = emission.program(target, layout);
    let (behind_tag, heads) = (emission.behind_tag.into_inner(), emission.heads.into_inner());
    let refused = |unfit: Unfit| Misfit { at: emission.at.get(), why: unfit.why.into() };
    Ok(Assembled { program: made.map_err(refused)?, behind_tag, heads })
}

/// Returns true if the exits of a request fit the limits of one program.
pub(super) fn fits(tree: &Tree) -> bool {
    tree.hands.len() <= EXITS_MAX as usize && tree.sinks() <= DELIVERIES_MAX as usize
}

struct Emission<'t> {
    /// For an XDP redirect, the egress interfaces by step.
    takes: Option<&'t [(usize, u32)]>,
    joint: &'t Joint,
    members: &'t [Member<'t>],
    /// The node that was emitted last: whose fault it is.
    at: Cell<Option<(usize, NodeId)>>,
    behind_tag: RefCell<Vec<bool>>,
    heads: RefCell<Vec<Head>>,
}

impl Emission<'_> {
    fn program(&self, target: Target, layout: Layout<'_>) -> Result<ebpf::Program, Unfit> {
        match layout {
            Layout::Watches(joint) => tap::fused(
                target,
                joint,
                |s, on, done| self.body(s, on, done),
                |s, on| self.nobody(s, on),
            ),
            Layout::Takes(take, _) => redirect::redirect(
                target,
                take,
                |s, on, done| self.body(s, on, done),
                |s, on| self.nobody(s, on),
            ),
        }
    }

    fn body<'s>(&self, s: &mut Scope<'s, '_>, on: Layers<'s>, done: Exit<'s>) -> Result<(), Unfit> {
        let length = s.viewed(on);
        s.tally(self.joint.tally(Tally::Ran), length);
        self.chain(s, on, done)
    }

    /// As long as there is one way to go, pieces stand one behind the other: such a chain can be
    /// as long as it likes, since what becomes too much for one program goes on in the next.
    fn chain<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        mut on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), Unfit> {
        let joint = self.joint;
        let mut from = None;
        while let Some((fork, step, classes)) = joint.only_step(from) {
            let here = on;
            s.or_else(
                |s, miss| only_of(s, here.class, classes, miss),
                |s| self.end_at(s, Tally::Unselected(fork), here, done),
            );
            let length = s.viewed(on);
            s.tally(joint.tally(Tally::Entered(step)), length);
            on = s.link_or(Answer::new(on.class, on), |s| self.doubt(s, step, here, done)).layers;
            let (word, twin, arguments) = self.piece(step)?;
            let piece = (word, twin, arguments);
            let answer = if self.edits(step) {
                // Where the frame may have been changed, places are found anew.
                let kept = s.save_layers(on);
                let absent = |s: &mut Scope<'_, 's>| {
                    let on = s.restore_layers(kept);
                    self.route(s, Some(step), Layers { class: Value::Const(0), ..on }, done)
                };
                s.piece_or(piece, on, absent, |s| {
                    let on = s.restore_layers(kept);
                    self.doubt(s, step, on, done);
                })?
            } else {
                let (here, none) = (on, Layers { class: Value::Const(0), ..on });
                let absent = |s: &mut Scope<'_, 's>| self.route(s, Some(step), none, done);
                s.piece_or(piece, on, absent, |s| self.doubt(s, step, here, done))?
            };
            self.lead(s, step);
            on = answer.layers;
            from = Some(step);
        }
        self.route(s, from, on, done)
    }

    /// Returns true if a step changes frames.
    fn edits(&self, step: usize) -> bool {
        let (line, id) = self.joint.node(self.members, step);
        let used = self.members[line].graph.node(id).filter();
        used.is_some_and(|used| used.description.kind == Kind::Editing)
    }

    /// Has a frame sent out, if that is what a step does.
    fn lead(&self, s: &mut Scope<'_, '_>, step: usize) {
        let Some((mark, _)) = self.joint.lead(step) else { return };
        match self.takes.map(|leads| leads.iter().find(|(of, _)| *of == step)) {
            None => s.mark(mark, true),
            // One line's steps are those of the program.
            Some(found) => found.iter().for_each(|(_, interface)| s.redirect_to(*interface)),
        }
    }

    /// Hands over what a step is unsure of.
    fn doubt<'s>(&self, s: &mut Scope<'s, '_>, step: usize, on: Layers<'s>, done: Exit<'s>) {
        // Each in an arm of its own, behind which the stack is free again.
        self.joint.unsure(step).for_each(|hand| s.arm(|t, _| self.leave(t, hand, on)));
        s.leave(done);
    }

    fn end_at<'s>(&self, s: &mut Scope<'s, '_>, tally: Tally, on: Layers<'s>, done: Exit<'s>) {
        let length = s.viewed(on);
        s.tally(self.joint.tally(tally), length);
        s.leave(done);
    }

    /// Emits the path of a frame that cannot be read at all.
    fn nobody<'s>(&self, s: &mut Scope<'s, '_>, on: Layers<'s>) {
        let length = s.viewed(on);
        s.tally(self.joint.tally(Tally::Ran), length);
        self.all_unsure(s, on);
    }

    fn hand(&self, number: usize) -> Delivery {
        let failed = Some(self.joint.tally(Tally::Failed(number)));
        let out = &self.joint.hands[number];
        let tree = self.members[out.line].tree;
        let reader = u8::try_from(tree.hands[out.own].sink).unwrap_or(u8::MAX);
        let first = u16::try_from(out.line * DELIVERIES_MAX as usize).unwrap_or(u16::MAX);
        let (number, way) = (first.saturating_add(reader.into()), u32::try_from(out.own));
        let way = way.unwrap_or(u32::MAX);
        Delivery { number, reader, exit: way, shared: tree.shares(out.own), failed }
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
        match self.joint.forks_at(from).count() {
            0 => s.leave(done),
            1 => self.route_alike(s, from, on, done)?,
            _ => self.route_apart(s, from, on, done)?,
        }
        Ok(())
    }

    /// Emits a fork at which all requests take the same edges.
    fn route_alike<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        from: Option<usize>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), Unfit> {
        let joint = self.joint;
        let Some((number, fork)) = joint.forks_at(from).next() else { return Ok(()) };
        let several = (!fork.is_one()).then(|| s.var(0));
        for (step, classes) in joint.behind(from).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, end| {
                only_of(t, on.class, classes, end);
                match several {
                    Some(taken) => {
                        t.set(taken, 1);
                        self.step(t, step, on, end)
                    }
                    None => self.step(t, step, on, done),
                }
            })?;
        }
        for (hand, classes) in joint.out(from).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, end| {
                only_of(t, on.class, classes, end);
                self.leave(t, hand, on);
                match several {
                    Some(taken) => t.set(taken, 1),
                    None => t.leave(done),
                }
            });
        }
        let length = s.viewed(on);
        if let Some(taken) = several {
            s.arm(|t, none| {
                let taken = t.get(taken);
                t.only(taken, Cmp::Ne, 0, none);
                t.tally(joint.tally(Tally::Passed(number)), length);
                t.leave(done);
            });
        }
        s.tally(joint.tally(Tally::Unselected(number)), length);
        s.leave(done);
        Ok(())
    }

    /// Emits forks at which requests take different edges. Taken forks are marked in memory: marks
    /// on the stack would have the verifier explore every combination.
    fn route_apart<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        from: Option<usize>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), Unfit> {
        let joint = self.joint;
        let open = |fork: &Fork| self.may_take(fork, from, on.class);
        let marks = || {
            let open = joint.forks_at(from).filter(|(_, fork)| open(fork));
            open.map(|(number, fork)| (small(number), fork))
        };
        marks().for_each(|(mark, _)| s.mark(mark, false));
        for (step, classes) in joint.behind(from).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, end| {
                only_of(t, on.class, classes, end);
                let ours = marks().filter(|(_, fork)| fork.steps.contains(&step));
                ours.for_each(|(mark, _)| t.mark(mark, true));
                self.step(t, step, on, end)
            })?;
        }
        for (hand, classes) in joint.out(from).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, end| {
                only_of(t, on.class, classes, end);
                let ours = marks().filter(|(_, fork)| fork.hands.contains(&hand));
                ours.for_each(|(mark, _)| t.mark(mark, true));
                self.leave(t, hand, on);
            });
        }
        let length = s.viewed(on);
        for (number, fork) in joint.forks_at(from) {
            if !open(fork) {
                s.tally(joint.tally(Tally::Unselected(number)), length);
                continue;
            }
            s.arm(|t, end| {
                t.arm(|u, none| {
                    u.only_marked(small(number), none);
                    if !fork.is_one() {
                        u.tally(joint.tally(Tally::Passed(number)), length);
                    }
                    u.leave(end);
                });
                t.tally(joint.tally(Tally::Unselected(number)), length);
            });
        }
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
        s.tally(self.joint.tally(Tally::Entered(step)), length);
        let (word, twin, arguments) = self.piece(step)?;
        s.catch_unsure(|t, _| {
            t.arm(|u, absent| {
                let answer = u.piece(word, twin, arguments, on, absent)?;
                self.lead(u, step);
                self.route(u, Some(step), answer.layers, end)
            })?;
            let none = Layers { class: Value::Const(0), ..on };
            self.route(t, Some(step), none, end)
        })?;
        for hand in self.joint.unsure(step) {
            // Each in an arm of its own, behind which the stack is free again.
            s.arm(|t, _| self.leave(t, hand, on));
        }
        s.leave(end);
        Ok(())
    }

    fn piece(&self, step: usize) -> Result<(FilterSpan, Emit<Arguments>, &Arguments), Unfit> {
        let (line, id) = self.joint.node(self.members, step);
        self.at.set(Some((line, id)));
        let used = self.members[line].graph.node(id).filter();
        let used = used.ok_or_else(|| Unfit::new("it is no filter"))?;
        let twin = used.description.kernel.ok_or_else(|| Unfit::new("no twin"))?;
        Ok((self.joint.word(self.members, step), twin, &used.arguments))
    }

    /// Hands a block over.
    fn leave<'s>(&self, s: &mut Scope<'s, '_>, hand: usize, on: Layers<'s>) {
        let length = s.viewed(on);
        s.tally(self.joint.tally(Tally::Handed(hand)), length);
        self.behind_tag.borrow_mut()[hand] = tap::is_behind_tag(&on);
        self.heads.borrow_mut()[hand] = match (on.linked, on.l3) {
            (true, _) => Head::Link,
            (false, Some(_)) => Head::Packet,
            (false, None) => Head::Bytes,
        };
        s.deliver(self.hand(hand), on, on.class);
    }

    /// Emits the path of an unreadable frame: every node behind the source is unsure of it.
    fn all_unsure<'s>(&self, s: &mut Scope<'s, '_>, on: Layers<'s>) {
        let joint = self.joint;
        let length = s.viewed(on);
        for (step, _) in joint.behind(None).filter(|(_, set)| may_be(on.class, set)) {
            s.tally(joint.tally(Tally::Entered(step)), length);
            joint.unsure(step).for_each(|hand| s.arm(|t, _| self.leave(t, hand, on)));
        }
        for (hand, _) in joint.out(None).filter(|(_, set)| may_be(on.class, set)) {
            s.arm(|t, _| self.leave(t, hand, on));
        }
        for (number, fork) in joint.forks_at(None) {
            match self.may_take(fork, None, on.class) {
                true if fork.is_one() => {}
                true => s.tally(joint.tally(Tally::Passed(number)), length),
                false => s.tally(joint.tally(Tally::Unselected(number)), length),
            }
        }
    }
}

impl Emission<'_> {
    /// Returns true if a block of this class may take an edge of a fork.
    fn may_take(&self, fork: &Fork, from: Option<usize>, class: Value<'_>) -> bool {
        let steps = fork.steps.iter().map(|step| &self.joint.steps[*step].classes);
        let hands = self.joint.out(from).filter(|(hand, _)| fork.hands.contains(hand));
        steps.chain(hands.map(|(_, set)| set)).any(|set| may_be(class, set))
    }
}

fn small(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Returns true if the set may contain the class; a class unknown at emission always may be.
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
