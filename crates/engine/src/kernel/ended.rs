//! Final counters and state of a request in the kernel, as a value and as text for another process.

use super::joint::Counted;
use super::tree::{Tree, Which};
use endpoint::source::kernel::Arrived;
use filter::Amount;
use std::collections::HashMap;
use std::fmt::Write as _;

/// The final counters and filter state of a request in the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    pub(super) counted: Counted,
    /// The final state of its filters, by step.
    pub(super) states: HashMap<usize, Vec<u8>>,
    /// Number of doorbell notifications sent.
    pub(super) bells: u64,
    /// Packets of its user's sockets that came while too many were under way.
    pub(super) busy: u64,
    /// The runs of its programs that the kernel measured, and their time in ns.
    pub(super) measured: (u64, u64),
    /// True if the final counters are lost with the process that ran the request.
    pub(super) lost: bool,
}

/// The names of what is counted in a text, in order.
const COUNTS: [&str; 5] = ["entered", "passed", "unselected", "handed", "failed"];

impl Ended {
    /// Returns the empty record of a request whose host process ended without reporting its
    /// counters.
    #[must_use]
    pub fn lost() -> Self {
        Self { lost: true, ..Self::default() }
    }

    /// Returns lower bounds of the counters, derived from the frames that arrived; for a request
    /// whose own counters are lost. Estimates nothing beyond that.
    pub(super) fn at_least(tree: &Tree, arrived: &[Arrived]) -> Self {
        let handed = |number: usize| {
            let Some(Arrived { taken, lapped, unread, .. }) = arrived.get(number) else {
                return Amount::default();
            };
            amount(taken.blocks + lapped + unread, taken.bytes)
        };
        let handed: Vec<Amount> = (0..tree.hands.len()).map(handed).collect();
        let mut entered = vec![Amount::default(); tree.steps.len()];
        let mut passed = vec![Amount::default(); tree.steps.len() + 1];
        let most = |to: &mut Amount, of: Amount| {
            to.blocks = to.blocks.max(of.blocks);
            to.bytes = to.bytes.max(of.bytes);
        };
        for (hand, amount) in tree.hands.iter().zip(&handed) {
            if matches!(hand.which, Which::Classes(_)) {
                most(&mut passed[hand.from.map_or(0, |step| step + 1)], *amount);
            }
        }
        // What stands behind has a higher number.
        for (number, step) in tree.steps.iter().enumerate().rev() {
            let hands = tree.hands.iter().zip(&handed);
            let unsure = hands.filter(|(hand, _)| {
                hand.from == Some(number) && matches!(hand.which, Which::Unsure)
            });
            let all = unsure.fold(passed[number + 1], |sum, (_, unsure)| {
                amount(sum.blocks + unsure.blocks, sum.bytes + unsure.bytes)
            });
            entered[number] = all;
            most(&mut passed[step.from.map_or(0, |step| step + 1)], all);
        }
        let unselected = vec![Amount::default(); passed.len()];
        let (ran, reasons) = (passed[0], HashMap::new());
        let failed = Vec::new();
        let counted = Counted { ran, entered, passed, unselected, handed, failed, reasons };
        Self { counted, lost: true, ..Self::default() }
    }

    /// As text, a line for each thing.
    #[must_use]
    pub fn text(&self) -> String {
        let Counted { ran, entered, passed, unselected, handed, failed, reasons } = &self.counted;
        let mut text = format!("ran {} {}\n", ran.blocks, ran.bytes);
        let _ = writeln!(text, "bells {}\nbusy {}", self.bells, self.busy);
        let _ = writeln!(text, "measured {} {}", self.measured.0, self.measured.1);
        // Writing to a text does not fail.
        for (name, amounts) in COUNTS.iter().zip([entered, passed, unselected, handed, failed]) {
            text.push_str(name);
            for Amount { blocks, bytes } in amounts {
                let _ = write!(text, " {blocks} {bytes}");
            }
            text.push('\n');
        }
        for ((step, name), count) in reasons {
            let _ = writeln!(text, "reason {step} {count} {name}");
        }
        for (step, bytes) in &self.states {
            let _ = write!(text, "state {step} ");
            for byte in bytes {
                let _ = write!(text, "{byte:02x}");
            }
            text.push('\n');
        }
        text
    }

    /// Out of text; none if it is not one of these.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut ended = Self::default();
        for line in text.lines() {
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            let counted = &mut ended.counted;
            match name {
                "bells" => ended.bells = rest.parse().ok()?,
                "busy" => ended.busy = rest.parse().ok()?,
                "measured" => {
                    let (runs, ns) = rest.split_once(' ')?;
                    ended.measured = (runs.parse().ok()?, ns.parse().ok()?);
                }
                "ran" => counted.ran = *amounts(rest)?.first()?,
                "entered" => counted.entered = amounts(rest)?,
                "passed" => counted.passed = amounts(rest)?,
                "unselected" => counted.unselected = amounts(rest)?,
                "handed" => counted.handed = amounts(rest)?,
                "failed" => counted.failed = amounts(rest)?,
                "reason" => {
                    let (step, rest) = rest.split_once(' ')?;
                    let (count, name) = rest.split_once(' ')?;
                    let what = (step.parse().ok()?, name.to_owned());
                    counted.reasons.insert(what, count.parse().ok()?);
                }
                "state" => {
                    let (step, bytes) = rest.split_once(' ')?;
                    ended.states.insert(step.parse().ok()?, unhex(bytes)?);
                }
                _ => return None,
            }
        }
        Some(ended)
    }
}

fn amounts(text: &str) -> Option<Vec<Amount>> {
    let numbers: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let numbers = numbers?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[blocks, bytes]| amount(*blocks, *bytes)).collect())
}

const fn amount(blocks: u64, bytes: u64) -> Amount {
    Amount { blocks, bytes }
}

pub(super) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: &u8| char::from(*c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let digits: Option<Vec<u8>> = text.as_bytes().iter().map(digit).collect();
    let digits = digits?;
    let (pairs, rest) = digits.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_leaves_behind_is_the_same_out_of_its_text() {
        let counted = Counted {
            ran: amount(7, 700),
            entered: vec![amount(6, 600), amount(0, 0)],
            passed: vec![amount(5, u64::MAX)],
            unselected: Vec::new(),
            handed: vec![amount(1, 2); 31],
            failed: vec![amount(0, 0), amount(1, 64)],
            reasons: HashMap::from([((1, "not udp".to_owned()), 9)]),
        };
        let states = HashMap::from([(0, vec![0, 255, 16]), (3, Vec::new())]);
        let ended = Ended { counted, states, bells: 2, busy: 4, measured: (9, 900), lost: false };
        assert_eq!(Ended::from_text(&ended.text()), Some(ended));
        for wrong in ["failed x", "ran", "handed 1", "state 1 0", "state 1 zz", "reason 1 2", "?"] {
            assert_eq!(Ended::from_text(wrong), None, "{wrong}");
        }
    }
}
