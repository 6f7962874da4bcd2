//! Tests that generated instructions survive round trips through bytes and through text.

mod disassembly_parser;

use ebpf::disasm::disassemble_insn;
use ebpf::insn::{
    Alu, Cond, Helper, Insn, Operand, Reg, Size, atomic, class, decode, encode, mode,
};
use proptest::prelude::*;

fn any_register() -> impl Strategy<Value = Reg> {
    prop::sample::select((0..=10).filter_map(Reg::new).collect::<Vec<_>>())
}

fn any_operand() -> impl Strategy<Value = Operand> {
    prop_oneof![any_register().prop_map(Operand::Reg), any::<i32>().prop_map(Operand::Imm)]
}

fn any_size() -> impl Strategy<Value = Size> {
    prop::sample::select(vec![Size::B, Size::H, Size::W, Size::DW])
}

/// Generates instructions of every form, each as one slot of 8 bytes or, for a 64-bit constant, as
/// two.
fn any_instruction() -> impl Strategy<Value = Vec<Insn>> {
    let operations = [
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
    let conditions = [
        Cond::Eq,
        Cond::Gt,
        Cond::Ge,
        Cond::Set,
        Cond::Ne,
        Cond::Sgt,
        Cond::Sge,
        Cond::Lt,
        Cond::Le,
        Cond::Slt,
        Cond::Sle,
    ];
    let atomics = [
        atomic::ADD,
        atomic::OR,
        atomic::AND,
        atomic::XOR,
        atomic::ADD | atomic::FETCH,
        atomic::OR | atomic::FETCH,
        atomic::AND | atomic::FETCH,
        atomic::XOR | atomic::FETCH,
        atomic::XCHG,
        atomic::CMPXCHG,
        atomic::LOAD_ACQUIRE,
        atomic::STORE_RELEASE,
    ];
    let helpers = [Helper::MapLookup, Helper::KtimeNs, Helper::SkbLoadBytes, Helper::TailCall];
    let one = |insn| vec![insn];
    prop_oneof![
        (prop::sample::select(operations.to_vec()), any_register(), any_operand(), any::<bool>())
            .prop_map(move |(op, dst, operand, wide)| one(if wide {
                Insn::alu(op, dst, operand)
            } else {
                Insn::alu32(op, dst, operand)
            })),
        (
            any_register(),
            prop::sample::select(vec![(8, false), (16, true), (32, true)]),
            any_register()
        )
            .prop_map(move |(dst, (off, wide), src)| {
                let mov = if wide { Insn::mov(dst, src) } else { Insn::alu32(Alu::Mov, dst, src) };
                one(Insn { off, ..mov })
            }),
        (any_register(), any_operand(), any::<bool>(), any::<bool>()).prop_map(
            move |(dst, operand, divide, wide)| {
                let op = if divide { Alu::Div } else { Alu::Mod };
                let insn =
                    if wide { Insn::alu(op, dst, operand) } else { Insn::alu32(op, dst, operand) };
                one(Insn { off: 1, ..insn })
            }
        ),
        (any_register(), any::<bool>()).prop_map(move |(dst, wide)| one(if wide {
            Insn::alu(Alu::Neg, dst, 0)
        } else {
            Insn::alu32(Alu::Neg, dst, 0)
        })),
        (any_register(), prop::sample::select(vec![16, 32, 64]), 0_u8..3).prop_map(
            move |(dst, bits, form)| {
                let big = Insn::big_endian(dst, bits);
                one(Insn { code: [0xdc, 0xd4, 0xd7][usize::from(form)], ..big })
            }
        ),
        (any_size(), any_register(), any_register(), any::<i16>(), any::<bool>()).prop_map(
            move |(size, dst, src, off, sign)| {
                let load = Insn::load(size, dst, src, off);
                let signs = sign && size != Size::DW;
                one(if signs {
                    Insn { code: class::LDX | mode::MEMSX | size as u8, ..load }
                } else {
                    load
                })
            }
        ),
        (any_size(), any_register(), any::<i16>(), any_operand())
            .prop_map(move |(size, dst, off, value)| one(Insn::store(size, dst, off, value))),
        (
            any::<bool>(),
            prop::sample::select(atomics.to_vec()),
            any_register(),
            any::<i16>(),
            any_register()
        )
            .prop_map(move |(wide, operation, dst, off, src)| {
                let size = if wide { Size::DW } else { Size::W };
                one(Insn::atomic(size, operation, dst, off, src))
            }),
        (any_size(), any::<i32>(), prop::option::of(any_register())).prop_map(
            move |(size, at, src)| one(match src {
                Some(src) => Insn::packet_load_at(size, src, at),
                None => Insn::packet_load(size, at),
            })
        ),
        (
            prop::sample::select(conditions.to_vec()),
            any_register(),
            any_operand(),
            any::<i16>(),
            any::<bool>()
        )
            .prop_map(move |(cond, dst, operand, off, wide)| one(if wide {
                Insn::jump_if(cond, dst, operand, off)
            } else {
                Insn::jump32_if(cond, dst, operand, off)
            })),
        any::<i16>().prop_map(move |off| one(Insn::jump(off))),
        prop::sample::select(helpers.to_vec()).prop_map(move |helper| one(Insn::call(helper))),
        Just(one(Insn::exit())),
        (any_register(), any::<u64>()).prop_map(|(dst, value)| Insn::load64(dst, value).to_vec()),
        (any_register(), 0_u32..9, prop::option::of(0_u32..999)).prop_map(|(dst, map, offset)| {
            match offset {
                Some(offset) => Insn::load_map_value(dst, map, offset).to_vec(),
                None => Insn::load_map(dst, map).to_vec(),
            }
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn disassembled_instruction_parses_back(slots in any_instruction()) {
        let line = disassemble_insn(slots[0], slots.get(1).copied());
        prop_assert_eq!(disassembly_parser::parse(&line), Some(slots), "{}", line);
    }

    #[test]
    fn encoded_instruction_decodes_back(slots in any_instruction(), any_bytes in any::<[u8; 8]>()) {
        prop_assert_eq!(decode(&encode(&slots)), Some(slots));
        prop_assert_eq!(Insn::decode(any_bytes).encode(), any_bytes);
    }

    /// Arbitrary bytes disassemble to `.insn`, or to text from which all meaningful fields can be
    /// parsed.
    #[test]
    fn arbitrary_bytes_disassemble_to_text_with_all_fields(any_bytes in any::<[u8; 8]>()) {
        let insn = Insn::decode(any_bytes);
        let line = disassemble_insn(insn, Some(Insn::default()));
        if let Some(again) = disassembly_parser::parse(&line) {
            prop_assert_eq!(disassemble_insn(again[0], again.get(1).copied()), line);
        }
    }
}

#[test]
fn partial_slot_does_not_decode() {
    assert_eq!(decode(&[0; 12]), None);
}
