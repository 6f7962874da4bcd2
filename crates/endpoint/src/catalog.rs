//! The catalog of all sources, sinks and programs, in the order of the help text.

use crate::named_endpoints::{buffer_source, ring_sinks};
use crate::process;
use crate::shared_prefix::{reader, share};
use crate::sink::{account, discard, drop, files, freeze, json, pcap, print, redirect, tx, weblog};
use crate::source::{generate, inject, read, replay, rx, stream};
use crate::{ProcessEntry, SinkEntry, SourceEntry};

/// All sources, in the order of the help text.
pub const SOURCES: &[SourceEntry] = &[
    rx::ENTRY,
    rx::TX_SOURCE_ENTRY,
    replay::ENTRY,
    read::ENTRY,
    generate::ENTRY,
    inject::ENTRY,
    buffer_source::ENTRY,
    stream::ENTRY,
    reader::ENTRY,
];

/// All sinks, in the order of the help text.
pub const SINKS: &[SinkEntry] = &[
    print::ENTRY,
    json::ENTRY,
    pcap::ENTRY,
    files::ENTRY,
    ring_sinks::USER_ENTRY,
    ring_sinks::SOCKET_ENTRY,
    share::ENTRY,
    freeze::ENTRY,
    weblog::ENTRY,
    account::ENTRY,
    tx::ENTRY,
    redirect::ENTRY,
    discard::ENTRY,
    drop::ENTRY,
];

/// All programs in the catalog. The only entry, `exec`, runs any command.
pub const PROCESS_ENTRIES: &[ProcessEntry] = &[process::ENTRY];

/// Returns the source with this name, or `None` if the catalog has none.
#[must_use]
pub fn find_source(name: &str) -> Option<&'static SourceEntry> {
    SOURCES.iter().find(|entry| entry.description.name == name)
}

/// Returns the sink with this name, or `None` if the catalog has none.
#[must_use]
pub fn find_sink(name: &str) -> Option<&'static SinkEntry> {
    SINKS.iter().find(|entry| entry.description.name == name)
}

/// Returns the program with this name, or `None` if the catalog has none.
#[must_use]
pub fn find_process(name: &str) -> Option<&'static ProcessEntry> {
    PROCESS_ENTRIES.iter().find(|entry| entry.description.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use filter::{Arguments, Description, FilterKind, Forms, OutputForm};

    fn assert_entry_complete(description: &Description) {
        let name = description.name;
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        assert!(name.chars().all(letters), "{name}");
        assert!((1..=72).contains(&description.summary.len()), "{name}");
        assert!(!description.details.is_empty(), "{name}");
        assert!(description.details.lines().all(|line| line.chars().count() <= 100), "{name}");
        assert!(description.example.contains(name), "{name}");
        assert!(description.constructor.is_none(), "{name}");
        assert!(description.parameters.iter().all(|p| !p.help.is_empty()), "{name}");
        let effect =
            description.effect_of(&Arguments::from_parameter_defaults(description.parameters));
        assert_eq!(effect.kind, description.kind, "{name}: the arguments do not change the kind");
    }

    #[test]
    fn catalog_entries_are_complete() {
        for entry in SINKS {
            assert_entry_complete(entry.description);
            assert_eq!(entry.description.kind, FilterKind::Sink);
            assert_eq!(entry.description.output_form, OutputForm::Nothing);
            assert_eq!(
                find_sink(entry.description.name).unwrap().description.name,
                entry.description.name
            );
        }
        for entry in SOURCES {
            assert_entry_complete(entry.description);
            assert_eq!(entry.description.kind, FilterKind::Source);
            assert_eq!(entry.description.input_forms, Forms::NONE);
            let found = find_source(entry.description.name).unwrap();
            assert_eq!(found.description.name, entry.description.name);
        }
        assert!(find_sink("replay").is_none() && find_source("print").is_none());
    }
}
