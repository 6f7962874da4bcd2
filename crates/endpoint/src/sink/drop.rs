//! `drop`: drops blocks on purpose.
//!
//! The sink writes nothing, and the ledger counts every block as dropped on purpose
//! ([`DropReason::ByRequest`](crate::DropReason::ByRequest)). If the source withholds frames from
//! the host, a dropped frame reaches no other process. If the source only observes frames, the host
//! still receives the dropped frame (CONTRACT 2). Use `discard` for blocks that have served their
//! purpose, and `drop` for unwanted blocks.

use super::counting_sink::CountingSink;
use super::discard::DISCARD;
use crate::{Failure, OpenArguments, Sink, SinkEntry};
use filter::Description;

/// Description of `drop`, a sink for unwanted blocks.
pub const DROP: Description = Description {
    name: "drop",
    summary: "drop unwanted blocks, and count them as dropped by request",
    details: "\
Discards its input. The ledger counts each block as dropped, `by request`, and the final report
shows the count. Frames taken from the host (`rx … take`) are lost; frames that are only observed
still reach the host. Reads no byte.",
    example: "replay web.pcap | udp |dns drop",
    ..DISCARD
};

/// The catalog entry of `drop`.
pub const ENTRY: SinkEntry = SinkEntry::new(&DROP, open);

fn open(_: &OpenArguments<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(CountingSink { counts_as_dropped: true, ..CountingSink::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DropReason;
    use crate::testing::{batch_from_blocks, checked_arguments, frameless_block, sink_opening};
    use filter::{Amount, Report};

    #[test]
    fn i6_dropped_blocks_are_counted_by_request() {
        let given = checked_arguments(&DROP, &[]);
        let mut sink = open(&sink_opening(&given, &[])).unwrap();
        let mut batch = batch_from_blocks(&[
            frameless_block(b"one"),
            frameless_block(b"three"),
            frameless_block(b""),
        ]);
        batch.retain_lanes(0b110);
        sink.consume(&batch, 0).unwrap();
        assert_eq!(sink.amount_written(), Some(Amount::default()));
        assert_eq!(
            sink.drops_by_reason(),
            [(DropReason::ByRequest, Amount { blocks: 2, bytes: 5 })]
        );
        assert_eq!(sink.finish().unwrap(), Report::default());
    }
}
