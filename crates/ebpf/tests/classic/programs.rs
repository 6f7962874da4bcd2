//! Programs for tests that translate classic BPF: the programs of libpcap's test suite, our
//! programs for the same expressions and for this project's expressions, and random programs.

#![allow(dead_code, reason = "each test binary uses some of the helpers")]

use ebpf::classic::insn::code;
use ebpf::classic::{ClassicProgram, Instruction, LinkType, Options, compile};

use super::cases::{InstalledNames, read_capture, read_table, text_value};
use super::frames::{Frame, Random};

/// Offset in bytes of an inline VLAN tag in an Ethernet frame.
const TAG_OFFSET: usize = 12;

/// pcap-filter expressions from this project's book, examples and tests.
pub(crate) const EXPRESSIONS: &[&str] = &[
    "",
    "ip",
    "tcp port 80",
    "tcp dst port 80",
    "tcp port 80 and host 10.0.0.1",
    "udp port 53",
    "ether host 1:2:3:4:5:6",
    "greater 400",
    "len >= 100 and ip[2:2] - ((ip[0] & 0xf) << 2) % 3 ^ 7 > 2",
    "vlan",
    "vlan 100",
    "vlan and vlan 7 and tcp port 443",
    "vlan 100 and ip6 or arp",
    "not vlan and not ip",
    "ether[12:4] & 0xfff = 5",
    "ether[10:4] = 0x00008100 or ether[13:2] = 0x0001",
    "ether[14:4] > 7 and ether[15:2] != 0 and ether[11] = 1",
    "ether[ether[0]:4] = 5 or ether[ether[1]:2] = 0x8100 or ether[ether[2]] & 7 != 0",
    "1 << ip[1] = 8 or len >> ether[3] = 0",
    "mpls 1000 and ip",
    "pppoes 0x3b and ip6",
    "tcp port 80 or 443 and not (src host 10.0.0.1 or dst net 192.168/16)",
    "ip6 and host fe80::7788:99ff:feaa:bbcc or ip6 net 2001:db8::/32 and icmp6[icmp6type] = 128",
    "udp portrange 1000-2000 or ether proto \\arp or geneve 7 or vxlan 9",
    "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
    "(tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420)",
];

/// Returns the programs of libpcap's test suite, and our own for the same expressions, with their
/// names.
pub(crate) fn read_corpus_programs(folder: &std::path::Path) -> Vec<(String, ClassicProgram)> {
    let mut programs = Vec::new();
    let ours = |expression: &str, optimize: bool| {
        let options = Options { resolver: &InstalledNames, optimize, ..Options::default() };
        compile(expression, LinkType::EN10MB, &options).ok()
    };
    for case in read_table(folder, "accept.json") {
        if text_value(&case, "DLT") != Some("EN10MB") {
            continue;
        }
        let name = text_value(&case, "name").unwrap();
        for key in ["opt", "unopt", "optunopt"] {
            let Some(listing) = text_value(&case, key) else { continue };
            programs.push((format!("{name} {key}"), listing.parse().unwrap()));
        }
        let alias = case.get("aliases").and_then(|aliases| aliases.get(0)?.as_str()).unwrap();
        programs.extend(ours(alias, true).map(|program| (format!("{name} ours"), program)));
    }
    for case in read_table(folder, "apply.json") {
        let path =
            folder.join("libpcap-filter/pcap/filter").join(text_value(&case, "savefile").unwrap());
        if read_capture(&path).is_some_and(|capture| capture.link == LinkType::EN10MB) {
            let (name, expression) =
                (text_value(&case, "name").unwrap(), text_value(&case, "expr").unwrap());
            for optimize in [true, false] {
                let program = ours(expression, optimize);
                programs.extend(program.map(|p| (format!("{name} {optimize}"), p)));
            }
        }
    }
    programs
}

/// Inserts one or two VLAN tags into a frame, as a network device would. Does nothing if the frame
/// ends before [`TAG_OFFSET`].
pub(crate) fn insert_tags(frame: &mut Frame, random: &mut Random) {
    if frame.bytes.len() < TAG_OFFSET {
        return;
    }
    // Priority tags have VLAN id 0.
    let tci = |random: &mut Random| match random.number_below(4) {
        0 => [(random.number_below(8) << 5) as u8, 0],
        1 => [0, 100],
        _ => (random.word() as u16).to_be_bytes(),
    };
    let [p, q] = tci(random);
    let mut put = vec![0x81, 0, p, q];
    match random.number_below(4) {
        // 802.1ad outside, 802.1Q inside.
        0 => {
            let [p, q] = tci(random);
            put = [&[0x88, 0xa8, p, q], &put[..]].concat();
        }
        1 => put[..2].copy_from_slice(&[0x88, 0xa8]),
        _ => {}
    }
    frame.wire_length += put.len() as u32;
    frame.bytes.splice(TAG_OFFSET..TAG_OFFSET, put);
}

/// Returns a random classic BPF program. Its loads are at and around the VLAN tag of a frame, at
/// constant offsets or at register X plus a constant. The program leaves two scratch words unused.
pub(crate) fn random_program(random: &mut Random) -> ClassicProgram {
    let length = if random.one_in(20) { 300 } else { 3 + random.number_below(40) };
    let mut instructions: Vec<Instruction> =
        (0..length).map(|at| random_instruction(random, length - at)).collect();
    let ret = |k| Instruction::non_branching(code::RET | code::K, k);
    instructions.push(match random.number_below(3) {
        0 => Instruction::non_branching(code::RET | code::A, 0),
        1 => ret(random.word()),
        _ => ret(0),
    });
    instructions.push(ret(1));
    ClassicProgram::new(instructions).unwrap()
}

fn random_instruction(random: &mut Random, left: usize) -> Instruction {
    use code::*;
    let place = |random: &mut Random| match random.number_below(12) {
        0 => random.word(),
        1 => random.number_below(200) as u32,
        _ => 6 + random.number_below(14) as u32,
    };
    let size = [W, H, B][random.number_below(3)];
    let plain = Instruction::non_branching;
    match random.number_below(24) {
        0..=4 => {
            // Larger offsets are ancillary loads.
            plain(LD | ABS | size, place(random).min(0xffff_efff))
        }
        5..=8 => {
            let k = if random.one_in(2) { random.number_below(20) as u32 } else { place(random) };
            plain(LD | IND | size, k)
        }
        9 => plain(LDX | MSH | B, place(random)),
        10 | 11 => plain(LDX | IMM, random.number_below(18) as u32),
        12 => plain(LDX | IMM, random.word()),
        13 => plain([LD, LDX][random.number_below(2)] | LEN, 0),
        14 => plain(MISC | [TAX, TXA][random.number_below(2)], 0),
        15 => plain([ST, STX][random.number_below(2)], random.number_below(14) as u32),
        16 => plain([LD, LDX][random.number_below(2)] | MEM, random.number_below(14) as u32),
        17 => plain(ALU | [LSH, RSH][random.number_below(2)] | X, 0),
        18 => plain(ALU | AND | K, 0x1f),
        19 => {
            let op = [ADD, SUB, MUL, DIV, OR, AND, MOD, XOR][random.number_below(8)];
            let by_x = random.one_in(2);
            plain(ALU | op | if by_x { X } else { K }, 1 + random.number_below(300) as u32)
        }
        20 => plain(JMP | JA, random.number_below(left) as u32),
        _ => Instruction {
            code: JMP
                | [JEQ, JGT, JGE, JSET][random.number_below(4)]
                | [K, X][random.number_below(2)],
            jt: random.number_below(left.min(256)) as u8,
            jf: random.number_below(left.min(256)) as u8,
            k: if random.one_in(2) { random.number_below(20) as u32 } else { random.word() },
        },
    }
}
