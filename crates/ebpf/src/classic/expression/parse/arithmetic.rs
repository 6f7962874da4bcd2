//! Parser for relations between values: numbers, the frame length, and header fields.
//!
//! The operators, in order of decreasing precedence, are `*` and `/`, then `+` and `-`, then
//! shifts, then `&`, then `|`. In libpcap's grammar `%` and `^` have no precedence: they apply to
//! the value directly before them and to everything after them. This parser does the same, because
//! the same text must match the same packets.

use super::super::ast::{Arithmetic, Primitive};
use super::super::token::{Keyword, Symbol, Token};
use super::{ParseResult, Parser, invalid_text_error};
use crate::insn::{Alu, Cond};

/// Maximum number of arithmetic operators in a relation.
const OPERATORS_MAX: usize = 200;
/// Precedence of unary minus, above all binary operators.
const UNARY_MINUS_PRECEDENCE: u8 = 6;

impl Parser<'_> {
    pub(super) fn parse_relation(&mut self) -> ParseResult<Primitive> {
        self.operators = 0;
        let left = self.parse_value(1)?;
        let Some(op) = self.accept_relation_symbol() else {
            return Err(self.unexpected_token_error("a relation such as `=`, `!=`, `<` or `>`"));
        };
        let right = self.parse_value(1)?;
        Ok(Primitive::Relation { op, left, right })
    }

    pub(super) fn accept_relation_symbol(&mut self) -> Option<Cond> {
        let Token::Symbol(symbol) = self.peek() else { return None };
        let relation = match symbol {
            Symbol::Equal => Cond::Eq,
            Symbol::NotEqual => Cond::Ne,
            Symbol::Greater => Cond::Gt,
            Symbol::GreaterOrEqual => Cond::Ge,
            Symbol::Less => Cond::Lt,
            Symbol::LessOrEqual => Cond::Le,
            _ => return None,
        };
        self.at += 1;
        Some(relation)
    }

    /// Parses a value in which every operator has at least the precedence `rank`.
    fn parse_value(&mut self, rank: u8) -> ParseResult<Arithmetic> {
        let start = self.at;
        let mut left = self.parse_operand()?;
        loop {
            let Some((op, found)) = self.peek_operator() else { return Ok(left) };
            let right = match found {
                None => {
                    self.at += 1;
                    self.parse_nested(|p| p.parse_value(1))?
                }
                Some(found) if found >= rank => {
                    self.at += 1;
                    self.parse_value(found + 1)?
                }
                Some(_) => return Ok(left),
            };
            self.operators += 1;
            if self.operators > OPERATORS_MAX {
                let what = format!("more than {OPERATORS_MAX} operators in one relation");
                return Err(invalid_text_error(self.span_from(start), what, None));
            }
            let span = self.span_from(start);
            left = Arithmetic::Binary { op, left: Box::new(left), right: Box::new(right), span };
        }
    }

    /// Returns the next operator and its precedence, which is `None` for `%` and `^`. Returns
    /// `None` if no operator follows.
    fn peek_operator(&self) -> Option<(Alu, Option<u8>)> {
        let Token::Symbol(symbol) = self.peek() else { return None };
        Some(match symbol {
            Symbol::Bar => (Alu::Or, Some(1)),
            Symbol::Ampersand => (Alu::And, Some(2)),
            Symbol::ShiftLeft => (Alu::Shl, Some(3)),
            Symbol::ShiftRight => (Alu::Shr, Some(3)),
            Symbol::Plus => (Alu::Add, Some(4)),
            Symbol::Minus => (Alu::Sub, Some(4)),
            Symbol::Star => (Alu::Mul, Some(5)),
            Symbol::Slash => (Alu::Div, Some(5)),
            Symbol::Percent => (Alu::Mod, None),
            Symbol::Caret => (Alu::Xor, None),
            _ => return None,
        })
    }

    fn parse_operand(&mut self) -> ParseResult<Arithmetic> {
        let start = self.at;
        match self.peek() {
            Token::Number(number) => {
                self.at += 1;
                Ok(Arithmetic::Number(number))
            }
            Token::Word(Keyword::Length) => {
                self.at += 1;
                Ok(Arithmetic::Length)
            }
            Token::Symbol(Symbol::Minus) => {
                self.at += 1;
                let value = self.parse_nested(|p| p.parse_value(UNARY_MINUS_PRECEDENCE))?;
                Ok(Arithmetic::Negate(Box::new(value)))
            }
            Token::Symbol(Symbol::Open) => {
                self.at += 1;
                let value = self.parse_nested(|p| p.parse_value(1))?;
                self.expect_symbol(Symbol::Close, "`)`")?;
                Ok(value)
            }
            Token::Protocol(protocol) => {
                self.at += 1;
                self.expect_symbol(Symbol::BracketOpen, "`[`")?;
                let offset = Box::new(self.parse_nested(|p| p.parse_value(1))?);
                let size = if self.accept_symbol(Symbol::Colon) {
                    self.parse_number("a size")?
                } else {
                    1
                };
                self.expect_symbol(Symbol::BracketClose, "`]`")?;
                Ok(Arithmetic::Index { protocol, offset, size, span: self.span_from(start) })
            }
            _ => Err(self.unexpected_token_error("a value")),
        }
    }
}
