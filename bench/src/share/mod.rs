//! `bench share`: the cost of several users' requests at one interface, compared with one tcpdump
//! per user; and of several requests of one user ([`prefix`]). FEATURES O6, O7
//!
//! UDP to many ports is sent at full rate over a veth pair. 1, 2, 5 and 10 unprivileged users each
//! run a request that selects one port and writes its frames to /dev/null. A daemon runs the
//! filters with which all requests begin as one program. The peers are the same numbers of tcpdumps
//! with equivalent filters, each with its own packet socket and kernel filter. Readers run on the
//! second processor. In the rows `one thread`, the sinks of the requests are pinned to the reading
//! thread, which shows the cost of the crossing.
//!
//! The cost is the processor time of the machine minus the time of sending alone: the additional
//! time of sending compared with an unobserved veth pair, and the processor time of the processes,
//! including the daemon. Rows are received frames per second of this cost. The bench fails if a
//! user's ledger does not balance, if frames are neither observed nor lost, or if there is more
//! than one program.

mod prefix;
mod users;

pub(crate) use users::parse_ledger;

use crate::flood::{FloodPair, ReceivingHost, UNWANTED_PORT, WANTED_PORT};
use crate::harness::{BetterDirection, Samples, is_row_selected, rows_of_samples};
use crate::observation_cost::{ObserverSample, ObserverSamples};
use crate::options::Options;
use crate::processes::is_installed;
use crate::row::Row;
use crate::tcpdump::{RunningTcpdumps, TCPDUMP};
use crate::temp_directory::TempDirectory;
use users::{FrameCounts, SharedDaemon};

/// Numbers of users, each with its name in the result rows.
const USER_COUNTS: [(u16, &str); 4] =
    [(1, "1 user"), (2, "2 users"), (5, "5 users"), (10, "10 users")];
const USER_COUNT_MAX: u16 = 10;
/// Number of frames sent in one sample, that is, in one measurement of one set of observers.
const FRAMES_PER_SAMPLE: usize = 200_000;
/// Number of frames sent before a sample, for warm-up.
const WARM_UP_FRAMES: usize = 2_000;
/// One in this many frames of the flood goes to a given user.
const USER_FRAME_INTERVAL: usize = 20;
/// Number of frames sent for each user, including the frames for warm-up.
const FRAMES_PER_USER: u64 = ((WARM_UP_FRAMES + FRAMES_PER_SAMPLE) / USER_FRAME_INTERVAL) as u64;
/// Length of each frame in bytes.
const FRAME_LENGTH: usize = 64;
/// Size of the packet ring of each tcpdump, in MB.
const RING_MB: u32 = 4;

const NO_OBSERVER_NAME: &str = "no observer";
const OUR_NAME: &str = "streamline";
const ONE_THREAD_NAME: &str = "one thread";

/// The users or programs that observe frames while a sample is measured, if any.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ShareObservers {
    NoObserver,
    Users(u16),
    /// The given number of users, whose sinks run in the thread that reads the ring.
    OneThread(u16),
    Tcpdumps(u16),
}

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf()
        .ok_or("needs CAP_BPF and CAP_NET_ADMIN: its daemon loads programs")?;
    let mut prefixes = prefix::run_bench(options)?;
    if !USER_COUNTS.iter().any(|(_, name)| is_row_selected(name)) {
        return Ok(prefixes);
    }
    let folder = TempDirectory::new("share").map_err(|why| why.to_string())?;
    let others =
        std::iter::repeat_n(UNWANTED_PORT, USER_FRAME_INTERVAL - usize::from(USER_COUNT_MAX));
    let ports: Vec<u16> = (0..USER_COUNT_MAX).map(port_of_user).chain(others).collect();
    let floods = FloodPair::with_ports(&ports, FRAME_LENGTH, ReceivingHost::Ignores)?;
    let daemon = SharedDaemon::start(&floods.observed.pair.server, &folder.0, USER_COUNT_MAX)?;
    let mut bench = ShareBench { floods, folder: &folder, daemon };
    let mut all = vec![ShareObservers::NoObserver];
    let wanted =
        USER_COUNTS.iter().filter(|(_, name)| is_row_selected(name)).map(|(count, _)| *count);
    let wanted: Vec<u16> = wanted.collect();
    all.extend(wanted.iter().copied().map(ShareObservers::Users));
    all.extend(wanted.iter().copied().map(ShareObservers::OneThread));
    if is_installed(TCPDUMP, "tcpdump") {
        all.extend(wanted.into_iter().map(ShareObservers::Tcpdumps));
    }
    let taken = ObserverSamples::measure_all(options.rounds, &all, |observers| {
        bench.measure_with(observers)
    })?;
    bench.daemon.stop()?;
    prefixes.extend(result_rows(&taken));
    Ok(prefixes)
}

/// Returns the port that a user selects.
fn port_of_user(user: u16) -> u16 {
    WANTED_PORT + user
}

struct ShareBench<'b> {
    floods: FloodPair,
    folder: &'b TempDirectory,
    daemon: SharedDaemon,
}

impl ShareBench<'_> {
    /// Measures one sample while `observers` observe the flood.
    fn measure_with(&mut self, observers: ShareObservers) -> Result<ObserverSample, String> {
        match observers {
            ShareObservers::NoObserver => {
                ObserverSample::measure(&mut self.floods, &[], (WARM_UP_FRAMES, FRAMES_PER_SAMPLE))
            }
            ShareObservers::Users(count) => self.measure_users(count, ""),
            ShareObservers::OneThread(count) => self.measure_users(count, "@thread0"),
            ShareObservers::Tcpdumps(count) => self.measure_tcpdumps(count),
        }
    }

    /// Measures one sample with `count` users. The text `pin` pins the sinks of their requests.
    fn measure_users(&mut self, count: u16, pin: &str) -> Result<ObserverSample, String> {
        let users = self.daemon.start_users(&self.floods.observed.pair.server, count, pin)?;
        let processes = [self.daemon.process_ids(), users.process_ids()].concat();
        let sample = ObserverSample::measure(
            &mut self.floods,
            &processes,
            (WARM_UP_FRAMES, FRAMES_PER_SAMPLE),
        )?;
        // The program must still be the only one, and run all requests.
        self.daemon.check_shared_program(count)?;
        let observed = users.stop(&self.daemon)?;
        add_losses("a user", &observed, sample)
    }

    fn measure_tcpdumps(&mut self, count: u16) -> Result<ObserverSample, String> {
        let filters = (0..count).map(|user| format!("udp dst port {}", port_of_user(user)));
        let filters: Vec<String> = filters.collect();
        let rings = (RING_MB << 20, 2048);
        let tcpdumps =
            RunningTcpdumps::start(&self.floods.observed.pair, &self.folder.0, &filters, rings)?;
        let sample = ObserverSample::measure(
            &mut self.floods,
            &tcpdumps.process_ids(),
            (WARM_UP_FRAMES, FRAMES_PER_SAMPLE),
        )?;
        let reports = tcpdumps.stop(&self.folder.0)?;
        let observed = reports.iter().map(|report| FrameCounts {
            observed: report.received.saturating_sub(report.lost),
            lost: report.lost,
        });
        add_losses(TCPDUMP, &observed.collect::<Vec<_>>(), sample)
    }
}

/// Adds the share of lost frames to the sample. Fails unless each observer has received or lost
/// every frame that was sent for it.
fn add_losses(
    who: &str,
    all: &[FrameCounts],
    sample: ObserverSample,
) -> Result<ObserverSample, String> {
    let unexplained =
        all.iter().find(|one| one.observed.saturating_add(one.lost) != FRAMES_PER_USER);
    if let Some(FrameCounts { observed, lost }) = unexplained {
        return Err(format!(
            "{who} has seen {observed} frames and lost {lost}: {FRAMES_PER_USER} were sent"
        ));
    }
    let lost: u64 = all.iter().map(|one| one.lost).sum();
    Ok(ObserverSample {
        lost: lost as f64 / (FRAMES_PER_USER * all.len().max(1) as u64) as f64,
        ..sample
    })
}

/// Returns the rows: the rate, the total cost, the kernel's cost, and losses.
fn result_rows(taken: &ObserverSamples<ShareObservers>) -> Vec<Row> {
    let made = |row: &str, x, (unit, better), samples: Vec<Samples>| {
        let there: Vec<_> = samples.into_iter().filter(|one| !one.values.is_empty()).collect();
        rows_of_samples(("share", row, x), (unit, better), taken.sentinel_ns, &there, &[])
    };
    let alone = taken.values(ShareObservers::NoObserver, |sample| 1e6 / sample.sending);
    let alone = vec![Samples { name: NO_OBSERVER_NAME, values: alone }];
    let mut all =
        made("the sender alone", f64::NAN, ("kframes/CPU s", BetterDirection::More), alone);
    for (count, name) in USER_COUNTS {
        let both = [
            (TCPDUMP, ShareObservers::Tcpdumps(count)),
            (OUR_NAME, ShareObservers::Users(count)),
            (ONE_THREAD_NAME, ShareObservers::OneThread(count)),
        ];
        let each = |value: &dyn Fn(ShareObservers) -> Vec<f64>| {
            both.map(|(name, who)| Samples { name, values: value(who) }).into_iter().collect()
        };
        let x = f64::from(count);
        let frame_rates = each(&|who| frame_rates(taken, who));
        all.extend(made(name, x, ("kframes/CPU s", BetterDirection::More), frame_rates));
        let costs = each(&|who| taken.values(who, ObserverSample::total_cost));
        all.extend(made(name, x, ("ns CPU/frame", BetterDirection::Less), costs));
        let kernel: Vec<Samples> = each(&|who| taken.values(who, ObserverSample::kernel_cost));
        let lost: Vec<Samples> = each(&|who| taken.values(who, |sample| sample.lost * 100.0));
        // 0 divided by 0 is not a ratio, so each observer has its own group of rows.
        for (unit, samples) in [("ns kernel/frame", kernel), ("% lost", lost)] {
            for one in samples {
                all.extend(made(name, f64::NAN, (unit, BetterDirection::Less), vec![one]));
            }
        }
    }
    all
}

/// Returns, for each sample of an observer, the rate in thousands of received frames per second of
/// processor time spent on observing.
fn frame_rates(taken: &ObserverSamples<ShareObservers>, who: ShareObservers) -> Vec<f64> {
    taken.values(who, |sample| (1.0 - sample.lost) * 1e6 / sample.total_cost())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::SendTimes;

    #[test]
    fn rows_show_frames_per_second_beyond_the_sender() {
        let sample = |sending, lost| {
            let unobserved = 1000.0;
            ObserverSample {
                sending,
                unobserved,
                lost,
                ..ObserverSample::new(1, SendTimes::default(), 100)
            }
        };
        let all = [
            (ShareObservers::NoObserver, sample(1000.0, 0.0)),
            (ShareObservers::Users(2), sample(1100.0, 0.0)),
            (ShareObservers::Tcpdumps(2), sample(1300.0, 0.5)),
        ];
        let all = all.map(|(who, sample)| (who, vec![sample; 3])).to_vec();
        let rows = result_rows(&ObserverSamples { all, sentinel_ns: 0.0 });
        let of = |unit: &str| -> Vec<_> {
            let rows = rows.iter().filter(|row| row.unit == unit);
            rows.map(|row| (row.row.as_str(), row.candidate, row.value, row.ratio)).collect()
        };
        let frame_rates = [
            ("the sender alone", NO_OBSERVER_NAME, 1000.0, 1.0),
            ("2 users", TCPDUMP, 1250.0, 1.0),
            ("2 users", OUR_NAME, 5000.0, 4.0),
        ];
        assert_eq!(of("kframes/CPU s"), frame_rates);
        let costs = [("2 users", TCPDUMP, 400.0, 1.0), ("2 users", OUR_NAME, 200.0, 2.0)];
        assert_eq!(of("ns CPU/frame"), costs);
        let kernel: Vec<_> = of("ns kernel/frame").iter().map(|row| row.2).collect();
        assert_eq!(kernel, [300.0, 100.0]);
        assert_eq!(of("% lost").iter().map(|row| row.2).collect::<Vec<_>>(), [50.0, 0.0]);
    }

    #[test]
    fn unaccounted_frames_are_an_error() {
        let sample = ObserverSample::new(1, SendTimes::default(), 0);
        let half = FrameCounts {
            observed: FRAMES_PER_USER / 2,
            lost: FRAMES_PER_USER - FRAMES_PER_USER / 2,
        };
        let all = FrameCounts { observed: FRAMES_PER_USER, lost: 0 };
        assert_eq!(add_losses("a user", &[half, all], sample).unwrap().lost, 0.25);
        let less = FrameCounts { observed: FRAMES_PER_USER - 1, lost: 0 };
        let why = add_losses("a user", &[all, less], sample).unwrap_err();
        assert_eq!(why, "a user has seen 10099 frames and lost 0: 10100 were sent");
        let unsaid = FrameCounts { observed: 0, lost: u64::MAX };
        assert!(add_losses(TCPDUMP, &[unsaid], sample).is_err());
    }
}
