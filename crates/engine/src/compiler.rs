//! libpcap as the compiler of filter expressions that our own does not know (CONTRACT 27).
//!
//! Nothing is linked: libpcap is looked for when the first expression needs it, and where it is
//! missing the reason says what to install. libpcap may know a link type and yet make a program
//! that reads at places which no frame has; it is run as it is, as tcpdump runs it.

use ebpf::classic::{ClassicProgram, Instruction, LinkType};
use filter::Compiler;
use std::sync::OnceLock;

/// The libpcap of this machine, loaded when it is first asked.
#[derive(Debug, Default)]
pub struct Libpcap {
    loaded: OnceLock<sys::Result<sys::libpcap::Libpcap>>,
}

impl Compiler for Libpcap {
    fn name(&self) -> String {
        "libpcap".to_owned()
    }

    fn compile(
        &self,
        expression: &str,
        link: LinkType,
        snaplen: u32,
    ) -> Result<ClassicProgram, String> {
        let loaded = self.loaded.get_or_init(sys::libpcap::Libpcap::load);
        let libpcap = loaded.as_ref().map_err(ToString::to_string)?;
        let number = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
        let instructions =
            libpcap.compile(expression, number(link.0), number(snaplen), true)?.into_iter();
        let instructions = instructions.map(|(code, jt, jf, k)| Instruction { code, jt, jf, k });
        ClassicProgram::new(instructions.collect())
            .map_err(|invalid| format!("its program cannot be run here: {invalid}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::House;
    use ebpf::classic::expression::SNAPLEN_DEFAULT;
    use ebpf::classic::{ErrorKind, Metadata, Options, compile};
    use std::sync::Arc;

    /// BACnet MS/TP: libpcap takes `ip` for "a frame with its preamble", we do not know what it is.
    const BACNET: LinkType = LinkType(165);

    fn runs(program: &ClassicProgram, frame: &[u8]) -> bool {
        program.run(frame, frame.len() as u32, &Metadata::NOTHING) > 0
    }

    #[test]
    fn libpcap_compiles_what_we_do_not_know() {
        let own = compile("ip", BACNET, &Options::default()).unwrap_err();
        assert_eq!(own.kind, ErrorKind::Unknown, "{own}");
        let libpcap = Libpcap::default();
        let program = match libpcap.compile("ip", BACNET, SNAPLEN_DEFAULT) {
            Ok(program) => program,
            Err(why) if libpcap.loaded.get().is_some_and(Result::is_err) => {
                println!("skipped: libpcap_compiles_what_we_do_not_know: {why}");
                assert!(why.contains("install libpcap"), "{why}");
                return;
            }
            Err(why) => panic!("{why}"),
        };
        assert!(runs(&program, &[0x55, 0xff, 0, 0]) && !runs(&program, &[0x55, 0xfe, 0, 0]));
        let ours = compile("tcp port 80", LinkType::EN10MB, &Options::default()).unwrap();
        let theirs = libpcap.compile("tcp port 80", LinkType::EN10MB, SNAPLEN_DEFAULT).unwrap();
        let frame = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 9, 6], &[0; 10], &[0, 80]];
        let frame = [frame.concat(), vec![0; 18]].concat();
        assert!(runs(&ours, &frame) && runs(&theirs, &frame));
        let why = libpcap.compile("ip", LinkType(0xffff), SNAPLEN_DEFAULT).unwrap_err();
        assert!(why.contains("unknown data link type"), "{why}");
    }

    #[test]
    fn a_checked_request_brings_the_compiler_along() {
        let (graph, mistakes) = pipeline::read("replay x | bpf \"tcp port 80\" | bpf ip", &House);
        assert_eq!(mistakes, []);
        let mut used = graph.nodes.iter().filter_map(|node| node.filter());
        let bpf = used.find(|used| used.description.name == "bpf").expect("it is there");
        let compiler = bpf.arguments.compiler().expect("a compiler");
        assert_eq!(compiler.name(), "libpcap");
        let other = used.next().and_then(|used| used.arguments.compiler()).expect("a compiler");
        assert!(Arc::ptr_eq(compiler, other), "one for a request");
        let remark = bpf.description.analysis.remark.and_then(|remark| remark(&bpf.arguments));
        assert!(remark.is_some_and(|text| text.ends_with("when they come, or by libpcap")));
    }
}
