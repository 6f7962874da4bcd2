//! Lexer for Rust files, and the subset of tokens that the default build compiles.
//!
//! Input: code without comments and literals ([`super::source::blank_comments_and_literals`]).
//! Output: words and punctuation, with their line numbers. Brackets are matched by counting, which
//! suffices for code that compiles.

use std::ops::Range;

/// A word or punctuation mark in Rust code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Token<'a> {
    /// The text of the token: a word, `::`, or one character.
    pub(crate) text: &'a str,
    /// Number of the line that contains the token, from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    /// Returns true for identifiers, keywords and numbers.
    pub(crate) fn is_word(self) -> bool {
        self.text.starts_with(is_word)
    }

    /// Returns true for identifiers and keywords.
    pub(crate) fn is_identifier(self) -> bool {
        self.is_word() && !self.text.starts_with(|c: char| c.is_ascii_digit())
    }
}

/// Splits code into tokens, without lifetimes.
pub(crate) fn tokenize(code: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(code.lines()) {
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = match first {
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                ':' if rest.starts_with("::") => 2,
                c => c.len_utf8(),
            };
            let (text, behind) = rest.split_at(length);
            rest = behind;
            // `r#type` is `type`.
            if let ("r", Some(raw)) = (text, behind.strip_prefix('#'))
                && raw.starts_with(is_word)
            {
                rest = raw;
                continue;
            }
            match found.last() {
                // Drops a lifetime: the quote before this word, and the word itself.
                Some(Token { text: "'", .. }) => _ = found.pop(),
                _ if first.is_whitespace() => {}
                _ => found.push(Token { text, line }),
            }
        }
    }
    found
}

/// Returns the tokens that the default build compiles: all tokens outside [`disabled_ranges`].
pub(crate) fn product_tokens<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut from = 0;
    for gap in disabled_ranges(tokens) {
        kept.extend_from_slice(&tokens[from..gap.start]);
        from = gap.end;
    }
    kept.extend_from_slice(&tokens[from..]);
    kept
}

/// Returns the ranges of items, statements and fields whose `#[cfg]` is false while `test`, `loom`,
/// `miri` and all features are off.
pub(crate) fn disabled_ranges(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        match parse_attribute(tokens, at) {
            Some(cfg) if cfg.is_disabled => {
                let end = match cfg.is_inner {
                    true => end_of_group(tokens, at),
                    false => end_of_item(tokens, cfg.end),
                };
                found.push(at..end);
                at = end;
            }
            _ => at += 1,
        }
    }
    found
}

/// An attribute in Rust code, such as `#[cfg(test)]`.
struct Attribute {
    /// Index of the first token after the attribute.
    end: usize,
    /// True for an inner attribute (`#![…]`), which applies to the enclosing item.
    is_inner: bool,
    /// True if the attribute is a `cfg` that is false in the default build.
    is_disabled: bool,
}

fn parse_attribute(tokens: &[Token<'_>], at: usize) -> Option<Attribute> {
    let text = |at: usize| tokens.get(at).map(|token| token.text);
    let is_inner = text(at + 1) == Some("!");
    let open = at + 1 + usize::from(is_inner);
    if text(at) != Some("#") || text(open) != Some("[") {
        return None;
    }
    let end = index_after_closing_bracket(tokens, open);
    let is_disabled = text(open + 1) == Some("cfg") && !evaluate_cfg(tokens, &mut (open + 3));
    Some(Attribute { end, is_inner, is_disabled })
}

/// Evaluates the `cfg` predicate that begins at `at`, and advances `at` past it.
fn evaluate_cfg(tokens: &[Token<'_>], at: &mut usize) -> bool {
    let name = tokens.get(*at).map_or("", |token| token.text);
    *at += 1;
    if tokens.get(*at).is_none_or(|token| token.text != "(") {
        // `test`, or `feature = ` with its blanked literal.
        if tokens.get(*at).is_some_and(|token| token.text == "=") {
            *at += 1;
        }
        return !["test", "loom", "miri", "doc", "doctest", "fuzzing", "feature"].contains(&name);
    }
    let end = index_after_closing_bracket(tokens, *at);
    *at += 1;
    let mut inner = Vec::new();
    while *at + 1 < end {
        inner.push(evaluate_cfg(tokens, at));
        // Skips the comma or the closing bracket.
        *at += 1;
    }
    *at = end;
    match name {
        "not" => !inner.first().is_some_and(|holds| *holds),
        "any" => inner.contains(&true),
        _ => !inner.contains(&false),
    }
}

/// Returns the index after the bracket that closes the bracket at `open`.
pub(crate) fn index_after_closing_bracket(tokens: &[Token<'_>], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Returns the index of the bracket that closes the innermost group around the token at `at`.
fn end_of_group(tokens: &[Token<'_>], mut at: usize) -> usize {
    while let Some(token) = tokens.get(at) {
        match token.text {
            "(" | "[" | "{" => at = index_after_closing_bracket(tokens, at),
            ")" | "]" | "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// Returns the index after the item, statement or field that begins at `at`, with its attributes.
fn end_of_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    while let Some(attribute) = parse_attribute(tokens, at) {
        at = attribute.end;
    }
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    if text(at) == "pub" {
        at += 1;
        if text(at) == "(" {
            at = index_after_closing_bracket(tokens, at);
        }
    }
    const ITEM_KEYWORDS: &[&str] = &[
        "async", "const", "enum", "extern", "fn", "impl", "let", "mod", "static", "struct",
        "trait", "type", "union", "unsafe", "use",
    ];
    // These items end with a semicolon, even if they contain braces.
    let is_line = ["use", "let", "static", "type"].contains(&text(at))
        || text(at) == "const" && !["fn", "unsafe", "{"].contains(&text(at + 1));
    let is_item = ITEM_KEYWORDS.contains(&text(at));
    while at < tokens.len() {
        match text(at) {
            ";" => return at + 1,
            "," if !is_item => return at + 1,
            "}" | ")" | "]" => return at,
            "{" if !is_line => return index_after_closing_bracket(tokens, at),
            "(" | "[" | "{" => at = index_after_closing_bracket(tokens, at),
            _ => at += 1,
        }
    }
    at
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product_text(code: &str) -> String {
        let kept: Vec<&str> =
            product_tokens(&tokenize(code)).iter().map(|token| token.text).collect();
        kept.join(" ")
    }

    #[test]
    fn tokens_are_words_and_punctuation_without_lifetimes() {
        let found: Vec<(&str, usize)> =
            tokenize("a::b<'x>\n-1 r#c").iter().map(|token| (token.text, token.line)).collect();
        assert_eq!(
            found,
            [("a", 1), ("::", 1), ("b", 1), ("<", 1), (">", 1), ("-", 2), ("1", 2), ("c", 2)]
        );
    }

    #[test]
    fn code_outside_the_default_build_is_left_out() {
        for (code, left) in [
            ("#[cfg(test)] #[x] mod tests { fn f() {} } fn g() {}", "fn g ( ) { }"),
            ("#[cfg(test)] use a::{b, c}; fn g() {}", "fn g ( ) { }"),
            ("#[cfg(test)] pub(crate) fn f<A, B>() -> A { } fn g() {}", "fn g ( ) { }"),
            ("#[cfg(test)] const A: [u8; 2] = [1, 2]; x", "x"),
            ("struct S { #[cfg(test)] a: u8, b: u8 }", "struct S { b : u8 }"),
            ("S { b, #[cfg(test)] a: f(1, 2) }", "S { b , }"),
            ("mod m { #![cfg(test)] fn f() {} } x", "mod m { } x"),
            ("#[cfg(any(test, feature = ))] mod m; x", "x"),
            ("#[cfg(all(loom, not(test)))] mod m; x", "x"),
            ("#[cfg(any(test, not(loom)))] x", "# [ cfg ( any ( test , not ( loom ) ) ) ] x"),
            ("#[cfg(not(test))] x", "# [ cfg ( not ( test ) ) ] x"),
            ("#[cfg(unix)] x", "# [ cfg ( unix ) ] x"),
        ] {
            assert_eq!(product_text(code), left, "{code}");
        }
    }
}
