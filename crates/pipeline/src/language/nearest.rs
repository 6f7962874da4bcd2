//! Suggestions for misspelt names.

/// The maximum length of words that are compared, in characters. A limit is needed because the cost
/// is quadratic.
const COMPARED_LENGTH_MAX: usize = 32;

/// Returns the candidate with the smallest edit distance to `word`, or the first of several such
/// candidates. An edit is an insertion, a deletion, a replacement, or a swap of neighbours. Ignores
/// candidates that have more than 32 characters, that need more than one edit per three characters
/// of the longer word (one edit is always allowed), or that need as many edits as `word` has
/// characters. Returns `None` if no candidate remains, or if `word` has more than 32 characters.
pub fn find_nearest_word<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(COMPARED_LENGTH_MAX + 1).collect();
    if word.len() > COMPARED_LENGTH_MAX {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let other: Vec<char> = candidate.chars().take(COMPARED_LENGTH_MAX + 1).collect();
        let allowed = (word.len().max(other.len()) / 3).max(1);
        if other.len() > COMPARED_LENGTH_MAX || word.len().abs_diff(other.len()) > allowed {
            continue;
        }
        let edits = edit_distance(&word, &other);
        let near = edits <= allowed && edits < word.len();
        if near && best.is_none_or(|(least, _)| edits < least) {
            best = Some((edits, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Returns the edit distance of two words; a swap of neighbours counts as one edit.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replace = last[j] + usize::from(x != y);
            let mut least = replace.min(last[j + 1] + 1).min(row[j] + 1);
            let swapped = i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y;
            if swapped {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_within_one_edit_per_three_letters_is_found() {
        let names = ["http", "tcp", "udp", "files", "count", "rx"];
        for (word, meant) in [
            ("htpp", Some("http")),
            ("tpc", Some("tcp")),
            ("file", Some("files")),
            ("counts", Some("count")),
            ("rxx", Some("rx")),
            ("x", None),
            ("zebra", None),
            ("", None),
        ] {
            assert_eq!(find_nearest_word(word, names), meant, "{word}");
        }
        assert_eq!(find_nearest_word(&"a".repeat(100_000), names), None);
    }

    #[test]
    fn edit_distance_counts_a_swap_as_one_edit() {
        let count = |a: &str, b: &str| {
            edit_distance(&a.chars().collect::<Vec<_>>(), &b.chars().collect::<Vec<_>>())
        };
        assert_eq!(count("", "abc"), 3);
        assert_eq!(count("abc", "abc"), 0);
        assert_eq!(count("abc", "acb"), 1);
        assert_eq!(count("kitten", "sitting"), 3);
    }
}
