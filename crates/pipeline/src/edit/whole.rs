//! Replacement of the whole text: finds the filters that both texts have in common.

use super::tree::{filters, tree, trusted};
use super::{EditResult, InvalidEdit, printed};
use crate::language::Request;
use crate::language::tree::{FilterTerm, Term};

/// A match of equal filters outweighs any number of matches by name.
const EQUAL: u64 = 1 << 32;

/// Replaces the text; the longest common subsequence of equal filters keeps its state. Between
/// these, filters of one name match: they may differ in an argument that lets be set.
pub(super) fn whole(old: &Request, new: &str) -> Result<EditResult, InvalidEdit> {
    let request = tree(new, "the new request")?;
    let text = |node: &FilterTerm| {
        Term::Filter(trusted(FilterTerm { pin: None, ..node.clone() })).to_string()
    };
    let (before, after): (Vec<_>, Vec<_>) = (filters(old).collect(), filters(&request).collect());
    let (old_texts, new_texts): (Vec<String>, Vec<String>) = (
        before.iter().map(|node| text(node)).collect(),
        after.iter().map(|node| text(node)).collect(),
    );
    let weight = |i: usize, j: usize| match old_texts[i] == new_texts[j] {
        true => EQUAL,
        false => u64::from(before[i].name.text == after[j].name.text),
    };
    // Weights of the heaviest common subsequences of all pairs of suffixes.
    let mut common = vec![vec![0u64; new_texts.len() + 1]; old_texts.len() + 1];
    for i in (0..old_texts.len()).rev() {
        for j in (0..new_texts.len()).rev() {
            let matched = common[i + 1][j + 1] + weight(i, j);
            common[i][j] = matched.max(common[i + 1][j]).max(common[i][j + 1]);
        }
    }
    let mut origins = vec![None; new_texts.len()];
    let (mut i, mut j) = (0, 0);
    while i < old_texts.len() && j < new_texts.len() {
        let weight = weight(i, j);
        if weight > 0 && common[i][j] == common[i + 1][j + 1] + weight {
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
