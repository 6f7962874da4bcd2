//! `streamline filters`: lists and describes filters, sources and sinks.

use crate::status::Status;
use crate::terminal;
use abi::text::Visible;
use engine::registry::MachineRegistry;
use pipeline::Registry;
use pipeline::explain::{self, Page};
use pipeline::language::nearest;
use std::fmt::Write as _;

/// Prints the list, or the description of one entry.
pub(crate) fn filters(name: Option<&str>) -> Status {
    match name {
        None => terminal::print_text(&format_list()),
        Some(name) => print_description(name),
    }
}

/// Titles of the groups, each with the kinds of entries that belong to it.
const GROUP_KINDS: &[(&str, &[&str])] = &[
    ("Sources, where blocks enter", &["source"]),
    ("Filters", &["statistics", "inspection", "classification", "reordering", "editing"]),
    ("Programs, in a process of their own", &["program"]),
    ("Sinks, where blocks leave", &["sink"]),
];

/// Returns the catalog entries by group: first sources, then filters, then sinks.
pub(crate) fn entries_by_group() -> impl Iterator<Item = (&'static str, Vec<Page>)> {
    GROUP_KINDS.iter().map(|(title, kinds)| {
        let there = MachineRegistry::descriptions().filter(|entry| {
            kinds.contains(&if MachineRegistry::Local.endpoint(entry).is_program {
                "program"
            } else {
                entry.kind.name()
            })
        });
        (
            *title,
            there
                .map(|entry| Page::for_entry(entry, MachineRegistry::Local.endpoint(entry)))
                .collect(),
        )
    })
}

/// Formats all names with their summaries.
fn format_list() -> String {
    let width = MachineRegistry::Local.names().iter().map(|name| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (title, pages) in entries_by_group() {
        let _ = writeln!(out, "{title}");
        for page in pages {
            let _ = writeln!(out, "  {:width$}  {}", page.name, page.summary);
        }
        out.push('\n');
    }
    out.push_str("`streamline filters NAME` describes one in full.\n");
    out
}

fn print_description(name: &str) -> Status {
    let named: Vec<_> =
        MachineRegistry::descriptions().filter(|entry| entry.name == name).collect();
    if named.is_empty() {
        let names = MachineRegistry::Local.names();
        let meant = nearest(name, names.iter().copied());
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        terminal::print_error(&format!("no filter is called `{}`{hint}", Visible(name)));
        terminal::print_note("`streamline filters` lists all");
        return Status::Nothing;
    }
    // One name can denote both a source and a sink.
    let texts: Vec<String> = named
        .iter()
        .map(|entry| explain::format_help(entry, MachineRegistry::Local.endpoint(entry)))
        .collect();
    terminal::print_text(&texts.join("\n"))
}
