//! `bench capture`: several observers of one stream of packets. [SL fig. 15], goal G15
//!
//! A flood is sent at full rate over a veth pair: first without observers, then to 1, 2, 5 and 10
//! tcpdumps, each with its own packet socket, and to as many processes that read one kernel ring. A
//! program at traffic control writes each frame to the ring once, and a doorbell with the wake
//! policy of a request wakes all readers. Readers run on the second processor and copy the captured
//! bytes of each frame, as tcpdump does before it writes to /dev/null. At the paper's 200 Mbit/s,
//! ten tcpdumps are no load any more; hence the flood.
//!
//! A tap without readers stops copying after a while; one row shows its cost then, another its cost
//! of copying while doorbells are drained and no frame is read.
//!
//! The cost of a copy depends on the amount of memory that the copies cycle through. So a minimal
//! tap in C (`bench/c/bare_tap.c`, compiled by clang at run time) is measured too, with rings of
//! several sizes.
//!
//! The cost is measured in two places: in the kernel, as the additional time of sending compared
//! with an unobserved veth pair, alternately ([`crate::observed`]); and in the processes. Lost
//! frames are counted. The same measurement without observers shows its error.

use crate::by_hand::{CProgram, CSource};
use crate::flood::{Floods, Host, SendTimes};
use crate::folder::Folder;
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::observed::{ObserverSamples, Sample};
use crate::options::Options;
use crate::processes::{installed, processor_ns};
use crate::row::Row;
use crate::tap::{Tap, TapReader, default_policy, default_policy_for_many};
use crate::tcpdump::{TCPDUMP, Tcpdumps};
use ebpf::emit::tap::UNREAD_LAPS;
use sys::bpf::ring::region_offset;
use sys::bpf::{Anchor, Link, ProgramKind, Side};

/// Numbers of observers, with their names in rows.
const READERS: [(usize, &str); 4] =
    [(1, "1 reader"), (2, "2 readers"), (5, "5 readers"), (10, "10 readers")];
/// Frame lengths and captured bytes, with their names in rows.
const SETTINGS: [FrameSetting; 3] = [
    FrameSetting { length: 64, keep: 2048, name: "64 B" },
    FrameSetting { length: 1500, keep: 96, name: "96 of 1500 B" },
    FrameSetting { length: 1500, keep: 2048, name: "1500 B" },
];
/// Number of frames per sample, and of warm-up frames before it.
const FRAMES: usize = 100_000;
const BEFORE: usize = 2_000;
/// Ring size in bytes.
const RING: u32 = 4 << 20;
/// Ring sizes of a tap whose doorbells are drained while no frame is read, with their names in
/// rows.
const DRAINED_RINGS: [(u32, &str); 3] =
    [(RING, "no reader, 4 MB"), (1 << 20, "no reader, 1 MB"), (512 << 10, "no reader, 512 KB")];
/// Number of ring sizes sent between two drains of the doorbell; a tap stops copying if it is not
/// drained for longer.
const RINGS: u32 = 8;
/// Ring size of a tap in C, true if it reads the clock, and the name in rows.
const C_TAPS: [(u32, bool, &str); 5] = [
    (256 << 10, false, "by hand, 256 KB"),
    (1 << 20, false, "by hand, 1 MB"),
    (RING, false, "by hand, 4 MB"),
    (256 << 10, true, "by hand with a clock, 256 KB"),
    (RING, true, "by hand with a clock, 4 MB"),
];
/// Memory that a tap in C uses besides its ring, in bytes: counters, pointers, and the longest
/// captured frame.
const C_TAP_OVERHEAD: u32 = 24 + 16 * (1 << 14) + 2048;
const OURS: &str = "streamline";
const NO_OBSERVER: &str = "nobody";
const WITH_ONE: &str = "1 of ours";
const WITH_TEN: &str = "10 of ours";
const ONE_TCPDUMP: &str = "1 tcpdump";
const LIMIT: &str = "what it may cost";
/// Limits of the kernel's cost for an added reader, and for a tap without readers, in ns per frame
/// (G15).
const ADDED_NS: f64 = 30.0;
const ALONE_NS: f64 = 150.0;

#[derive(Clone, Copy, Debug)]
struct FrameSetting {
    length: usize,
    keep: u32,
    name: &'static str,
}

/// The observers of a flood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CaptureObservers {
    NoObserver,
    /// A tap with the given number of readers, which all wait for one doorbell.
    Ours(usize),
    /// A tap with a ring of the given size in bytes, whose doorbells are drained while no frame is
    /// read.
    Drained(u32),
    /// A tap without a reader.
    Unread,
    Tcpdumps(usize),
    /// A tap in C with an unread ring of the given size in bytes; true if it reads the clock.
    CTap(u32, bool),
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    let folder = Folder::new("capture").map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for setting in SETTINGS {
        let floods = Floods::new(setting.length, 1, Host::Receives)?;
        rows.extend(CaptureBench { floods, folder: &folder, setting }.run(options.rounds)?);
    }
    Ok(rows)
}

struct CaptureBench<'b> {
    floods: Floods,
    folder: &'b Folder,
    setting: FrameSetting,
}

impl CaptureBench<'_> {
    fn run(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let mut all = vec![CaptureObservers::NoObserver, CaptureObservers::Unread];
        all.extend(DRAINED_RINGS.map(|(bytes, _)| CaptureObservers::Drained(bytes)));
        all.extend(READERS.map(|(count, _)| CaptureObservers::Ours(count)));
        if installed(TCPDUMP, "tcpdump") {
            all.extend(READERS.map(|(count, _)| CaptureObservers::Tcpdumps(count)));
        }
        if installed("clang", "clang") {
            all.extend(C_TAPS.map(|(bytes, clock, _)| CaptureObservers::CTap(bytes, clock)));
        }
        let taken = ObserverSamples::take(rounds, &all, |observers| self.observe(observers))?;
        Ok(Figures { setting: self.setting, taken }.rows())
    }

    /// Measures a sample with the given observers.
    fn observe(&mut self, observers: CaptureObservers) -> Result<Sample, String> {
        match observers {
            CaptureObservers::NoObserver => {
                self.floods.send(BEFORE)?;
                Ok(Sample::new(FRAMES, self.floods.send(FRAMES)?, 0))
            }
            CaptureObservers::Ours(readers) => self.tap(readers),
            CaptureObservers::Drained(bytes) => self.copied(bytes),
            CaptureObservers::Unread => self.left(),
            CaptureObservers::Tcpdumps(count) => self.tcpdumps(count),
            CaptureObservers::CTap(bytes, clock) => self.bare(bytes, clock),
        }
    }

    /// Returns the number of frames that fill a ring.
    fn frames_in(&self, ring: u32) -> usize {
        let bss_size = self.setting.length.min(self.setting.keep as usize);
        ring as usize / (bss_size + region_offset::HEADER as usize)
    }

    fn copied(&mut self, ring: u32) -> Result<Sample, String> {
        let mut tap = self.attached(ring)?;
        self.floods.send(BEFORE)?;
        let at_once = self.frames_in(RINGS * ring);
        let (mut took, mut left, doorbells) = (SendTimes::default(), FRAMES, tap.doorbells());
        while left > 0 {
            tap.drain_doorbell();
            let sent = self.floods.send(left.min(at_once))?;
            took = SendTimes {
                observed: took.observed + sent.observed,
                unobserved: took.unobserved + sent.unobserved,
            };
            left = left.saturating_sub(at_once);
        }
        Ok(Sample { doorbells: tap.doorbells() - doorbells, ..Sample::new(FRAMES, took, 0) })
    }

    fn left(&mut self) -> Result<Sample, String> {
        let tap = self.attached(RING)?;
        // Until it stops copying, and one ring more.
        self.floods.observed.send(self.frames_in(RING << UNREAD_LAPS) + self.frames_in(RING))?;
        let (doorbells, whole) = (tap.doorbells(), tap.committed());
        let sample = Sample::new(FRAMES, self.floods.send(FRAMES)?, 0);
        if tap.committed() != whole {
            return Err("a tap that nobody comes to still copies".to_owned());
        }
        Ok(Sample { doorbells: tap.doorbells() - doorbells, ..sample })
    }

    fn attached(&self, ring: u32) -> Result<Tap, String> {
        let mut tap = Tap::new(ring, self.setting.keep, default_policy)?;
        tap.attach(&self.floods.observed.pair.server, self.floods.observed.device()?)?;
        Ok(tap)
    }

    fn bare(&mut self, bytes: u32, clock: bool) -> Result<Sample, String> {
        let mut defined = vec![format!("RING={bytes}"), format!("MOST={}", self.setting.keep)];
        defined.extend(clock.then(|| "CLOCK".to_owned()));
        let text = include_str!("../../c/bare_tap.c");
        let source =
            CSource { name: "bare_tap", text, defined: &defined, bss_size: bytes + C_TAP_OVERHEAD };
        let tap = CProgram::load(&self.folder.0, ProgramKind::Tc, source)?;
        let device = self.floods.observed.device()?;
        let head = || Link::tcx(&tap.program, device, Side::Ingress, Anchor::Head, None);
        let _link = self.floods.observed.pair.server.enter(head).map_err(|why| why.to_string())?;
        self.floods.send(BEFORE)?;
        let took = self.floods.send(FRAMES)?;
        match tap.numbers() {
            [_, count] if count == (BEFORE + FRAMES) as u64 => Ok(Sample::new(FRAMES, took, 0)),
            [_, count] => Err(format!("the tap by hand has seen {count} frames")),
        }
    }

    fn tap(&mut self, count: usize) -> Result<Sample, String> {
        let mut tap = Tap::new(RING, self.setting.keep, default_policy_for_many)?;
        let readers: Result<Vec<_>, _> = (0..count).map(|_| TapReader::start(&tap, 1)).collect();
        let readers = readers?;
        let device = self.floods.observed.device()?;
        tap.attach(&self.floods.observed.pair.server, device)?;
        self.floods.send(BEFORE)?;
        for reader in &readers {
            reader.observed(BEFORE as u64)?;
        }
        let used = || readers.iter().map(|reader| processor_ns(reader.process())).sum::<u64>();
        let (before, doorbells) = (used(), tap.doorbells());
        let took = self.floods.send(FRAMES)?;
        let (mut lost, all) = (0, (BEFORE + FRAMES) as u64);
        for reader in &readers {
            lost += reader.observed(all)?.lost;
        }
        let lost = lost as f64 / (FRAMES * count.max(1)) as f64;
        let sample = Sample::new(FRAMES, took, used() - before);
        Ok(Sample { lost, doorbells: tap.doorbells() - doorbells, ..sample })
    }

    fn tcpdumps(&mut self, count: usize) -> Result<Sample, String> {
        let (folder, all) = (&self.folder.0, vec![String::new(); count]);
        let pair = &self.floods.observed.pair;
        let tcpdumps = Tcpdumps::start(pair, folder, &all, (RING, self.setting.keep))?;
        let sample = Sample::of(&mut self.floods, &tcpdumps.processes(), (BEFORE, FRAMES))?;
        let reports = tcpdumps.end(folder)?;
        let lost = reports.iter().fold(0_u64, |all, reports| all.saturating_add(reports.lost));
        Ok(Sample { lost: lost as f64 / (FRAMES * count) as f64, ..sample })
    }
}

/// The samples of one frame length, in rounds.
struct Figures {
    setting: FrameSetting,
    taken: ObserverSamples<CaptureObservers>,
}

impl Figures {
    fn rows(&self) -> Vec<Row> {
        let mut all = Vec::new();
        for (count, name) in READERS {
            let both = [
                (TCPDUMP, CaptureObservers::Tcpdumps(count)),
                (OURS, CaptureObservers::Ours(count)),
            ];
            let cost = |taken: &ObserverSamples<_>, who| taken.each(who, Sample::cost);
            all.extend(self.compared(name, count as f64, "ns CPU/frame", &both, cost));
            let kernel = |taken: &ObserverSamples<_>, who| taken.each(who, Sample::kernel);
            let none = (NO_OBSERVER, CaptureObservers::NoObserver);
            let three = [none, both[0], both[1]];
            let rate =
                |taken: &ObserverSamples<_>, who| taken.each(who, |sample| 1e6 / sample.sending);
            all.extend(self.compared(name, f64::NAN, "kframes/s", &three, rate));
            // Each alone: 0 divided by 0 is no ratio.
            for one in both {
                let lost =
                    |taken: &ObserverSamples<_>, who| taken.each(who, |sample| sample.lost * 100.0);
                all.extend(self.compared(name, f64::NAN, "ns kernel/frame", &[one], kernel));
                all.extend(self.compared(name, f64::NAN, "% lost", &[one], lost));
            }
        }
        let kernel = |taken: &ObserverSamples<_>, who| taken.each(who, Sample::kernel);
        let none = [(NO_OBSERVER, CaptureObservers::NoObserver)];
        all.extend(self.compared("no observer", f64::NAN, "ns kernel/frame", &none, kernel));
        let doorbells =
            |taken: &ObserverSamples<_>, who| taken.each(who, |sample| sample.doorbells as f64);
        let taps = DRAINED_RINGS.map(|(bytes, name)| (CaptureObservers::Drained(bytes), name));
        for (who, name) in taps.into_iter().chain([(CaptureObservers::Unread, "nobody comes")]) {
            let tap = [(OURS, who)];
            all.extend(self.compared(name, f64::NAN, "bells", &tap, doorbells));
            all.extend(self.compared(name, f64::NAN, "ns kernel/frame", &tap, kernel));
        }
        for (bytes, clock, name) in C_TAPS {
            let bare = [(name, CaptureObservers::CTap(bytes, clock))];
            all.extend(self.compared("no reader", f64::NAN, "ns kernel/frame", &bare, kernel));
        }
        all.extend(self.goals());
        all
    }

    /// Returns the rows of goal G15, and of figure 15's comparison with ten readers.
    fn goals(&self) -> Vec<Row> {
        let kernel = |readers| self.taken.each(CaptureObservers::Ours(readers), Sample::kernel);
        let [left, copied] = [CaptureObservers::Unread, CaptureObservers::Drained(RING)]
            .map(|tap| self.taken.each(tap, Sample::kernel));
        let [one, ten] = [1, 10].map(kernel);
        let added: Vec<f64> = one.iter().zip(&ten).map(|(one, ten)| (ten - one) / 9.0).collect();
        let mut all = vec![
            self.at_most("added reader, in the kernel", added, ADDED_NS),
            self.at_most("tap without readers", left, ALONE_NS),
            self.at_most("tap without readers, while it copies", copied, ALONE_NS),
        ];
        let sent =
            |readers| self.taken.each(CaptureObservers::Ours(readers), |sample| sample.unobserved);
        let alone = median(&[sent(1), sent(10)].concat());
        // Variation of sending itself does not concern the observers.
        let rate = |name, kernel: &[f64]| Samples {
            name,
            values: kernel.iter().map(|ns| 1e6 / (alone + ns)).collect(),
        };
        let rates = [rate(WITH_ONE, &one), rate(WITH_TEN, &ten)];
        all.extend(self.goal("10 readers", ("kframes/s", Better::More), &rates, 0.9));
        let theirs = self.taken.each(CaptureObservers::Tcpdumps(1), Sample::cost);
        if !theirs.is_empty() {
            let ours = self.taken.each(CaptureObservers::Ours(10), Sample::cost);
            let costs = [
                Samples { name: ONE_TCPDUMP, values: theirs },
                Samples { name: WITH_TEN, values: ours },
            ];
            all.extend(self.goal("10 readers", ("ns CPU/frame", Better::Less), &costs, 1.0));
        }
        all
    }

    /// Returns the rows of a goal that compares the second candidate with the first.
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

    /// Returns a row with an upper limit in ns.
    fn at_most(&self, row: &str, values: Vec<f64>, limit: f64) -> Row {
        let row = format!("{}, {row}", self.setting.name);
        let samples = [Samples { name: OURS, values }];
        let subject = ("capture", row.as_str(), f64::NAN);
        let mut made =
            rows(subject, ("ns/frame", Better::Less), self.taken.sentinel_ns, &samples, &[]);
        let mut row = made.remove(0);
        // Noise may make the difference negative.
        (row.reference, row.ratio) = (LIMIT, limit / row.value.max(1.0));
        (row.goal, row.target) = (Some("G15"), Some(1.0));
        row
    }

    fn compared(
        &self,
        row: &str,
        x: f64,
        unit: &'static str,
        who: &[(&'static str, CaptureObservers)],
        value: impl Fn(&ObserverSamples<CaptureObservers>, CaptureObservers) -> Vec<f64>,
    ) -> Vec<Row> {
        let samples =
            who.iter().map(|(name, who)| Samples { name, values: value(&self.taken, *who) });
        let samples: Vec<_> = samples.filter(|samples| !samples.values.is_empty()).collect();
        let better = if unit == "kframes/s" { Better::More } else { Better::Less };
        let row = format!("{}, {row}", self.setting.name);
        // One picture: the short frames.
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
            let unobserved = 1000.0;
            Sample {
                sending: unobserved + kernel,
                unobserved,
                ..Sample::new(1, SendTimes::default(), 10)
            }
        };
        let all = [
            (CaptureObservers::Unread, 50.0),
            (CaptureObservers::Drained(RING), 100.0),
            (CaptureObservers::Ours(1), 110.0),
            (CaptureObservers::Ours(10), 200.0),
            (CaptureObservers::Tcpdumps(1), 400.0),
        ];
        let all = all.map(|(who, kernel)| (who, vec![sample(kernel); 3])).to_vec();
        let taken = ObserverSamples { all, sentinel_ns: 0.0 };
        let goals = Figures { setting: SETTINGS[0], taken }.goals();
        let reports: Vec<_> = goals.iter().map(|row| (row.value, row.ratio, row.target)).collect();
        assert_eq!(reports[0], (10.0, 3.0, Some(1.0)));
        assert_eq!(reports[1], (50.0, 3.0, Some(1.0)));
        assert_eq!(reports[2], (100.0, 1.5, Some(1.0)));
        assert!((reports[3].1 - 1110.0 / 1200.0).abs() < 1e-9);
        assert_eq!(reports[4], (210.0, 410.0 / 210.0, Some(1.0)));
    }
}
