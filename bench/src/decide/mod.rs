//! `bench kernel`: what a decision costs in the kernel.
//!
//! `rx | ip | udp | dport |53 count` as it is generated, against the same job in C by hand
//! (`bench/c/count_dns.c`, compiled here by clang), once by test runs, which are exact and hot, and
//! once at a device under a flood, where nftables and tc decide the same. Before anything is
//! measured both programs are asked about frames that are whole, cut at every length and wrong:
//! they must say and count the same.
//!
//! Test runs count whole ns; those of XDP cost 27 ms a call, so that they are few.

mod ours;
mod peers;

use crate::by_hand::{ByHand, Source};
use crate::flood::{Floods, Host, Took, WANTED, udp};
use crate::folder::Folder;
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::options::Options;
use crate::processes::installed;
use crate::row::Row;
use crate::sentinel::Sentinel;
use ebpf::insn::{self, Insn, R0};
pub(crate) use ours::Generated;
use peers::{TOOLS, Tool, hang};
use std::path::Path;
use sys::bpf::{Program, ProgramKind};
use testkit::Frame;

const OURS: &str = "streamline";
const CLANG: &str = "clang";
const EMPTY: &str = "empty program";
const NOBODY: &str = "nobody";
/// The number of runs of a packet with one call.
const REPEAT: u32 = 300_000;
/// The most that a generated program may cost, as a multiple of the one by hand.
const AT_MOST: f64 = 1.2;
/// Frames of a sample; one in two is wanted.
const FRAMES: usize = 200_000;
const ONE_IN: usize = 2;

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let folder = Folder::new("kernel").map_err(|why| why.to_string())?;
    let clang = installed(CLANG, "clang");
    let pair = |kind| -> Result<Pair, String> {
        let by_hand = clang.then(|| by_hand(&folder.0, kind)).transpose()?;
        Ok(Pair { ours: Generated::load(kind)?, by_hand, empty: empty(kind)?, kind })
    };
    let (tc, xdp) = (pair(ProgramKind::Tc)?, pair(ProgramKind::Xdp)?);
    let mut all = Vec::new();
    for pair in [&tc, &xdp] {
        pair.agree()?;
        for (name, frame) in frames() {
            all.extend(pair.test_runs(name, &frame, options.rounds)?);
        }
    }
    let floods = Floods::new(64, ONE_IN, Host::Ignores)?;
    all.extend(Bench { floods, tc: &tc }.run(options.rounds)?);
    Ok(all)
}

/// The frames that are measured.
fn frames() -> [(&'static str, Vec<u8>); 3] {
    [
        ("64 B, counted", udp(WANTED, 64)),
        ("64 B, not counted", udp(WANTED + 1, 64)),
        ("1500 B, counted", udp(WANTED, 1500)),
    ]
}

/// The same job in C.
fn by_hand(folder: &Path, kind: ProgramKind) -> Result<ByHand, String> {
    let defined = if kind == ProgramKind::Xdp { vec!["XDP".to_owned()] } else { Vec::new() };
    let text = include_str!("../../c/count_dns.c");
    ByHand::load(folder, kind, Source { name: "count_dns", text, defined: &defined, kept: 64 })
}

fn empty(kind: ProgramKind) -> Result<Program, String> {
    // At traffic control: others may look too, as for the others here.
    let pass = if kind == ProgramKind::Xdp { 2 } else { -1 };
    let code = insn::encode(&[Insn::mov(R0, pass), Insn::exit()]);
    Program::load(kind, "empty", &code).map_err(|why| why.to_string())
}

/// The same job twice.
struct Pair {
    ours: Generated,
    by_hand: Option<ByHand>,
    empty: Program,
    kind: ProgramKind,
}

impl Pair {
    /// Asks both about many frames.
    fn agree(&self) -> Result<(), String> {
        let Some(by_hand) = &self.by_hand else { return Ok(()) };
        for frame in examples() {
            let (Ok(ours), Ok(theirs)) =
                (self.ours.program.test_run(&frame, 1), by_hand.program.test_run(&frame, 1))
            else {
                // What a test run does not take.
                continue;
            };
            let totals = [self.ours.totals()?, by_hand.numbers::<8>().to_vec()];
            if ours.value != theirs.value || totals[0] != totals[1] {
                let [one, other] = [ours.value, theirs.value];
                return Err(format!(
                    "the generated program and that by hand differ at {:?}: {one:#x} and \
                     {other:#x}, {totals:?}, frame {frame:02x?}",
                    self.kind
                ));
            }
        }
        Ok(())
    }

    fn test_runs(&self, name: &str, frame: &[u8], rounds: usize) -> Result<Vec<Row>, String> {
        let by_hand = self.by_hand.as_ref().map(|by_hand| (CLANG, &by_hand.program));
        let ours = [(OURS, &self.ours.program), (EMPTY, &self.empty)];
        let programs: Vec<_> = by_hand.into_iter().chain(ours).collect();
        let mut samples: Vec<Samples> =
            programs.iter().map(|(name, _)| Samples { name, values: Vec::new() }).collect();
        for round in 0..=rounds {
            for ((_, program), samples) in programs.iter().zip(&mut samples) {
                let ran = program.test_run(frame, REPEAT).map_err(|why| why.to_string())?;
                // The first round warms up.
                if round > 0 {
                    samples.values.push(ran.duration_ns.into());
                }
            }
        }
        let (candidate, reference) = (OURS, CLANG);
        let goal = Goal { candidate, reference, goal: "kernel path", target: 1.0 / AT_MOST };
        let place = if self.kind == ProgramKind::Xdp { "XDP" } else { "TC" };
        let row = format!("{place}, {name}");
        let subject = ("kernel", row.as_str(), f64::NAN);
        Ok(rows(subject, ("ns/frame", Better::Less), Sentinel::take(), &samples, &[goal]))
    }
}

/// Frames whole, wrong, and cut at every length.
fn examples() -> Vec<Vec<u8>> {
    let four = || Frame::ethernet().ipv4("10.77.0.1", "10.77.0.2");
    let six = || Frame::ethernet().ipv6("fd77::1", "fd77::2");
    let mut whole = vec![
        four().udp(4000, WANTED, b"counted"),
        four().udp(WANTED, 4000, b"not counted"),
        four().udp(4000, WANTED, b""),
        four().options(&[1; 8]).udp(4000, WANTED, b"options"),
        four().fragment(0, true).udp(4000, WANTED, b"a fragment"),
        four().fragment(100, false).udp(4000, WANTED, b"another"),
        four().tcp(&testkit::Segment { target: WANTED, ..testkit::Segment::default() }, b"tcp"),
        four().protocol(1, b"\x08\0\0\0"),
        six().udp(4000, WANTED, b"counted"),
        six().extension(0, &[0; 6]).udp(4000, WANTED, b"one extension"),
        six().extension(0, &[0; 6]).extension(60, &[0; 6]).udp(4000, WANTED, b"two"),
        six().extension(44, &[0; 6]).udp(4000, WANTED, b"a fragment"),
        Frame::ethernet().tag(7).ipv4("10.77.0.1", "10.77.0.2").udp(4000, WANTED, b"tagged"),
        Frame::ethernet().tag(7).tag(8).ipv4("10.77.0.1", "10.77.0.2").udp(1, WANTED, b"twice"),
        Frame::ethernet().tag(7).tag(8).tag(9).ipv4("10.77.0.1", "10.77.0.2").udp(1, 53, b""),
        Frame::ethernet().arp(true, "10.77.0.1", "10.77.0.2"),
        Frame::ethernet().ethertype(0x88b5, b"something else"),
        Frame::ethernet().ethertype(0x0100, b"a length"),
    ];
    // Every byte of the headers of one frame, wrong.
    let good = four().udp(4000, WANTED, b"counted");
    for at in 12..42.min(good.len()) {
        for value in [0, 1, 0x45, 0x46, 0x65, 0xff] {
            let mut wrong = good.clone();
            wrong[at] = value;
            whole.push(wrong);
        }
    }
    let cut = |frame: &Vec<u8>| (14..=frame.len()).map(|to| frame[..to].to_vec()).collect();
    whole.iter().flat_map::<Vec<Vec<u8>>, _>(cut).collect()
}

/// The program that decides at the device.
#[derive(Clone, Copy)]
enum Decider<'b> {
    Nobody,
    Program(&'b Program),
    Tool(Tool),
}

struct Bench<'b> {
    floods: Floods,
    tc: &'b Pair,
}

impl Bench<'_> {
    /// Measures the time that deciding adds to a frame of a flood.
    fn run(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let space = &self.floods.seen.pair.server;
        let mut all = vec![(NOBODY, Decider::Nobody)];
        all.push((OURS, Decider::Program(&self.tc.ours.program)));
        all.extend(self.tc.by_hand.as_ref().map(|it| (CLANG, Decider::Program(&it.program))));
        all.push((EMPTY, Decider::Program(&self.tc.empty)));
        let tools = TOOLS.into_iter().filter(|tool| tool.works(space));
        all.extend(tools.map(|tool| (tool.name, Decider::Tool(tool))));
        let empty = |(name, _): &(&'static str, Decider<'_>)| (*name, Vec::new());
        let mut sending: Vec<(&'static str, Vec<Took>)> = all.iter().map(empty).collect();
        let mut sentinels = Vec::new();
        for round in 0..=rounds {
            sentinels.push(Sentinel::take());
            for ((_, decider), (_, samples)) in all.iter().zip(&mut sending) {
                let took = self.decide(*decider)?;
                // The first round warms up.
                if round > 0 {
                    samples.push(took);
                }
            }
        }
        Ok(compared(&sending, median(&sentinels)))
    }

    /// Measures the time of sending while a program decides; one that counts must have counted all
    /// frames.
    fn decide(&mut self, decider: Decider<'_>) -> Result<Took, String> {
        let wanted = (FRAMES / ONE_IN) as u64;
        let device = self.floods.seen.device()?;
        match decider {
            Decider::Nobody => self.floods.send(FRAMES),
            Decider::Program(program) => {
                let _link = hang(program, &self.floods.seen.pair.server, device)?;
                self.floods.send(FRAMES)
            }
            Decider::Tool(tool) => {
                tool.begin(&self.floods.seen.pair.server)?;
                let took = self.floods.send(FRAMES);
                let counted = tool.counted(&self.floods.seen.pair.server);
                tool.end(&self.floods.seen.pair.server)?;
                match counted?.filter(|counted| *counted != wanted) {
                    Some(counted) => Err(format!("{}: {counted} of {wanted}", tool.name)),
                    None => took,
                }
            }
        }
    }
}

/// Rates, and what each adds to what sending takes with nobody there, in turn.
fn compared(sending: &[(&'static str, Vec<Took>)], sentinel_ns: f64) -> Vec<Row> {
    const ROW: &str = "flood of 64 B";
    let subject = ("kernel", ROW, f64::NAN);
    let each = |value: fn(&Took) -> f64, skip: usize| -> Vec<Samples> {
        let samples = sending.iter().skip(skip);
        let values = |took: &[Took]| took.iter().map(value).collect();
        samples.map(|(name, took)| Samples { name, values: values(took) }).collect()
    };
    let rates = each(|took| FRAMES as f64 * 1e6 / took.seen as f64, 0);
    let mut all = rows(subject, ("kframes/s", Better::More), sentinel_ns, &rates, &[]);
    // Noise may make it less than nothing.
    let added = |took: &Took| ((took.seen as f64 - took.alone as f64) / FRAMES as f64).max(1.0);
    let added = each(added, 1);
    let peers = added.iter().map(|samples| samples.name);
    let goal = |reference| Goal { candidate: OURS, reference, goal: "kernel path", target: 1.0 };
    let goals: Vec<Goal> =
        peers.filter(|name| ![OURS, CLANG, EMPTY].contains(name)).map(goal).collect();
    let row = "flood of 64 B, added";
    all.extend(rows(
        ("kernel", row, f64::NAN),
        ("ns/frame", Better::Less),
        sentinel_ns,
        &added,
        &goals,
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Skips where nothing can be loaded or there is no clang.
    #[test]
    fn generated_program_decides_like_the_one_by_hand() {
        if testkit::need::bpf().is_none() || testkit::need::command(CLANG).is_none() {
            return;
        }
        let folder = Folder::new("agree").unwrap();
        for kind in [ProgramKind::Tc, ProgramKind::Xdp] {
            let by_hand = Some(by_hand(&folder.0, kind).unwrap());
            let ours = Generated::load(kind).unwrap();
            let pair = Pair { ours, by_hand, empty: empty(kind).unwrap(), kind };
            pair.agree().unwrap();
            // It counts at all.
            assert!(pair.ours.totals().unwrap().iter().all(|total| *total > 0));
        }
    }
}
