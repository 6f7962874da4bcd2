//! A whole new text in the place of a request: which of its filters are those of the old one.

use super::tree::{nodes, tree, trusted};
use super::{Edited, Misfit, printed};
use crate::language::Request;
use crate::language::tree::{FilterTerm, Term};

/// A new text: the longest common sequence of filters, told apart by what they say, stays.
pub(super) fn whole(old: &Request, new: &str) -> Result<Edited, Misfit> {
    let request = tree(new, "the new request")?;
    let text = |node: &FilterTerm| {
        Term::Filter(trusted(FilterTerm { pin: None, ..node.clone() })).to_string()
    };
    let (before, after): (Vec<_>, Vec<_>) = (nodes(old).collect(), nodes(&request).collect());
    let (said, says): (Vec<String>, Vec<String>) = (
        before.iter().map(|node| text(node)).collect(),
        after.iter().map(|node| text(node)).collect(),
    );
    // How many are common from here on, for every pair of places.
    let mut common = vec![vec![0u32; says.len() + 1]; said.len() + 1];
    for i in (0..said.len()).rev() {
        for j in (0..says.len()).rev() {
            common[i][j] = match said[i] == says[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let mut origins = vec![None; says.len()];
    let (mut i, mut j) = (0, 0);
    while i < said.len() && j < says.len() {
        if said[i] == says[j] {
            origins[j] = Some(before[i].span);
            (i, j) = (i + 1, j + 1);
        } else if common[i + 1][j] >= common[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    printed(&request, &origins)
}
