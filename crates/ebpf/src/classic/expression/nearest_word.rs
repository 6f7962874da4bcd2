//! Spelling suggestions for misspelled words.

/// Returns the word in `words` that is most similar to `word`, or `None` if none is similar enough.
pub(super) fn nearest_word<'a>(
    words: impl Iterator<Item = &'a str>,
    word: &str,
) -> Option<&'a str> {
    let limit = if word.len() > 4 { 2 } else { 1 };
    words
        .filter(|candidate| candidate.len().abs_diff(word.len()) <= limit)
        .map(|candidate| (edit_distance(candidate.as_bytes(), word.as_bytes()), candidate))
        .min()
        .filter(|(distance, _)| *distance <= limit)
        .map(|(_, candidate)| candidate)
}

/// Returns the edit distance between two words, counting a transposition as one edit.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            best = best.min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}
