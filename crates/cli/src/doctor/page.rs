//! The findings as a page for people: aligned, at most 80 columns, in colour on a terminal.

use super::findings::{Checkup, Row, Section, Seen, State, Verdict};
use crate::privilege::{self, COLUMNS};
use crate::progress::short;

use pipeline::explain::table::{Column, Table, wrap};
use std::fmt::Write as _;

/// Interfaces printed; `--json` has all.
const SHOWN: usize = 16;

/// The whole page.
pub(super) fn text(checkup: &Checkup, colours: bool) -> String {
    let memory = checkup.memory.map_or_else(String::new, |n| format!(", {} of memory", short(n)));
    let Checkup { program, release, processors, .. } = checkup;
    let mut out = String::new();
    let head = format!("streamline {program} on Linux {release}, {processors} processors{memory}");
    for line in wrap(&head, COLUMNS) {
        let _ = writeln!(out, "{line}");
    }
    for section in &checkup.sections {
        out.push_str(&self::section(section, colours));
    }
    out.push_str(&interfaces(&checkup.interfaces, colours));
    let _ = writeln!(out, "\n{}", bold("what follows", colours));
    let mut before: Option<&Verdict> = None;
    for door in &checkup.doors {
        // The same ways twice would hide that it is one thing that is missing.
        let again = before.is_some_and(|before| !door.open && before.because == door.because);
        match again {
            true => row(&mut out, NAMES, door.mark(colours), &door.title(), "no: the same"),
            false => out.push_str(&verdict(door, colours)),
        }
        before = Some(door);
    }
    out
}

/// The room of names, so that what is said about them is aligned.
const NAMES: usize = 18;
/// The room of the names of limits.
const WIDE: usize = 29;

fn section(section: &Section, colours: bool) -> String {
    let mut out = format!("\n{}\n", bold(section.name, colours));
    let longest = section.rows.iter().map(|row| row.name.chars().count()).max();
    let room = if longest.unwrap_or(0) > NAMES { WIDE } else { NAMES };
    for Row { name, state, says, advice } in &section.rows {
        row(&mut out, room, mark(*state, colours), name, says);
        if let Some(advice) = advice {
            for (number, line) in wrap(advice, COLUMNS - room - 6).iter().enumerate() {
                let arrow = if number == 0 { "→" } else { " " };
                let _ = writeln!(out, "   {:room$} {arrow} {line}", "");
            }
        }
    }
    out
}

/// ` ✓ name   what is said about it`
fn row(out: &mut String, room: usize, mark: &str, name: &str, says: &str) {
    for (number, line) in wrap(says, COLUMNS - room - 4).iter().enumerate() {
        let (mark, name) = if number == 0 { (mark, name) } else { (" ", "") };
        let _ = writeln!(out, "{}", format!(" {mark} {name:room$} {line}").trim_end());
    }
}

fn interfaces(all: &[Seen], colours: bool) -> String {
    let mut out = format!("\n{}\n", bold("interfaces", colours));
    let mut table = Table::new(&[
        Column::right("#"),
        Column::left("name"),
        Column::left("kind"),
        Column::left("link"),
        Column::left("state"),
        Column::right("mtu"),
        Column::right("received"),
        Column::right("lost"),
    ]);
    // Where not all are shown, those that carry something are.
    let mut shown: Vec<&Seen> = all.iter().collect();
    if all.len() > SHOWN {
        shown.sort_by_key(|seen| (seen.state != "up", seen.index));
    }
    for seen in shown.into_iter().take(SHOWN) {
        table.row([
            seen.index.to_string(),
            seen.name.clone(),
            seen.kind.clone(),
            seen.link.clone(),
            seen.state.to_owned(),
            seen.mtu.to_string(),
            seen.received.to_string(),
            seen.lost.to_string(),
        ]);
    }
    if table.is_empty() {
        out.push_str("   none\n");
        return out;
    }
    for line in table.text(COLUMNS - 2).lines() {
        let _ = writeln!(out, "  {line}");
    }
    if all.len() > SHOWN {
        let _ = writeln!(out, "   and {} more: --json has all", all.len() - SHOWN);
    }
    out
}

/// One door, and the ways to open it.
pub(super) fn verdict(door: &Verdict, colours: bool) -> String {
    let mut out = String::new();
    let says = match (door.open, door.because.as_str()) {
        (true, "always") => "always".to_owned(),
        (true, "") => "yes".to_owned(),
        (true, because) => format!("yes, {because}"),
        (false, because) => format!("no: {because}"),
    };
    row(&mut out, NAMES, door.mark(colours), &door.title(), &says);
    out.push_str(&privilege::written(&door.ways, 3));
    out
}

impl Verdict {
    /// `capturing (rx)`
    pub(super) fn title(&self) -> String {
        format!("{} ({})", self.what, self.name)
    }

    fn mark(&self, colours: bool) -> &'static str {
        mark(if self.open { State::Good } else { State::Bad }, colours)
    }
}

const fn mark(state: State, colours: bool) -> &'static str {
    match (state, colours) {
        (State::Good, false) => "✓",
        (State::Good, true) => "\x1b[32m✓\x1b[0m",
        (State::Bad, false) => "✗",
        (State::Bad, true) => "\x1b[31m✗\x1b[0m",
        (State::Plain, _) => " ",
    }
}

fn bold(text: &str, colours: bool) -> String {
    if colours { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
}
