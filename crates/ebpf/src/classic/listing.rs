//! Parser for program listings in the format of `tcpdump -d`.
//!
//! Input: text with one instruction per line; blank lines are ignored. Output: a
//! [`ClassicProgram`], or an error that names the line. Tests compare the compiler's output with
//! listings, and callers read programs that another tool printed.

use std::fmt;
use std::str::FromStr;

use super::insn::{
    ANCILLARY_NAMES, ANCILLARY_OFFSET, COMPARISON_NAMES, Instruction, OPERATION_NAMES, code,
};
use super::program::{ClassicProgram, InvalidProgram};

/// A reason why a text is not a valid program listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingError {
    /// A line is not a valid instruction.
    Line {
        /// Number of the invalid line, counted from 1.
        line: usize,
        /// Text of the invalid line.
        text: String,
    },
    /// The lines are instructions, but they do not form a valid program, for this reason.
    ClassicProgram(InvalidProgram),
}

impl FromStr for ClassicProgram {
    type Err = ListingError;

    fn from_str(text: &str) -> Result<Self, ListingError> {
        let mut instructions = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let instruction = parse_instruction(line, instructions.len()).ok_or_else(|| {
                ListingError::Line { line: index + 1, text: line.trim().to_owned() }
            })?;
            instructions.push(instruction);
        }
        Self::new(instructions).map_err(ListingError::ClassicProgram)
    }
}

impl fmt::Display for ListingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { line, text } => write!(f, "line {line}: `{text}` is not an instruction"),
            Self::ClassicProgram(invalid) => write!(f, "{invalid}"),
        }
    }
}

impl std::error::Error for ListingError {}

fn parse_instruction(line: &str, at: usize) -> Option<Instruction> {
    let line = line.trim();
    let (place, rest) = line.strip_prefix('(')?.split_once(')')?;
    if place.parse::<usize>().ok()? != at {
        return None;
    }
    let rest = rest.trim();
    let (name, operand) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    let operand = operand.trim();
    if let Some((_, op)) = COMPARISON_NAMES.iter().find(|(known, _)| *known == name) {
        return parse_comparison(*op as u16, operand, at);
    }
    match name {
        "ja" => {
            let target: i64 = operand.parse().ok()?;
            let k = i32::try_from(target - at as i64 - 1).ok()?;
            Some(Instruction::non_branching(code::JMP | code::JA, k as u32))
        }
        "ret" if operand.is_empty() => Some(Instruction::non_branching(code::RET | code::A, 0)),
        "ret" => Some(Instruction::non_branching(code::RET | code::K, parse_constant(operand)?)),
        "st" => Some(Instruction::non_branching(code::ST, parse_memory(operand)?)),
        "stx" => Some(Instruction::non_branching(code::STX, parse_memory(operand)?)),
        "tax" => Some(Instruction::non_branching(code::MISC | code::TAX, 0)),
        "txa" => Some(Instruction::non_branching(code::MISC | code::TXA, 0)),
        "ld" | "ldh" | "ldb" | "ldx" | "ldxb" => parse_load(name, operand),
        _ => parse_alu(name, operand),
    }
}

fn parse_comparison(op: u16, operand: &str, at: usize) -> Option<Instruction> {
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
        _ => Instruction { code: code::JMP | op | code::K, jt, jf, k: parse_constant(value)? },
    })
}

fn parse_load(name: &str, operand: &str) -> Option<Instruction> {
    let (class, size) = match name {
        "ld" => (code::LD, code::W),
        "ldh" => (code::LD, code::H),
        "ldb" => (code::LD, code::B),
        "ldx" => (code::LDX, code::W),
        _ => {
            let offset = operand.strip_prefix("4*([")?.strip_suffix("]&0xf)")?;
            let k = parse_number(offset)?;
            return Some(Instruction::non_branching(code::LDX | code::MSH | code::B, k));
        }
    };
    let (mode, k) = if operand == "#pktlen" {
        (code::LEN, 0)
    } else if operand.starts_with('#') {
        (code::IMM, parse_constant(operand)?)
    } else if operand.starts_with('M') {
        (code::MEM, parse_memory(operand)?)
    } else {
        let inner = operand.strip_prefix('[')?.strip_suffix(']')?;
        match inner.strip_prefix("x + ") {
            Some(offset) => (code::IND, parse_number(offset)?),
            None => (code::ABS, parse_number(inner).or_else(|| parse_ancillary(inner))?),
        }
    };
    Some(Instruction::non_branching(class | size | mode, k))
}

fn parse_alu(name: &str, operand: &str) -> Option<Instruction> {
    let (_, op) = OPERATION_NAMES.iter().find(|(known, _)| *known == name)?;
    let op = *op as u16;
    Some(match operand {
        _ if op == code::NEG => Instruction::non_branching(code::ALU | op, 0),
        "x" => Instruction::non_branching(code::ALU | op | code::X, 0),
        _ => Instruction::non_branching(code::ALU | op | code::K, parse_constant(operand)?),
    })
}

fn parse_constant(text: &str) -> Option<u32> {
    parse_number(text.strip_prefix('#')?)
}

fn parse_memory(text: &str) -> Option<u32> {
    parse_number(text.strip_prefix("M[")?.strip_suffix(']')?)
}

/// Parses a number as written in listings: hexadecimal after `0x`, otherwise decimal, possibly
/// signed. Returns `None` for any other text.
fn parse_number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok().or_else(|| text.parse::<i32>().ok().map(|n| n as u32)),
    }
}

fn parse_ancillary(word: &str) -> Option<u32> {
    ANCILLARY_NAMES
        .iter()
        .find(|(_, name)| *name == word)
        .map(|(offset, _)| ANCILLARY_OFFSET + offset)
}

#[cfg(test)]
mod tests {
    use super::super::{ClassicMetadata, ClassicProgram};

    const ALL_INSTRUCTIONS_LISTING: &str = "\
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
        let program: ClassicProgram = ALL_INSTRUCTIONS_LISTING.parse().unwrap();
        assert_eq!(program.to_string(), ALL_INSTRUCTIONS_LISTING);
    }

    #[test]
    fn unknown_line_in_listing_is_an_error() {
        let error = "(000) ld #0\n(001) hop #1\n".parse::<ClassicProgram>().unwrap_err();
        assert_eq!(error.to_string(), "line 2: `(001) hop #1` is not an instruction");
    }

    #[test]
    fn load_beyond_frame_and_endless_loop_reject_the_frame() {
        let run = |text: &str, frame: &[u8]| {
            text.parse::<ClassicProgram>().unwrap().run(frame, 60, &ClassicMetadata::default())
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
