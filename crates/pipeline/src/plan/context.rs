//! Facts about a filter that follow from its position in the plan: the classes that its arcs
//! select, the form of its input, and its space.

use super::{Plan, SpaceKind};
use crate::classes::ClassSet;
use crate::graph::{Edge, NodeId, Step};
use filter::{Arguments, Form};

impl Plan {
    /// Returns the arguments of a filter with the facts that follow from its position in the plan.
    /// Returns `None` if the node is not a filter.
    #[must_use]
    pub fn arguments_in_context(&self, id: NodeId) -> Option<Arguments> {
        let used = self.graph.node(id).filter()?;
        let arguments = used.arguments.clone().with_selected_classes(self.explicit_classes(id));
        let arguments = arguments.with_fallback(self.space_of(id).kind == SpaceKind::Kernel);
        Some(arguments.with_message_input(self.reads_messages(id)))
    }

    /// Returns the class ranges that the outgoing arcs of a node name explicitly.
    #[must_use]
    pub fn explicit_classes(&self, id: NodeId) -> Vec<(u32, u32)> {
        let graph = &self.graph;
        let entered = |edge: &Edge| {
            // The classes that enter a section may also be named on the arcs of its operands.
            let mut all = vec![edge.classes.clone()];
            if let Step::Section(body) = &graph.node(edge.to).step {
                body.collect_entry_classes(&mut all);
            }
            all
        };
        let named = graph.edges.iter().filter(|edge| edge.from == id).flat_map(entered);
        let named = named.filter(|classes| !classes.is_all() && !classes.is_plain());
        named.flat_map(|classes| classes.ranges().to_vec()).collect()
    }

    /// Returns the classes of the blocks that can pass an edge. Some filters emit certain classes
    /// only on edges that name one of these classes. If the edge names none of them, they are
    /// removed from the classes of the edge.
    #[must_use]
    pub fn classes_on_edge(&self, edge: &Edge) -> ClassSet {
        let from = self.graph.node(edge.from).filter();
        let made = from.and_then(|used| used.description.classes_on_request);
        let made = made.filter(|made| !self.graph.names_class_within(edge, *made));
        edge.classes.without_unrequested_classes(made)
    }

    /// Returns true if a filter has inputs, and all of them carry messages, records or bytes.
    #[must_use]
    pub fn reads_messages(&self, id: NodeId) -> bool {
        let forms = &self.graph.node(id).input_forms;
        let is_message = |form: &Form| matches!(form, Form::Message | Form::Record | Form::Bytes);
        !forms.is_empty() && forms.iter().all(is_message)
    }
}
