//! Propagation of link types from the sources to all nodes.

use std::sync::Arc;

use filter::{FilterKind, LinkType};

use super::arguments::ArgumentTexts;
use super::lower::{Draft, DraftStep};
use super::shape::successors;
use crate::graph::FilterUse;
use crate::registry::Registry;

/// All link types that are possible at a node, or `None` if they are unknown.
type LinkTypes = Option<Arc<[LinkType]>>;

/// The link types of the frames that may arrive at a node, as found so far.
#[derive(Clone)]
enum LinkTypeSet {
    Nothing,
    Known(Vec<LinkType>),
    Unknown,
}

impl LinkTypeSet {
    fn from_option(links: Option<Vec<LinkType>>) -> Self {
        match links {
            Some(links) if !links.is_empty() => Self::Known(links),
            _ => Self::Unknown,
        }
    }

    /// Adds to this set the link types of another incoming edge. Returns true if the set has grown.
    fn add(&mut self, more: &Self) -> bool {
        match (&mut *self, more) {
            (_, Self::Nothing) | (Self::Unknown, _) => false,
            (Self::Nothing, _) | (_, Self::Unknown) => {
                *self = more.clone();
                true
            }
            (Self::Known(known), Self::Known(more)) => {
                let before = known.len();
                for link in more {
                    if !known.contains(link) {
                        known.push(*link);
                    }
                }
                known.len() > before
            }
        }
    }
}

/// Returns the link types of the frames that arrive at each node.
pub(super) fn infer_link_types(
    draft: &Draft<'_>,
    used: &[Option<FilterUse>],
    texts: &[Option<ArgumentTexts<'_>>],
    registry: &dyn Registry,
) -> Vec<LinkTypes> {
    let mut input = vec![LinkTypeSet::Nothing; used.len()];
    let mut open = Vec::new();
    for (index, node) in used.iter().enumerate() {
        let source = node.as_ref().filter(|used| used.description.kind == FilterKind::Source);
        if let (Some(used), Some(read)) = (source, &texts[index]) {
            // A source with invalid arguments has unknown link types.
            let known =
                read.is_valid.then(|| registry.source_links(used.description, &used.arguments));
            input[index] = LinkTypeSet::from_option(known.flatten());
            open.push(index);
        }
    }
    // A node is visited again when its set has grown. This is cheap because sources have few link
    // types.
    let successors = successors(draft);
    while let Some(index) = open.pop() {
        let emitted = output_links(used[index].as_ref(), &input[index]);
        for to in &successors[index] {
            if input[*to].add(&emitted) {
                open.push(*to);
            }
        }
    }
    for (index, node) in draft.nodes.iter().enumerate() {
        if let DraftStep::Section(body, _) = &node.step {
            let here = input[index].clone();
            body.propagate(here, &mut |id, here| {
                let emitted = output_links(used[id.0].as_ref(), &here);
                input[id.0] = here;
                emitted
            });
        }
    }
    let known = |input: LinkTypeSet| match input {
        LinkTypeSet::Known(links) => Some(links.into()),
        LinkTypeSet::Nothing | LinkTypeSet::Unknown => None,
    };
    input.into_iter().map(known).collect()
}

/// Returns the link types of the frames that leave a node. `input` contains the link types of the
/// frames that arrive there.
fn output_links(used: Option<&FilterUse>, input: &LinkTypeSet) -> LinkTypeSet {
    let relinked = used.and_then(|used| used.description.analysis.output_links?(&used.arguments));
    relinked.map_or_else(|| input.clone(), |links| LinkTypeSet::from_option(Some(links.to_vec())))
}
