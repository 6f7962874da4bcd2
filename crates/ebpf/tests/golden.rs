//! Tests that generated code matches golden files, so that changes to code generation are reviewed
//! as a diff. `UPDATE=1` rewrites the files.

mod test_twins;

use std::fs;
use std::path::Path;

use ebpf::Hook;
use ebpf::disasm::list_program;
use ebpf::emit::ReturnConversion;
use test_twins::TestFilter::{self, Dport, Eth, Vlan};
use test_twins::{compile_chain, format_request};

const GOLDEN_PROGRAMS: [(&str, &[TestFilter], Hook); 4] = [
    ("eth.xdp.bpf", &[Eth], Hook::Xdp),
    ("eth.socket.bpf", &[Eth], Hook::Socket),
    ("eth.tc.bpf", &[Eth], Hook::Tc),
    ("eth-vlan.xdp.bpf", &[Eth, Vlan], Hook::Xdp),
];

#[test]
fn generated_code_matches_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (name, chain, place) in GOLDEN_PROGRAMS {
        let program = compile_chain(chain, place, ReturnConversion::Answer).unwrap();
        let text = format!("# {} at {place:?}\n{}", format_request(chain), list_program(&program));
        let file = folder.join(name);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&file, &text).unwrap();
        }
        let golden = fs::read_to_string(&file).unwrap_or_default();
        assert!(golden == text, "{name} differs; UPDATE=1 rewrites it. Now:\n{text}");
    }
}

/// The source map attributes each instruction to its filter.
#[test]
fn source_map_attributes_instructions_to_filters() {
    let chain = [Eth, TestFilter::Ip, Dport];
    let program = compile_chain(&chain, Hook::Tc, ReturnConversion::Answer).unwrap();
    let text = format_request(&chain);
    let mut names = Vec::new();
    for at in 0..program.code.len() {
        if let Some(word) = program.filter_at(at) {
            assert_eq!(&text[word.at..word.at + word.length], word.filter);
            names.push(word.filter.clone());
        }
    }
    names.dedup();
    // A filter's exits follow its own code.
    assert_eq!(names, ["eth", "ip", "dport"]);
    assert!(program.filter_at(0).is_none(), "the frame code has no filter");
    let counters: Vec<&str> = program.counters.iter().map(|counter| &*counter.name).collect();
    assert_eq!(counters, ["short", "other", "malformed", "short", "no_port"]);
}
