//! `ratelimit`: lets so many blocks through in a time, and no more.
//!
//! In: anything. Out: the blocks that conform. The generic cell rate algorithm of ATM (ITU-T
//! I.371): one number, the time at which the next block is due if all come evenly; a block may come
//! before it by what `burst` allows. A token bucket would say the same with two numbers; one can be
//! exchanged in one step by several processors. The clock is the path's, in the kernel that of the
//! machine; a block has come when its stamp says so, however long it waited for others to be looked
//! at with it. [SL §6.1 Table I; CONTRACT 11]

use crate::prelude::*;
use crate::twin::Emitted;
use ebpf::emit::{Answer, Cmp, Exit, Layers, Scope};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// What everybody knows about `ratelimit`.
pub const RATELIMIT: Description = Description {
    name: "ratelimit",
    summary: "let so many blocks through in a time, no more",
    details: "\
The class is 1 for blocks that come no faster than `rate` in the time `per`, evenly spread. Up to
`burst` blocks may come at once after a pause that was long enough.

Not answered: `too fast`.",
    example: "replay web.pcap | ratelimit 1000 burst=50 | count",
    kind: Kind::Classification,
    reads: Reads::Nothing,
    parameters: &[
        Parameter::needed("rate", Type::Number { low: 1, high: 1_000_000_000 }, RATE_HELP),
        Parameter::named("per", Type::Duration, "1s", "in which time, at most a day"),
        Parameter::named(
            "burst",
            Type::Number { low: 1, high: 1 << 20 },
            "1",
            "how many blocks may come at once",
        ),
    ],
    classes: Classes::YesNo,
    reasons: &["too fast"],
    state: StateFacts::private::<Due>(),
    user: Some(make),
    kernel: Some(emit),
    // A day is longer than an exam, whatever clock its judges have.
    examined: &["1 per=1440m burst=20"],
    ..Description::EMPTY
};

const RATE_HELP: &str = "how many blocks may pass in the time";
const TOO_FAST: Reason = RATELIMIT.reason("too fast");
/// How much older than a block before it one may be and still be taken at its word, in ns.
const LATE: u64 = 1_000_000_000;
/// Nanoseconds of a day: times that are added stay far from the end of the clock.
const DAY: u64 = 86_400_000_000_000;

fn make(arguments: &Arguments) -> Result<Filter, Mistake> {
    let pace = Pace::new(arguments)?;
    Ok(Filter::classify(RateLimit { pace, kept: Sessions::default() }))
}

/// How fast blocks may come, in nanoseconds.
#[derive(Clone, Copy)]
struct Pace {
    /// From one block to the next, if they come evenly.
    step: u64,
    /// How much earlier one may come.
    early: u64,
}

impl Pace {
    fn new(arguments: &Arguments) -> Result<Self, Mistake> {
        let number = |name| arguments.number(name).unwrap_or(1);
        let (rate, per) = (number("rate").max(1), number("per"));
        if !(1..=DAY).contains(&per) {
            return Err(Mistake::new("per", "the time must be above 0 and at most a day"));
        }
        let step = per / rate;
        if step == 0 {
            return Err(Mistake::new("rate", "this is more than one block per nanosecond"));
        }
        Ok(Self { step, early: step.saturating_mul(number("burst").max(1) - 1) })
    }

    /// When a block with this stamp came, if the next one is due then and the path's clock is at
    /// `now`: at `now` if it has no stamp, or one of a time of day that was set meanwhile. What is
    /// due is never further ahead of the blocks before than this, so one that says otherwise has
    /// gone back.
    fn came(self, stamp: u64, due: u64, now: u64) -> u64 {
        let ahead = self.early.saturating_add(self.step).saturating_add(LATE);
        match stamp == 0 || due > stamp.saturating_add(ahead) {
            true => now,
            false => stamp.min(now),
        }
    }
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Due {
    /// When the next block is due.
    next: u64,
}

impl Session for Due {
    const FIELDS: &'static [Field<Self>] = &[Field::new(
        "next",
        Unit::Nanoseconds,
        "when the next block is due, by the clock of the path",
        |due, _| due.next,
    )];
}

struct RateLimit {
    pace: Pace,
    kept: Sessions<Due>,
}

impl Classify for RateLimit {
    const SETS_MARKS: bool = false;

    fn classify(&mut self, block: &mut Block<'_>, cx: &mut Tell<'_>) -> Class {
        let due = self.kept.of(PRIVATE);
        let now = self.pace.came(block.context.time, due.next, cx.now);
        if due.next > now.saturating_add(self.pace.early) {
            return cx.absent(TOO_FAST);
        }
        due.next = due.next.max(now).saturating_add(self.pace.step);
        Class::YES
    }

    fn state(&mut self) -> Option<&mut dyn State> {
        Some(&mut self.kept)
    }
}

/// The twin. Who loses the exchange to another processor this often leaves the block to the user
/// implementation.
const TRIES: usize = 4;

fn emit<'s>(a: &Arguments, s: &mut Scope<'s, '_>, on: Layers<'s>, out: Exit<'s>) -> Emitted<'s> {
    let pace = Pace::new(a).map_err(|mistake| ebpf::emit::Unfit::new(mistake.to_string()))?;
    let (too_fast, unsure) = (s.absent("too fast", out), s.unsure());
    let due = s.state(size_of::<Due>() as u16);
    let (now, early, step) = (s.now(), s.wide(pace.early), s.wide(pace.step));
    let latest = s.plus(now, early);
    s.arm(|t, passed| {
        for _ in 0..TRIES {
            t.arm(|u, again| {
                let next = u.read(due, 0);
                u.only_wide(next, Cmp::Le, latest, too_fast);
                let from = u.larger(next, now);
                let following = u.plus(from, step);
                u.replace(due, 0, (next, following), again);
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
    use crate::testing::{Arena, Frame, Node, Space, arguments};
    use ebpf::emit::{self, Finish};
    use ebpf::interpret::{Machine, Packet};
    use ebpf::{FilterSpan, Hook};

    const MS: u64 = 1_000_000;
    /// When blocks come, and whether they conform to ten in a second, three at once.
    const COME: [(u64, bool); 9] = [
        (0, true),
        (0, true),
        (MS, true),
        (2 * MS, false),
        (99 * MS, false),
        (100 * MS, true),
        (100 * MS, false),
        (1_000 * MS, true),
        (1_000 * MS, true),
    ];

    #[test]
    fn so_many_pass_in_a_time_and_some_at_once() {
        let mut node = Node::new(&RATELIMIT, &["10", "burst=3"]).unwrap();
        for (now, conforms) in COME {
            let arena = Arena::new(1);
            let mut space = Space::new(&arena);
            let batch = node.turn(space.batch(&[Frame::udp(1, 2, b"")]), &mut space, now).remove(0);
            assert_eq!(batch.select(Class::answered) != 0, conforms, "at {now}");
        }
        assert_eq!(node.unanswered().next(), Some(("too fast", 3)));
    }

    #[test]
    fn a_batch_passes_as_its_blocks_would_one_by_one() {
        let mut node = Node::new(&RATELIMIT, &["10", "burst=3"]).unwrap();
        let arena = Arena::new(COME.len());
        let mut space = Space::new(&arena);
        // No stamp would be 0.
        let frames: Vec<_> = COME.map(|(at, _)| Frame::udp(1, 2, b"").at(at + 1)).into();
        let batch = node.turn(space.batch(&frames), &mut space, 1_000 * MS + 1).remove(0);
        let passed = batch.select(Class::answered);
        let wanted = COME.iter().enumerate().map(|(lane, (_, passes))| u64::from(*passes) << lane);
        assert_eq!(passed, wanted.sum(), "{passed:b}");
    }

    #[test]
    fn a_stamp_that_cannot_be_is_not_gone_by() {
        let pace = Pace { step: 100 * MS, early: 0 };
        let (second, now) = (1_000 * MS, 9_000 * MS);
        assert_eq!(pace.came(now - MS, now, now), now - MS);
        assert_eq!(pace.came(0, 0, now), now, "none");
        assert_eq!(pace.came(now + MS, now, now), now, "of the future");
        let oldest = now - second - pace.step;
        assert_eq!(pace.came(oldest, now, now), oldest);
        assert_eq!(pace.came(oldest - 1, now, now), now, "the time of day has been set back");
    }

    #[test]
    fn the_twin_goes_by_the_kernels_clock() {
        let given = arguments(&RATELIMIT, &["10", "burst=3"]).unwrap();
        let program = emit::program(Hook::Tc, Finish::Answer, |s, on, out| {
            s.piece(FilterSpan::new("ratelimit", 0, 9), emit, &given, on, out)
        });
        let program = program.unwrap();
        let mut machine = Machine::of(&program);
        for (now, conforms) in COME {
            machine.now_ns = now;
            let class = machine.run(&program.code, Hook::Tc, &Packet::new(&[0; 60])).unwrap();
            assert_eq!(class == 1, conforms, "at {now}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_a_mistake() {
        for words in [&["0"][..], &["5", "per=0s"], &["5", "per=2000m"], &["5", "per=2ns"]] {
            assert!(Node::new(&RATELIMIT, words).is_err(), "{words:?}");
        }
    }
}
