//! Sinks that replace sinks which have run in the kernel. The ledger reads the counters of the
//! kernel's sinks from them.

use super::counting_sink::CountingSink;
use super::drop::DROP;
use super::redirect::{REDIRECT, REFUSED_REASON};
use crate::Sink;
use filter::{Amount, Arguments, Description, Report};

/// Creates a sink that reports the counters of a sink which has run in the kernel. `consumed` is
/// the amount that the kernel's sink has consumed. `refused` is the number of frames that the
/// kernel did not send. Returns the new sink with its report.
#[must_use]
pub fn new_offloaded_sink(
    description: &Description,
    arguments: &Arguments,
    consumed: Amount,
    refused: u64,
) -> (Box<dyn Sink>, Report) {
    let mut sink = CountingSink { consumed, ..CountingSink::default() };
    if description.name == DROP.name {
        sink.counts_as_dropped = true;
        return (Box::new(sink), Report::default());
    }
    let sends = description.name == REDIRECT.name;
    let refused = if sends { refused.min(consumed.blocks) } else { 0 };
    // The kernel does not count the bytes of refused frames.
    sink.consumed.blocks -= refused;
    sink.refused =
        (refused > 0).then(|| (REFUSED_REASON.into(), Amount { blocks: refused, bytes: 0 }));
    let first = if sends { "sent by the kernel" } else { "blocks" };
    let rows = [(first, sink.consumed.blocks), ("bytes", sink.consumed.bytes)];
    let mut report = Report::from_rows(rows);
    if let (true, Some(interface)) = (sends, arguments.text("interface")) {
        // The text must equal that of the sink in a thread, so that the report adds up both counts.
        let sent = format!("sent through {interface}");
        report = report.with_delivered_items(sink.consumed.blocks, "frame", sent);
    }
    (Box::new(sink), report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DropReason;
    use crate::sink::discard::DISCARD;
    use crate::testing::checked_arguments;

    #[test]
    fn offloaded_sinks_report_written_and_dropped_blocks() {
        let consumed = Amount { blocks: 3, bytes: 5 };
        let (sink, report) = new_offloaded_sink(&DROP, &Arguments::default(), consumed, 0);
        assert_eq!(sink.drops_by_reason(), [(DropReason::ByRequest, consumed)]);
        assert_eq!((sink.amount_written(), report.rows.len()), (Some(Amount::default()), 0));
        let (sink, report) = new_offloaded_sink(&DISCARD, &Arguments::default(), consumed, 0);
        assert_eq!((sink.amount_written(), sink.drops_by_reason().len()), (Some(consumed), 0));
        assert_eq!(report.rows, [("blocks".to_owned(), 3), ("bytes".to_owned(), 5)]);
        let arguments = checked_arguments(&REDIRECT, &[("interface", "eth1")]);
        let (sink, report) = new_offloaded_sink(&REDIRECT, &arguments, consumed, 2);
        assert_eq!(sink.amount_written().map(|sent| sent.blocks), Some(1));
        assert_eq!(
            sink.drops_by_reason(),
            [("refused by the kernel".into(), Amount { blocks: 2, bytes: 0 })]
        );
        assert_eq!(report.rows.first(), Some(&("sent by the kernel".to_owned(), 1)));
        assert_eq!((report.outputs[0].count, &*report.outputs[0].done), (1, "sent through eth1"));
    }
}
