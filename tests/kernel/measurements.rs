//! Measurements of each twin: instructions, instructions processed by the verifier, and nanoseconds
//! per packet compared with an empty program. Run with `--ignored --nocapture`.

use super::judge::{KernelJudge, program_kind};
use ebpf::Hook;
use ebpf::insn::{self, Insn, R0};
use filter::testing::Frame;
use filter::testing::twins::{emit_program, request_text, twin_chains};
use sys::bpf;
use testkit::need;

#[test]
#[ignore = "a measurement"]
fn each_twin_reports_ns_per_packet() {
    let Some(()) = need::require_bpf() else { return };
    let frame = Frame::udp(4000, 53, b"0123456789abcdefgh").bytes;
    let empty = insn::encode(&[Insn::mov(R0, 0), Insn::exit()]);
    let empty = bpf::Program::load(program_kind(Hook::Tc), "empty", &empty).unwrap();
    let best = |loaded: &bpf::Program| {
        let runs = (0..5).map(|_| loaded.test_run(&frame, 200_000).unwrap().duration_ns);
        runs.min().unwrap_or(0)
    };
    println!("empty: {} ns", best(&empty));
    for chain in twin_chains(1) {
        let program = emit_program(&chain, Hook::Tc).unwrap();
        let loaded = KernelJudge::load(&program, "twin").loaded;
        let (count, visited) = (program.code.len(), loaded.info().unwrap().verified_instructions);
        let ns = best(&loaded);
        println!("{}: {count} instructions, {visited} visited, {ns} ns", request_text(&chain));
    }
}
