//! `bpf`: answers whether a pcap-filter(7) expression holds for the frame.
//!
//! In: anything that still lies in a frame; the expression is run on the whole frame, whatever the
//! view. Out: the same block with class 1 or no answer. [SL §4.2, `rx | bpf "tcp" | user`]
//!
//! An expression means something only for a link type. So it is compiled once for each link type
//! that comes by; when the filter is made it is compiled for Ethernet, so that mistakes are found
//! by `check`. On a link type on which no frame can match, there is no answer.

use crate::prelude::*;
use ebpf::classic::{self, ErrorKind, LinkType, Metadata, Options, Program};

/// What everybody knows about `bpf`.
pub const BPF: Description = Description {
    name: "bpf",
    summary: "let through what a pcap-filter(7) expression matches",
    details: "\
Takes an expression as tcpdump does, in quotes: `bpf \"tcp port 80 and host 10.0.0.1\"`. It is run
on the whole frame, also behind `ip` or `udp`. The class is 1 where it holds. An expression is
compiled for each link type that comes by.

Not answered: `no match` (the expression does not hold), `link type` (the expression says nothing
about frames of this link type, or the block is no frame).",
    example: "replay web.pcap | bpf \"tcp port 80\" | count",
    kind: Kind::Classification,
    takes: Forms::FRAMED,
    reads: Reads::All,
    parameters: &[Parameter::needed("expression", Type::Text, "a pcap-filter(7) expression")],
    classes: Classes::YesNo,
    reasons: &["no match", "link type"],
    user: Some(make),
    ..Description::EMPTY
};

const NO_MATCH: Reason = BPF.reason("no match");
const LINK_TYPE: Reason = BPF.reason("link type");

fn make(arguments: &Arguments) -> Result<Filter, Mistake> {
    let expression = arguments.text("expression").unwrap_or_default().to_owned();
    let ethernet = wire::LinkType::ETHERNET.0;
    match compile(&expression, ethernet) {
        Ok(program) => {
            Ok(Filter::classify(Bpf { expression, programs: vec![(ethernet, program)] }))
        }
        Err(error) => Err(Mistake {
            parameter: Some("expression"),
            at: Some(error.span),
            what: error.what,
            hint: error.hint,
        }),
    }
}

struct Bpf {
    expression: String,
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

/// Nothing: tags were put back into their frames (CONTRACT 3), and nothing else is asked for.
const METADATA: Metadata = Metadata { vlan: None, packet_type: 0, protocol: 0, interface_index: 0 };

impl Bpf {
    #[inline]
    fn program(&mut self, link: u16) -> Option<&Program> {
        let at = self.programs.iter().position(|(known, _)| *known == link);
        let at = at.unwrap_or_else(|| self.compile_for(link));
        self.programs.get(at)?.1.as_ref()
    }

    #[cold]
    fn compile_for(&mut self, link: u16) -> usize {
        let frame = link != Marks::NO_LINK;
        let program = frame.then(|| compile(&self.expression, link).ok().flatten()).flatten();
        self.programs.push((link, program));
        self.programs.len() - 1
    }
}

/// The program for a link type; `None` where no frame can match.
fn compile(text: &str, link: u16) -> Result<Option<Program>, classic::ExpressionError> {
    match classic::compile(text, LinkType::from_file(link.into()), &Options::default()) {
        Ok(program) => Ok(Some(program)),
        Err(error) if error.kind == ErrorKind::RejectsAll => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::ip::IP;
    use crate::testing::{Frame, Node, answers, chain};
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
