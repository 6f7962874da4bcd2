//! Parser for the text that the disassembler prints. If a disassembled instruction parses back to
//! itself, its text contains all its fields.

use ebpf::insn::{Alu, Cond, Insn, Operand, Reg, Size, atomic, class, mode};

type Tokens<'a> = std::slice::Iter<'a, &'a str>;

/// Parses the text of one instruction into its slots. Returns `None` if the text is not an
/// instruction.
pub(crate) fn parse(line: &str) -> Option<Vec<Insn>> {
    let spaced: String = line.chars().flat_map(add_spaces).collect();
    let tokens: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = tokens.iter();
    let slots = match *tokens.first()? {
        ".insn" => vec![parse_raw_insn(&tokens)?],
        "exit" => vec![Insn::exit()],
        "goto" => vec![Insn::jump(tokens.get(1)?.parse().ok()?)],
        "call" => vec![Insn {
            code: class::JMP | 0x80,
            imm: line.split_once('#')?.1.parse().ok()?,
            ..Insn::default()
        }],
        "if" => vec![parse_comparison(&mut rest)?],
        "lock" | "store_release" | "*" => vec![parse_store(&mut rest)?],
        _ => parse_assignment(&mut rest, &tokens)?,
    };
    Some(slots)
}

/// Returns a bracket or comma with spaces around it, so that it becomes a token of its own. Returns
/// any other character alone. Stars and signs of offsets already have spaces.
fn add_spaces(c: char) -> Vec<char> {
    if "()[],".contains(c) { vec![' ', c, ' '] } else { vec![c] }
}

fn parse_raw_insn(tokens: &[&str]) -> Option<Insn> {
    let code = u8::from_str_radix(tokens.get(1)?.strip_prefix("0x")?, 16).ok()?;
    Some(Insn {
        code,
        dst: tokens.get(2)?.parse().ok()?,
        src: tokens.get(3)?.parse().ok()?,
        off: tokens.get(4)?.parse().ok()?,
        imm: tokens.get(5)?.parse().ok()?,
    })
}

fn parse_register(token: &str) -> Option<(bool, Reg)> {
    let wide = token.starts_with('r');
    let number = token.strip_prefix(['r', 'w'])?.parse().ok()?;
    Some((wide, Reg::new(number)?))
}

fn parse_operand(token: &str) -> Option<Operand> {
    match parse_register(token) {
        Some((_, reg)) => Some(Operand::Reg(reg)),
        None => Some(Operand::Imm(token.parse().ok()?)),
    }
}

fn parse_comparison(tokens: &mut Tokens<'_>) -> Option<Insn> {
    tokens.next()?;
    let (wide, dst) = parse_register(tokens.next()?)?;
    let cond = match *tokens.next()? {
        "==" => Cond::Eq,
        "!=" => Cond::Ne,
        ">" => Cond::Gt,
        ">=" => Cond::Ge,
        "<" => Cond::Lt,
        "<=" => Cond::Le,
        "&" => Cond::Set,
        "s>" => Cond::Sgt,
        "s>=" => Cond::Sge,
        "s<" => Cond::Slt,
        "s<=" => Cond::Sle,
        _ => return None,
    };
    let operand = parse_operand(tokens.next()?)?;
    let off = tokens.nth(1)?.parse().ok()?;
    let jump = if wide { Insn::jump_if } else { Insn::jump32_if };
    Some(jump(cond, dst, operand, off))
}

/// Parses the rest of a type cast such as `( u16 * )`, after the opening parenthesis. Returns the
/// size of the type, and true if the type is signed.
fn parse_width(tokens: &mut Tokens<'_>) -> Option<(Size, bool)> {
    let name = *tokens.next()?;
    let size = match &name[1..] {
        "8" => Size::B,
        "16" => Size::H,
        "32" => Size::W,
        "64" => Size::DW,
        _ => return None,
    };
    tokens.next().filter(|star| **star == "*")?;
    tokens.next().filter(|bracket| **bracket == ")")?;
    Some((size, name.starts_with('s')))
}

/// Parses an address such as `( r1 + 4 )`, including the parentheses.
fn parse_address(tokens: &mut Tokens<'_>) -> Option<(Reg, i16)> {
    tokens.next().filter(|bracket| **bracket == "(")?;
    let (_, reg) = parse_register(tokens.next()?)?;
    let off = parse_signed_number(tokens)?;
    tokens.next().filter(|bracket| **bracket == ")")?;
    Some((reg, i16::try_from(off).ok()?))
}

fn parse_signed_number(tokens: &mut Tokens<'_>) -> Option<i64> {
    let minus = *tokens.next()? == "-";
    let value: i64 = tokens.next()?.parse().ok()?;
    Some(if minus { -value } else { value })
}

fn parse_store(tokens: &mut Tokens<'_>) -> Option<Insn> {
    let first = *tokens.next()?;
    if first == "store_release" {
        tokens.nth(1)?;
        let (size, _) = parse_width(tokens)?;
        let (dst, off) = parse_address(tokens)?;
        let (_, src) = parse_register(tokens.nth(1)?)?;
        return Some(Insn::atomic(size, atomic::STORE_RELEASE, dst, off, src));
    }
    tokens.nth(usize::from(first == "lock"))?;
    let (size, _) = parse_width(tokens)?;
    let (dst, off) = parse_address(tokens)?;
    let sign = *tokens.next()?;
    let value = parse_operand(tokens.next()?)?;
    if first != "lock" {
        return Some(Insn::store(size, dst, off, value));
    }
    let Operand::Reg(src) = value else { return None };
    let operation = match sign {
        "+=" => atomic::ADD,
        "|=" => atomic::OR,
        "&=" => atomic::AND,
        "^=" => atomic::XOR,
        _ => return None,
    };
    Some(Insn::atomic(size, operation, dst, off, src))
}

fn parse_assignment(tokens: &mut Tokens<'_>, all: &[&str]) -> Option<Vec<Insn>> {
    let (wide, dst) = parse_register(tokens.next()?)?;
    let sign = *tokens.next()?;
    let first = *tokens.next()?;
    if sign == "=" && all.last() == Some(&"ll") {
        return parse_constant(dst, first, tokens);
    }
    let one = match first {
        _ if sign != "=" => binary_insn(wide, dst, sign, parse_operand(first)?)?,
        "*" => parse_load(dst, tokens)?,
        "load_acquire" => {
            tokens.nth(1)?;
            let (size, _) = parse_width(tokens)?;
            let (src, off) = parse_address(tokens)?;
            Insn::atomic(size, atomic::LOAD_ACQUIRE, dst, off, src)
        }
        _ if first.contains("xchg_") || first.starts_with("atomic_fetch_") => {
            parse_atomic_exchange(dst, first, tokens)?
        }
        _ if first.starts_with('-') && parse_register(&first[1..]).is_some() => {
            unary_insn(wide, Alu::Neg, dst)
        }
        "(" => {
            let bits = tokens.next()?.strip_prefix('s')?.parse().ok()?;
            let (_, src) = parse_register(tokens.nth(1)?)?;
            Insn { off: bits, ..binary_insn(wide, dst, "=", Operand::Reg(src))? }
        }
        _ if tokens.len() == 1 => parse_byte_swap(dst, first)?,
        _ => binary_insn(wide, dst, sign, parse_operand(first)?)?,
    };
    Some(vec![one])
}

fn parse_constant(dst: Reg, first: &str, tokens: &mut Tokens<'_>) -> Option<Vec<Insn>> {
    if first != "map" {
        let value = u64::from_str_radix(first.strip_prefix("0x")?, 16).ok()?;
        return Some(Insn::load64(dst, value).to_vec());
    }
    let map = tokens.nth(1)?.parse::<i32>().ok()?;
    tokens.next()?;
    match *tokens.next()? {
        "[" => {
            let offset = tokens.next()?.parse::<i32>().ok()?;
            Some(Insn::load_map_value(dst, map as u32, offset as u32).to_vec())
        }
        _ => Some(Insn::load_map(dst, map as u32).to_vec()),
    }
}

fn parse_load(dst: Reg, tokens: &mut Tokens<'_>) -> Option<Insn> {
    tokens.next()?;
    let (size, sign) = parse_width(tokens)?;
    if tokens.as_slice().first() != Some(&"skb") {
        let (src, off) = parse_address(tokens)?;
        let load = Insn::load(size, dst, src, off);
        let sign_code = class::LDX | mode::MEMSX | size as u8;
        return Some(if sign { Insn { code: sign_code, ..load } } else { load });
    }
    tokens.nth(1)?;
    let at = *tokens.next()?;
    match parse_register(at) {
        Some((_, src)) => {
            Some(Insn::packet_load_at(size, src, parse_signed_number(tokens)?.try_into().ok()?))
        }
        None => Some(Insn::packet_load(size, at.parse().ok()?)),
    }
}

fn parse_atomic_exchange(answer: Reg, name: &str, tokens: &mut Tokens<'_>) -> Option<Insn> {
    if let Some(operation) = name.strip_prefix("atomic_fetch_") {
        tokens.nth(1)?;
        let (size, _) = parse_width(tokens)?;
        let (dst, off) = parse_address(tokens)?;
        let operation = match operation {
            "add" => atomic::ADD,
            "or" => atomic::OR,
            "and" => atomic::AND,
            "xor" => atomic::XOR,
            _ => return None,
        };
        return Some(Insn::atomic(size, operation | atomic::FETCH, dst, off, answer));
    }
    let size = if name.ends_with("64") { Size::DW } else { Size::W };
    tokens.next()?;
    let (_, dst) = parse_register(tokens.next()?)?;
    let off = i16::try_from(parse_signed_number(tokens)?).ok()?;
    if name.starts_with("xchg") {
        return Some(Insn::atomic(size, atomic::XCHG, dst, off, answer));
    }
    let (_, src) = parse_register(tokens.nth(3)?)?;
    Some(Insn::atomic(size, atomic::CMPXCHG, dst, off, src))
}

fn unary_insn(wide: bool, op: Alu, dst: Reg) -> Insn {
    if wide { Insn::alu(op, dst, 0) } else { Insn::alu32(op, dst, 0) }
}

fn parse_byte_swap(dst: Reg, name: &str) -> Option<Insn> {
    let bits = |prefix| name.strip_prefix(prefix)?.parse::<u8>().ok();
    let big = |bits| Insn::big_endian(dst, bits);
    if let Some(bits) = bits("bswap") {
        return Some(Insn { code: 0xd0 | class::ALU64, ..big(bits) });
    }
    bits("be").map(big).or_else(|| Some(Insn { code: 0xd0 | class::ALU, ..big(bits("le")?) }))
}

fn binary_insn(wide: bool, dst: Reg, sign: &str, operand: Operand) -> Option<Insn> {
    let (op, off) = match sign {
        "+=" => (Alu::Add, 0),
        "-=" => (Alu::Sub, 0),
        "*=" => (Alu::Mul, 0),
        "/=" => (Alu::Div, 0),
        "s/=" => (Alu::Div, 1),
        "|=" => (Alu::Or, 0),
        "&=" => (Alu::And, 0),
        "<<=" => (Alu::Shl, 0),
        ">>=" => (Alu::Shr, 0),
        "s>>=" => (Alu::Arsh, 0),
        "%=" => (Alu::Mod, 0),
        "s%=" => (Alu::Mod, 1),
        "^=" => (Alu::Xor, 0),
        "=" => (Alu::Mov, 0),
        _ => return None,
    };
    let insn = if wide { Insn::alu(op, dst, operand) } else { Insn::alu32(op, dst, operand) };
    Some(Insn { off, ..insn })
}
