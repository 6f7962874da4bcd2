//! `bench kernel`: the cost of a decision in the kernel.
//!
//! Compares the program generated for `rx | ip | udp | dport |53 count` with a hand-written program
//! in C (`bench/c/count_dns.c`, compiled by clang at run time): with BPF_PROG_TEST_RUN, which is
//! exact but has hot caches, and at a device under a flood, where nftables and tc are compared too.
//! Before the measurements, both programs run on complete frames, frames truncated at every length
//! and malformed frames; their results and counts must be equal.
//!
//! Test runs report integral nanoseconds. At XDP a call takes 27 ms, so there are few calls.

mod ours;
mod peers;

use crate::c_program::{CProgram, CSource};
use crate::flood::{Floods, Host, SendTimes, WANTED_PORT, udp};
use crate::harness::{Better, Goal, Samples, median, rows};
use crate::options::Options;
use crate::processes::is_installed;
use crate::row::Row;
use crate::sentinel::Sentinel;
use crate::temp_directory::TempDirectory;
use ebpf::insn::{self, Insn, R0};
pub(crate) use ours::Generated;
use peers::{FilterTool, TOOLS, attach};
use std::path::Path;
use sys::bpf::{Program, ProgramKind};
use testkit::Frame;

const OURS: &str = "streamline";
const CLANG: &str = "clang";
const EMPTY: &str = "empty program";
const NO_DECIDER: &str = "nobody";
/// Number of runs per call of BPF_PROG_TEST_RUN.
const REPEAT: u32 = 300_000;
/// Limit of the generated program's cost, as a multiple of the hand-written program's.
const COST_RATIO_MAX: f64 = 1.2;
/// Number of frames per sample.
const FRAMES: usize = 200_000;
/// One frame in this many is counted.
const WANTED_ONE_IN: usize = 2;

pub(crate) fn run(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let folder = TempDirectory::new("kernel").map_err(|why| why.to_string())?;
    let clang = is_installed(CLANG, "clang");
    let pair = |kind| -> Result<ProgramPair, String> {
        let by_hand = clang.then(|| load_by_hand(&folder.0, kind)).transpose()?;
        Ok(ProgramPair { ours: Generated::load(kind)?, by_hand, empty: load_empty(kind)?, kind })
    };
    let (tc, xdp) = (pair(ProgramKind::Tc)?, pair(ProgramKind::Xdp)?);
    let mut all = Vec::new();
    for pair in [&tc, &xdp] {
        pair.compare_results()?;
        for (name, frame) in measured_frames() {
            all.extend(pair.measure_test_runs(name, &frame, options.rounds)?);
        }
    }
    let floods = Floods::new(64, WANTED_ONE_IN, Host::Ignores)?;
    all.extend(DecideBench { floods, tc: &tc }.run(options.rounds)?);
    Ok(all)
}

/// Returns the measured frames with their names.
fn measured_frames() -> [(&'static str, Vec<u8>); 3] {
    [
        ("64 B, counted", udp(WANTED_PORT, 64)),
        ("64 B, not counted", udp(WANTED_PORT + 1, 64)),
        ("1500 B, counted", udp(WANTED_PORT, 1500)),
    ]
}

/// Loads the hand-written program.
fn load_by_hand(folder: &Path, kind: ProgramKind) -> Result<CProgram, String> {
    let macros = if kind == ProgramKind::Xdp { vec!["XDP".to_owned()] } else { Vec::new() };
    let text = include_str!("../../c/count_dns.c");
    CProgram::load(folder, kind, CSource { name: "count_dns", text, macros: &macros, bss_size: 64 })
}

fn load_empty(kind: ProgramKind) -> Result<Program, String> {
    // At traffic control the chain continues, as with the other candidates.
    let pass = if kind == ProgramKind::Xdp { 2 } else { -1 };
    let code = insn::encode(&[Insn::mov(R0, pass), Insn::exit()]);
    Program::load(kind, "empty", &code).map_err(|why| why.to_string())
}

/// The generated and the hand-written program.
struct ProgramPair {
    ours: Generated,
    by_hand: Option<CProgram>,
    empty: Program,
    kind: ProgramKind,
}

impl ProgramPair {
    /// Compares both programs on many frames. Fails on a difference.
    fn compare_results(&self) -> Result<(), String> {
        let Some(by_hand) = &self.by_hand else { return Ok(()) };
        for frame in comparison_frames() {
            let (Ok(ours), Ok(theirs)) =
                (self.ours.program.test_run(&frame, 1), by_hand.program.test_run(&frame, 1))
            else {
                // A frame that a test run rejects.
                continue;
            };
            let totals = [self.ours.totals()?, by_hand.bss_words::<8>().to_vec()];
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

    fn measure_test_runs(
        &self,
        name: &str,
        frame: &[u8],
        rounds: usize,
    ) -> Result<Vec<Row>, String> {
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
        let goal = Goal { candidate, reference, goal: "kernel path", target: 1.0 / COST_RATIO_MAX };
        let place = if self.kind == ProgramKind::Xdp { "XDP" } else { "TC" };
        let row = format!("{place}, {name}");
        let subject = ("kernel", row.as_str(), f64::NAN);
        Ok(rows(subject, ("ns/frame", Better::Less), Sentinel::measure(), &samples, &[goal]))
    }
}

/// Returns complete frames, malformed frames, and frames truncated at every length.
fn comparison_frames() -> Vec<Vec<u8>> {
    let four = || Frame::ethernet().ipv4("10.77.0.1", "10.77.0.2");
    let six = || Frame::ethernet().ipv6("fd77::1", "fd77::2");
    let mut whole = vec![
        four().udp(4000, WANTED_PORT, b"counted"),
        four().udp(WANTED_PORT, 4000, b"not counted"),
        four().udp(4000, WANTED_PORT, b""),
        four().options(&[1; 8]).udp(4000, WANTED_PORT, b"options"),
        four().fragment(0, true).udp(4000, WANTED_PORT, b"a fragment"),
        four().fragment(100, false).udp(4000, WANTED_PORT, b"another"),
        four()
            .tcp(&testkit::Segment { target: WANTED_PORT, ..testkit::Segment::default() }, b"tcp"),
        four().protocol(1, b"\x08\0\0\0"),
        six().udp(4000, WANTED_PORT, b"counted"),
        six().extension(0, &[0; 6]).udp(4000, WANTED_PORT, b"one extension"),
        six().extension(0, &[0; 6]).extension(60, &[0; 6]).udp(4000, WANTED_PORT, b"two"),
        six().extension(44, &[0; 6]).udp(4000, WANTED_PORT, b"a fragment"),
        Frame::ethernet().tag(7).ipv4("10.77.0.1", "10.77.0.2").udp(4000, WANTED_PORT, b"tagged"),
        Frame::ethernet().tag(7).tag(8).ipv4("10.77.0.1", "10.77.0.2").udp(
            1,
            WANTED_PORT,
            b"twice",
        ),
        Frame::ethernet().tag(7).tag(8).tag(9).ipv4("10.77.0.1", "10.77.0.2").udp(1, 53, b""),
        Frame::ethernet().arp(true, "10.77.0.1", "10.77.0.2"),
        Frame::ethernet().ethertype(0x88b5, b"something else"),
        Frame::ethernet().ethertype(0x0100, b"a length"),
    ];
    // One header byte changed at a time.
    let good = four().udp(4000, WANTED_PORT, b"counted");
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

/// The program that is attached to the device and decides which frames count.
#[derive(Clone, Copy)]
enum Decider<'b> {
    Unfiltered,
    Program(&'b Program),
    FilterTool(FilterTool),
}

struct DecideBench<'b> {
    floods: Floods,
    tc: &'b ProgramPair,
}

impl DecideBench<'_> {
    /// Measures the time that deciding adds to a frame of a flood.
    fn run(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let space = &self.floods.observed.pair.server;
        let mut all = vec![(NO_DECIDER, Decider::Unfiltered)];
        all.push((OURS, Decider::Program(&self.tc.ours.program)));
        all.extend(self.tc.by_hand.as_ref().map(|it| (CLANG, Decider::Program(&it.program))));
        all.push((EMPTY, Decider::Program(&self.tc.empty)));
        let tools = TOOLS.into_iter().filter(|tool| tool.is_usable(space));
        all.extend(tools.map(|tool| (tool.name, Decider::FilterTool(tool))));
        let empty = |(name, _): &(&'static str, Decider<'_>)| (*name, Vec::new());
        let mut sending: Vec<(&'static str, Vec<SendTimes>)> = all.iter().map(empty).collect();
        let mut sentinels = Vec::new();
        for round in 0..=rounds {
            sentinels.push(Sentinel::measure());
            for ((_, decider), (_, samples)) in all.iter().zip(&mut sending) {
                let took = self.decide(*decider)?;
                // The first round warms up.
                if round > 0 {
                    samples.push(took);
                }
            }
        }
        Ok(comparison_rows(&sending, median(&sentinels)))
    }

    /// Measures sending while a program decides. Fails if the program has not counted all frames.
    fn decide(&mut self, decider: Decider<'_>) -> Result<SendTimes, String> {
        let wanted = (FRAMES / WANTED_ONE_IN) as u64;
        let device = self.floods.observed.device()?;
        match decider {
            Decider::Unfiltered => self.floods.send(FRAMES),
            Decider::Program(program) => {
                let _link = attach(program, &self.floods.observed.pair.server, device)?;
                self.floods.send(FRAMES)
            }
            Decider::FilterTool(tool) => {
                tool.add_rules(&self.floods.observed.pair.server)?;
                let took = self.floods.send(FRAMES);
                let counted = tool.counted_frames(&self.floods.observed.pair.server);
                tool.remove_rules(&self.floods.observed.pair.server)?;
                match counted?.filter(|counted| *counted != wanted) {
                    Some(counted) => Err(format!("{}: {counted} of {wanted}", tool.name)),
                    None => took,
                }
            }
        }
    }
}

/// Returns the rows for the rate of each candidate, and for the time that it adds to unobserved
/// sending.
fn comparison_rows(sending: &[(&'static str, Vec<SendTimes>)], sentinel_ns: f64) -> Vec<Row> {
    const ROW: &str = "flood of 64 B";
    let subject = ("kernel", ROW, f64::NAN);
    let each = |value: fn(&SendTimes) -> f64, skip: usize| -> Vec<Samples> {
        let samples = sending.iter().skip(skip);
        let values = |took: &[SendTimes]| took.iter().map(value).collect();
        samples.map(|(name, took)| Samples { name, values: values(took) }).collect()
    };
    let rates = each(|took| FRAMES as f64 * 1e6 / took.observed as f64, 0);
    let mut all = rows(subject, ("kframes/s", Better::More), sentinel_ns, &rates, &[]);
    // Noise may make it less than nothing.
    let added = |took: &SendTimes| {
        ((took.observed as f64 - took.unobserved as f64) / FRAMES as f64).max(1.0)
    };
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

    /// The test is skipped if programs cannot be loaded or clang is missing.
    #[test]
    fn generated_program_counts_like_the_hand_written_one() {
        if testkit::need::require_bpf().is_none() || testkit::need::require_command(CLANG).is_none()
        {
            return;
        }
        let folder = TempDirectory::new("agree").unwrap();
        for kind in [ProgramKind::Tc, ProgramKind::Xdp] {
            let by_hand = Some(load_by_hand(&folder.0, kind).unwrap());
            let ours = Generated::load(kind).unwrap();
            let pair = ProgramPair { ours, by_hand, empty: load_empty(kind).unwrap(), kind };
            pair.compare_results().unwrap();
            // The program does count.
            assert!(pair.ours.totals().unwrap().iter().all(|total| *total > 0));
        }
    }
}
