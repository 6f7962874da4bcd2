//! The cost of ten requests of one user that have the same beginning, `rx IF | tcp | http | …`, and
//! different tails. Each request runs the beginning (the prefix) itself, or all share one process
//! for it. FEATURES O6, O7, [SL §7.1]
//!
//! A generated HTTP capture is sent over a veth pair at a rate at which no candidate loses frames.
//! The cost is the processor time of all processes: the requests, the process of the prefix, and
//! the daemon. The reference is the cost of running the prefix once and each tail once: the cost of
//! `PREFIX | discard` plus, for each tail, the additional cost of a request with only that tail.
//! Both are measured again for each tail, so that the error of a single measurement of the prefix
//! is not added ten times. The bench fails if a request loses a block, or if its tail does not
//! receive the same blocks as when the request runs alone.

use crate::harness::{BetterDirection, Goal, Samples, is_row_selected, rows_of_samples};
use crate::live::frame_load::{FrameLoad, Rate};
use crate::options::Options;
use crate::processes::{
    Children, read_text, start_on_second_processor, streamline_path, wait_until_idle,
};
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use crate::temp_directory::TempDirectory;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use testkit::net::{DevicePairSettings, NamespacePair, SERVER_DEVICE, wait_until};

/// Name of this module's row in the results.
const ROW_NAME: &str = "10 tails of one user";
/// The tails of the requests, each of which follows the prefix.
const REQUEST_TAILS: [&str; 10] = [
    "|request json",
    "|response json",
    "|get print",
    "|post print",
    "|200 count",
    "|404 json",
    "|head count",
    "|response hist length",
    "| count",
    "|request match \"GET /thing\" | count",
];
/// The tail that only discards blocks. A request with this tail shows the cost of the prefix.
const DISCARD_TAIL: &str = "| discard";
/// Rate at which the frames of the capture are sent, in frames per second.
const FRAMES_PER_SECOND: f64 = 50_000.0;
/// Divisor of [`Options::size`] that yields the size of this bench's capture, which is smaller than
/// those of other benches.
const CAPTURE_SIZE_DIVISOR: u64 = 5;
/// Ring size of the source `rx` of each request, in MB.
const RING_MB: u32 = 16;

/// Time to wait after the last frame before the requests are stopped. In this time, `tcp` gives up
/// on segments that are missing from the capture, so that the prefix holds no blocks when the
/// requests end.
const SETTLING_TIME: Duration = Duration::from_millis(1_300);

const PREFIX_ONCE_NAME: &str = "prefix and tails once";
const SEPARATE_RUNS_NAME: &str = "apart";
const SHARED_NAME: &str = "shared";

pub(super) fn run_bench(options: &Options) -> Result<Vec<Row>, String> {
    if !is_row_selected(ROW_NAME) {
        return Ok(Vec::new());
    }
    let cable = DevicePairSettings { addresses: false, ..DevicePairSettings::default() };
    let pair = NamespacePair::new(cable).ok_or("needs root and `ip`: it makes two namespaces")?;
    let folder = TempDirectory::new("prefix").map_err(|why| why.to_string())?;
    let file = folder.0.join("mixed.pcap");
    crate::replay::write_capture_in_child(
        "mixed",
        &file,
        (options.size / CAPTURE_SIZE_DIVISOR).max(1),
    )?;
    let load = FrameLoad::read(&file).map_err(|why| why.to_string())?;
    let bench = PrefixBench { pair, load, folder, program: streamline_path().ok_or("no program")? };
    let mut samples = [PREFIX_ONCE_NAME, SHARED_NAME, SEPARATE_RUNS_NAME]
        .map(|name| Samples { name, values: Vec::new() });
    let mut single = Samples { name: "one alone", values: Vec::new() };
    let mut sentinels = Vec::new();
    for round in 0..=options.rounds {
        sentinels.push(CacheRoundTrip::measure());
        let costs = bench.measure_round()?;
        // The first round is a warm-up.
        if round > 0 {
            let all = samples.iter_mut().chain([&mut single]);
            all.zip(costs).for_each(|(samples, cost)| samples.values.push(cost));
        }
    }
    let sentinel_ns = crate::harness::median(&sentinels);
    let subject = ("share", ROW_NAME, 10.0);
    let unit = ("ns CPU/frame", BetterDirection::Less);
    let goal = Goal {
        candidate: SHARED_NAME,
        reference: PREFIX_ONCE_NAME,
        goal: "ten at most 1.5 times one and the tails",
        target: 1.0 / 1.5,
    };
    let mut all = rows_of_samples(subject, unit, sentinel_ns, &samples, &[goal]);
    all.extend(rows_of_samples(
        ("share", "one tail of one user", 1.0),
        unit,
        sentinel_ns,
        &[single],
        &[],
    ));
    Ok(all)
}

struct PrefixBench {
    pair: NamespacePair,
    load: FrameLoad,
    folder: TempDirectory,
    program: PathBuf,
}

/// The result of a run of several requests with the same prefix.
struct PrefixRun {
    /// Processor time of all processes, in ns per frame.
    cost: f64,
    /// Number of blocks received by the last filter or sink of each request.
    taken: Vec<u64>,
}

impl PrefixBench {
    /// Returns the costs of four candidates in ns per frame: the reference, in which the prefix
    /// runs once and each tail once; all requests with a shared prefix; all requests with a
    /// separate prefix each; and the first request alone.
    fn measure_round(&self) -> Result<[f64; 4], String> {
        let (mut prefixes, mut tails, mut alone) = (Vec::new(), 0.0, Vec::new());
        let mut first = f64::NAN;
        for tail in REQUEST_TAILS {
            let prefix = self.measure_with(&[DISCARD_TAIL], "private")?.cost;
            let run = self.measure_with(&[tail], "private")?;
            tails += run.cost - prefix;
            prefixes.push(prefix);
            first = if alone.is_empty() { run.cost } else { first };
            alone.extend(run.taken);
        }
        let once = crate::harness::median(&prefixes) + tails;
        let shared = self.measure_with(&REQUEST_TAILS, "shared")?;
        let apart = self.measure_with(&REQUEST_TAILS, "private")?;
        for (who, run) in [(SHARED_NAME, &shared), (SEPARATE_RUNS_NAME, &apart)] {
            if run.taken != alone {
                return Err(format!("{who}: tails took {:?}, alone {alone:?}", run.taken));
            }
        }
        Ok([once, shared.cost, apart.cost, first])
    }

    /// Sends the capture while requests run that consist of the prefix and one of `tails` each.
    /// `prefix` is the value of their option `--prefix`.
    fn measure_with(&self, tails: &[&str], prefix: &str) -> Result<PrefixRun, String> {
        let folder = self.folder.0.join("run");
        let failed = |why: std::io::Error| format!("{}: {why}", folder.display());
        // Removes the files of an earlier run.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).map_err(failed)?;
        let mut children = Children::default();
        children.add(self.start("daemon", &["daemon", "--socket", "daemon"])?);
        wait_until("the daemon answers", || self.list_paths().is_some());
        for (number, tail) in tails.iter().enumerate() {
            let report = format!("--report=report{number}");
            let request = format!(
                "--prefix={prefix} rx {SERVER_DEVICE} ring={RING_MB}MB | tcp | http {tail}"
            );
            let words = ["run", "--json", &report, &request];
            children.add(self.start(&format!("request{number}"), &words)?);
            let mut ended = None;
            wait_until("the request runs", || {
                ended = children.first_exited();
                ended.is_some()
                    || self
                        .list_paths()
                        .is_some_and(|listed| running_request_count(&listed) > number)
            });
            if ended.is_some() {
                return Err(format!(
                    "{request}: {}",
                    self.read_run_file(&format!("request{number}.err"))
                ));
            }
        }
        let listed = self.list_paths().unwrap_or_default();
        let processes = [children.process_ids(), prefix_process_ids(&listed)].concat();
        let before = wait_until_idle(&processes);
        let sent = self.load.send(&self.pair, Rate::PerSecond(FRAMES_PER_SECOND), usize::MAX)?;
        sys::poll::wait_until_readable(&[], Some(SETTLING_TIME));
        let used = wait_until_idle(&processes).saturating_sub(before);
        children.interrupt_and_wait("a request")?;
        let taken = (0..tails.len())
            .map(|n| parse_received_blocks(&self.read_run_file(&format!("report{n}"))));
        Ok(PrefixRun {
            cost: used as f64 / sent.frames as f64,
            taken: taken.collect::<Result<_, _>>()?,
        })
    }

    fn start(&self, name: &str, words: &[&str]) -> Result<std::process::Child, String> {
        let mut command = self.command();
        let file = File::create(self.folder.0.join("run").join(format!("{name}.err")));
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(file.map_err(|why| format!("{name}: {why}"))?);
        start_on_second_processor(&self.pair.server, &mut command)
    }

    fn command(&self) -> Command {
        let folder = self.folder.0.join("run");
        let mut command = Command::new(&self.program);
        command.env("STREAMLINE_DAEMON", folder.join("daemon")).current_dir(folder);
        command
    }

    fn read_run_file(&self, file: &str) -> String {
        read_text(&self.folder.0.join("run").join(file))
    }

    /// Returns the running paths, as printed by `ps --json`, or `None` if no daemon replies.
    fn list_paths(&self) -> Option<Value> {
        let output = self.command().args(["ps", "--json"]).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    }
}

fn listed_paths(listed: &Value) -> impl Iterator<Item = (&str, u32)> {
    let all = listed["paths"].as_array().into_iter().flatten();
    all.filter_map(|path| {
        Some((path["line"].as_str()?, u32::try_from(path["process"].as_u64()?).ok()?))
    })
}

/// Returns the ids of the processes that run the prefix for several requests.
fn prefix_process_ids(listed: &Value) -> Vec<u32> {
    listed_paths(listed)
        .filter(|(line, _)| line.contains("share \""))
        .map(|(_, process)| process)
        .collect()
}

/// Returns the number of running requests in the listing. The processes that run the prefix do not
/// count.
fn running_request_count(listed: &Value) -> usize {
    listed_paths(listed).filter(|(line, _)| !line.contains("share \"")).count()
}

/// Reads, from a report, the number of blocks that the last filter or sink received. Fails if
/// blocks were lost. Blocks that `tcp` drops as too late do not count as lost, because they are
/// late in the capture itself.
fn parse_received_blocks(report: &str) -> Result<u64, String> {
    let report: Value = serde_json::from_str(report).map_err(|why| format!("a report: {why}"))?;
    let filters = report["filters"].as_array();
    let late = |filter: &Value| filter["dropped"]["late"]["blocks"].as_u64();
    let late: u64 = filters.into_iter().flatten().filter_map(late).sum();
    if report["balanced"] != true || report["lost"] != late {
        let sources = report["sources"].as_array().into_iter().flatten();
        let dropped = sources.map(|source| &source["dropped"]).collect::<Vec<_>>();
        return Err(format!(
            "a request lost blocks ({} in all; its sources lost {}): repeat this while nothing \
             else runs",
            report["lost"],
            json!(dropped)
        ));
    }
    let last = filters.and_then(|all| all.last()).and_then(|last| last["taken"]["blocks"].as_u64());
    last.ok_or_else(|| format!("a report without filters: {report}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_processes_and_readers_are_distinguished() {
        let listed = json!({ "paths": [
            { "line": "rx a | tcp | share \"rx a | tcp\" last=yes", "process": 7 },
            { "line": "shared \"rx a | tcp\" | count", "process": 8 },
        ]});
        assert_eq!((prefix_process_ids(&listed), running_request_count(&listed)), (vec![7], 1));
    }

    #[test]
    fn lost_blocks_fail_a_run() {
        let report = |lost: u64| {
            let late = json!({ "taken": { "blocks": 9 }, "dropped": { "late": { "blocks": 0 } } });
            let last = json!({ "taken": { "blocks": 4 } });
            json!({ "balanced": true, "lost": lost, "filters": [late, last] }).to_string()
        };
        assert_eq!(parse_received_blocks(&report(0)), Ok(4));
        let late = report(3).replace("{\"blocks\":0}", "{\"blocks\":3}");
        assert_eq!(parse_received_blocks(&late), Ok(4));
        assert!(
            parse_received_blocks(&report(1)).unwrap_err().starts_with("a request lost blocks")
        );
        assert!(parse_received_blocks("{}").is_err());
    }
}
