//! Names of the sources of a path, indexed by `BlockMetadata::origin`.
//!
//! An origin stays valid for the lifetime of the path. A source that is added while the path runs
//! gets the next number. The list is append-only, and is shared with the sinks, so a running sink
//! can look up the name of every source whose blocks it receives.

use std::sync::{Arc, OnceLock};

/// A shared, append-only list of the names of a path's sources, including sources that have been
/// removed.
#[derive(Clone, Debug, Default)]
pub struct Origins(Arc<OriginTail>);

/// The part of the list that follows a name, or the entire list. It is unset while it contains no
/// names.
#[derive(Debug, Default)]
struct OriginTail(OnceLock<Box<OriginNode>>);

#[derive(Debug)]
struct OriginNode {
    name: String,
    rest: OriginTail,
}

impl Origins {
    /// Creates a list with these names. The first name belongs to the source with the index 0.
    #[must_use]
    pub fn new(names: &[String]) -> Self {
        let all = Self::default();
        all.extend_to(names);
        all
    }

    /// Appends new names to the list, so that it equals `names`. `names` must begin with the
    /// current names, which are not replaced.
    pub fn extend_to(&self, names: &[String]) {
        let mut rest = &*self.0;
        for name in names {
            let named = || Box::new(OriginNode { name: name.clone(), rest: OriginTail::default() });
            rest = &rest.0.get_or_init(named).rest;
        }
    }

    /// Returns the names of the sources, in the order of the sources' indices.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(self.0.0.get(), |named| named.rest.0.get())
            .map(|named| named.name.as_str())
    }

    /// Returns the number of names in the list, including names of removed sources.
    #[must_use]
    pub fn count(&self) -> u16 {
        u16::try_from(self.names().count()).unwrap_or(u16::MAX)
    }

    /// Returns the name of the source with the index `origin` if the path has more than one source,
    /// else `None`.
    #[must_use]
    pub fn distinguishing_name(&self, origin: u16) -> Option<&str> {
        self.names().nth(1)?;
        self.names().nth(origin.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v3_clones_of_origins_see_appended_names() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let all = Origins::new(&names[..1]);
        let shared = all.clone();
        assert_eq!(
            (shared.distinguishing_name(0), shared.distinguishing_name(1), shared.count()),
            (None, None, 1)
        );
        all.extend_to(&names);
        assert_eq!(
            (shared.distinguishing_name(0), shared.distinguishing_name(2)),
            (Some("a"), Some("c"))
        );
        assert_eq!((shared.distinguishing_name(3), shared.count()), (None, 3));
        all.extend_to(&names[..2]);
        assert!(shared.names().eq(["a", "b", "c"]), "existing names are not removed");
    }
}
