//! Parser for programs in numeric form, as `tcpdump -ddd` and iptables write them.
//!
//! Input: `4,48 0 0 9,21 0 1 6,6 0 0 1,6 0 0 0`: the number of instructions, then the opcode, both
//! jumps and the operand of each. Output: a [`ClassicProgram`]. No pcap-filter(7) expression looks
//! like this.

use super::insn::Instruction;
use super::program::ClassicProgram;

/// Returns true if the text looks like a program in numeric form, which may still be invalid.
#[must_use]
pub fn is_numeric_program(text: &str) -> bool {
    text.contains(',') && text.bytes().all(|byte| byte.is_ascii_digit() || b", ".contains(&byte))
}

/// Parses a program in numeric form.
///
/// # Errors
///
/// Fails with the reason if the text has another form, or if the instructions are not a valid
/// program.
pub fn parse_numeric_program(text: &str) -> Result<ClassicProgram, String> {
    let mut parts = text.split(',').map(str::trim);
    let count = parts.next().and_then(|count| count.parse::<usize>().ok());
    let mut instructions = Vec::new();
    for part in parts {
        let instruction = parse_instruction(part);
        instructions.push(instruction.ok_or_else(|| format!("`{part}` is not an instruction"))?);
    }
    if count != Some(instructions.len()) {
        let first = text.split(',').next().unwrap_or_default().trim();
        let count = instructions.len();
        return Err(format!("it has {count} instructions, but begins with the count {first}"));
    }
    ClassicProgram::new(instructions).map_err(|invalid| invalid.to_string())
}

/// Writes a program in the numeric form that [`parse_numeric_program`] reads.
#[must_use]
pub fn write_numeric_program(instructions: &[Instruction]) -> String {
    let each = instructions.iter().map(|one| {
        let Instruction { code, jt, jf, k } = *one;
        format!(",{code} {jt} {jf} {k}")
    });
    instructions.len().to_string() + &each.collect::<String>()
}

fn parse_instruction(text: &str) -> Option<Instruction> {
    let mut numbers = text.split_ascii_whitespace();
    let instruction = Instruction {
        code: numbers.next()?.parse().ok()?,
        jt: numbers.next()?.parse().ok()?,
        jf: numbers.next()?.parse().ok()?,
        k: numbers.next()?.parse().ok()?,
    };
    numbers.next().is_none().then_some(instruction)
}

#[cfg(test)]
mod tests {
    use super::super::{LinkType, Options, compile};
    use super::*;

    #[test]
    fn numeric_programs_round_trip_and_others_are_refused() {
        let program =
            compile("udp port 53 or vlan 7", LinkType::EN10MB, &Options::default()).unwrap();
        let text = write_numeric_program(program.instructions());
        assert!(is_numeric_program(&text));
        assert_eq!(parse_numeric_program(&text), Ok(program));
        for expression in ["", "port 53", "ether[20:4] = 7", "10.0.0.1"] {
            assert!(!is_numeric_program(expression), "{expression}");
        }
        let refused = |text: &str| parse_numeric_program(text).unwrap_err();
        assert_eq!(refused("2,6 0 0 1"), "it has 1 instructions, but begins with the count 2");
        assert_eq!(refused("1,6 0 0"), "`6 0 0` is not an instruction");
        assert_eq!(refused("1,6 0 0 1 9"), "`6 0 0 1 9` is not an instruction");
        assert!(refused("1,48 0 0 9").contains("return"), "{}", refused("1,48 0 0 9"));
    }
}
