//! The link types of the frames that come to each node, from the sources on.

use std::sync::Arc;

use filter::{Kind, LinkType};

use super::arguments::Read;
use super::lower::{Draft, DraftStep};
use super::shape::leaving;
use crate::catalogue::Catalogue;
use crate::graph::{Boolean, Use};

/// Link types that are known to be all; `None`: not known.
type Links = Option<Arc<[LinkType]>>;

/// The link types that have come to a node so far.
#[derive(Clone)]
enum Comes {
    Nothing,
    These(Vec<LinkType>),
    Unknown,
}

impl Comes {
    fn of(links: Option<Vec<LinkType>>) -> Self {
        match links {
            Some(links) if !links.is_empty() => Self::These(links),
            _ => Self::Unknown,
        }
    }

    /// Adds what comes over another edge. Answers whether there is anything new.
    fn add(&mut self, more: &Self) -> bool {
        match (&mut *self, more) {
            (_, Self::Nothing) | (Self::Unknown, _) => false,
            (Self::Nothing, _) | (_, Self::Unknown) => {
                *self = more.clone();
                true
            }
            (Self::These(known), Self::These(more)) => {
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

/// For each node the link types of the frames that come to it.
pub(super) fn links(
    draft: &Draft<'_>,
    used: &[Option<Use>],
    texts: &[Option<Read<'_>>],
    catalogue: &dyn Catalogue,
) -> Vec<Links> {
    let mut comes = vec![Comes::Nothing; used.len()];
    let mut open = Vec::new();
    for (index, node) in used.iter().enumerate() {
        let source = node.as_ref().filter(|used| used.description.kind == Kind::Source);
        if let (Some(used), Some(read)) = (source, &texts[index]) {
            // What is wrong in its arguments is reported, and makes it unknown what it gives.
            let known = read.right.then(|| catalogue.links(used.description, &used.arguments));
            comes[index] = Comes::of(known.flatten());
            open.push(index);
        }
    }
    // Each node is looked at again when more link types come to it than before. A source names few.
    let leaving = leaving(draft);
    while let Some(index) = open.pop() {
        let gives = gives(used[index].as_ref(), &comes[index]);
        for to in &leaving[index] {
            if comes[*to].add(&gives) {
                open.push(*to);
            }
        }
    }
    for (index, node) in draft.nodes.iter().enumerate() {
        if let DraftStep::Boolean(body, _) = &node.step {
            let here = comes[index].clone();
            within(body, here, used, &mut comes);
        }
    }
    let known = |comes: Comes| match comes {
        Comes::These(links) => Some(links.into()),
        Comes::Nothing | Comes::Unknown => None,
    };
    comes.into_iter().map(known).collect()
}

/// Says what comes to the operands of a composite; answers what the last gives. What leaves the
/// composite is what came.
fn within<L>(body: &Boolean<L>, here: Comes, used: &[Option<Use>], comes: &mut [Comes]) -> Comes {
    match body {
        Boolean::Filter(id) => {
            let gives = gives(used[id.0].as_ref(), &here);
            comes[id.0] = here;
            gives
        }
        Boolean::Not(inner) => {
            within(inner, here.clone(), used, comes);
            here
        }
        Boolean::Any(links) | Boolean::All(links) => {
            for link in links {
                within(&link.body, here.clone(), used, comes);
            }
            here
        }
        Boolean::Chain { first, rest } => {
            let first = within(first, here, used, comes);
            rest.iter().fold(first, |gives, link| within(&link.body, gives, used, comes))
        }
    }
}

/// Returns the link types that leave a node with this input.
fn gives(used: Option<&Use>, comes: &Comes) -> Comes {
    let relinked = used.and_then(|used| used.description.analysis.relinks?(&used.arguments));
    relinked.map_or_else(|| comes.clone(), |links| Comes::of(Some(links.to_vec())))
}
