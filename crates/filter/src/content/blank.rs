//! `blank`: overwrites bytes in view, or the payload of a packet.
//!
//! Input: any blocks. Output: the same block with some bytes overwritten, so that a capture can be
//! shared without its payload: `rx | ip | tcp | blank | pcap headers.pcap` preserves headers,
//! lengths and times. Checksums are not updated, so that the change is detectable. The filter
//! requests write access to the overwritten range only. [SL §6.1, rewriting]
//!
//! A view may be shorter than the payload: `tcp` leaves out bytes that an earlier segment carried,
//! and the length field of UDP may end before the packet does. `pcap`, however, writes whole
//! frames. Without a range, the filter therefore overwrites the frame up to its end, unless its
//! blocks are messages, which are parts of payloads.

use crate::prelude::*;

/// Catalog entry of `blank`, which overwrites a range of the view with a constant byte.
pub const BLANK: Description = Description {
    name: "blank",
    summary: "overwrite the payload of packets, or bytes in view",
    details: "\
Overwrites the payload of each packet, to the end of its frame: also bytes outside the view, such as
those that `tcp` leaves out because an earlier segment carried them. After `eth` or `ip`, everything
from the view on is payload; directly after a source, the whole frame. With `from` or `length`,
exactly these bytes of the view are overwritten, as far as it extends. After a filter that gives
messages, such as `http`, the bytes in view are: the rest of a packet may belong to another message,
and stays. Gaps pass as they are.

Class and checksums stay. `pcap` after it writes the whole frame with these bytes changed; other
branches still see the old bytes.",
    example: "replay web.pcap | udp | blank | pcap headers.pcap",
    kind: FilterKind::Editing,
    parameters: &[
        Parameter::optional(
            "from",
            ParameterType::Number { low: 0, high: RANGE_BYTES_MAX },
            "offset of the first byte in the view; 0 if absent",
        ),
        Parameter::optional(
            "length",
            ParameterType::Number { low: 1, high: RANGE_BYTES_MAX },
            "number of bytes; all the others if absent",
        ),
        Parameter::optional(
            "with",
            ParameterType::Number { low: 0, high: 255 },
            "value of the new bytes; 0 if absent",
        ),
    ],
    analysis: ArgumentAnalysis {
        context_setting: Some(Arguments::reads_messages),
        ..ArgumentAnalysis::NONE
    },
    constructor: Some(make_filter),
    ..Description::FILTER_DEFAULTS
};

const RANGE_BYTES_MAX: u64 = 1 << 20;

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let number = |name| arguments.number(name).and_then(|n| usize::try_from(n).ok());
    let (from, length) = (number("from"), number("length"));
    let is_range = from.is_some() || length.is_some();
    Ok(Filter::edit(BlankFilter {
        from: from.unwrap_or(0),
        length: length.unwrap_or(usize::MAX),
        with: u8::try_from(number("with").unwrap_or(0)).unwrap_or(0),
        whole_payload: !is_range && !arguments.reads_messages(),
    }))
}

struct BlankFilter {
    from: usize,
    length: usize,
    with: u8,
    /// True if each frame is overwritten up to its end. Overwriting starts at the payload or, if
    /// the payload is unknown or the view begins earlier, at the start of the view.
    whole_payload: bool,
}

impl Edit for BlankFilter {
    fn edit(&mut self, block: &mut EditableBlock<'_>, _: &mut ClassifyContext<'_>) -> Class {
        let bytes = match self.whole_payload && block.marks.is_frame() {
            true => {
                let Marks { view, payload, captured, .. } = block.marks;
                let known = payload != Marks::UNKNOWN_OFFSET;
                let from = if known { view.min(payload.into()) } else { view };
                let length = captured.saturating_sub(from) as usize;
                (length > 0).then(|| block.write_frame(from as usize, length, OldBytes::Discard))
            }
            false => {
                let length = block.length().saturating_sub(self.from).min(self.length);
                (length > 0).then(|| block.write_part(self.from, length, OldBytes::Discard))
            }
        };
        if let Some(bytes) = bytes.flatten() {
            bytes.fill(self.with);
        }
        block.class()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{
        Arena, Fragment, Frame, Node, Space, answer_through_chain, parse_arguments, run_fragments,
    };
    use crate::transport::udp::UDP;

    fn run_blank(words: &[&str]) -> Vec<u8> {
        let arena = Arena::new(8);
        let mut space = Space::new(&arena);
        let batch = space.batch(&[Frame::new(1, b"0123456789")]);
        let mut node = Node::new(&BLANK, words).expect("arguments");
        let left = node.process_batch(batch, &mut space, 0);
        left[0].block(0).frame.to_vec()
    }

    #[test]
    fn whole_view_or_a_part_is_overwritten() {
        assert_eq!(run_blank(&[]), [0; 10]);
        assert_eq!(run_blank(&["with=46", "from=8"]), b"01234567..");
        assert_eq!(run_blank(&["with=46", "from=2", "length=3"]), b"01...56789");
        assert_eq!(run_blank(&["from=10"]), b"0123456789", "there is no such byte");
    }

    /// Runs `udp | blank` on a datagram with a view of four bytes, followed by six more bytes.
    /// Returns the bytes of the frame after the UDP header.
    fn run_blank_after_udp(words: &[&str], reads_messages: bool) -> Vec<u8> {
        let mut frame = Frame::udp(1, 2, b"0123");
        frame.bytes.extend(b"behind");
        let arena = Arena::new(8);
        let mut space = Space::new(&arena);
        let mut udp = Node::new(&UDP, &[]).expect("arguments");
        let mut batch = udp.process_batch(space.batch(&[frame]), &mut space, 0);
        let arguments = parse_arguments(&BLANK, words).expect("arguments");
        let mut node = Node::new(&BLANK, words).expect("arguments");
        node.filter = make_filter(&arguments.with_message_input(reads_messages)).expect("a filter");
        let left = node.process_batch(batch.remove(0), &mut space, 0);
        left[0].block(0).frame[42..].to_vec()
    }

    #[test]
    fn payload_outside_the_view_is_overwritten() {
        assert_eq!(run_blank_after_udp(&["with=46"], false), b"..........");
        assert_eq!(run_blank_after_udp(&["with=46"], true), b"....behind", "a message is its view");
        assert_eq!(run_blank_after_udp(&["with=46", "from=1"], false), b"0...behind");
        assert_eq!(run_blank_after_udp(&["with=46", "length=3"], false), b"...3behind");
    }

    #[test]
    fn headers_before_the_payload_are_unchanged() {
        let frame = Frame::udp(1, 2, b"0123");
        let found =
            answer_through_chain(&[(&UDP, &[]), (&BLANK, &[])], std::slice::from_ref(&frame));
        assert_eq!((found[0].view, found[0].length, &found[0].bytes[..]), (42, 4, &[0; 4][..]));
    }

    #[test]
    fn gaps_and_descriptions_pass_unchanged() {
        for words in [&[][..], &["from=1"], &["length=3"]] {
            let mut node = Node::new(&BLANK, words).unwrap();
            let pieces = [Fragment::description(1), Fragment::hole(1, 700)];
            let found = run_fragments(&mut node, &pieces);
            assert_eq!(found.iter().map(|part| part.length).collect::<Vec<_>>(), [0, 700]);
            assert_eq!(node.counts.no_room.blocks, 0);
        }
    }
}
