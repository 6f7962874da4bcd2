//! The lexer: words, quoted texts, labels and operators.
//!
//! The lexer alone decides whether a `|` is a pipe or starts a label (rule 2 of the language). A
//! `|` starts a label if class characters follow and either (a) they cannot be the name of a
//! filter, as in `dport|22 ssh`, or (b) white space, `(` or an operator that contains `+` precedes
//! the `|`, as in `dport |ssh log`. Each character is read at most twice, and errors never stop the
//! lexer. [SL §4.2]

use super::diagnose::{Diagnostic, Span};
use super::label;
use super::tree::{Label, Operator};
use filter::text::is_hidden;

/// A token with its position.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) span: Span,
    /// True if no white space separates this token from the previous one.
    pub(super) glued: bool,
}

/// The kind of a token. The text of a word is found at its span.
#[derive(Debug, Clone)]
pub(super) enum TokenKind {
    /// A bare word. `clean` is false if an error inside the word has been reported.
    Word {
        clean: bool,
    },
    Quoted(Vec<u8>),
    Pipe,
    Label(Label),
    Operator(Operator),
    Bang,
    Open,
    Close,
    Semicolon,
    End,
}

/// The output of the lexer: the tokens with a final `End`, the errors, and the number of inspected
/// characters.
pub(super) struct LexOutput {
    pub(super) tokens: Vec<Token>,
    pub(super) mistakes: Vec<Diagnostic>,
    pub(super) steps: u64,
}

/// Splits a text into tokens.
pub(super) fn lex(text: &str) -> LexOutput {
    let mut lexer = Lexer { text, at: 0, mistakes: Vec::new(), steps: 0 };
    let mut tokens = Vec::new();
    loop {
        let glued = !lexer.skip_white_space() && lexer.at > 0;
        let start = lexer.at;
        let Some(kind) = lexer.next_token() else { break };
        tokens.push(Token { kind, span: Span::new(start, lexer.at), glued });
    }
    // Errors about a filter that is missing at the end point to the end of the last token.
    let end = tokens.last().map_or_else(Span::default, |token: &Token| token.span.empty_after());
    tokens.push(Token { kind: TokenKind::End, span: end, glued: false });
    LexOutput { tokens, mistakes: lexer.mistakes, steps: lexer.steps }
}

/// Returns true if the character ends a bare word.
pub(super) fn is_word_end(c: char) -> bool {
    is_white_space(c) || matches!(c, '|' | '+' | '(' | ')' | '!' | ';' | '"' | '\'')
}

/// Returns true for ASCII white space. Any other white space is reported as an error, because a
/// reader cannot distinguish it from a space.
fn is_white_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{0b}' | '\u{0c}')
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    mistakes: Vec<Diagnostic>,
    steps: u64,
}

impl Lexer<'_> {
    fn peek(&mut self) -> Option<char> {
        self.steps += 1;
        self.text.get(self.at..).and_then(|rest| rest.chars().next())
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn accept_char(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.at += wanted.len_utf8();
        }
        found
    }

    /// Skips white space and comments. Returns true if it has skipped any character.
    fn skip_white_space(&mut self) -> bool {
        let start = self.at;
        while let Some(c) = self.peek() {
            if c == '#' {
                while self.bump().is_some_and(|c| c != '\n') {}
            } else if is_white_space(c) {
                self.bump();
            } else {
                break;
            }
        }
        self.at > start
    }

    fn next_token(&mut self) -> Option<TokenKind> {
        let start = self.at;
        let kind = match self.bump()? {
            '|' => self.read_pipe_or_label(start),
            '+' if self.accept_char('+') => TokenKind::Operator(Operator::Union),
            '+' if self.accept_char('*') => TokenKind::Operator(Operator::Section),
            '+' => TokenKind::Operator(Operator::Parallel),
            '!' => TokenKind::Bang,
            '(' => TokenKind::Open,
            ')' => TokenKind::Close,
            ';' => TokenKind::Semicolon,
            '"' => self.read_quoted_text(start),
            '\'' => self.read_single_quoted_text(start),
            _ => {
                self.at = start;
                let clean = self.skip_word();
                TokenKind::Word { clean }
            }
        };
        Some(kind)
    }

    /// Reads the `|` at `start` as a pipe or as the beginning of a label, which it consumes. The
    /// cursor must be at the byte after the `|`.
    fn read_pipe_or_label(&mut self, start: usize) -> TokenKind {
        let before = self.text.get(..start).and_then(|text| text.chars().next_back());
        let apart = match before {
            None | Some('(' | '+') => true,
            Some('*') => self.text.get(..start).is_some_and(|text| text.ends_with("+*")),
            Some(c) => is_white_space(c),
        };
        let from = self.at;
        let inverted = self.accept_char('!');
        let classes = self.at;
        if (apart || !self.may_be_filter()) && self.peek().is_some_and(is_class_character) {
            let clean = self.skip_word();
            let span = Span::new(start, self.at);
            let (label, mistakes) = label::read_label(self.text, span, classes, inverted);
            if clean {
                self.mistakes.extend(mistakes);
            }
            return TokenKind::Label(label);
        }
        self.at = from;
        TokenKind::Pipe
    }

    /// Returns true if the class characters at the cursor can be the name of a filter: the first is
    /// not a digit, and none is `:` or `,`.
    fn may_be_filter(&mut self) -> bool {
        let start = self.at;
        let first = self.peek();
        let mut listed = false;
        while let Some(c) = self.peek().filter(|c| is_class_character(*c)) {
            listed |= c == ':' || c == ',';
            self.at += c.len_utf8();
        }
        self.at = start;
        !(listed || first.is_some_and(|c| c.is_ascii_digit()))
    }

    /// Skips a bare word. Reports the first suspicious character in it or, if there is none, a
    /// backslash at its end. Returns true if there is neither.
    fn skip_word(&mut self) -> bool {
        let start = self.at;
        let mut strange: Option<(usize, char)> = None;
        let mut last = ' ';
        while let Some(c) = self.peek().filter(|c| !is_word_end(*c)) {
            if strange.is_none() && is_lookalike(c) {
                strange = Some((self.at, c));
            }
            self.at += c.len_utf8();
            last = c;
        }
        if let Some((at, c)) = strange {
            self.mistakes.push(unexpected_character_error(at, c));
        } else if last == '\\' {
            let span = Span::new(self.at - 1, self.at);
            self.mistakes
                .push(Diagnostic::error(span, "a backslash escapes nothing outside quotes").hint(
                    "quote the word; a request may continue on the next line without a mark",
                ));
        }
        debug_assert!(self.at > start, "a token is never empty");
        strange.is_none() && last != '\\'
    }

    /// Reads a quoted string `"…"`. `start` is the position of the opening quote; the cursor is at
    /// the byte after it.
    fn read_quoted_text(&mut self, start: usize) -> TokenKind {
        let mut bytes = Vec::new();
        loop {
            let at = self.at;
            match self.bump() {
                None => return self.report_unclosed_text(start, bytes),
                Some('"') => return TokenKind::Quoted(bytes),
                Some('\\') => self.read_escape(at, &mut bytes),
                Some(c) => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
    }

    /// Reads the escape sequence whose backslash is at `at`, and appends its byte to `bytes`.
    /// Reports an invalid sequence.
    fn read_escape(&mut self, at: usize, bytes: &mut Vec<u8>) {
        match self.peek() {
            Some('"') => bytes.push(b'"'),
            Some('\\') => bytes.push(b'\\'),
            Some('n') => bytes.push(b'\n'),
            Some('t') => bytes.push(b'\t'),
            Some('x') => {
                let digits = self.text.get(self.at + 1..self.at + 3).unwrap_or_default();
                let hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                match u8::from_str_radix(digits, 16) {
                    Ok(byte) if hex && digits.len() == 2 => {
                        bytes.push(byte);
                        self.at += 2;
                    }
                    _ => self.report_invalid_escape(at, 2, "`\\x` takes two hexadecimal digits"),
                }
            }
            None => return,
            Some(c) => self.report_invalid_escape(at, 1 + c.len_utf8(), "no such escape"),
        }
        self.bump();
    }

    fn report_invalid_escape(&mut self, at: usize, length: usize, what: &str) {
        self.mistakes.push(
            Diagnostic::error(Span::new(at, at + length), what)
                .why("there are `\\\"`, `\\\\`, `\\n`, `\\t` and `\\xHH`")
                .hint("write `\\\\` for a backslash, or quote with '…', where it means itself"),
        );
    }

    /// Reads a quoted string `'…'`, which has no escape sequences.
    fn read_single_quoted_text(&mut self, start: usize) -> TokenKind {
        let from = self.at;
        loop {
            let at = self.at;
            let content = || self.text.get(from..at).unwrap_or_default().as_bytes().to_vec();
            match self.text.get(at..).and_then(|rest| rest.chars().next()) {
                None => {
                    let content = content();
                    return self.report_unclosed_text(start, content);
                }
                Some('\'') => {
                    let content = content();
                    self.bump();
                    return TokenKind::Quoted(content);
                }
                Some(_) => self.bump(),
            };
        }
    }

    fn report_unclosed_text(&mut self, start: usize, bytes: Vec<u8>) -> TokenKind {
        let quote = self.text.get(start..=start).unwrap_or("\"");
        self.mistakes.push(
            Diagnostic::error(Span::new(start, self.at), "the quote is never closed")
                .hint(format!("a {quote} is missing")),
        );
        TokenKind::Quoted(bytes)
    }
}

/// Returns true for characters that a class may contain. Capital letters are included, so that
/// `|TCP` is reported as an unknown class, and not as an unknown filter.
fn is_class_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | ',')
}

/// Returns true for hidden characters, white space, and characters that look like an ASCII
/// character, as in text copied from a web page.
pub(super) fn is_lookalike(c: char) -> bool {
    is_hidden(c) || c.is_whitespace() || is_typographic(c)
}

fn is_typographic(c: char) -> bool {
    matches!(c, '“' | '”' | '„' | '‘' | '’' | '‚')
}

fn unexpected_character_error(at: usize, c: char) -> Diagnostic {
    let span = Span::new(at, at + c.len_utf8());
    if is_typographic(c) {
        return Diagnostic::error(span, format!("`{c}` is not a quote"))
            .why("texts are quoted by \"…\" or '…'")
            .hint("write \" or '");
    }
    let code = u32::from(c);
    Diagnostic::error(span, format!("the character U+{code:04X} is not white space"))
        .why("words are separated by spaces, tabs and line breaks")
        .hint("write a space, or quote the word")
}
