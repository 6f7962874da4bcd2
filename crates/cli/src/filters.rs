//! `streamline filters`: lists and describes filters, sources and sinks.

use crate::arguments::FiltersArguments;
use crate::status::Status;
use crate::terminal;
use abi::text::VisibleText;
use engine::registry::MachineRegistry;
use pipeline::Registry;
use pipeline::explain::{self, HelpPage};
use pipeline::language::find_nearest_word;
use std::fmt::Write as _;
use streamline::report::{JsonObject, json_line, to_object};

/// Version of the output format of `filters --json`.
const JSON_VERSION: u32 = 1;

/// Prints the list of all catalog entries, or the description of one entry.
pub(crate) fn filters(arguments: &FiltersArguments) -> Status {
    match &arguments.name {
        None if arguments.json => terminal::print_text(&to_json(|_| true)),
        None => terminal::print_text(&format_list()),
        Some(name) => print_description(name, arguments.json),
    }
}

/// Returns one JSON object with the entries whose names satisfy `is_wanted`.
fn to_json(is_wanted: impl Fn(&str) -> bool) -> String {
    let fact = |(label, text): &(&str, String)| to_object(&[("name", label), ("text", text)]);
    let facts = |page: &HelpPage, is_wanted: &dyn Fn(&str) -> bool| -> Vec<JsonObject> {
        let sections = page.sections.iter().filter(|section| is_wanted(section.title));
        sections.flat_map(|section| section.facts.iter().map(fact)).collect()
    };
    let is_common = |title: &str| !["Parameters", "Facts"].contains(&title);
    let entries = MachineRegistry::descriptions().filter(|entry| is_wanted(entry.name));
    let entries = entries.map(|entry| {
        let endpoint = MachineRegistry::Local.endpoint_facts(entry);
        let kind = if endpoint.is_program { "program" } else { entry.kind.name() };
        let page = HelpPage::for_entry(entry, endpoint);
        to_object(&[
            ("name", &page.name),
            ("kind", &kind),
            ("summary", &page.summary),
            ("usage", &page.usage),
            ("details", &page.details),
            // The values, the default and the meaning of each parameter, as in the manual.
            ("parameters", &facts(&page, &|title| title == "Parameters")),
            // Parameters that all filters have in common.
            ("common_parameters", &facts(&page, &is_common)),
            ("facts", &facts(&page, &|title| title == "Facts")),
            ("example", &page.example),
        ])
    });
    let entries: Vec<JsonObject> = entries.collect();
    json_line(&to_object(&[("version", &JSON_VERSION), ("filters", &entries)]))
}

/// Titles of the groups in which the catalog is listed, each with the kinds of the entries in the
/// group.
const CATALOG_GROUPS: &[(&str, &[&str])] = &[
    ("Sources, where blocks enter", &["source"]),
    ("Filters", &["statistics", "inspection", "classification", "reordering", "editing"]),
    ("Programs, in a process of their own", &["program"]),
    ("Sinks, where blocks leave", &["sink"]),
];

/// Returns the catalog entries by group: sources, filters, programs, sinks.
pub(crate) fn entries_by_group() -> impl Iterator<Item = (&'static str, Vec<HelpPage>)> {
    CATALOG_GROUPS.iter().map(|(title, kinds)| {
        let entries = MachineRegistry::descriptions().filter(|entry| {
            kinds.contains(&if MachineRegistry::Local.endpoint_facts(entry).is_program {
                "program"
            } else {
                entry.kind.name()
            })
        });
        (
            *title,
            entries
                .map(|entry| {
                    HelpPage::for_entry(entry, MachineRegistry::Local.endpoint_facts(entry))
                })
                .collect(),
        )
    })
}

/// Formats the names of all catalog entries, each with its summary, by group.
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

fn print_description(name: &str, json: bool) -> Status {
    let named: Vec<_> =
        MachineRegistry::descriptions().filter(|entry| entry.name == name).collect();
    if named.is_empty() {
        let names = MachineRegistry::Local.names();
        let meant = find_nearest_word(name, names.iter().copied());
        let hint = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
        terminal::print_error(&format!("no filter is called `{}`{hint}", VisibleText(name)));
        terminal::print_note("`streamline filters` lists all");
        return Status::NotFound;
    }
    if json {
        return terminal::print_text(&to_json(|known| known == name));
    }
    // A source and a sink can have the same name.
    let texts: Vec<String> = named
        .iter()
        .map(|entry| explain::format_help(entry, MachineRegistry::Local.endpoint_facts(entry)))
        .collect();
    terminal::print_text(&texts.join("\n"))
}
