//! `bench capture`: one stream of packets, several who want all of it. [SL fig. 15], goal G15
//!
//! A flood is sent flat out over a virtual cable, first with nobody at the other end, then with 1,
//! 2, 5 and 10 tcpdumps, each with a packet socket of its own, and with as many processes that read
//! one kernel ring: a program at traffic control writes each frame once, and a bell, which rings
//! when that of a line does, wakes all of them. Readers are on the second processor and copy what
//! they keep of each frame, as tcpdump does before it writes it to nowhere. At the source's 200
//! Mbit/s ten tcpdumps are no load any more, so the flood takes the place of its fixed rate.
//!
//! What a copy costs whoever makes it depends on how much memory the copies go round in. So a tap
//! that has nothing else to do (`bench/c/bare_tap.c`, compiled here by clang) stands beside ours,
//! with rings of several sizes.
//!
//! What it costs is taken in two places: in the kernel, by how much longer sending takes than over
//! a cable with nobody at it, in turn ([`crate::observed`]); and in the processes. What does not
//! arrive is counted. What is taken so with nobody there is what the measurement is worth.

use crate::Options;
use crate::by_hand::{ByHand, Source};
use crate::flood::{Floods, Host};
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::observed::{Sample, Taken};
use crate::processes::{installed, processor_ns};
use crate::replay::Folder;
use crate::row::Row;
use crate::tap::{Bell, Reader, Tap, of_a_line, usual};
use crate::tcpdump::{TCPDUMP, Tcpdumps};
use sys::bpf::{Anchor, Kind, Link, Shape, Side};

/// How many want the stream.
const READERS: [(usize, &str); 4] =
    [(1, "1 reader"), (2, "2 readers"), (5, "5 readers"), (10, "10 readers")];
/// What frames are like: bytes, how many of them are wanted, and what rows call it.
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
/// Bytes of the ring of a tap that nobody reads, and what rows call it.
const ALONE: [(u32, &str); 3] =
    [(RING, "no reader, 4 MB"), (1 << 20, "no reader, 1 MB"), (512 << 10, "no reader, 512 KB")];
/// Bytes of the ring of a tap by hand, and what rows call it.
const BARE: [(u32, &str); 3] =
    [(256 << 10, "by hand, 256 KB"), (1 << 20, "by hand, 1 MB"), (RING, "by hand, 4 MB")];
/// Bytes of such a tap beside its ring, with the longest frame that it keeps: its numbers and its
/// pointers.
const BARE_BESIDE: u32 = 16 + 16 * (1 << 14) + 2048;
const OURS: &str = "streamline";
const NOBODY: &str = "nobody";
const WITH_ONE: &str = "1 of ours";
const WITH_TEN: &str = "10 of ours";
const ONE_TCPDUMP: &str = "1 tcpdump";
const LIMIT: &str = "what it may cost";
/// What an added reader may cost in the kernel, and a tap that nobody reads, in ns per frame (G15).
const ADDED_NS: f64 = 30.0;
const ALONE_NS: f64 = 150.0;

#[derive(Clone, Copy, Debug)]
struct Setting {
    length: usize,
    keep: u32,
    name: &'static str,
}

/// Who observes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Observers {
    Nobody,
    /// A tap with so many readers, who listen to one bell.
    Ours(usize),
    /// A tap of a line, with a ring of so many bytes, which nobody reads: its bell waits for who
    /// takes the ones before.
    Alone(u32),
    Tcpdumps(usize),
    /// A tap by hand with a ring of so many bytes, which nobody reads.
    Bare(u32),
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
        let mut all = vec![Observers::Nobody];
        all.extend(ALONE.map(|(bytes, _)| Observers::Alone(bytes)));
        all.extend(READERS.map(|(count, _)| Observers::Ours(count)));
        if installed(TCPDUMP, "tcpdump") {
            all.extend(READERS.map(|(count, _)| Observers::Tcpdumps(count)));
        }
        if installed("clang", "clang") {
            all.extend(BARE.map(|(bytes, _)| Observers::Bare(bytes)));
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
            Observers::Ours(readers) => self.tap(readers, RING, usual),
            Observers::Alone(bytes) => self.tap(0, bytes, of_a_line),
            Observers::Tcpdumps(count) => self.tcpdumps(count),
            Observers::Bare(bytes) => self.bare(bytes),
        }
    }

    fn bare(&mut self, bytes: u32) -> Result<Sample, String> {
        let defined = [format!("RING={bytes}"), format!("MOST={}", self.setting.keep)];
        let text = include_str!("../../c/bare_tap.c");
        let source =
            Source { name: "bare_tap", text, defined: &defined, kept: bytes + BARE_BESIDE };
        let tap = ByHand::load(&self.folder.0, Kind::Tc, source)?;
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

    fn tap(&mut self, count: usize, ring: u32, when: fn(Shape) -> Bell) -> Result<Sample, String> {
        let mut tap = Tap::new(ring, self.setting.keep, when)?;
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
        for (bytes, name) in ALONE {
            let tap = [(OURS, Observers::Alone(bytes))];
            all.extend(self.compared(name, f64::NAN, "bells", &tap, bells));
            all.extend(self.compared(name, f64::NAN, "ns kernel/frame", &tap, kernel));
        }
        for (bytes, name) in BARE {
            let bare = [(name, Observers::Bare(bytes))];
            all.extend(self.compared("no reader", f64::NAN, "ns kernel/frame", &bare, kernel));
        }
        all.extend(self.goals());
        all
    }

    /// G15, and what issue and figure 15 want of ten readers.
    fn goals(&self) -> Vec<Row> {
        let kernel = |readers| self.taken.each(Observers::Ours(readers), Sample::kernel);
        let tap = self.taken.each(Observers::Alone(RING), Sample::kernel);
        let [one, ten] = [1, 10].map(kernel);
        let added: Vec<f64> = one.iter().zip(&ten).map(|(one, ten)| (ten - one) / 9.0).collect();
        let mut all = vec![
            self.at_most("added reader, in the kernel", added, ADDED_NS),
            self.at_most("tap without readers", tap, ALONE_NS),
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
    use crate::flood::Took;

    #[test]
    fn rows_tell_what_an_added_reader_costs() {
        let sample = |kernel| {
            let alone = 1000.0;
            Sample { sending: alone + kernel, alone, ..Sample::new(1, Took::default(), 10) }
        };
        let all = [
            (Observers::Alone(RING), 100.0),
            (Observers::Ours(1), 110.0),
            (Observers::Ours(10), 200.0),
            (Observers::Tcpdumps(1), 400.0),
        ];
        let all = all.map(|(who, kernel)| (who, vec![sample(kernel); 3])).to_vec();
        let taken = Taken { all, sentinel_ns: 0.0 };
        let goals = Figures { setting: SETTINGS[0], taken }.goals();
        let told: Vec<_> = goals.iter().map(|row| (row.value, row.ratio, row.target)).collect();
        assert_eq!(told[0], (10.0, 3.0, Some(1.0)));
        assert_eq!(told[1], (100.0, 1.5, Some(1.0)));
        assert!((told[2].1 - 1110.0 / 1200.0).abs() < 1e-9);
        assert_eq!(told[3], (210.0, 410.0 / 210.0, Some(1.0)));
    }
}
