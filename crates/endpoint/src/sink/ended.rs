//! Sinks whose blocks ended in the kernel: only the ledger asks them.

use super::drop::{self, DROP};
use super::redirect::{self, REDIRECT};
use crate::{DropReason, Failure, Sink};
use filter::{Amount, Batch, Description, Report, Time};

/// The sink of this description, once it has taken so much elsewhere, of which so many blocks were
/// refused.
#[must_use]
pub fn ended(description: &Description, taken: Amount, refused: u64) -> (Box<dyn Sink>, Report) {
    if description.name == DROP.name {
        return (drop::having(taken), Report::default());
    }
    let leads = description.name == REDIRECT.name;
    let (written, dropped) = match leads {
        true => redirect::having(taken, refused),
        false => (taken, Vec::new()),
    };
    let first = if leads { "sent by the kernel" } else { "blocks" };
    let rows = [(first, written.blocks), ("bytes", written.bytes)];
    let rows = rows.map(|(name, value)| (name.to_owned(), value)).to_vec();
    (Box::new(Ended { written, dropped }), Report::of_rows(rows))
}

struct Ended {
    written: Amount,
    dropped: Vec<(DropReason, Amount)>,
}

impl Sink for Ended {
    fn take(&mut self, _: &Batch<'_>, _: Time) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.written)
    }

    fn dropped(&self) -> Vec<(DropReason, Amount)> {
        self.dropped.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::discard::DISCARD;

    #[test]
    fn what_was_dropped_elsewhere_is_dropped_and_the_rest_is_written() {
        let taken = Amount { blocks: 3, bytes: 5 };
        let (sink, report) = ended(&DROP, taken, 0);
        assert_eq!(sink.dropped(), [(DropReason::ByRequest, taken)]);
        assert_eq!((sink.written(), report.rows.len()), (Some(Amount::default()), 0));
        let (sink, report) = ended(&DISCARD, taken, 0);
        assert_eq!((sink.written(), sink.dropped().len()), (Some(taken), 0));
        assert_eq!(report.rows, [("blocks".to_owned(), 3), ("bytes".to_owned(), 5)]);
        let (sink, report) = ended(&REDIRECT, taken, 2);
        assert_eq!(sink.written().map(|sent| sent.blocks), Some(1));
        assert_eq!(
            sink.dropped(),
            [("refused by the kernel".into(), Amount { blocks: 2, bytes: 0 })]
        );
        assert_eq!(report.rows.first(), Some(&("sent by the kernel".to_owned(), 1)));
    }
}
