//! `bench capture`: one stream of packets, several who want all of it. [SL fig. 15], goal G15
//!
//! A flood is sent flat out over a virtual cable, first with nobody at the other end, then with 1,
//! 2, 5 and 10 tcpdumps, each with a packet socket of its own, and with as many processes that read
//! one kernel ring: a program at traffic control writes each frame once, and a bell, which rings
//! when that of a line does, wakes all of them. Readers are on the second processor and copy what
//! they keep of each frame, as tcpdump does before it writes it to nowhere. At the source's 200
//! Mbit/s ten tcpdumps are no load any more, so the flood takes the place of its fixed rate.
//!
//! A tap of a line that nobody comes to copies nothing any more after a while. What it costs then
//! is one row, and what it costs to copy for nobody, while somebody takes its bells, another.
//!
//! What a copy costs whoever makes it depends on how much memory the copies go round in. So a tap
//! that has nothing else to do (`bench/c/bare_tap.c`, compiled here by clang) stands beside ours,
//! with rings of several sizes.
//!
//! What it costs is taken in two places: in the kernel, by how much longer sending takes than over
//! a cable with nobody at it, in turn ([`crate::observed`]); and in the processes. What does not
//! arrive is counted. What is taken so with nobody there is what the measurement is worth.

use crate::by_hand::{ByHand, Source};
use crate::flood::{Floods, Host, Took};
use crate::folder::Folder;
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::observed::{Sample, Taken};
use crate::options::Options;
use crate::processes::{installed, processor_ns};
use crate::row::Row;
use crate::tap::{Reader, Tap, of_a_line, usual};
use crate::tcpdump::{TCPDUMP, Tcpdumps};
use ebpf::emit::tap::UNREAD_LAPS;
use sys::bpf::ring::region_offset;
use sys::bpf::{Anchor, Link, ProgramKind, Side};

/// Numbers of observers.
const READERS: [(usize, &str); 4] =
    [(1, "1 reader"), (2, "2 readers"), (5, "5 readers"), (10, "10 readers")];
/// Kinds of frames: bytes, how many of them are wanted, and their name in rows.
const SETTINGS: [Setting; 3] = [
    Setting { length: 64, keep: 2048, name: "64 B" },
    Setting { length: 1500, keep: 96, name: "96 of 1500 B" },
    Setting { length: 1500, keep: 2048, name: "1500 B" },
];
/// Frames of a sample, and those that are sent before, unmeasured.
const FRAMES: usize = 100_000;
const BEFORE: usize = 2_000;
/// Bytes of every ring.
const RING: u32 = 4 << 20;
/// Bytes of the ring of a tap of which somebody takes the bells and reads nothing, and what rows
/// call it.
const COPIED: [(u32, &str); 3] =
    [(RING, "no reader, 4 MB"), (1 << 20, "no reader, 1 MB"), (512 << 10, "no reader, 512 KB")];
/// So many rings at most go by until bells are taken: a tap of which nobody takes them for longer
/// does not copy any more.
const RINGS: u32 = 8;
/// Bytes of the ring of a tap by hand, whether it asks the clock, and what rows call it.
const BARE: [(u32, bool, &str); 5] = [
    (256 << 10, false, "by hand, 256 KB"),
    (1 << 20, false, "by hand, 1 MB"),
    (RING, false, "by hand, 4 MB"),
    (256 << 10, true, "by hand with a clock, 256 KB"),
    (RING, true, "by hand with a clock, 4 MB"),
];
/// Bytes of such a tap beside its ring, with the longest frame that it keeps: its numbers and its
/// pointers.
const BARE_BESIDE: u32 = 24 + 16 * (1 << 14) + 2048;
const OURS: &str = "streamline";
const NOBODY: &str = "nobody";
const WITH_ONE: &str = "1 of ours";
const WITH_TEN: &str = "10 of ours";
const ONE_TCPDUMP: &str = "1 tcpdump";
const LIMIT: &str = "what it may cost";
/// The most that an added reader, and a tap without readers, may cost in the kernel, in ns per
/// frame (G15).
const ADDED_NS: f64 = 30.0;
const ALONE_NS: f64 = 150.0;

#[derive(Clone, Copy, Debug)]
struct Setting {
    length: usize,
    keep: u32,
    name: &'static str,
}

/// The observers of a flood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Observers {
    Nobody,
    /// A tap with so many readers, who listen to one bell.
    Ours(usize),
    /// A tap of a line, with a ring of so many bytes, of which somebody takes the bells.
    Copied(u32),
    /// The same that nobody comes to.
    Left,
    Tcpdumps(usize),
    /// A tap by hand with a ring of so many bytes, which nobody reads, and perhaps a clock.
    Bare(u32, bool),
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new("capture").map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for setting in SETTINGS {
        let floods = Floods::new(setting.length, 1, Host::Receives)?;
        rows.extend(Bench { floods, folder: &folder, setting }.run(options.rounds)?);
    }
    Ok(rows)
}

struct Bench<'b> {
    floods: Floods,
    folder: &'b Folder,
    setting: Setting,
}

impl Bench<'_> {
    fn run(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let mut all = vec![Observers::Nobody, Observers::Left];
        all.extend(COPIED.map(|(bytes, _)| Observers::Copied(bytes)));
        all.extend(READERS.map(|(count, _)| Observers::Ours(count)));
        if installed(TCPDUMP, "tcpdump") {
            all.extend(READERS.map(|(count, _)| Observers::Tcpdumps(count)));
        }
        if installed("clang", "clang") {
            all.extend(BARE.map(|(bytes, clock, _)| Observers::Bare(bytes, clock)));
        }
        let taken = Taken::take(rounds, &all, |observers| self.observe(observers))?;
        Ok(Figures { setting: self.setting, taken }.rows())
    }

    /// Sends while they observe.
    fn observe(&mut self, observers: Observers) -> Result<Sample, String> {
        match observers {
            Observers::Nobody => {
                self.floods.send(BEFORE)?;
                Ok(Sample::new(FRAMES, self.floods.send(FRAMES)?, 0))
            }
            Observers::Ours(readers) => self.tap(readers),
            Observers::Copied(bytes) => self.copied(bytes),
            Observers::Left => self.left(),
            Observers::Tcpdumps(count) => self.tcpdumps(count),
            Observers::Bare(bytes, clock) => self.bare(bytes, clock),
        }
    }

    /// Returns the number of frames that fill a ring.
    fn frames_in(&self, ring: u32) -> usize {
        let kept = self.setting.length.min(self.setting.keep as usize);
        ring as usize / (kept + region_offset::HEADER as usize)
    }

    fn copied(&mut self, ring: u32) -> Result<Sample, String> {
        let mut tap = self.attached(ring)?;
        self.floods.send(BEFORE)?;
        let at_once = self.frames_in(RINGS * ring);
        let (mut took, mut left, bells) = (Took::default(), FRAMES, tap.bells());
        while left > 0 {
            tap.rewind();
            let turn = self.floods.send(left.min(at_once))?;
            took = Took { seen: took.seen + turn.seen, alone: took.alone + turn.alone };
            left = left.saturating_sub(at_once);
        }
        Ok(Sample { bells: tap.bells() - bells, ..Sample::new(FRAMES, took, 0) })
    }

    fn left(&mut self) -> Result<Sample, String> {
        let tap = self.attached(RING)?;
        // Until it has given up, and one ring more.
        self.floods.seen.send(self.frames_in(RING << UNREAD_LAPS) + self.frames_in(RING))?;
        let (bells, whole) = (tap.bells(), tap.committed());
        let sample = Sample::new(FRAMES, self.floods.send(FRAMES)?, 0);
        if tap.committed() != whole {
            return Err("a tap that nobody comes to still copies".to_owned());
        }
        Ok(Sample { bells: tap.bells() - bells, ..sample })
    }

    fn attached(&self, ring: u32) -> Result<Tap, String> {
        let mut tap = Tap::new(ring, self.setting.keep, of_a_line)?;
        tap.attach(&self.floods.seen.pair.server, self.floods.seen.device()?)?;
        Ok(tap)
    }

    fn bare(&mut self, bytes: u32, clock: bool) -> Result<Sample, String> {
        let mut defined = vec![format!("RING={bytes}"), format!("MOST={}", self.setting.keep)];
        defined.extend(clock.then(|| "CLOCK".to_owned()));
        let text = include_str!("../../c/bare_tap.c");
        let source =
            Source { name: "bare_tap", text, defined: &defined, kept: bytes + BARE_BESIDE };
        let tap = ByHand::load(&self.folder.0, ProgramKind::Tc, source)?;
        let device = self.floods.seen.device()?;
        let head = || Link::tcx(&tap.program, device, Side::Ingress, Anchor::Head, None);
        let _link = self.floods.seen.pair.server.enter(head).map_err(|why| why.to_string())?;
        self.floods.send(BEFORE)?;
        let took = self.floods.send(FRAMES)?;
        match tap.numbers() {
            [_, count] if count == (BEFORE + FRAMES) as u64 => Ok(Sample::new(FRAMES, took, 0)),
            [_, count] => Err(format!("the tap by hand has seen {count} frames")),
        }
    }

    fn tap(&mut self, count: usize) -> Result<Sample, String> {
        let mut tap = Tap::new(RING, self.setting.keep, usual)?;
        let readers: Result<Vec<_>, _> = (0..count).map(|_| Reader::start(&tap, 1)).collect();
        let readers = readers?;
        let device = self.floods.seen.device()?;
        tap.attach(&self.floods.seen.pair.server, device)?;
        self.floods.send(BEFORE)?;
        for reader in &readers {
            reader.seen(BEFORE as u64)?;
        }
        let used = || readers.iter().map(|reader| processor_ns(reader.process())).sum::<u64>();
        let (before, bells) = (used(), tap.bells());
        let took = self.floods.send(FRAMES)?;
        let (mut lost, all) = (0, (BEFORE + FRAMES) as u64);
        for reader in &readers {
            lost += reader.seen(all)?.lost;
        }
        let lost = lost as f64 / (FRAMES * count.max(1)) as f64;
        let sample = Sample::new(FRAMES, took, used() - before);
        Ok(Sample { lost, bells: tap.bells() - bells, ..sample })
    }

    fn tcpdumps(&mut self, count: usize) -> Result<Sample, String> {
        let (folder, all) = (&self.folder.0, vec![String::new(); count]);
        let pair = &self.floods.seen.pair;
        let tcpdumps = Tcpdumps::start(pair, folder, &all, (RING, self.setting.keep))?;
        let sample = Sample::of(&mut self.floods, &tcpdumps.processes(), (BEFORE, FRAMES))?;
        let told = tcpdumps.end(folder)?;
        let lost = told.iter().fold(0_u64, |all, told| all.saturating_add(told.lost));
        Ok(Sample { lost: lost as f64 / (FRAMES * count) as f64, ..sample })
    }
}

/// All samples of one length, round by round.
struct Figures {
    setting: Setting,
    taken: Taken<Observers>,
}

impl Figures {
    fn rows(&self) -> Vec<Row> {
        let mut all = Vec::new();
        for (count, name) in READERS {
            let both = [(TCPDUMP, Observers::Tcpdumps(count)), (OURS, Observers::Ours(count))];
            let cost = |taken: &Taken<_>, who| taken.each(who, Sample::cost);
            all.extend(self.compared(name, count as f64, "ns CPU/frame", &both, cost));
            let kernel = |taken: &Taken<_>, who| taken.each(who, Sample::kernel);
            let none = (NOBODY, Observers::Nobody);
            let three = [none, both[0], both[1]];
            let rate = |taken: &Taken<_>, who| taken.each(who, |sample| 1e6 / sample.sending);
            all.extend(self.compared(name, f64::NAN, "kframes/s", &three, rate));
            // Nothing divided by nothing is no ratio: each alone.
            for one in both {
                let lost = |taken: &Taken<_>, who| taken.each(who, |sample| sample.lost * 100.0);
                all.extend(self.compared(name, f64::NAN, "ns kernel/frame", &[one], kernel));
                all.extend(self.compared(name, f64::NAN, "% lost", &[one], lost));
            }
        }
        let kernel = |taken: &Taken<_>, who| taken.each(who, Sample::kernel);
        let none = [(NOBODY, Observers::Nobody)];
        all.extend(self.compared("no observer", f64::NAN, "ns kernel/frame", &none, kernel));
        let bells = |taken: &Taken<_>, who| taken.each(who, |sample| sample.bells as f64);
        let taps = COPIED.map(|(bytes, name)| (Observers::Copied(bytes), name));
        for (who, name) in taps.into_iter().chain([(Observers::Left, "nobody comes")]) {
            let tap = [(OURS, who)];
            all.extend(self.compared(name, f64::NAN, "bells", &tap, bells));
            all.extend(self.compared(name, f64::NAN, "ns kernel/frame", &tap, kernel));
        }
        for (bytes, clock, name) in BARE {
            let bare = [(name, Observers::Bare(bytes, clock))];
            all.extend(self.compared("no reader", f64::NAN, "ns kernel/frame", &bare, kernel));
        }
        all.extend(self.goals());
        all
    }

    /// G15, and what issue and figure 15 want of ten readers.
    fn goals(&self) -> Vec<Row> {
        let kernel = |readers| self.taken.each(Observers::Ours(readers), Sample::kernel);
        let [left, copied] = [Observers::Left, Observers::Copied(RING)]
            .map(|tap| self.taken.each(tap, Sample::kernel));
        let [one, ten] = [1, 10].map(kernel);
        let added: Vec<f64> = one.iter().zip(&ten).map(|(one, ten)| (ten - one) / 9.0).collect();
        let mut all = vec![
            self.at_most("added reader, in the kernel", added, ADDED_NS),
            self.at_most("tap without readers", left, ALONE_NS),
            self.at_most("tap without readers, while it copies", copied, ALONE_NS),
        ];
        let sent = |readers| self.taken.each(Observers::Ours(readers), |sample| sample.alone);
        let alone = median(&[sent(1), sent(10)].concat());
        // What varies of sending itself is no matter of those who observe.
        let rate = |name, kernel: &[f64]| Samples {
            name,
            values: kernel.iter().map(|ns| 1e6 / (alone + ns)).collect(),
        };
        let rates = [rate(WITH_ONE, &one), rate(WITH_TEN, &ten)];
        all.extend(self.goal("10 readers", ("kframes/s", Better::More), &rates, 0.9));
        let theirs = self.taken.each(Observers::Tcpdumps(1), Sample::cost);
        if !theirs.is_empty() {
            let ours = self.taken.each(Observers::Ours(10), Sample::cost);
            let costs = [
                Samples { name: ONE_TCPDUMP, values: theirs },
                Samples { name: WITH_TEN, values: ours },
            ];
            all.extend(self.goal("10 readers", ("ns CPU/frame", Better::Less), &costs, 1.0));
        }
        all
    }

    /// The rows of a goal: the second of these against the first.
    fn goal(
        &self,
        row: &str,
        unit: (&'static str, Better),
        samples: &[Samples; 2],
        target: f64,
    ) -> Vec<Row> {
        let [reference, candidate] = [samples[0].name, samples[1].name];
        let goal = Goal { candidate, reference, goal: "G15", target };
        let row = format!("{}, {row}", self.setting.name);
        let made =
            rows(("capture", &row, f64::NAN), unit, self.taken.sentinel_ns, samples, &[goal]);
        made.into_iter().filter(|row| row.goal.is_some()).collect()
    }

    /// A row that must not exceed a number of ns.
    fn at_most(&self, row: &str, values: Vec<f64>, limit: f64) -> Row {
        let row = format!("{}, {row}", self.setting.name);
        let samples = [Samples { name: OURS, values }];
        let subject = ("capture", row.as_str(), f64::NAN);
        let mut made =
            rows(subject, ("ns/frame", Better::Less), self.taken.sentinel_ns, &samples, &[]);
        let mut row = made.remove(0);
        // Noise may make it less than nothing.
        (row.reference, row.ratio) = (LIMIT, limit / row.value.max(1.0));
        (row.goal, row.target) = (Some("G15"), Some(1.0));
        row
    }

    fn compared(
        &self,
        row: &str,
        x: f64,
        unit: &'static str,
        who: &[(&'static str, Observers)],
        value: impl Fn(&Taken<Observers>, Observers) -> Vec<f64>,
    ) -> Vec<Row> {
        let samples =
            who.iter().map(|(name, who)| Samples { name, values: value(&self.taken, *who) });
        let samples: Vec<_> = samples.filter(|samples| !samples.values.is_empty()).collect();
        let better = if unit == "kframes/s" { Better::More } else { Better::Less };
        let row = format!("{}, {row}", self.setting.name);
        // One picture: that of the short frames.
        let x = if self.setting.length < 100 { x } else { f64::NAN };
        rows(("capture", &row, x), (unit, better), self.taken.sentinel_ns, &samples, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn rows_show_the_cost_of_an_added_reader() {
        let sample = |kernel| {
            let alone = 1000.0;
            Sample { sending: alone + kernel, alone, ..Sample::new(1, Took::default(), 10) }
        };
        let all = [
            (Observers::Left, 50.0),
            (Observers::Copied(RING), 100.0),
            (Observers::Ours(1), 110.0),
            (Observers::Ours(10), 200.0),
            (Observers::Tcpdumps(1), 400.0),
        ];
        let all = all.map(|(who, kernel)| (who, vec![sample(kernel); 3])).to_vec();
        let taken = Taken { all, sentinel_ns: 0.0 };
        let goals = Figures { setting: SETTINGS[0], taken }.goals();
        let told: Vec<_> = goals.iter().map(|row| (row.value, row.ratio, row.target)).collect();
        assert_eq!(told[0], (10.0, 3.0, Some(1.0)));
        assert_eq!(told[1], (50.0, 3.0, Some(1.0)));
        assert_eq!(told[2], (100.0, 1.5, Some(1.0)));
        assert!((told[3].1 - 1110.0 / 1200.0).abs() < 1e-9);
        assert_eq!(told[4], (210.0, 410.0 / 210.0, Some(1.0)));
    }
}
