//! Tests of generated programs in the kernel: they load, return the same results as the interpreter
//! and plain Rust, compute the same arithmetic, and cannot change frozen maps.

// The judge is shared with tests outside this crate, which refer to this crate as `sys`.
extern crate streamline_sys as sys;

mod judge;
#[path = "../../ebpf/tests/test_twins/mod.rs"]
mod test_twins;

use std::os::fd::{AsFd, AsRawFd};

use ebpf::emit::{ReturnConversion, Target};
use ebpf::exam::{self, InterpreterJudge, TwinJudge, TwinVerdict, mutants, truncations};
use ebpf::insn::{self, Alu, Insn, Operand, R0, R1, R2, R3, R4, R5, Reg, Size};
use ebpf::interpret::{Machine, Packet};
use ebpf::{Hook, disasm};
use judge::{KernelJudge, program_kind, run_without_perfmon};
use sys::bpf::{self, Map, ProgramKind};
use test_twins::rust_judge::RustJudge;
use test_twins::{CHAINS, TARGETS, TestFilter, compile_chain, format_request, frames};
use testkit::{Random, need};

#[test]
fn twins_agree_in_kernel_interpreter_and_rust() {
    let Some(()) = need::require_bpf() else { return };
    let frames = frames::all_frames();
    for chain in CHAINS {
        for target in TARGETS {
            let what = format!("{} for {target:?}", format_request(chain));
            let program = compile_chain(chain, target, ReturnConversion::Answer).unwrap();
            let mut plain = RustJudge::new(chain, &program);
            let mut interpreter = InterpreterJudge::new(&program);
            let mut kernel = KernelJudge::load(&program, "chain");
            let visited = kernel.loaded.info().unwrap().verified_instructions;
            let mut judges: [&mut dyn TwinJudge; 3] = [&mut plain, &mut interpreter, &mut kernel];
            let packets = frames.iter().flat_map(|frame| truncations(frame)).map(Packet::new);
            let tally = exam::compare_judges(&mut judges, packets)
                .unwrap_or_else(|differ| panic!("{what}: {differ}"));
            let count = program.code.len();
            println!("{what}: {count} instructions, {visited} visited, {tally:?}");
            assert!(tally.packets - tally.refused > 4_000, "{tally:?}");
            assert!(tally.answered > 50, "{tally:?}");
        }
    }
}

/// Loads programs as an unprivileged user would, so that the verifier hardens them against
/// speculation.
#[test]
fn twin_programs_load_without_perfmon() {
    let Some(()) = need::require_bpf() else { return };
    run_without_perfmon(|| {
        let places = [Hook::Tc, Hook::Xdp, Hook::Socket];
        for (place, chain) in places.into_iter().flat_map(|p| CHAINS.iter().map(move |c| (p, c))) {
            let hardened = Target::without_perfmon(place);
            KernelJudge::load(
                &compile_chain(chain, hardened, ReturnConversion::Answer).unwrap(),
                "hardened",
            );
        }
    });
}

#[test]
fn verifier_log_names_the_rejected_instruction() {
    let Some(()) = need::require_bpf() else { return };
    let code = insn::encode(&[Insn::mov(R0, R2), Insn::exit()]);
    let refused = bpf::Program::load(ProgramKind::Tc, "dport", &code).unwrap_err();
    assert!(refused.log.contains("R2 !read_ok"), "{}", refused.log);
    let text = refused.to_string();
    assert!(text.starts_with("bpf on PROG_LOAD of \"dport\": "), "{text}");
    assert!(text.contains("the verifier says: R2 !read_ok"), "{text}");
}

/// Checks verifier and interpreter against each other: the verifier must reject every program on
/// which the interpreter faults.
#[test]
fn verifier_rejects_programs_that_fault_the_interpreter() {
    let Some(()) = need::require_bpf() else { return };
    let twin = compile_chain(&[TestFilter::Eth], Hook::Xdp, ReturnConversion::Answer).unwrap();
    let frames = frames::all_frames();
    let (mut faulty, mut refused) = (0, 0);
    for mutant in mutants(&twin) {
        let mut interpreter = InterpreterJudge::new(&mutant.program);
        let mut packets = frames.iter().flat_map(|frame| truncations(frame)).map(Packet::new);
        if packets.any(|packet| matches!(interpreter.judge(&packet), TwinVerdict::Broken(_))) {
            faulty += 1;
            refused += u32::from(KernelJudge::try_load(&mutant.program, "mutant").is_err());
        }
    }
    assert!(faulty > 3, "only {faulty} mutants fault");
    assert_eq!(refused, faulty);
}

/// Runs every arithmetic operation, including signed and byte-swapping ones, and folds the result
/// into 32 bits for comparison.
#[test]
fn interpreted_arithmetic_matches_the_kernel() {
    let Some(()) = need::require_bpf() else { return };
    let mut random = Random::with_replayable_seed();
    for _ in 0..400 {
        let mut code = Vec::new();
        for reg in [R0, R1, R2, R3, R4, R5] {
            let edges = [0, 1, u64::MAX, 1 << 63, 1 << 31, random.next_u64()];
            code.extend(Insn::load64(reg, *random.pick(&edges)));
        }
        let length = random.within(1..20);
        code.extend((0..length).map(|_| random_operation(&mut random)));
        code.push(Insn::mov(R1, R0));
        code.push(Insn::alu(Alu::Shr, R1, 32));
        code.push(Insn::alu(Alu::Xor, R0, R1));
        code.push(Insn::exit());
        let text = || code.iter().map(|i| disasm::disassemble_insn(*i, None)).collect::<Vec<_>>();
        let loaded =
            bpf::Program::load(ProgramKind::SocketFilter, "arithmetic", &insn::encode(&code))
                .unwrap_or_else(|refused| panic!("{refused}: {:#?}", text()));
        let kernel = loaded.test_run(&[0; 20], 1).unwrap().return_value;
        let ours = Machine::new(Vec::new()).run(&code, Hook::Socket, &Packet::new(&[0; 6]));
        assert_eq!(ours.map(|value| value as u32), Ok(kernel), "{:#?}", text());
    }
}

fn random_operation(random: &mut Random) -> Insn {
    const OPERATIONS: [Alu; 12] = [
        Alu::Add,
        Alu::Sub,
        Alu::Mul,
        Alu::Div,
        Alu::Or,
        Alu::And,
        Alu::Shl,
        Alu::Shr,
        Alu::Mod,
        Alu::Xor,
        Alu::Mov,
        Alu::Arsh,
    ];
    let registers = [R0, R1, R2, R3, R4, R5];
    let (dst, src): (Reg, Reg) = (*random.pick(&registers), *random.pick(&registers));
    let wide = random.one_in(2);
    let make = |op, operand: Operand| {
        if wide { Insn::alu(op, dst, operand) } else { Insn::alu32(op, dst, operand) }
    };
    match random.below(16) {
        0 => make(Alu::Neg, Operand::Imm(0)),
        1 => {
            let swap = Insn::big_endian(dst, *random.pick(&[16, 32, 64]));
            Insn { code: *random.pick(&[0xd4, 0xdc, 0xd7]), ..swap }
        }
        2 => Insn { off: *random.pick(&[8, 16]), ..make(Alu::Mov, src.into()) },
        3 => Insn { off: 1, ..make(*random.pick(&[Alu::Div, Alu::Mod]), src.into()) },
        n => {
            let op = *random.pick(&OPERATIONS);
            let imm = random.next_u64() as i32;
            let imm = match op {
                Alu::Shl | Alu::Shr | Alu::Arsh => imm.rem_euclid(if wide { 64 } else { 32 }),
                // The verifier rejects a constant divisor of zero.
                Alu::Div | Alu::Mod if imm == 0 => 1,
                _ => imm,
            };
            make(op, if n % 2 == 0 { imm.into() } else { src.into() })
        }
    }
}

#[test]
fn frozen_map_is_written_by_programs_only() {
    use rustix::io::Errno;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};

    let Some(()) = need::require_bpf() else { return };
    let size = 4096;
    let map = Map::array("ring page", size, 1, true).unwrap();
    let info = map.info().unwrap();
    assert_eq!((info.kind, info.value_size, info.entries), (2, size, 1));
    assert_eq!(info.name, "ring_page");
    map.set(0, &vec![7; size as usize]).unwrap();
    assert_eq!(map.set(0, &[7]).unwrap_err().errno, libc::EINVAL);
    map.freeze().unwrap();
    assert_eq!(map.set(0, &vec![8; size as usize]).unwrap_err().errno, libc::EPERM);
    let mapped = |access| {
        // SAFETY: a null hint lets the kernel choose an unused range (mmap(2)).
        unsafe { mmap(std::ptr::null_mut(), size as usize, access, MapFlags::SHARED, &map, 0) }
    };
    assert_eq!(mapped(ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
    let readable = mapped(ProtFlags::READ).unwrap();
    // SAFETY: the range was mapped just above and no other code knows its address.
    let widened = unsafe { mprotect(readable, size as usize, MprotectFlags::WRITE) };
    assert_eq!(widened, Err(Errno::ACCESS));

    let mut code = Vec::from(Insn::load_map_value(R1, map.as_fd().as_raw_fd() as u32, 8));
    code.extend([Insn::mov(R0, 0), Insn::store(Size::DW, R1, 0, 5), Insn::exit()]);
    let writer = bpf::Program::load(ProgramKind::Xdp, "writer", &insn::encode(&code)).unwrap();
    writer.test_run(&[0; 64], 1).unwrap();
    assert_eq!(map.get(0).unwrap()[..16], [7, 7, 7, 7, 7, 7, 7, 7, 5, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(writer.info().unwrap().kind, ProgramKind::Xdp as u32);
}

/// Measures the cost of the verifier's hardening: prints the run time per packet of an empty
/// program, and of one chain with and without hardening. Run with `--ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn test_run_reports_ns_per_packet() {
    let Some(()) = need::require_bpf() else { return };
    let chain = CHAINS[6];
    let hit = frames::ethernet_frame(
        0x0800,
        &frames::ipv4_packet(5, 17, None, &frames::udp_datagram(53)),
    );
    for place in [Hook::Tc, Hook::Xdp] {
        let empty = [Insn::mov(R0, 0), Insn::exit()];
        let code = insn::encode(&empty);
        let empty = bpf::Program::load(program_kind(place), "empty", &code).unwrap();
        let build =
            |target: Target| compile_chain(chain, target, ReturnConversion::Answer).unwrap();
        let trusted = KernelJudge::load(&build(place.into()), "trusted");
        let hardened = KernelJudge::load(&build(Target::without_perfmon(place)), "hardened");
        let mut best = [u32::MAX; 3];
        for _ in 0..9 {
            for (best, program) in best.iter_mut().zip([&empty, &trusted.loaded, &hardened.loaded])
            {
                *best = program.test_run(&hit, 300_000).unwrap().duration_ns.min(*best);
            }
        }
        let [empty, trusted, hardened] = best;
        println!("{place:?}: empty {empty} ns, trusted {trusted} ns, hardened {hardened} ns");
    }
}
