//! Names of classes and sources for the output of sinks.

use crate::{OpenArguments, Origins};
use abi::Class;
use filter::Classes;

/// Names of classes and sources, which a sink uses to print the class and the origin of a block.
#[derive(Clone, Debug)]
pub(crate) struct ClassNames {
    /// Classes of all filters that may have classified a block.
    classifiers: Vec<Classes>,
    origins: Origins,
}

impl ClassNames {
    /// Copies the names of classes and sources from the arguments of the sink.
    pub(crate) fn new(opening: &OpenArguments<'_>) -> Self {
        Self { classifiers: opening.classes.to_vec(), origins: opening.origins.clone() }
    }

    /// Returns the name of the source with the index `number` if the path has more than one source,
    /// else `None`.
    pub(crate) fn origin_name(&self, number: u16) -> Option<&str> {
        self.origins.distinguishing_name(number)
    }

    /// Returns the number of a class as its classifier defines it, for output. Returns `None` if no
    /// filter has classified the block.
    pub(crate) fn class_value(&self, class: Class) -> Option<u32> {
        match class {
            Class::NONE => None,
            Class::YES if self.classifiers.iter().all(|one| *one == Classes::Same) => None,
            class => Some(Classes::number_of(&self.classifiers, class)),
        }
    }

    /// Returns the name of a class as its classifier defines it. Returns `None` if the class has no
    /// name, or not the same meaning for all classifiers that can have assigned it.
    pub(crate) fn class_name(&self, class: Class) -> Option<&'static str> {
        Classes::name_of(&self.classifiers, class)
    }

    /// Returns true if a sink prints this class. [`Class::YES`] is not printed unless the classes
    /// of the filter are numbers.
    pub(crate) fn is_class_printed(&self, class: Class) -> bool {
        class != Class::YES || self.classifiers.iter().any(|one| one.are_numbers())
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
        let names = ClassNames { classifiers: vec![classes], origins: origins(&["a", "b"]) };
        assert_eq!(names.class_name(Class(80)), Some("http"));
        assert_eq!(names.class_name(Class(81)), None);
        assert_eq!(
            (names.class_value(Class::ZERO), names.class_value(Class::NONE)),
            (Some(0), None)
        );
        assert_eq!(names.class_name(Class::ZERO), Some("reserved"));
        assert_eq!((names.origin_name(1), names.origin_name(2)), (Some("b"), None));
        let alone = ClassNames { classifiers: vec![Classes::YesNo], origins: origins(&["a"]) };
        assert_eq!((alone.origin_name(0), alone.class_value(Class::YES)), (None, Some(1)));
        let unnamed = ClassNames { classifiers: vec![Classes::Same], origins: origins(&[]) };
        assert_eq!(
            (unnamed.class_value(Class::YES), unnamed.class_value(Class(7))),
            (None, Some(7))
        );
        assert!(!alone.is_class_printed(Class::YES) && alone.is_class_printed(Class::NONE));
    }

    #[test]
    fn class_with_two_meanings_has_no_name() {
        let numbers = |high, names| Classes::Number {
            meaning: "a number",
            range: ValueRange { low: 0, high },
            names,
        };
        let protocols = numbers(255, &[("icmp", 1), ("udp", 17), ("both", 80)]);
        let ports = numbers(65_535, &[("http", 80), ("both", 80), ("quic", 443)]);
        let names = |classifiers: &[Classes]| ClassNames {
            classifiers: classifiers.to_vec(),
            origins: origins(&[]),
        };
        let met = names(&[protocols, ports]);
        assert_eq!(
            [17, 80, 443].map(|class| met.class_name(Class(class))),
            [None, None, Some("quic")]
        );
        assert_eq!((met.class_value(Class(17)), met.class_value(Class::ZERO)), (Some(17), Some(0)));
        let same = names(&[ports, ports]);
        assert_eq!(same.class_name(Class(80)), Some("http"));
        for other in [Classes::Same, Classes::YesNo] {
            let met = names(&[other, protocols]);
            assert_eq!((met.class_name(Class::YES), met.class_value(Class::YES)), (None, Some(1)));
            assert_eq!(met.class_name(Class(17)), Some("udp"));
            assert!(met.is_class_printed(Class::YES));
        }
    }
}
