//! The typed arguments of one filter in a request: text checked against the parameters once, by
//! `pipeline`, so that filters only ask for values.

use super::{Compiler, Description, Key, Keys, Names, SessionNumbers};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use wire::LinkType;

/// One argument's value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// A number, a size in bytes, a duration in nanoseconds or a factor in millionths.
    Number(u64),
    /// A flag.
    Flag(bool),
    /// A text, a path or one of several words.
    Text(String),
    /// Bytes that need not be text.
    Bytes(Vec<u8>),
}

/// The arguments of one filter, defaults included, and whom it may ask for help. They are equal if
/// their values are.
#[derive(Clone, Debug, Default)]
pub struct Arguments {
    values: Vec<(&'static str, Value)>,
    compiler: Option<Arc<dyn Compiler>>,
    keys: Option<Arc<dyn Keys>>,
    names: Option<Arc<dyn Names>>,
    /// The link types of the frames that may come, where the sources are known to have no other.
    links: Option<Arc<[LinkType]>>,
    /// The ranges of classes that arcs of the filter name.
    asked: Vec<(u32, u32)>,
    /// Seed that replaces randomness in a filter, where a run is to be reproducible.
    seed: Option<u64>,
    /// The numbers that it may give to sessions.
    numbers: SessionNumbers,
    /// Index of the replica that this is for, and the number of replicas.
    copy: Option<(u32, u32)>,
    /// True if the filter stands behind its own twin.
    is_reserve: bool,
}

impl PartialEq for Arguments {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl Eq for Arguments {}

/// A user's mistake in an argument.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mistake {
    /// The parameter, if it is known which.
    pub parameter: Option<&'static str>,
    /// Index of the value, from 0, in a parameter that was given several times.
    pub which: usize,
    /// Byte range in the argument's text, if known.
    pub at: Option<std::ops::Range<usize>>,
    /// The error.
    pub what: String,
    /// Suggestion for a fix.
    pub hint: Option<String>,
}

impl Mistake {
    /// A mistake in the argument for `parameter`.
    #[must_use]
    pub fn new(parameter: &'static str, what: impl Into<String>) -> Self {
        Self { parameter: Some(parameter), which: 0, at: None, what: what.into(), hint: None }
    }

    /// The same mistake with what to do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistake {}

impl Arguments {
    /// The defaults of a description.
    ///
    /// # Panics
    /// When a default is not a value of its parameter: a mistake in the description, which the
    /// catalog test finds.
    #[must_use]
    pub fn defaults(description: &Description) -> Self {
        let mut arguments = Self::default();
        for p in description.parameters {
            if let Some(text) = p.default {
                let value = p.parse(text).expect("a default is a value of its parameter");
                arguments.set(p.name, value);
            }
        }
        arguments
    }

    /// Sets a value.
    pub fn set(&mut self, name: &'static str, value: Value) {
        match self.values.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.values.push((name, value)),
        }
    }

    /// Adds a value of a parameter that may be given several times.
    pub fn add(&mut self, name: &'static str, value: Value) {
        self.values.push((name, value));
    }

    /// The value of this parameter, if it was given or has a default.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// A number, size or duration.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// Returns true if this flag is set.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Flag(true))
    }

    /// A text, path or word.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(t)) => Some(t),
            _ => None,
        }
    }

    /// The values of a parameter that takes bytes, in the order in which they were written.
    pub fn bytes<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter().filter_map(move |(n, value)| match value {
            Value::Bytes(bytes) if n == name => Some(bytes.as_slice()),
            _ => None,
        })
    }

    /// The same arguments with this compiler at hand, or with none.
    #[must_use]
    pub fn served_by(self, compiler: Option<Arc<dyn Compiler>>) -> Self {
        Self { compiler, ..self }
    }

    /// Returns the compiler for expressions that our own compiler does not know.
    #[must_use]
    pub const fn compiler(&self) -> Option<&Arc<dyn Compiler>> {
        self.compiler.as_ref()
    }

    /// The same arguments with this reader of keys at hand, or with none.
    #[must_use]
    pub fn trusted_with(self, keys: Option<Arc<dyn Keys>>) -> Self {
        Self { keys, ..self }
    }

    /// The same arguments with this one at hand who answers names, or with none.
    #[must_use]
    pub fn answered_by(self, names: Option<Arc<dyn Names>>) -> Self {
        Self { names, ..self }
    }

    /// Returns the resolver for the names in an expression.
    #[must_use]
    pub const fn names(&self) -> Option<&Arc<dyn Names>> {
        self.names.as_ref()
    }

    /// The key that lies in the file that this parameter names.
    pub fn key(&self, name: &'static str) -> Result<Key, Mistake> {
        let Some(keys) = &self.keys else {
            return Err(Mistake::new(name, "keys are read by the process of their user alone"));
        };
        let read = keys.key(self.text(name).unwrap_or_default());
        read.map_err(|why| Mistake::new(name, why))
    }

    /// The same arguments for a filter to which frames of these link types come; `None`: of types
    /// that are not known before the first frame.
    #[must_use]
    pub fn behind(self, links: Option<Arc<[LinkType]>>) -> Self {
        Self { links, ..self }
    }

    /// The link types of the frames that come, if they are known before the first frame. Frames of
    /// other types may come all the same: a capture can name an interface late.
    #[must_use]
    pub fn links(&self) -> Option<&[LinkType]> {
        self.links.as_deref().filter(|links| !links.is_empty())
    }

    /// The same arguments for a filter whose arcs name these ranges of classes. Plain pipes and
    /// `|all` name none.
    #[must_use]
    pub fn asked_for(self, asked: Vec<(u32, u32)>) -> Self {
        Self { asked, ..self }
    }

    /// Returns true if an arc names classes within this range: for output that a filter makes only
    /// on request.
    #[must_use]
    pub fn asks(&self, low: u32, high: u32) -> bool {
        self.asked.iter().any(|(from, to)| low <= *from && *to <= high)
    }

    /// The same arguments for a filter whose random numbers are those of another run.
    #[must_use]
    pub fn seeded(self, seed: Option<u64>) -> Self {
        Self { seed, ..self }
    }

    /// A number that nobody outside can guess, or the one of the run that is repeated. Is asked for
    /// when a filter is made, never later.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(0))
    }

    /// The same arguments for a filter that gives these numbers to sessions, and no others.
    #[must_use]
    pub fn numbering(self, numbers: SessionNumbers) -> Self {
        Self { numbers, ..self }
    }

    /// The same arguments for replica `number`, from 0, of `of` that share the work.
    #[must_use]
    pub fn for_copy(self, number: u32, of: u32) -> Self {
        let of = of.max(1);
        Self { copy: Some((number, of)), numbers: self.numbers.split(number, of), ..self }
    }

    /// Returns the index of the replica that this is for, and the number of replicas.
    #[must_use]
    pub fn copy(&self) -> (u32, u32) {
        self.copy.unwrap_or((0, 1))
    }

    /// The numbers that the filter may give to sessions: no other filter of the request gives them.
    #[must_use]
    pub const fn numbers(&self) -> SessionNumbers {
        self.numbers
    }

    /// The same arguments for the filter that stands behind its own twin.
    #[must_use]
    pub fn in_reserve(self, is_reserve: bool) -> Self {
        Self { is_reserve, ..self }
    }

    /// Returns true if the filter gets only what a program in the kernel was unsure of: then it
    /// lacks the state of its twin.
    #[must_use]
    pub const fn is_reserve(&self) -> bool {
        self.is_reserve
    }

    /// All values, in the order in which they were set or added.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.values.iter().map(|(n, v)| (*n, v))
    }
}
