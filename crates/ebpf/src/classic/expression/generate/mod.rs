//! Generator that turns a syntax tree into a condition, for one link type.
//!
//! Input: the tree, the link type, the options. Output: a [`Condition`]. The generator visits the
//! tree from left to right. All tests to the right of an encapsulation such as `vlan` apply to
//! headers that begin further into the frame. The generator therefore tracks the offsets of the
//! current header, its protocol number and its payload. Offsets that vary per frame are stored in
//! scratch words.
//!
//! Each submodule generates one kind of test; `load` turns offsets into instructions.

mod arithmetic;
mod host;
mod id;
mod link_layer;
mod link_protocol;
mod load;
mod mac;
mod mpls;
mod port;
mod prologue;
mod protochain;
mod protocol;
mod tunnel;
mod vlan;
mod wlan;

use super::super::link::LinkType;
use super::ast::{ByteOp, Encapsulation, Primitive, Span, Tree};
use super::condition::{Condition, JumpLabel, PseudoInsn, alu_k, compare_k, non_branching};
use super::error::{ErrorKind, ExpressionError};
use super::layout::link_layout;
use super::options::Options;
use crate::classic::insn::code;
use crate::insn::Cond;
use load::HeaderBase;

type GenerateResult<T> = Result<T, ExpressionError>;

/// Maximum number of tests in a condition: twice the maximum number of instructions, because
/// optimization may drop many tests.
const CONDITION_TESTS_MAX: usize = 2 * super::super::program::INSTRUCTIONS_MAX;

/// Number of the scratch word for the offset of the outermost header, if that offset varies.
const HEADER_OFFSET_WORD: u32 = 15;
/// Number of the scratch word for the offset of the outermost payload, if that offset varies.
const PAYLOAD_OFFSET_WORD: u32 = 14;

/// Generates the condition on frames that the syntax tree `tree` expresses. Without a tree, the
/// condition accepts every frame.
pub(super) fn generate(
    tree: Option<&Tree>,
    link: LinkType,
    options: &Options<'_>,
) -> GenerateResult<Condition> {
    let Some(layout) = link_layout(link) else {
        return Err(ExpressionError {
            span: 0..0,
            message: format!("frames of {link} cannot be filtered"),
            hint: None,
            kind: ErrorKind::Unsupported,
        });
    };
    let Some(tree) = tree else { return Ok(Condition::Always) };
    let moving = |moves: bool, word| if moves { Some(word) } else { None };
    let header = Offset {
        constant: layout.header,
        word: moving(layout.has_varying_header, HEADER_OFFSET_WORD),
    };
    let mut generator = Generator {
        options,
        frame_link: link,
        link,
        header,
        has_inner_link: false,
        protocol: layout.protocol.map(|constant| Offset { constant, word: None }),
        payload: layout.payload.map(|constant| Offset {
            constant,
            word: moving(layout.has_varying_payload, PAYLOAD_OFFSET_WORD),
        }),
        nl: layout.network_offset,
        network_offset_without_snap: layout.network_offset_without_snap,
        mpls_depth: 0,
        vlan_depth: 0,
        is_in_tunnel: false,
        header_used: false,
        payload_used: false,
        lowest_offset_word: PAYLOAD_OFFSET_WORD,
        labels: 0,
        tests: 0,
        span: 0..0,
    };
    let condition = generator.lower_tree(tree)?;
    Ok(generator.prepend_prologue(condition))
}

/// An offset in the frame: a constant plus, if `word` is given, the contents of that scratch word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offset {
    constant: u32,
    word: Option<u32>,
}

impl Offset {
    fn plus(self, more: u32) -> Self {
        Self { constant: self.constant.wrapping_add(more), ..self }
    }
}

/// The state of the code generator for pcap-filter expressions, which primitives to the left pass
/// on to those to the right.
struct Generator<'a> {
    options: &'a Options<'a>,
    /// Link type of the entire frame, outside of all tunnels.
    frame_link: LinkType,
    /// Link type of the header that the next test applies to, which may be inside a tunnel.
    link: LinkType,
    /// Offset of the link header that the next test applies to.
    header: Offset,
    /// True while tests apply to the link header inside a PPPoE session or a tunnel, rather than to
    /// the link header of the frame.
    has_inner_link: bool,
    /// Offset of the protocol number that the next test compares; `None` if the current header
    /// contains no protocol number.
    protocol: Option<Offset>,
    /// Offset of the payload of the current link header; `None` if it is unknown.
    payload: Option<Offset>,
    nl: u32,
    network_offset_without_snap: u32,
    mpls_depth: u32,
    vlan_depth: u32,
    /// True if the current header is the link header inside a Geneve or VXLAN tunnel. Geneve may
    /// carry a packet without a link header.
    is_in_tunnel: bool,
    header_used: bool,
    payload_used: bool,
    /// Number of the lowest scratch word that is used for an offset. Lower words hold intermediate
    /// results.
    lowest_offset_word: u32,
    labels: u32,
    tests: usize,
    /// Span of the primitive for which code is being generated, for errors.
    span: Span,
}

impl Generator<'_> {
    fn lower_tree(&mut self, tree: &Tree) -> GenerateResult<Condition> {
        match tree {
            Tree::Not(inner) => Ok(self.lower_tree(inner)?.not()),
            Tree::All(trees) => self.fold_trees(trees, Condition::and),
            Tree::Any(trees) => self.fold_trees(trees, Condition::or),
            Tree::Leaf(primitive, span) => {
                self.span = span.clone();
                let condition = self.lower_primitive(primitive)?;
                self.tests += condition.test_count();
                if self.tests > CONDITION_TESTS_MAX {
                    let what = "the expression is too long for a program";
                    return Err(self.invalid_error(what));
                }
                Ok(condition)
            }
        }
    }

    fn fold_trees(
        &mut self,
        trees: &[Tree],
        join: impl Fn(Condition, Condition) -> Condition,
    ) -> GenerateResult<Condition> {
        let mut joined: Option<Condition> = None;
        for tree in trees {
            let next = self.lower_tree(tree)?;
            joined = Some(match joined {
                None => next,
                Some(before) => join(before, next),
            });
        }
        Ok(joined.unwrap_or(Condition::Always))
    }

    fn lower_primitive(&mut self, primitive: &Primitive) -> GenerateResult<Condition> {
        match primitive {
            Primitive::Protocol(protocol) => self.test_protocol(*protocol),
            Primitive::Id(qualifiers, id) => self.lower_id(*qualifiers, id),
            Primitive::Relation { op, left, right } => self.lower_relation(*op, left, right),
            Primitive::Broadcast(protocol) => self.test_broadcast(*protocol),
            Primitive::Multicast(protocol) => self.test_multicast(*protocol),
            Primitive::LengthAtMost(length) => Ok(test_length(code::JGT, *length).not()),
            Primitive::LengthAtLeast(length) => Ok(test_length(code::JGE, *length)),
            Primitive::Byte { offset, op, value } => self.test_byte(*offset, *op, *value),
            Primitive::Direction { outbound } => self.test_direction(*outbound),
            Primitive::Interface(index) => self.test_interface(*index),
            Primitive::Encapsulation(encapsulation, number) => match encapsulation {
                Encapsulation::Vlan => self.test_vlan(*number),
                Encapsulation::Mpls => self.test_mpls(*number),
                Encapsulation::PppoeDiscovery => self.test_pppoe_discovery(),
                Encapsulation::PppoeSession => self.test_pppoe_session(*number),
                Encapsulation::Geneve => self.test_geneve(*number),
                Encapsulation::Vxlan => self.test_vxlan(*number),
            },
            Primitive::WlanType { value, mask } => self.test_wlan_field(0, *value, *mask),
            Primitive::WlanDirection(value) => self.test_wlan_field(1, *value, 0x03),
            Primitive::Llc(llc) => self.test_llc(*llc),
        }
    }

    fn test_byte(&mut self, offset: u32, op: ByteOp, value: u32) -> GenerateResult<Condition> {
        self.check_maximum("byte argument", value, 0xff)?;
        let mut lines = self.load_field(HeaderBase::Header.byte(offset))?;
        Ok(match op {
            ByteOp::Equal => compare_k(lines, code::JEQ, value),
            ByteOp::Less => compare_k(lines, code::JGE, value).not(),
            ByteOp::Greater => compare_k(lines, code::JGT, value),
            ByteOp::And => {
                lines.push(alu_k(code::AND, value));
                compare_k(lines, code::JEQ, 0).not()
            }
            ByteOp::Or => {
                lines.push(alu_k(code::OR, value));
                compare_k(lines, code::JEQ, 0).not()
            }
        })
    }

    /// Creates a label for jumps inside one condition.
    fn new_label(&mut self) -> JumpLabel {
        self.labels += 1;
        JumpLabel(self.labels - 1)
    }

    /// Allocates a scratch word for a varying offset. Fails if all words are in use.
    fn allocate_word(&mut self) -> GenerateResult<u32> {
        if self.lowest_offset_word <= 1 {
            let what = "too many nested headers: no scratch word is left";
            return Err(self.invalid_error(what));
        }
        self.lowest_offset_word -= 1;
        Ok(self.lowest_offset_word)
    }

    /// Fails if `value`, which `what` names in the error, exceeds `maximum`.
    fn check_maximum(&self, what: &str, value: u32, maximum: u32) -> GenerateResult<()> {
        if value <= maximum {
            return Ok(());
        }
        Err(self.invalid_error(format!("{what} {value} greater than maximum {maximum}")))
    }

    fn invalid_error(&self, what: impl Into<String>) -> ExpressionError {
        self.error(ErrorKind::Invalid, what.into())
    }

    fn unsupported_on_link_error(&self, word: &str) -> ExpressionError {
        self.invalid_error(format!("`{word}` is not supported on {}", self.link))
    }

    fn invalid_qualifier_error(&self, qualifier: &str, thing: &str) -> ExpressionError {
        self.invalid_error(format!("`{qualifier}` is not a valid qualifier for `{thing}`"))
    }

    fn error(&self, kind: ErrorKind, what: String) -> ExpressionError {
        ExpressionError { span: self.span.clone(), message: what, hint: None, kind }
    }
}

fn test_length(op: u16, length: u32) -> Condition {
    compare_k(vec![non_branching(code::LD | code::LEN, 0)], op, length)
}

/// Returns the comparison operator for a relation, and the outcome for which the relation holds.
fn comparison_operator(relation: Cond) -> (u16, bool) {
    match relation {
        Cond::Ne => (code::JEQ, false),
        Cond::Le => (code::JGT, false),
        Cond::Lt => (code::JGE, false),
        same => (same as u16, true),
    }
}

/// Instructions that are executed one after another, without jumps to other code.
type Code = Vec<PseudoInsn>;
