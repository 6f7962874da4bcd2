//! Fuzz bodies for program execution: the expression compiler, classic BPF, and the eBPF
//! interpreter.

use super::fuzz_target::{FuzzTarget, InputReader};
use ebpf::Hook;
use ebpf::classic::{ClassicMetadata, ClassicProgram, Instruction, LinkType, Options, compile};
use ebpf::insn::Insn;
use ebpf::interpret::{Machine, Packet};

/// Fuzz body for the expression compiler: any text compiles to a program that terminates for any
/// frame, or is rejected with a span.
pub(crate) const EXPRESSION_FUZZ_TARGET: FuzzTarget = FuzzTarget {
    name: "expression",
    corpus: expression_corpus,
    rounds: 20_000,
    run: fuzz_expression,
};

fn expression_corpus() -> Vec<Vec<u8>> {
    let lines = [
        "tcp port 80 or 443 and not (src host 10.0.0.1 or dst net 192.168/16)",
        "ip6 and host fe80::1 or ip6 net 2001:db8::/32 and icmp6[icmp6type] = 128",
        "vlan 100 and vlan and mpls 1000 and pppoes 0x3b and tcp[tcpflags] & tcp-syn != 0",
        "len >= 100 and ip[2:2] - ((ip[0] & 0xf) << 2) % 3 ^ 7 > -5 * 2 / 3",
        "ip protochain 51 or ether broadcast and not portrange 1-1023 or gre proto 1",
    ];
    lines.map(|line| [&[0], line.as_bytes()].concat()).to_vec()
}

fn fuzz_expression(bytes: &[u8]) {
    const LINK_TYPES: [u32; 8] = [0, 1, 12, 101, 105, 113, 127, 276];
    let mut input = InputReader(bytes);
    let choice = input.read_u8();
    let text = String::from_utf8_lossy(input.0);
    let link = LinkType(LINK_TYPES[usize::from(choice % 8)]);
    let options = Options { optimize: choice & 8 == 0, ..Options::default() };
    match compile(&text, link, &options) {
        Ok(program) => {
            program.run(bytes, bytes.len() as u32, &ClassicMetadata::default());
            program.run(&[], u32::MAX, &ClassicMetadata::default());
        }
        Err(error) => {
            assert!(text.get(error.span.clone()).is_some(), "{error:?} in {text:?}");
            assert!(!error.message.is_empty());
        }
    }
}

/// Fuzz body for classic BPF: any instructions are rejected, or terminate for any frame.
pub(crate) const CLASSIC_BPF_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "classic", corpus: Vec::new, rounds: 20_000, run: fuzz_classic_bpf };

fn fuzz_classic_bpf(bytes: &[u8]) {
    let mut input = InputReader(bytes);
    let count = usize::from(input.read_u8() % 64);
    let mut code: Vec<Instruction> = (0..count).map(|_| random_instruction(&mut input)).collect();
    code.push(Instruction::non_branching(0x06, 1));
    let Ok(program) = ClassicProgram::new(code) else { return };
    // A listing omits unused fields, so results are compared instead.
    let again: ClassicProgram = program.to_string().parse().expect("a program lists itself");
    assert_eq!(again.to_string(), program.to_string());
    let answer = |program: &ClassicProgram| {
        program.run(input.0, bytes.len() as u32, &ClassicMetadata::default())
    };
    assert_eq!(answer(&again), answer(&program));
}

/// Returns a mostly valid classic BPF instruction, with a valid jump target and scratch word.
fn random_instruction(input: &mut InputReader<'_>) -> Instruction {
    const KNOWN_OPCODES: [u16; 16] = [
        0x00, 0x01, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0xb1, 0x02, 0x03, 0x05, 0x15, 0x07,
        0x87,
    ];
    let choice = input.read_u8();
    let code = match choice {
        0..160 => KNOWN_OPCODES[usize::from(choice % 16)],
        160..250 => 0x04 | u16::from(choice & 0x0f) << 4 | u16::from(choice & 0x10) >> 1,
        _ => input.read_u16(),
    };
    let small = u32::from(input.read_u8());
    let k = match code {
        0x02 | 0x03 | 0x05 | 0x60 | 0x61 => small % 4,
        _ if choice & 1 == 0 => 1 + small % 31,
        _ => input.read_u64() as u32,
    };
    Instruction { code, jt: input.read_u8() % 3, jf: input.read_u8() % 3, k }
}

/// Fuzz body for the eBPF interpreter: any code over any packet ends with a value or a fault, and
/// can be disassembled.
pub(crate) const INTERPRETER_FUZZ_TARGET: FuzzTarget =
    FuzzTarget { name: "interpreter", corpus: Vec::new, rounds: 40_000, run: fuzz_interpreter };

fn fuzz_interpreter(bytes: &[u8]) {
    let mut input = InputReader(bytes);
    let count = usize::from(input.read_u8() % 64);
    let places = [Hook::Xdp, Hook::Tc, Hook::Socket];
    let place = places[usize::from(input.read_u8()) % places.len()];
    let linear = usize::from(input.read_u16());
    let mut code = if input.read_u8() % 4 == 0 { Vec::new() } else { prologue_code() };
    code.extend((0..count).map(|_| random_insn(&mut input)));
    code.push(Insn { code: 0x95, dst: 0, src: 0, off: 0, imm: 0 });
    assert_eq!(ebpf::insn::decode(&ebpf::insn::encode(&code)), Some(code.clone()));
    let packet = Packet::new(input.0).with_linear_length(linear).with_tag(7, 0x8100);
    let mut machine = Machine::new(vec![vec![0; 8], vec![0; 256]]);
    machine.budget = 10_000;
    if let Err(fault) = machine.run(&code, place, &packet) {
        assert!(!fault.to_string().is_empty());
    }
    for (at, insn) in code.iter().enumerate() {
        let rendered = ebpf::disasm::disassemble_insn(*insn, code.get(at + 1).copied());
        assert!(!rendered.is_empty());
    }
}

/// Returns code that initializes every register and the stack, so that the random code after it
/// runs for a while. Register r6 holds the context, r7 a map value, and r8 and r9 the start and the
/// end of the packet if the hook provides them.
fn prologue_code() -> Vec<Insn> {
    let insn = |code, dst, src, off, imm| Insn { code, dst, src, off, imm };
    let mut code = vec![insn(0xbf, 6, 1, 0, 0), insn(0x18, 7, 2, 0, 1), insn(0, 0, 0, 0, 0)];
    code.extend([8, 9, 0, 2, 3, 4, 5].map(|reg| insn(0xb7, reg, 0, 0, 40 + i32::from(reg))));
    code.extend([-8, -16, -24, -32].map(|off| insn(0x7a, 10, 0, off, 3)));
    code
}

/// Returns a random eBPF instruction, usually a valid one with valid registers and short jump
/// distances.
fn random_insn(input: &mut InputReader<'_>) -> Insn {
    const KNOWN_OPCODES: [u8; 32] = [
        0xb7, 0xb4, 0xbf, 0xbc, 0x07, 0x0f, 0x1f, 0x27, 0x37, 0x3f, 0x47, 0x5f, 0x67, 0x77, 0x87,
        0x97, 0xdc, 0xd4, 0xd7, 0xaf, 0x15, 0x2d, 0x55, 0xa5, 0x61, 0x69, 0x71, 0x79, 0x7b, 0x63,
        0xdb, 0x85,
    ];
    let choice = input.read_u8();
    let (dst, src) = (input.read_u8(), input.read_u8());
    let (low, imm) = (input.read_u8(), input.read_u64());
    if choice >= 0xf0 {
        let off = imm as i16;
        return Insn { code: low, dst: dst & 0x0f, src: src & 0x0f, off, imm: (imm >> 16) as i32 };
    }
    let code = KNOWN_OPCODES[usize::from(choice) % KNOWN_OPCODES.len()];
    let (dst, src) = (dst % 10, if code & 7 == 1 && low & 1 == 0 { 10 } else { src % 11 });
    let off = match (code & 7, low % 4) {
        // Most loads and stores access the stack.
        (1 | 3, 0..3) => -8 * (1 + i16::from(low >> 6)),
        (1 | 3, _) => i16::from(low),
        (5 | 6, _) => i16::from(low % 8),
        _ => 0,
    };
    let dst = if code & 7 == 3 && low % 4 < 3 { 10 } else { dst };
    let imm = match code {
        0xdc | 0xd4 | 0xd7 => [16, 32, 64][usize::from(low % 3)],
        0xdb => [0, 0x40, 0x50, 0xa0, 1, 0xe1, 0xf1][usize::from(low % 7)],
        _ if low < 128 => (imm % 64) as i32,
        _ => imm as i32,
    };
    Insn { code, dst, src, off, imm }
}
