//! Parser for one primitive: a qualified identifier, a protocol, a relation, or a special keyword.

use super::super::ast::{
    ByteOp, DirQualifier, Encapsulation, LlcFrameType, Primitive, Protocol, Qualifiers, Tree,
    TypeQualifier,
};
use super::super::error::{ErrorKind, ExpressionError};
use super::super::token::{Keyword, Symbol, Token};
use super::super::word_tables;
use super::{ParseResult, Parser, Term, invalid_text_error, pair_qualifier};

impl Parser<'_> {
    pub(super) fn parse_primitive(&mut self) -> ParseResult<Term> {
        let start = self.at;
        if let Some(qualifiers) = self.parse_qualifiers()? {
            let tree = self.parse_identifier(qualifiers)?;
            return Ok((tree, Some(qualifiers)));
        }
        let primitive = match self.peek() {
            Token::Protocol(protocol) if self.token_at(self.at + 1) != OPEN_BRACKET => {
                self.at += 1;
                self.parse_test_after_protocol(Some(protocol))?
            }
            Token::Word(word) if word != Keyword::Length => {
                match self.parse_keyword_primitive(word)? {
                    Some(primitive) => primitive,
                    None => self.parse_test_after_protocol(None)?,
                }
            }
            token if token.is_name_or_address() => return Err(self.missing_qualifier_error()),
            _ => self.parse_relation()?,
        };
        Ok((Tree::Leaf(primitive, self.span_from(start)), None))
    }

    /// Parses `[protocol] [direction] [type]`. Consumes nothing and returns `None` if there is
    /// neither a direction nor a type.
    fn parse_qualifiers(&mut self) -> ParseResult<Option<Qualifiers>> {
        let start = self.at;
        let protocol = match self.peek() {
            Token::Protocol(protocol) => {
                self.at += 1;
                Some(protocol)
            }
            _ => None,
        };
        let direction = self.parse_direction();
        let kind = match self.peek() {
            Token::Word(Keyword::Type(
                TypeQualifier::Gateway | TypeQualifier::Protocol | TypeQualifier::ProtocolChain,
            )) if direction.is_some() => None,
            Token::Word(Keyword::Type(kind)) => Some(kind),
            _ => None,
        };
        self.at += usize::from(kind.is_some());
        if direction.is_none() && kind.is_none() {
            self.at = start;
            return Ok(None);
        }
        Ok(Some(Qualifiers { protocol, direction, kind }))
    }

    fn parse_direction(&mut self) -> Option<DirQualifier> {
        let Token::Word(first) = self.peek() else { return None };
        if let (Token::Word(conjunction), Token::Word(second)) =
            (self.token_at(self.at + 1), self.token_at(self.at + 2))
            && let Some(direction) = pair_qualifier(first, conjunction, second)
        {
            self.at += 3;
            return Some(direction);
        }
        let Keyword::Dir(direction) = first else { return None };
        self.at += 1;
        Some(direction)
    }

    /// Parses a test that may follow the keyword of `protocol`: broadcast, multicast, or an 802.11
    /// field.
    fn parse_test_after_protocol(&mut self, protocol: Option<Protocol>) -> ParseResult<Primitive> {
        let word = match self.peek() {
            Token::Word(word) => word,
            _ => Keyword::And,
        };
        match (word, protocol) {
            (Keyword::Broadcast, _) => {
                self.at += 1;
                Ok(Primitive::Broadcast(protocol))
            }
            (Keyword::Multicast, _) => {
                self.at += 1;
                Ok(Primitive::Multicast(protocol))
            }
            (Keyword::WlanType, _) => self.parse_wlan_type(),
            (Keyword::Subtype, _) => self.parse_wlan_subtype(),
            (Keyword::Direction, _) => {
                self.at += 1;
                let value =
                    self.parse_named_value("802.11 direction", word_tables::WLAN_DIRECTIONS, 0x03)?;
                Ok(Primitive::WlanDirection(value))
            }
            (_, Some(protocol)) => Ok(Primitive::Protocol(protocol)),
            (_, None) => Err(self.unexpected_token_error("a primitive")),
        }
    }

    fn parse_wlan_type(&mut self) -> ParseResult<Primitive> {
        self.at += 1;
        let kind = self.parse_named_value("802.11 type", word_tables::WLAN_TYPES, 0x0c)?;
        if self.peek() != Token::Word(Keyword::Subtype) {
            return Ok(Primitive::WlanType { value: kind, mask: 0x0c });
        }
        self.at += 1;
        let subtypes: Vec<_> = word_tables::WLAN_SUBTYPES
            .iter()
            .filter(|(_, value)| value & 0x0c == kind)
            .map(|(name, value)| (*name, value & 0xf0))
            .collect();
        let subtype = self.parse_named_value("802.11 subtype", &subtypes, 0xf0)?;
        Ok(Primitive::WlanType { value: kind | subtype, mask: 0xfc })
    }

    fn parse_wlan_subtype(&mut self) -> ParseResult<Primitive> {
        self.at += 1;
        let value = self.parse_table_name("802.11 subtype", word_tables::WLAN_SUBTYPES)?;
        Ok(Primitive::WlanType { value, mask: 0xfc })
    }

    /// Parses a number that has no bits outside `mask`, or a name from `table`. `what` names the
    /// value in errors.
    fn parse_named_value(
        &mut self,
        what: &str,
        table: &[(&str, u32)],
        mask: u32,
    ) -> ParseResult<u32> {
        match self.peek() {
            Token::Number(number) if number & !mask != 0 => {
                let message = format!("invalid {what} value {number:#x}");
                Err(invalid_text_error(self.current_span(), message, None))
            }
            Token::Number(number) => {
                self.at += 1;
                Ok(number)
            }
            _ => self.parse_table_name(what, table),
        }
    }

    fn parse_table_name(&mut self, what: &str, table: &[(&str, u32)]) -> ParseResult<u32> {
        let name = self.parse_and_unescape_name(what)?;
        word_tables::find_word_value(table, &name).ok_or_else(|| {
            self.at -= 1;
            let nearest = super::super::nearest_word::nearest_word(
                table.iter().map(|(name, _)| *name),
                &name,
            );
            let hint = nearest.map(|word| format!("did you mean `{word}`?"));
            invalid_text_error(self.current_span(), format!("unknown {what} `{name}`"), hint)
        })
    }

    fn parse_and_unescape_name(&mut self, what: &str) -> ParseResult<String> {
        match self.peek() {
            Token::Name => {
                let span = self.next_lexeme().span;
                Ok(self.text[span].to_owned())
            }
            Token::Escaped => {
                let span = self.next_lexeme().span;
                Ok(self.text[span.start + 1..span.end].to_owned())
            }
            _ => Err(self.unexpected_token_error(&format!("the name of an {what}"))),
        }
    }

    /// Parses a primitive that begins with the keyword `word`, such as `less` or `byte`. Returns
    /// `None` if no primitive begins with this keyword.
    fn parse_keyword_primitive(&mut self, word: Keyword) -> ParseResult<Option<Primitive>> {
        let start = self.at;
        self.at += 1;
        let primitive = match word {
            Keyword::Less => Primitive::LengthAtMost(self.parse_number("a length")?),
            Keyword::Greater => Primitive::LengthAtLeast(self.parse_number("a length")?),
            Keyword::Byte => self.parse_byte_test()?,
            Keyword::Inbound => Primitive::Direction { outbound: false },
            Keyword::Outbound => Primitive::Direction { outbound: true },
            Keyword::IfIndex => {
                Primitive::Interface(self.parse_number("the number of an interface")?)
            }
            Keyword::Llc => Primitive::Llc(self.parse_llc()?),
            Keyword::Unsupported => return Err(self.unsupported_keyword_error(start)),
            Keyword::Encapsulation(found @ Encapsulation::PppoeDiscovery) => {
                Primitive::Encapsulation(found, None)
            }
            Keyword::Encapsulation(found) => {
                Primitive::Encapsulation(found, self.parse_optional_number()?)
            }
            _ => {
                self.at = start;
                return Ok(None);
            }
        };
        Ok(Some(primitive))
    }

    fn parse_byte_test(&mut self) -> ParseResult<Primitive> {
        let offset = self.parse_number("the offset of a byte")?;
        let op = match self.peek() {
            Token::Symbol(Symbol::Equal) => ByteOp::Equal,
            Token::Symbol(Symbol::Less) => ByteOp::Less,
            Token::Symbol(Symbol::Greater) => ByteOp::Greater,
            Token::Symbol(Symbol::Ampersand) => ByteOp::And,
            Token::Symbol(Symbol::Bar) => ByteOp::Or,
            _ => return Err(self.unexpected_token_error("one of = < > & |")),
        };
        self.at += 1;
        Ok(Primitive::Byte { offset, op, value: self.parse_number("a byte")? })
    }

    fn parse_llc(&mut self) -> ParseResult<LlcFrameType> {
        if self.peek() == Token::Word(Keyword::Unsupported)
            && self.text[self.current_span()].eq_ignore_ascii_case("rnr")
        {
            self.at += 1;
            return Ok(LlcFrameType::Supervisory(word_tables::find_word_value(
                word_tables::LLC_SUPERVISORY,
                "rnr",
            )));
        }
        if !matches!(self.peek(), Token::Name | Token::Escaped) {
            return Ok(LlcFrameType::Any);
        }
        let name = self.parse_and_unescape_name("LLC type")?;
        let supervisory = word_tables::find_word_value(word_tables::LLC_SUPERVISORY, &name);
        let unnumbered = word_tables::find_word_value(word_tables::LLC_UNNUMBERED, &name);
        match name.to_ascii_lowercase().as_str() {
            "i" => Ok(LlcFrameType::Information),
            "s" => Ok(LlcFrameType::Supervisory(None)),
            "u" => Ok(LlcFrameType::Unnumbered(None)),
            _ if supervisory.is_some() => Ok(LlcFrameType::Supervisory(supervisory)),
            _ if unnumbered.is_some() => Ok(LlcFrameType::Unnumbered(unnumbered)),
            _ => {
                self.at -= 1;
                Err(invalid_text_error(
                    self.current_span(),
                    format!("unknown LLC type `{name}`"),
                    None,
                ))
            }
        }
    }

    /// Parses a number, possibly in parentheses; returns `None` if none follows.
    fn parse_optional_number(&mut self) -> ParseResult<Option<u32>> {
        match self.peek() {
            Token::Number(number) => {
                self.at += 1;
                Ok(Some(number))
            }
            Token::Symbol(Symbol::Open) => {
                self.at += 1;
                let number = self.parse_nested(Self::parse_optional_number)?;
                if number.is_none() {
                    return Err(self.unexpected_token_error("a number"));
                }
                self.expect_symbol(Symbol::Close, "`)`")?;
                Ok(number)
            }
            _ => Ok(None),
        }
    }

    /// Returns the error for the lexeme at index `at`, a keyword that libpcap supports and this
    /// compiler does not.
    fn unsupported_keyword_error(&self, at: usize) -> ExpressionError {
        let span = self.lexemes[at].span.clone();
        let what = format!("`{}` is supported by libpcap only", &self.text[span.clone()]);
        ExpressionError { span, message: what, hint: None, kind: ErrorKind::Unsupported }
    }
}

const OPEN_BRACKET: Token = Token::Symbol(Symbol::BracketOpen);
