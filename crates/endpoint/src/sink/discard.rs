//! `discard`: ends blocks and counts them, where only the filters before it matter.

use crate::{Failure, Opening, Sink, SinkEntry};
use filter::{Amount, Batch, Description, Forms, Gives, Kind, Reads, Report, Time};

/// The description of `discard`.
pub const DISCARD: Description = Description {
    name: "discard",
    summary: "end blocks and report how many there were",
    details: "\
Takes blocks and forgets them. The report says how many there were and how many bytes they viewed.
It reads no byte, so what stands before it costs no more than it must.",
    example: "replay web.pcap | tcp | discard",
    kind: Kind::Sink,
    takes: Forms::ANY,
    gives: Gives::Nothing,
    reads: Reads::Nothing,
    kernel: Some(filter::PLAIN),
    ..Description::EMPTY
};

/// The line in the catalogue.
pub const ENTRY: SinkEntry = SinkEntry::new(&DISCARD, open);

#[derive(Debug, Default)]
struct Discard {
    ended: Amount,
}

fn open(_: &Opening<'_>) -> Result<Box<dyn Sink>, Failure> {
    Ok(Box::new(Discard::default()))
}

impl Sink for Discard {
    fn take(&mut self, batch: &Batch<'_>, _now: Time) -> Result<(), Failure> {
        let Amount { blocks, bytes } = batch.amount_in(batch.live());
        self.ended.blocks += blocks;
        self.ended.bytes += bytes;
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        let Amount { blocks, bytes } = self.ended;
        Ok(Report::of_rows(vec![("blocks".to_owned(), blocks), ("bytes".to_owned(), bytes)]))
    }

    fn written(&self) -> Option<Amount> {
        Some(self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{arguments, bare, batch, opening};

    #[test]
    fn only_live_blocks_count() {
        let given = arguments(&DISCARD, &[]);
        let mut sink = open(&opening(&given, &[])).unwrap();
        let mut batch = batch(&[bare(b"one"), bare(b"three"), bare(b"")]);
        batch.keep(0b110);
        sink.take(&batch, 0).unwrap();
        assert_eq!(sink.written(), Some(Amount { blocks: 2, bytes: 5 }));
        let rows = sink.finish().unwrap().rows;
        assert_eq!(rows, [("blocks".to_owned(), 2), ("bytes".to_owned(), 5)]);
    }
}
