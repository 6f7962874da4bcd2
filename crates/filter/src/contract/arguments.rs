//! The typed arguments of one filter in a request.
//!
//! The crate `pipeline` parses the text of a request and checks it against the parameters. Filters
//! only read the values.

use super::value::{Mistake, Value};
use super::{
    ExpressionCompiler, Key, KeyReader, NameResolver, Parameter, SessionNumbers, ValueRange,
};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use wire::LinkType;

/// The arguments of one filter, defaults included, and the services that the filter may use.
/// Equality compares the argument values only.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    values: Vec<(&'static str, Value)>,
    compiler: Option<Arc<dyn ExpressionCompiler>>,
    keys: Option<Arc<dyn KeyReader>>,
    names: Option<Arc<dyn NameResolver>>,
    /// Link types that input frames may have. `None` or empty if they are unknown.
    links: Option<Arc<[LinkType]>>,
    /// Class ranges that the filter's outgoing arcs select.
    selected_classes: Vec<(u32, u32)>,
    /// Seed that [`Arguments::seed`] returns, for a reproducible run; `None` for random seeds.
    seed: Option<u64>,
    /// Session numbers reserved for the filter.
    session_numbers: SessionNumbers,
    /// Index of this replica, from 0, and the number of replicas, or `None` for a filter without
    /// replicas.
    replica: Option<(u32, u32)>,
    /// True if the filter receives only blocks that its twin in the kernel left to it.
    is_fallback: bool,
    /// True if all input blocks are messages, records or bytes.
    reads_messages: bool,
}

impl PartialEq for Arguments {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Eq for Arguments {}

impl Arguments {
    /// Creates arguments with the defaults of these parameters.
    /// # Panics
    /// Panics if a default is not a valid value for its parameter: a bug in the description, which
    /// the catalog test finds.
    #[must_use]
    pub fn from_parameter_defaults(parameters: &[Parameter]) -> Self {
        let mut arguments = Self::default();
        for p in parameters {
            if let Some(text) = p.default {
                let value = p.parse(text).expect("a default is a value of its parameter");
                arguments.set(p.name, value);
            }
        }
        arguments
    }

    /// Sets the value of a parameter, replacing a previous one.
    pub fn set(&mut self, name: &'static str, value: Value) {
        match self.values.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.values.push((name, value)),
        }
    }

    /// Adds a value to a parameter that may be given several times.
    pub fn add(&mut self, name: &'static str, value: Value) {
        self.values.push((name, value));
    }

    /// Returns the value of this parameter, or `None` if it has neither value nor default.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// Returns the value of a parameter of type number, size (in bytes), duration (in ns) or factor
    /// (in millionths). Returns `None` if the parameter is absent or of another type.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// Returns the value of a number or size parameter as `usize`, or `usize::MAX` if `usize` is
    /// too small for the value. Returns 1 if the parameter is absent or of another type.
    #[must_use]
    pub fn number_as_usize(&self, name: &str) -> usize {
        usize::try_from(self.number(name).unwrap_or(1)).unwrap_or(usize::MAX)
    }

    /// Returns true if the value of this flag is `yes`, and false if it is `no` or if the flag is
    /// absent.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Flag(true))
    }

    /// Returns the value of a text, path or word parameter, or `None` if it is absent or of another
    /// type.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(t)) => Some(t),
            _ => None,
        }
    }

    /// Returns the values of a parameter of type [`Bytes`](super::ParameterType::Bytes), in the
    /// order of the request.
    pub fn bytes<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter_map(move |(n, value)| match value {
            Value::Bytes(bytes) if n == name => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// Sets the compiler for expressions that the built-in compiler rejects.
    #[must_use]
    pub fn with_compiler(self, compiler: Option<Arc<dyn ExpressionCompiler>>) -> Self {
        Self { compiler, ..self }
    }

    /// Returns the compiler for expressions that the built-in compiler rejects, or `None` if none
    /// was set.
    #[must_use]
    pub const fn compiler(&self) -> Option<&Arc<dyn ExpressionCompiler>> {
        self.compiler.as_ref()
    }

    /// Sets the reader of key files; without one, [`Arguments::read_key`] fails.
    #[must_use]
    pub fn with_key_reader(self, keys: Option<Arc<dyn KeyReader>>) -> Self {
        Self { keys, ..self }
    }

    /// Sets the service that resolves the names of hosts, networks, services and protocols in
    /// filter expressions, or `None` if there is none.
    #[must_use]
    pub fn with_name_resolver(self, names: Option<Arc<dyn NameResolver>>) -> Self {
        Self { names, ..self }
    }

    /// Returns the name resolver, or `None` if none was set.
    #[must_use]
    pub const fn name_resolver(&self) -> Option<&Arc<dyn NameResolver>> {
        self.names.as_ref()
    }

    /// Reads the key from the file named by this parameter.
    ///
    /// # Errors
    ///
    /// Fails if no key reader is set, or if the file contains no key or cannot be read.
    pub fn read_key(&self, name: &'static str) -> Result<Key, Mistake> {
        let Some(keys) = &self.keys else {
            return Err(Mistake::new(name, "keys are read by the process of their user alone"));
        };
        let read = keys.read_key(self.text(name).unwrap_or_default());
        read.map_err(|why| Mistake::new(name, why))
    }

    /// Sets the link types that input frames may have; `None` means that they are unknown.
    #[must_use]
    pub fn with_link_types(self, links: Option<Arc<[LinkType]>>) -> Self {
        Self { links, ..self }
    }

    /// Returns the link types of the input frames, or `None` if they are unknown before the first
    /// frame. Frames of other types are still possible, because a capture file may declare an
    /// interface after its first frames.
    #[must_use]
    pub fn link_types(&self) -> Option<&[LinkType]> {
        self.links.as_deref().filter(|links| !links.is_empty())
    }

    /// Sets the class ranges that the filter's outgoing arcs select. Arcs written as `|` or `|all`
    /// contribute no range.
    #[must_use]
    pub fn with_selected_classes(self, classes: Vec<(u32, u32)>) -> Self {
        Self { selected_classes: classes, ..self }
    }

    /// Returns true if an outgoing arc selects a class range within these bounds. A filter calls
    /// this to avoid producing output that no arc selects.
    #[must_use]
    pub fn selects_any_class(&self, bounds: ValueRange) -> bool {
        self.selected_classes.iter().any(|range| bounds.contains(*range))
    }

    /// Sets the seed that [`Arguments::seed`] returns, for a reproducible run.
    #[must_use]
    pub fn with_seed(self, seed: Option<u64>) -> Self {
        Self { seed, ..self }
    }

    /// Returns a seed for the filter's hash functions. The seed is random, and therefore secret,
    /// unless the run is reproducible. Calls may return different seeds, so a filter calls this
    /// once, when it is created.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(0))
    }

    /// Sets the session numbers reserved for the filter.
    #[must_use]
    pub fn with_session_numbers(self, numbers: SessionNumbers) -> Self {
        Self { session_numbers: numbers, ..self }
    }

    /// Adapts the arguments to one replica of the filter. `number` is the index of the replica, and
    /// `of` the number of replicas. The replica receives its share of the session numbers.
    #[must_use]
    pub fn for_replica(self, number: u32, of: u32) -> Self {
        let of = of.max(1);
        Self {
            replica: Some((number, of)),
            session_numbers: self.session_numbers.nth_share(number, of),
            ..self
        }
    }

    /// Returns the index of the replica, from 0, and the number of replicas; `(0, 1)` for a filter
    /// without replicas.
    #[must_use]
    pub fn replica_index_and_count(&self) -> (u32, u32) {
        self.replica.unwrap_or((0, 1))
    }

    /// Returns the session numbers reserved for the filter; no other filter in the request uses
    /// them.
    #[must_use]
    pub const fn session_numbers(&self) -> SessionNumbers {
        self.session_numbers
    }

    /// Sets whether the filter receives only blocks that its twin in the kernel left to it.
    #[must_use]
    pub fn with_fallback(self, is_fallback: bool) -> Self {
        Self { is_fallback, ..self }
    }

    /// Returns true if the filter receives only blocks that its twin in the kernel left to it. The
    /// filter then has no access to the state of the twin.
    #[must_use]
    pub const fn is_fallback_of_twin(&self) -> bool {
        self.is_fallback
    }

    /// Sets whether all input blocks are messages, records or bytes. Such blocks are parts of
    /// payloads, never packets.
    #[must_use]
    pub fn with_message_input(self, reads_messages: bool) -> Self {
        Self { reads_messages, ..self }
    }

    /// Returns true if all input is messages, records or bytes, and false if a block may be a
    /// packet or the payload of one.
    #[must_use]
    pub const fn reads_messages(&self) -> bool {
        self.reads_messages
    }

    /// Returns all parameter names with their values, in the order in which the values were set or
    /// added.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(n, v)| (*n, v))
    }
}
