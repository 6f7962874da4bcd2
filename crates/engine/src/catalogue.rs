//! All that a request may name: the filters of `filter`, the sources and sinks of `endpoint`, the
//! spaces of this machine (CONTRACT 27).

use crate::compiler::Libpcap;
use crate::keys::KeyFiles;
use crate::names::MachineNames;
use filter::{
    Arguments, Compiler, Description, EndpointFacts, Keys, Kind, LinkType, Mistake, Names,
};
use pipeline::Catalogue;
use std::sync::Arc;

/// The catalog of this program.
#[derive(Clone, Copy, Debug, Default)]
pub struct House;

impl House {
    /// All descriptions: sources, filters, programs, sinks, in the order in which a block meets
    /// them.
    pub fn descriptions(self) -> impl Iterator<Item = &'static Description> {
        let sources = endpoint::catalog::SOURCES.iter().map(|entry| entry.description);
        let programs = endpoint::catalog::PROCESSES.iter().map(|entry| entry.description);
        let sinks = endpoint::catalog::SINKS.iter().map(|entry| entry.description);
        let filters = filter::catalog::FILTERS.iter().copied();
        sources.chain(filters).chain(tested()).chain(programs).chain(sinks)
    }
}

/// The same, for the line of an untrusted peer: nothing is compiled by libpcap, no name is looked
/// up, no file or interface is looked at, no key is read, and nothing is made of a filter that is
/// not to run here. (RELIABILITY T5)
#[derive(Clone, Copy, Debug, Default)]
pub struct Strangers;

impl Catalogue for Strangers {
    fn refuses(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        let make = entry.user.filter(|_| entry.kernel.is_some())?;
        make(arguments).err()
    }

    fn find(&self, name: &str) -> Option<&'static Description> {
        House.find(name)
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        House.find_source(name)
    }

    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts {
        House.endpoint(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        House.names()
    }

    fn spaces(&self) -> Vec<&str> {
        House.spaces()
    }
}

/// The same, for the line of a record: what was asked of the machine stands in the line, and files
/// and interfaces are not those of then.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repeated;

impl Catalogue for Repeated {
    fn find(&self, name: &str) -> Option<&'static Description> {
        House.find(name)
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        House.find_source(name)
    }

    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts {
        House.endpoint(entry)
    }

    fn names(&self) -> Vec<&'static str> {
        House.names()
    }

    fn spaces(&self) -> Vec<&str> {
        House.spaces()
    }

    fn refuses(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        House.refuses(entry, arguments)
    }

    fn compiler(&self) -> Option<Arc<dyn Compiler>> {
        House.compiler()
    }

    fn keys(&self) -> Option<Arc<dyn Keys>> {
        House.keys()
    }
}

/// Returns the descriptions that only test builds have.
#[cfg(not(feature = "testing"))]
const fn tested() -> [&'static Description; 0] {
    []
}

#[cfg(feature = "testing")]
const fn tested() -> [&'static Description; 3] {
    [&crate::testing::PANICS, &crate::testing::HOSTILE, &crate::testing::LIAR]
}

impl Catalogue for House {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let named = || self.descriptions().filter(|entry| entry.name == name);
        named().find(|entry| entry.kind != Kind::Source).or_else(|| named().next())
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let program = || Some(endpoint::catalog::process(name)?.head);
        endpoint::catalog::source(name).map(|entry| entry.description).or_else(program)
    }

    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts {
        let facts = match entry.kind {
            Kind::Source => endpoint::catalog::source(entry.name).map(|entry| &entry.facts),
            Kind::Sink => endpoint::catalog::sink(entry.name).map(|entry| &entry.facts),
            _ => None,
        };
        let program = || endpoint::catalog::process(entry.name).map(|entry| &entry.facts);
        facts.or_else(program).unwrap_or(&EndpointFacts::NONE)
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

    fn refuses(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        let command = || arguments.text("command").unwrap_or_default();
        match endpoint::catalog::process(entry.name) {
            Some(program) => (program.refuses)(command()),
            None => entry.user.and_then(|make| make(arguments).err()),
        }
    }

    fn links(&self, source: &Description, arguments: &Arguments) -> Option<Vec<LinkType>> {
        (endpoint::catalog::source(source.name)?.links)(arguments)
    }

    fn compiler(&self) -> Option<Arc<dyn Compiler>> {
        Some(Arc::new(Libpcap::default()))
    }

    fn answers(&self) -> Option<Arc<dyn Names>> {
        Some(Arc::new(MachineNames::default()))
    }

    fn keys(&self) -> Option<Arc<dyn Keys>> {
        Some(Arc::new(KeyFiles))
    }

    fn sees_one_way(&self, source: &Description, arguments: &Arguments) -> Option<String> {
        endpoint::sees_one_way(source, arguments)
    }
}
