//! The registry of filters, sources, sinks and spaces, which the checks and the planner read.
//!
//! The registry is passed in as a value (CONTRACT 27), because this crate must not import endpoints
//! or spaces.

use filter::{
    Arguments, Description, EndpointFacts, ExpressionCompiler, FilterKind, KeyReader, LinkType,
    Mistake, NameResolver,
};
use std::sync::Arc;

/// The filters, sources and sinks that a request may name, and the spaces for pins.
pub trait Registry {
    /// Returns the entry with this name, or `None` if there is none. If a source and a sink have
    /// the same name (such as `tx`), returns the sink.
    fn find(&self, name: &str) -> Option<&'static Description>;

    /// Returns the entry with this name for the head of a line, where only a source is allowed, or
    /// `None` if no source has the name.
    fn find_source(&self, name: &str) -> Option<&'static Description> {
        self.find(name).filter(|entry| entry.kind == FilterKind::Source)
    }

    /// Returns the entry with this name for a position before other filters, or `None` if the name
    /// is unknown. If a filter and a sink have the same name (such as `pcap`), returns the filter.
    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        self.find(name)
    }

    /// Returns the facts about a source, sink or program; for a filter, [`EndpointFacts::NONE`].
    fn endpoint_facts(&self, entry: &Description) -> &'static EndpointFacts;

    /// Returns all names without duplicates, in the order of `streamline filters`.
    fn names(&self) -> Vec<&'static str>;

    /// Returns the spaces of this machine (`kernel`, `thread0`); a trailing `*` represents any
    /// number (`thread*`).
    fn spaces(&self) -> Vec<&str>;

    /// Returns the registry that this registry extends by further names, or `None` if it extends
    /// none.
    fn base(&self) -> Option<&dyn Registry> {
        None
    }

    /// Returns true if the calling program provides the entry with this name. Other processes do
    /// not have this entry.
    fn is_added_by_program(&self, _name: &str) -> bool {
        false
    }

    /// Returns the compiler for filter expressions that the built-in compiler cannot compile
    /// (CONTRACT 27), or `None` if there is none. Called once per request; all filters of the
    /// request share the compiler.
    fn compiler(&self) -> Option<Arc<dyn ExpressionCompiler>> {
        self.base()?.compiler()
    }

    /// Returns the resolver of names in filter expressions, or `None` if names must not be
    /// resolved. All filters of a request share the resolver.
    fn resolver(&self) -> Option<Arc<dyn NameResolver>> {
        self.base()?.resolver()
    }

    /// Returns the reader of keys that filters need, or `None` if keys must not be read. All
    /// filters of a request share the reader.
    fn key_reader(&self) -> Option<Arc<dyn KeyReader>> {
        self.base()?.key_reader()
    }

    /// Returns the reason why a source with these arguments observes only one direction of
    /// connections, or `None` if it observes both or if this is unknown.
    fn one_way_reason(&self, _source: &Description, _arguments: &Arguments) -> Option<String> {
        None
    }

    /// Returns the link types of the frames from this source, or `None` if they are unknown before
    /// the first frame. May read the file or the interface in the arguments.
    fn source_links(&self, source: &Description, arguments: &Arguments) -> Option<Vec<LinkType>> {
        let _ = (source, arguments);
        None
    }

    /// Returns a warning if the arguments are valid but let no block pass; otherwise `None`.
    fn argument_warning(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        entry.analysis.warning.and_then(|warning| warning(arguments))
    }

    /// Returns the reason why this entry refuses a combination of valid arguments, for example a
    /// filter expression that does not compile, or two parameters that exclude each other. Returns
    /// `None` if the entry accepts the combination.
    fn argument_refusal(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        let made = entry.constructor.and_then(|make| make(arguments).err());
        made.or_else(|| entry.analysis.argument_error.and_then(|refuses| refuses(arguments)))
    }
}

/// A registry that consists of lists of descriptions, endpoint facts and spaces.
#[derive(Debug, Clone)]
pub struct RegistryList<'a> {
    /// The descriptions, in the order of `streamline filters`. A source or a filter may have the
    /// same name as a sink.
    pub entries: &'a [&'static Description],
    /// The facts about the endpoints in `entries`, by name.
    pub endpoints: &'a [(&'a str, &'static EndpointFacts)],
    /// The names of the spaces, as [`Registry::spaces`] returns them.
    pub spaces: &'a [&'a str],
}

impl Registry for RegistryList<'_> {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let named = || self.entries.iter().copied().filter(|entry| entry.name == name);
        let sink = named().find(|entry| entry.kind == FilterKind::Sink);
        let inner = || named().find(|entry| entry.kind != FilterKind::Source);
        sink.or_else(inner).or_else(|| named().next())
    }

    fn find_filter(&self, name: &str) -> Option<&'static Description> {
        let ends = |kind| matches!(kind, FilterKind::Source | FilterKind::Sink);
        let mut filters = self.entries.iter().copied().filter(|entry| !ends(entry.kind));
        filters.find(|entry| entry.name == name).or_else(|| self.find(name))
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let mut sources =
            self.entries.iter().copied().filter(|entry| entry.kind == FilterKind::Source);
        sources.find(|entry| entry.name == name)
    }

    fn endpoint_facts(&self, entry: &Description) -> &'static EndpointFacts {
        let known = self.endpoints.iter().find(|(name, _)| *name == entry.name);
        known.map_or(&EndpointFacts::NONE, |(_, facts)| facts)
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        for entry in self.entries {
            if !names.contains(&entry.name) {
                names.push(entry.name);
            }
        }
        names
    }

    fn spaces(&self) -> Vec<&str> {
        self.spaces.to_vec()
    }
}
