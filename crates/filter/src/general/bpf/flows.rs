//! A pcap-filter(7) expression that selects the flows a source takes from the host: `rx IF take
//! EXPRESSION`.
//!
//! In: the source's arguments `expression` and `names`, as those of a `bpf`. Out: checks of the
//! request, and the kernel code of the decision. Nothing is guessed: a frame that the expression
//! cannot decide stays with the host. An expression that looks at ports decides no fragment of a
//! datagram, because only the first one has ports; it leaves them all, so that the host can join
//! them. [FEATURES G7; CONTRACT 2]

use super::compile::compile;
use super::{names, validate};
use crate::{Arguments, Mistake};
use ebpf::classic::insn::code;
use ebpf::classic::{self, ClassicProgram, Instruction, Metadata, Options};
use ebpf::emit::{Exit, Scope, Unfit};
use wire::LinkType;

/// The parameter that holds the expression.
const EXPRESSION: &str = "expression";
/// Matches fragments, untagged or behind one VLAN tag.
const FRAGMENT: &str = "ip[6:2] & 0x3fff != 0 or ip6[6] = 44 or \
                        (vlan and (ip[6:2] & 0x3fff != 0 or ip6[6] = 44))";
/// The bits of an IPv4 header that make a frame a later fragment.
const OFFSET_BITS: u32 = 0x1fff;

/// Returns true if a source selects flows.
#[must_use]
pub fn selects(arguments: &Arguments) -> bool {
    arguments.text(EXPRESSION).is_some()
}

/// Resolves the names in the expression; see [`Analysis::settles`](crate::Analysis::settles).
#[must_use]
pub fn settles(arguments: &Arguments) -> Option<(&'static str, String)> {
    names::settles(arguments).filter(|_| selects(arguments))
}

/// Returns the mistake in the expression.
#[must_use]
pub fn refuses(arguments: &Arguments) -> Option<Mistake> {
    selects(arguments).then(|| validate::made(arguments).err()).flatten()
}

/// Returns a warning if no frame can match the expression.
#[must_use]
pub fn warns(arguments: &Arguments) -> Option<Mistake> {
    selects(arguments).then(|| validate::warns(arguments)).flatten()
}

/// Describes the compiled expression, and the frames that it cannot decide.
#[must_use]
pub fn remark(arguments: &Arguments) -> Option<String> {
    let compiled = selects(arguments).then(|| validate::remark(arguments)).flatten()?;
    let program = compile(arguments, LinkType::ETHERNET.0).ok().and_then(|made| made.program);
    let rest = match program.is_some_and(|program| looks_at_ports(&program)) {
        true => "; it looks at ports: fragments of datagrams stay with the host",
        false => "",
    };
    Some(format!("takes what its expression matches, {compiled}{rest}"))
}

/// Returns true if the expression matches a frame of Ethernet.
#[must_use]
pub fn matches(arguments: &Arguments, frame: &[u8]) -> bool {
    let compiled = compile(arguments, LinkType::ETHERNET.0).ok().and_then(|made| made.program);
    let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
    compiled.is_some_and(|program| program.run(frame, length, &Metadata::NOTHING) != 0)
}

/// Emits the decision about an untouched frame: continues with a frame to take, and leaves by
/// `fragment` with one that the expression cannot decide, by `miss` with any other.
pub fn gate<'s>(
    arguments: &Arguments,
    s: &mut Scope<'s, '_>,
    fragment: Exit<'s>,
    miss: Exit<'s>,
) -> Result<(), Unfit> {
    let compiled = compile(arguments, LinkType::ETHERNET.0);
    let compiled = compiled.map_err(|mistake| Unfit::new(mistake.to_string()))?;
    let none = || Unfit::new("its expression holds for no frame of that kind");
    let program = compiled.program.ok_or_else(none)?;
    if looks_at_ports(&program) {
        let fragments = classic::compile(
            FRAGMENT,
            classic::LinkType::from_file(LinkType::ETHERNET.0.into()),
            &Options::default(),
        );
        let fragments = fragments.map_err(|error| Unfit::new(error.what))?;
        s.arm(|t, whole| {
            t.only_classic(&fragments, whole)?;
            t.leave(fragment);
            Ok::<(), Unfit>(())
        })?;
    }
    s.only_classic(&program, miss)
}

/// Returns true if the program tests for later fragments, as every test of a port does.
fn looks_at_ports(program: &ClassicProgram) -> bool {
    let tests =
        |one: &Instruction| one.code == code::JMP | code::JSET | code::K && one.k == OFFSET_BITS;
    program.instructions().iter().any(tests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Parameter, Type, Value};
    use testkit::Frame;

    const PARAMETERS: &[Parameter] = &[
        Parameter::optional(EXPRESSION, Type::Text, ""),
        Parameter::optional("names", Type::Text, ""),
    ];

    fn given(expression: &str) -> Arguments {
        let mut arguments = Arguments::defaults(PARAMETERS);
        arguments.set(EXPRESSION, Value::Text(expression.to_owned()));
        arguments
    }

    #[test]
    fn expressions_with_ports_leave_fragments() {
        for (expression, leaves) in [
            ("udp port 53", true),
            ("host 10.0.0.1 and tcp dst port 80", true),
            ("portrange 1-1024", true),
            ("host 10.0.0.1", false),
            ("udp", false),
            ("icmp", false),
        ] {
            let program = compile(&given(expression), LinkType::ETHERNET.0).unwrap().program;
            assert_eq!(looks_at_ports(&program.unwrap()), leaves, "{expression}");
        }
    }

    #[test]
    fn expression_matches_whole_frames() {
        let frame = |port| Frame::ethernet().ipv4("10.0.0.1", "10.0.0.2").udp(4000, port, b"x");
        let given = given("udp port 53");
        assert!(matches(&given, &frame(53)) && !matches(&given, &frame(54)));
        assert!(selects(&given) && !selects(&Arguments::defaults(PARAMETERS)));
        assert_eq!(refuses(&given).map(|mistake| mistake.what), None);
    }

    #[test]
    fn faulty_expression_is_a_mistake_with_its_place() {
        let mistake = refuses(&given("udp prt 53")).expect("a mistake");
        assert_eq!(mistake.parameter, Some(EXPRESSION), "{mistake}");
        assert_eq!(refuses(&Arguments::defaults(PARAMETERS)).map(|mistake| mistake.what), None);
    }
}
