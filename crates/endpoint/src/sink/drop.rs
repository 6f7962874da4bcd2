//! `drop`: ends blocks on purpose, and has the ledger say so.
//!
//! In: anything. Out: nothing; every block is in the ledger as dropped by request. Where frames
//! were taken from the host, they end here for everybody; what is only observed goes on to the host
//! all the same (CONTRACT 2). `discard` is for what has served its purpose, `drop` for what nobody
//! wants.

use crate::{DropReason, Failure, Opening, Sink, SinkEntry};
use filter::{Amount, Batch, Description, Forms, Gives, Kind, Reads, Report, Time};

/// The description of `drop`.
pub const DROP: Description = Description {
    name: "drop",
    summary: "end unwanted blocks, and count them as dropped by request",
    details: "\
Takes blocks and throws them away. The ledger counts each as dropped, `by request`, so that a run
that drops says so at its end. Frames that were taken from the host (`take`) end here; what is only
observed reaches the host all the same. It reads no byte.",
    example: "replay web.pcap | udp |dns drop",
    kind: Kind::Sink,
    takes: Forms::ANY,
    gives: Gives::Nothing,
    reads: Reads::Nothing,
    kernel: Some(filter::PLAIN),
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry::new(&DROP, open);

#[derive(Debug, Default)]
struct Drop {
    dropped: Amount,
}

/// A `drop` that has dropped so much.
pub(super) fn having(dropped: Amount) -> Box<dyn Sink> {
    Box::new(Drop { dropped })
}

fn open(_: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(Drop::default()))
}

impl Sink for Drop {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let Amount { blocks, bytes } = batch.amount_in(batch.live());
        self.dropped.blocks += blocks;
        self.dropped.bytes += bytes;
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(Amount::default())
    }

    fn dropped(&self) -> Vec<(DropReason, Amount)> {
        vec![(DropReason::ByRequest, self.dropped)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{arguments, bare, batch, opening};

    #[test]
    fn i6_what_is_dropped_is_in_the_ledger() {
        let given = arguments(&DROP, &[]);
        let mut sink = open(&opening(&given, &[])).unwrap();
        let mut batch = batch(&[bare(b"one"), bare(b"three"), bare(b"")]);
        batch.keep(0b110);
        sink.take(&batch, 0).unwrap();
        assert_eq!(sink.written(), Some(Amount::default()));
        assert_eq!(sink.dropped(), [(DropReason::ByRequest, Amount { blocks: 2, bytes: 5 })]);
        assert_eq!(sink.finish().unwrap(), Report::default());
    }
}
