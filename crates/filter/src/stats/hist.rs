//! `hist`: a histogram of the intervals between blocks, or of their lengths.
//!
//! Input: any blocks. Output: the same blocks. Reads rich pointers and timestamps, no bytes. The
//! width of the buckets doubles, so 65 buckets cover all intervals from nanoseconds to years. The
//! state is a private session of plain data. [SL §6.1 Table I]
//!
//! Intervals are computed from block timestamps, not from the path's clock, so a replay at any
//! speed yields the same histogram.

use crate::prelude::*;
use crate::twin::EmitResult;
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope, TwinState};
use std::mem::offset_of;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `hist`, which counts blocks by their interval or length, in buckets of doubling
/// width.
pub const HIST: Description = Description {
    name: "hist",
    summary: "report a histogram of times between blocks, or of their lengths",
    details: "\
Counts blocks by the time since the block before (`of=time`) or the length of the view
(`of=length`), in buckets that double in width, and reports the buckets when the path stops; a
terminal shows a bar for each. A block older than the one before is counted as `backwards` and has
no interval. Blocks that are no data (lost bytes or the end of a stream, the description of a
message) are not counted. Leaves blocks unchanged.",
    example: "replay web.pcap | hist of=length | discard",
    kind: FilterKind::Statistics,
    reads: ReadDepth::Nothing,
    parameters: &[Parameter::with_default(
        "of",
        ParameterType::OneOf(&["time", "length"]),
        "time",
        "quantity: the time between blocks, or their length",
    )
    .positional()],
    state: StateFacts::private_session::<Histogram>().with_worker_rule(|arguments| match arguments
        .text("of")
    {
        Some("time") => WorkerRule::Differs(
            "it measures the time between any two blocks",
            WorkerRule::DEFAULT_HINT,
        ),
        _ => WorkerRule::Summed,
    }),
    has_report: true,
    histogram_totals: Some(&["blocks", "backwards"]),
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    ..Description::FILTER_DEFAULTS
};

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::statistics(Hist { of: Quantity::new(arguments), histogram: Sessions::default() }))
}

/// Number of buckets of a histogram: one for the value 0, and one for each power of two in 64 bits.
const HISTOGRAM_BUCKET_COUNT: usize = 65;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Histogram {
    buckets: [u64; HISTOGRAM_BUCKET_COUNT],
    blocks: u64,
    last: u64,
    backwards: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; HISTOGRAM_BUCKET_COUNT], blocks: 0, last: 0, backwards: 0 }
    }
}

impl Session for Histogram {
    const FIELDS: &'static [Field<Self>] = &[
        Field::new("blocks", Unit::Blocks, "processed", |histogram, _| histogram.blocks),
        Field::new("backwards", Unit::Blocks, "older than the block before", |histogram, _| {
            histogram.backwards
        }),
        Field::array(
            "bucket",
            Unit::Blocks,
            HISTOGRAM_BUCKET_COUNT,
            BUCKET_HELP,
            |histogram, number| histogram.buckets.get(number).copied().unwrap_or(0),
        ),
    ];
}

const BUCKET_HELP: &str =
    "bucket 0 counts the value 0, bucket N the values from 2^(N-1) to 2^N - 1 (ns, or bytes)";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Time,
    Length,
}

struct Hist {
    of: Quantity,
    histogram: Sessions<Histogram>,
}

impl Statistics for Hist {
    fn record(&mut self, tags: MetadataView<'_>, _now: Time) {
        let histogram = self.histogram.get_or_create(PRIVATE_SESSION_KEY);
        let blocks = tags.marked_blocks();
        let data = blocks.filter(|(at, _, marks)| !at.is_hole() && !marks.is_description());
        for (pointer, context, _) in data {
            match self.of {
                Quantity::Length => histogram.add_value(pointer.length().into()),
                Quantity::Time => histogram.record_arrival(context.time),
            }
        }
    }

    fn report(&self) -> Report {
        let histogram = self.histogram.get(PRIVATE_SESSION_KEY).copied().unwrap_or_default();
        let mut rows = vec![("blocks".to_owned(), histogram.blocks)];
        let filled = |n: &u64| *n > 0;
        let first = histogram.buckets.iter().position(filled).unwrap_or(HISTOGRAM_BUCKET_COUNT);
        let last = histogram.buckets.iter().rposition(filled).map_or(0, |last| last + 1);
        let buckets = histogram.buckets.iter().enumerate().take(last).skip(first);
        rows.extend(buckets.map(|(number, n)| (self.of.bucket_label(number), *n)));
        if self.of == Quantity::Time {
            rows.push(("backwards".to_owned(), histogram.backwards));
        }
        Report::from_rows(rows)
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.histogram)
    }
}

impl Histogram {
    fn record_arrival(&mut self, time: u64) {
        match time.checked_sub(self.last) {
            _ if self.blocks == 0 => self.blocks = 1,
            Some(interval) => self.add_value(interval),
            None => {
                self.backwards = self.backwards.wrapping_add(1);
                self.blocks = self.blocks.wrapping_add(1);
            }
        }
        self.last = time;
    }

    fn add_value(&mut self, value: u64) {
        self.blocks = self.blocks.wrapping_add(1);
        let number = value.checked_ilog2().map_or(0, |power| power as usize + 1);
        if let Some(bucket) = self.buckets.get_mut(number) {
            *bucket = bucket.wrapping_add(1);
        }
    }
}

impl Quantity {
    fn new(arguments: &Arguments) -> Self {
        if arguments.text("of") == Some("length") { Self::Length } else { Self::Time }
    }

    /// Returns the label of a bucket: its range of values.
    fn bucket_label(self, number: usize) -> String {
        let low = number.checked_sub(1).map_or(0, |power| 1u64 << power);
        let high = 1u64.checked_shl(number as u32).unwrap_or(u64::MAX);
        match (self, number) {
            (Self::Length, 0 | 1) => format!("{low} bytes"),
            (Self::Length, _) => format!("{low} to {} bytes", high - 1),
            (Self::Time, 0) => "0 ns".to_owned(),
            (Self::Time, _) => format!("{} to {}", format_time(low), format_time(high)),
        }
    }
}

/// Formats a time in the largest unit in which its value is at least 1, with at most three
/// decimals.
fn format_time(ns: u64) -> String {
    let (unit, name) = match ns {
        0..1_000 => return format!("{ns} ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let (whole, thousandths) = (ns / unit, ns % unit * 1000 / unit);
    let text = format!("{whole}.{thousandths:03}");
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Emits the twin of `hist`. The twin measures intervals with the kernel's clock, which it reads
/// when it processes a block, and not from block timestamps.
fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    _: Exit<'s>,
) -> EmitResult<'s> {
    let histogram = s.declare_state(size_of::<Histogram>() as u16);
    match Quantity::new(a) {
        Quantity::Length => {
            s.add_to_state(histogram, BLOCKS_OFFSET, 1);
            let length = s.view_length(on);
            let length = s.widen(length);
            let bucket = s.bucket_index(length);
            s.add_to_nth_number(histogram, BUCKET_ROW_POSITION, bucket, 1);
        }
        Quantity::Time => emit_arrival(s, histogram),
    }
    Ok(Answer::new(on.class, on))
}

/// Emits the code that records the arrival of a block. The code exchanges the time of the last
/// arrival and then increments the number of arrivals. If another CPU records an arrival between
/// these two steps, the recorded interval is wrong.
fn emit_arrival<'s>(s: &mut Scope<'s, '_>, histogram: TwinState<'s>) {
    let now = s.monotonic_time();
    let last = s.exchange(histogram, LAST_ARRIVAL_OFFSET, now);
    let before = s.fetch_add(histogram, BLOCKS_OFFSET, 1);
    let none = s.wide_constant(0);
    s.arm(|t, done| {
        t.only_if_wide(before, Cmp::Ne, none, done);
        t.arm(|u, backwards| {
            u.only_if_wide(now, Cmp::Ge, last, backwards);
            let interval = u.sub_wide(now, last);
            let bucket = u.bucket_index(interval);
            u.add_to_nth_number(histogram, BUCKET_ROW_POSITION, bucket, 1);
            u.leave(done);
        });
        t.add_to_state(histogram, BACKWARDS_OFFSET, 1);
    });
}

const BUCKET_ROW_POSITION: (u16, u16) =
    (offset_of!(Histogram, buckets) as u16, HISTOGRAM_BUCKET_COUNT as u16);
const BLOCKS_OFFSET: u16 = offset_of!(Histogram, blocks) as u16;
const LAST_ARRIVAL_OFFSET: u16 = offset_of!(Histogram, last) as u16;
const BACKWARDS_OFFSET: u16 = offset_of!(Histogram, backwards) as u16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fragment, Frame, Node, report_rows, run_fragments};
    use ebpf::emit::{self, ReturnConversion};
    use ebpf::interpret::{Machine, Packet};
    use ebpf::{FilterSpan, Hook};

    fn owned_rows(rows: &[(&str, u64)]) -> Vec<(String, u64)> {
        rows.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect()
    }

    #[test]
    fn intervals_fall_into_doubling_buckets() {
        let times = [1_000, 1_000, 1_003, 2_500, 2_400, 4_000_002_400];
        let frames: Vec<Frame> = times.map(|time| Frame::udp(1, 2, b"").at_time(time)).into();
        let found = report_rows(&HIST, &[], &frames);
        let named = |name: &str| found.iter().find(|(n, _)| n == name).map(|(_, count)| *count);
        assert_eq!(named("blocks"), Some(6));
        assert_eq!(named("0 ns"), Some(1));
        assert_eq!(named("2 ns to 4 ns"), Some(1));
        assert_eq!(named("1.024 us to 2.048 us"), Some(1));
        assert_eq!(named("2.147 s to 4.294 s"), Some(1));
        assert_eq!(named("backwards"), Some(1));
        assert_eq!(found.len(), 1 + 33 + 1, "buckets from the first to the last that is filled");
    }

    #[test]
    fn lengths_of_views_are_counted() {
        let frames = [0, 1, 1, 20].map(|n| Frame::new(1, &vec![0; n]));
        let wanted = [
            ("blocks", 4),
            ("0 bytes", 1),
            ("1 bytes", 2),
            ("2 to 3 bytes", 0),
            ("4 to 7 bytes", 0),
            ("8 to 15 bytes", 0),
            ("16 to 31 bytes", 1),
        ];
        assert_eq!(report_rows(&HIST, &["of=length"], &frames), owned_rows(&wanted));
        assert_eq!(report_rows(&HIST, &["length"], &[]), owned_rows(&[("blocks", 0)]));
    }

    #[test]
    fn holes_and_descriptions_are_not_counted() {
        let pieces = [Fragment::description(1), Fragment::new(1, b"a"), Fragment::hole(1, 1000)];
        let rows = |of: &str| {
            let mut node = Node::new(&HIST, &[of]).unwrap();
            run_fragments(&mut node, &pieces);
            node.report().rows
        };
        assert_eq!(rows("length"), owned_rows(&[("blocks", 1), ("1 bytes", 1)]));
        assert_eq!(rows("time"), owned_rows(&[("blocks", 1), ("backwards", 0)]));
    }

    #[test]
    fn twin_counts_intervals_of_the_kernel_clock() {
        let arguments = crate::testing::parse_arguments(&HIST, &["time"]).unwrap();
        let program = emit::program(Hook::Xdp, ReturnConversion::Answer, |s, on, out| {
            s.emit_twin(FilterSpan::new("hist", 0, 4), emit_twin, &arguments, on, out)
        });
        let program = program.unwrap();
        let mut machine = Machine::for_program(&program);
        let times = [1_000, 1_000, 1_003, 2_500, 2_400, 4_000_002_400, u64::MAX];
        let mut histogram = Histogram::default();
        for time in times {
            machine.now_ns = time;
            machine.run(&program.code, Hook::Xdp, &Packet::new(&[0; 60])).unwrap();
            histogram.record_arrival(time);
            assert_eq!(machine.maps[0], histogram.as_bytes(), "at {time}");
        }
    }

    #[test]
    fn last_bucket_has_a_label() {
        assert_eq!(Quantity::Time.bucket_label(64), "9223372036.854 s to 18446744073.709 s");
    }
}
