//! Replacement of the entire text of a request. Filters that the old and the new text contain keep
//! their state.

use super::kinds::{EditResult, InvalidEdit};
use super::origins::print_with_origins;
use super::tree::{filters, parse_tree, without_sandbox};
use crate::language::Request;
use crate::language::tree::{FilterTerm, Term};

/// The weight of two equal filters in the comparison of two texts. It exceeds the total weight of
/// all pairs that only have the same name.
const EQUAL_FILTER_WEIGHT: u64 = 1 << 32;

/// Replaces the text of a request. Filters that are equal and in the same order in both texts
/// (their longest common subsequence) keep their state. Between two such filters, filters with the
/// same name keep their state too, because they may differ only in a writable argument.
pub(super) fn replace_text(old: &Request, new: &str) -> Result<EditResult, InvalidEdit> {
    let request = parse_tree(new, "the new request")?;
    let text = |node: &FilterTerm| {
        Term::Filter(without_sandbox(FilterTerm { pin: None, ..node.clone() })).to_string()
    };
    let (before, after): (Vec<_>, Vec<_>) = (filters(old).collect(), filters(&request).collect());
    let (old_texts, new_texts): (Vec<String>, Vec<String>) = (
        before.iter().map(|node| text(node)).collect(),
        after.iter().map(|node| text(node)).collect(),
    );
    let weight = |i: usize, j: usize| match old_texts[i] == new_texts[j] {
        true => EQUAL_FILTER_WEIGHT,
        false => u64::from(before[i].name.text == after[j].name.text),
    };
    // Weights of the heaviest common subsequences, for each pair of suffixes.
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
    print_with_origins(&request, &origins)
}
