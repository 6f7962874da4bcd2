//! `streamline filters`: what can stand in a line.

use crate::status::Status;
use crate::terminal;
use abi::text::Visible;
use engine::catalogue::House;
use pipeline::Catalogue;
use pipeline::explain::{self, Page};
use pipeline::language::nearest;
use std::fmt::Write as _;

/// Prints the list, or everything about one.
pub(crate) fn filters(name: Option<&str>) -> Status {
    match name {
        None => terminal::print(&list()),
        Some(name) => one(name),
    }
}

/// Groups, and the kinds in each.
const GROUPS: &[(&str, &[&str])] = &[
    ("Sources, where blocks enter", &["source"]),
    ("Filters", &["statistics", "inspection", "classification", "reordering", "editing"]),
    ("Programs, in a process of their own", &["program"]),
    ("Sinks, where blocks leave", &["sink"]),
];

/// Returns the filters by group, in the order in which a block meets them.
pub(crate) fn groups() -> impl Iterator<Item = (&'static str, Vec<Page>)> {
    GROUPS.iter().map(|(title, kinds)| {
        let there = House.descriptions().filter(|entry| {
            kinds.contains(&if House.endpoint(entry).process {
                "program"
            } else {
                entry.kind.name()
            })
        });
        (*title, there.map(|entry| Page::of(entry, House.endpoint(entry))).collect())
    })
}

/// All names with their summaries.
fn list() -> String {
    let width = House.names().iter().map(|name| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (title, pages) in groups() {
        let _ = writeln!(out, "{title}");
        for page in pages {
            let _ = writeln!(out, "  {:width$}  {}", page.name, page.summary);
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
        terminal::complain(&format!("no filter is called `{}`{hint}", Visible(name)));
        terminal::note("`streamline filters` lists all");
        return Status::Nothing;
    }
    // A name can be a source at the head of a line and a sink at its end.
    let texts: Vec<String> =
        named.iter().map(|entry| explain::help(entry, House.endpoint(entry))).collect();
    terminal::print(&texts.join("\n"))
}
