//! All that a request may name: the filters of `filter`, the sources and sinks of `endpoint`, the
//! spaces of this machine (CONTRACT 27).

use crate::compiler::Libpcap;
use filter::{Compiler, Description, Kind};
use pipeline::Catalogue;
use std::sync::Arc;

/// What this program has.
#[derive(Clone, Copy, Debug, Default)]
pub struct House;

impl House {
    /// All descriptions: sources, filters, sinks, in the order in which a block meets them.
    pub fn descriptions(self) -> impl Iterator<Item = &'static Description> {
        let sources = endpoint::catalog::SOURCES.iter().map(|entry| entry.description);
        let sinks = endpoint::catalog::SINKS.iter().map(|entry| entry.description);
        sources.chain(filter::catalog::FILTERS.iter().copied()).chain(tested()).chain(sinks)
    }
}

/// What only builds for tests have.
#[cfg(not(feature = "testing"))]
const fn tested() -> Option<&'static Description> {
    None
}

#[cfg(feature = "testing")]
const fn tested() -> Option<&'static Description> {
    Some(&crate::testing::PANICS)
}

impl Catalogue for House {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let named = || self.descriptions().filter(|entry| entry.name == name);
        named().find(|entry| entry.kind != Kind::Source).or_else(|| named().next())
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        endpoint::catalog::source(name).map(|entry| entry.description)
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for entry in self.descriptions() {
            if !names.contains(&entry.name) {
                names.push(entry.name);
            }
        }
        names
    }

    fn spaces(&self) -> Vec<&str> {
        vec!["kernel", "thread*"]
    }

    fn compiler(&self) -> Option<Arc<dyn Compiler>> {
        Some(Arc::new(Libpcap::default()))
    }
}
