//! `count`: counts blocks and the bytes in their views.
//!
//! In: anything. Out: the same. Sees rich pointers, no bytes. Its two numbers are one private
//! session of plain data, so that they move with the filter. [SL §6.1 Table I]

use crate::prelude::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What everybody knows about `count`.
pub const COUNT: Description = Description {
    name: "count",
    summary: "count blocks and bytes",
    details: "\
Counts the blocks that go by and the bytes in their views, and reports both when the path stops.
Leaves class and view as they came.",
    example: "replay web.pcap | count | discard",
    kind: Kind::Statistics,
    reads: Reads::Nothing,
    keeps: Keeps::Private,
    reports: true,
    user: Some(|_| Ok(Filter::statistics(Count::default()))),
    ..Description::EMPTY
};

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Seen {
    blocks: u64,
    bytes: u64,
}

impl Session for Seen {}

#[derive(Default)]
struct Count {
    seen: Sessions<Seen>,
}

impl Statistics for Count {
    fn record(&mut self, tags: Tags<'_>, _now: Time) {
        let seen = self.seen.of(PRIVATE);
        for (pointer, _) in tags.blocks() {
            seen.blocks += 1;
            seen.bytes += u64::from(pointer.length());
        }
    }

    fn report(&self) -> Report {
        let seen = self.seen.get(PRIVATE).copied().unwrap_or_default();
        Report { rows: vec![("blocks".into(), seen.blocks), ("bytes".into(), seen.bytes)] }
    }

    fn state(&mut self) -> Option<&mut dyn State> {
        Some(&mut self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Frame, report};

    #[test]
    fn blocks_and_bytes() {
        let frames: Vec<Frame> = (0..100).map(|n| Frame::udp(1, 2, &vec![0; n])).collect();
        let rows = report(&COUNT, &[], &frames);
        assert_eq!(rows, [("blocks".into(), 100), ("bytes".into(), 100 * 42 + 99 * 50)]);
        assert_eq!(report(&COUNT, &[], &[]), [("blocks".into(), 0), ("bytes".into(), 0)]);
    }
}
