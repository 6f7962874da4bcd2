//! `bench share`: several users at one interface, each with a line of its own. FEATURES O6, O7
//!
//! UDP to many ports is sent flat out over a virtual cable. 1, 2, 5 and 10 users, none of whom has
//! any privilege, each run a line that picks one port and writes its frames to nowhere; a daemon
//! runs what the lines begin with as one program for all. Against as many tcpdumps with the same
//! filters, each of which has a packet socket and a filter of its own in the kernel. Who reads is
//! on the second processor. Rows `one thread` are the lines again, their sinks pinned to the thread
//! that reads: what the crossing between the two costs.
//!
//! What it costs is what the whole machine does beyond the work of the sender alone: what sending
//! takes longer than over a cable with nobody at it, and the processor time of the processes,
//! the daemon among them. Rows tell frames that were sent per second of that; who loses frames is
//! charged for it, by the share that it lost. Where the ledger of a user does not balance, where
//! frames are neither seen nor lost, or where there is more than one program, the bench fails.

mod users;

use crate::flood::{Floods, Host, OTHER, WANTED};
use crate::folder::Folder;
use crate::harness::{Better, Samples, is_wanted, rows};
use crate::observed::{Sample, Taken};
use crate::options::Options;
use crate::processes::installed;
use crate::row::Row;
use crate::tcpdump::{TCPDUMP, Tcpdumps};
use users::{House, Seen};

/// The numbers of users.
const USERS: [(u16, &str); 4] = [(1, "1 user"), (2, "2 users"), (5, "5 users"), (10, "10 users")];
const MOST: u16 = 10;
/// Frames of a sample, and those that are sent before, unmeasured. Each user wants one in twenty:
/// ten users want half of them.
const FRAMES: usize = 200_000;
const BEFORE: usize = 2_000;
const ONE_IN: usize = 20;
/// The frames sent for each user.
const EACH: u64 = ((BEFORE + FRAMES) / ONE_IN) as u64;
const LENGTH: usize = 64;
/// Bytes of every ring, in MB.
const RING_MB: u32 = 4;

const NOBODY: &str = "nobody";
const OURS: &str = "streamline";
const TOGETHER: &str = "one thread";

/// The observers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Observers {
    Nobody,
    Users(u16),
    /// The same with the sink in the thread that reads the ring.
    Together(u16),
    Tcpdumps(u16),
}

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: its daemon loads programs")?;
    let folder = Folder::new("share").map_err(|why| why.to_string())?;
    let others = std::iter::repeat_n(OTHER, ONE_IN - usize::from(MOST));
    let ports: Vec<u16> = (0..MOST).map(port).chain(others).collect();
    let floods = Floods::to(&ports, LENGTH, Host::Ignores)?;
    let house = House::start(&floods.seen.pair.server, &folder.0, MOST)?;
    let mut bench = Bench { floods, folder: &folder, house };
    let mut all = vec![Observers::Nobody];
    let wanted = USERS.iter().filter(|(_, name)| is_wanted(name)).map(|(count, _)| *count);
    let wanted: Vec<u16> = wanted.collect();
    all.extend(wanted.iter().copied().map(Observers::Users));
    all.extend(wanted.iter().copied().map(Observers::Together));
    if installed(TCPDUMP, "tcpdump") {
        all.extend(wanted.into_iter().map(Observers::Tcpdumps));
    }
    let taken = Taken::take(options.rounds, &all, |observers| bench.observe(observers))?;
    bench.house.end()?;
    Ok(told(&taken))
}

/// The port that a user looks for.
fn port(user: u16) -> u16 {
    WANTED + user
}

struct Bench<'b> {
    floods: Floods,
    folder: &'b Folder,
    house: House,
}

impl Bench<'_> {
    /// Sends while they observe.
    fn observe(&mut self, observers: Observers) -> Result<Sample, String> {
        match observers {
            Observers::Nobody => Sample::of(&mut self.floods, &[], (BEFORE, FRAMES)),
            Observers::Users(count) => self.users(count, ""),
            Observers::Together(count) => self.users(count, "@thread0"),
            Observers::Tcpdumps(count) => self.tcpdumps(count),
        }
    }

    /// Users whose sinks are pinned so.
    fn users(&mut self, count: u16, pin: &str) -> Result<Sample, String> {
        let users = self.house.users(&self.floods.seen.pair.server, count, pin)?;
        let processes = [self.house.processes(), users.processes()].concat();
        let sample = Sample::of(&mut self.floods, &processes, (BEFORE, FRAMES))?;
        // The program is still one, and all lines are in it.
        self.house.shared(count)?;
        let seen = users.end(&self.house)?;
        lost("a user", &seen, sample)
    }

    fn tcpdumps(&mut self, count: u16) -> Result<Sample, String> {
        let filters = (0..count).map(|user| format!("udp dst port {}", port(user)));
        let filters: Vec<String> = filters.collect();
        let rings = (RING_MB << 20, 2048);
        let tcpdumps = Tcpdumps::start(&self.floods.seen.pair, &self.folder.0, &filters, rings)?;
        let sample = Sample::of(&mut self.floods, &tcpdumps.processes(), (BEFORE, FRAMES))?;
        let told = tcpdumps.end(&self.folder.0)?;
        let seen = told
            .iter()
            .map(|told| Seen { seen: told.received.saturating_sub(told.lost), lost: told.lost });
        lost(TCPDUMP, &seen.collect::<Vec<_>>(), sample)
    }
}

/// The sample with the part of what all wanted that they did not see. Everybody has either seen
/// or lost what was sent for it.
fn lost(who: &str, all: &[Seen], sample: Sample) -> Result<Sample, String> {
    let unexplained = all.iter().find(|one| one.seen.saturating_add(one.lost) != EACH);
    if let Some(Seen { seen, lost }) = unexplained {
        return Err(format!("{who} has seen {seen} frames and lost {lost}: {EACH} were sent"));
    }
    let lost: u64 = all.iter().map(|one| one.lost).sum();
    Ok(Sample { lost: lost as f64 / (EACH * all.len().max(1) as u64) as f64, ..sample })
}

/// Rows: the rate, what it costs in all and in the kernel alone, and what was lost.
fn told(taken: &Taken<Observers>) -> Vec<Row> {
    let made = |row: &str, x, (unit, better), samples: Vec<Samples>| {
        let there: Vec<_> = samples.into_iter().filter(|one| !one.values.is_empty()).collect();
        rows(("share", row, x), (unit, better), taken.sentinel_ns, &there, &[])
    };
    let alone = taken.each(Observers::Nobody, |sample| 1e6 / sample.sending);
    let alone = vec![Samples { name: NOBODY, values: alone }];
    let mut all = made("the sender alone", f64::NAN, ("kframes/CPU s", Better::More), alone);
    for (count, name) in USERS {
        let both = [
            (TCPDUMP, Observers::Tcpdumps(count)),
            (OURS, Observers::Users(count)),
            (TOGETHER, Observers::Together(count)),
        ];
        let each = |value: &dyn Fn(Observers) -> Vec<f64>| {
            both.map(|(name, who)| Samples { name, values: value(who) }).into_iter().collect()
        };
        let x = f64::from(count);
        let rates = each(&|who| rates(taken, who));
        all.extend(made(name, x, ("kframes/CPU s", Better::More), rates));
        let costs = each(&|who| taken.each(who, Sample::cost));
        all.extend(made(name, x, ("ns CPU/frame", Better::Less), costs));
        let kernel: Vec<Samples> = each(&|who| taken.each(who, Sample::kernel));
        let lost: Vec<Samples> = each(&|who| taken.each(who, |sample| sample.lost * 100.0));
        // Nothing divided by nothing is no ratio: each alone.
        for (unit, samples) in [("ns kernel/frame", kernel), ("% lost", lost)] {
            for one in samples {
                all.extend(made(name, f64::NAN, (unit, Better::Less), vec![one]));
            }
        }
    }
    all
}

/// Frames that were seen, in thousands for each second of what observing costs.
fn rates(taken: &Taken<Observers>, who: Observers) -> Vec<f64> {
    taken.each(who, |sample| (1.0 - sample.lost) * 1e6 / sample.cost())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flood::Took;

    #[test]
    fn rows_show_frames_per_second_beyond_the_sender() {
        let sample = |sending, lost| {
            let alone = 1000.0;
            Sample { sending, alone, lost, ..Sample::new(1, Took::default(), 100) }
        };
        let all = [
            (Observers::Nobody, sample(1000.0, 0.0)),
            (Observers::Users(2), sample(1100.0, 0.0)),
            (Observers::Tcpdumps(2), sample(1300.0, 0.5)),
        ];
        let all = all.map(|(who, sample)| (who, vec![sample; 3])).to_vec();
        let rows = told(&Taken { all, sentinel_ns: 0.0 });
        let of = |unit: &str| -> Vec<_> {
            let rows = rows.iter().filter(|row| row.unit == unit);
            rows.map(|row| (row.row.as_str(), row.candidate, row.value, row.ratio)).collect()
        };
        let rates = [
            ("the sender alone", NOBODY, 1000.0, 1.0),
            ("2 users", TCPDUMP, 1250.0, 1.0),
            ("2 users", OURS, 5000.0, 4.0),
        ];
        assert_eq!(of("kframes/CPU s"), rates);
        let costs = [("2 users", TCPDUMP, 400.0, 1.0), ("2 users", OURS, 200.0, 2.0)];
        assert_eq!(of("ns CPU/frame"), costs);
        let kernel: Vec<_> = of("ns kernel/frame").iter().map(|row| row.2).collect();
        assert_eq!(kernel, [300.0, 100.0]);
        assert_eq!(of("% lost").iter().map(|row| row.2).collect::<Vec<_>>(), [50.0, 0.0]);
    }

    #[test]
    fn unaccounted_frames_give_no_row() {
        let sample = Sample::new(1, Took::default(), 0);
        let half = Seen { seen: EACH / 2, lost: EACH - EACH / 2 };
        let all = Seen { seen: EACH, lost: 0 };
        assert_eq!(lost("a user", &[half, all], sample).unwrap().lost, 0.25);
        let less = Seen { seen: EACH - 1, lost: 0 };
        let why = lost("a user", &[all, less], sample).unwrap_err();
        assert_eq!(why, "a user has seen 10099 frames and lost 0: 10100 were sent");
        let unsaid = Seen { seen: 0, lost: u64::MAX };
        assert!(lost(TCPDUMP, &[unsaid], sample).is_err());
    }
}
