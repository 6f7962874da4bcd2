//! `streamline filters`: what can stand in a line.

use crate::status::Status;
use crate::terminal;
use engine::catalogue::House;
use pipeline::language::nearest;
use pipeline::{Catalogue, explain};
use std::fmt::Write as _;

/// Prints the list, or everything about one.
pub(crate) fn filters(name: Option<&str>) -> Status {
    match name {
        None => terminal::print(&list()),
        Some(name) => one(name),
    }
}

/// All names with their summaries, in the order in which a block meets them.
fn list() -> String {
    let entries: Vec<_> = House.descriptions().collect();
    let width = entries.iter().map(|entry| entry.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (group, kinds) in [
        ("Sources, where blocks enter", &["source"][..]),
        ("Filters", &["statistics", "inspection", "classification", "reordering", "editing"][..]),
        ("Programs, in a process of their own", &["program"][..]),
        ("Sinks, where blocks leave", &["sink"][..]),
    ] {
        let _ = writeln!(out, "{group}");
        for entry in &entries {
            let kind = if entry.process { "program" } else { entry.kind.name() };
            if !kinds.contains(&kind) {
                continue;
            }
            let _ = writeln!(out, "  {:width$}  {}", entry.name, entry.summary);
        }
        out.push('\n');
    }
    out.push_str("`streamline filters NAME` tells everything about one.\n");
    out
}

fn one(name: &str) -> Status {
    let named: Vec<_> = House.descriptions().filter(|entry| entry.name == name).collect();
    if named.is_empty() {
        let names = House.names();
        let meant = nearest(name, names.iter().copied());
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        terminal::complain(&format!("no filter is called `{}`{hint}", name.escape_debug()));
        terminal::note("`streamline filters` lists all");
        return Status::Nothing;
    }
    // A name can be a source at the head of a line and a sink at its end.
    let texts: Vec<String> = named.iter().map(|entry| explain::help(entry)).collect();
    terminal::print(&texts.join("\n"))
}
