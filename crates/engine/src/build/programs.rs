//! Programs: their two halves in the spaces on their two sides, and their start.

use super::builder::{Builder, Draft, Local};
use crate::described::counts;
use crate::error::BuildError;
use crate::sandbox::About;
use endpoint::process::Stands;
use pipeline::graph::{Graph, NodeId, Use};
use runtime::space::graft::Key;
use runtime::space::node::{Node, Part, SinkPart, SourcePart};

impl Builder<'_> {
    /// Returns true if this space takes up a program's output.
    pub(super) fn gives(&self, place: usize, program: NodeId) -> bool {
        let ends = stands(&self.plan.graph, program) == Stands::End;
        !ends && self.leaves(program) == Some(place)
    }

    /// Returns true if this space feeds a program.
    pub(super) fn takes(&self, place: usize, program: NodeId) -> bool {
        let begins = stands(&self.plan.graph, program) == Stands::Head;
        !begins && self.enters(program) == Some(place)
    }

    /// Leaves room for the half of a program that runs in this space, the one that gives blocks or
    /// the one that takes them; the other runs in another, or there is none.
    pub(super) fn half(&self, id: NodeId, used: &Use, gives: bool, draft: &mut Draft) -> Local {
        let number = self.number(id);
        let key = match gives && stands(&self.plan.graph, id) != Stands::Head {
            true => Key::Given(number),
            false => Key::Node(number),
        };
        let mut made = Node::new(used.title(), number, Part::Pass, counts(used.description));
        made.counted = self.is_counted(id);
        if used.is_untrusted() {
            (made.reasons, made.counters) = (used.description.reasons, used.description.counters);
        }
        let local = draft.assembly.node(made);
        match self.again.is_some_and(|again| again.keeps(key)) {
            true => draft.kept.push((local, key)),
            false => draft.programs.push((local, id)),
        }
        local
    }

    /// Starts a program of this part, and puts its halves where room was left for them.
    pub(super) fn program(
        &self,
        id: NodeId,
        used: &Use,
        drafts: &mut [Draft],
    ) -> Result<(), BuildError> {
        let (enters, leaves) = (self.enters(id), self.leaves(id));
        let (Some(enters), Some(leaves)) = (enters, leaves) else { return Ok(()) };
        if self.again.is_some_and(|again| again.keeps(Key::Node(self.number(id)))) {
            return Ok(());
        }
        let outside = self.outside();
        let started = match used.is_untrusted() {
            true => outside.apart(id, used, self.about(id))?,
            false => outside.program(id, used, stands(&self.plan.graph, id))?,
        };
        let mut put = |place: usize, part: Part| {
            let draft = &mut drafts[place];
            if let Some((local, _)) = draft.programs.iter().find(|(_, other)| *other == id) {
                draft.assembly.replace(*local, part);
            }
        };
        if enters == leaves && started.input.is_some() && started.output.is_some() {
            // Who waits for room before it would not take what makes room behind it.
            let what = format!("both sides of `{}` are in one thread", used.description.name);
            return Err(BuildError::Unexpected(what));
        }
        if let Some(sink) = started.input {
            put(enters, Part::Sink(SinkPart::new(sink)));
        }
        if let Some(source) = started.output {
            put(leaves, Part::Source(SourcePart::new(source)));
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// Returns the description of a filter that runs in a process of its own.
    fn about(&self, id: NodeId) -> About {
        About {
            asked: self.asked(id),
            seed: self.extras.tape.seed(self.number(id)),
            numbers: self.numbering(id),
            fragments: self.takes_fragments(id),
            tells_time: self.tells_time,
            epoch: self.epoch,
        }
    }
}

fn stands(graph: &Graph, program: NodeId) -> Stands {
    match (graph.inputs(program).next(), graph.outputs(program).next()) {
        (Some(_), Some(_)) => Stands::Middle,
        (Some(_), None) => Stands::End,
        (None, _) => Stands::Head,
    }
}
