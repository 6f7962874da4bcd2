//! Text digests of runs. If two runs have equal digests, every source, filter and edge processed
//! the same numbers of blocks and bytes, and the reports and failed nodes are equal.
//!
//! A digest omits the manner of execution: times, calls, events, and the choice between editing a
//! block in place and copying it.

use crate::run::RunOutcome;
use filter::Amount;
use std::fmt::Write as _;

/// Formats the digest of a run: sorted lines, one per source, filter, edge, report row and failure.
#[must_use]
pub fn digest(outcome: &RunOutcome) -> String {
    let mut text = String::new();
    let mut lines: Vec<String> = Vec::new();
    let ledger = &outcome.ledger;
    for (name, source) in &ledger.sources {
        lines.push(format!("source {name}: given {}", format_amount(source.given)));
    }
    for filter in &ledger.filters {
        let mut line = format!("filter {} {}:", filter.planned, filter.name);
        let amounts = [
            ("taken", filter.taken),
            ("made", filter.made),
            ("passed", filter.passed),
            ("unselected", filter.unselected),
            ("consumed", filter.consumed),
            ("held", filter.held),
        ];
        for (what, value) in amounts {
            let _ = write!(line, " {what} {}", format_amount(value));
        }
        for (why, value) in &filter.dropped {
            let _ = write!(line, " dropped({why}) {}", format_amount(*value));
        }
        for (why, count) in &filter.unanswered {
            let _ = write!(line, " unanswered({why}) {count}");
        }
        for (name, count) in &filter.counters {
            let _ = write!(line, " {name} {count}");
        }
        lines.push(line);
    }
    for edge in &ledger.edges {
        let (from, to, kind) = (&edge.from, &edge.to, edge.kind.name());
        let (put, taken) = (format_amount(edge.put), format_amount(edge.taken));
        let mut line = format!("edge {} {from} to {to} ({kind}): {put}, {taken}", edge.planned);
        for (why, value) in &edge.dropped {
            let _ = write!(line, " dropped({why}) {}", format_amount(*value));
        }
        lines.push(line);
    }
    for reported in &outcome.reports {
        for (row, value) in &reported.report.rows {
            lines.push(format!("report {} {} {row}: {value}", reported.planned, reported.name));
        }
    }
    lines.extend(outcome.failures.iter().map(|failure| format!("failure at {}", failure.node)));
    // Spaces end in any order. Sorting makes the digest independent of that order.
    lines.sort_unstable();
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn format_amount(amount: Amount) -> String {
    format!("{}/{}", amount.blocks, amount.bytes)
}

/// Compares the digest of an earlier run with that of a later run. Returns the lines that differ,
/// as pairs (earlier, later); `None` stands for a line that the other digest lacks.
#[must_use]
pub fn changed_lines(before: &str, now: &str) -> Vec<(Option<String>, Option<String>)> {
    let key = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let mut left: Vec<&str> = before.lines().collect();
    let mut found = Vec::new();
    for line in now.lines() {
        if let Some(same) = left.iter().position(|other| *other == line) {
            left.remove(same);
            continue;
        }
        let other = left.iter().position(|other| key(other) == key(line) && !now.contains(other));
        found.push((other.map(|at| left.remove(at).to_owned()), Some(line.to_owned())));
    }
    found.extend(left.into_iter().map(|line| (Some(line.to_owned()), None)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_two_runs_are_compared_by_line() {
        let (one, two) = ("a: 1\nb: 2\nc: 3\n", "a: 1\nb: 4\nd: 5\n");
        assert_eq!(changed_lines(one, one), []);
        let text = |text: &str| Some(text.to_owned());
        let expected = [(text("b: 2"), text("b: 4")), (None, text("d: 5")), (text("c: 3"), None)];
        assert_eq!(changed_lines(one, two), expected);
    }
}
