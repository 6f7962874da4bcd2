//! Parser that turns an expression into a syntax tree.
//!
//! Input: the text. Output: its [`Tree`], or the first error with its span. The grammar is that of
//! pcap-filter(7) as libpcap parses it: `and` and `or` have equal precedence and associate to the
//! left, `not` binds tighter, and an identifier without qualifiers inherits the qualifiers of the
//! previous primitive. [`NESTING_MAX`] bounds the recursion; everything else is a loop, so the time
//! is linear in the length of the text.
//!
//! One token of lookahead suffices except at `(` and at a number, which may begin an identifier, a
//! value or an expression. The parser then inspects the token after the parentheses.

mod arithmetic;
mod primitive;

use super::ast::{DirQualifier, Identifier, Qualifiers, Span, Tree, TypeQualifier};
use super::error::{ErrorKind, ExpressionError};
use super::lex;
use super::token::{Keyword, Lexeme, Symbol, Token};

/// Maximum nesting depth of parentheses and negations.
pub(super) const NESTING_MAX: usize = 200;
/// Maximum number of `and` and `or` nodes in the syntax tree. Consecutive uses of the same word
/// form a single node; each change to the other word makes the tree one level deeper.
const ALTERNATIONS_MAX: usize = 500;

type ParseResult<T> = Result<T, ExpressionError>;

/// Parses `text`. Returns `None` for an empty text, which accepts every frame.
pub(super) fn parse(text: &str) -> ParseResult<Option<Tree>> {
    let lexemes = lex::lex_expression(text)?;
    let closing = match_parentheses(&lexemes);
    let mut parser = Parser {
        text,
        lexemes: &lexemes,
        closing: &closing,
        at: 0,
        depth: 0,
        alternations: 0,
        operators: 0,
    };
    if parser.peek() == Token::End {
        return Ok(None);
    }
    let (tree, _) = parser.parse_expression(None)?;
    match parser.peek() {
        Token::End => Ok(Some(tree)),
        _ => Err(parser.unexpected_token_error("`and`, `or` or the end")),
    }
}

struct Parser<'a> {
    text: &'a str,
    lexemes: &'a [Lexeme],
    /// For each token, the index of the matching `)` if the token is a `(`, else `None`.
    closing: &'a [Option<usize>],
    at: usize,
    depth: usize,
    /// Number of `and` and `or` nodes in the syntax tree so far.
    alternations: usize,
    /// Number of operators so far in the current relation.
    operators: usize,
}

/// A parsed term of the expression, and the qualifiers that the next identifier inherits.
type Term = (Tree, Option<Qualifiers>);

fn match_parentheses(lexemes: &[Lexeme]) -> Vec<Option<usize>> {
    let mut closing = vec![None; lexemes.len()];
    let mut open = Vec::new();
    for (at, lexeme) in lexemes.iter().enumerate() {
        match lexeme.token {
            Token::Symbol(Symbol::Open) => open.push(at),
            Token::Symbol(Symbol::Close) => {
                if let Some(start) = open.pop() {
                    closing[start] = Some(at);
                }
            }
            _ => {}
        }
    }
    closing
}

impl<'a> Parser<'a> {
    /// Parses `term (and|or (term|identifier))*`. The first term may inherit the qualifiers in
    /// `before`.
    fn parse_expression(&mut self, before: Option<Qualifiers>) -> ParseResult<Term> {
        let (mut tree, mut qualifiers) = self.parse_term(before)?;
        loop {
            let Some(any) = self.accept_conjunction() else { return Ok((tree, qualifiers)) };
            let next = if self.is_at_identifier() {
                let Some(inherited) = qualifiers else {
                    return Err(self.missing_qualifier_error());
                };
                self.parse_identifier(inherited)?
            } else {
                let (next, after) = self.parse_term(qualifiers)?;
                qualifiers = after;
                next
            };
            tree = self.join_trees(tree, any, next)?;
        }
    }

    /// Parses `and` or `or`. Returns true for `or` and false for `and`; `None` if the next token is
    /// neither.
    fn accept_conjunction(&mut self) -> Option<bool> {
        let any = match self.peek() {
            Token::Word(Keyword::And) => false,
            Token::Word(Keyword::Or) => true,
            _ => return None,
        };
        self.at += 1;
        Some(any)
    }

    /// Joins two trees with `or` if `any` is true, otherwise with `and`.
    fn join_trees(&mut self, left: Tree, any: bool, right: Tree) -> ParseResult<Tree> {
        match (left, any) {
            (Tree::Any(mut trees), true) => {
                trees.push(right);
                Ok(Tree::Any(trees))
            }
            (Tree::All(mut trees), false) => {
                trees.push(right);
                Ok(Tree::All(trees))
            }
            (left, any) => {
                self.alternations += 1;
                if self.alternations > ALTERNATIONS_MAX {
                    let what = format!(
                        "`and` and `or` follow each other more than {ALTERNATIONS_MAX} times"
                    );
                    return Err(invalid_text_error(self.current_span(), what, None));
                }
                let trees = vec![left, right];
                Ok(if any { Tree::Any(trees) } else { Tree::All(trees) })
            }
        }
    }

    /// Parses `not term`, `(expression)` or a primitive, which may inherit the qualifiers in
    /// `before`.
    fn parse_term(&mut self, before: Option<Qualifiers>) -> ParseResult<Term> {
        match self.peek() {
            Token::Word(Keyword::Not) => {
                self.at += 1;
                let (tree, qualifiers) = self.parse_nested(|p| p.parse_term(before))?;
                Ok((Tree::Not(Box::new(tree)), qualifiers))
            }
            Token::Symbol(Symbol::Open) if !self.opens_value(self.at) => {
                self.at += 1;
                let (tree, _) = self.parse_nested(|p| p.parse_expression(before))?;
                self.expect_symbol(Symbol::Close, "`)`")?;
                Ok((tree, before))
            }
            _ => self.parse_primitive(),
        }
    }

    /// Parses the identifiers to which these qualifiers apply: one identifier, a negated one, or
    /// several in parentheses.
    fn parse_identifier(&mut self, qualifiers: Qualifiers) -> ParseResult<Tree> {
        match self.peek() {
            Token::Word(Keyword::Not) => {
                self.at += 1;
                let tree = self.parse_nested(|p| p.parse_identifier(qualifiers))?;
                Ok(Tree::Not(Box::new(tree)))
            }
            Token::Symbol(Symbol::Open) => {
                self.at += 1;
                let tree = self.parse_nested(|p| p.parse_identifiers(qualifiers))?;
                self.expect_symbol(Symbol::Close, "`)`")?;
                Ok(tree)
            }
            _ => {
                let start = self.at;
                let id = self.parse_id(qualifiers)?;
                Ok(Tree::Leaf(super::ast::Primitive::Id(qualifiers, id), self.span_from(start)))
            }
        }
    }

    /// Parses `identifier (and|or identifier)*`.
    fn parse_identifiers(&mut self, qualifiers: Qualifiers) -> ParseResult<Tree> {
        let mut tree = self.parse_identifier(qualifiers)?;
        loop {
            let Some(any) = self.accept_conjunction() else { return Ok(tree) };
            let next = self.parse_identifier(qualifiers)?;
            tree = self.join_trees(tree, any, next)?;
        }
    }

    fn parse_id(&mut self, qualifiers: Qualifiers) -> ParseResult<Identifier> {
        let lexeme = self.next_lexeme();
        Ok(match lexeme.token {
            Token::Name => Identifier::Name(self.text[lexeme.span].to_owned()),
            Token::Escaped => {
                Identifier::Name(self.text[lexeme.span.start + 1..lexeme.span.end].to_owned())
            }
            Token::Number(number) => Identifier::Number(number),
            Token::Mac(address) => Identifier::Mac(address),
            Token::Mac8(address) => Identifier::Mac8(address),
            Token::Dotted => self.parse_dotted_id(lexeme.span, qualifiers)?,
            Token::Ip6(address) => {
                self.check_address_qualifier("IPv6 address", &lexeme.span, qualifiers)?;
                let length = if self.accept_symbol(Symbol::Slash) {
                    self.parse_number("a length")?
                } else {
                    128
                };
                Identifier::Ip6(address, length)
            }
            _ => {
                self.at -= 1;
                return Err(self.unexpected_token_error("a name, a number or an address"));
            }
        })
    }

    fn parse_dotted_id(&mut self, span: Span, qualifiers: Qualifiers) -> ParseResult<Identifier> {
        self.check_address_qualifier("IPv4 address", &span, qualifiers)?;
        let text = self.text[span].to_owned();
        if self.accept_symbol(Symbol::Slash) {
            return Ok(Identifier::DottedPrefix(
                text,
                self.parse_number("the length of the prefix")?,
            ));
        }
        if self.peek() != Token::Word(Keyword::Mask) {
            return Ok(Identifier::Dotted(text));
        }
        self.at += 1;
        if self.peek() != Token::Dotted {
            return Err(self.unexpected_token_error("a mask with dots, such as 255.255.0.0"));
        }
        let mask = self.next_lexeme().span;
        Ok(Identifier::DottedMask(text, self.text[mask].to_owned()))
    }

    fn check_address_qualifier(&self, what: &str, span: &Span, q: Qualifiers) -> ParseResult<()> {
        match q.kind {
            Some(
                kind @ (TypeQualifier::Port
                | TypeQualifier::PortRange
                | TypeQualifier::Protocol
                | TypeQualifier::ProtocolChain),
            ) => {
                let word = kind.keyword();
                Err(invalid_text_error(
                    span.clone(),
                    format!("`{word}` applied to an {what}"),
                    None,
                ))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if an identifier follows, which may be negated or in parentheses.
    fn is_at_identifier(&self) -> bool {
        let mut at = self.at;
        while matches!(self.token_at(at), Token::Symbol(Symbol::Open) | Token::Word(Keyword::Not)) {
            if self.token_at(at) == Token::Symbol(Symbol::Open) && self.opens_value(at) {
                return false;
            }
            at += 1;
        }
        match self.token_at(at) {
            token if token.is_name_or_address() => true,
            Token::Number(_) => {
                at += 1;
                while self.token_at(at) == Token::Symbol(Symbol::Close) {
                    at += 1;
                }
                !self.is_operator_at(at)
            }
            _ => false,
        }
    }

    /// Returns true if the `(` at index `at` encloses an arithmetic value: an operator follows the
    /// matching `)`.
    fn opens_value(&self, at: usize) -> bool {
        let Some(close) = self.closing[at] else { return false };
        self.is_operator_at(close + 1)
    }

    fn is_operator_at(&self, at: usize) -> bool {
        matches!(self.token_at(at), Token::Symbol(symbol) if symbol.is_operator_or_relation())
    }

    fn token_at(&self, at: usize) -> Token {
        self.lexemes.get(at).map_or(Token::End, |lexeme| lexeme.token)
    }

    fn peek(&self) -> Token {
        self.token_at(self.at)
    }

    fn next_lexeme(&mut self) -> Lexeme {
        let lexeme = self.lexemes[self.at.min(self.lexemes.len() - 1)].clone();
        self.at += 1;
        lexeme
    }

    fn accept_symbol(&mut self, symbol: Symbol) -> bool {
        let found = self.peek() == Token::Symbol(symbol);
        self.at += usize::from(found);
        found
    }

    fn expect_symbol(&mut self, symbol: Symbol, what: &str) -> ParseResult<()> {
        if self.accept_symbol(symbol) { Ok(()) } else { Err(self.unexpected_token_error(what)) }
    }

    fn parse_number(&mut self, what: &str) -> ParseResult<u32> {
        match self.peek() {
            Token::Number(number) => {
                self.at += 1;
                Ok(number)
            }
            _ => Err(self.unexpected_token_error(what)),
        }
    }

    fn parse_nested<T>(
        &mut self,
        parse: impl FnOnce(&mut Self) -> ParseResult<T>,
    ) -> ParseResult<T> {
        if self.depth == NESTING_MAX {
            let what = format!("parentheses and `not` are nested more than {NESTING_MAX} deep");
            return Err(invalid_text_error(self.current_span(), what, None));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn current_span(&self) -> Span {
        self.lexemes.get(self.at).map_or(self.text.len()..self.text.len(), |l| l.span.clone())
    }

    fn span_from(&self, start: usize) -> Span {
        let first = self.lexemes.get(start).map_or(0, |lexeme| lexeme.span.start);
        let last = self.at.checked_sub(1).and_then(|at| self.lexemes.get(at));
        first..last.map_or(first, |lexeme| lexeme.span.end)
    }

    fn unexpected_token_error(&self, wanted: &str) -> ExpressionError {
        let span = self.current_span();
        let found = match &self.text[span.clone()] {
            "" => "the end".to_owned(),
            text => format!("`{text}`"),
        };
        let hint = self.suggest_keyword(&self.text[span.clone()]);
        invalid_text_error(span, format!("syntax error: {wanted} is expected, not {found}"), hint)
    }

    fn missing_qualifier_error(&self) -> ExpressionError {
        let span = self.current_span();
        let hint = self
            .suggest_keyword(&self.text[span.clone()])
            .unwrap_or_else(|| "say what it is: `host`, `net`, `port` or `proto`".to_owned());
        let what =
            format!("syntax error: `{}` has no qualifier to inherit", &self.text[span.clone()]);
        invalid_text_error(span, what, Some(hint))
    }

    fn suggest_keyword(&self, found: &str) -> Option<String> {
        let words = super::word_tables::PROTOCOL_KEYWORDS.iter().map(|(word, _)| *word);
        let words = words.chain(super::word_tables::KEYWORDS.iter().map(|(word, _)| *word));
        super::nearest_word::nearest_word(words, found)
            .filter(|word| *word != found)
            .map(|word| format!("did you mean `{word}`?"))
    }
}

fn invalid_text_error(span: Span, what: String, hint: Option<String>) -> ExpressionError {
    ExpressionError { span, message: what, hint, kind: ErrorKind::Invalid }
}

/// Returns the qualifier of a keyword pair such as `src or dst`, or `None` for other keywords.
fn pair_qualifier(first: Keyword, conjunction: Keyword, second: Keyword) -> Option<DirQualifier> {
    use DirQualifier::{Source, Target};
    let has_both = matches!(
        (first, second),
        (Keyword::Dir(Source), Keyword::Dir(Target)) | (Keyword::Dir(Target), Keyword::Dir(Source))
    );
    match conjunction {
        Keyword::Or if has_both => Some(DirQualifier::Either),
        Keyword::And if has_both => Some(DirQualifier::Both),
        _ => None,
    }
}
