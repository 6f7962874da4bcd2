//! `bench kernel`: the cost of selecting and counting frames in the kernel.
//!
//! Compares the program generated for `rx | ip | udp | dport |53 count` with a hand-written program
//! in C (`bench/c/count_dns.c`, compiled by clang at run time). The comparison uses
//! BPF_PROG_TEST_RUN, which is exact but runs with hot caches, and a device under a flood, at which
//! nftables and tc are measured too. Before the measurements, both programs run on complete frames,
//! on frames truncated to each length, and on malformed frames; their results and counts must be
//! equal.
//!
//! Test runs report whole nanoseconds. At XDP a call takes 27 ms, so there are few calls.

mod generated;
mod peers;

use crate::c_program::{CProgram, CSource};
use crate::flood::{FloodPair, ReceivingHost, SendTimes, WANTED_PORT, udp_frame};
use crate::harness::{BetterDirection, Goal, Samples, median, rows_of_samples};
use crate::options::Options;
use crate::processes::is_installed;
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use ebpf::insn::{self, Insn, R0};
pub(crate) use generated::GeneratedProgram;
use peers::{FILTER_TOOLS, FilterTool, attach_to_ingress};
use std::path::Path;
use sys::bpf::{Program, ProgramKind};
use testkit::Frame;

const OUR_NAME: &str = "streamline";
const CLANG_NAME: &str = "clang";
const EMPTY_PROGRAM_NAME: &str = "empty program";
const NO_PROGRAM_NAME: &str = "no program";
/// Number of runs per call of BPF_PROG_TEST_RUN.
const TEST_RUN_REPEATS: u32 = 300_000;
/// Maximum cost of the generated program, as a multiple of the cost of the hand-written program.
const COST_RATIO_MAX: f64 = 1.2;
/// Number of frames sent in one sample, that is, in one measurement of one candidate.
const FRAMES_PER_SAMPLE: usize = 200_000;
/// One in this many frames of the flood goes to port 53 and is counted by the candidates.
const FRAMES_PER_WANTED_FRAME: usize = 2;

pub(crate) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    testkit::need::require_bpf().ok_or("needs CAP_BPF and CAP_NET_ADMIN: it loads programs")?;
    let folder = TempDirectory::new("kernel").map_err(|why| why.to_string())?;
    let clang = is_installed(CLANG_NAME, "clang");
    let pair = |kind| -> Result<ComparedPrograms, String> {
        let by_hand = clang.then(|| load_hand_written(&folder.0, kind)).transpose()?;
        Ok(ComparedPrograms {
            ours: GeneratedProgram::load(kind)?,
            by_hand,
            empty: load_empty_program(kind)?,
            kind,
        })
    };
    let (tc, xdp) = (pair(ProgramKind::Tc)?, pair(ProgramKind::Xdp)?);
    let mut all = Vec::new();
    for pair in [&tc, &xdp] {
        pair.compare_results()?;
        for (name, frame) in measured_frames() {
            all.extend(pair.measure_test_runs(name, &frame, options.rounds)?);
        }
    }
    let floods = FloodPair::new(64, FRAMES_PER_WANTED_FRAME, ReceivingHost::Ignores)?;
    all.extend(FrameDeciderBench { floods, tc: &tc }.measure_rows(options.rounds)?);
    Ok(all)
}

/// Returns the frames on which the programs are measured, each with its name.
fn measured_frames() -> [(&'static str, Vec<u8>); 3] {
    [
        ("64 B, counted", udp_frame(WANTED_PORT, 64)),
        ("64 B, not counted", udp_frame(WANTED_PORT + 1, 64)),
        ("1500 B, counted", udp_frame(WANTED_PORT, 1500)),
    ]
}

/// Compiles and loads the hand-written program for the hook of this program kind.
fn load_hand_written(folder: &Path, kind: ProgramKind) -> Result<CProgram, String> {
    let macros = if kind == ProgramKind::Xdp { vec!["XDP".to_owned()] } else { Vec::new() };
    let text = include_str!("../../c/count_dns.c");
    CProgram::load(folder, kind, CSource { name: "count_dns", text, macros: &macros, bss_size: 64 })
}

fn load_empty_program(kind: ProgramKind) -> Result<Program, String> {
    // At traffic control, the frame continues in the chain, as with the other candidates.
    let pass = if kind == ProgramKind::Xdp { 2 } else { -1 };
    let code = insn::encode(&[Insn::mov(R0, pass), Insn::exit()]);
    Program::load(kind, "empty", &code).map_err(|why| why.to_string())
}

/// The programs that are compared at one hook: the generated program, the hand-written program, and
/// an empty program.
struct ComparedPrograms {
    ours: GeneratedProgram,
    by_hand: Option<CProgram>,
    empty: Program,
    kind: ProgramKind,
}

impl ComparedPrograms {
    /// Runs the generated and the hand-written program on many frames. Fails if their results or
    /// counts differ.
    fn compare_results(&self) -> Result<(), String> {
        let Some(by_hand) = &self.by_hand else { return Ok(()) };
        for frame in comparison_frames() {
            let (Ok(ours), Ok(theirs)) =
                (self.ours.program.test_run(&frame, 1), by_hand.program.test_run(&frame, 1))
            else {
                // Test runs reject this frame.
                continue;
            };
            let totals = [self.ours.counters()?, by_hand.bss_words::<8>().to_vec()];
            if ours.return_value != theirs.return_value || totals[0] != totals[1] {
                let [one, other] = [ours.return_value, theirs.return_value];
                return Err(format!(
                    "the generated and the hand-written program differ at {:?}: {one:#x} and \
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
        let by_hand = self.by_hand.as_ref().map(|by_hand| (CLANG_NAME, &by_hand.program));
        let ours = [(OUR_NAME, &self.ours.program), (EMPTY_PROGRAM_NAME, &self.empty)];
        let programs: Vec<_> = by_hand.into_iter().chain(ours).collect();
        let mut samples: Vec<Samples> =
            programs.iter().map(|(name, _)| Samples { name, values: Vec::new() }).collect();
        for round in 0..=rounds {
            for ((_, program), samples) in programs.iter().zip(&mut samples) {
                let ran =
                    program.test_run(frame, TEST_RUN_REPEATS).map_err(|why| why.to_string())?;
                // The first round warms up.
                if round > 0 {
                    samples.values.push(ran.duration_ns.into());
                }
            }
        }
        let (candidate, reference) = (OUR_NAME, CLANG_NAME);
        let goal = Goal { candidate, reference, goal: "kernel path", target: 1.0 / COST_RATIO_MAX };
        let place = if self.kind == ProgramKind::Xdp { "XDP" } else { "TC" };
        let row = format!("{place}, {name}");
        let subject = ("kernel", row.as_str(), f64::NAN);
        Ok(rows_of_samples(
            subject,
            ("ns/frame", BetterDirection::Less),
            CacheRoundTrip::measure(),
            &samples,
            &[goal],
        ))
    }
}

/// Returns complete frames, malformed frames, and frames truncated to each length.
fn comparison_frames() -> Vec<Vec<u8>> {
    let four = || Frame::ethernet().ipv4("10.77.0.1", "10.77.0.2");
    let six = || Frame::ethernet().ipv6("fd77::1", "fd77::2");
    let mut whole = vec![
        four().udp(4000, WANTED_PORT, b"counted"),
        four().udp(WANTED_PORT, 4000, b"not counted"),
        four().udp(4000, WANTED_PORT, b""),
        four().ipv4_options(&[1; 8]).udp(4000, WANTED_PORT, b"options"),
        four().fragment(0, true).udp(4000, WANTED_PORT, b"a fragment"),
        four().fragment(100, false).udp(4000, WANTED_PORT, b"another"),
        four().tcp(
            &testkit::TcpHeader { target: WANTED_PORT, ..testkit::TcpHeader::default() },
            b"tcp",
        ),
        four().ip_payload(1, b"\x08\0\0\0"),
        six().udp(4000, WANTED_PORT, b"counted"),
        six().ipv6_extension(0, &[0; 6]).udp(4000, WANTED_PORT, b"one extension"),
        six().ipv6_extension(0, &[0; 6]).ipv6_extension(60, &[0; 6]).udp(4000, WANTED_PORT, b"two"),
        six().ipv6_extension(44, &[0; 6]).udp(4000, WANTED_PORT, b"a fragment"),
        Frame::ethernet().append_vlan_tag(7).ipv4("10.77.0.1", "10.77.0.2").udp(
            4000,
            WANTED_PORT,
            b"tagged",
        ),
        Frame::ethernet().append_vlan_tag(7).append_vlan_tag(8).ipv4("10.77.0.1", "10.77.0.2").udp(
            1,
            WANTED_PORT,
            b"twice",
        ),
        Frame::ethernet()
            .append_vlan_tag(7)
            .append_vlan_tag(8)
            .append_vlan_tag(9)
            .ipv4("10.77.0.1", "10.77.0.2")
            .udp(1, 53, b""),
        Frame::ethernet().arp(true, "10.77.0.1", "10.77.0.2"),
        Frame::ethernet().link_payload(0x88b5, b"something else"),
        Frame::ethernet().link_payload(0x0100, b"a length"),
    ];
    // Each frame differs from `good` in one header byte.
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

/// The program or tool at the device that decides which frames are counted.
#[derive(Clone, Copy)]
enum FrameDecider<'b> {
    Unfiltered,
    Program(&'b Program),
    FilterTool(FilterTool),
}

struct FrameDeciderBench<'b> {
    floods: FloodPair,
    tc: &'b ComparedPrograms,
}

impl FrameDeciderBench<'_> {
    /// Measures the time that each program or tool adds to the sending of a frame. Returns the
    /// result rows.
    fn measure_rows(mut self, rounds: usize) -> Result<Vec<Row>, String> {
        let space = &self.floods.observed.pair.server;
        let mut all = vec![(NO_PROGRAM_NAME, FrameDecider::Unfiltered)];
        all.push((OUR_NAME, FrameDecider::Program(&self.tc.ours.program)));
        all.extend(
            self.tc.by_hand.as_ref().map(|it| (CLANG_NAME, FrameDecider::Program(&it.program))),
        );
        all.push((EMPTY_PROGRAM_NAME, FrameDecider::Program(&self.tc.empty)));
        let tools = FILTER_TOOLS.into_iter().filter(|tool| tool.is_usable(space));
        all.extend(tools.map(|tool| (tool.name, FrameDecider::FilterTool(tool))));
        let empty = |(name, _): &(&'static str, FrameDecider<'_>)| (*name, Vec::new());
        let mut sending: Vec<(&'static str, Vec<SendTimes>)> = all.iter().map(empty).collect();
        let mut sentinels = Vec::new();
        for round in 0..=rounds {
            sentinels.push(CacheRoundTrip::measure());
            for ((_, decider), (_, samples)) in all.iter().zip(&mut sending) {
                let took = self.measure_with(*decider)?;
                // The first round warms up.
                if round > 0 {
                    samples.push(took);
                }
            }
        }
        Ok(comparison_rows(&sending, median(&sentinels)))
    }

    /// Measures the sending times of one sample while the program or tool `decider` is at the
    /// device. Fails if a tool that counts has not counted the wanted frames.
    fn measure_with(&mut self, decider: FrameDecider<'_>) -> Result<SendTimes, String> {
        let wanted = (FRAMES_PER_SAMPLE / FRAMES_PER_WANTED_FRAME) as u64;
        let device = self.floods.observed.receiving_device_index()?;
        match decider {
            FrameDecider::Unfiltered => self.floods.send(FRAMES_PER_SAMPLE),
            FrameDecider::Program(program) => {
                let _link = attach_to_ingress(program, &self.floods.observed.pair.server, device)?;
                self.floods.send(FRAMES_PER_SAMPLE)
            }
            FrameDecider::FilterTool(tool) => {
                tool.add_rules(&self.floods.observed.pair.server)?;
                let took = self.floods.send(FRAMES_PER_SAMPLE);
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

/// Returns the rows of all candidates: the rate of each, and the time that each adds to unobserved
/// sending.
fn comparison_rows(sending: &[(&'static str, Vec<SendTimes>)], sentinel_ns: f64) -> Vec<Row> {
    const ROW_NAME: &str = "flood of 64 B";
    let subject = ("kernel", ROW_NAME, f64::NAN);
    let each = |value: fn(&SendTimes) -> f64, skip: usize| -> Vec<Samples> {
        let samples = sending.iter().skip(skip);
        let values = |took: &[SendTimes]| took.iter().map(value).collect();
        samples.map(|(name, took)| Samples { name, values: values(took) }).collect()
    };
    let rates = each(|took| FRAMES_PER_SAMPLE as f64 * 1e6 / took.observed as f64, 0);
    let mut all =
        rows_of_samples(subject, ("kframes/s", BetterDirection::More), sentinel_ns, &rates, &[]);
    // Noise may make the difference negative.
    let added = |took: &SendTimes| {
        ((took.observed as f64 - took.unobserved as f64) / FRAMES_PER_SAMPLE as f64).max(1.0)
    };
    let added = each(added, 1);
    let peers = added.iter().map(|samples| samples.name);
    let goal =
        |reference| Goal { candidate: OUR_NAME, reference, goal: "kernel path", target: 1.0 };
    let goals: Vec<Goal> = peers
        .filter(|name| ![OUR_NAME, CLANG_NAME, EMPTY_PROGRAM_NAME].contains(name))
        .map(goal)
        .collect();
    let row = "flood of 64 B, added";
    all.extend(rows_of_samples(
        ("kernel", row, f64::NAN),
        ("ns/frame", BetterDirection::Less),
        sentinel_ns,
        &added,
        &goals,
    ));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the counts of the generated and the hand-written program. The test is skipped if
    /// programs cannot be loaded or clang is missing.
    #[test]
    fn generated_program_counts_like_the_hand_written_one() {
        if testkit::need::require_bpf().is_none()
            || testkit::need::require_command(CLANG_NAME).is_none()
        {
            return;
        }
        let folder = TempDirectory::new("agree").unwrap();
        for kind in [ProgramKind::Tc, ProgramKind::Xdp] {
            let by_hand = Some(load_hand_written(&folder.0, kind).unwrap());
            let ours = GeneratedProgram::load(kind).unwrap();
            let pair =
                ComparedPrograms { ours, by_hand, empty: load_empty_program(kind).unwrap(), kind };
            pair.compare_results().unwrap();
            // The program has counted frames.
            assert!(pair.ours.counters().unwrap().iter().all(|total| *total > 0));
        }
    }
}
