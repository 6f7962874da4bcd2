//! Writers of a running path: lookup of the node whose output a program writes, and of its space.

use crate::live::PathHandle;
use crate::tap::{TapError, TapNode};
use abi::Class;
use endpoint::external_writers::{self, WriterForm, WriterSocket, WriterSource};
use filter::Form;
use pipeline::explain;
use std::time::Duration;

/// A request to add written blocks to the output of a node: the node, and the class and form of the
/// blocks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriterRequest {
    /// The node to whose output the blocks are added; `None` for the first source.
    pub node: Option<TapNode>,
    /// The class label of the blocks, as after `|` in a request; an empty label stands for the
    /// class that sources assign.
    pub class: String,
    /// True if the writer writes a capture.
    pub capture: bool,
}

impl PathHandle {
    /// Attaches a writer. Its blocks leave the node as if the node had emitted them. Returns the
    /// writer's end of the connection. Waits at most `limit` for each response of a space.
    ///
    /// # Errors
    ///
    /// Fails if the node is unknown or not accessible, if it does not emit blocks that can be
    /// written, if the run is recorded, if the node's space does not respond in time, or if the
    /// kernel refuses a socket.
    pub fn attach_writer(
        &self,
        wanted: &WriterRequest,
        limit: Duration,
    ) -> Result<WriterSocket, TapError> {
        let number = self.node_number(wanted.node.as_ref())?;
        self.check_outside_kernel(number)?;
        if let Some(filter) = self.kernel_successor(number) {
            return Err(TapError::NotTappable(format!(
                "`{filter}` runs in the kernel, where it cannot receive written bytes: move it out \
                 first (`streamline set PATH move {filter} process`)"
            )));
        }
        let form = self.form_of_written_blocks(number, wanted.capture)?;
        let class = self.class_of_written_blocks(number, &wanted.class)?;
        let here = (0..self.space_names().len()).find(|space| {
            let asked = self.execute(*space, limit, move |space| space.can_attach_writer(number));
            asked.unwrap_or(false)
        });
        let Some(space) = here else {
            let why = "this node takes no writers: it is a sink, a program or an operand, or has \
                       replicas";
            return Err(TapError::NotTappable(why.to_owned()));
        };
        let (outside, inside) =
            external_writers::create_writer_pair().map_err(TapError::Machine)?;
        let writer = WriterSource::new(inside, form, class);
        let attached = self.execute(space, limit, move |space| space.attach_writer(number, writer));
        match attached.map_err(TapError::SpaceUnavailable)? {
            Ok(()) => Ok(outside),
            Err(refusal) => Err(TapError::NotTappable(refusal.to_string())),
        }
    }

    /// Returns the form of the blocks that are made from written bytes. It depends on the form of
    /// the node's output. `capture` is true if the writer writes a capture. Fails if such blocks
    /// cannot be made.
    fn form_of_written_blocks(&self, number: usize, capture: bool) -> Result<WriterForm, TapError> {
        let (Some(plan), Some(at)) = (self.plan(), self.node_with_number(number)) else {
            return Err(TapError::UnresolvedNode(
                "this path has no such node: `streamline top PATH` lists its nodes".to_owned(),
            ));
        };
        let leaving = explain::node_facts(&plan.graph, at.0).form.unwrap_or(Form::Bytes);
        WriterForm::for_node_output(leaving, capture).map_err(TapError::NotTappable)
    }

    /// Returns the class of the blocks that are written to a node's output. Fails if the label does
    /// not select exactly one class.
    fn class_of_written_blocks(&self, number: usize, label: &str) -> Result<Class, TapError> {
        if label.is_empty() {
            return Ok(Class::YES);
        }
        let ranges = self.outgoing_class_ranges(number, label)?;
        match ranges.as_slice() {
            [(low, high)] if low == high => Ok(Class(*low)),
            _ => Err(TapError::NotTappable(format!(
                "`{label}` selects several classes: write in the directory of a single class"
            ))),
        }
    }
}
