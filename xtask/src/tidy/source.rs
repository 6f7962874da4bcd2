//! Minimal lexer that separates Rust code from comments and literals, so that rules about code
//! ignore text.

/// Returns the text with every comment and literal replaced by blanks; lines and columns are
/// unchanged.
pub(crate) fn blank_comments_and_literals(text: &str) -> String {
    blank_comments(text, true)
}

/// Returns the text with every comment replaced by blanks; literals are unchanged.
pub(crate) fn strip_comments(text: &str) -> String {
    blank_comments(text, false)
}

fn blank_comments(text: &str, literals: bool) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_comment_or_literal(&chars, at);
        if end > at && chars[at] != '/' && !literals {
            out.extend(&chars[at..end]);
            at = end;
        } else if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(chars[at..end].iter().map(|&c| if c == '\n' { c } else { ' ' }));
            at = end;
        }
    }
    out
}

/// Returns the index after the comment or literal that begins at `at`, or `at` if none begins
/// there.
fn end_of_comment_or_literal(chars: &[char], at: usize) -> usize {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => find_end_index(chars, at, |rest| rest[0] == '\n'),
        '/' if next == Some('*') => end_of_block_comment(chars, at),
        '"' => end_of_string(chars, at + 1),
        'r' if !is_inside_word(chars, at) => end_of_raw_string(chars, at, at + 1),
        'b' | 'c' if !is_inside_word(chars, at) && next == Some('r') => {
            end_of_raw_string(chars, at, at + 2)
        }
        '\'' => end_of_character(chars, at),
        _ => at,
    }
}

fn find_end_index(chars: &[char], from: usize, end: impl Fn(&[char]) -> bool) -> usize {
    (from..chars.len()).find(|&at| end(&chars[at..])).unwrap_or(chars.len())
}

fn is_inside_word(chars: &[char], at: usize) -> bool {
    at > 0 && is_word_character(chars[at - 1])
}

fn end_of_block_comment(chars: &[char], from: usize) -> usize {
    let (mut at, mut depth) = (from + 2, 1);
    while at < chars.len() && depth > 0 {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    at
}

/// Returns the end of a string literal. `from` is the position after the opening quote.
fn end_of_string(chars: &[char], from: usize) -> usize {
    let mut at = from;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// Returns the end of the raw string whose hashes begin at `from`, or `at` if no raw string begins
/// there (as in `r#type` or `rest`).
fn end_of_raw_string(chars: &[char], at: usize, from: usize) -> usize {
    let hashes = chars[from..].iter().take_while(|&&c| c == '#').count();
    if chars.get(from + hashes) != Some(&'"') {
        return at;
    }
    let closes = |rest: &[char]| {
        rest[0] == '"' && rest.len() > hashes && rest[1..=hashes].iter().all(|&c| c == '#')
    };
    (find_end_index(chars, from + hashes + 1, closes) + 1 + hashes).min(chars.len())
}

/// Returns the end of a character literal, or `at` for a lifetime.
fn end_of_character(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => {
            (find_end_index(chars, at + 3, |rest| rest[0] == '\'') + 1).min(chars.len())
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

fn is_word_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns true if `line` contains `word` as a whole word.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    count_word(line, word) > 0
}

/// Returns the number of occurrences of `word` in `text` as a whole word.
pub(crate) fn count_word(text: &str, word: &str) -> usize {
    text.match_indices(word)
        .filter(|(at, _)| {
            let before = text[..*at].chars().next_back();
            let after = text[at + word.len()..].chars().next();
            !before.is_some_and(is_word_character) && !after.is_some_and(is_word_character)
        })
        .count()
}

/// Returns the lines outside modules that are compiled only for tests, each with its number, from
/// 1. `code` must not contain comments.
pub(crate) fn lines_outside_tests(code: &str) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut kept = Vec::with_capacity(lines.len());
    let mut at = 0;
    while at < lines.len() {
        let opens = lines[at].trim_start().starts_with("#[cfg(")
            && has_word(lines[at], "test")
            && lines.get(at + 1).is_some_and(|l| l.trim_start().starts_with("mod "));
        if opens && lines[at + 1].contains('{') {
            at = end_of_block(&lines, at + 1);
        } else {
            kept.push((at + 1, lines[at]));
            at += 1;
        }
    }
    kept
}

/// Returns, for each function with a body, the number of its first line, from 1, and the number of
/// its lines.
pub(crate) fn function_ranges(code: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let begins = |line: &str| line.contains("fn ") && has_word(line, "fn") && line.contains('(');
    let mut found = Vec::new();
    for from in (0..lines.len()).filter(|&at| begins(lines[at])) {
        // The signature ends with the body or, without one, with a semicolon.
        let open = lines[from..].iter().position(|line| line.contains(['{', ';']));
        let Some(open) = open.map(|offset| from + offset) else { continue };
        if lines[open].contains('{') {
            found.push((from + 1, end_of_block(&lines, open) - from));
        }
    }
    found
}

fn end_of_block(lines: &[&str], from: usize) -> usize {
    let mut depth = 0usize;
    for (at, line) in lines.iter().enumerate().skip(from) {
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        if depth == 0 {
            return at + 1;
        }
    }
    lines.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_blanks_for_comments_and_literals() {
        for (text, kept) in [
            ("a // unsafe\nb", "a          \nb"),
            ("a /* x /* y */ z */ b", "a                   b"),
            (r#"f("un\"safe") + g"#, "f(          ) + g"),
            ("r#\"a\"b\"# c", "         c"),
            ("br\"ab\" c", "       c"),
            ("'\"' 'x: &'a str '\\'' b", "    'x: &'a str      b"),
            ("r#type bar", "r#type bar"),
        ] {
            assert_eq!(blank_comments_and_literals(text), kept, "{text}");
        }
    }

    #[test]
    fn has_word_matches_whole_words_only() {
        assert_eq!(count_word("unsafe { unsafe_code } un unsafe", "unsafe"), 2);
    }

    #[test]
    fn lines_of_test_modules_are_excluded() {
        let text = "fn a() {\n}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\nfn c() {}\n";
        let numbers: Vec<usize> =
            lines_outside_tests(text).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 7]);
    }

    #[test]
    fn function_ranges_give_first_line_and_length() {
        let text =
            "fn a() {\n  {}\n}\ntrait T {\n    fn b(\n        x: u8,\n    );\n    fn c() {}\n}\n";
        assert_eq!(function_ranges(text), [(1, 3), (8, 1)]);
    }
}
