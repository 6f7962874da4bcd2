//! Goal G10 on the paths of a user: a program in C whose stream sizes itself (capacity 0), against
//! fixed capacities and against the same stream in Rust; and a line of `streamline run`, whose ring
//! between threads sizes itself, against `--ring=ENTRIES`.

use super::{Processors, StreamPair};
use crate::file::program as streamline;
use crate::harness::{Better, Candidate, Goal, Samples, measure_interleaved, median, rows};
use crate::options::Options;
use crate::peek::STREAMS;
use crate::peers::CompiledPeer;
use crate::pipe::Ring;
use crate::rings::run_line;
use crate::row::Row;
use buffer::scale::Scaling;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Block size in bytes.
const BLOCK_SIZE: usize = 4096;
/// The streams from C: the candidate's name, and the argument with its capacity.
const STREAM_SIZES: [(&str, &str); 7] = [
    ("from C, 64 KB", "read:65536"),
    ("from C, 256 KB", "read:262144"),
    ("from C, 1 MB", "read:1048576"),
    ("from C, 4 MB", "read:4194304"),
    ("from C, 16 MB", "read:16777216"),
    (LARGEST, "read:67108864"),
    (SELF_SIZING, "read:0"),
];
const LARGEST: &str = "from C, 64 MB";
const SELF_SIZING: &str = "from C, self-sizing";
const MECHANISM: &str = "self-sizing";
/// The lines: the candidate's name, and the option of the request.
const LINE_SIZES: [(&str, &str); 6] = [
    ("--ring=64", "--ring=64 "),
    ("--ring=256", "--ring=256 "),
    ("--ring=1024", "--ring=1024 "),
    ("--ring=4096", "--ring=4096 "),
    ("--ring=65536", "--ring=65536 "),
    (LINE, ""),
];
const LINE: &str = "line, self-sizing";
/// Blocks of one run of a line.
const LINE_BLOCKS: u64 = 6_000_000;

/// Measures streams from C, for two processes on one processor or on two.
pub(super) fn measure_from_c(
    setting: Processors,
    caches: &[usize],
    options: &Options,
) -> Result<Vec<Row>, String> {
    let program = match CompiledPeer::with_library("streams", STREAMS) {
        Ok(program) => program,
        Err(why) => {
            eprintln!("left out: streams from C: {why}");
            return Ok(Vec::new());
        }
    };
    let cores = if setting == Processors::OneCore { 1 } else { 2 };
    let scaling = Some(Scaling::reallocation(caches));
    let mut ours = StreamPair::new(setting, super::LARGEST_RING_SIZE, scaling, BLOCK_SIZE)?;
    ours.settle()?;
    let mechanism = move || ours.measure().map(|(rate, _)| rate);
    let mut candidates = vec![Candidate { name: MECHANISM, measure: Box::new(mechanism) }];
    for (name, word) in STREAM_SIZES {
        let mut ring = Ring::start(program.program(), word, cores, BLOCK_SIZE)?;
        candidates.push(Candidate { name, measure: Box::new(move || ring.measure()) });
    }
    let (sentinel_ns, samples) = measure_interleaved(options.rounds, candidates)?;
    let goal =
        |reference, target| Goal { candidate: SELF_SIZING, reference, goal: "G10 from C", target };
    let best = best(&samples, |name| name != MECHANISM && name != SELF_SIZING);
    let goals = [goal(MECHANISM, 0.8), goal(best, 0.9), goal(LARGEST, 3.0)];
    let name = format!("{BLOCK_SIZE} B, {}", setting.name());
    Ok(rows(("scale", &name, f64::NAN), ("GB/s", Better::More), sentinel_ns, &samples, &goals))
}

/// Measures lines of `streamline run` on the processors of this thread, and the same line without
/// a process of its own.
pub(super) fn measure_lines(place: &str, options: &Options) -> Result<Vec<Row>, String> {
    let streamline = match streamline() {
        Ok(program) => program,
        Err(why) => {
            eprintln!("left out: lines of `streamline run`: {why}");
            return Ok(Vec::new());
        }
    };
    let text = format!(
        "generate count={LINE_BLOCKS} size=64 seq=yes | udp | match \"qqqq\" @thread1 |0 count \
         @thread1"
    );
    let inside = || run_line(&text, |_| ()).map(|(rate, _)| rate);
    let mut candidates = vec![Candidate { name: MECHANISM, measure: Box::new(inside) }];
    for (name, option) in LINE_SIZES {
        let mut command = Command::new(&streamline);
        command.args(["run", &format!("{option}{text}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        candidates.push(Candidate { name, measure: Box::new(move || time_line(&mut command)) });
    }
    let (sentinel_ns, samples) = measure_interleaved(options.rounds, candidates)?;
    let goal =
        |reference, target| Goal { candidate: LINE, reference, goal: "G10 of a line", target };
    let best = best(&samples, |name| name.starts_with("--ring"));
    let goals = [goal(MECHANISM, 0.8), goal(best, 0.9)];
    let subject = format!("line, {place}");
    Ok(rows(
        ("scale", &subject, f64::NAN),
        ("Mblocks/s", Better::More),
        sentinel_ns,
        &samples,
        &goals,
    ))
}

/// Runs a line; returns millions of blocks per second, start and end of the process included.
fn time_line(command: &mut Command) -> Result<f64, String> {
    let begin = Instant::now();
    let status = command.status().map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(format!("{command:?} ended with {status}"));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
    Ok(LINE_BLOCKS as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

/// Returns the name of the fastest of these candidates, by their medians.
fn best(samples: &[Samples], is_fixed: impl Fn(&str) -> bool) -> &'static str {
    let fixed = samples.iter().filter(|of| is_fixed(of.name));
    let fastest = fixed.max_by(|a, b| median(&a.values).total_cmp(&median(&b.values)));
    fastest.map_or("", |of| of.name)
}
