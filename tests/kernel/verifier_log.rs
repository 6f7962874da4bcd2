//! Test that the verifier's log refers to the request: if a program with one mutation is rejected,
//! the log names the filter whose code was mutated.

use std::os::fd::{AsFd, AsRawFd};

use super::judge::program_kind;
use ebpf::insn::{self, Insn, R0, R9};
use ebpf::{Hook, MapSpec, Program};
use filter::testing::twins::{emit_program, twin_chains};
use sys::bpf::{
    BtfBuilder, FunctionInfo, LineInfo, LoadParameters, Map, Program as Loaded, SourceInfo,
};
use testkit::need;

/// Loads a program together with the lines of the request from which its instructions were
/// generated. If the program is rejected, fails with the verifier's log.
fn load_with_source_lines(program: &Program) -> Result<Loaded, String> {
    let mut types = BtfBuilder::new();
    let int = types.add_int("int", 4);
    let main = types.add_function("request", int, &[("ctx", int)]);
    let file = types.add_string("request");
    let lines: Vec<LineInfo> = program
        .btf_line_info()
        .iter()
        .map(|(from, number, text)| LineInfo {
            instruction: u32::try_from(*from).unwrap_or(u32::MAX),
            file,
            text: types.add_string(text),
            line_col: number << 10,
        })
        .collect();
    let btf = types.load().expect("types by hand");
    let functions = [FunctionInfo { instruction: 0, type_id: main }];
    let code = insn::encode(&program.code);
    let source = Some(SourceInfo { btf: &btf, functions: &functions, lines: &lines });
    let load = LoadParameters {
        source,
        ..LoadParameters::new(program_kind(program.hook), "request", &code)
    };
    load.load().map_err(|refused| refused.log)
}

#[test]
fn verifier_log_names_the_refused_filter() {
    let Some(()) = need::require_bpf() else { return };
    let chains = twin_chains(2).into_iter();
    let plain = chains.filter(|chain| chain.iter().all(|twin| twin.description.name != "bpf"));
    let mut tried = 0;
    for chain in plain.filter(|chain| chain.len() == 2).step_by(7) {
        // Some filters cannot follow some others.
        let Ok(program) = emit_program(&chain, Hook::Xdp) else { continue };
        let array = |map: &MapSpec| Map::array(&map.name, map.value_size, 1, map.mappable).unwrap();
        let maps: Vec<Map> = program.maps.iter().map(array).collect();
        let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let code = program.relocate(&descriptors).unwrap();
        let mut program = Program { code, ..program };
        load_with_source_lines(&program).unwrap_or_else(|log| panic!("{log}"));
        let at = first_instruction(&program, 1);
        let text = format!("; {} @", program.filter_at(at).unwrap().filter);
        // Some begin with a two-slot instruction.
        let slots = 1 + usize::from(program.code[at].is_load_imm64());
        program.code[at..at + slots].fill(Insn::mov(R0, R9));
        let log = load_with_source_lines(&program).expect_err("r9 holds nothing");
        assert!(log.contains("R9 !read_ok") && log.contains(&text), "{text}: {log}");
        tried += 1;
    }
    assert!(tried >= 3, "only {tried} chains were tried");
}

/// Returns the index of the first instruction that was generated for a filter. `word` is the index
/// of the filter in the chain.
fn first_instruction(program: &Program, word: usize) -> usize {
    let line = program.source_map.iter().find(|line| line.filter == Some(word));
    line.expect("each word has code").from
}
