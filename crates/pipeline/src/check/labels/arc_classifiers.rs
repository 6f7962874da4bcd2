//! Resolution of a label against the classifiers upstream of its arc.

use filter::prelude::Class as ClassValue;
use filter::{Classes as Answered, Description, ValueRange};

use crate::check::lower::Draft;
use crate::check::upstream::Classifiers;
use crate::classes::ClassSet;
use crate::language::label::truncate_word;
use crate::language::tree::{Classes, Label, LabelEntry, Name, Value};
use crate::language::{Diagnostic, Span, find_nearest_word};
use crate::registry::Registry;

/// The class that represents the number 0, because class 0 means that a filter returned no answer.
const CLASS_OF_ZERO: u32 = ClassValue::ZERO.0;

/// The classifiers upstream of an arc, against which the label on the arc is resolved.
pub(super) struct ArcClassifiers<'c> {
    classifiers: Vec<Classifier>,
    unknown: bool,
    registry: &'c dyn Registry,
}

/// A filter upstream of an arc that determines the class of a block on the arc.
struct Classifier {
    name: &'static str,
    /// The meaning of the class in messages, such as `a port`.
    class_meaning: &'static str,
    range: ValueRange,
    names: &'static [(&'static str, u32)],
    groups: &'static [(&'static str, ValueRange)],
}

impl<'c> ArcClassifiers<'c> {
    pub(super) fn new(
        upstream: &Classifiers,
        draft: &Draft<'_>,
        registry: &'c dyn Registry,
    ) -> Self {
        let entries = upstream.nodes.iter().filter_map(|id| draft.nodes[id.0].entry);
        let entries: Vec<&'static Description> = entries.collect();
        Self { unknown: upstream.is_incomplete, ..Self::from_filters(&entries, registry) }
    }

    /// Creates the classifiers from the list of all filters that determine the class.
    pub(super) fn from_filters(
        filters: &[&'static Description],
        registry: &'c dyn Registry,
    ) -> Self {
        let mut classifiers: Vec<Classifier> = Vec::new();
        for entry in filters {
            if classifiers.iter().any(|known| known.name == entry.name) {
                continue;
            }
            let (what, range, names) = match entry.classes {
                Answered::Same => continue,
                Answered::YesNo => ("yes or nothing", ValueRange { low: 1, high: 1 }, &[][..]),
                Answered::Number { meaning: what, range, names } => (what, range, names),
            };
            let (name, groups) = (entry.name, entry.class_groups);
            classifiers.push(Classifier { name, class_meaning: what, range, names, groups });
        }
        Self { classifiers, unknown: false, registry }
    }

    /// Returns the name of the first classifier that has a class or group with this name, or `None`
    /// if no classifier has one.
    pub(super) fn find_defining_classifier(&self, name: &str) -> Option<&'static str> {
        let has = |known: &&Classifier| {
            known.find_class(name).or_else(|| known.find_group(name)).is_some()
        };
        self.classifiers.iter().find(has).map(|known| known.name)
    }

    /// Returns the classes that a label selects. Reports an error in the label, and then returns
    /// all classes. Also returns all classes if the classes of the filters upstream are unknown.
    pub(super) fn label_classes(&self, label: &Label, mistakes: &mut Vec<Diagnostic>) -> ClassSet {
        let list = match &label.classes {
            Classes::All if label.inverted => {
                mistakes.push(
                    Diagnostic::error(label.span, "`|!all` passes nothing")
                        .why("`all` is every class, 0 included")
                        .hint("for what was not recognized write `|0`"),
                );
                return ClassSet::all();
            }
            Classes::All => return ClassSet::all(),
            Classes::List(list) => list,
        };
        let nothing =
            |class: &LabelEntry| matches!(class, LabelEntry::One(Value::Number { value: 0, .. }));
        if self.classifiers.is_empty() && !list.iter().all(nothing) {
            if !self.unknown {
                mistakes.push(self.missing_classifier_error(label));
            }
            return ClassSet::all();
        }
        let before = mistakes.len();
        let sets: Vec<ClassSet> =
            list.iter().filter_map(|class| self.classes_of_entry(class, mistakes)).collect();
        let classes = ClassSet::union_of(&sets);
        match (mistakes.len() > before || classes.is_empty(), label.inverted) {
            (true, _) => ClassSet::all(),
            (false, true) => classes.complement(),
            (false, false) => classes,
        }
    }

    /// Returns the classes that one entry of a label selects, or `None` after an error or if the
    /// classes are unknown.
    fn classes_of_entry(
        &self,
        class: &LabelEntry,
        mistakes: &mut Vec<Diagnostic>,
    ) -> Option<ClassSet> {
        let (low, high, span) = match class {
            LabelEntry::One(value) => {
                return self
                    .class_range_of_value(value, mistakes)
                    .map(|(low, high)| ClassSet::range(low, high));
            }
            LabelEntry::Range { low, high, span } => (low, high, *span),
        };
        let from = low
            .as_ref()
            .map(|value| self.class_range_of_value(value, mistakes).map(|(first, _)| first));
        let to = high
            .as_ref()
            .map(|value| self.class_range_of_value(value, mistakes).map(|(_, last)| last));
        let lowest = self.classifiers.iter().map(|known| known.range.low).min().unwrap_or(0);
        let highest =
            self.classifiers.iter().map(Classifier::highest_class).max().unwrap_or(CLASS_OF_ZERO);
        let from =
            from.map_or(Some(if lowest == 0 { CLASS_OF_ZERO } else { lowest }), |end| end)?;
        let to = to.map_or(Some(highest), |end| end)?;
        // A natural 0 is less than all other numbers, although its class is the largest.
        let set = match (from, to) {
            (CLASS_OF_ZERO, CLASS_OF_ZERO) => ClassSet::single(CLASS_OF_ZERO),
            (CLASS_OF_ZERO, to) => ClassSet::single(CLASS_OF_ZERO).union(&ClassSet::range(1, to)),
            (_, CLASS_OF_ZERO) => ClassSet::empty(),
            (from, to) => ClassSet::range(from, to),
        };
        if set.is_empty() {
            let mistake = Diagnostic::error(span, format!("the range `{class}` is empty"));
            mistakes.push(match (low, high) {
                (Some(low), Some(high)) => mistake.hint(format!("write `{high}:{low}`")),
                _ => mistake.why(self.bounds_text()),
            });
            return None;
        }
        Some(set)
    }

    /// Returns the range of classes that a value denotes, usually one class, or `None` after an
    /// error or if the classes are unknown.
    fn class_range_of_value(
        &self,
        value: &Value,
        mistakes: &mut Vec<Diagnostic>,
    ) -> Option<(u32, u32)> {
        match value {
            Value::Name(name) => self.class_range_of_name(name, mistakes),
            Value::Number { value: number, span, .. } => {
                let known =
                    *number == 0 || self.classifiers.iter().any(|known| known.can_return(*number));
                if known {
                    return Some((*number, *number));
                }
                if !self.unknown {
                    let what = format!("`{value}` is not a class of {}", self.classifier_names());
                    mistakes.push(Diagnostic::error(*span, what).why(self.bounds_text()));
                }
                None
            }
        }
    }

    /// Returns the range of classes that a name denotes, usually one class, or `None` after an
    /// error or if the classes are unknown.
    fn class_range_of_name(
        &self,
        name: &Name,
        mistakes: &mut Vec<Diagnostic>,
    ) -> Option<(u32, u32)> {
        let text = name.text.as_str();
        let (mut having, mut lacking) = (Vec::new(), Vec::new());
        for known in &self.classifiers {
            match known.find_class(text).or_else(|| known.find_group(text)) {
                Some(range) => having.push((known.name, range)),
                None => lacking.push(known.name),
            }
        }
        let mistake = match (having.first(), lacking.first()) {
            (Some((_, range)), None) if having.iter().all(|(_, other)| other == range) => {
                return Some(*range);
            }
            _ if self.unknown => return None,
            (Some((one, range)), None) => {
                let other = having.iter().find(|(_, other)| other != range);
                let (other, differs) = other.copied().unwrap_or((one, *range));
                let (this, that) = (range_text(*range), range_text(differs));
                let what = format!(
                    "`{}` is {this} of `{one}` and {that} of `{other}`",
                    truncate_word(text)
                );
                Diagnostic::error(name.span, what)
                    .why("both give the class on this arc")
                    .hint("write the arcs apart")
            }
            (Some((one, _)), Some(other)) => {
                let what = format!(
                    "`{}` is a class of `{one}`, but not of `{other}`",
                    truncate_word(text)
                );
                Diagnostic::error(name.span, what)
                    .why("both give the class on this arc")
                    .hint("write the arcs apart")
            }
            (None, _) => self.unknown_name_error(text, name.span),
        };
        mistakes.push(mistake);
        None
    }

    fn unknown_name_error(&self, name: &str, span: Span) -> Diagnostic {
        let names = || self.classifiers.iter().flat_map(Classifier::label_names);
        let what =
            format!("`{}` is not a class of {}", truncate_word(name), self.classifier_names());
        let mut mistake = Diagnostic::error(span, what);
        if names().next().is_none() {
            mistake = mistake.why(self.bounds_text());
        }
        if let Some(meant) = find_nearest_word(name, names()) {
            return mistake.hint(format!("did you mean `{meant}`?"));
        }
        if self.registry.find(name).is_some() {
            return mistake.hint(format!("for the filter write `| {name}`"));
        }
        const PROPOSED_NAMES_MAX: usize = 8;
        let range_text: Vec<String> =
            names().take(PROPOSED_NAMES_MAX).map(|name| format!("`{name}`")).collect();
        let more = if names().count() > PROPOSED_NAMES_MAX { ", …" } else { "" };
        match range_text.is_empty() {
            true => mistake,
            false => mistake.hint(format!("there are {}{more}", range_text.join(", "))),
        }
    }

    fn missing_classifier_error(&self, label: &Label) -> Diagnostic {
        let mistake = Diagnostic::error(label.span, "no filter before this arc has classes");
        match label.single_name().filter(|name| self.registry.find(name).is_some()) {
            Some(filter) => mistake.hint(format!("for the filter write `| {filter}`")),
            None => {
                mistake.hint("put a filter with several classes before it, for instance `dport`")
            }
        }
    }

    fn classifier_names(&self) -> String {
        let names: Vec<String> =
            self.classifiers.iter().take(4).map(|known| format!("`{}`", known.name)).collect();
        names.join(" or ")
    }

    fn bounds_text(&self) -> String {
        let bounds: Vec<String> =
            self.classifiers.iter().take(4).map(Classifier::bounds_text).collect();
        bounds.join("; ")
    }
}

fn range_text((low, high): (u32, u32)) -> String {
    if low == high { low.to_string() } else { format!("{low}:{high}") }
}

impl Classifier {
    fn can_return(&self, class: u32) -> bool {
        class < CLASS_OF_ZERO && (self.range.low..=self.range.high).contains(&class)
            || self.names.iter().any(|(_, value)| *value == class)
    }

    /// Returns the largest class that this filter can return, apart from the class that represents
    /// the number 0.
    fn highest_class(&self) -> u32 {
        let named = self.names.iter().map(|(_, value)| *value);
        named
            .chain([self.range.high])
            .filter(|class| *class < CLASS_OF_ZERO)
            .max()
            .unwrap_or(CLASS_OF_ZERO - 1)
    }

    /// Returns all names that a label may use for classes of this filter: the names of groups, then
    /// of classes.
    fn label_names(&self) -> impl Iterator<Item = &'static str> {
        let groups = self.groups.iter().map(|(name, _)| *name);
        groups.chain(self.names.iter().map(|(name, _)| *name))
    }

    /// Returns the class with this name, as a range of one class, or `None` if the name is unknown.
    fn find_class(&self, name: &str) -> Option<(u32, u32)> {
        let named = self
            .names
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| if *value == 0 { CLASS_OF_ZERO } else { *value });
        let class =
            named.or_else(|| (name == "zero" && self.range.low == 0).then_some(CLASS_OF_ZERO))?;
        Some((class, class))
    }

    /// Returns the range of the group with this name, or `None` if the name is unknown.
    fn find_group(&self, name: &str) -> Option<(u32, u32)> {
        let group = self.groups.iter().find(|(known, _)| *known == name);
        group.map(|(_, range)| (range.low, range.high))
    }

    fn bounds_text(&self) -> String {
        let Self { name, class_meaning: what, range, .. } = self;
        if range.low == range.high {
            return format!("`{name}` answers {what}");
        }
        let high = self.highest_class();
        match range.low {
            0 => format!("`{name}` answers {what}, 1 to {high} or `zero`"),
            low => format!("`{name}` answers {what}, {low} to {high}"),
        }
    }
}
