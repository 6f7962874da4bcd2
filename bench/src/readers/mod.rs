//! `bench readers`: capture programs at one interface, each writing whole frames. [SL fig. 15]
//! Goal G20, FEATURES V8
//!
//! Frames of 1400 bytes are sent over a veth pair to a host that receives them: at 100,000 per
//! second and at full rate to ten programs that write to /dev/null, and at 100,000 per second to
//! one program that writes to a file in memory. Candidates are stock tcpdumps, requests `rx IF |
//! pcap FILE` that run alone, and the same requests with a daemon, which combines their kernel
//! filters into one program. Programs run on the second processor.
//!
//! The cost has two parts: in the kernel, the additional time of sending compared with an
//! unobserved veth pair ([`crate::observation_cost`]); and the processor time of the processes, the
//! daemon included. Lost frames are counted; the bench fails if a ledger does not balance.

mod requests;

use crate::flood::{FloodPair, ReceivingHost, WANTED_PORT};
use crate::harness::{BetterDirection, Goal, Samples, is_row_selected, rows_of_samples};
use crate::observation_cost::{ObserverSample, ObserverSamples};
use crate::options::Options;
use crate::processes::is_installed;
use crate::row::Row;
use crate::tcpdump::{RunningTcpdumps, TCPDUMP};
use crate::temp_directory::TempDirectory;
use requests::{DaemonUse, RunningRequests};
use std::path::Path;

/// Length of each frame in bytes.
const FRAME_LENGTH: usize = 1400;
/// Number of frames sent in one sample, that is, in one measurement of one candidate.
const FRAMES_PER_SAMPLE: usize = 100_000;
/// Number of frames sent for warm-up before a sample.
const WARM_UP_FRAMES: usize = 2_000;
/// Ring size and maximum captured length of a stock tcpdump, both in bytes.
const STOCK_RING_AND_SNAPLEN: (u32, u32) = (2 << 20, 262_144);
/// Maximum processor time of ten programs in ns per frame, excluding the kernel's share (goal G20).
const TEN_READERS_NS_MAX: f64 = 1_500.0;

const NO_OBSERVER_NAME: &str = "no observer";
const WITHOUT_DAEMON_NAME: &str = "streamline";
const WITH_DAEMON_NAME: &str = "with a daemon";
const LIMIT_NAME: &str = "limit";

/// The setting of a measurement: the load that is sent, and the programs that capture it.
#[derive(Clone, Copy, Debug)]
struct ReadersSetting {
    name: &'static str,
    programs: usize,
    /// Number of frames to send per second, or `None` for the full rate.
    rate: Option<f64>,
    /// True if the programs write to files in memory, otherwise to /dev/null.
    to_files: bool,
}

const SETTINGS: [ReadersSetting; 3] = [
    ReadersSetting { name: "ten, 100 kpps", programs: 10, rate: Some(1e5), to_files: false },
    ReadersSetting { name: "ten, full rate", programs: 10, rate: None, to_files: false },
    ReadersSetting {
        name: "one to a file, 100 kpps",
        programs: 1,
        rate: Some(1e5),
        to_files: true,
    },
];

/// The programs that capture while a sample is measured, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Observers {
    NoObserver,
    Tcpdumps,
    Requests(DaemonUse),
}

const CANDIDATES: [(&str, Observers); 3] = [
    (TCPDUMP, Observers::Tcpdumps),
    (WITHOUT_DAEMON_NAME, Observers::Requests(DaemonUse::WithoutDaemon)),
    (WITH_DAEMON_NAME, Observers::Requests(DaemonUse::WithDaemon)),
];

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf()
        .ok_or("needs CAP_BPF and CAP_NET_ADMIN: its requests load programs")?;
    let memory = Path::new("/dev/shm");
    let base = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let folder = TempDirectory::new_in(&base, "readers").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for setting in SETTINGS.into_iter().filter(|setting| is_row_selected(setting.name)) {
        let mut floods =
            FloodPair::with_ports(&[WANTED_PORT], FRAME_LENGTH, ReceivingHost::Receives)?;
        floods.set_rate(setting.rate);
        all.extend(ReadersBench { floods, folder: &folder, setting }.measure_rows(options.rounds)?);
    }
    Ok(all)
}

struct ReadersBench<'b> {
    floods: FloodPair,
    folder: &'b TempDirectory,
    setting: ReadersSetting,
}

impl ReadersBench<'_> {
    fn measure_rows(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let tcpdump = is_installed(TCPDUMP, "tcpdump");
        let wanted = CANDIDATES.map(|(_, who)| who).into_iter();
        let wanted = wanted.filter(|who| tcpdump || *who != Observers::Tcpdumps);
        let all: Vec<Observers> = [Observers::NoObserver].into_iter().chain(wanted).collect();
        let taken =
            ObserverSamples::measure_all(rounds, &all, |observers| self.measure_with(observers))?;
        Ok(result_rows(self.setting, &taken))
    }

    /// Measures one sample while `observers` observe the flood.
    fn measure_with(&mut self, observers: Observers) -> Result<ObserverSample, String> {
        let ReadersSetting { programs, to_files, .. } = self.setting;
        let path = |number: usize| match to_files {
            true => self.folder.0.join(format!("{number}.pcap")).display().to_string(),
            false => "/dev/null".to_owned(),
        };
        let files: Vec<String> = (0..programs).map(path).collect();
        let pair = std::sync::Arc::clone(&self.floods.observed.pair);
        let frames = (WARM_UP_FRAMES, FRAMES_PER_SAMPLE);
        let (sample, lost) = match observers {
            Observers::NoObserver => (ObserverSample::measure(&mut self.floods, &[], frames)?, 0),
            Observers::Tcpdumps => {
                let tcpdumps = RunningTcpdumps::start_writing_files(
                    &pair,
                    &self.folder.0,
                    &files,
                    STOCK_RING_AND_SNAPLEN,
                )?;
                let sample =
                    ObserverSample::measure(&mut self.floods, &tcpdumps.process_ids(), frames)?;
                let reports = tcpdumps.stop(&self.folder.0)?;
                (sample, reports.iter().fold(0_u64, |all, report| all.saturating_add(report.lost)))
            }
            Observers::Requests(start) => {
                let lines = RunningRequests::start(&pair.server, &self.folder.0, &files, start)?;
                let sample =
                    ObserverSample::measure(&mut self.floods, &lines.process_ids(), frames)?;
                (sample, lines.stop((WARM_UP_FRAMES + FRAMES_PER_SAMPLE) as u64)?)
            }
        };
        // The next sample must start without these files.
        for file in files.iter().filter(|_| to_files) {
            let _ = std::fs::remove_file(file);
        }
        Ok(ObserverSample { lost: lost as f64 / (FRAMES_PER_SAMPLE * programs) as f64, ..sample })
    }
}

/// Returns the rows of a setting: the sender's rate, the total cost, the costs in processes and in
/// the kernel, and losses.
fn result_rows(setting: ReadersSetting, taken: &ObserverSamples<Observers>) -> Vec<Row> {
    let values = |value: &dyn Fn(&ObserverSample) -> f64| -> Vec<Samples> {
        let each = CANDIDATES.iter();
        let each = each.map(|(name, who)| Samples { name, values: taken.values(*who, value) });
        each.filter(|samples| !samples.values.is_empty()).collect()
    };
    let made = |unit, better, samples: &[Samples], goals: &[Goal]| {
        rows_of_samples(
            ("readers", setting.name, f64::NAN),
            (unit, better),
            taken.sentinel_ns,
            samples,
            goals,
        )
    };
    let goal = |candidate, reference, target| Goal { candidate, reference, goal: "G20", target };
    let ten = setting.programs > 1;
    let mut all = Vec::new();
    if setting.rate.is_none() {
        let mut rates = values(&|sample| 1e6 / sample.sending);
        // Sending itself varies between samples, so the reference is from the same samples.
        let alone =
            taken.values(Observers::Requests(DaemonUse::WithDaemon), |one| 1e6 / one.unobserved);
        rates.insert(0, Samples { name: NO_OBSERVER_NAME, values: alone });
        let reached = [goal(WITH_DAEMON_NAME, NO_OBSERVER_NAME, 0.9)];
        all.extend(made("kframes/s", BetterDirection::More, &rates, &reached));
    }
    let cost: &[Goal] = match (ten, setting.rate) {
        (true, None) => &[goal(WITH_DAEMON_NAME, TCPDUMP, 2.5)],
        (false, _) => {
            &[goal(WITHOUT_DAEMON_NAME, TCPDUMP, 1.0), goal(WITH_DAEMON_NAME, TCPDUMP, 1.0)]
        }
        _ => &[],
    };
    all.extend(made(
        "ns CPU/frame",
        BetterDirection::Less,
        &values(&ObserverSample::total_cost),
        cost,
    ));
    let processes = values(&|sample| sample.processes);
    all.extend(made("ns in programs/frame", BetterDirection::Less, &processes, &[]));
    if ten && setting.rate.is_some() {
        let daemon_samples = processes.iter().find(|samples| samples.name == WITH_DAEMON_NAME);
        all.extend(daemon_samples.and_then(|daemon_samples| {
            let unit = "ns in programs/frame";
            let mut row =
                made(unit, BetterDirection::Less, std::slice::from_ref(daemon_samples), &[])
                    .pop()?;
            (row.reference, row.ratio) = (LIMIT_NAME, TEN_READERS_NS_MAX / row.value.max(1.0));
            (row.goal, row.target) = (Some("G20"), Some(1.0));
            Some(row)
        }));
    }
    // 0 divided by 0 is not a ratio, so each observer has its own group of rows.
    for one in values(&ObserverSample::kernel_cost) {
        all.extend(made("ns kernel/frame", BetterDirection::Less, &[one], &[]));
    }
    for one in values(&|sample| sample.lost * 100.0) {
        all.extend(made("% lost", BetterDirection::Less, &[one], &[]));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::SendTimes;

    #[test]
    fn goals_compare_rate_cost_and_time_in_programs() {
        let sample = |sending, processes| ObserverSample {
            sending,
            unobserved: 2000.0,
            ..ObserverSample::new(1, SendTimes::default(), processes)
        };
        let all = [
            (Observers::NoObserver, sample(2000.0, 0)),
            (Observers::Tcpdumps, sample(5000.0, 3000)),
            (Observers::Requests(DaemonUse::WithoutDaemon), sample(4000.0, 1500)),
            (Observers::Requests(DaemonUse::WithDaemon), sample(2500.0, 1000)),
        ];
        let all = all.map(|(who, sample)| (who, vec![sample; 3])).to_vec();
        let taken = ObserverSamples { all, sentinel_ns: 0.0 };
        let goals = |setting| -> Vec<_> {
            let rows = result_rows(setting, &taken).into_iter().filter(|row| row.goal.is_some());
            rows.map(|row| (row.candidate, row.reference, row.ratio, row.target)).collect()
        };
        assert_eq!(goals(SETTINGS[0]), [(WITH_DAEMON_NAME, LIMIT_NAME, 1.5, Some(1.0))]);
        let full = [
            (WITH_DAEMON_NAME, NO_OBSERVER_NAME, 0.8, Some(0.9)),
            (WITH_DAEMON_NAME, TCPDUMP, 4.0, Some(2.5)),
        ];
        assert_eq!(goals(SETTINGS[1]), full);
        let one = [
            (WITHOUT_DAEMON_NAME, TCPDUMP, 6000.0 / 3500.0, Some(1.0)),
            (WITH_DAEMON_NAME, TCPDUMP, 4.0, Some(1.0)),
        ];
        assert_eq!(goals(SETTINGS[2]), one);
    }
}
