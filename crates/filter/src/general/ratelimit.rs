//! `ratelimit`: limits the rate of blocks.
//!
//! Input: any blocks. Output: the same blocks, with class 1 within the rate and without a class
//! above it. The state of the generic cell rate algorithm of ATM (ITU-T I.371) is one number, the
//! time at which the next block is due at an even rate; a block may arrive earlier by an allowance
//! derived from `burst`. The algorithm is equivalent to a token bucket. A token bucket needs two
//! numbers as its state, but processors can exchange only one number atomically. The filter uses
//! the path's clock, the twin the kernel's clock. In the filter, the arrival time of a block is its
//! timestamp, no matter how long the block has waited in a batch. [SL §6.1 Table I; CONTRACT 11]

use crate::prelude::*;
use crate::twin::EmitResult;
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Catalog entry of `ratelimit`, which assigns class 1 to the blocks within a rate.
pub const RATELIMIT: Description = Description {
    name: "ratelimit",
    summary: "limit the number of blocks per time",
    details: "\
Limits the rate of blocks: the class is 1 for at most `rate` blocks in the time `per`, evenly
spaced. After a pause, up to `burst` blocks may pass at once.

Reasons for no class: `too fast`.",
    example: "replay web.pcap | ratelimit 1000 burst=50 | count",
    kind: FilterKind::Classification,
    reads: ReadDepth::Nothing,
    parameters: &[
        Parameter::required(
            "rate",
            ParameterType::Number { low: 1, high: 1_000_000_000 },
            RATE_HELP,
        )
        .make_writable(),
        Parameter::with_default(
            "per",
            ParameterType::Duration,
            "1s",
            "period of the rate, at most a day",
        )
        .make_writable(),
        Parameter::with_default(
            "burst",
            ParameterType::Number { low: 1, high: 1 << 20 },
            "1",
            "maximum number of blocks at once",
        )
        .make_writable(),
    ],
    classes: Classes::YesNo,
    reasons: &["too fast"],
    state: StateFacts::private_session::<DueTime>()
        .with_kernel_start_state(exhausted_allowance_state),
    constructor: Some(make_filter),
    emit_twin: Some(emit_twin),
    // A day exceeds the duration of a twin test on any clock.
    twin_test_arguments: &["1 per=1440m burst=20"],
    ..Description::FILTER_DEFAULTS
};

const RATE_HELP: &str = "maximum number of blocks per period";
const TOO_FAST: Reason = RATELIMIT.reason("too fast");
/// Largest difference between timestamps, in ns, that is treated as reordering rather than a clock
/// step.
const CLOCK_STEP_NS_MAX: u64 = 1_000_000_000;
/// Maximum period of a rate in ns: one day, so that sums of times never overflow.
const PERIOD_NS_MAX: u64 = 86_400_000_000_000;

fn make_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let rate = RateParameters::new(arguments)?;
    Ok(Filter::classify(RateLimit { rate, due_times: Sessions::default() }))
}

/// Returns an initial state for the twin that permits no early block. With this state, the filter
/// and the twin together exceed the rate by at most one block, no matter how many blocks the filter
/// has passed until `now`.
fn exhausted_allowance_state(arguments: &Arguments, now: Time) -> Vec<u8> {
    let allowance = RateParameters::new(arguments).map_or(0, |rate| rate.allowance);
    DueTime { next: now.saturating_add(allowance) }.as_bytes().to_vec()
}

/// Parameters of the rate algorithm of `ratelimit`, in ns.
#[derive(Clone, Copy)]
struct RateParameters {
    /// Interval in ns between blocks that arrive evenly at the permitted rate.
    interval: u64,
    /// Maximum time in ns by which a block may precede its due time.
    allowance: u64,
}

impl RateParameters {
    fn new(arguments: &Arguments) -> Result<Self, Mistake> {
        let number = |name| arguments.number(name).unwrap_or(1);
        let (rate, per) = (number("rate").max(1), number("per"));
        if !(1..=PERIOD_NS_MAX).contains(&per) {
            return Err(Mistake::new("per", "the time must be above 0 and at most a day"));
        }
        let step = per / rate;
        if step == 0 {
            return Err(Mistake::new("rate", "this is more than one block per nanosecond"));
        }
        Ok(Self { interval: step, allowance: step.saturating_mul(number("burst").max(1) - 1) })
    }

    /// Returns the time that counts as the arrival time of a block: its timestamp `stamp`, but at
    /// most `now`, the time on the path's clock. Returns `now` if the timestamp is missing, or if
    /// the wall clock must have been set back. The clock was set back if `due`, the next due time,
    /// is ahead of `stamp` by more than `interval`, `allowance` and [`CLOCK_STEP_NS_MAX`] together.
    fn arrival_time(self, stamp: u64, due: u64, now: u64) -> u64 {
        let ahead = self.allowance.saturating_add(self.interval).saturating_add(CLOCK_STEP_NS_MAX);
        match stamp == 0 || due > stamp.saturating_add(ahead) {
            true => now,
            false => stamp.min(now),
        }
    }
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct DueTime {
    /// Time at which the next block is due, in ns on the path's clock.
    next: u64,
}

impl Session for DueTime {
    const FIELDS: &'static [Field<Self>] = &[Field::new(
        "next",
        Unit::Nanoseconds,
        "time at which the next block is due, by the path's clock",
        |due, _| due.next,
    )];
}

struct RateLimit {
    rate: RateParameters,
    due_times: Sessions<DueTime>,
}

impl Classify for RateLimit {
    const SETS_MARKS: bool = false;

    fn classify(&mut self, block: &mut Block<'_>, cx: &mut ClassifyContext<'_>) -> Class {
        let due = self.due_times.get_or_create(PRIVATE_SESSION_KEY);
        let now = self.rate.arrival_time(block.context.time, due.next, cx.now);
        if due.next > now.saturating_add(self.rate.allowance) {
            return cx.answer_absent(TOO_FAST);
        }
        due.next = due.next.max(now).saturating_add(self.rate.interval);
        Class::YES
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(&mut self.due_times)
    }

    fn set(&mut self, arguments: &Arguments) -> Result<(), Mistake> {
        self.rate = RateParameters::new(arguments)?;
        Ok(())
    }
}

/// Maximum number of times that the twin tries to replace the due time of the next block by a
/// compare-and-exchange. If all attempts fail, the twin leaves the block to the user
/// implementation.
const EXCHANGE_ATTEMPTS_MAX: usize = 4;

fn emit_twin<'s>(
    a: &Arguments,
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> EmitResult<'s> {
    let rate = RateParameters::new(a)
        .map_err(|mistake| ebpf::emit::UnfitReason::new(mistake.to_string()))?;
    let (too_fast, unsure) = (s.absent("too fast", out), s.unsure());
    let due = s.declare_state(size_of::<DueTime>() as u16);
    let (now, allowance, step) =
        (s.monotonic_time(), s.wide_constant(rate.allowance), s.wide_constant(rate.interval));
    let latest = s.add_wide(now, allowance);
    s.arm(|t, passed| {
        for _ in 0..EXCHANGE_ATTEMPTS_MAX {
            t.arm(|u, again| {
                let next = u.read_state(due, 0);
                u.only_if_wide(next, Cmp::Le, latest, too_fast);
                let from = u.max_wide(next, now);
                let following = u.add_wide(from, step);
                u.replace_if_equal(due, 0, (next, following), again);
                u.leave(passed);
            });
        }
        t.leave(unsure);
    });
    Ok(Answer::new(Class::YES.0, on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Arena, Frame, Node, Space, parse_arguments};
    use ebpf::emit::{self, ReturnConversion};
    use ebpf::interpret::{Machine, Packet};
    use ebpf::{FilterSpan, Hook};

    const MILLISECOND: u64 = 1_000_000;
    /// Arrival times in ns, each with a flag that is true if the block conforms to a rate of ten
    /// per second with bursts of three.
    const ARRIVALS: [(u64, bool); 9] = [
        (0, true),
        (0, true),
        (MILLISECOND, true),
        (2 * MILLISECOND, false),
        (99 * MILLISECOND, false),
        (100 * MILLISECOND, true),
        (100 * MILLISECOND, false),
        (1_000 * MILLISECOND, true),
        (1_000 * MILLISECOND, true),
    ];

    #[test]
    fn conforming_blocks_pass_and_the_allowance_is_used() {
        let mut node = Node::new(&RATELIMIT, &["10", "burst=3"]).unwrap();
        for (now, conforms) in ARRIVALS {
            let arena = Arena::new(1);
            let mut space = Space::new(&arena);
            let batch = node
                .process_batch(space.batch(&[Frame::udp(1, 2, b"")]), &mut space, now)
                .remove(0);
            assert_eq!(batch.lanes_with_class(Class::is_answered) != 0, conforms, "at {now}");
        }
        assert_eq!(node.unanswered_reasons().next(), Some(("too fast", 3)));
    }

    #[test]
    fn v6_kernel_starts_with_an_exhausted_allowance() {
        let given = parse_arguments(&RATELIMIT, &["10", "burst=3"]).unwrap();
        let start = RATELIMIT.state.twin_start_state.unwrap()(&given, 1_000 * MILLISECOND);
        let due = DueTime::read_from_bytes(&start).unwrap();
        let rate = RateParameters::new(&given).unwrap();
        // The first block is due now, the second one step later.
        assert_eq!(due.next, 1_000 * MILLISECOND + rate.allowance);
        assert_eq!(rate.allowance, 2 * rate.interval);
    }

    #[test]
    fn batch_gives_the_same_answers_as_single_blocks() {
        let mut node = Node::new(&RATELIMIT, &["10", "burst=3"]).unwrap();
        let arena = Arena::new(ARRIVALS.len());
        let mut space = Space::new(&arena);
        // Zero means no timestamp.
        let frames: Vec<_> = ARRIVALS.map(|(at, _)| Frame::udp(1, 2, b"").at_time(at + 1)).into();
        let batch =
            node.process_batch(space.batch(&frames), &mut space, 1_000 * MILLISECOND + 1).remove(0);
        let passed = batch.lanes_with_class(Class::is_answered);
        let wanted =
            ARRIVALS.iter().enumerate().map(|(lane, (_, passes))| u64::from(*passes) << lane);
        assert_eq!(passed, wanted.sum(), "{passed:b}");
    }

    #[test]
    fn implausible_timestamp_is_ignored() {
        let rate = RateParameters { interval: 100 * MILLISECOND, allowance: 0 };
        let (second, now) = (1_000 * MILLISECOND, 9_000 * MILLISECOND);
        assert_eq!(rate.arrival_time(now - MILLISECOND, now, now), now - MILLISECOND);
        assert_eq!(rate.arrival_time(0, 0, now), now, "none");
        assert_eq!(rate.arrival_time(now + MILLISECOND, now, now), now, "of the future");
        let oldest = now - second - rate.interval;
        assert_eq!(rate.arrival_time(oldest, now, now), oldest);
        assert_eq!(
            rate.arrival_time(oldest - 1, now, now),
            now,
            "the time of day has been set back"
        );
    }

    #[test]
    fn twin_uses_the_kernel_clock() {
        let given = parse_arguments(&RATELIMIT, &["10", "burst=3"]).unwrap();
        let program = emit::program(Hook::Tc, ReturnConversion::Answer, |s, on, out| {
            s.emit_twin(FilterSpan::new("ratelimit", 0, 9), emit_twin, &given, on, out)
        });
        let program = program.unwrap();
        let mut machine = Machine::for_program(&program);
        for (now, conforms) in ARRIVALS {
            machine.now_ns = now;
            let class = machine.run(&program.code, Hook::Tc, &Packet::new(&[0; 60])).unwrap();
            assert_eq!(class == 1, conforms, "at {now}");
        }
    }

    #[test]
    fn invalid_arguments_are_mistakes() {
        for words in [&["0"][..], &["5", "per=0s"], &["5", "per=2000m"], &["5", "per=2ns"]] {
            assert!(Node::new(&RATELIMIT, words).is_err(), "{words:?}");
        }
    }
}
