//! `bpf`: answers whether a pcap-filter(7) expression holds for the frame.
//!
//! In: anything that still lies in a frame; the expression is run on the whole frame, whatever the
//! view. Out: the same block with class 1 or no answer. [SL §4.2, `rx | bpf "tcp" | user`]
//!
//! An expression means something only for a link type. So it is compiled once for each link type
//! that comes by; when the filter is made it is compiled for Ethernet, so that mistakes are found
//! by `check`. On a link type on which no frame can match, there is no answer. What our own
//! compiler does not know goes to the compiler that came with the arguments (CONTRACT 27).

mod ahead;

pub use ahead::{Direction, Refusal as NotAhead, link_type, program, socket_filter};

use crate::prelude::*;
use crate::twin::Emitted;
use ebpf::classic::{self, ErrorKind, LinkType, Metadata, Options, Program};
use ebpf::emit::{Answer, Exit, Layers, Scope, Unfit};
use std::sync::Arc;

/// What everybody knows about `bpf`.
pub const BPF: Description = Description {
    name: "bpf",
    summary: "let through what a pcap-filter(7) expression matches",
    details: "\
Takes an expression as tcpdump does, in quotes: `bpf \"tcp port 80 and host 10.0.0.1\"`. It is run
on the whole frame, also behind `ip` or `udp`. The class is 1 where it holds. An expression is
compiled for each link type that comes by, for at most 64; libpcap, where it is installed, is asked
about what the own compiler does not know.

Not answered: `no match` (the expression does not hold), `link type` (the expression says nothing
about frames of this link type, or the block is no frame).",
    example: "replay web.pcap | bpf \"tcp port 80\" | count",
    kind: Kind::Classification,
    takes: Forms::FRAMED,
    reads: Reads::All,
    parameters: &[Parameter::needed("expression", Type::Text, "a pcap-filter(7) expression")],
    classes: Classes::YesNo,
    reasons: &["no match", "link type"],
    remark: Some(remark),
    ahead: Some(ahead::ahead),
    user: Some(make),
    kernel: Some(emit),
    ..Description::EMPTY
};

const NO_MATCH: Reason = BPF.reason("no match");
const LINK_TYPE: Reason = BPF.reason("link type");

/// For how many link types an expression is compiled. No machine has so many; a capture that claims
/// more would otherwise be answered by nothing but compiling.
const LINKS_MAX: usize = 64;

fn make(arguments: &Arguments) -> Result<Filter, Mistake> {
    let ethernet = wire::LinkType::ETHERNET.0;
    let compiled = compile(arguments, ethernet)?;
    Ok(Filter::classify(Bpf {
        expression: expression(arguments).to_owned(),
        compiler: arguments.compiler().cloned(),
        programs: vec![(ethernet, compiled.program)],
    }))
}

fn expression(arguments: &Arguments) -> &str {
    arguments.text("expression").unwrap_or_default()
}

struct Bpf {
    expression: String,
    compiler: Option<Arc<dyn Compiler>>,
    /// The program of each link type that came by; `None`: the expression has none for it. Made
    /// again from the expression when the filter moves, hence no state.
    programs: Vec<(u16, Option<Program>)>,
}

impl Classify for Bpf {
    fn classify(&mut self, block: &mut Block<'_>, cx: &mut Tell<'_>) -> Class {
        let marks = block.marks;
        match self.program(marks.link) {
            None => cx.absent(LINK_TYPE),
            Some(program) => match program.run(block.frame, marks.wire_length, &METADATA) {
                0 => cx.absent(NO_MATCH),
                _ => Class::YES,
            },
        }
    }
}

/// Tags were put back into their frames (CONTRACT 3), and nothing else is asked for.
const METADATA: Metadata = Metadata::NOTHING;

impl Bpf {
    #[inline]
    fn program(&mut self, link: u16) -> Option<&Program> {
        let at = self.programs.iter().position(|(known, _)| *known == link);
        let at = at.unwrap_or_else(|| self.compile_for(link));
        self.programs.get(at)?.1.as_ref()
    }

    #[cold]
    fn compile_for(&mut self, link: u16) -> usize {
        if link == Marks::NO_LINK || self.programs.len() >= LINKS_MAX {
            return usize::MAX;
        }
        let compiled = Compiled::new(&self.expression, link, self.compiler.as_deref());
        self.programs.push((link, compiled.ok().and_then(|compiled| compiled.program)));
        self.programs.len() - 1
    }
}

/// An expression that somebody else than the filter asks: what triggers, what belongs to a flow.
#[derive(Debug)]
pub struct Matcher {
    arguments: Arguments,
    programs: Vec<(u16, Option<Program>)>,
}

impl Matcher {
    /// Asks the expression of these arguments, which are those of a `bpf`.
    pub fn new(arguments: Arguments) -> Result<Self, Mistake> {
        compile(&arguments, wire::LinkType::ETHERNET.0)?;
        Ok(Self { arguments, programs: Vec::new() })
    }

    /// Whether it holds for the frame of a block; not for a block that lies in none.
    pub fn matches(&mut self, block: &Block<'_>) -> bool {
        let (link, wire_length) = (block.marks.link, block.marks.wire_length);
        if !block.marks.is_frame() {
            return false;
        }
        let known = self.programs.iter().position(|(known, _)| *known == link);
        let at = known.unwrap_or_else(|| {
            let most = self.programs.len() >= LINKS_MAX;
            self.programs.push((link, if most { None } else { program(&self.arguments, link) }));
            self.programs.len() - 1
        });
        let found = self.programs.get(at).and_then(|(_, program)| program.as_ref());
        let holds = found.is_some_and(|own| own.run(block.frame, wire_length, &METADATA) != 0);
        self.programs.truncate(LINKS_MAX);
        holds
    }
}

/// An expression for a link type.
struct Compiled {
    /// `None` where no frame can match.
    program: Option<Program>,
    /// The compiler that made it, if not our own.
    by: Option<String>,
}

impl Compiled {
    fn new(text: &str, link: u16, other: Option<&dyn Compiler>) -> Result<Self, Refusal> {
        let (link, options) = (LinkType::from_file(link.into()), Options::default());
        let own = match classic::compile(text, link, &options) {
            Ok(program) => return Ok(Self { program: Some(program), by: None }),
            Err(error) if error.kind == ErrorKind::RejectsAll => {
                return Ok(Self { program: None, by: None });
            }
            Err(error) => error,
        };
        let other = match (own.kind, other) {
            (ErrorKind::Unknown, Some(other)) => other,
            _ => return Err(Refusal { own, other: None }),
        };
        match other.compile(text, link, options.snaplen) {
            Ok(program) => Ok(Self { program: Some(program), by: Some(other.name()) }),
            Err(why) => Err(Refusal { own, other: Some((other.name(), why)) }),
        }
    }
}

/// Why nobody compiled an expression.
struct Refusal {
    own: classic::ExpressionError,
    /// The other compiler, and what it says.
    other: Option<(String, String)>,
}

fn compile(arguments: &Arguments, link: u16) -> Result<Compiled, Mistake> {
    let compiler = arguments.compiler().map(|compiler| &**compiler);
    Compiled::new(expression(arguments), link, compiler).map_err(|refusal| {
        let Refusal { own, other } = refusal;
        let what = match other {
            None => own.what,
            Some((name, why)) => format!("{}; {name}: {why}", own.what),
        };
        Mistake { at: Some(own.span), hint: own.hint, ..Mistake::new("expression", what) }
    })
}

/// Which compiler serves the expression on Ethernet, and who is asked about what it does not know.
fn remark(arguments: &Arguments) -> Option<String> {
    let compiled = compile(arguments, wire::LinkType::ETHERNET.0).ok()?;
    let length = compiled.program.map_or(0, |program| program.instructions().len());
    let mut text = match (length, compiled.by) {
        (0, _) => "matches no Ethernet frame".to_owned(),
        (_, Some(other)) => return Some(format!("compiled by {other}, {length} instructions")),
        (_, None) => format!("compiled by the own compiler, {length} instructions"),
    };
    if let Some(other) = arguments.compiler() {
        text.push_str(&format!("; link types that it does not know: {}", other.name()));
    }
    Some(text)
}

/// The twin.
fn emit<'s>(a: &Arguments, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> Emitted<'s> {
    let link = match s.place().has_link() {
        true if !on.linked => return Err(Unfit::new("the link header is cut off")),
        true => wire::LinkType::ETHERNET,
        false => wire::LinkType::RAW,
    };
    let compiled = compile(a, link.0);
    match compiled.map_err(|mistake| Unfit::new(mistake.to_string()))?.program {
        Some(program) => {
            let no_match = s.absent("no match", out);
            s.only_classic(&program, no_match)?;
        }
        None => return Err(Unfit::new("its expression holds for no frame of that kind")),
    }
    Ok(Answer::new(Class::YES.0, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ip::IP;
    use crate::testing::{Frame, Node, answers, arguments, chain};
    use ebpf::classic::insn::{Instruction, code};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use wire::LinkType as Link;

    #[test]
    fn the_expression_is_run_on_the_whole_frame() {
        let frames =
            [Frame::tcp(4000, 80, b"GET"), Frame::tcp(80, 81, b""), Frame::udp(1, 80, b"")];
        let found = answers(&BPF, &["tcp dst port 80"], &frames);
        assert_eq!(found.iter().map(|a| a.class.0).collect::<Vec<_>>(), [1, 0, 0]);
        let behind_ip = chain(&[(&IP, &[]), (&BPF, &["tcp port 80"])], &frames);
        assert_eq!(behind_ip.iter().map(|a| a.class.0).collect::<Vec<_>>(), [1, 1, 0]);
    }

    #[test]
    fn each_link_type_has_its_program() {
        let udp = Frame::udp(1, 53, b"").bytes;
        let frames = [
            Frame::of(Link::RAW.0, &udp[14..]),
            Frame::of(Link::ETHERNET.0, &udp),
            Frame::of(Marks::NO_LINK, &udp),
        ];
        let found = answers(&BPF, &["udp port 53"], &frames);
        assert_eq!(found.iter().map(|a| a.class.0).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(found[2].why, Some("link type"));
        let found = answers(&BPF, &["ether host 1:2:3:4:5:6"], &frames);
        let why: Vec<_> = found.iter().map(|a| a.why).collect();
        assert_eq!(why, [Some("link type"), Some("no match"), Some("link type")]);
    }

    /// BACnet MS/TP: our own compiler does not know where its protocol number stands.
    const BACNET: u16 = 165;

    /// Knows one link type, on which it accepts frames that begin with 0x55, and counts the
    /// questions.
    #[derive(Debug, Default)]
    struct Other(AtomicUsize);

    impl Compiler for Other {
        fn name(&self) -> String {
            "another".to_owned()
        }

        fn compile(&self, _: &str, link: LinkType, snaplen: u32) -> Result<Program, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            if link != LinkType(BACNET.into()) {
                return Err(format!("{link} is strange to me"));
            }
            let equal =
                Instruction { code: code::JMP | code::JEQ | code::K, jt: 0, jf: 1, k: 0x55 };
            let load = Instruction::plain(code::LD | code::ABS | code::B, 0);
            let [yes, no] = [snaplen, 0].map(|k| Instruction::plain(code::RET | code::K, k));
            Program::new(vec![load, equal, yes, no]).map_err(|invalid| invalid.to_string())
        }
    }

    fn served(text: &str, other: &Arc<Other>) -> Bpf {
        let compiler: Arc<dyn Compiler> = other.clone();
        Bpf { expression: text.to_owned(), compiler: Some(compiler), programs: Vec::new() }
    }

    #[test]
    fn what_our_compiler_does_not_know_goes_to_the_other() {
        let other = Arc::new(Other::default());
        let mut bpf = served("ip", &other);
        let mut run = |link, frame: &[u8]| {
            bpf.program(link).map(|program| program.run(frame, frame.len() as u32, &METADATA) > 0)
        };
        assert_eq!(run(BACNET, b"\x55\xff"), Some(true));
        assert_eq!(run(BACNET, b"\x54\xff"), Some(false));
        assert_eq!(other.0.load(Ordering::Relaxed), 1, "asked once for a link type");
        assert_eq!(run(9999, b"\x55\xff"), None);
        assert_eq!(run(Link::ETHERNET.0, b""), Some(false));
        assert_eq!(other.0.load(Ordering::Relaxed), 2, "not asked about what we know");
    }

    #[test]
    fn the_other_is_not_asked_about_mistakes() {
        let other = Arc::new(Other::default());
        let compiler: Arc<dyn Compiler> = other.clone();
        let of = |text| arguments(&BPF, &[text]).unwrap().served_by(Some(compiler.clone()));
        assert!(make(&of("tcp prot 80")).is_err());
        assert!(make(&of("tcp port 80")).is_ok());
        assert_eq!(other.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_compiles_is_told() {
        let compiler: Arc<dyn Compiler> = Arc::new(Other::default());
        let alone = arguments(&BPF, &["ip"]).unwrap();
        let both = alone.clone().served_by(Some(compiler));
        assert_eq!(remark(&alone).unwrap(), "compiled by the own compiler, 4 instructions");
        let more = "; link types that it does not know: another";
        assert_eq!(remark(&both).unwrap(), remark(&alone).unwrap() + more);
        let by = |arguments, link| compile(arguments, link).map(|compiled| compiled.by);
        assert_eq!(by(&both, BACNET), Ok(Some("another".to_owned())));
        assert_eq!(by(&both, Link::ETHERNET.0), Ok(None));
        let nobody = by(&both, 9999).unwrap_err().what;
        assert!(nobody.ends_with("; another: link type 9999 is strange to me"), "{nobody}");
        assert!(by(&alone, BACNET).unwrap_err().what.contains("is not known"));
    }

    #[test]
    fn link_types_without_end_are_not_compiled_for() {
        let other = Arc::new(Other::default());
        let mut bpf = served("ip", &other);
        for link in 1000..u16::MAX {
            assert!(bpf.program(link).is_none());
        }
        assert_eq!((bpf.programs.len(), other.0.load(Ordering::Relaxed)), (LINKS_MAX, LINKS_MAX));
        assert!(bpf.program(Marks::NO_LINK).is_none());
    }

    #[test]
    fn lengths_are_those_of_the_wire() {
        let mut cut = Frame::udp(1, 2, &[0; 400]);
        cut.wire_length = Some(cut.bytes.len() as u32);
        cut.bytes.truncate(60);
        assert_eq!(answers(&BPF, &["greater 400"], &[cut])[0].class, Class::YES);
    }

    #[test]
    fn a_mistake_says_where_it_is() {
        let mistake = Node::new(&BPF, &["tcp prot 80"]).unwrap_err();
        assert_eq!((mistake.parameter, mistake.at), (Some("expression"), Some(4..8)));
        assert!(Node::new(&BPF, &[]).is_err());
        assert!(Node::new(&BPF, &[""]).is_ok(), "the empty expression matches everything");
    }
}
