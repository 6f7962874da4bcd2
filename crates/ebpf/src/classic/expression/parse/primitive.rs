//! Reads one primitive: a qualified identifier, a protocol, a relation, or one of the many others.

use super::super::ast::{
    Atm, AtmField, ByteOp, Encapsulation, Kind, Llc, Mtp2, Mtp3, Mtp3Field, PfField, Primitive,
    Protocol, Qualifiers, Relation, Tree, Way,
};
use super::super::names;
use super::super::token::{Symbol, Token, Word};
use super::{Parser, Result, Term, mistake, pair};

impl Parser<'_> {
    pub(super) fn primitive(&mut self) -> Result<Term> {
        let start = self.at;
        if let Some(qualifiers) = self.qualifiers()? {
            let tree = self.identifier(qualifiers)?;
            return Ok((tree, Some(qualifiers)));
        }
        let primitive = match self.peek() {
            Token::Protocol(protocol) if self.token(self.at + 1) != BRACKET => {
                self.at += 1;
                self.after_protocol(Some(protocol))?
            }
            Token::Word(word) if word != Word::Length => match self.worded(word)? {
                Some(Value::Primitive(primitive)) => primitive,
                Some(Value::Tree(tree)) => return Ok((tree, None)),
                None => self.after_protocol(None)?,
            },
            Token::Name
            | Token::Escaped
            | Token::Dotted
            | Token::Ip6(_)
            | Token::Mac(_)
            | Token::Mac8(_) => return Err(self.unqualified()),
            _ => self.relation()?,
        };
        Ok((Tree::Leaf(primitive, self.span_from(start)), None))
    }

    /// Reads `[protocol] [direction] [kind]` if an identifier must follow; consumes nothing if not.
    fn qualifiers(&mut self) -> Result<Option<Qualifiers>> {
        let start = self.at;
        let protocol = match self.peek() {
            Token::Protocol(protocol) => {
                self.at += 1;
                Some(protocol)
            }
            _ => None,
        };
        let way = self.way();
        let kind = match self.peek() {
            Token::Word(Word::Host) => Some(Kind::Host),
            Token::Word(Word::Net) => Some(Kind::Net),
            Token::Word(Word::Port) => Some(Kind::Port),
            Token::Word(Word::PortRange) => Some(Kind::PortRange),
            Token::Word(Word::Gateway) if way.is_none() => Some(Kind::Gateway),
            Token::Word(Word::Proto) if way.is_none() => Some(Kind::Protocol),
            Token::Word(Word::ProtoChain) if way.is_none() => Some(Kind::ProtocolChain),
            _ => None,
        };
        self.at += usize::from(kind.is_some());
        if way.is_none() && kind.is_none() {
            self.at = start;
            return Ok(None);
        }
        Ok(Some(Qualifiers { protocol, way, kind }))
    }

    fn way(&mut self) -> Option<Way> {
        let Token::Word(first) = self.peek() else { return None };
        if let (Token::Word(joint), Token::Word(second)) =
            (self.token(self.at + 1), self.token(self.at + 2))
            && let Some(way) = pair(first, joint, second)
        {
            self.at += 3;
            return Some(way);
        }
        let way = match first {
            Word::Source => Way::Source,
            Word::Target => Way::Target,
            Word::Address1 => Way::Address1,
            Word::Address2 => Way::Address2,
            Word::Address3 => Way::Address3,
            Word::Address4 => Way::Address4,
            Word::Receiver => Way::Receiver,
            Word::Transmitter => Way::Transmitter,
            _ => return None,
        };
        self.at += 1;
        Some(way)
    }

    /// What can stand behind a protocol, or without one: broadcast, multicast, 802.11 fields.
    fn after_protocol(&mut self, protocol: Option<Protocol>) -> Result<Primitive> {
        let word = match self.peek() {
            Token::Word(word) => word,
            _ => Word::And,
        };
        match (word, protocol) {
            (Word::Broadcast, _) => {
                self.at += 1;
                Ok(Primitive::Broadcast(protocol))
            }
            (Word::Multicast, _) => {
                self.at += 1;
                Ok(Primitive::Multicast(protocol))
            }
            (Word::Type, _) => self.wlan_type(),
            (Word::Subtype, _) => self.wlan_subtype(),
            (Word::Direction, _) => {
                self.at += 1;
                let value = self.named("802.11 direction", names::WLAN_DIRECTIONS, 0x03)?;
                Ok(Primitive::WlanDirection(value))
            }
            (_, Some(protocol)) => Ok(Primitive::Protocol(protocol)),
            (_, None) => Err(self.unexpected("a primitive")),
        }
    }

    fn wlan_type(&mut self) -> Result<Primitive> {
        self.at += 1;
        let kind = self.named("802.11 type", names::WLAN_TYPES, 0x0c)?;
        if self.peek() != Token::Word(Word::Subtype) {
            return Ok(Primitive::WlanType { value: kind, mask: 0x0c });
        }
        self.at += 1;
        let subtypes: Vec<_> = names::WLAN_SUBTYPES
            .iter()
            .filter(|(_, value)| value & 0x0c == kind)
            .map(|(name, value)| (*name, value & 0xf0))
            .collect();
        let subtype = self.named("802.11 subtype", &subtypes, 0xf0)?;
        Ok(Primitive::WlanType { value: kind | subtype, mask: 0xfc })
    }

    fn wlan_subtype(&mut self) -> Result<Primitive> {
        self.at += 1;
        let value = self.name_of("802.11 subtype", names::WLAN_SUBTYPES)?;
        Ok(Primitive::WlanType { value, mask: 0xfc })
    }

    /// A number within `mask`, or a name from `table`.
    fn named(&mut self, what: &str, table: &[(&str, u32)], mask: u32) -> Result<u32> {
        match self.peek() {
            Token::Number(number) if number & !mask != 0 => {
                let message = format!("invalid {what} value {number:#x}");
                Err(mistake(self.span_here(), message, None))
            }
            Token::Number(number) => {
                self.at += 1;
                Ok(number)
            }
            _ => self.name_of(what, table),
        }
    }

    fn name_of(&mut self, what: &str, table: &[(&str, u32)]) -> Result<u32> {
        let name = self.plain_name(what)?;
        names::find(table, &name).ok_or_else(|| {
            self.at -= 1;
            let nearest =
                super::super::nearest::nearest(table.iter().map(|(name, _)| *name), &name);
            let hint = nearest.map(|word| format!("did you mean `{word}`?"));
            mistake(self.span_here(), format!("unknown {what} `{name}`"), hint)
        })
    }

    fn plain_name(&mut self, what: &str) -> Result<String> {
        match self.peek() {
            Token::Name => {
                let span = self.next().span;
                Ok(self.text[span].to_owned())
            }
            Token::Escaped => {
                let span = self.next().span;
                Ok(self.text[span.start + 1..span.end].to_owned())
            }
            _ => Err(self.unexpected(&format!("the name of an {what}"))),
        }
    }

    /// A primitive that begins with a word of its own.
    fn worded(&mut self, word: Word) -> Result<Option<Value>> {
        if let Some((field, named)) = mtp3_field(word) {
            self.at += 1;
            return self
                .values(named, |relation, value| Primitive::Mtp3Field(field, relation, value))
                .map(|tree| Some(Value::Tree(tree)));
        }
        if let Some(field) = atm_field(word) {
            self.at += 1;
            let leaf = |relation, value| Primitive::AtmField(field, relation, value);
            return self.values("a VPI or VCI", leaf).map(|tree| Some(Value::Tree(tree)));
        }
        let start = self.at;
        self.at += 1;
        let primitive = match word {
            Word::Less => Primitive::Less(self.number("a length")?),
            Word::Greater => Primitive::Greater(self.number("a length")?),
            Word::Byte => self.byte()?,
            Word::Inbound => Primitive::Direction { outbound: false },
            Word::Outbound => Primitive::Direction { outbound: true },
            Word::IfIndex => Primitive::Interface(self.number("the number of an interface")?),
            Word::Llc => Primitive::Llc(self.llc()?),
            Word::IfName => Primitive::PfInterface(self.plain_name("interface")?),
            Word::Ruleset => Primitive::PfRuleset(self.plain_name("ruleset")?),
            Word::RuleNumber => Primitive::PfNumber(PfField::Rule, self.number("a rule number")?),
            Word::SubruleNumber => {
                Primitive::PfNumber(PfField::Subrule, self.number("a rule number")?)
            }
            Word::Reason => {
                let reason = self.named("PF reason", names::PF_REASONS, u32::MAX)?;
                Primitive::PfNumber(PfField::Reason, reason)
            }
            Word::Action => {
                let action = self.name_of("PF action", names::PF_ACTIONS)?;
                Primitive::PfNumber(PfField::Action, action)
            }
            other => {
                if let Some((encapsulation, numbered)) = encapsulation(other) {
                    let number = if numbered { self.optional_number()? } else { None };
                    Primitive::Encapsulation(encapsulation, number)
                } else if let Some(atm) = atm(other) {
                    Primitive::Atm(atm)
                } else if let Some(unit) = mtp2(other) {
                    Primitive::Mtp2(unit)
                } else {
                    self.at = start;
                    return Ok(None);
                }
            }
        };
        Ok(Some(Value::Primitive(primitive)))
    }

    fn byte(&mut self) -> Result<Primitive> {
        let offset = self.number("the place of a byte")?;
        let op = match self.peek() {
            Token::Symbol(Symbol::Equal) => ByteOp::Equal,
            Token::Symbol(Symbol::Less) => ByteOp::Less,
            Token::Symbol(Symbol::Greater) => ByteOp::Greater,
            Token::Symbol(Symbol::Ampersand) => ByteOp::And,
            Token::Symbol(Symbol::Bar) => ByteOp::Or,
            _ => return Err(self.unexpected("one of = < > & |")),
        };
        self.at += 1;
        Ok(Primitive::Byte { offset, op, value: self.number("a byte")? })
    }

    fn llc(&mut self) -> Result<Llc> {
        if self.peek() == Token::Word(Word::RuleNumber)
            && self.text[self.span_here()].eq_ignore_ascii_case("rnr")
        {
            self.at += 1;
            return Ok(Llc::Supervisory(names::find(names::LLC_SUPERVISORY, "rnr")));
        }
        if !matches!(self.peek(), Token::Name | Token::Escaped) {
            return Ok(Llc::Any);
        }
        let name = self.plain_name("LLC type")?;
        let supervisory = names::find(names::LLC_SUPERVISORY, &name);
        let unnumbered = names::find(names::LLC_UNNUMBERED, &name);
        match name.to_ascii_lowercase().as_str() {
            "i" => Ok(Llc::Information),
            "s" => Ok(Llc::Supervisory(None)),
            "u" => Ok(Llc::Unnumbered(None)),
            _ if supervisory.is_some() => Ok(Llc::Supervisory(supervisory)),
            _ if unnumbered.is_some() => Ok(Llc::Unnumbered(unnumbered)),
            _ => {
                self.at -= 1;
                Err(mistake(self.span_here(), format!("unknown LLC type `{name}`"), None))
            }
        }
    }

    /// A number, perhaps in parentheses, if one is there.
    fn optional_number(&mut self) -> Result<Option<u32>> {
        match self.peek() {
            Token::Number(number) => {
                self.at += 1;
                Ok(Some(number))
            }
            Token::Symbol(Symbol::Open) => {
                self.at += 1;
                let number = self.deeper(Self::optional_number)?;
                if number.is_none() {
                    return Err(self.unexpected("a number"));
                }
                self.expect(Symbol::Close, "`)`")?;
                Ok(number)
            }
            _ => Ok(None),
        }
    }

    /// `[relation] value` or `(value or value …)`.
    fn values(&mut self, what: &str, leaf: impl Fn(Relation, u32) -> Primitive) -> Result<Tree> {
        let start = self.at.saturating_sub(1);
        if self.eat(Symbol::Open) {
            let mut trees = Vec::new();
            loop {
                let value = self.number(what)?;
                let leaf = leaf(Relation::Equal, value);
                trees.push(Tree::Leaf(leaf, self.span_from(start)));
                if self.peek() != Token::Word(Word::Or) {
                    break;
                }
                self.at += 1;
            }
            self.expect(Symbol::Close, "`or` or `)`")?;
            return Ok(Tree::Any(trees));
        }
        let relation = self.relation_symbol().unwrap_or(Relation::Equal);
        let value = self.number(what)?;
        Ok(Tree::Leaf(leaf(relation, value), self.span_from(start)))
    }
}

const BRACKET: Token = Token::Symbol(Symbol::BracketOpen);

enum Value {
    Primitive(Primitive),
    Tree(Tree),
}

fn encapsulation(word: Word) -> Option<(Encapsulation, bool)> {
    Some(match word {
        Word::Vlan => (Encapsulation::Vlan, true),
        Word::Mpls => (Encapsulation::Mpls, true),
        Word::Pppoed => (Encapsulation::PppoeDiscovery, false),
        Word::Pppoes => (Encapsulation::PppoeSession, true),
        Word::Geneve => (Encapsulation::Geneve, true),
        Word::Vxlan => (Encapsulation::Vxlan, true),
        _ => return None,
    })
}

fn atm(word: Word) -> Option<Atm> {
    Some(match word {
        Word::Lane => Atm::Lane,
        Word::Metac => Atm::Metac,
        Word::Bcc => Atm::Bcc,
        Word::OamF4Sc => Atm::OamF4Segment,
        Word::OamF4Ec => Atm::OamF4End,
        Word::Sc => Atm::Sc,
        Word::Ilmic => Atm::Ilmic,
        Word::Oam => Atm::Oam,
        Word::OamF4 => Atm::OamF4,
        Word::ConnectMsg => Atm::ConnectMessage,
        Word::MetaConnect => Atm::MetaConnect,
        _ => return None,
    })
}

fn atm_field(word: Word) -> Option<AtmField> {
    match word {
        Word::Vpi => Some(AtmField::Vpi),
        Word::Vci => Some(AtmField::Vci),
        _ => None,
    }
}

fn mtp2(word: Word) -> Option<Mtp2> {
    Some(match word {
        Word::Fisu => Mtp2::Fisu,
        Word::Lssu => Mtp2::Lssu,
        Word::Msu => Mtp2::Msu,
        Word::Hfisu => Mtp2::HighFisu,
        Word::Hlssu => Mtp2::HighLssu,
        Word::Hmsu => Mtp2::HighMsu,
        _ => return None,
    })
}

fn mtp3_field(word: Word) -> Option<(Mtp3Field, &'static str)> {
    let (field, high, what) = match word {
        Word::Sio => (Mtp3::Sio, false, "a service indicator"),
        Word::Opc => (Mtp3::Opc, false, "a point code"),
        Word::Dpc => (Mtp3::Dpc, false, "a point code"),
        Word::Sls => (Mtp3::Sls, false, "a link selection"),
        Word::Hsio => (Mtp3::Sio, true, "a service indicator"),
        Word::Hopc => (Mtp3::Opc, true, "a point code"),
        Word::Hdpc => (Mtp3::Dpc, true, "a point code"),
        Word::Hsls => (Mtp3::Sls, true, "a link selection"),
        _ => return None,
    };
    Some((Mtp3Field { field, high }, what))
}
