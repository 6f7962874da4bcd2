//! libpcap as a fallback compiler, for filter expressions that our own compiler does not support
//! (CONTRACT 27).
//!
//! libpcap is not linked, but loaded when the first expression needs it. If it is missing, the
//! error names the package to install. For some link types libpcap emits programs that load bytes
//! beyond the end of any frame; these programs run unchanged, as in tcpdump.
//!
//! libpcap resolves names itself, which cannot be disabled. An expression in which our parser finds
//! names is therefore never passed to libpcap: these names have already been resolved and recorded
//! in the request. An expression that our parser cannot read may contain names, so it is compiled
//! only where lookups are permitted.

use ebpf::classic::{ClassicProgram, Instruction, LinkType, name_queries};
use filter::ExpressionCompiler;
use std::sync::OnceLock;

/// The libpcap library of this machine, loaded when it is first used.
#[derive(Debug)]
pub struct LibpcapCompiler {
    loaded: OnceLock<sys::Result<sys::libpcap::Libpcap>>,
    /// True if filter expressions may cause name lookups.
    may_resolve: bool,
}

impl LibpcapCompiler {
    /// Creates the compiler. `may_resolve` is true if filter expressions may cause name lookups.
    #[must_use]
    pub const fn new(may_resolve: bool) -> Self {
        Self { loaded: OnceLock::new(), may_resolve }
    }
}

impl ExpressionCompiler for LibpcapCompiler {
    fn name(&self) -> String {
        "libpcap".to_owned()
    }

    fn compile(
        &self,
        expression: &str,
        link: LinkType,
        snaplen: u32,
    ) -> Result<ClassicProgram, String> {
        match name_queries(expression) {
            Ok(queries) if queries.is_empty() => {}
            Err(_) if self.may_resolve => {}
            Ok(_) | Err(_) => return Err("not used here, because it would look up names".into()),
        }
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
    use crate::registry::MachineRegistry;
    use ebpf::classic::expression::SNAPLEN_DEFAULT;
    use ebpf::classic::{ClassicMetadata, ErrorKind, Options, compile};
    use std::sync::Arc;

    /// The link type of BACnet MS/TP. For this link type, libpcap compiles `ip` to a test of the
    /// frame's preamble, while our compiler rejects the expression.
    const BACNET_LINK_TYPE: LinkType = LinkType(165);

    fn program_accepts(program: &ClassicProgram, frame: &[u8]) -> bool {
        program.run(frame, frame.len() as u32, &ClassicMetadata::EMPTY) > 0
    }

    #[test]
    fn libpcap_compiles_unsupported_expressions() {
        let own = compile("ip", BACNET_LINK_TYPE, &Options::default()).unwrap_err();
        assert_eq!(own.kind, ErrorKind::Unsupported, "{own}");
        let libpcap = LibpcapCompiler::new(true);
        let program = match libpcap.compile("ip", BACNET_LINK_TYPE, SNAPLEN_DEFAULT) {
            Ok(program) => program,
            Err(why) if libpcap.loaded.get().is_some_and(Result::is_err) => {
                println!("skipped: libpcap_compiles_unsupported_expressions: {why}");
                assert!(why.contains("install libpcap"), "{why}");
                return;
            }
            Err(why) => panic!("{why}"),
        };
        assert!(
            program_accepts(&program, &[0x55, 0xff, 0, 0])
                && !program_accepts(&program, &[0x55, 0xfe, 0, 0])
        );
        let ours = compile("tcp port 80", LinkType::EN10MB, &Options::default()).unwrap();
        let theirs = libpcap.compile("tcp port 80", LinkType::EN10MB, SNAPLEN_DEFAULT).unwrap();
        let frame = [&[0; 12][..], &[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 9, 6], &[0; 10], &[0, 80]];
        let frame = [frame.concat(), vec![0; 18]].concat();
        assert!(program_accepts(&ours, &frame) && program_accepts(&theirs, &frame));
        let why = libpcap.compile("ip", LinkType(0xffff), SNAPLEN_DEFAULT).unwrap_err();
        assert!(why.contains("unknown data link type"), "{why}");
    }

    #[test]
    fn h9_expression_with_names_never_reaches_libpcap() {
        // The link type is PF log. Our parser does not know `on`, so it cannot find the names after
        // that word.
        const PFLOG_LINK_TYPE: LinkType = LinkType(117);
        let (live, recorded) = (LibpcapCompiler::new(true), LibpcapCompiler::new(false));
        for (libpcap, expression, link) in [
            (&live, "ip host localhost", BACNET_LINK_TYPE),
            (&recorded, "ip host localhost", BACNET_LINK_TYPE),
            (&recorded, "on eth0 and host localhost", PFLOG_LINK_TYPE),
        ] {
            let why = libpcap.compile(expression, link, SNAPLEN_DEFAULT).unwrap_err();
            assert!(why.contains("look up names"), "{why}");
            assert!(libpcap.loaded.get().is_none(), "not even loaded: {expression}");
        }
    }

    #[test]
    fn filters_of_a_request_share_one_compiler() {
        let (graph, mistakes) = pipeline::read_request(
            "replay x | bpf \"tcp port 80\" | bpf ip",
            &MachineRegistry::Local,
        );
        assert_eq!(mistakes, []);
        let mut used = graph.nodes.iter().filter_map(|node| node.filter());
        let bpf = used.find(|used| used.description.name == "bpf").expect("it is there");
        let compiler = bpf.arguments.compiler().expect("a compiler");
        assert_eq!(compiler.name(), "libpcap");
        let other = used.next().and_then(|used| used.arguments.compiler()).expect("a compiler");
        assert!(Arc::ptr_eq(compiler, other), "one for a request");
        let remark = bpf.description.analysis.remark.and_then(|remark| remark(&bpf.arguments));
        assert!(remark.is_some_and(|text| text.ends_with("at their first frame, or by libpcap")));
    }
}
