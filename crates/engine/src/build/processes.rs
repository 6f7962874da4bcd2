//! Start of the processes of programs and untrusted filters. Each process has an input half and an
//! output half, in two spaces.

use super::builder::{Builder, Local, SpaceDraft};
use crate::description::zero_counts;
use crate::error::BuildError;
use crate::sandbox::FilterContext;
use endpoint::process::ProcessRole;
use pipeline::graph::{FilterUse, Graph, NodeId};
use runtime::space::node::{Node, Operator, SinkOperator, SourceOperator};
use runtime::space::node_key::NodeKey;

impl Builder<'_> {
    /// Returns true if the space `place` receives the output of a program.
    pub(super) fn has_output_half(&self, place: usize, program: NodeId) -> bool {
        let ends = process_role(&self.plan.graph, program) == ProcessRole::End;
        !ends && self.exit_space(program) == Some(place)
    }

    /// Returns true if the space `place` writes the input of a program.
    pub(super) fn has_input_half(&self, place: usize, program: NodeId) -> bool {
        let begins = process_role(&self.plan.graph, program) == ProcessRole::Head;
        !begins && self.entry_space(program) == Some(place)
    }

    /// Adds a placeholder for one half of a program to a space. This is the output half, which
    /// reads the program's output, if `gives` is true; otherwise it is the input half, which writes
    /// the program's input. Returns the index of the placeholder in the draft.
    pub(super) fn add_process_half(
        &self,
        id: NodeId,
        used: &FilterUse,
        gives: bool,
        draft: &mut SpaceDraft,
    ) -> Local {
        let number = self.node_number(id);
        let key = match gives && process_role(&self.plan.graph, id) != ProcessRole::Head {
            true => NodeKey::ProgramOutput(number),
            false => NodeKey::Node(number),
        };
        let mut made =
            Node::new(used.display_name(), number, Operator::Pass, zero_counts(used.description));
        made.counts_to_limit = self.counts_toward_limit(id);
        if used.is_untrusted() {
            (made.reasons, made.counters) = (used.description.reasons, used.description.counters);
        }
        let local = draft.assembly.add_node(made);
        match self.swap.is_some_and(|again| again.is_kept(key)) {
            true => draft.kept.push((local, key)),
            false => draft.programs.push((local, id)),
        }
        local
    }

    /// Starts a program of this component. Replaces the placeholders for its input half and its
    /// output half. Does nothing if the program already runs and survives the hot swap.
    pub(super) fn start_component_program(
        &self,
        id: NodeId,
        used: &FilterUse,
        drafts: &mut [SpaceDraft],
    ) -> Result<(), BuildError> {
        let (enters, leaves) = (self.entry_space(id), self.exit_space(id));
        let (Some(enters), Some(leaves)) = (enters, leaves) else { return Ok(()) };
        if self.swap.is_some_and(|again| again.is_kept(NodeKey::Node(self.node_number(id)))) {
            return Ok(());
        }
        let outside = self.endpoint_context();
        let started = match used.is_untrusted() {
            true => outside.start_untrusted_filter(id, used, self.filter_context(id))?,
            false => outside.start_program(id, used, process_role(&self.plan.graph, id))?,
        };
        let mut put = |place: usize, part: Operator| {
            let draft = &mut drafts[place];
            if let Some((local, _)) = draft.programs.iter().find(|(_, other)| *other == id) {
                draft.assembly.replace_operator(*local, part);
            }
        };
        if enters == leaves && started.input.is_some() && started.output.is_some() {
            // A thread that blocks while it feeds the program cannot drain the program's output, so
            // the two could deadlock.
            let what = format!("both sides of `{}` are in one thread", used.description.name);
            return Err(BuildError::Unexpected(what));
        }
        if let Some(sink) = started.input {
            put(enters, Operator::Sink(SinkOperator::new(sink)));
        }
        if let Some(source) = started.output {
            put(leaves, Operator::Source(SourceOperator::new(source)));
        }
        Ok(())
    }
}

impl Builder<'_> {
    /// Returns the start parameters for an untrusted filter, which runs in a process of its own.
    fn filter_context(&self, id: NodeId) -> FilterContext {
        FilterContext {
            selected_classes: self.plan.explicit_classes(id),
            seed: self.extras.record_mode.filter_seed(self.node_number(id)),
            numbers: self.session_numbers(id),
            fragments: self.accepts_fragments(id),
            reads_messages: self.plan.reads_messages(id),
            drives_clock: self.drives_clock,
            epoch: self.epoch,
        }
    }
}

fn process_role(graph: &Graph, program: NodeId) -> ProcessRole {
    match (graph.inputs(program).next(), graph.outputs(program).next()) {
        (Some(_), Some(_)) => ProcessRole::Middle,
        (Some(_), None) => ProcessRole::End,
        (None, _) => ProcessRole::Head,
    }
}
