//! The only list of sources and sinks: one line each, in the order in which help prints them.

use crate::process;
use crate::sink::{discard, drop, files, freeze, json, pcap, print, redirect, tx, weblog};
use crate::source::{generate, inject, read, replay, rx};
use crate::{ProcessEntry, SinkEntry, SourceEntry};

/// All sources.
pub const SOURCES: &[SourceEntry] =
    &[rx::ENTRY, rx::SENT, replay::ENTRY, read::ENTRY, generate::ENTRY, inject::ENTRY];

/// All sinks.
pub const SINKS: &[SinkEntry] = &[
    print::ENTRY,
    json::ENTRY,
    pcap::ENTRY,
    files::ENTRY,
    freeze::ENTRY,
    weblog::ENTRY,
    tx::ENTRY,
    redirect::ENTRY,
    discard::ENTRY,
    drop::ENTRY,
];

/// All programs: there is one entry, and it starts any.
pub const PROCESSES: &[ProcessEntry] = &[process::ENTRY];

/// The source with this name.
#[must_use]
pub fn source(name: &str) -> Option<&'static SourceEntry> {
    SOURCES.iter().find(|entry| entry.description.name == name)
}

/// The sink with this name.
#[must_use]
pub fn sink(name: &str) -> Option<&'static SinkEntry> {
    SINKS.iter().find(|entry| entry.description.name == name)
}

/// The program with this name.
#[must_use]
pub fn process(name: &str) -> Option<&'static ProcessEntry> {
    PROCESSES.iter().find(|entry| entry.description.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use filter::{Arguments, Description, Forms, Gives, Kind};

    fn check(description: &Description) {
        let name = description.name;
        let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
        assert!(name.chars().all(letters), "{name}");
        assert!((1..=72).contains(&description.summary.len()), "{name}");
        assert!(!description.details.is_empty(), "{name}");
        assert!(description.details.lines().all(|line| line.chars().count() <= 100), "{name}");
        assert!(description.example.contains(name), "{name}");
        assert!(description.user.is_none(), "{name}");
        assert!(description.parameters.iter().all(|p| !p.help.is_empty()), "{name}");
        let effect = description.effect_of(&Arguments::defaults(description));
        assert_eq!(effect.kind, description.kind, "{name}: a source stays one, a sink too");
    }

    #[test]
    fn every_entry_is_told_in_full() {
        for entry in SINKS {
            check(entry.description);
            assert_eq!(entry.description.kind, Kind::Sink);
            assert_eq!(entry.description.gives, Gives::Nothing);
            assert_eq!(
                sink(entry.description.name).unwrap().description.name,
                entry.description.name
            );
        }
        for entry in SOURCES {
            check(entry.description);
            assert_eq!(entry.description.kind, Kind::Source);
            assert_eq!(entry.description.takes, Forms::NONE);
            let found = source(entry.description.name).unwrap();
            assert_eq!(found.description.name, entry.description.name);
        }
        assert!(sink("replay").is_none() && source("print").is_none());
    }
}
