//! The classes of the blocks that arrive at a node or leave it.

use super::{Graph, NodeId};
use filter::Classes;

impl Graph {
    /// Returns the classes of the blocks that arrive at a node, as all filters that may have
    /// classified them define them. [`Classes::Same`] stands for blocks that no filter has
    /// classified.
    #[must_use]
    pub fn input_classes(&self, id: NodeId) -> Vec<Classes> {
        let mut found = Vec::new();
        for used in self.node(id).classifiers.iter().filter_map(|id| self.node(*id).filter()) {
            if !found.contains(&used.description.classes) {
                found.push(used.description.classes);
            }
        }
        found
    }

    /// Returns the classes of the blocks that leave a node, as [`Self::input_classes`] does for
    /// those that arrive.
    #[must_use]
    pub fn output_classes(&self, id: NodeId) -> Vec<Classes> {
        let own = |id| self.node(id).filter().map(|used| used.description.classes);
        match own(id) {
            Some(own) if own != Classes::Same => vec![own],
            _ => {
                let mut found = self.input_classes(id);
                let operands = self.operands(id).filter_map(own);
                found.extend(operands.filter(|own| *own != Classes::Same));
                found
            }
        }
    }
}
