//! `bpf`: tests whether a pcap-filter(7) expression accepts the frame.
//!
//! Input: any view into a frame; the expression applies to the whole frame. Output: the same block
//! with class 1 or no class. [SL §4.2, `rx | bpf "tcp" | user`]
//!
//! An expression is compiled separately for each link type: at creation for the link types that the
//! source declares, so that `check` reports errors ([`validate`]), and for any other link type when
//! its first frame arrives. On link types where no frame can match, blocks have no class. The
//! compiler in the arguments compiles expressions that the built-in compiler does not support
//! (CONTRACT 27). [`recorded_names`] resolves names.

mod compile;
pub mod flow_matcher;
pub mod flow_selection;
mod pushdown;
mod recorded_names;
mod validate;

pub use pushdown::{Direction, compile_program, link_type, socket_filter};

use crate::prelude::*;
use crate::twin::EmitResult;
use compile::{Programs, compile};
use ebpf::classic::{self, ClassicMetadata, ClassicProgram};
use ebpf::emit::{Answer, Exit, Layers, Scope, UnfitReason};
use recorded_names::{RecordedNameResolver, names_to_record};
use validate::{compilation_remark, compiled_programs, match_warning};

/// Compiles an expression in the same way as libpcap does for a live capture of Ethernet frames:
/// the program reads the outermost VLAN tag from the metadata of the skb. Returns `None` if the
/// built-in compiler rejects the expression.
#[must_use]
pub fn compile_for_live_capture(
    expression: &str,
    options: &classic::Options<'_>,
    names: std::sync::Arc<dyn NameResolver>,
) -> Option<ClassicProgram> {
    let resolver = RecordedNameResolver::from_machine(names);
    let options = classic::Options { live_metadata: true, resolver: &resolver, ..*options };
    classic::compile(expression, classic::LinkType::EN10MB, &options).ok()
}

/// Catalog entry of `bpf`, which tests whether a pcap-filter(7) expression accepts the frame.
pub const BPF: Description = Description {
    name: "bpf",
    summary: "pass frames that match a pcap-filter(7) expression",
    details: "\
Tests whole frames, also after `ip` or `udp`, against an expression as tcpdump takes it, in quotes:
`bpf \"tcp port 80 and host 10.0.0.1\"`. The class is 1 if the expression matches.

The expression is checked against the link types of the capture file or interface. For other types
(from a pipe, or of an interface that appears late in a capture) it is compiled at their first
frame, for at most 64 types. libpcap, if installed, compiles what the built-in compiler does not
support. An expression that can match no frame causes a warning.

A compiled program can stand in place of an expression, in the numbers of `tcpdump -ddd` with commas
for lines, as iptables writes it: `bpf \"4,48 0 0 23,21 0 1 17,6 0 0 1,6 0 0 0\"`. It runs on frames
of every link type.

Names of hosts, networks, services and protocols are resolved once, when the request is read, and
recorded in it (`names=`). Replaying a record, or running a part of the request, asks no resolver.

Reasons for no class: `no match` (the expression does not match), `link type` (no frame of this link
type can match, or the block is no frame).",
    example: "replay web.pcap | bpf \"tcp port 80\" | count",
    kind: FilterKind::Classification,
    input_forms: Forms::FRAMED,
    reads: ReadDepth::All,
    parameters: &[
        Parameter::required("expression", ParameterType::Text, "a pcap-filter(7) expression"),
        Parameter::optional(
            "names",
            ParameterType::Text,
            "values of names in it, as in \"host:a=10.0.0.1 port:b=8080/tcp\"; otherwise resolved",
        ),
    ],
    classes: Classes::YesNo,
    reasons: &["no match", "link type"],
    analysis: ArgumentAnalysis {
        fix_parameter: Some(names_to_record),
        warning: Some(match_warning),
        remark: Some(compilation_remark),
        pushdown: Some(pushdown::check_pushdown),
        ..ArgumentAnalysis::NONE
    },
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

const NO_MATCH: Reason = BPF.reason("no match");
const UNSUPPORTED_LINK_TYPE: Reason = BPF.reason("link type");

/// Maximum number of link types for which one expression is compiled. No machine has interfaces of
/// more types. The limit bounds the work for a capture file that declares more.
const LINK_TYPES_MAX: usize = 64;

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::classify(ExpressionMatcher::new(arguments.clone())?))
}

/// Returns true if the text is not blank and parses as a pcap-filter(7) expression. Names are not
/// looked up, and numbers are not checked against their maximum.
#[must_use]
pub fn parses_as_expression(text: &str) -> bool {
    !text.trim().is_empty() && classic::name_queries(text).is_ok()
}

/// A compiled expression, used by the filter `bpf`, by the triggers of `freeze`, and by
/// [`flow_matcher`].
#[derive(Debug)]
pub struct ExpressionMatcher {
    arguments: Arguments,
    /// Programs by link type. An entry is `None` if no frame of the link type can match, or if the
    /// expression does not compile for it. Not part of the state, since the filter recompiles the
    /// programs after a move.
    programs: Programs,
}

impl Classify for ExpressionMatcher {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        match self.verdict(block) {
            None => cx.answer_absent(UNSUPPORTED_LINK_TYPE),
            Some(false) => cx.answer_absent(NO_MATCH),
            Some(true) => Class::YES,
        }
    }
}

/// Packet metadata of the socket buffer, which the compiled programs may test. Empty, since VLAN
/// tags are stored in the frame (CONTRACT 3).
const EMPTY_METADATA: ClassicMetadata = ClassicMetadata::EMPTY;

impl ExpressionMatcher {
    /// Creates the matcher from the arguments of a `bpf` filter.
    pub fn new(arguments: Arguments) -> Result<Self, Mistake> {
        let programs = compiled_programs(&arguments)?;
        Ok(Self { arguments, programs })
    }

    /// Returns true if the expression accepts the block's frame. Returns false if the block has no
    /// frame.
    pub fn matches(&mut self, block: &Block<'_>) -> bool {
        block.marks.is_frame() && self.verdict(block) == Some(true)
    }

    /// Applies the expression to the block's frame. Returns true if the expression accepts the
    /// frame and false if it rejects the frame. Returns `None` if there is no program for the link
    /// type of the frame.
    #[inline]
    fn verdict(&mut self, block: &Block<'_>) -> Option<bool> {
        let program = self.program_for_link_type(block.marks.link)?;
        Some(program.run(block.frame, block.marks.wire_length, &EMPTY_METADATA) != 0)
    }

    /// Applies the expression to a frame of this link type. Returns true if the expression accepts
    /// the frame and false if it rejects the frame. Returns `None` if there is no program for the
    /// link type.
    fn frame_matches(&mut self, link: LinkType, frame: &[u8], length: u32) -> Option<bool> {
        let program = self.program_for_link_type(link.0)?;
        Some(program.run(frame, length, &EMPTY_METADATA) != 0)
    }

    #[inline]
    fn program_for_link_type(&mut self, link: u16) -> Option<&ClassicProgram> {
        let at = self.programs.iter().position(|(known, _)| *known == link);
        let at = at.unwrap_or_else(|| self.compile_for_link_type(link));
        self.programs.get(at)?.1.as_ref()
    }

    #[cold]
    fn compile_for_link_type(&mut self, link: u16) -> usize {
        if link == Marks::NO_LINK_TYPE || self.programs.len() >= LINK_TYPES_MAX {
            return usize::MAX;
        }
        self.programs.push((link, compile_program(&self.arguments, link)));
        self.programs.len() - 1
    }
}

/// Emits the twin of `bpf`, which tests the expression. The expression is compiled for Ethernet
/// frames or, at a hook without link headers, for IP packets.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let link = match s.hook().has_link_header() {
        true if !on.has_link_header => return Err(UnfitReason::new("the link header is cut off")),
        true => LinkType::ETHERNET,
        false => LinkType::RAW,
    };
    let compiled = compile(a, link.0);
    match compiled.map_err(|mistake| UnfitReason::new(mistake.to_string()))?.program {
        Some(program) => {
            let no_match = s.absent("no match", out);
            s.only_accepted_by_classic(&program, no_match)?;
        }
        None => return Err(UnfitReason::new("its expression matches no frame of that kind")),
    }
    Ok(Answer::new(Class::YES.0, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ip::IP;
    use crate::testing::{Frame, Node, answer_frames, answer_through_chain, parse_arguments};
    use ebpf::classic::LinkType;
    use ebpf::classic::insn::{Instruction, code};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use wire::LinkType as Link;

    #[test]
    fn expression_applies_to_the_whole_frame() {
        let frames =
            [Frame::tcp(4000, 80, b"GET"), Frame::tcp(80, 81, b""), Frame::udp(1, 80, b"")];
        let found = answer_frames(&BPF, &["tcp dst port 80"], &frames);
        assert_eq!(found.iter().map(|a| a.class.0).collect::<Vec<_>>(), [1, 0, 0]);
        let behind_ip = answer_through_chain(&[(&IP, &[]), (&BPF, &["tcp port 80"])], &frames);
        assert_eq!(behind_ip.iter().map(|a| a.class.0).collect::<Vec<_>>(), [1, 1, 0]);
    }

    #[test]
    fn each_link_type_has_its_program() {
        let udp = Frame::udp(1, 53, b"").bytes;
        let frames = [
            Frame::new(Link::RAW.0, &udp[14..]),
            Frame::new(Link::ETHERNET.0, &udp),
            Frame::new(Marks::NO_LINK_TYPE, &udp),
        ];
        let found = answer_frames(&BPF, &["udp port 53"], &frames);
        assert_eq!(found.iter().map(|a| a.class.0).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(found[2].reason, Some("link type"));
        let found = answer_frames(&BPF, &["ether host 1:2:3:4:5:6"], &frames);
        let why: Vec<_> = found.iter().map(|a| a.reason).collect();
        assert_eq!(why, [Some("link type"), Some("no match"), Some("link type")]);
    }

    /// Link type of BACnet MS/TP. The built-in compiler has no offset of the protocol number for
    /// such frames.
    const BACNET_DLT: u16 = 165;
    const WLAN_DLT: u16 = 105;

    /// Returns the arguments of a `bpf` filter after a source with these link types.
    fn arguments_for(text: &str, links: &[u16]) -> Arguments {
        let links: Vec<Link> = links.iter().map(|link| Link(*link)).collect();
        parse_arguments(&BPF, &[text]).unwrap().with_link_types(Some(links.into()))
    }

    /// A fake compiler for one link type that accepts frames beginning with 0x55 and counts its
    /// calls.
    #[derive(Debug, Default)]
    struct FakeCompiler(AtomicUsize);

    impl ExpressionCompiler for FakeCompiler {
        fn name(&self) -> String {
            "another".to_owned()
        }

        fn compile(&self, _: &str, link: LinkType, snaplen: u32) -> Result<ClassicProgram, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if link != LinkType(BACNET_DLT.into()) {
                return Err(format!("{link} is strange to me"));
            }
            let equal =
                Instruction { code: code::JMP | code::JEQ | code::K, jt: 0, jf: 1, k: 0x55 };
            let load = Instruction::non_branching(code::LD | code::ABS | code::B, 0);
            let [yes, no] =
                [snaplen, 0].map(|k| Instruction::non_branching(code::RET | code::K, k));
            ClassicProgram::new(vec![load, equal, yes, no]).map_err(|invalid| invalid.to_string())
        }
    }

    fn matcher_with_compiler(text: &str, other: &Arc<FakeCompiler>) -> ExpressionMatcher {
        let compiler: Arc<dyn ExpressionCompiler> = other.clone();
        let arguments = parse_arguments(&BPF, &[text]).unwrap().with_compiler(Some(compiler));
        ExpressionMatcher { arguments, programs: Vec::new() }
    }

    #[test]
    fn unsupported_expression_goes_to_the_other_compiler() {
        let other = Arc::new(FakeCompiler::default());
        let mut bpf = matcher_with_compiler("ip", &other);
        let mut run = |link, frame: &[u8]| {
            bpf.program_for_link_type(link)
                .map(|program| program.run(frame, frame.len() as u32, &EMPTY_METADATA) > 0)
        };
        assert_eq!(run(BACNET_DLT, b"\x55\xff"), Some(true));
        assert_eq!(run(BACNET_DLT, b"\x54\xff"), Some(false));
        assert_eq!(other.0.load(Ordering::Relaxed), 1, "asked once for a link type");
        assert_eq!(run(9999, b"\x55\xff"), None);
        assert_eq!(run(Link::ETHERNET.0, b""), Some(false));
        assert_eq!(other.0.load(Ordering::Relaxed), 2, "not asked about what we know");
    }

    #[test]
    fn syntax_error_does_not_reach_the_other_compiler() {
        let other = Arc::new(FakeCompiler::default());
        let compiler: Arc<dyn ExpressionCompiler> = other.clone();
        let of =
            |text| parse_arguments(&BPF, &[text]).unwrap().with_compiler(Some(compiler.clone()));
        assert!(make_filter(&of("tcp prot 80")).is_err());
        assert!(make_filter(&of("tcp port 80")).is_ok());
        assert_eq!(other.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn remark_names_compiler_and_link_type() {
        let compiler: Arc<dyn ExpressionCompiler> = Arc::new(FakeCompiler::default());
        let alone = parse_arguments(&BPF, &["ip"]).unwrap();
        let both = alone.clone().with_compiler(Some(compiler.clone()));
        let own = "compiled by the built-in compiler for EN10MB (Ethernet), 4 instructions; others \
                   at their first frame";
        assert_eq!(compilation_remark(&alone).unwrap(), own);
        assert_eq!(compilation_remark(&both).unwrap(), own.to_owned() + ", or by another");
        let remark_for_links = |links: &[u16]| {
            compilation_remark(&arguments_for("ip", links).with_compiler(Some(compiler.clone())))
        };
        assert_eq!(
            remark_for_links(&[WLAN_DLT]).unwrap(),
            "compiled by the built-in compiler for IEEE802_11 (802.11), 19 instructions"
        );
        assert_eq!(
            remark_for_links(&[BACNET_DLT, 1]).unwrap(),
            "compiled by another for BACNET_MS_TP (BACnet MS/TP), 4 instructions; compiled by the \
             built-in compiler for EN10MB (Ethernet), 4 instructions"
        );
        let no_resolver = compile(&both, 9999).err().map(|mistake| mistake.message).unwrap();
        assert!(
            no_resolver.ends_with("; another: link type 9999 is strange to me"),
            "{no_resolver}"
        );
        let alone = compile(&alone, BACNET_DLT).err().map(|mistake| mistake.message).unwrap();
        assert!(alone.contains("is unknown"), "{alone}");
    }

    #[test]
    fn expression_is_checked_for_link_types_of_its_source() {
        let judged = |text: &str, links: &[u16]| make_filter(&arguments_for(text, links)).map(drop);
        assert_eq!(judged("type mgt", &[WLAN_DLT]), Ok(()));
        let mistake = judged("type mgt", &[1]).unwrap_err();
        assert_eq!(mistake.message, "`type` is not supported on EN10MB (Ethernet)");
        assert_eq!(judged("type mgt", &[1, WLAN_DLT]), Ok(()), "one of them knows it");
        // If the link types are unknown, the expression must be valid for at least one link type.
        let anywhere = |text: &str| make_filter(&parse_arguments(&BPF, &[text]).unwrap()).map(drop);
        assert_eq!(anywhere("type mgt"), Ok(()));
        assert_eq!(anywhere("tcp prot 80").unwrap_err().range, Some(4..8));
    }

    #[test]
    fn expression_that_matches_nothing_causes_a_warning() {
        let warned = |text: &str, links: &[u16]| {
            match_warning(&arguments_for(text, links)).map(|warning| warning.message)
        };
        assert_eq!(warned("arp", &[1]), None);
        let nothing = "no frame of RAW (IP without a link header) can match";
        assert_eq!(warned("arp", &[101]).as_deref(), Some(nothing));
        assert_eq!(warned("arp", &[1, 101]).as_deref(), Some(nothing));
        let half = "no frame of EN10MB (Ethernet) passes: `type` is not supported on EN10MB \
                    (Ethernet)";
        assert_eq!(warned("type mgt", &[1, WLAN_DLT]).as_deref(), Some(half));
        let unknown = |text: &str| match_warning(&parse_arguments(&BPF, &[text]).unwrap());
        assert_eq!(unknown("arp"), None);
        let nowhere = unknown("ip and arp").unwrap();
        assert_eq!(nowhere.message, "no frame of EN10MB (Ethernet) can match");
        assert_eq!(nowhere.range, Some(0..10));
    }

    #[test]
    fn compiled_link_types_are_bounded() {
        let other = Arc::new(FakeCompiler::default());
        let mut bpf = matcher_with_compiler("ip", &other);
        for link in 1000..u16::MAX {
            assert!(bpf.program_for_link_type(link).is_none());
        }
        assert_eq!(
            (bpf.programs.len(), other.0.load(Ordering::Relaxed)),
            (LINK_TYPES_MAX, LINK_TYPES_MAX)
        );
        assert!(bpf.program_for_link_type(Marks::NO_LINK_TYPE).is_none());
    }

    #[test]
    fn length_test_uses_the_wire_length() {
        let mut cut = Frame::udp(1, 2, &[0; 400]);
        cut.wire_length = Some(cut.bytes.len() as u32);
        cut.bytes.truncate(60);
        assert_eq!(answer_frames(&BPF, &["greater 400"], &[cut])[0].class, Class::YES);
    }

    #[test]
    fn expression_error_has_a_position() {
        let mistake = Node::new(&BPF, &["tcp prot 80"]).unwrap_err();
        assert_eq!((mistake.parameter, mistake.range), (Some("expression"), Some(4..8)));
        assert!(Node::new(&BPF, &[]).is_err());
        assert!(Node::new(&BPF, &[""]).is_ok(), "the empty expression matches everything");
    }
}
