//! `bench pcap`: stock tcpdumps that capture through libpcap, compared with the
//! same command lines under `streamline exec`, which read one ring. [SL §4.3, fig. 15] Goal G20
//!
//! Frames of 1400 bytes are sent over a veth pair to a host that receives them: at full rate to ten
//! tcpdumps that capture whole frames or 96 bytes of each, and at 100,000 per second to one
//! tcpdump. Whole frames are also captured at the device `any`. All tcpdumps write to /dev/null and
//! have the default buffer sizes. Under `exec`, the programs run alone, or with a daemon, which
//! provides one kernel program and one ring for all of them. They run on the second processor.
//!
//! The cost has two parts: in the kernel, the additional time of sending compared with an
//! unobserved veth pair ([`crate::observation_cost`]); and the processor time of the processes, the
//! daemon included. Lost frames are counted. The bench fails if a program under `exec` has not read
//! all of its frames from a ring, or if the numbers of captured and dropped frames do not add up to
//! the number of frames sent.

mod programs;

use crate::flood::{FloodPair, ReceivingHost, WANTED_PORT};
use crate::harness::{BetterDirection, Goal, Samples, is_row_selected, rows_of_samples};
use crate::observation_cost::{ObserverSample, ObserverSamples};
use crate::options::Options;
use crate::processes::is_installed;
use crate::row::Row;
use crate::tcpdump::TCPDUMP;
use crate::temp_directory::TempDirectory;
use programs::{RunningCaptures, TcpdumpLaunch};
use testkit::net::SERVER_DEVICE;

/// Length of each frame in bytes.
const FRAME_LENGTH: usize = 1400;
/// Number of frames sent in one sample, that is, in one measurement of one candidate.
const FRAMES_PER_SAMPLE: usize = 100_000;
/// Number of frames sent for warm-up before a sample.
const WARM_UP_FRAMES: usize = 2_000;

const NO_OBSERVER_NAME: &str = "no observer";
const WITHOUT_DAEMON_NAME: &str = "exec tcpdump";
const WITH_DAEMON_NAME: &str = "with a daemon";

/// The setting of a measurement: the load that is sent, and the programs that capture it.
#[derive(Clone, Copy, Debug)]
struct PcapSetting {
    name: &'static str,
    programs: usize,
    /// Number of frames to send per second, or `None` for the full rate.
    rate: Option<f64>,
    /// Snapshot length of the tcpdumps in bytes, or `None` for whole frames.
    snapshot: Option<u32>,
    /// Name of the device on which the programs capture.
    device: &'static str,
}

const WHOLE_FRAME_SETTING: PcapSetting = PcapSetting {
    name: "ten, full rate",
    programs: 10,
    rate: None,
    snapshot: None,
    device: SERVER_DEVICE,
};

const SETTINGS: [PcapSetting; 5] = [
    WHOLE_FRAME_SETTING,
    PcapSetting { name: "ten, full rate, -s 96", snapshot: Some(96), ..WHOLE_FRAME_SETTING },
    PcapSetting { name: "ten, full rate, -i any", device: "any", ..WHOLE_FRAME_SETTING },
    PcapSetting { name: "one, 100 kpps", programs: 1, rate: Some(1e5), ..WHOLE_FRAME_SETTING },
    PcapSetting {
        name: "one, 100 kpps, -i any",
        programs: 1,
        rate: Some(1e5),
        device: "any",
        ..WHOLE_FRAME_SETTING
    },
];

/// The programs that capture while a sample is measured, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PcapObservers {
    NoObserver,
    Tcpdumps(TcpdumpLaunch),
}

const CANDIDATES: [(&str, TcpdumpLaunch); 3] = [
    (TCPDUMP, TcpdumpLaunch::Stock),
    (WITHOUT_DAEMON_NAME, TcpdumpLaunch::Exec),
    (WITH_DAEMON_NAME, TcpdumpLaunch::ExecWithDaemon),
];

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    if !is_installed(TCPDUMP, "tcpdump") {
        return Ok(Vec::new());
    }
    let folder = TempDirectory::new("pcap").map_err(|why| why.to_string())?;
    let mut all = Vec::new();
    for setting in SETTINGS.into_iter().filter(|setting| is_row_selected(setting.name)) {
        let mut floods =
            FloodPair::with_ports(&[WANTED_PORT], FRAME_LENGTH, ReceivingHost::Receives)?;
        floods.set_rate(setting.rate);
        let launches = CANDIDATES.map(|(_, launch)| PcapObservers::Tcpdumps(launch));
        let who: Vec<_> = [PcapObservers::NoObserver].into_iter().chain(launches).collect();
        let taken = ObserverSamples::measure_all(options.rounds, &who, |observers| {
            measure(&mut floods, &folder, setting, observers)
        })?;
        all.extend(result_rows(setting, &taken));
    }
    Ok(all)
}

/// Measures one sample while `observers` observe the flood.
fn measure(
    floods: &mut FloodPair,
    folder: &TempDirectory,
    setting: PcapSetting,
    observers: PcapObservers,
) -> Result<ObserverSample, String> {
    let frames = (WARM_UP_FRAMES, FRAMES_PER_SAMPLE);
    let PcapObservers::Tcpdumps(launch) = observers else {
        return ObserverSample::measure(floods, &[], frames);
    };
    let pair = std::sync::Arc::clone(&floods.observed.pair);
    let captures = RunningCaptures::start(
        &pair.server,
        &folder.0,
        launch,
        (setting.programs, setting.snapshot, setting.device),
    )?;
    let sample = ObserverSample::measure(floods, &captures.process_ids(), frames)?;
    let lost = captures.stop((WARM_UP_FRAMES + FRAMES_PER_SAMPLE) as u64)?;
    Ok(ObserverSample {
        lost: lost as f64 / (FRAMES_PER_SAMPLE * setting.programs) as f64,
        ..sample
    })
}

/// Returns the rows of a setting: the sender's rate, the total cost, the costs in processes and in
/// the kernel, and losses.
fn result_rows(setting: PcapSetting, taken: &ObserverSamples<PcapObservers>) -> Vec<Row> {
    let values = |value: &dyn Fn(&ObserverSample) -> f64| -> Vec<Samples> {
        let each = CANDIDATES.iter().map(|(name, launch)| Samples {
            name,
            values: taken.values(PcapObservers::Tcpdumps(*launch), value),
        });
        each.filter(|samples| !samples.values.is_empty()).collect()
    };
    let made = |unit, better, samples: &[Samples], goals: &[Goal]| {
        rows_of_samples(
            ("pcap", setting.name, f64::NAN),
            (unit, better),
            taken.sentinel_ns,
            samples,
            goals,
        )
    };
    let goal = |candidate, reference, target| Goal { candidate, reference, goal: "G20", target };
    let mut all = Vec::new();
    if setting.rate.is_none() {
        let mut rates = values(&|sample| 1e6 / sample.sending);
        // Sending itself varies between samples, so the reference is from the same samples.
        let with_daemon = PcapObservers::Tcpdumps(TcpdumpLaunch::ExecWithDaemon);
        let alone = taken.values(with_daemon, |one| 1e6 / one.unobserved);
        rates.insert(0, Samples { name: NO_OBSERVER_NAME, values: alone });
        let reached = [goal(WITH_DAEMON_NAME, NO_OBSERVER_NAME, 0.9)];
        all.extend(made("kframes/s", BetterDirection::More, &rates, &reached));
    }
    let cost = match setting.programs {
        1 => vec![goal(WITHOUT_DAEMON_NAME, TCPDUMP, 1.0), goal(WITH_DAEMON_NAME, TCPDUMP, 1.0)],
        _ => vec![goal(WITH_DAEMON_NAME, TCPDUMP, 2.5)],
    };
    all.extend(made(
        "ns CPU/frame",
        BetterDirection::Less,
        &values(&ObserverSample::total_cost),
        &cost,
    ));
    let processes = values(&|sample| sample.processes);
    all.extend(made("ns in programs/frame", BetterDirection::Less, &processes, &[]));
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
    fn goals_compare_rate_and_cost_of_stock_tcpdumps() {
        let sample = |sending, processes| ObserverSample {
            sending,
            unobserved: 2000.0,
            ..ObserverSample::new(1, SendTimes::default(), processes)
        };
        let all = [
            (PcapObservers::NoObserver, sample(2000.0, 0)),
            (PcapObservers::Tcpdumps(TcpdumpLaunch::Stock), sample(5000.0, 3000)),
            (PcapObservers::Tcpdumps(TcpdumpLaunch::Exec), sample(4000.0, 1500)),
            (PcapObservers::Tcpdumps(TcpdumpLaunch::ExecWithDaemon), sample(2500.0, 1000)),
        ];
        let all = all.map(|(who, sample)| (who, vec![sample; 3])).to_vec();
        let taken = ObserverSamples { all, sentinel_ns: 0.0 };
        let goals = |setting| -> Vec<_> {
            let rows = result_rows(setting, &taken).into_iter().filter(|row| row.goal.is_some());
            rows.map(|row| (row.candidate, row.reference, row.ratio, row.target)).collect()
        };
        let ten = [
            (WITH_DAEMON_NAME, NO_OBSERVER_NAME, 0.8, Some(0.9)),
            (WITH_DAEMON_NAME, TCPDUMP, 4.0, Some(2.5)),
        ];
        assert_eq!(goals(SETTINGS[0]), ten);
        let one = [
            (WITHOUT_DAEMON_NAME, TCPDUMP, 6000.0 / 3500.0, Some(1.0)),
            (WITH_DAEMON_NAME, TCPDUMP, 4.0, Some(1.0)),
        ];
        assert_eq!(goals(SETTINGS[3]), one);
    }
}
