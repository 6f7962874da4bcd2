//! `discard`: consumes and counts blocks. Used in requests whose filters are of interest, but not
//! their output.

use super::counting_sink::CountingSink;
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use filter::{Description, ReadDepth};

/// Description of `discard`, a sink that counts blocks and writes nothing.
pub const DISCARD: Description = Description {
    name: "discard",
    summary: "discard blocks, and report how many there were",
    details: "\
Discards its input. The report shows the number of blocks and the number of bytes in their views.
Reads no byte, so it adds no cost to the filters before it.",
    example: "replay web.pcap | tcp | discard",
    reads: ReadDepth::Nothing,
    emit_twin: Some(filter::PASS_THROUGH_TWIN),
    ..Description::SINK_DEFAULTS
};

/// The catalog entry of `discard`.
pub const ENTRY: SinkEntry = SinkEntry::new(&DISCARD, open);

fn open(_: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(CountingSink::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{batch_from_blocks, checked_arguments, frameless_block, sink_opening};
    use filter::Amount;

    #[test]
    fn discard_counts_only_live_blocks() {
        let given = checked_arguments(&DISCARD, &[]);
        let mut sink = open(&sink_opening(&given, &[])).unwrap();
        let mut batch = batch_from_blocks(&[
            frameless_block(b"one"),
            frameless_block(b"three"),
            frameless_block(b""),
        ]);
        batch.retain_lanes(0b110);
        sink.consume(&batch, 0).unwrap();
        assert_eq!(sink.amount_written(), Some(Amount { blocks: 2, bytes: 5 }));
        let rows = sink.finish().unwrap().rows;
        assert_eq!(rows, [("blocks".to_owned(), 2), ("bytes".to_owned(), 5)]);
    }
}
