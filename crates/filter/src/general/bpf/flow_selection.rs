//! The expression that selects the flows that a source takes from the host: `rx IF take
//! EXPRESSION`.
//!
//! This module checks the source's arguments `expression` and `names`, which have the same meaning
//! as for `bpf`, and emits the kernel code that applies the expression to a frame. The host keeps
//! frames on which the expression is undecided. An expression that tests ports is undecided on
//! fragments of a datagram, because only the first fragment has ports. The host therefore keeps all
//! fragments, and can reassemble the datagram. [FEATURES G7; CONTRACT 2]

use super::compile::compile;
use super::{recorded_names, validate};
use crate::{Arguments, Mistake};
use ebpf::classic::insn::code;
use ebpf::classic::{self, ClassicMetadata, ClassicProgram, Instruction, Options};
use ebpf::emit::{Exit, Scope, UnfitReason};
use wire::LinkType;

/// Name of the source parameter that contains the expression.
const EXPRESSION_PARAMETER: &str = "expression";
/// Expression that matches IP fragments, with at most one VLAN tag.
const FRAGMENT_EXPRESSION: &str = "ip[6:2] & 0x3fff != 0 or ip6[6] = 44 or \
                        (vlan and (ip[6:2] & 0x3fff != 0 or ip6[6] = 44))";
/// Mask of the fragment offset in an IPv4 header.
const FRAGMENT_OFFSET_MASK: u32 = 0x1fff;

/// Returns true if the arguments of a source contain an expression, so that the source takes only
/// the selected flows from the host.
#[must_use]
pub fn selects_flows(arguments: &Arguments) -> bool {
    arguments.text(EXPRESSION_PARAMETER).is_some()
}

/// Resolves the names in the expression. Returns the parameter that records the resolved names, and
/// the value to record
/// ([`ArgumentAnalysis::fix_parameter`](crate::ArgumentAnalysis::fix_parameter)). Returns `None` if
/// there is nothing to record.
#[must_use]
pub fn names_to_record(arguments: &Arguments) -> Option<(&'static str, String)> {
    recorded_names::names_to_record(arguments).filter(|_| selects_flows(arguments))
}

/// Returns the error in the expression. Returns `None` if the expression compiles for at least one
/// link type, or if there is no expression.
#[must_use]
pub fn expression_error(arguments: &Arguments) -> Option<Mistake> {
    selects_flows(arguments).then(|| validate::compiled_programs(arguments).err()).flatten()
}

/// Returns a warning if no frame, or no frame of one of the link types, can match the expression;
/// otherwise `None`.
#[must_use]
pub fn match_warning(arguments: &Arguments) -> Option<Mistake> {
    selects_flows(arguments).then(|| validate::match_warning(arguments)).flatten()
}

/// Returns a remark for `explain` about the compiled expression and the frames on which it is
/// undecided, or `None` if there is no expression.
#[must_use]
pub fn selection_remark(arguments: &Arguments) -> Option<String> {
    let compiled =
        selects_flows(arguments).then(|| validate::compilation_remark(arguments)).flatten()?;
    let program = compile(arguments, LinkType::ETHERNET.0).ok().and_then(|made| made.program);
    let rest = match program.is_some_and(|program| has_port_test(&program)) {
        true => "; it tests ports: fragments of datagrams stay with the host",
        false => "",
    };
    Some(format!("takes what its expression matches, {compiled}{rest}"))
}

/// Returns true if the expression matches this Ethernet frame.
#[must_use]
pub fn matches_frame(arguments: &Arguments, frame: &[u8]) -> bool {
    let compiled = compile(arguments, LinkType::ETHERNET.0).ok().and_then(|made| made.program);
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    compiled.is_some_and(|program| program.run(frame, length, &ClassicMetadata::EMPTY) != 0)
}

/// Emits code that applies the expression to a frame before any filter changes the frame. The code
/// jumps to `miss` if the expression rejects the frame. If the expression tests ports and the frame
/// is a fragment, the code jumps to `fragment`. Otherwise, it continues with the code after this
/// gate.
pub fn emit_gate<'s>(
    arguments: &Arguments,
    s: &mut Scope<'s, '_>,
    fragment: Exit<'s>,
    miss: Exit<'s>,
) -> Result<(), UnfitReason> {
    let compiled = compile(arguments, LinkType::ETHERNET.0);
    let compiled = compiled.map_err(|mistake| UnfitReason::new(mistake.to_string()))?;
    let none = || UnfitReason::new("its expression matches no frame of that kind");
    let program = compiled.program.ok_or_else(none)?;
    if has_port_test(&program) {
        let fragments = classic::compile(
            FRAGMENT_EXPRESSION,
            classic::LinkType::from_file_number(LinkType::ETHERNET.0.into()),
            &Options::default(),
        );
        let fragments = fragments.map_err(|error| UnfitReason::new(error.message))?;
        s.arm(|t, whole| {
            t.only_accepted_by_classic(&fragments, whole)?;
            t.leave(fragment);
            Ok::<(), UnfitReason>(())
        })?;
    }
    s.only_accepted_by_classic(&program, miss)
}

/// Returns true if a compiled program tests a port. Every such program tests the fragment offset
/// before the port, so this function searches for the test of the offset.
fn has_port_test(program: &ClassicProgram) -> bool {
    let tests = |one: &Instruction| {
        one.code == code::JMP | code::JSET | code::K && one.k == FRAGMENT_OFFSET_MASK
    };
    program.instructions().iter().any(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parameter, ParameterType, Value};
    use testkit::Frame;

    const PARAMETERS: &[Parameter] = &[
        Parameter::optional(EXPRESSION_PARAMETER, ParameterType::Text, ""),
        Parameter::optional("names", ParameterType::Text, ""),
    ];

    fn arguments_for(expression: &str) -> Arguments {
        let mut arguments = Arguments::from_parameter_defaults(PARAMETERS);
        arguments.set(EXPRESSION_PARAMETER, Value::Text(expression.to_owned()));
        arguments
    }

    #[test]
    fn port_expression_leaves_fragments_to_the_host() {
        for (expression, leaves) in [
            ("udp port 53", true),
            ("host 10.0.0.1 and tcp dst port 80", true),
            ("portrange 1-1024", true),
            ("host 10.0.0.1", false),
            ("udp", false),
            ("icmp", false),
        ] {
            let program =
                compile(&arguments_for(expression), LinkType::ETHERNET.0).unwrap().program;
            assert_eq!(has_port_test(&program.unwrap()), leaves, "{expression}");
        }
    }

    #[test]
    fn expression_matches_whole_frames() {
        let frame = |port| Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(4000, port, b"x");
        let given = arguments_for("udp port 53");
        assert!(matches_frame(&given, &frame(53)) && !matches_frame(&given, &frame(54)));
        assert!(
            selects_flows(&given)
                && !selects_flows(&Arguments::from_parameter_defaults(PARAMETERS))
        );
        assert_eq!(expression_error(&given).map(|mistake| mistake.message), None);
    }

    #[test]
    fn expression_error_has_a_position() {
        let mistake = expression_error(&arguments_for("udp prt 53")).expect("a mistake");
        assert_eq!(mistake.parameter, Some(EXPRESSION_PARAMETER), "{mistake}");
        assert_eq!(
            expression_error(&Arguments::from_parameter_defaults(PARAMETERS))
                .map(|mistake| mistake.message),
            None
        );
    }
}
