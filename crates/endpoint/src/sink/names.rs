//! The names of classes and sources, for sinks.

use crate::{Opening, Origins};
use abi::Class;
use filter::Classes;

/// The meaning of the numbers that blocks carry.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    classes: Classes,
    origins: Origins,
}

impl Names {
    /// Takes the names from the opening.
    pub(crate) fn new(opening: &Opening<'_>) -> Self {
        Self { classes: opening.classes, origins: opening.origins.clone() }
    }

    /// The source's name, where there are several to tell apart.
    pub(crate) fn origin(&self, number: u16) -> Option<&str> {
        self.origins.told_apart(number)
    }

    /// The value of a class as its filter means it: `zero` is 0 again; nothing if the filter did
    /// not answer, or if there was none that could.
    pub(crate) fn class(&self, class: Class) -> Option<u32> {
        match (self.classes, class) {
            (_, Class::NONE) | (Classes::Same, Class::YES) => None,
            (Classes::Number { .. }, Class::ZERO) => Some(0),
            (_, Class(value)) => Some(value),
        }
    }

    /// The name that the filter gave to this class.
    pub(crate) fn class_name(&self, class: Class) -> Option<&'static str> {
        let Classes::Number { names, .. } = self.classes else { return None };
        let value = self.class(class)?;
        names.iter().find(|(_, named)| *named == value).map(|(name, _)| *name)
    }

    /// Returns true if the class says more than that the block exists.
    pub(crate) fn class_matters(&self, class: Class) -> bool {
        match self.classes {
            Classes::Number { .. } => true,
            Classes::YesNo | Classes::Same => class != Class::YES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use filter::ValueRange;

    fn origins(names: &[&str]) -> Origins {
        Origins::new(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn numbers_have_the_names_that_the_classifier_gave() {
        let classes = Classes::Number {
            what: "the port",
            range: ValueRange { low: 0, high: 65_535 },
            names: &[("http", 80), ("reserved", 0)],
        };
        let names = Names { classes, origins: origins(&["a", "b"]) };
        assert_eq!(names.class_name(Class(80)), Some("http"));
        assert_eq!(names.class_name(Class(81)), None);
        assert_eq!((names.class(Class::ZERO), names.class(Class::NONE)), (Some(0), None));
        assert_eq!(names.class_name(Class::ZERO), Some("reserved"));
        assert_eq!((names.origin(1), names.origin(2)), (Some("b"), None));
        let alone = Names { classes: Classes::YesNo, origins: origins(&["a"]) };
        assert_eq!((alone.origin(0), alone.class(Class::YES)), (None, Some(1)));
        let untold = Names { classes: Classes::Same, origins: origins(&[]) };
        assert_eq!((untold.class(Class::YES), untold.class(Class(7))), (None, Some(7)));
        assert!(!alone.class_matters(Class::YES) && alone.class_matters(Class::NONE));
    }
}
