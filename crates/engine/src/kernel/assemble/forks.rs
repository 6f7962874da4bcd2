//! Emission of the edges that leave a step or the source: one fork per set of requests.
//!
//! Input: the class of a block, as a constant or as a value of the program. Output: code that
//! enters each step and delivers at each exit whose edge selects the class, and that counts for
//! each fork whether the block took any of its edges.

use super::super::fused_tree::{CounterId, Fork};
use super::Emitter;
use ebpf::emit::{Cmp, Exit, Layers, Scope, UnfitReason, Value};
use pipeline::ClassSet;

impl Emitter<'_> {
    /// Emits the edges that leave the step `from`, or the source if `from` is `None`. `on` is the
    /// state of the block, including its class. The emitted code continues at `done`.
    pub(super) fn emit_outgoing_edges<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        from: Option<usize>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        match self.fused.forks_of_step(from).count() {
            0 => s.leave(done),
            1 => self.emit_common_fork(s, from, on, done)?,
            _ => self.emit_separate_forks(s, from, on, done)?,
        }
        Ok(())
    }

    /// Emits the only fork after the step `from` (the source if `None`): all requests take the same
    /// edges there.
    fn emit_common_fork<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        from: Option<usize>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        let fused = self.fused;
        let Some((number, fork)) = fused.forks_of_step(from).next() else { return Ok(()) };
        let several = (!fork.has_one_edge()).then(|| s.var(0));
        for (step, classes) in
            fused.following_steps(from).filter(|(_, set)| may_contain(on.class, set))
        {
            s.arm(|t, end| {
                emit_class_test(t, on.class, classes, end);
                match several {
                    Some(taken) => {
                        t.set(taken, 1);
                        self.emit_step(t, step, on, end)
                    }
                    None => self.emit_step(t, step, on, done),
                }
            })?;
        }
        for (exit, classes) in fused.class_exits(from).filter(|(_, set)| may_contain(on.class, set))
        {
            s.arm(|t, end| {
                emit_class_test(t, on.class, classes, end);
                self.emit_delivery(t, exit, on);
                match several {
                    Some(taken) => t.set(taken, 1),
                    None => t.leave(done),
                }
            });
        }
        let length = s.view_length(on);
        if let Some(taken) = several {
            s.arm(|t, none| {
                let taken = t.get(taken);
                t.only(taken, Cmp::Ne, 0, none);
                t.add_to_tally(fused.counter_index(CounterId::Passed(number)), length);
                t.leave(done);
            });
        }
        s.add_to_tally(fused.counter_index(CounterId::Unselected(number)), length);
        s.leave(done);
        Ok(())
    }

    /// Emits the forks after the step `from` (the source if `None`), where requests take different
    /// edges. The code marks a taken fork in memory. With marks on the stack, the verifier would
    /// explore every combination of forks.
    fn emit_separate_forks<'s>(
        &self,
        s: &mut Scope<'s, '_>,
        from: Option<usize>,
        on: Layers<'s>,
        done: Exit<'s>,
    ) -> Result<(), UnfitReason> {
        let fused = self.fused;
        let open = |fork: &Fork| self.may_take(fork, from, on.class);
        let marks = || {
            let open = fused.forks_of_step(from).filter(|(_, fork)| open(fork));
            open.map(|(number, fork)| (mark_number(number), fork))
        };
        marks().for_each(|(mark, _)| s.set_mark(mark, false));
        for (step, classes) in
            fused.following_steps(from).filter(|(_, set)| may_contain(on.class, set))
        {
            s.arm(|t, end| {
                emit_class_test(t, on.class, classes, end);
                let ours = marks().filter(|(_, fork)| fork.steps.contains(&step));
                ours.for_each(|(mark, _)| t.set_mark(mark, true));
                self.emit_step(t, step, on, end)
            })?;
        }
        for (exit, classes) in fused.class_exits(from).filter(|(_, set)| may_contain(on.class, set))
        {
            s.arm(|t, end| {
                emit_class_test(t, on.class, classes, end);
                let ours = marks().filter(|(_, fork)| fork.exits.contains(&exit));
                ours.for_each(|(mark, _)| t.set_mark(mark, true));
                self.emit_delivery(t, exit, on);
            });
        }
        let length = s.view_length(on);
        for (number, fork) in fused.forks_of_step(from) {
            if !open(fork) {
                s.add_to_tally(fused.counter_index(CounterId::Unselected(number)), length);
                continue;
            }
            s.arm(|t, end| {
                t.arm(|u, none| {
                    u.only_marked(mark_number(number), none);
                    if !fork.has_one_edge() {
                        u.add_to_tally(fused.counter_index(CounterId::Passed(number)), length);
                    }
                    u.leave(end);
                });
                t.add_to_tally(fused.counter_index(CounterId::Unselected(number)), length);
            });
        }
        s.leave(done);
        Ok(())
    }

    /// Returns true if a block of this class may take an edge of `fork`. The fork follows the step
    /// `from` (the source if `None`).
    pub(super) fn may_take(&self, fork: &Fork, from: Option<usize>, class: Value<'_>) -> bool {
        let steps = fork.steps.iter().map(|step| &self.fused.steps[*step].classes);
        let exits = self.fused.class_exits(from).filter(|(exit, _)| fork.exits.contains(exit));
        steps.chain(exits.map(|(_, set)| set)).any(|set| may_contain(class, set))
    }
}

fn mark_number(number: usize) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

/// Returns true if the set may contain the class; always true for a class that is unknown at
/// emission.
pub(super) fn may_contain(class: Value<'_>, set: &ClassSet) -> bool {
    match class {
        Value::Const(class) => set.contains(class),
        Value::Num(_) => true,
    }
}

/// Emits a test that continues if the class is in the set, and otherwise jumps to `miss`.
pub(super) fn emit_class_test<'s>(
    s: &mut Scope<'s, '_>,
    class: Value<'s>,
    set: &ClassSet,
    miss: Exit<'s>,
) {
    let open = |high: u32| if high >= ebpf::emit::NATURAL_ZERO_CLASS { u32::MAX } else { high };
    match set.ranges() {
        [] => s.leave(miss),
        [(low, high)] => s.only_in_range(class, *low, open(*high), miss),
        ranges => s.arm(|t, found| {
            for (low, high) in ranges {
                t.arm(|u, other| {
                    u.only_in_range(class, *low, open(*high), other);
                    u.leave(found);
                });
            }
            t.leave(miss);
        }),
    }
}
