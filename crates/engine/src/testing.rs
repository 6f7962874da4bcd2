//! A filter with a bug, for the tests of what happens then. Only with the feature `testing`.

use filter::prelude::*;

/// What everybody knows about `panics`.
pub(crate) const PANICS: Description = Description {
    name: "panics",
    summary: "panic at blocks of one length; only in test builds",
    details: "Panics at every block with this many bytes in view; leaves the others as they are.",
    example: "replay web.pcap | panics 60 | count",
    kind: Kind::Inspection,
    parameters: &[Parameter::needed(
        "length",
        Type::Number { low: 0, high: u64::MAX },
        "the length of the blocks at which it panics",
    )],
    user: Some(make),
    ..Description::EMPTY
};

struct Panics(u64);

fn make(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::classify(Panics(arguments.number("length").unwrap_or(0))))
}

impl Classify for Panics {
    fn classify(&mut self, block: &mut Block<'_>, _cx: &mut Tell<'_>) -> Class {
        assert_ne!(u64::from(block.length()), self.0, "this filter panics on purpose");
        block.pointer.class
    }
}
