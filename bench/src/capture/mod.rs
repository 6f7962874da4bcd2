//! `bench capture`: the cost of several observers of one packet stream: tcpdumps, each with its own
//! packet socket, compared with readers of one kernel ring. [SL fig. 15], goal G15
//!
//! A flood is sent at full rate over a veth pair: first without observers, then to 1, 2, 5 and 10
//! tcpdumps, each with its own packet socket, and to the same numbers of processes that read one
//! kernel ring. A tc program writes each frame to the ring once. A doorbell with the wake policy of
//! a request wakes all readers. Readers run on the second processor and copy the captured bytes of
//! each frame, as tcpdump does before it writes to /dev/null. The rate is not the paper's 200
//! Mbit/s, because ten tcpdumps are no longer a load at that rate.
//!
//! A tap without readers stops copying after a while. One row shows its cost in this state; another
//! shows its cost while it copies, with doorbells being drained and no frame being read.
//!
//! The cost of a copy depends on the amount of memory through which the copies cycle. Therefore, a
//! minimal tap in C (`bench/c/bare_tap.c`, compiled by clang at run time) is also measured, with
//! rings of several sizes.
//!
//! The cost has two parts: in the kernel, the additional time of sending compared with an
//! unobserved veth pair ([`crate::observation_cost`]); and the processor time of the processes.
//! Lost frames are counted. A measurement without observers shows the error of the measurement.

use crate::c_program::{CProgram, CSource};
use crate::flood::{FloodPair, ReceivingHost, SendTimes};
use crate::harness::{BetterDirection, Goal, Samples, median, rows_of_samples};
use crate::observation_cost::{ObserverSample, ObserverSamples};
use crate::options::Options;
use crate::processes::{is_installed, processor_ns};
use crate::row::Row;
use crate::tap::{Tap, TapReader, default_policy, policy_for_several_readers};
use crate::tcpdump::{RunningTcpdumps, TCPDUMP};
use crate::temp_directory::TempDirectory;
use ebpf::emit::tap::UNREAD_LAPS_LOG2;
use sys::bpf::ring::region_offset;
use sys::bpf::{ChainPosition, Link, ProgramKind, TrafficDirection};

/// Numbers of observers that are measured together, each with its name in the result rows.
const OBSERVER_COUNTS: [(usize, &str); 4] =
    [(1, "1 reader"), (2, "2 readers"), (5, "5 readers"), (10, "10 readers")];
/// Lengths of the frames sent, and captured lengths per frame, in bytes; each pair has a name for
/// the result rows.
const FRAME_SETTINGS: [FrameSetting; 3] = [
    FrameSetting { length: 64, keep: 2048, name: "64 B" },
    FrameSetting { length: 1500, keep: 96, name: "96 of 1500 B" },
    FrameSetting { length: 1500, keep: 2048, name: "1500 B" },
];
/// Number of frames sent in one sample, that is, in one measurement of one set of observers.
const FRAMES_PER_SAMPLE: usize = 100_000;
/// Number of frames sent before a sample, for warm-up.
const WARM_UP_FRAMES: usize = 2_000;
/// Size of the kernel ring that the tap writes, in bytes.
const RING_SIZE: u32 = 4 << 20;
/// Ring sizes in bytes of the taps that are measured while their doorbells are drained but no frame
/// is read, each with its name in the result rows.
const DRAINED_RING_SIZES: [(u32, &str); 3] = [
    (RING_SIZE, "no reader, 4 MB"),
    (1 << 20, "no reader, 1 MB"),
    (512 << 10, "no reader, 512 KB"),
];
/// Amount of data sent between two drains of the doorbell, as a multiple of the ring size. A tap
/// without readers stops copying after 1 << [`UNREAD_LAPS_LOG2`] laps, so this number must be
/// smaller.
const RINGS_PER_DRAIN: u32 = 8;
/// Taps in C: the ring size in bytes, a flag that is true if the tap reads the clock, and the name
/// in the result rows.
const C_TAPS: [(u32, bool, &str); 5] = [
    (256 << 10, false, "by hand, 256 KB"),
    (1 << 20, false, "by hand, 1 MB"),
    (RING_SIZE, false, "by hand, 4 MB"),
    (256 << 10, true, "by hand with a clock, 256 KB"),
    (RING_SIZE, true, "by hand with a clock, 4 MB"),
];
/// Memory that a tap in C uses besides its ring, in bytes: counters, pointers, and the longest
/// captured frame.
const C_TAP_OVERHEAD_BYTES: u32 = 24 + 16 * (1 << 14) + 2048;
const OUR_NAME: &str = "streamline";
const NO_OBSERVER_NAME: &str = "no observer";
const ONE_READER_NAME: &str = "1 reader";
const TEN_READERS_NAME: &str = "10 readers";
const ONE_TCPDUMP_NAME: &str = "1 tcpdump";
const LIMIT_NAME: &str = "limit";
/// Goal G15: maximum kernel cost of each additional reader, in ns per frame.
const ADDED_READER_NS_MAX: f64 = 30.0;
/// Goal G15: maximum kernel cost of a tap without readers, in ns per frame.
const UNREAD_TAP_NS_MAX: f64 = 150.0;

#[derive(Clone, Copy, Debug)]
struct FrameSetting {
    length: usize,
    keep: u32,
    name: &'static str,
}

/// The processes or taps that observe the flood while a sample is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CaptureObservers {
    NoObserver,
    /// A tap with the given number of readers, which all wait for one doorbell.
    Readers(usize),
    /// A tap with a ring of the given size in bytes, whose doorbells are drained while no frame is
    /// read.
    DrainedTap(u32),
    /// A tap without a reader, whose doorbells are not drained, so that it stops copying.
    UnreadTap,
    Tcpdumps(usize),
    /// A tap in C with an unread ring of the given size in bytes. The flag is true if the tap reads
    /// the clock.
    CTap(u32, bool),
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    let folder = TempDirectory::new("capture").map_err(|why| why.to_string())?;
    let mut rows = Vec::new();
    for setting in FRAME_SETTINGS {
        let floods = FloodPair::new(setting.length, 1, ReceivingHost::Receives)?;
        rows.extend(
            CaptureBench { floods, folder: &folder, setting }.measure_rows(options.rounds)?,
        );
    }
    Ok(rows)
}

struct CaptureBench<'b> {
    floods: FloodPair,
    folder: &'b TempDirectory,
    setting: FrameSetting,
}

impl CaptureBench<'_> {
    fn measure_rows(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let mut all = vec![CaptureObservers::NoObserver, CaptureObservers::UnreadTap];
        all.extend(DRAINED_RING_SIZES.map(|(bytes, _)| CaptureObservers::DrainedTap(bytes)));
        all.extend(OBSERVER_COUNTS.map(|(count, _)| CaptureObservers::Readers(count)));
        if is_installed(TCPDUMP, "tcpdump") {
            all.extend(OBSERVER_COUNTS.map(|(count, _)| CaptureObservers::Tcpdumps(count)));
        }
        if is_installed("clang", "clang") {
            all.extend(C_TAPS.map(|(bytes, clock, _)| CaptureObservers::CTap(bytes, clock)));
        }
        let taken =
            ObserverSamples::measure_all(rounds, &all, |observers| self.measure_with(observers))?;
        Ok(CaptureSamples { setting: self.setting, taken }.rows())
    }

    /// Measures one sample while `observers` observe the flood.
    fn measure_with(&mut self, observers: CaptureObservers) -> Result<ObserverSample, String> {
        match observers {
            CaptureObservers::NoObserver => {
                self.floods.send(WARM_UP_FRAMES)?;
                Ok(ObserverSample::new(FRAMES_PER_SAMPLE, self.floods.send(FRAMES_PER_SAMPLE)?, 0))
            }
            CaptureObservers::Readers(readers) => self.measure_readers(readers),
            CaptureObservers::DrainedTap(bytes) => self.measure_drained_tap(bytes),
            CaptureObservers::UnreadTap => self.measure_unread_tap(),
            CaptureObservers::Tcpdumps(count) => self.measure_tcpdumps(count),
            CaptureObservers::CTap(bytes, clock) => self.measure_c_tap(bytes, clock),
        }
    }

    /// Returns the number of captured frames that fill a ring of `ring` bytes.
    fn frames_to_fill(&self, ring: u32) -> usize {
        let captured = self.setting.length.min(self.setting.keep as usize);
        ring as usize / (captured + region_offset::RECORD_HEADER_SIZE as usize)
    }

    fn measure_drained_tap(&mut self, ring: u32) -> Result<ObserverSample, String> {
        let mut tap = self.attach_tap(ring)?;
        self.floods.send(WARM_UP_FRAMES)?;
        let at_once = self.frames_to_fill(RINGS_PER_DRAIN * ring);
        let (mut took, mut left, doorbells) =
            (SendTimes::default(), FRAMES_PER_SAMPLE, tap.doorbells_sent());
        while left > 0 {
            tap.drain_doorbell();
            let sent = self.floods.send(left.min(at_once))?;
            took = SendTimes {
                observed: took.observed + sent.observed,
                unobserved: took.unobserved + sent.unobserved,
            };
            left = left.saturating_sub(at_once);
        }
        Ok(ObserverSample {
            doorbells: tap.doorbells_sent() - doorbells,
            ..ObserverSample::new(FRAMES_PER_SAMPLE, took, 0)
        })
    }

    fn measure_unread_tap(&mut self) -> Result<ObserverSample, String> {
        let tap = self.attach_tap(RING_SIZE)?;
        // Floods the tap until it stops copying, and then with another ring of frames.
        self.floods.observed.send(
            self.frames_to_fill(RING_SIZE << UNREAD_LAPS_LOG2) + self.frames_to_fill(RING_SIZE),
        )?;
        let (doorbells, whole) = (tap.doorbells_sent(), tap.committed_position_sum());
        let sample =
            ObserverSample::new(FRAMES_PER_SAMPLE, self.floods.send(FRAMES_PER_SAMPLE)?, 0);
        if tap.committed_position_sum() != whole {
            return Err("a tap without readers still copies".to_owned());
        }
        Ok(ObserverSample { doorbells: tap.doorbells_sent() - doorbells, ..sample })
    }

    fn attach_tap(&self, ring: u32) -> Result<Tap, String> {
        let mut tap = Tap::new(ring, self.setting.keep, default_policy)?;
        tap.attach(
            &self.floods.observed.pair.server,
            self.floods.observed.receiving_device_index()?,
        )?;
        Ok(tap)
    }

    fn measure_c_tap(&mut self, bytes: u32, clock: bool) -> Result<ObserverSample, String> {
        let mut macros = vec![format!("RING={bytes}"), format!("MOST={}", self.setting.keep)];
        macros.extend(clock.then(|| "CLOCK".to_owned()));
        let text = include_str!("../../c/bare_tap.c");
        let source = CSource {
            name: "bare_tap",
            text,
            macros: &macros,
            bss_size: bytes + C_TAP_OVERHEAD_BYTES,
        };
        let tap = CProgram::load(&self.folder.0, ProgramKind::Tc, source)?;
        let device = self.floods.observed.receiving_device_index()?;
        let head = || {
            Link::attach_tcx(
                &tap.program,
                device,
                TrafficDirection::Ingress,
                ChainPosition::Head,
                None,
            )
        };
        let _link = self
            .floods
            .observed
            .pair
            .server
            .run_in_network_namespace(head)
            .map_err(|why| why.to_string())?;
        self.floods.send(WARM_UP_FRAMES)?;
        let took = self.floods.send(FRAMES_PER_SAMPLE)?;
        match tap.bss_words() {
            [_, count] if count == (WARM_UP_FRAMES + FRAMES_PER_SAMPLE) as u64 => {
                Ok(ObserverSample::new(FRAMES_PER_SAMPLE, took, 0))
            }
            [_, count] => Err(format!("the tap by hand has seen {count} frames")),
        }
    }

    fn measure_readers(&mut self, count: usize) -> Result<ObserverSample, String> {
        let mut tap = Tap::new(RING_SIZE, self.setting.keep, policy_for_several_readers)?;
        let readers: Result<Vec<_>, _> = (0..count).map(|_| TapReader::start(&tap, 1)).collect();
        let readers = readers?;
        let device = self.floods.observed.receiving_device_index()?;
        tap.attach(&self.floods.observed.pair.server, device)?;
        self.floods.send(WARM_UP_FRAMES)?;
        for reader in &readers {
            reader.wait_for_records(WARM_UP_FRAMES as u64)?;
        }
        let used = || readers.iter().map(|reader| processor_ns(reader.process_id())).sum::<u64>();
        let (before, doorbells) = (used(), tap.doorbells_sent());
        let took = self.floods.send(FRAMES_PER_SAMPLE)?;
        let (mut lost, all) = (0, (WARM_UP_FRAMES + FRAMES_PER_SAMPLE) as u64);
        for reader in &readers {
            lost += reader.wait_for_records(all)?.lost;
        }
        let lost = lost as f64 / (FRAMES_PER_SAMPLE * count.max(1)) as f64;
        let sample = ObserverSample::new(FRAMES_PER_SAMPLE, took, used() - before);
        Ok(ObserverSample { lost, doorbells: tap.doorbells_sent() - doorbells, ..sample })
    }

    fn measure_tcpdumps(&mut self, count: usize) -> Result<ObserverSample, String> {
        let (folder, all) = (&self.folder.0, vec![String::new(); count]);
        let pair = &self.floods.observed.pair;
        let tcpdumps = RunningTcpdumps::start(pair, folder, &all, (RING_SIZE, self.setting.keep))?;
        let sample = ObserverSample::measure(
            &mut self.floods,
            &tcpdumps.process_ids(),
            (WARM_UP_FRAMES, FRAMES_PER_SAMPLE),
        )?;
        let reports = tcpdumps.stop(folder)?;
        let lost = reports.iter().fold(0_u64, |all, reports| all.saturating_add(reports.lost));
        Ok(ObserverSample { lost: lost as f64 / (FRAMES_PER_SAMPLE * count) as f64, ..sample })
    }
}

/// The samples of all observers for one frame length.
struct CaptureSamples {
    setting: FrameSetting,
    taken: ObserverSamples<CaptureObservers>,
}

impl CaptureSamples {
    fn rows(&self) -> Vec<Row> {
        let mut all = Vec::new();
        for (count, name) in OBSERVER_COUNTS {
            let both = [
                (TCPDUMP, CaptureObservers::Tcpdumps(count)),
                (OUR_NAME, CaptureObservers::Readers(count)),
            ];
            let cost =
                |taken: &ObserverSamples<_>, who| taken.values(who, ObserverSample::total_cost);
            all.extend(self.comparison_rows(name, count as f64, "ns CPU/frame", &both, cost));
            let kernel =
                |taken: &ObserverSamples<_>, who| taken.values(who, ObserverSample::kernel_cost);
            let none = (NO_OBSERVER_NAME, CaptureObservers::NoObserver);
            let three = [none, both[0], both[1]];
            let rate =
                |taken: &ObserverSamples<_>, who| taken.values(who, |sample| 1e6 / sample.sending);
            all.extend(self.comparison_rows(name, f64::NAN, "kframes/s", &three, rate));
            // 0 divided by 0 is not a ratio, so each observer has its own group of rows.
            for one in both {
                let lost = |taken: &ObserverSamples<_>, who| {
                    taken.values(who, |sample| sample.lost * 100.0)
                };
                all.extend(self.comparison_rows(name, f64::NAN, "ns kernel/frame", &[one], kernel));
                all.extend(self.comparison_rows(name, f64::NAN, "% lost", &[one], lost));
            }
        }
        let kernel =
            |taken: &ObserverSamples<_>, who| taken.values(who, ObserverSample::kernel_cost);
        let none = [(NO_OBSERVER_NAME, CaptureObservers::NoObserver)];
        all.extend(self.comparison_rows("no observer", f64::NAN, "ns kernel/frame", &none, kernel));
        let doorbells =
            |taken: &ObserverSamples<_>, who| taken.values(who, |sample| sample.doorbells as f64);
        let taps =
            DRAINED_RING_SIZES.map(|(bytes, name)| (CaptureObservers::DrainedTap(bytes), name));
        for (who, name) in taps.into_iter().chain([(CaptureObservers::UnreadTap, "no reader")]) {
            let tap = [(OUR_NAME, who)];
            all.extend(self.comparison_rows(name, f64::NAN, "bells", &tap, doorbells));
            all.extend(self.comparison_rows(name, f64::NAN, "ns kernel/frame", &tap, kernel));
        }
        for (bytes, clock, name) in C_TAPS {
            let bare = [(name, CaptureObservers::CTap(bytes, clock))];
            all.extend(self.comparison_rows(
                "no reader",
                f64::NAN,
                "ns kernel/frame",
                &bare,
                kernel,
            ));
        }
        all.extend(self.goal_rows());
        all
    }

    /// Returns the rows of goal G15, and the rows that compare ten readers with figure 15 of the
    /// paper.
    fn goal_rows(&self) -> Vec<Row> {
        let kernel = |readers| {
            self.taken.values(CaptureObservers::Readers(readers), ObserverSample::kernel_cost)
        };
        let [left, copied] = [CaptureObservers::UnreadTap, CaptureObservers::DrainedTap(RING_SIZE)]
            .map(|tap| self.taken.values(tap, ObserverSample::kernel_cost));
        let [one, ten] = [1, 10].map(kernel);
        let added: Vec<f64> = one.iter().zip(&ten).map(|(one, ten)| (ten - one) / 9.0).collect();
        let mut all = vec![
            self.limit_row("added reader, in the kernel", added, ADDED_READER_NS_MAX),
            self.limit_row("tap without readers", left, UNREAD_TAP_NS_MAX),
            self.limit_row("tap without readers, while it copies", copied, UNREAD_TAP_NS_MAX),
        ];
        let sent = |readers| {
            self.taken.values(CaptureObservers::Readers(readers), |sample| sample.unobserved)
        };
        let alone = median(&[sent(1), sent(10)].concat());
        // All rates use the same sending time, so that variations in sending do not affect the
        // comparison.
        let rate = |name, kernel: &[f64]| Samples {
            name,
            values: kernel.iter().map(|ns| 1e6 / (alone + ns)).collect(),
        };
        let rates = [rate(ONE_READER_NAME, &one), rate(TEN_READERS_NAME, &ten)];
        all.extend(self.comparison_goal_rows(
            "10 readers",
            ("kframes/s", BetterDirection::More),
            &rates,
            0.9,
        ));
        let theirs = self.taken.values(CaptureObservers::Tcpdumps(1), ObserverSample::total_cost);
        if !theirs.is_empty() {
            let ours = self.taken.values(CaptureObservers::Readers(10), ObserverSample::total_cost);
            let costs = [
                Samples { name: ONE_TCPDUMP_NAME, values: theirs },
                Samples { name: TEN_READERS_NAME, values: ours },
            ];
            all.extend(self.comparison_goal_rows(
                "10 readers",
                ("ns CPU/frame", BetterDirection::Less),
                &costs,
                1.0,
            ));
        }
        all
    }

    /// Returns the rows that compare a candidate with a reference (row G15 of
    /// docs/book/capabilities.md). `samples` contains the samples of the reference, and then those
    /// of the candidate.
    fn comparison_goal_rows(
        &self,
        row: &str,
        unit: (&'static str, BetterDirection),
        samples: &[Samples; 2],
        target: f64,
    ) -> Vec<Row> {
        let [reference, candidate] = [samples[0].name, samples[1].name];
        let goal = Goal { candidate, reference, goal: "G15", target };
        let row = format!("{}, {row}", self.setting.name);
        let made = rows_of_samples(
            ("capture", &row, f64::NAN),
            unit,
            self.taken.sentinel_ns,
            samples,
            &[goal],
        );
        made.into_iter().filter(|row| row.goal.is_some()).collect()
    }

    /// Returns the row of goal G15 that compares a measured cost with an upper limit, both in ns
    /// per frame.
    fn limit_row(&self, row: &str, values: Vec<f64>, limit: f64) -> Row {
        let row = format!("{}, {row}", self.setting.name);
        let samples = [Samples { name: OUR_NAME, values }];
        let subject = ("capture", row.as_str(), f64::NAN);
        let mut made = rows_of_samples(
            subject,
            ("ns/frame", BetterDirection::Less),
            self.taken.sentinel_ns,
            &samples,
            &[],
        );
        let mut row = made.remove(0);
        // Noise may make the difference negative.
        (row.reference, row.ratio) = (LIMIT_NAME, limit / row.value.max(1.0));
        (row.goal, row.target) = (Some("G15"), Some(1.0));
        row
    }

    fn comparison_rows(
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
        let better =
            if unit == "kframes/s" { BetterDirection::More } else { BetterDirection::Less };
        let row = format!("{}, {row}", self.setting.name);
        // Only the rows for short frames are plotted.
        let x = if self.setting.length < 100 { x } else { f64::NAN };
        rows_of_samples(("capture", &row, x), (unit, better), self.taken.sentinel_ns, &samples, &[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn rows_show_the_cost_of_an_added_reader() {
        let sample = |kernel| {
            let unobserved = 1000.0;
            ObserverSample {
                sending: unobserved + kernel,
                unobserved,
                ..ObserverSample::new(1, SendTimes::default(), 10)
            }
        };
        let all = [
            (CaptureObservers::UnreadTap, 50.0),
            (CaptureObservers::DrainedTap(RING_SIZE), 100.0),
            (CaptureObservers::Readers(1), 110.0),
            (CaptureObservers::Readers(10), 200.0),
            (CaptureObservers::Tcpdumps(1), 400.0),
        ];
        let all = all.map(|(who, kernel)| (who, vec![sample(kernel); 3])).to_vec();
        let taken = ObserverSamples { all, sentinel_ns: 0.0 };
        let goals = CaptureSamples { setting: FRAME_SETTINGS[0], taken }.goal_rows();
        let reports: Vec<_> = goals.iter().map(|row| (row.value, row.ratio, row.target)).collect();
        assert_eq!(reports[0], (10.0, 3.0, Some(1.0)));
        assert_eq!(reports[1], (50.0, 3.0, Some(1.0)));
        assert_eq!(reports[2], (100.0, 1.5, Some(1.0)));
        assert!((reports[3].1 - 1110.0 / 1200.0).abs() < 1e-9);
        assert_eq!(reports[4], (210.0, 410.0 / 210.0, Some(1.0)));
    }
}
