//! The names of the sources of a path, by the number that their blocks carry
//! (`BlockMetadata::origin`).
//!
//! A source keeps its number for as long as the path lives, and one that comes by a change has the
//! next. So the list only grows, while sinks that stay through the change look into it: whoever
//! looks sees all names that there were when the block was given that it asks for.

use std::sync::{Arc, OnceLock};

/// The names of all sources that a path has and had.
#[derive(Clone, Debug, Default)]
pub struct Origins(Arc<Rest>);

/// The origins from here on, as far as they are known.
#[derive(Debug, Default)]
struct Rest(OnceLock<Box<Named>>);

#[derive(Debug)]
struct Named {
    name: String,
    rest: Rest,
}

impl Origins {
    /// These names, from origin 0 on.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        let all = Self::default();
        all.grow(names);
        all
    }

    /// All names are these from now on: those that there are, in the same places, and more.
    pub fn grow(&self, names: &[String]) {
        let mut rest = &*self.0;
        for name in names {
            let named = || Box::new(Named { name: name.clone(), rest: Rest::default() });
            rest = &rest.0.get_or_init(named).rest;
        }
    }

    /// The names, by origin.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(self.0.0.get(), |named| named.rest.0.get())
            .map(|named| named.name.as_str())
    }

    /// Returns their number.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.names().count()).unwrap_or(u16::MAX)
    }

    /// The name of a source, where there are several to tell apart.
    #[must_use]
    pub fn told_apart(&self, origin: u16) -> Option<&str> {
        self.names().nth(1)?;
        self.names().nth(origin.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v3_whoever_has_the_names_sees_those_that_come() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let all = Origins::new(&names[..1]);
        let seen = all.clone();
        assert_eq!((seen.told_apart(0), seen.told_apart(1), seen.count()), (None, None, 1));
        all.grow(&names);
        assert_eq!((seen.told_apart(0), seen.told_apart(2)), (Some("a"), Some("c")));
        assert_eq!((seen.told_apart(3), seen.count()), (None, 3));
        all.grow(&names[..2]);
        assert!(seen.names().eq(["a", "b", "c"]), "a name that was told stays");
    }
}
