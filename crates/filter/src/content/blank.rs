//! `blank`: overwrites bytes in view.
//!
//! Input: any blocks. Output: the same block with some bytes overwritten, so that a capture can be
//! shared without its payload: `rx | ip | tcp | blank | pcap headers.pcap` preserves headers,
//! lengths and times. Checksums are not updated, so that the change is detectable. The filter
//! requests write access to the overwritten range only. [SL §6.1, rewriting]

use crate::prelude::*;

/// Catalog entry of `blank`, which overwrites a range of the view with a constant byte.
pub const BLANK: Description = Description {
    name: "blank",
    summary: "overwrite the bytes in view, all or a part of them",
    details: "\
Overwrites the bytes in view: all of them, or `length` bytes from offset `from`, as far as the view
extends. Class and checksums stay. `pcap` after it writes the whole frame with these bytes changed;
other branches still see the old bytes.",
    example: "replay web.pcap | udp | blank | pcap headers.pcap",
    kind: FilterKind::Editing,
    parameters: &[
        Parameter::optional(
            "from",
            Type::Number { low: 0, high: BYTES_MAX },
            "offset of the first byte in the view; 0 if absent",
        ),
        Parameter::optional(
            "length",
            Type::Number { low: 1, high: BYTES_MAX },
            "number of bytes; all the others if absent",
        ),
        Parameter::optional(
            "with",
            Type::Number { low: 0, high: 255 },
            "value of the new bytes; 0 if absent",
        ),
    ],
    user: Some(make_filter),
    ..Description::EMPTY
};

const BYTES_MAX: u64 = 1 << 20;

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let number = |name| arguments.number(name).and_then(|n| usize::try_from(n).ok());
    Ok(Filter::edit(Blank {
        from: number("from").unwrap_or(0),
        length: number("length").unwrap_or(usize::MAX),
        with: u8::try_from(number("with").unwrap_or(0)).unwrap_or(0),
    }))
}

struct Blank {
    from: usize,
    length: usize,
    with: u8,
}

impl Edit for Blank {
    fn edit(&mut self, block: &mut Editable<'_>, _: &mut ClassifyContext<'_>) -> Class {
        let length = block.length().saturating_sub(self.from).min(self.length);
        if length > 0
            && let Some(bytes) = block.write_part(self.from, length, OldBytes::Discard)
        {
            bytes.fill(self.with);
        }
        block.class()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Arena, Frame, Node, Space};

    fn run_blank(words: &[&str]) -> Vec<u8> {
        let arena = Arena::new(8);
        let mut space = Space::new(&arena);
        let batch = space.batch(&[Frame::new(1, b"0123456789")]);
        let mut node = Node::new(&BLANK, words).expect("arguments");
        let left = node.pass(batch, &mut space, 0);
        left[0].block(0).frame.to_vec()
    }

    #[test]
    fn whole_view_or_a_part_is_overwritten() {
        assert_eq!(run_blank(&[]), [0; 10]);
        assert_eq!(run_blank(&["with=46", "from=8"]), b"01234567..");
        assert_eq!(run_blank(&["with=46", "from=2", "length=3"]), b"01...56789");
        assert_eq!(run_blank(&["from=10"]), b"0123456789", "there is no such byte");
    }
}
