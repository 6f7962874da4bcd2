//! Sinks whose blocks ended in the kernel: only the ledger asks them.

use super::drop::{self, DROP};
use crate::{Failure, Sink};
use filter::{Amount, Batch, Description, Report, Time};

/// The sink of this description, once it has taken so much elsewhere.
#[must_use]
pub fn ended(description: &Description, taken: Amount) -> (Box<dyn Sink>, Report) {
    if description.name == DROP.name {
        return (drop::having(taken), Report::default());
    }
    let rows = [("blocks", taken.blocks), ("bytes", taken.bytes)];
    let rows = rows.map(|(name, value)| (name.to_owned(), value)).to_vec();
    (Box::new(Ended(taken)), Report { rows })
}

struct Ended(Amount);

impl Sink for Ended {
    fn take(&mut self, _: &Batch<'_>, _: Time) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Report, Failure> {
        Ok(Report::default())
    }

    fn written(&self) -> Option<Amount> {
        Some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::discard::DISCARD;

    #[test]
    fn what_was_dropped_elsewhere_is_dropped_and_the_rest_is_written() {
        let taken = Amount { blocks: 3, bytes: 5 };
        let (sink, report) = ended(&DROP, taken);
        assert_eq!(sink.dropped(), [("by request", taken)]);
        assert_eq!((sink.written(), report.rows.len()), (Some(Amount::default()), 0));
        let (sink, report) = ended(&DISCARD, taken);
        assert_eq!((sink.written(), sink.dropped().len()), (Some(taken), 0));
        assert_eq!(report.rows, [("blocks".to_owned(), 3), ("bytes".to_owned(), 5)]);
    }
}
