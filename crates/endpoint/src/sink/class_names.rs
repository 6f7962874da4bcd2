//! Names of classes and sources for the output of sinks.

use crate::{OpenArguments, Origins};
use abi::Class;
use filter::Classes;

/// Names of classes and sources, which a sink uses to print the class and the origin of a block.
#[derive(Clone, Debug)]
pub(crate) struct ClassNames {
    classes: Classes,
    origins: Origins,
}

impl ClassNames {
    /// Copies the names of classes and sources from the arguments of the sink.
    pub(crate) fn new(opening: &OpenArguments<'_>) -> Self {
        Self { classes: opening.classes, origins: opening.origins.clone() }
    }

    /// Returns the name of the source with the index `number` if the path has more than one source,
    /// else `None`.
    pub(crate) fn origin_name(&self, number: u16) -> Option<&str> {
        self.origins.distinguishing_name(number)
    }

    /// Returns the number of a class as its classifier defines it, for output. Returns `None` if no
    /// filter has classified the block.
    pub(crate) fn class_value(&self, class: Class) -> Option<u32> {
        match (self.classes, class) {
            (_, Class::NONE) | (Classes::Same, Class::YES) => None,
            (Classes::Number { .. }, Class::ZERO) => Some(0),
            (_, Class(value)) => Some(value),
        }
    }

    /// Returns the name of a class as its classifier defines it, or `None` if the class has no
    /// name.
    pub(crate) fn class_name(&self, class: Class) -> Option<&'static str> {
        let Classes::Number { names, .. } = self.classes else { return None };
        let value = self.class_value(class)?;
        names.iter().find(|(_, named)| *named == value).map(|(name, _)| *name)
    }

    /// Returns true if a sink prints this class. [`Class::YES`] is not printed unless the classes
    /// of the filter are numbers.
    pub(crate) fn is_class_printed(&self, class: Class) -> bool {
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
    fn classes_have_the_names_of_their_classifier() {
        let classes = Classes::Number {
            meaning: "the port",
            range: ValueRange { low: 0, high: 65_535 },
            names: &[("http", 80), ("reserved", 0)],
        };
        let names = ClassNames { classes, origins: origins(&["a", "b"]) };
        assert_eq!(names.class_name(Class(80)), Some("http"));
        assert_eq!(names.class_name(Class(81)), None);
        assert_eq!(
            (names.class_value(Class::ZERO), names.class_value(Class::NONE)),
            (Some(0), None)
        );
        assert_eq!(names.class_name(Class::ZERO), Some("reserved"));
        assert_eq!((names.origin_name(1), names.origin_name(2)), (Some("b"), None));
        let alone = ClassNames { classes: Classes::YesNo, origins: origins(&["a"]) };
        assert_eq!((alone.origin_name(0), alone.class_value(Class::YES)), (None, Some(1)));
        let unnamed = ClassNames { classes: Classes::Same, origins: origins(&[]) };
        assert_eq!(
            (unnamed.class_value(Class::YES), unnamed.class_value(Class(7))),
            (None, Some(7))
        );
        assert!(!alone.is_class_printed(Class::YES) && alone.is_class_printed(Class::NONE));
    }
}
