//! Goal G10 for the interfaces of users. A C program with a self-sizing stream (capacity 0) is
//! compared with fixed capacities, and with the same stream in Rust. A request of `streamline run`
//! with a self-sizing ring between its threads is compared with `--ring=ENTRIES`.

use super::{MeasuredStream, ProcessorSetting};
use crate::file::streamline_path;
use crate::harness::{
    BetterDirection, Candidate, Goal, Samples, measure_interleaved, median, rows_of_samples,
};
use crate::options::Options;
use crate::peek::STREAMS_SOURCE;
use crate::peers::CompiledPeer;
use crate::pipe::RunningRing;
use crate::rings::run_and_measure_request;
use crate::row::Row;
use buffer::scale::ScalingParameters;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Size in bytes of the blocks that pass through each stream or request.
const BLOCK_SIZE: usize = 4096;
/// The streams from C: the name of each candidate, and the argument of the C program, which
/// contains the stream's capacity.
const STREAM_SIZES: [(&str, &str); 7] = [
    ("from C, 64 KB", "read:65536"),
    ("from C, 256 KB", "read:262144"),
    ("from C, 1 MB", "read:1048576"),
    ("from C, 4 MB", "read:4194304"),
    ("from C, 16 MB", "read:16777216"),
    (LARGEST_RING_NAME, "read:67108864"),
    (SELF_SIZING_NAME, "read:0"),
];
const LARGEST_RING_NAME: &str = "from C, 64 MB";
const SELF_SIZING_NAME: &str = "from C, self-sizing";
const IN_PROCESS_NAME: &str = "self-sizing";
/// The candidates that run requests: the candidate's name, and the option that it adds to the
/// request.
const REQUEST_SIZES: [(&str, &str); 6] = [
    ("--ring=64", "--ring=64 "),
    ("--ring=256", "--ring=256 "),
    ("--ring=1024", "--ring=1024 "),
    ("--ring=4096", "--ring=4096 "),
    ("--ring=65536", "--ring=65536 "),
    (REQUEST_NAME, ""),
];
const REQUEST_NAME: &str = "line, self-sizing";
/// Number of blocks per run of a request.
const REQUEST_BLOCKS: u64 = 6_000_000;

/// Measures streams from C between two processes. `setting` determines if the processes run on one
/// processor or on two.
pub(super) fn measure_c_streams(
    setting: ProcessorSetting,
    caches: &[usize],
    options: &Options,
) -> Result<Vec<Row>, String> {
    let program = match CompiledPeer::compile_with_library("streams", STREAMS_SOURCE) {
        Ok(program) => program,
        Err(why) => {
            eprintln!("left out: streams from C: {why}");
            return Ok(Vec::new());
        }
    };
    let cores = if setting == ProcessorSetting::OneCore { 1 } else { 2 };
    let scaling = Some(ScalingParameters::for_reallocation(caches));
    let mut ours = MeasuredStream::new(setting, super::LARGEST_RING_SIZE, scaling, BLOCK_SIZE)?;
    ours.write_until_size_settles()?;
    let mechanism = move || ours.measure().map(|(rate, _)| rate);
    let mut candidates = vec![Candidate { name: IN_PROCESS_NAME, measure: Box::new(mechanism) }];
    for (name, word) in STREAM_SIZES {
        let mut ring = RunningRing::start(program.program(), word, cores, BLOCK_SIZE)?;
        candidates.push(Candidate { name, measure: Box::new(move || ring.measure()) });
    }
    let (sentinel_ns, samples) = measure_interleaved(options.rounds, candidates)?;
    let goal = |reference, target| Goal {
        candidate: SELF_SIZING_NAME,
        reference,
        goal: "G10 from C",
        target,
    };
    let best =
        fastest_candidate(&samples, |name| name != IN_PROCESS_NAME && name != SELF_SIZING_NAME);
    let goals = [goal(IN_PROCESS_NAME, 0.8), goal(best, 0.9), goal(LARGEST_RING_NAME, 3.0)];
    let name = format!("{BLOCK_SIZE} B, {}", setting.name());
    Ok(rows_of_samples(
        ("scale", &name, f64::NAN),
        ("GB/s", BetterDirection::More),
        sentinel_ns,
        &samples,
        &goals,
    ))
}

/// Measures a request that `streamline run` runs with different ring sizes, and the same request
/// run in this process. All runs use the processors of this thread.
pub(super) fn measure_requests(place: &str, options: &Options) -> Result<Vec<Row>, String> {
    let streamline = match streamline_path() {
        Ok(program) => program,
        Err(why) => {
            eprintln!("left out: lines of `streamline run`: {why}");
            return Ok(Vec::new());
        }
    };
    let text = format!(
        "generate count={REQUEST_BLOCKS} size=64 seq=yes | udp | match \"qqqq\" @thread1 |0 count \
         @thread1"
    );
    let inside = || run_and_measure_request(&text, |_| ()).map(|(rate, _)| rate);
    let mut candidates = vec![Candidate { name: IN_PROCESS_NAME, measure: Box::new(inside) }];
    for (name, option) in REQUEST_SIZES {
        let mut command = Command::new(&streamline);
        command.args(["run", &format!("{option}{text}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        candidates.push(Candidate {
            name,
            measure: Box::new(move || measure_request_rate(&mut command)),
        });
    }
    let (sentinel_ns, samples) = measure_interleaved(options.rounds, candidates)?;
    let goal = |reference, target| Goal {
        candidate: REQUEST_NAME,
        reference,
        goal: "G10 of a line",
        target,
    };
    let best = fastest_candidate(&samples, |name| name.starts_with("--ring"));
    let goals = [goal(IN_PROCESS_NAME, 0.8), goal(best, 0.9)];
    let subject = format!("line, {place}");
    Ok(rows_of_samples(
        ("scale", &subject, f64::NAN),
        ("Mblocks/s", BetterDirection::More),
        sentinel_ns,
        &samples,
        &goals,
    ))
}

/// Runs a request. Returns the rate in millions of blocks per second. The time includes the start
/// and the end of the process.
fn measure_request_rate(command: &mut Command) -> Result<f64, String> {
    let begin = Instant::now();
    let status = command.status().map_err(|why| why.to_string())?;
    if !status.success() {
        return Err(format!("{command:?} ended with {status}"));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate has few digits")]
    Ok(REQUEST_BLOCKS as f64 / 1e6 / begin.elapsed().as_secs_f64())
}

/// Returns the name of the candidate with the largest median among the candidates for which
/// `is_fixed` returns true.
fn fastest_candidate(samples: &[Samples], is_fixed: impl Fn(&str) -> bool) -> &'static str {
    let fixed = samples.iter().filter(|of| is_fixed(of.name));
    let fastest = fixed.max_by(|a, b| median(&a.values).total_cmp(&median(&b.values)));
    fastest.map_or("", |of| of.name)
}
