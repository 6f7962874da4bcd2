//! The registry that checks and the planner read: which filters, sources, sinks and spaces exist.
//!
//! It is a value that is handed in (CONTRACT 27), because this crate may import neither endpoints
//! nor spaces.

use filter::{
    Arguments, Compiler, Description, EndpointFacts, Keys, Kind, LinkType, Mistake, Names,
};
use std::sync::Arc;

/// The filters, sources and sinks that a request may name, and the spaces that it may pin them to.
pub trait Catalogue {
    /// The entry of this name. Where a name is a sink at the end of a line and a source at its head
    /// (`tx`), the sink.
    fn find(&self, name: &str) -> Option<&'static Description>;

    /// The entry that stands for this name at the head of a line.
    fn find_source(&self, name: &str) -> Option<&'static Description> {
        self.find(name).filter(|entry| entry.kind == Kind::Source)
    }

    /// The facts about the source, sink or program of this description; of a filter
    /// [`EndpointFacts::NONE`].
    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts;

    /// All names, each once, in the order in which `streamline filters` lists them.
    fn names(&self) -> Vec<&'static str>;

    /// The spaces of this machine, `kernel`, `thread0`; a last `*` stands for any number
    /// (`thread*`).
    fn spaces(&self) -> Vec<&str>;

    /// Returns the compiler of filter expressions that our own compiler does not know (CONTRACT
    /// 27). Asked once for each request; the arguments of all its filters carry it.
    fn compiler(&self) -> Option<Arc<dyn Compiler>> {
        None
    }

    /// Returns the resolver of names in filter expressions, if names may be resolved here; the
    /// arguments of all filters of a request carry it, as they do the compiler.
    fn answers(&self) -> Option<Arc<dyn Names>> {
        None
    }

    /// Returns the reader of the keys that filters ask for, if keys may be read here; the arguments
    /// of all filters of a request carry it, as they do the compiler.
    fn keys(&self) -> Option<Arc<dyn Keys>> {
        None
    }

    /// Returns the reason why a source with these arguments sees one direction of connections only;
    /// `None` if it sees both, or if that is unknown.
    fn sees_one_way(&self, _source: &Description, _arguments: &Arguments) -> Option<String> {
        None
    }

    /// The link types of the frames that this source gives with these arguments; `None`: nobody
    /// knows before the first frame. It may look at the file or the interface that they name.
    fn links(&self, source: &Description, arguments: &Arguments) -> Option<Vec<LinkType>> {
        let _ = (source, arguments);
        None
    }

    /// Warns about arguments that this entry accepts although nothing can ever pass it.
    fn warns(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        entry.analysis.warns.and_then(|warns| warns(arguments))
    }

    /// Returns the reason why this entry refuses a combination of valid arguments: a filter
    /// expression that does not compile, two parameters that exclude each other.
    fn refuses(&self, entry: &Description, arguments: &Arguments) -> Option<Mistake> {
        entry.user.and_then(|make| make(arguments).err())
    }
}

/// A catalogue made of a list of descriptions and a list of spaces.
#[derive(Debug, Clone)]
pub struct List<'a> {
    /// The descriptions, in order; a source may have the name of a sink.
    pub entries: &'a [&'static Description],
    /// The facts about endpoints among them, by name.
    pub endpoints: &'a [(&'a str, &'static EndpointFacts)],
    /// The spaces.
    pub spaces: &'a [&'a str],
}

impl Catalogue for List<'_> {
    fn find(&self, name: &str) -> Option<&'static Description> {
        let named = || self.entries.iter().copied().filter(|entry| entry.name == name);
        named().find(|entry| entry.kind != Kind::Source).or_else(|| named().next())
    }

    fn find_source(&self, name: &str) -> Option<&'static Description> {
        let mut sources = self.entries.iter().copied().filter(|entry| entry.kind == Kind::Source);
        sources.find(|entry| entry.name == name)
    }

    fn endpoint(&self, entry: &Description) -> &'static EndpointFacts {
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
