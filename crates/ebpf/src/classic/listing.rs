//! Parses the listing of `tcpdump -d` back into a program.
//!
//! Input: text, one instruction per line; blank lines are ignored. Output: a [`ClassicProgram`], or
//! the line in error. Tests use it to compare the compiler with listings; callers use it to load a
//! program printed by another tool.

use std::fmt;
use std::str::FromStr;

use super::insn::{ANCILLARY, ANCILLARY_NAMES, COMPARISONS, Instruction, OPERATIONS, code};
use super::program::{ClassicProgram, Invalid};

/// A text that is not a listing of a program, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingError {
    /// A line without a known instruction.
    Line {
        /// Line number, from 1.
        line: usize,
        /// Text of the line.
        text: String,
    },
    /// The instructions are not a valid program.
    ClassicProgram(Invalid),
}

impl FromStr for ClassicProgram {
    type Err = ListingError;

    fn from_str(text: &str) -> Result<Self, ListingError> {
        let mut instructions = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let instruction = read(line, instructions.len()).ok_or_else(|| ListingError::Line {
                line: index + 1,
                text: line.trim().to_owned(),
            })?;
            instructions.push(instruction);
        }
        Self::new(instructions).map_err(ListingError::ClassicProgram)
    }
}

impl fmt::Display for ListingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, text } => write!(f, "line {line}: `{text}` is no instruction"),
            Self::ClassicProgram(invalid) => write!(f, "{invalid}"),
        }
    }
}

impl std::error::Error for ListingError {}

fn read(line: &str, at: usize) -> Option<Instruction> {
    let line = line.trim();
    let (place, rest) = line.strip_prefix('(')?.split_once(')')?;
    if place.parse::<usize>().ok()? != at {
        return None;
    }
    let rest = rest.trim();
    let (name, operand) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let operand = operand.trim();
    if let Some((_, op)) = COMPARISONS.iter().find(|(known, _)| *known == name) {
        return comparison(*op as u16, operand, at);
    }
    match name {
        "ja" => {
            let target: i64 = operand.parse().ok()?;
            let k = i32::try_from(target - at as i64 - 1).ok()?;
            Some(Instruction::plain(code::JMP | code::JA, k as u32))
        }
        "ret" if operand.is_empty() => Some(Instruction::plain(code::RET | code::A, 0)),
        "ret" => Some(Instruction::plain(code::RET | code::K, constant(operand)?)),
        "st" => Some(Instruction::plain(code::ST, memory(operand)?)),
        "stx" => Some(Instruction::plain(code::STX, memory(operand)?)),
        "tax" => Some(Instruction::plain(code::MISC | code::TAX, 0)),
        "txa" => Some(Instruction::plain(code::MISC | code::TXA, 0)),
        "ld" | "ldh" | "ldb" | "ldx" | "ldxb" => load(name, operand),
        _ => alu(name, operand),
    }
}

fn comparison(op: u16, operand: &str, at: usize) -> Option<Instruction> {
    let mut words = operand.split_whitespace();
    let value = words.next()?;
    let target = |word: Option<&str>| -> Option<u8> {
        let target: usize = word?.parse().ok()?;
        u8::try_from(target.checked_sub(at + 1)?).ok()
    };
    let jt = (words.next()? == "jt").then(|| target(words.next()))??;
    let jf = (words.next()? == "jf").then(|| target(words.next()))??;
    Some(match value {
        "x" => Instruction { code: code::JMP | op | code::X, jt, jf, k: 0 },
        _ => Instruction { code: code::JMP | op | code::K, jt, jf, k: constant(value)? },
    })
}

fn load(name: &str, operand: &str) -> Option<Instruction> {
    let (class, size) = match name {
        "ld" => (code::LD, code::W),
        "ldh" => (code::LD, code::H),
        "ldb" => (code::LD, code::B),
        "ldx" => (code::LDX, code::W),
        _ => {
            let offset = operand.strip_prefix("4*([")?.strip_suffix("]&0xf)")?;
            let k = number(offset)?;
            return Some(Instruction::plain(code::LDX | code::MSH | code::B, k));
        }
    };
    let (mode, k) = if operand == "#pktlen" {
        (code::LEN, 0)
    } else if operand.starts_with('#') {
        (code::IMM, constant(operand)?)
    } else if operand.starts_with('M') {
        (code::MEM, memory(operand)?)
    } else {
        let inner = operand.strip_prefix('[')?.strip_suffix(']')?;
        match inner.strip_prefix("x + ") {
            Some(offset) => (code::IND, number(offset)?),
            None => (code::ABS, number(inner).or_else(|| ancillary(inner))?),
        }
    };
    Some(Instruction::plain(class | size | mode, k))
}

fn alu(name: &str, operand: &str) -> Option<Instruction> {
    let (_, op) = OPERATIONS.iter().find(|(known, _)| *known == name)?;
    let op = *op as u16;
    Some(match operand {
        _ if op == code::NEG => Instruction::plain(code::ALU | op, 0),
        "x" => Instruction::plain(code::ALU | op | code::X, 0),
        _ => Instruction::plain(code::ALU | op | code::K, constant(operand)?),
    })
}

fn constant(text: &str) -> Option<u32> {
    number(text.strip_prefix('#')?)
}

fn memory(text: &str) -> Option<u32> {
    number(text.strip_prefix("M[")?.strip_suffix(']')?)
}

/// Parses a number as listings print it: hexadecimal with `0x`, otherwise decimal, possibly signed.
fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| text.parse::<i32>().ok().map(|n| n as u32)),
    }
}

fn ancillary(word: &str) -> Option<u32> {
    ANCILLARY_NAMES.iter().find(|(_, name)| *name == word).map(|(offset, _)| ANCILLARY + offset)
}

#[cfg(test)]
mod tests {
    use super::super::{ClassicProgram, Metadata};

    const EVERYTHING: &str = "\
(000) ldh      [12]
(001) jeq      #0x800           jt 2\tjf 30
(002) ldxb     4*([14]&0xf)
(003) ldb      [x + 14]
(004) ldx      #0x4
(005) ldx      M[3]
(006) ld       M[3]
(007) ldx      #pktlen
(008) ld       #pktlen
(009) st       M[0]
(010) stx      M[15]
(011) add      #4
(012) sub      x
(013) mul      #4
(014) div      #4
(015) mod      #4
(016) and      #0xf0
(017) or       #0xf0
(018) xor      x
(019) lsh      #4
(020) rsh      #4
(021) neg
(022) tax
(023) txa
(024) ldh      [type]
(025) ldb      [vlanp]
(026) ja       27
(027) jset     x                jt 28\tjf 30
(028) jgt      #0x5             jt 29\tjf 30
(029) jge      #0x5             jt 30\tjf 31
(030) ret
(031) ret      #65535
";

    #[test]
    fn listing_round_trips() {
        let program: ClassicProgram = EVERYTHING.parse().unwrap();
        assert_eq!(program.to_string(), EVERYTHING);
    }

    #[test]
    fn bad_line_is_reported() {
        let error = "(000) ld #0\n(001) hop #1\n".parse::<ClassicProgram>().unwrap_err();
        assert_eq!(error.to_string(), "line 2: `(001) hop #1` is no instruction");
    }

    #[test]
    fn load_beyond_the_frame_and_endless_loop_reject() {
        let run = |text: &str, frame: &[u8]| {
            text.parse::<ClassicProgram>().unwrap().run(frame, 60, &Metadata::default())
        };
        assert_eq!(run("(000) ldh [1]\n(001) ret #7", &[1, 2, 3]), 7);
        assert_eq!(run("(000) ldh [2]\n(001) ret #7", &[1, 2, 3]), 0);
        let wraps = "(000) ldx #0xffffffff\n(001) ldb [x + 2]\n(002) ret #7";
        assert_eq!(run(wraps, &[1, 2, 3]), 0);
        assert_eq!(run("(000) ld #1\n(001) div x\n(002) ret #7", &[]), 0);
        assert_eq!(run("(000) ja 0\n(001) ret #7", &[]), 0);
        assert_eq!(run("(000) ld #pktlen\n(001) ret", &[]), 60);
    }
}
