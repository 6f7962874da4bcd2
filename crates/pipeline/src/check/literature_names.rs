//! Filter names used in the literature, with the equivalent filters of this program.

use crate::registry::Registry;

/// Names from the literature that no filter of this program has, each with a hint. A hint is given
/// only if every filter that it names in backticks is in the registry.
const LITERATURE_NAMES: &[(&str, &str)] = &[
    (
        "log",
        "`json` writes a line per block, `weblog access.log` one per web request (after `http`), \
         `print` shows blocks",
    ),
    (
        "ids",
        "`regex \"PATTERN\"` and `match \"TEXT\"` find known attacks, and `json` reports where",
    ),
    ("gzip", "`compress` makes gzip members of blocks, and `exec \"gzip\"` runs the program"),
    ("gunzip", "`decompress` undoes `compress`, and `exec \"gunzip\"` runs the program"),
];

/// Returns the hint for a name from the literature. Returns `None` if the name is not listed, or if
/// the registry lacks a filter named in the hint.
pub(super) fn literature_hint(name: &str, registry: &dyn Registry) -> Option<&'static str> {
    let (_, hint) = LITERATURE_NAMES.iter().find(|(known, _)| *known == name)?;
    filters_in_hint(hint).all(|filter| registry.find(filter).is_some()).then_some(*hint)
}

/// Returns the filter names in a hint.
fn filters_in_hint(hint: &str) -> impl Iterator<Item = &str> {
    let quoted = hint.split('`').skip(1).step_by(2);
    quoted.filter_map(|text| text.split_whitespace().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_hint_names_a_filter() {
        for (name, hint) in LITERATURE_NAMES {
            assert!(filters_in_hint(hint).next().is_some(), "{name}");
        }
        assert_eq!(filters_in_hint("`a b` or `c`").collect::<Vec<_>>(), ["a", "c"]);
    }
}
