//! Formatting of the findings as human-readable text: aligned, at most 80 columns wide, colored on
//! a terminal.

use super::DoctorReport;
use super::findings::{
    CheckFinding, CheckResult, DoctorFindings, FindingSection, InterfaceFinding, Verdict,
};
use crate::progress::format_bytes_short;
use streamline::neighbors::NeighborFindings;
use streamline::privilege::{self, REMEDY_COLUMNS};

use pipeline::explain::table::{Table, wrap_text};
use std::fmt::Write as _;

/// Maximum number of interfaces printed. `--json` contains all of them.
const INTERFACES_MAX: usize = 16;

/// Formats all findings of `doctor` as text. If `colours` is true, the text contains color
/// sequences.
pub(super) fn format_findings(
    DoctorReport { checkup, others }: &DoctorReport,
    colours: bool,
) -> String {
    let memory = checkup
        .memory
        .map_or_else(String::new, |n| format!(", {} of memory", format_bytes_short(n)));
    let DoctorFindings { program, release, processors, .. } = checkup;
    let mut out = String::new();
    let head = format!("streamline {program} on Linux {release}, {processors} processors{memory}");
    for line in wrap_text(&head, REMEDY_COLUMNS) {
        let _ = writeln!(out, "{line}");
    }
    for section in &checkup.sections {
        out.push_str(&format_section(section, colours));
    }
    out.push_str(&format_interfaces(&checkup.interfaces, colours));
    out.push_str(&format_neighbors(others, colours));
    let _ = writeln!(out, "\n{}", bold_text("what follows", colours));
    let mut before: Option<&Verdict> = None;
    for verdict in &checkup.doors {
        // Facilities with the same cause have the same remedy, which is printed only once: a
        // repetition would imply a second cause.
        let again = before.is_some_and(|before| !verdict.open && before.because == verdict.because);
        match again {
            true => append_row(
                &mut out,
                NAME_WIDTH,
                verdict.mark(colours),
                &verdict.title(),
                "no: the same",
            ),
            false => out.push_str(&format_verdict(verdict, colours)),
        }
        before = Some(verdict);
    }
    out
}

/// Width of the column with the names of checks, in characters.
const NAME_WIDTH: usize = 18;
/// Width of the name column in the limits section, in characters.
const LIMIT_NAME_WIDTH: usize = 29;

fn format_section(section: &FindingSection, colours: bool) -> String {
    let mut out = format!("\n{}\n", bold_text(section.name, colours));
    let longest = section.rows.iter().map(|row| row.name.chars().count()).max();
    let room = if longest.unwrap_or(0) > NAME_WIDTH { LIMIT_NAME_WIDTH } else { NAME_WIDTH };
    for CheckFinding { name, state, explanation, advice } in &section.rows {
        append_row(&mut out, room, result_mark(*state, colours), name, explanation);
        if let Some(advice) = advice {
            for (number, line) in wrap_text(advice, REMEDY_COLUMNS - room - 6).iter().enumerate() {
                let arrow = if number == 0 { "→" } else { " " };
                let _ = writeln!(out, "   {:room$} {arrow} {line}", "");
            }
        }
    }
    out
}

/// Appends a row with a mark, a name and an explanation, such as ` ✓ name explanation`. The name is
/// padded to `room` columns, and the explanation is wrapped.
fn append_row(out: &mut String, room: usize, mark: &str, name: &str, explanation: &str) {
    for (number, line) in wrap_text(explanation, REMEDY_COLUMNS - room - 4).iter().enumerate() {
        let (mark, name) = if number == 0 { (mark, name) } else { (" ", "") };
        let _ = writeln!(out, "{}", format!(" {mark} {name:room$} {line}").trim_end());
    }
}

fn format_interfaces(all: &[InterfaceFinding], colours: bool) -> String {
    let mut out = format!("\n{}\n", bold_text("interfaces", colours));
    let mut table =
        Table::new(&[">#", "name", "kind", "link", "state", ">mtu", ">received", ">lost"]);
    // If there are too many interfaces, the active ones come first.
    let mut listed: Vec<&InterfaceFinding> = all.iter().collect();
    if all.len() > INTERFACES_MAX {
        listed.sort_by_key(|interface| (interface.state != "up", interface.index));
    }
    for interface in listed.into_iter().take(INTERFACES_MAX) {
        table.add_row([
            interface.index.to_string(),
            interface.name.clone(),
            interface.kind.clone(),
            interface.link.clone(),
            interface.state.to_owned(),
            interface.mtu.to_string(),
            interface.received.to_string(),
            interface.lost.to_string(),
        ]);
    }
    if table.is_empty() {
        out.push_str("   none\n");
        return out;
    }
    for line in table.format_within(REMEDY_COLUMNS - 2).lines() {
        let _ = writeln!(out, "  {line}");
    }
    if all.len() > INTERFACES_MAX {
        let _ = writeln!(out, "   and {} more: --json has all", all.len() - INTERFACES_MAX);
    }
    out
}

/// Formats the kernel programs and packet sockets that other applications have on the interfaces of
/// this machine.
fn format_neighbors(others: &NeighborFindings, colours: bool) -> String {
    let mut out = format!("\n{}\n", bold_text("other users of the interfaces", colours));
    if others.is_empty() {
        out.push_str("   none\n");
    }
    for line in others.format_table(REMEDY_COLUMNS - 2).lines() {
        let _ = writeln!(out, "  {line}");
    }
    out
}

/// Formats the availability of one facility. If the facility is unavailable, appends the remedies.
pub(super) fn format_verdict(verdict: &Verdict, colours: bool) -> String {
    let mut out = String::new();
    let explanation = match (verdict.open, verdict.because.as_str()) {
        (true, "always") => "always".to_owned(),
        (true, "") => "yes".to_owned(),
        (true, because) => format!("yes, {because}"),
        (false, because) => format!("no: {because}"),
    };
    append_row(&mut out, NAME_WIDTH, verdict.mark(colours), &verdict.title(), &explanation);
    out.push_str(&privilege::format_remedies(&verdict.ways, 3));
    out
}

impl Verdict {
    /// Formats the title of a facility, such as `capturing (rx)`.
    pub(super) fn title(&self) -> String {
        format!("{} ({})", self.what, self.name)
    }

    fn mark(&self, colours: bool) -> &'static str {
        result_mark(if self.open { CheckResult::Good } else { CheckResult::Bad }, colours)
    }
}

const fn result_mark(state: CheckResult, colours: bool) -> &'static str {
    match (state, colours) {
        (CheckResult::Good, false) => "✓",
        (CheckResult::Good, true) => "\x1b[32m✓\x1b[0m",
        (CheckResult::Bad, false) => "✗",
        (CheckResult::Bad, true) => "\x1b[31m✗\x1b[0m",
        (CheckResult::Plain, _) => " ",
    }
}

fn bold_text(text: &str, colours: bool) -> String {
    if colours { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}
