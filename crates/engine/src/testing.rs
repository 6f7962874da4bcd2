//! A filter with a bug and one with bad intentions, for the tests of what happens then. Only with
//! the feature `testing`.

use filter::prelude::*;
use sys::misdeeds::{DEEDS, Deed};

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

/// What everybody knows about `hostile`.
pub(crate) const HOSTILE: Description = Description {
    name: "hostile",
    summary: "do harm at the hundredth block; only in test builds",
    details: "Leaves blocks as they are, until it does what its name says.",
    example: "replay web.pcap | hostile fork untrusted=yes | discard",
    kind: Kind::Inspection,
    parameters: &[Parameter::needed("deed", Type::OneOf(DEEDS), "what it does")],
    user: Some(make_hostile),
    ..Description::EMPTY
};

/// At which block it does it.
const HUNDREDTH: u32 = 100;

struct Hostile {
    deed: Deed,
    left: u32,
}

fn make_hostile(arguments: &Arguments) -> Result<Filter, Mistake> {
    let deed = Deed::prepare(arguments.text("deed").unwrap_or_default());
    Ok(Filter::classify(Hostile { deed, left: HUNDREDTH }))
}

impl Classify for Hostile {
    fn classify(&mut self, block: &mut Block<'_>, _cx: &mut Tell<'_>) -> Class {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.deed.act();
        }
        block.pointer.class
    }
}

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
