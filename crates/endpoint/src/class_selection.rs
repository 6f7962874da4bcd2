//! The classes that the arcs after a source select.

use abi::Class;
use std::fmt;

/// The set of the classes that at least one arc after a source selects; by default, all classes.
#[derive(Clone, Copy, Default)]
pub struct ClassSelection<'s>(Option<&'s dyn Fn(Class) -> bool>);

impl<'s> ClassSelection<'s> {
    /// Creates a set that contains the classes for which `takes` returns true.
    #[must_use]
    pub fn new(takes: &'s dyn Fn(Class) -> bool) -> Self {
        Self(Some(takes))
    }

    /// Returns true if the set contains the class.
    #[inline]
    #[must_use]
    pub fn contains(&self, class: Class) -> bool {
        self.0.is_none_or(|takes| takes(class))
    }
}

impl fmt::Debug for ClassSelection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "ClassSelection(some)" } else { "TakenClasses(all)" })
    }
}
