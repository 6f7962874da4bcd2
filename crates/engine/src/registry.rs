//! The registry of all names that a request may use: the filters of `filter`, the sources and sinks
//! of `endpoint`, and the spaces of this machine (CONTRACT 27).

use crate::compiler::LibpcapCompiler;
use crate::keys::{FixedKeyReader, KeyFileReader};
use crate::machine_names::MachineNameCache;
use filter::{
    Arguments, Description, EndpointFacts, ExpressionCompiler, FilterKind, KeyReader, LinkType,
    Mistake, NameResolver,
};
use pipeline::Registry;
use std::sync::Arc;

/// The registry of this program. The variants differ in the services that a request may use while
/// it is parsed and checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MachineRegistry {
    /// The registry for requests of the user who runs this process. All services are available.
    #[default]
    Local,
    /// The registry for recorded requests. Names are not looked up, because the text contains the
    /// results of earlier lookups. Files (other than keys) and interfaces are not read, because
    /// they may have changed since the recording.
    Recorded,
    /// The registry for requests of untrusted peers. libpcap, name lookups, files, interfaces and
    /// keys are unavailable. To check arguments, only filters with a kernel twin are created.
    /// (RELIABILITY T5)
    Untrusted,
    /// The registry for calibration. It is like [`Self::Recorded`], but every key name yields the
    /// same fixed key.
    Calibration,
}

impl MachineRegistry {
    /// Returns all descriptions, in the order in which a path uses them: sources, filters,
    /// programs, sinks.
    pub fn descriptions() -> impl Iterator<Item = &'static Description> {
        let sources = endpoint::catalog::SOURCES.iter().map(|entry| entry.description);
        let programs = endpoint::catalog::PROCESS_ENTRIES.iter().map(|entry| entry.description);
        let sinks = endpoint::catalog::SINKS.iter().map(|entry| entry.description);
        let filters = filter::catalog::FILTERS.iter().copied();
        sources.chain(filters).chain(test_filters()).chain(programs).chain(sinks)
    }
}

/// Returns the descriptions of test filters; empty outside of test builds.
#[cfg(not(feature = "testing"))]
const fn test_filters() -> [&'static Description; 0] {
    []
}

#[cfg(feature = "testing")]
const fn test_filters() -> [&'static Description; 3] {
    [
        &crate::testing::PANICKING_FILTER,
        &crate::testing::HOSTILE_FILTER,
        &crate::testing::LYING_FILTER,
    ]
}

impl Registry for MachineRegistry {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let named = || Self::descriptions().filter(|entry| entry.name == name);
        let sink = named().find(|entry| entry.kind == FilterKind::Sink);
        let inner = || named().find(|entry| entry.kind != FilterKind::Source);
        sink.or_else(inner).or_else(|| named().next())
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        filter::catalog::find(name).or_else(|| self.find(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let program = || Some(endpoint::catalog::find_process(name)?.head_description);
        endpoint::catalog::find_source(name).map(|entry| entry.description).or_else(program)
    }

    fn endpoint_facts(&self, entry: &Description) -> &'static EndpointFacts {
        let facts = match entry.kind {
            FilterKind::Source => {
                endpoint::catalog::find_source(entry.name).map(|entry| &entry.facts)
            }
            FilterKind::Sink => endpoint::catalog::find_sink(entry.name).map(|entry| &entry.facts),
            _ => None,
        };
        let program = || endpoint::catalog::find_process(entry.name).map(|entry| &entry.facts);
        facts.or_else(program).unwrap_or(&EndpointFacts::NONE)
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        for entry in Self::descriptions() {
            if !names.contains(&entry.name) {
                names.push(entry.name);
            }
        }
        names
    }

    fn spaces(&self) -> Vec<&str> {
        vec!["kernel", "thread*"]
    }

    fn argument_refusal(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        let runs_here = *self != Self::Untrusted || entry.emit_twin.is_some();
        match endpoint::catalog::find_process(entry.name) {
            Some(program) if *self != Self::Untrusted => {
                (program.command_error)(arguments.text("command").unwrap_or_default())
            }
            _ => {
                let made =
                    entry.constructor.filter(|_| runs_here).and_then(|make| make(arguments).err());
                made.or_else(|| {
                    entry.analysis.argument_error.and_then(|refuses| refuses(arguments))
                })
            }
        }
    }

    fn source_links(&self, source: &Description, arguments: &Arguments) -> Option<Vec<LinkType>> {
        let source =
            endpoint::catalog::find_source(source.name).filter(|_| *self == Self::Local)?;
        (source.link_types)(arguments)
    }

    fn compiler(&self) -> Option<Arc<dyn ExpressionCompiler>> {
        match self {
            Self::Untrusted => None,
            _ => Some(Arc::new(LibpcapCompiler::new(*self == Self::Local))),
        }
    }

    fn resolver(&self) -> Option<Arc<dyn NameResolver>> {
        (*self == Self::Local).then(|| Arc::new(MachineNameCache::default()) as _)
    }

    fn key_reader(&self) -> Option<Arc<dyn KeyReader>> {
        match self {
            Self::Local | Self::Recorded => Some(Arc::new(KeyFileReader)),
            Self::Untrusted => None,
            Self::Calibration => Some(Arc::new(FixedKeyReader)),
        }
    }

    fn one_way_reason(&self, source: &Description, arguments: &Arguments) -> Option<String> {
        (*self == Self::Local)
            .then(|| endpoint::one_way_capture_reason(source, arguments))
            .flatten()
    }
}
